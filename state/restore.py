"""PURE. What a local copy lacks of its changelog, and what becomes of each record that is read to make it whole.

Rules:

- A marker is a lower bound: a range goes on from its marker. What the copy holds above it is written again.
- A copy that can't be gone on from is cleared and read anew from the changelog's start: its marker lies ahead of the
  changelog; or it is so old that the tombstone of a key that it still holds may be gone. A range without a marker is
  cleared too: a copy of it that was never whole may have left something.
- A changelog that does not begin at 0 lost its head: no copy can be made from it.
- *The beacon is looked at first*, from the changelog's end backwards. A copy that has outlived its changelog is all
  that is left of the state: nothing of it is cleared for a changelog that is the wrong one.
- The time of a marker that is set on the way stays the one that its range came with (or when the reading began): a
  tombstone above it may be as old. Only who has reached the high watermark has the time at which that was taken.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from ..keyrange.hashing import SPACE_END
from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps
from .changelog import BEACON_KEY, Beacon, decode_beacon
from .keys import is_state_key, point_in
from .tables import Change, Mark, Marker

BEACON_STEP: Final = 64
BEACON_STEP_GROWTH: Final = 16
_MS_PER_HOUR: Final = 3_600_000


class ChangelogUnfit(ValueError):
    """No copy can be made from this changelog. The message says why, without its name."""


class ChangelogRecord(Protocol):
    """A record of a changelog."""

    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class Cleared(NamedTuple):
    """A range whose copy is thrown away. ``reason`` in words; empty: it was not held, so nothing is lost."""

    within: KeyRange
    reason: str


class Plan:
    """How one copy becomes whole: clear ``cleared``, then read once from ``position`` to ``high``.

    ``starts``: from which position on the records of each held point count. ``time_ms``: when ``high`` was taken.
    """

    def __init__(
        self, starts: Steps[int], cleared: Sequence[Cleared], high: int, time_ms: int, time_ms_on_the_way: int
    ) -> None:
        self.starts, self.cleared, self.high, self.time_ms = starts, tuple(cleared), high, time_ms
        self.position = min((start for _, _, start in starts.pieces()), default=high)
        self._time_ms_on_the_way = time_ms_on_the_way
        self._start_max = max((start for _, _, start in starts.pieces()), default=0)
        self._is_all_held = all(start is not None for _, _, start in starts.all_pieces())

    @property
    def offsets(self) -> int:
        """How many offsets lie between ``position`` and ``high``; there are at most so many records."""
        return self.high - self.position

    def apply(self, records: Sequence[ChangelogRecord]) -> list[Change]:
        """What records, in order of offsets, change in the copy; raises ChangelogUnfit for one that is no state."""
        changes: list[Change] = []
        if not records:
            return changes
        take, at = changes.append, self.starts.at
        takes_all = self._is_all_held and records[0].offset >= self._start_max
        for record in records:
            key = record.key
            if key is None or not is_state_key(key):
                if key != BEACON_KEY:
                    raise _no_state(record)
            elif takes_all:
                take((key, record.value))
            else:
                start = at(point_in(key))
                if start is not None and record.offset >= start:
                    take((key, record.value))
        return changes

    def marks(self, position: int) -> list[Mark]:
        """The markers of the held points when all below ``position`` was read and written."""
        if position >= self.high:
            done = Marker(position, self.time_ms)
            return [(first, end, done) for first, end in _runs(self.starts)]
        on_the_way = Marker(position, self._time_ms_on_the_way)
        return [(first, end, on_the_way) for first, end, start in self.starts.pieces() if start < position]


def plan_restore(
    held: Iterable[KeyRange],
    markers: Steps[Marker],
    start: int,
    high: int,
    now_ms: int,
    delete_retention_ms: int,
) -> Plan:
    """How the copy of these ranges becomes whole. ``start``, ``high``: the watermarks of the changelog's partition,
    taken at ``now_ms`` or later. Raises ChangelogUnfit when the changelog has lost its head.
    """
    if start > 0:
        raise ChangelogUnfit(
            f"it begins at position {start}: records were deleted from its head, and with them state (a changelog is "
            "compacted, nothing may expire from it or be deleted)"
        )
    begins: list[tuple[int, int, int]] = []
    cleared: list[tuple[int, int, str]] = []
    times = [now_ms]
    for first, end in _runs(Steps((within.first, within.end, True) for within in held)):
        for a, b, marker in markers.all_pieces(first, end):
            reason = "" if marker is None else _fault(marker, high, now_ms, delete_retention_ms)
            if marker is None or reason:
                begins.append((a, b, 0))
                cleared.append((a, b, reason))
            else:
                begins.append((a, b, marker.position))
                if marker.position < high:
                    times.append(marker.time_ms)
    thrown = [Cleared(KeyRange(a, b), reason) for a, b, reason in Steps(cleared).pieces()]
    return Plan(Steps(begins), thrown, high, now_ms, min(times))


def _fault(marker: Marker, high: int, now_ms: int, delete_retention_ms: int) -> str:
    """Why a copy can't be gone on from; empty: it can."""
    if marker.position > high:
        return (
            f"it is at position {marker.position} of its changelog, which ends at {high} (the changelog was truncated "
            "or made anew, or the folder is of another one)"
        )
    age_ms = abs(now_ms - marker.time_ms)  # a clock that was set back makes it look too young
    if marker.position < high and 2 * age_ms > delete_retention_ms:
        return (
            f"it is {age_ms / _MS_PER_HOUR:,.1f} h old, and deletes may be gone from its changelog after "
            f"delete.retention.ms={delete_retention_ms} ({delete_retention_ms / _MS_PER_HOUR:,.1f} h); half of that is "
            "allowed"
        )
    return ""


