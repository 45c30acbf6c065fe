"""What must be true of copies of state, by the events themselves and by what lies in the folders.

- A copy is asked of somebody who takes part, of what is not its own; a learner's is of a planned move to it.
- Nobody is asked to release state for somebody who was not asked to copy it before.
- State moves once: as long as a learner is there, nobody is asked to release for anybody else what it copies.
- What nobody owns keeps its last copy.
- No record is handled before the copy has all that others have changed of its points.
- No change is copied twice: what comes into a copy, at each write, is committed and lies at its marker or above. So
  what is copied is what was asked for and what a folder lost. And it is of points that were granted to the member or
  asked of it.
- A marker that is raised, at each write, claims only what is there.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final, NamedTuple

from keylanes.brokers.protocol import TopicPartition
from keylanes.keyrange.ranges import KeyRange
from keylanes.keyrange.steps import Steps
from keylanes.offsets.control import LEARNER, STANDBY
from keylanes.offsets.control_events import CopyAsked, CopyEnded, RangesGranted, ReleaseAsked
from keylanes.offsets.event_values import PlannedMove
from keylanes.state.changelog import is_beacon_key
from keylanes.state.keys import point_in
from keylanes.state.tables import Change as Entry
from keylanes.state.tables import LocalCopy, Mark, Marker

from ..stage.cluster import Row
from .cells import NOBODY, Cells

ROLES: Final = (LEARNER, STANDBY)
LEAVES: Final = "its member leaves"
"""Why a copy that is not ready may be ended at any time."""


class Change(NamedTuple):
    """A committed change of a key, where it lies in the changelog, and who made it."""

    offset: int
    value: bytes | None
    incarnation: int


class Copied:
    """Of one application. Methods raise AssertionError that says what is wrong."""

    def __init__(self) -> None:
        self.copies: dict[int, CopyAsked] = {}
        """Those that are not over, by move."""
        self.gone: set[int] = set()
        """Who was expelled."""
        self.withdrawn: set[int] = set()
        """The moves that came to nothing: what was copied for one is kept as long as nobody works on it."""
        self.numbers: set[int] = set()
        self.changes: dict[tuple[TopicPartition, int], dict[bytes, list[Change]]] = {}
        """By source partition and point, and by key; the newest last."""
        self.keys: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        """What was changed where, by source partition, in order of offsets."""
        self.asked: dict[tuple[int, TopicPartition], Steps[bool]] = {}
        """The points that an incarnation was ever asked to copy."""
        self.owners: dict[TopicPartition, list[tuple[KeyRange, int]]] = {}
        """To whom points were granted, the newest last."""
        self.looked: set[tuple[TopicPartition, int, int]] = set()
        """By partition, epoch and point."""
        self.reached: Counter[str] = Counter()

    def ask(self, event: CopyAsked, planned: Mapping[int, PlannedMove], cells: Cells) -> None:
        """``planned``: all moves that ever were."""
        assert event.role in ROLES, f"{event}: what is {event.role}?"
        assert event.move not in self.copies, f"{event} has the number of {self.copies[event.move]}"
        if event.role == LEARNER:
            move = planned.get(event.move)
            assert move is not None, f"{event} of no plan"
            assert (move.topic, move.partition, move.target) == (event.topic, event.partition, event.incarnation), event
            outside = [band for band in event.bands if not move.first <= band.first < band.end <= move.end]
            assert not outside, f"{event}: {outside} lie outside of {move}"
        else:
            assert event.move not in self.numbers | planned.keys(), f"{event} has a number that was used"
        for band in event.bands:
            for i in cells.within(band.first, band.end):
                holder = cells.holders[i]
                assert holder.incarnation != event.incarnation, f"{event}: {cells.bounds[i]:08x} is its own already"
        self.numbers.add(event.move)
        self.copies[event.move] = event
        own = event.incarnation, TopicPartition(event.topic, event.partition)
        self.asked[own] = self.asked.get(own, Steps()).replace((band.first, band.end, True) for band in event.bands)
        self.reached[f"copy asked: {event.role}"] += 1

    def end(self, event: CopyEnded, cells: Mapping[TopicPartition, Cells]) -> None:
        """Of what an expelled member had somebody else has a copy, too, unless its member leaves. What was released may
        be seen later than it was.
        """
        copy = self.copies.pop(event.move, None)
        assert copy is not None, f"{event} of no copy"
        self.reached[f"copy ended: {event.reason}"] += 1
        place = TopicPartition(copy.topic, copy.partition)
        for band in copy.bands:
            for i in cells[place].within(band.first, band.end):
                first = cells[place].bounds[i]
                others = [one for one in self.copies.values() if _covers(one, place, first)]
                is_lost = self._owner(place, first) in self.gone
                assert not is_lost or others or event.reason == LEAVES, (
                    f"{event}: nobody owns {first:08x}, and {copy} was the last one"
                )

    def expelled(self, incarnation: int) -> None:
        """Its copies are over."""
        self.gone.add(incarnation)
        self.copies = {move: copy for move, copy in self.copies.items() if copy.incarnation != incarnation}

    def release(self, event: ReleaseAsked, planned: Mapping[int, PlannedMove]) -> None:
        """For its target, which has a copy, and no other learner is at it whose move takes it from its owner."""
        move = planned[event.move]
        if move.origin == move.target:
            return
        place, within = TopicPartition(event.topic, event.partition), KeyRange(event.first, event.end)
        own = [copy for copy in self.copies.values() if copy.incarnation == move.target]
        bounds = {within.first, *(band.end for copy in own for band in copy.bands)}
        for point in sorted(bounds):
            if within.contains(point):
                assert any(_covers(copy, place, point) for copy in own), f"{event}: {move.target} has no copy"
        for copy in self.copies.values():
            is_learning = copy.role == LEARNER and copy.move not in self.withdrawn
            if is_learning and copy.incarnation != move.target and planned[copy.move].origin == event.incarnation:
                met = _is_of(copy, place) and any(within.overlaps(KeyRange(b.first, b.end)) for b in copy.bands)
                assert not met, f"{event} for {move.target}, and {copy} learns it"
        self.reached["released to who has a copy"] += 1

    def grant(self, event: RangesGranted) -> None:
        """Who owns all of what it copies has no copy any more."""
        place = TopicPartition(event.topic, event.partition)
        owners = self.owners.setdefault(place, [])
        owners += [(KeyRange(band.first, band.end), event.incarnation) for band in event.bands]
        for move, copy in list(self.copies.items()):
            if _is_of(copy, place) and copy.incarnation == event.incarnation:
                parts = [part for band in copy.bands for part in _owned(owners, KeyRange(band.first, band.end))]
                if {owner for _, owner in parts} == {event.incarnation}:
                    del self.copies[move]
                    self.reached[f"copy promoted: {copy.role}"] += 1

    def changed(self, place: TopicPartition, incarnation: int, rows: Iterable[Row]) -> None:
        """A member's transaction with these records of the changelog is decided as committed."""
        for row in rows:
            key = row.key or b""
            if not is_beacon_key(key):
                by_key = self.changes.setdefault((place, point_in(key)), {})
                by_key.setdefault(key, []).append(Change(row.offset, row.value, incarnation))
                insort(self.keys.setdefault(place, []), (row.offset, key))

    def written(self, place: TopicPartition, own: int, markers: Steps[Marker], found: Iterable[Entry]) -> None:
        """A process writes to its copy, whose markers were these. ``own``: its incarnation. What it committed as that
        is in its memory, so it may write it at any time.
        """
        for key, value in found:
            point = point_in(key)
            changes, marker = self.changes.get((place, point), {}).get(key, []), markers.at(point)
            position = 0 if marker is None else marker.position
            if any(change.value == value and change.incarnation == own for change in changes):
                continue
            assert any(change.value == value for change in changes), (
                f"{place}: {value!r} of {key!r} is written to a copy, and nobody has committed it"
            )
            new = changes[bisect_left(changes, position, key=attrgetter("offset")) :]
            assert any(change.value == value for change in new), (
                f"{place}: {value!r} of {key!r} is copied, and the copy had all below {position}: it is copied twice"
            )
            copies = self.asked.get((own, place), Steps()).at(point)
            granted = any(within.contains(point) for within, owner in self.owners.get(place, ()) if owner == own)
            assert copies or granted, f"{place}: {own} copies {point:08x}, which nobody asked it to have"
            self.reached["changes copied"] += 1

    def marked(self, place: TopicPartition, before: Steps[Marker], marks: Iterable[Mark], copy: LocalCopy) -> None:
        """A process has raised markers of its copy, which were these: what it claims now is there. What has changed
        again above the new marker may have been compacted away below it.
        """
        keys = self.keys.get(place, [])
        for first, end, marker in marks:
            for a, b, old in before.all_pieces(first, end):
                start = bisect_left(keys, (0 if old is None else old.position, b""))
                for offset, key in keys[start : bisect_left(keys, (marker.position, b""))]:
                    newest = self.changes[place, point_in(key)][key][-1]
                    if a <= point_in(key) < b and newest.offset == offset:
                        held = copy.get(key)
                        assert held == newest.value, (
                            f"{place}: a copy is marked as read up to {marker.position}, and has {held!r} for {key!r}: "
                            f"at {offset} it became {newest.value!r}"
                        )
                        self.reached["changes below a raised marker"] += 1

    def cleared(self, place: TopicPartition, markers: Steps[Marker], within: KeyRange) -> None:
        """A process throws a part of its copy away, with these markers: only what was never whole. No folder is of
        another application, and none is old unless a clock was set.
        """
        held = markers.pieces(within.first, within.end)
        assert not held, f"{place}: {within} is thrown away, and the copy had all below {held}: it is copied twice"

    def begins(self, copy: LocalCopy, place: TopicPartition, epoch: int, point: int, incarnation: int) -> None:
        """A record begins: looked at for the first one of its point at an epoch. What its owner has committed itself
        may not be in its copy yet; who is not the owner any more commits nothing of it.
        """
        if (place, epoch, point) in self.looked or self._owner(place, point) != incarnation:
            return
        self.looked.add((place, epoch, point))
        for key, changes in self.changes.get((place, point), {}).items():
            change = changes[-1]
            if change.incarnation != incarnation:
                held = copy.get(key)
                assert held == change.value, (
                    f"{place}: {point:08x} is handled at epoch {epoch}, and the copy has {held!r} for {key!r}: "
                    f"incarnation {change.incarnation} made it {change.value!r}"
                )
                self.reached["handled behind a whole copy"] += 1

    def _owner(self, place: TopicPartition, point: int) -> int:
        """To whom it was granted last."""
        owners = (owner for within, owner in reversed(self.owners.get(place, ())) if within.contains(point))
        return next(owners, NOBODY)


def _is_of(copy: CopyAsked, place: TopicPartition) -> bool:
    return (copy.topic, copy.partition) == place


def _covers(copy: CopyAsked, place: TopicPartition, point: int) -> bool:
    return _is_of(copy, place) and any(band.first <= point < band.end for band in copy.bands)


def _owned(owners: Iterable[tuple[KeyRange, int]], within: KeyRange) -> list[tuple[KeyRange, int]]:
    """The parts of a range, each with its newest owner, NOBODY for none."""
    parts = [(within, NOBODY)]
    for owned, owner in owners:
        cut: list[tuple[KeyRange, int]] = []
        for part, before in parts:
            if not part.overlaps(owned):
                cut.append((part, before))
                continue
            first, end = max(part.first, owned.first), min(part.end, owned.end)
            cut += [(KeyRange(part.first, first), before)] if part.first < first else []
            cut.append((KeyRange(first, end), owner))
            cut += [(KeyRange(end, part.end), before)] if end < part.end else []
        parts = cut
    return parts
