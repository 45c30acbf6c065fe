"""Values that tell people and machines how a run stands."""

from typing import NamedTuple

import msgspec


class HotKey(NamedTuple):
    """A point with all of a busy worker's load, and its part of the partition's handler time: it can't be split."""

    topic: str
    partition: int
    point: int
    share: float


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


class Health(msgspec.Struct, frozen=True):
    """``state``: idle, starting, running, stopping, stopped or failed. ``is_good``: may stay in service."""

    state: str
    is_good: bool
    cause: str | None
    loop_lag_ms_max: float


class PartitionStatistics(msgspec.Struct, frozen=True):
    """Offsets of one source partition: handed out below ``front``, done below ``offset_least``."""

    topic: str
    partition: int
    front: int
    offset_least: int
    workers: int
    queued_records: int
    queued_bytes: int
    lagging_workers: int
    dropped: int
    caught_up: int


class Statistics(msgspec.Struct, frozen=True):
    """What the application has done since it started, and where it stands. Times in seconds of the loop's clock."""

    partitions: tuple[PartitionStatistics, ...] = ()
    records_done: int = 0
    commits: int = 0
    tiles: int = 0
    event_bytes: int = 0
    done_bytes: int = 0
    running: int = 0
    oldest_running: tuple[str, int, float] | None = None
    last_commit_age_s: float | None = None
    loop_lag_ms_max: float = 0.0
    splits: int = 0
    """Of hot ranges, by themselves; as ``merges`` of cold ones."""
    merges: int = 0
    hot_keys: tuple[HotKey, ...] = ()
    """Keys that are the bottleneck of their partition: no split helps."""
    restoring: Progress | None = None
    """How far a restore of state is, while there is one."""
