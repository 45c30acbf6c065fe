"""Values that tell people and machines how a run stands."""

from typing import Any, Final, NamedTuple

import msgspec

KEY_SHOWN_MAX: Final = 100
"""So many characters of a key are shown."""


class HotKey(NamedTuple):
    """A point with all of a busy worker's load, far more than the others': it can't be split. The worker is busy for
    ``share`` of the time. ``key``: whose point it is; None where no record of it was at hand.
    """

    topic: str
    partition: int
    point: int
    share: float
    key: bytes | None = None

    def __str__(self) -> str:
        """The key if it is known, else its point, for people."""
        if self.key is None:
            return f"the key at point {self.point:08x}"
        text = self.key.decode(errors="backslashreplace")
        return f"key {text[:KEY_SHOWN_MAX]!r}"


class RunningRecord(NamedTuple):
    """A record that a handler works on, of a source partition as it is called (``topic[partition]``), and for how many
    seconds.
    """

    partition: str
    offset: int
    age_s: float

    def __str__(self) -> str:
        """For people."""
        return f"{self.partition} offset {self.offset}, for {self.age_s:.1f} s"


class ToLevel(NamedTuple):
    """How far a run with ``until="level"`` is on its way from where it began to the ends that it found then: offsets of
    all source partitions, those of a key range in proportion to its width.
    """

    done: int
    total: int


class Progress(NamedTuple):
    """How far a restore is. ``records_total``: at most so many will be read (offsets; what was compacted is counted).

    ``bytes``: keys and values that were written. ``seconds_left``: None while nothing can be said.
    """

    partitions_done: int
    partitions: int
    records: int
    records_total: int
    bytes: int
    seconds_left: float | None


class Copying(NamedTuple):
    """Copies of state that a process follows and does not own. ``ready``: so many of them are near what is committed.

    ``bytes_learner``, ``bytes_standby``: keys and values that were written since it started, of ranges that it was to
    own, and of those that it is to have at hand.
    """

    copies: int
    ready: int
    bytes_learner: int
    bytes_standby: int


class Health(msgspec.Struct, frozen=True):
    """``state``: idle, starting, running, stopping, stopped or failed. ``is_good``: may stay in service."""

    state: str
    is_good: bool
    cause: str | None
    loop_lag_ms_max: float

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return _fields(self)


class PartitionStatistics(msgspec.Struct, frozen=True):
    """What this process holds of one source partition, in offsets: handed out below ``front``, committed below
    ``offset_least``. Key ranges that others hold, or nobody, are not counted (``Statistics.unowned``).

    ``end``: the offset that its next record gets, as it was last seen (``Statistics.ends_age_s``). ``lag``: from the
    least offset that some key range has not committed up to ``end``, as tools for consumer groups count it. It is 0
    when everything is committed. It is never less than the records that are left, but may be far more: one key that
    stays behind holds it up while all others go on, and offsets without a record (transaction markers, what was
    compacted) count. ``workers`` is 0 while the state is restored.
    """

    topic: str
    partition: int
    front: int
    offset_least: int
    workers: int = 0
    queued_records: int = 0
    queued_bytes: int = 0
    lagging_workers: int = 0
    dropped: int = 0
    caught_up: int = 0
    end: int = 0
    lag: int = 0


class UnownedPartition(msgspec.Struct, frozen=True):
    """What no process owns of one source partition: its ``share`` of the key ranges, above 0 and at most 1, and its
    ``lag`` in offsets (``PartitionStatistics``).
    """

    topic: str
    partition: int
    share: float
    lag: int


class Statistics(msgspec.Struct, frozen=True):
    """What the application has done since it started, and where it stands. Ages are in seconds.

    ``running``: records that were begun and are not through. Those that wait for their turn (``max_in_flight``,
    ``rate_per_s``) are not among them.

    ``lag`` is the sum over the partitions of which this process holds something: see ``PartitionStatistics``.
    ``unowned``: what nobody owns, from a release to the next grant; of the process that coordinates, () in others. The
    lag of a partition is the greatest one over all processes, here and there. ``failures`` counts attempts that failed,
    ``retries`` those that are followed by another attempt at the same record, ``dead_letters`` the records that failed
    for good and go to a dead-letter topic; an output that the broker refuses is a failure of its record. What is run
    again after a crash is counted again.
    """

    partitions: tuple[PartitionStatistics, ...] = ()
    records_done: int = 0
    lag: int = 0
    unowned: tuple[UnownedPartition, ...] = ()
    ends_age_s: float | None = None
    """How long ago the broker was asked for the ends that ``lag`` counts to; None: not yet. It is asked each
    ``ends_interval_ms``; while it does not answer, this grows, and ``lag`` counts to the ends that are known.
    """
    failures: int = 0
    retries: int = 0
    dead_letters: int = 0
    commits: int = 0
    tiles: int = 0
    event_bytes: int = 0
    throttled_ms: int = 0
    """For how long brokers have throttled this process, all of its connections together: quotas of the cluster."""
    trims_failed: int = 0
    """How often the offset log could not be trimmed: it grows, until it can."""
    done_bytes: int = 0
    running: int = 0
    oldest_running: RunningRecord | None = None
    """The record that a handler has been working on for longest."""
    last_commit_age_s: float | None = None
    loop_lag_ms_max: float = 0.0
    splits: int = 0
    """Of hot ranges, by themselves; as ``merges`` of cold ones."""
    merges: int = 0
    hot_keys: tuple[HotKey, ...] = ()
    """Keys that are the bottleneck of their partition: no split helps."""
    restoring: Progress | None = None
    """How far a restore of state is, while there is one."""
    copying: Copying = Copying(0, 0, 0, 0)
    """Copies of state that others own."""
    cut_off: int = 0
    """Records that were still running when the time to drain was over: they run again at the next start."""
    rates: dict[str, float] = {}
    """The share of this process, of each topic whose handler has a ``rate_per_s``: in attempts per second."""
    to_level: ToLevel | None = None
    """How far a run to the ends of its sources is; None: it is none."""
    is_compiled: bool = False
    """Whether the hot modules run compiled; interpreted a record costs about twice the processor time."""

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON: dictionaries, lists, text, numbers and None. The key of a ``HotKey`` is text."""
        return _fields(self)


def _fields(given: msgspec.Struct) -> dict[str, Any]:
    return {name: _plain(getattr(given, name)) for name in given.__struct_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    if hasattr(value, "_asdict"):  # of a NamedTuple
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