def _runs(steps: Steps[int] | Steps[bool]) -> Iterator[tuple[int, int]]:
    """The longest runs of points where a function is defined."""
    begin: int | None = None
    for first, _, value in steps.all_pieces():
        if value is not None and begin is None:
            begin = first
        elif value is None and begin is not None:
            yield begin, first
            begin = None
    if begin is not None:
        yield begin, SPACE_END


def _no_state(record: ChangelogRecord) -> ChangelogUnfit:
    seen = "no key" if record.key is None else f"the key {record.key[:40]!r} of {len(record.key)} bytes"
    return ChangelogUnfit(
        f"its record at position {record.offset} is no state: it has {seen}. Something else writes to this topic"
    )


# --- the beacon ----------------------------------------------------------------------------------------------------


def spans_from_end(high: int) -> Iterator[tuple[int, int]]:
    """``[first, end)`` of positions, from the end of a changelog back to its start, growing."""
    end, step = high, BEACON_STEP
    while end > 0:
        first = max(0, high - step)
        yield first, end
        end, step = first, step * BEACON_STEP_GROWTH


def last_beacon(records: Iterable[ChangelogRecord]) -> Beacon | None:
    """The beacon that stands last among records in order of offsets; raises ChangelogUnfit for one that is none."""
    last = None
    for record in records:
        if record.key == BEACON_KEY:
            last = record
    if last is None:
        return None
    try:
        return decode_beacon(last.value)
    except ValueError as error:
        raise ChangelogUnfit(f"its record at position {last.offset} is no state: {error}") from None


def check_beacon(found: Beacon | None, expected: tuple[int, int] | None) -> None:
    """Raises ChangelogUnfit unless the changelog's beacon is the last transaction that the offset log knows.

    ``expected``: (incarnation, transaction), or None when no transaction has changed the partition's state.
    """
    if found == expected:
        return
    raise ChangelogUnfit(
        f"it holds state up to {_transaction(found)}, and the offset log says that {_transaction(expected)} was the "
        "last to change it: one of the two was truncated, made anew, or is another application's"
    )


def _transaction(named: tuple[int, int] | None) -> str:
    return "no transaction" if named is None else f"transaction {named[1]} of incarnation {named[0]}"
