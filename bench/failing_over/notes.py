"""PURE. What processes noted of the records that they handled, and the figures that come of it."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from rig.gaps import gaps

NOTE = Struct("<QIQ")
"""Nanoseconds of the system's monotonic clock, partition, offset: as peers/failover_apps write it."""


class Note(NamedTuple):
    """A record was handled by ``who`` at ``at_s`` of the monotonic clock."""

    at_s: float
    partition: int
    offset: int
    who: str


def notes_in(raw: bytes, who: str) -> list[Note]:
    """The notes of a file; a half one at its end is none yet."""
    whole = len(raw) - len(raw) % NOTE.size
    return [Note(at / 1e9, partition, offset, who) for at, partition, offset in NOTE.iter_unpack(raw[:whole])]


def owners(notes: Iterable[Note]) -> dict[int, Note]:
    """Of each partition the newest note, in whatever order they come."""
    newest: dict[int, Note] = {}
    for note in notes:
        if note.partition not in newest or note.at_s > newest[note.partition].at_s:
            newest[note.partition] = note
    return newest


def stops(times: Iterable[tuple[int, float]], since_s: float, until_s: float) -> dict[int, float]:
    """Of each partition the longest time without a mark of its own, that lasted into ``[since_s, until_s)``.

    ``times``: partition and time of each mark. A partition that has none behind ``since_s`` stands until ``until_s``.
    """
    by_partition: dict[int, list[float]] = defaultdict(list)
    for partition, at_s in times:
        by_partition[partition].append(at_s)
    return {partition: max(gaps(found, since_s, until_s), default=0.0) for partition, found in by_partition.items()}


def again(notes: Iterable[Note]) -> int:
    """How often a record was handled that had been handled before."""
    times = Counter((note.partition, note.offset) for note in notes)
    return sum(count - 1 for count in times.values())
