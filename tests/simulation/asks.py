"""What must be true of requests to release, plans and grants, by the events themselves.

- A plan answers no fewer causes than the one before it; a move's number is never used again.
- A request names the epoch at which its points are held, and who holds them.
- A member releases what it was asked for, or leaves; and not what was withdrawn, once it has read that and gone on.
- An epoch of a partition is granted to one member only, which cuts it where it was cut before.
- A partition of a source with one worker by declaration has one owner.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from keylanes.brokers.protocol import TopicPartition
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.control_events import PlanMade, RangesGranted, ReleaseAsked, ReleaseWithdrawn
from keylanes.offsets.event_values import PlannedMove
from keylanes.offsets.events import RangesReleased, WorkersCut

from .cells import NOBODY, Cells, Holder


class Asked(NamedTuple):
    """A request that counts. ``withdrawn``: behind so many events of the control log; 0: it was not."""

    event: ReleaseAsked
    withdrawn: int = 0

    @property
    def of(self) -> tuple[str, int, int, int]:
        """Whose, by partition and epoch."""
        return self.event.topic, self.event.partition, self.event.incarnation, self.event.epoch

    @property
    def within(self) -> KeyRange:
        """The points that are asked for."""
        return KeyRange(self.event.first, self.event.end)


class Asks:
    """Of one application. Methods raise AssertionError that says what is wrong."""

    def __init__(self) -> None:
        self.group_epoch = 0
        self.planned: dict[int, PlannedMove] = {}
        self.asked: dict[int, list[Asked]] = defaultdict(list)
        """By move; what is left of one may be asked for once more."""
        self.epochs: dict[tuple[TopicPartition, int], int] = {}
        """To whom each was granted."""
        self.bounds: dict[tuple[TopicPartition, int], set[int]] = defaultdict(set)
        """Where each was cut before: hot bands keep their bounds."""

    def plan(self, event: PlanMade) -> None:
        """Parts of one plan have one group epoch, and moves of their own."""
        assert event.group_epoch >= self.group_epoch, f"{event} answers less than {self.group_epoch}"
        self.group_epoch = event.group_epoch
        for move in event.moves:
            assert move.move > max(self.planned, default=0), f"{event}: {move} has a number that was used"
            self.planned[move.move] = move

    def ask(self, event: ReleaseAsked, cells: Cells) -> None:
        """Who is asked holds all of it at that epoch, or has released some of it just now."""
        assert event.move in self.planned, f"{event} of no plan"
        for i in cells.within(event.first, event.end):
            right = (Holder(event.epoch, event.incarnation), Holder(event.epoch, NOBODY))
            assert cells.holders[i] in right, f"{event}: {cells.bounds[i]:08x} is held by {cells.holders[i]}"
        self.asked[event.move].append(Asked(event))

    def withdraw(self, event: ReleaseWithdrawn, position: int) -> None:
        """It was asked for before."""
        assert self.asked[event.move], f"{event} of what nobody was asked for"
        self.asked[event.move] = [one._replace(withdrawn=one.withdrawn or position) for one in self.asked[event.move]]

    def grant(self, event: RangesGranted) -> None:
        """An epoch is one member's."""
        owner = self.epochs.setdefault((TopicPartition(event.topic, event.partition), event.epoch), event.incarnation)
        assert owner == event.incarnation, f"{event}: the epoch is {owner}'s"
        self.bounds[TopicPartition(event.topic, event.partition), event.epoch].update(event.bounds)

    def cut(self, event: WorkersCut) -> bool:
        """It is cut where it was cut before; whether there were such bounds."""
        first, end = event.bounds[0], event.bounds[-1]
        known = self.bounds[TopicPartition(event.topic, event.partition), event.epoch]
        inside = {bound for bound in known if first < bound < end}
        assert inside <= {*event.bounds}, f"{event}: {sorted(inside)} were bounds before"
        return bool(inside)

    def release(self, event: RangesReleased, read: int, *, leaves: bool) -> None:
        """``read``: up to where its owner had read the control log, some commits ago; ``leaves``: it stops."""
        if leaves:
            return
        of = (event.topic, event.partition, event.incarnation, event.epoch)
        known = [one for asked in self.asked.values() for one in asked if one.of == of]
        assert _cover(known, event), f"{event} was not asked for"
        left = [one for one in known if not one.withdrawn or one.withdrawn > read]
        assert _cover(left, event), f"{event} was withdrawn, and its owner had read that"


def _cover(asked: Iterable[Asked], event: RangesReleased) -> bool:
    """Whether all that is released is asked for."""
    for band in event.bands:
        at = band.first
        for one in sorted((one.within for one in asked), key=lambda within: within.first):
            if one.first <= at < one.end:
                at = one.end
        if at < band.end:
            return False
    return True


def check_whole(cells: Cells, place: TopicPartition) -> None:
    """A partition of a source with one worker is nobody's in parts."""
    owners = {holder.incarnation for holder in cells.holders if holder.incarnation != NOBODY}
    assert len(owners) <= 1, f"{place} has one worker by declaration, and is held by {sorted(owners)}"
