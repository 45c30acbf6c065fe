"""PURE. How a local copy is completed from its changelog: which part is read, and what each record changes in the copy.

Rules:

- A marker is a lower bound: a range goes on from its marker. Changes above the marker that the copy has already are
  written again.
- A copy that can't go on is cleared and read anew from the changelog's start. Either its marker lies beyond the
  changelog's end, or the copy is so old that the tombstone of a key in the copy may be gone. A range without a marker
  is cleared, too: an incomplete copy may have left something there.
- A changelog that does not begin at 0 lost its head: no copy can be made from the rest.
- *The beacons are checked first*, from the changelog's end backwards. A copy that has outlived its changelog is all
  that is left of the state: the wrong changelog must not clear the copy.
- A marker below the high watermark keeps the time of the marker before (or the time when the reading began): a
  tombstone above may be as old. A marker at the high watermark gets the time at which the watermark was taken. A copy
  that is read for long goes from one watermark to the next, each with a plan of its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps
from .changelog import BEACONS_END, beacon_key, decode_beacon, incarnation_of, is_beacon_key
from .keys import is_state_key, point_in
from .tables import Change, Mark, Marker, Table

BEACON_STEP: Final = 64
"""The number of positions that are searched for beacons first."""
BEACON_STEP_GROWTH: Final = 16
"""By this factor the number grows with each further step."""
BEACON_NEAR: Final = 16_384
"""A copy is near its changelog's end when it lacks no more than this number of records."""
_MS_PER_HOUR: Final = 3_600_000
_PAGE_ENTRIES: Final = 1_000


class ChangelogUnfit(ValueError):
    """No copy can be made from this changelog. The message says why, without the topic's name."""


