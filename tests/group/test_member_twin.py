"""The steps of a member against a dumb twin, which looks at each point alone and at all points each time."""

from collections.abc import Iterator
from typing import Any, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from keylanes.group.held_ranges import Grant, HeldRanges
from keylanes.group.member import (
    ExpectMore,
    Fail,
    FollowCopies,
    GiveUpAll,
    GoOn,
    HearGrants,
    HearRequest,
    LogEnds,
    Out,
    OwnProcess,
    RestoreState,
    SayReleased,
    Settle,
    Step,
    TakeBack,
    TakeUp,
    WindDown,
    next_steps,
    note_step,
)
from keylanes.keyrange.ranges import KeyRange, even_bounds
from keylanes.offsets.control import STANDBY
from keylanes.offsets.control_events import CopyAsked, CopyEnded, MemberExpelled, ReleaseAsked, ReleaseWithdrawn
from keylanes.offsets.event_values import Band, Edge, Span
from keylanes.offsets.ledger import Ledger, SourcePartition
from keylanes.offsets.signals import ReleaseTold

from ..stage.log_events import NO_NUMBER, coordinator_elected, fold_in_turn, member_joined, ranges_granted
from ..tiers.marks import tier

pytestmark = tier("check")

CELLS = 4
BOUNDS = even_bounds(CELLS)
PLACES: tuple[SourcePartition, ...] = (("orders", 0), ("bills", 0), ("foreign", 0))
OWN = OwnProcess("a", 1, frozenset(["orders", "bills"]), frozenset(["orders"]))
Point: TypeAlias = tuple[SourcePartition, int]
POINTS: list[Point] = [(place, cell) for place in PLACES for cell in range(CELLS)]


def cells_of(within: KeyRange) -> list[int]:
    """The cells that make up a range."""
    return [cell for cell in range(CELLS) if within.first <= BOUNDS[cell] < within.end]


def range_at(first: int, size: int) -> KeyRange:
    """Some cells, from one on."""
    return KeyRange(BOUNDS[first], BOUNDS[min(CELLS, first + size)])


def is_rare(within: KeyRange, number: int) -> bool:
    """Whether something happens that ends all else."""
    return number == 7 and within.first == BOUNDS[-2]


