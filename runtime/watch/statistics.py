"""Values that tell people and machines the state of a run."""

from typing import Any, Final, NamedTuple

import msgspec

KEY_SHOWN_MAX: Final = 100
"""How many characters of a key are shown at most."""


class HotKey(NamedTuple):
    """A point with all the load of a worker that is far busier than the others: a point can't be split. ``share``: the
    part of the time for which the worker is busy, 0 to 1. ``key``: a key at the point; None when no record of the point
    was at hand.
    """

    topic: str
    partition: int
    point: int
    share: float
    key: bytes | None = None

    def __str__(self) -> str:
        """The key if known, else the point, for people."""
        if self.key is None:
            return f"the key at point {self.point:08x}"
        text = self.key.decode(errors="backslashreplace")
        return f"key {text[:KEY_SHOWN_MAX]!r}"


class RunningRecord(NamedTuple):
    """A record in a handler: its source partition as text (``topic[partition]``), its offset, and since how many
    seconds a handler works on the record.
    """

    partition: str
    offset: int
    age_s: float

    def __str__(self) -> str:
        """The record and its age, for people."""
        return f"{self.partition} offset {self.offset}, for {self.age_s:.1f} s"


class ToLevel(NamedTuple):
    """How far a run with ``until="level"`` is on the way to the ends of its sources: ``done`` of ``total`` offsets,
    summed over the source partitions. A key range counts in proportion to its width.
    """

    done: int
    total: int


class Progress(NamedTuple):
    """How far a restore is. ``records_total``: the most records to read (in offsets; compacted records count).

    ``bytes``: the size of written keys and values. ``seconds_left``: None while no estimate is possible.
    """

    partitions_done: int
    partitions: int
    records: int
    records_total: int
    bytes: int
    seconds_left: float | None


class Copying(NamedTuple):
    """A process's copies of state that other processes own. ``ready``: how many copies are near the committed state.

    ``bytes_learner``, ``bytes_standby``: the size of the keys and values written since the start: of ranges that were
    to move to the process, and of standby copies.
    """

    copies: int
    ready: int
    bytes_learner: int
    bytes_standby: int


class Health(msgspec.Struct, frozen=True):
    """``state``: idle, starting, running, stopping, stopped or failed. ``is_good``: the process may stay in service."""

    state: str
    is_good: bool
    cause: str | None
    loop_lag_ms_max: float

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return _fields(self)


class PartitionStatistics(msgspec.Struct, frozen=True):
    """The part of a source partition that this process holds, in offsets: handed out below ``front``, committed below
    ``offset_least``. Key ranges of other processes, or without an owner (``Statistics.unowned``), are not counted.

    ``end``: the offset of the partition's next record, as last seen (``Statistics.ends_age_s``). ``lag``: the offsets
    from ``offset_least`` to ``end``, as tools for consumer groups count. The lag is 0 when everything is committed. The
    lag is at least the number of records left, but may be far more: a single slow key holds the lag up while all other
    keys go on, and offsets without a record (transaction markers, compacted records) count. ``workers`` is 0 during the
    restore of the state.
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
    """The part of a source partition without an owner: its ``share`` of the points, above 0 and at most 1, and its
    ``lag`` in offsets (``PartitionStatistics``).
    """

    topic: str
    partition: int
    share: float
    lag: int


class Statistics(msgspec.Struct, frozen=True):
    """The work of the application since its start, and the present state. Ages are in seconds.

    ``running``: records that were begun and are not done. Records that wait for their turn (``max_in_flight``,
    ``rate_per_s``) do not count.

    ``lag`` is the sum over the partitions with ranges in this process: see ``PartitionStatistics``. ``unowned``: the
    ranges without an owner, from a release to the next grant; only the coordinator fills this field, other processes
    have (). The lag of a partition is the greatest lag over all processes and ``unowned``. ``failures`` counts failed
    attempts, ``retries`` the failed attempts with another attempt at the same record behind, ``dead_letters`` the
    records that failed for good and go to a dead-letter topic; an output that the broker refuses is a failure of its
    record. Records that run again after a crash count again.
    """

    partitions: tuple[PartitionStatistics, ...] = ()
    records_done: int = 0
    lag: int = 0
    unowned: tuple[UnownedPartition, ...] = ()
    ends_age_s: float | None = None
    """The age of the ends that ``lag`` counts to; None: no ends are known yet. The process asks the broker every ten
    seconds; without an answer the age grows, and ``lag`` counts to the known ends.
    """
    failures: int = 0
    retries: int = 0
    dead_letters: int = 0
    commits: int = 0
    tiles: int = 0
    event_bytes: int = 0
    throttled_ms: int = 0
    """For how long quotas of the cluster have throttled this process, over all connections."""
    trims_failed: int = 0
    """How many trims of the offset log have failed: the log grows until a trim succeeds."""
    done_bytes: int = 0
    running: int = 0
    oldest_running: RunningRecord | None = None
    """The record that has been running for longest."""
    last_commit_age_s: float | None = None
    loop_lag_ms_max: float = 0.0
    splits: int = 0
    """Automatic splits of hot ranges; ``merges`` counts automatic merges of cold ranges."""
    merges: int = 0
    hot_keys: tuple[HotKey, ...] = ()
    """Keys that are the bottleneck of their partition: no split helps."""
    restoring: Progress | None = None
    """How far the restore of state is; None: no restore is under way."""
    copying: Copying = Copying(0, 0, 0, 0)
    """Copies of state that other processes own."""
    cut_off: int = 0
    """Records that were still running at the end of the drain: the records run again at the next start."""
    rates: dict[str, float] = {}
    """By topic with a ``rate_per_s``: this process's share of the rate, in attempts per second."""
    to_level: ToLevel | None = None
    """How far a run with ``until="level"`` is; None: the run has no ends to reach."""
    is_compiled: bool = False
    """Whether the hot modules run compiled; interpreted, a record costs about twice the processor time."""

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