class ChangelogRecord(Protocol):
    """A record of a changelog."""

    @property
    def offset(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class Cleared(NamedTuple):
    """A range whose copy is thrown away. ``reason`` in words; empty: the range had no marker, nothing is lost."""

    within: KeyRange
    reason: str


@dataclass(frozen=True)
class Plan:
    """The way to complete one copy: clear ``cleared``, then read once from ``position`` to ``high``.

    ``starts``: at each wanted point, the position from which records count. ``time_ms``: when ``high`` was taken.
    ``time_ms_on_the_way``: the time for markers below ``high``. ``delete_retention_ms``: the time for which the
    changelog keeps its deletes.
    """

    starts: Steps[int]
    cleared: tuple[Cleared, ...]
    high: int
    time_ms: int
    time_ms_on_the_way: int
    delete_retention_ms: int

    @cached_property
    def position(self) -> int:
        """The least position from which records count."""
        return min((start for _, _, start in self.starts.pieces()), default=self.high)

    @cached_property
    def _all_from(self) -> int | None:
        """The position from which all records count; None: some points are not wanted."""
        starts = [start for _, _, start in self.starts.all_pieces()]
        return None if None in starts else max((start for start in starts if start is not None), default=0)

    @property
    def offsets(self) -> int:
        """The number of offsets between ``position`` and ``high``: an upper bound for the number of records."""
        return self.high - self.position

    def apply(self, records: Sequence[ChangelogRecord]) -> list[Change]:
        """The changes that records, in order of offsets, make to the copy; raises ChangelogUnfit for other records."""
        changes: list[Change] = []
        if not records:
            return changes
        take, at = changes.append, self.starts.at
        takes_all = self._all_from is not None and records[0].offset >= self._all_from
        for record in records:
            key = record.key
            if key is None or not is_state_key(key):
                if key is None or not is_beacon_key(key):
                    raise _no_state(record)
            elif takes_all:
                take((key, record.value))
            else:
                start = at(point_in(key))
                if start is not None and record.offset >= start:
                    take((key, record.value))
        return changes

    def further(self, position: int, high: int, time_ms: int) -> "Plan":
        """The next plan when all below ``position`` is written: on to the watermark ``high``, taken at ``time_ms``."""
        starts = Steps((first, end, max(start, position)) for first, end, start in self.starts.pieces())
        on_the_way = self.time_ms if position >= self.high else self.time_ms_on_the_way
        return replace(self, starts=starts, cleared=(), high=high, time_ms=time_ms, time_ms_on_the_way=on_the_way)

    def is_outlived(self, position: int, now_ms: int) -> bool:
        """Whether the reading takes so long that deletes behind ``position`` may be gone before they are read. The next
        ``plan_restore`` then begins anew.
        """
        since_ms = self.time_ms if position >= self.high else self.time_ms_on_the_way
        return _is_too_old(abs(now_ms - since_ms), self.delete_retention_ms)

    def without(self, points: Steps[bool]) -> "Plan":
        """The plan without some points. The new plan clears nothing: a clear is done already, or not wanted."""
        starts = self.starts.replace((first, end, None) for first, end, _ in points.pieces())
        return replace(self, starts=starts, cleared=())

    def marks(self, position: int) -> list[Mark]:
        """The markers of the plan's points when all below ``position`` was read and written."""
        if position >= self.high:
            done = Marker(position, self.time_ms)
            return Steps((first, end, done) for first, end, _ in self.starts.pieces()).pieces()
        on_the_way = Marker(position, self.time_ms_on_the_way)
        return [(first, end, on_the_way) for first, end, start in self.starts.pieces() if start < position]


def plan_restore(
    held: Iterable[KeyRange],
    markers: Steps[Marker],
    start: int,
    high: int,
    now_ms: int,
    delete_retention_ms: int,
) -> Plan:
    """Plan how to complete the copy of the ranges ``held``. ``start``, ``high``: the watermarks of the changelog's
    partition, taken at ``now_ms`` or later. Raises ChangelogUnfit when the changelog has lost its head.
    """
    if start > 0:
        raise ChangelogUnfit(
            f"it begins at position {start}: records were deleted from its head, and with them state (a changelog is "
            "compacted, nothing may expire from it or be deleted)"
        )
    begins: list[tuple[int, int, int]] = []
    cleared: list[tuple[int, int, str]] = []
    times = [now_ms]
    for first, end, _ in Steps((within.first, within.end, True) for within in held).pieces():
        for a, b, marker in markers.all_pieces(first, end):
            reason = "" if marker is None else _fault(marker, high, now_ms, delete_retention_ms)
            if marker is None or reason:
                begins.append((a, b, 0))
                cleared.append((a, b, reason))
            else:
                begins.append((a, b, marker.position))
                if marker.position < high:
                    times.append(marker.time_ms)
    thrown = tuple(Cleared(KeyRange(a, b), reason) for a, b, reason in Steps(cleared).pieces())
    return Plan(
        starts=Steps(begins),
        cleared=thrown,
        high=high,
        time_ms=now_ms,
        time_ms_on_the_way=min(times),
        delete_retention_ms=delete_retention_ms,
    )


def _fault(marker: Marker, high: int, now_ms: int, delete_retention_ms: int) -> str:
    """The reason why a copy can't go on from a marker; empty: the copy can."""
    if marker.position > high:
        return (
            f"it is at position {marker.position} of its changelog, which ends at {high} (the changelog was truncated "
            "or made anew, or the folder is of another one)"
        )
    age_ms = abs(now_ms - marker.time_ms)  # after the clock was set back, a marker may lie in the future
    if marker.position < high and _is_too_old(age_ms, delete_retention_ms):
        return (
            f"it is {age_ms / _MS_PER_HOUR:,.1f} h old, and deletes may be gone from its changelog after "
            f"delete.retention.ms={delete_retention_ms} ({delete_retention_ms / _MS_PER_HOUR:,.1f} h); half of that is "
            "allowed"
        )
    return ""


def _is_too_old(age_ms: int, delete_retention_ms: int) -> bool:
    """Whether deletes may be gone from a changelog before a copy of this age is complete: half of the time is for the
    reading.
    """
    return 2 * age_ms > delete_retention_ms


def _no_state(record: ChangelogRecord) -> ChangelogUnfit:
    seen = "no key" if record.key is None else f"a key of {len(record.key)} bytes"
    return ChangelogUnfit(
        f"its record at position {record.offset} is no state: it has {seen}. Something else writes to this topic"
    )


# --- the beacons ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Writers:
    """The writers of a partition's state, by the logs. The control log was read first, then the offset log to its end;
    the watermark of the changelog is taken later. Writers are named by their incarnation.

    - ``changed``: the last state-changing transaction of each writer without a successor.
    - ``required``: the writers in ``changed`` with beacons that must be there.
    - ``living``: writers that joined and were not fenced; they may have gone on writing.
    - ``incarnation_max``: the highest incarnation that ever joined; None: not known, and no writer counts as fenced.
    - ``own``: this process; 0: not named. The logs name all writers that this process has succeeded.
    - ``succeeding``: writers with beacons that this process found in order and deletes with its next change, at any
      moment. The check leaves these beacons out. The set may grow meanwhile.
    """

    changed: Mapping[int, int]
    required: frozenset[int]
    living: frozenset[int] = frozenset()
    incarnation_max: int | None = None
    own: int = 0
    succeeding: AbstractSet[int] = frozenset()

    def is_fenced(self, incarnation: int) -> bool:
        """Whether the logs had everything from the incarnation at the time of the reading."""
        return incarnation not in self.living and not self.is_unknown(incarnation) and self.incarnation_max is not None

    def is_unknown(self, incarnation: int) -> bool:
        """Whether the incarnation is missing in the control log."""
        return self.incarnation_max is not None and incarnation > self.incarnation_max


class BeaconSearch:
    """The search for the beacons of one changelog, from its end backwards, until all required beacons are found.

    ``found``: the transaction in each writer's newest beacon; None: a deleted beacon. ``position``: where the reading
    of the copy starts. Where this position is near the end, the first span begins there: the beacon of the copy's last
    writer is near, too, and the span has the records that the copy lacks.
    """

    def __init__(self, writers: Writers, high: int, position: int) -> None:
        self.found: dict[int, int | None] = {}
        self._writers = writers
        self._high = high
        tail = high - position + BEACON_STEP
        self._spans = spans_from_end(high, tail if BEACON_STEP <= tail <= BEACON_NEAR else BEACON_STEP)
        self._keys: set[bytes] = set()
        self._newest: dict[bytes, ChangelogRecord] = {}
        """The newest record of each beacon in the span that is being read."""

    def span(self) -> tuple[int, int] | None:
        """``[first, end)`` of positions to be read next; None: the search is over. Raises ChangelogUnfit."""
        for key, record in self._newest.items():
            self._keys.add(key)
            try:
                self.found[incarnation_of(key)] = _transaction_in(key, record.value)
            except ValueError as error:
                raise ChangelogUnfit(f"its record at position {record.offset} is no state: {error}") from None
        self._newest.clear()
        is_any = any(transaction is not None for transaction in self.found.values())
        return None if is_any and self._writers.required <= self.found.keys() else next(self._spans, None)

    def read(self, records: Iterable[ChangelogRecord]) -> None:
        """Take in records of the span, in order of offsets; records beyond the span may be among them."""
        for record in records:
            key = record.key
            if key is not None and is_beacon_key(key) and key not in self._keys and record.offset < self._high:
                self._newest[key] = record

    def check(self) -> None:
        """Raises ChangelogUnfit unless the beacons agree with the writers."""
        check_beacons(self.found, self._writers)


def spans_from_end(high: int, step: int) -> Iterator[tuple[int, int]]:
    """``[first, end)`` of positions, from the end of a changelog back to its start, growing."""
    end = high
    while end > 0:
        first = max(0, high - step)
        yield first, end
        end, step = first, step * BEACON_STEP_GROWTH


def _transaction_in(key: bytes, value: bytes | None) -> int | None:
    """The transaction in a beacon; None: the beacon was deleted. Raises ValueError for other bytes."""
    return None if value is None else decode_beacon(key, value).transaction


def check_table(table: Table, writers: Writers) -> None:
    """Check the beacons of a changelog that a broker keeps by key; raises ChangelogUnfit as ``check_beacons`` does.

    A deleted beacon leaves nothing there.
    """
    found: dict[int, int | None] = dict.fromkeys(writers.required)
    at = beacon_key(0)
    while page := table.page(at, BEACONS_END, _PAGE_ENTRIES):
        for key, value in page:
            if is_beacon_key(key):
                try:
                    found[incarnation_of(key)] = _transaction_in(key, value)
                except ValueError as error:
                    raise ChangelogUnfit(f"its key {key.hex()} is no state: {error}") from None
        at = page[-1][0] + b"\x00"
    check_beacons(found, writers)


def check_beacons(found: Mapping[int, int | None], writers: Writers) -> None:
    """Raises ChangelogUnfit unless the beacons of a changelog agree with the offset log: a fenced writer has exactly
    its last transaction, a living writer the last or a later transaction, a writer without changes no beacon.

    ``found``: see ``BeaconSearch``. A deleted beacon is in order if a living writer has written since the logs were
    read: the living writer has succeeded the other.
    """
    changed = writers.changed
    found = {incarnation: seen for incarnation, seen in found.items() if incarnation not in writers.succeeding}
    is_ahead = any(
        transaction is not None
        and transaction > changed.get(incarnation, 0)
        and not writers.is_fenced(incarnation)
        and not writers.is_unknown(incarnation)
        and incarnation != writers.own
        for incarnation, transaction in found.items()
    )
    for incarnation in sorted((writers.required | (found.keys() & changed.keys())) - writers.succeeding):
        last, seen = changed[incarnation], found.get(incarnation)
        if seen is None:
            is_right = incarnation in found and is_ahead
        else:
            is_right = seen == last if writers.is_fenced(incarnation) else seen >= last
        if not is_right:
            known = f"the offset log says that transaction {last} was the last of that incarnation to change it"
            raise _mismatch(incarnation, seen, known)
    for incarnation, seen in sorted(found.items(), key=lambda pair: pair[0]):
        if seen is None or incarnation in changed:
            continue
        if writers.is_unknown(incarnation):
            known = f"the control log says that only incarnations up to {writers.incarnation_max} have ever taken part"
            raise _mismatch(incarnation, seen, known)
        if writers.is_fenced(incarnation):
            known = "the offset log says that it has changed nothing, or that another writer has succeeded it"
            raise _mismatch(incarnation, seen, known)


def _mismatch(incarnation: int, seen: int | None, known: str) -> ChangelogUnfit:
    """The error for a beacon with the transaction ``seen``, where the logs say ``known``."""
    held = "no transaction" if seen is None else f"transaction {seen}"
    return ChangelogUnfit(
        f"it holds state up to {held} of incarnation {incarnation}, and {known}: one of the two was "
        "truncated, made anew, or is another application's"
    )
