"""Limits of an application that nobody has to set: constants, and shares of ``Settings.memory_bytes_max``.

``Settings.limits`` has those of its application. Tests give others, to reach a limit with few records.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MIB: Final = 1024 * 1024
MEMORY_PARTS: Final = 32
"""The memory of an application is divided into so many parts."""
GENERATION_BYTES_MAX: Final = 32 * MIB
"""A larger transaction would not be over within ``transaction_timeout_ms`` on a slow broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one application; units are in the names."""

    # The commit cycle
    commit_lead_ms: int = 20  # a commit takes records up to the front as the front was this long ago
    commit_all_workers_max: int = 16  # with at most so many busy workers a commit takes all that is done
    generation_records_max: int = 50_000  # records with outputs in one transaction
    snapshot_every_commits: int = 1_000  # commits between two snapshots of the offset log
    # Reading
    fetch_records_max: int = 2_000  # records of one fetch
    full_wait_ms: int = 1_000  # how long a reader waits for a full worker when most loaded ones are full
    # Workers
    merge_hold_ms: int = 1_000  # how long two neighbours are held to reach one edge for a merge
    balance_interval_ms: int = 1_000  # between two measurements of the workers' cost
    loop_lag_ms: int = 1_000  # an event loop that was blocked for so long is logged
    failure_log_interval_ms: int = 10_000  # between two warnings of a handler's failures of one kind
    # State
    state_write_interval_ms: int = 1_000  # how often committed changes go to the local copies
    restore_partitions_max: int = 4  # changelog partitions that are read at once
    # Shares of the memory
    generation_bytes_max: int  # of one transaction, at most 32 MiB: its outputs and their source records, about
    done_bytes_max: int  # outputs that wait for a commit; beyond that workers pause; a quota makes it less
    buffer_bytes_max: int  # records queued for workers, all partitions together
    fetch_bytes_max: int  # bytes that one reader prefetches, at least 1 MiB of each partition
    state_cache_bytes_max: int  # RocksDB blocks of state in memory, for the whole process
    state_ahead_bytes_max: int  # values read ahead or written lately, for each topic
    state_unwritten_bytes_max: int  # committed changes that are not in the local copies, for the whole process


@lru_cache(maxsize=8)
def limits_of(memory_bytes_max: int) -> Limits:
    """The limits of an application with so much memory; docs/settings.md has the shares."""
    part = memory_bytes_max // MEMORY_PARTS
    return Limits(
        state_cache_bytes_max=16 * part,
        buffer_bytes_max=4 * part,
        done_bytes_max=4 * part,
        state_ahead_bytes_max=4 * part,
        generation_bytes_max=min(2 * part, GENERATION_BYTES_MAX),
        fetch_bytes_max=part,
        state_unwritten_bytes_max=part,
    )