class Twin:
    """A member, its logs, and what it holds: as the production has it, and point by point."""

    def __init__(self) -> None:
        self.ledger, self.held = Ledger(opened={0}), HeldRanges()
        joined = [member_joined(1, i, name, f"x.{name}") for i, name in ((1, "a"), (2, "b"))]
        fold_in_turn(self.ledger, coordinator_elected(1, "c", "app"), *joined)
        self.moves = self.transactions = 0
        self.owner: dict[Point, tuple[int, int, int]] = {}
        """By point: the epoch, who owns it, and from where on."""
        self.taken, self.working = dict[Point, int](), dict[Point, int]()
        self.winding, self.given_up = dict[Point, int](), dict[Point, int]()
        self.followed, self.restoring = set[Point](), set[tuple[Point, int]]()
        self.whole, self.sent = set[tuple[Point, int]](), set[Point]()
        self.bounds, self.open, self.untold = dict[int, int](), dict[int, bool](), list[ReleaseTold]()
        self.is_stopping = self.has_stopped = self.has_failed = self.is_out = False
        self.copies: set[int] | None = None
        self.looks, self.new = 0, list[SourcePartition]()

    # --- what happens ------------------------------------------------------------------------------------------------

    def do(self, what: str, place: SourcePartition, within: KeyRange, number: int) -> None:
        """One of the things that may happen, if it can."""
        getattr(self, f"_do_{what}")(place, within, number)

    def _do_grant(self, place: SourcePartition, within: KeyRange, number: int) -> None:
        epoch, who = self.ledger.partition(place).epoch_next, 1 + number % 2
        froms = {c: self.given_up.get((place, c), 0) + number // 6 for c in cells_of(within) if self._is_free(place, c)}
        if froms:
            bands = tuple(Band(BOUNDS[cell], BOUNDS[cell + 1], offset) for cell, offset in froms.items())
            fold_in_turn(self.ledger, ranges_granted(1, who, epoch, *place, bands))
            self.owner |= {(place, cell): (epoch, who, offset) for cell, offset in froms.items()}

    def _is_free(self, place: SourcePartition, cell: int) -> bool:
        """Only what this member does not hold is granted, as a coordinator would."""
        at = place, cell
        held = at in self.working or any(at == one for one, _ in self.restoring | self.whole)
        return not held and not (self.owner.get(at, (0, 0, 0))[1] == 1 and self.taken.get(at) != self.owner[at][0])

    def _do_ask(self, place: SourcePartition, within: KeyRange, number: int) -> None:
        self.moves += 1
        epochs = [self.owner[place, c][0] for c in cells_of(within) if (place, c) in self.owner]
        if epochs:
            at = (*place, within.first, within.end)
            epoch = epochs[number % len(epochs)]
            fold_in_turn(self.ledger, ReleaseAsked(1, NO_NUMBER, self.moves, 1, epoch, *at, 1_000))

    def _do_withdraw(self, _: SourcePartition, __: KeyRange, number: int) -> None:
        fold_in_turn(self.ledger, ReleaseWithdrawn(1, NO_NUMBER, number % (self.moves + 1), "deadline"))

    def _do_copy(self, place: SourcePartition, within: KeyRange, number: int) -> None:
        self.moves += 1
        bands = (Span(within.first, within.end),)
        fold_in_turn(self.ledger, CopyAsked(1, NO_NUMBER, self.moves, 1 + number % 2, *place, bands, STANDBY, 0))

    def _do_end(self, _: SourcePartition, __: KeyRange, number: int) -> None:
        fold_in_turn(self.ledger, CopyEnded(1, NO_NUMBER, number % (self.moves + 1), "no use"))

    def _do_restored(self, place: SourcePartition, _: KeyRange, __: int) -> None:
        self.held.note_restored(list(self.held.restoring.get(place, ())))
        ended = {one for one in self.restoring if one[0][0] == place}
        self.restoring -= ended
        self.whole |= ended

    def _do_looked(self, place: SourcePartition, _: KeyRange, number: int) -> None:
        if self.looks:
            self.held.looks, self.looks = self.held.looks - 1, self.looks - 1
            if number % 2:
                self.held.new_places.append(place)
                self.new.append(place)

    def _do_send(self, place: SourcePartition, within: KeyRange, _: int) -> None:
        if not self.sent:
            self.sent = {(place, c) for c in cells_of(within) if (place, c) in self.winding}
            self.held.uncommitted = [(place, range_at(cell, 1)) for place, cell in self.sent]

    def _do_commit(self, _: SourcePartition, __: KeyRange, number: int) -> None:
        for at in sorted(self.sent):
            self.transactions += 1
            within, move = range_at(at[1], 1), self.winding[at]
            bands = (Edge(within.first, within.end, number // 2),)
            told = ReleaseTold(1, self.transactions, move, *at[0], bands)
            self.held.note_released(told, is_stateful=at[0][0] in OWN.stateful)
            self.untold.append(told)
            del self.working[at], self.winding[at]
            if at[0][0] in OWN.stateful:
                self.given_up[at] = number // 2
        self.sent, self.held.uncommitted = set(), ()
        self.copies = self.held.copies = None

    def _do_close(self, _: SourcePartition, __: KeyRange, ___: int) -> None:
        """Releases end of which nothing is left, or whose rest was withdrawn."""
        for move, is_withdrawn in [*self.open.items()]:
            left = [at for at, of in self.winding.items() if of == move]
            if (not left or is_withdrawn) and not self.sent:
                del self.open[move]
                for place in PLACES:
                    self.held.note_release_ended(move, place)
                for at in left:
                    del self.winding[at]

    def _do_stop(self, _: SourcePartition, within: KeyRange, number: int) -> None:
        if is_rare(within, number):
            self.held.gives_all_up = self.is_stopping = True

    def _do_fail(self, _: SourcePartition, within: KeyRange, number: int) -> None:
        if is_rare(within, number):
            self.held.has_failed = self.has_failed = True

    def _do_expel(self, _: SourcePartition, within: KeyRange, number: int) -> None:
        if is_rare(within, number):
            fold_in_turn(self.ledger, MemberExpelled(1, NO_NUMBER, 1, "silent", 0))
            self.is_out = True

    # --- the steps, point by point -----------------------------------------------------------------------------------

    def expected(self) -> set[tuple[Any, ...]]:
        """What is to be done."""
        if self.is_out:
            return {("Out", "silent")}
        if self.has_failed:
            return {("Fail",)}
        moves, found = self.ledger.control.moves, set[tuple[Any, ...]]()
        requests = {m: one for m, one in moves.release_requests.items() if one.incarnation == 1}
        found |= {("GoOn", move) for move, is_known in self.open.items() if move not in requests and not is_known}
        grants = set() if self.is_stopping else {*self._grants()}
        if not self.is_stopping:
            for move, asked in sorted(requests.items()):
                found |= {*self._of_request(move, asked, found)}
            found |= {*self._of_grants(grants)}
        elif not self.has_stopped:
            found |= {("GiveUpAll", at) for at in self.working if at not in self.winding}
            found |= {("GiveUpAll",)}
        copies = {move for move, one in moves.copies.items() if one.incarnation == 1}
        found |= {("FollowCopies", *sorted(copies))} if copies != self.copies else set()
        if not (grants or self.restoring or self.whole or self.looks) and self.new:
            found |= {("LogEnds", *self.new)}
        return found | {("SayReleased", told.transaction) for told in self.untold}

    def _grants(self) -> Iterator[tuple[Point, int]]:
        """A range that is lacking in one piece waits as a whole for the outcome of a transaction."""
        for place in PLACES[:2]:
            lacking = [
                cell
                for cell in range(CELLS)
                if self.owner.get((place, cell), (0, 0, 0))[1] == 1
                and self.taken.get((place, cell)) != self.owner[place, cell][0]
            ]
            for cell in lacking:
                epoch, piece = self.owner[place, cell][0], {cell}
                for _ in range(CELLS):
                    piece |= {c for c in lacking if {c - 1, c + 1} & piece and self.owner[place, c][0] == epoch}
                if not any((place, c) in self.sent for c in piece):
                    yield (place, cell), epoch

    def _of_request(self, move: int, asked: ReleaseAsked, before: set[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        place = asked.topic_partition
        own = {c: self.owner[place, c][0] for c in range(CELLS) if self.owner.get((place, c), (0, 0, 0))[1] == 1}
        if move in self.open or asked.epoch not in own.values():
            return
        inside = cells_of(KeyRange(asked.first, asked.end))
        bound = self.bounds.get(move)
        if bound is None:
            bound = max([own[c] for c in inside if c in own], default=asked.epoch)
            yield "HearRequest", move, bound
        earlier = {one[2] for one in before if one[0] == "WindDown"}
        for at in ((place, c) for c in inside):
            if self.working.get(at, bound + 1) <= bound and at not in self.winding and at not in earlier:
                yield "WindDown", move, at

    def _of_grants(self, grants: set[tuple[Point, int]]) -> Iterator[tuple[Any, ...]]:
        unchanged = self._unchanged(grants)
        for at, epoch in grants:
            yield "HearGrants", at, epoch
            if at in unchanged:
                yield "TakeBack", at, epoch
            yield ("TakeUp" if at in unchanged or at[0][0] not in OWN.stateful else "RestoreState"), at, epoch
        for at, epoch in self.whole:
            yield "TakeUp", at, epoch

    def _unchanged(self, grants: set[tuple[Point, int]]) -> set[Point]:
        """Pieces of grants that go on where this member released all of them."""
        found: set[Point] = set()
        for at, epoch in grants:
            piece = {at}
            for _ in range(CELLS):
                piece |= {
                    other
                    for other, of in grants
                    if of == epoch and other[0] == at[0] and any(abs(other[1] - one[1]) == 1 for one in piece)
                }
            edges = all(self.given_up.get(one) == self.owner[one][2] for one in piece)
            if at[0][0] in OWN.stateful and edges and not piece & self.followed:
                found.add(at)
        return found

    # --- the steps are begun -----------------------------------------------------------------------------------------

    def begin(self, step: Step) -> None:
        """Note that it was begun, in both ways."""
        note_step(self.held, OWN, step)
        match step:
            case GoOn(move):
                self.open[move] = True
            case HearRequest(move, epoch):
                self.bounds[move] = epoch
            case WindDown(move, place, _, _, ranges):
                self.open[move] = False
                self.winding |= {(place, c): move for one in ranges for c in cells_of(one)}
            case HearGrants(grants):
                self.taken |= dict(points_of(grants))
                self.followed -= {at for at, _ in points_of(grants)}
            case RestoreState(grants):
                self.restoring |= {*points_of(grants)}
            case TakeUp(grants):
                self.looks += 1
                self.whole -= {*points_of(grants)}
                self.working |= dict(points_of(grants))
                for at, _ in points_of(grants):
                    self.given_up.pop(at, None)
            case GiveUpAll(ranges):
                self.has_stopped = True
                self.winding |= {(place, c): 0 for place, one in ranges for c in cells_of(one)}
            case FollowCopies(copies):
                self.copies = {copy.move for copy in copies}
                asked = {
                    (c.topic_partition, cell)
                    for c in copies
                    for b in c.bands
                    for cell in cells_of(KeyRange(b.first, b.end))
                }
                own = self.working.keys() | {at for at, _ in self.restoring | self.whole}
                self.followed |= {at for at in asked - own if at[0][0] in OWN.stateful}
            case LogEnds():
                self.new = []
            case SayReleased(told):
                self.untold.remove(told)


def points_of(grants: tuple[Grant, ...]) -> Iterator[tuple[Point, int]]:
    """The points of grants, each with its epoch."""
    return (((one.place, cell), one.epoch) for one in grants for cell in cells_of(one.within))


def flat(steps: list[Step]) -> set[tuple[Any, ...]]:
    """Steps, point by point."""
    found: set[tuple[Any, ...]] = set()
    for step in steps:
        name = type(step).__name__
        match step:
            case HearGrants(grants) | TakeBack(grants) | RestoreState(grants) | TakeUp(grants):
                found |= {(name, *one) for one in points_of(grants)}
            case WindDown(move, place, _, _, ranges):
                found |= {(name, move, (place, c)) for one in ranges for c in cells_of(one)}
            case GiveUpAll(ranges):
                found |= {(name,)} | {(name, (place, c)) for place, one in ranges for c in cells_of(one)}
            case FollowCopies(copies):
                found.add((name, *(copy.move for copy in copies)))
            case LogEnds(places):
                found.add((name, *places))
            case SayReleased(told):
                found.add((name, told.transaction))
            case HearRequest() | GoOn() | Out() | Fail():
                found.add((name, *step))
            case ExpectMore() | Settle():
                pass  # nothing of them is a matter of points
    return found


HAPPENINGS = st.tuples(
    st.sampled_from(
        [name.removeprefix("_do_") for name in vars(Twin) if name.startswith("_do_")]
        + 4 * ["grant", "ask", "send", "commit", "close", "restored", "looked"]
    ),
    st.sampled_from(PLACES),
    st.builds(range_at, st.integers(0, CELLS - 1), st.integers(1, CELLS)),
    st.integers(0, 7),
)


@settings(max_examples=150)
@given(st.lists(st.tuples(HAPPENINGS, st.booleans()), min_size=10, max_size=80))
def test_the_steps_are_those_of_a_dumb_twin(happenings: list[tuple[Any, bool]]) -> None:
    """Whatever happens, in whatever order, and whether or not the host looks in between."""
    twin = Twin()
    for happening, looks in happenings:
        twin.do(*happening)
        if looks:
            steps = next_steps(twin.ledger, OWN, twin.held)
            assert flat(steps) == twin.expected()
            for step in steps:
                twin.begin(step)
