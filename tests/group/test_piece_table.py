"""The table that is kept between looks has what a table that keeps nothing works out, whatever happens in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.group.cells import cells
from keylanes.group.piece_table import PieceTable, PlaceSets
from keylanes.group.present import members_present
from keylanes.group.standbys import StandbyRules
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control import LEARNER, STANDBY
from keylanes.offsets.control_events import (
    CopyAsked,
    CopyEnded,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
    ReleaseWithdrawn,
    StoreDeclared,
)
from keylanes.offsets.decide import Turn
from keylanes.offsets.event_values import Band, Edge, PlannedMove, Sourced, Span, Tile
from keylanes.offsets.events import Committed, Event, RangesReleased, WorkersCut
from keylanes.offsets.ledger import Ledger, PartitionLedger, SourcePartition, evolve
from keylanes.offsets.signals import Copy

from ..stage.log_events import coordinator_elected
from ..stage.planting import Planting, changed
from ..tiers.marks import tier
from .finding import is_found

pytestmark = tier("check")

PLACES: tuple[SourcePartition, ...] = (("orders", 0), ("orders", 1), ("bills", 0))
BOUNDS = (0, 1 << 30, 1 << 31, SPACE_END)
OF_OWNERS = ("grant", "grant", "release", "early", "commit", "cut", "cut", "expel", "fence", "join", "start")
OF_MOVES = ("plan", "plan", "ask", "withdraw", "copy", "copy", "end")
KINDS = (*OF_OWNERS, *OF_MOVES, "read", "read", "leave", "tell", "tell", "forget", "anew", "lost", "hold", "look")
STEP = st.tuples(
    st.sampled_from(KINDS),
    st.integers(1, 3),
    st.sampled_from(PLACES),
    st.sampled_from(((0, 3), (0, 1), (1, 3), (1, 2), (2, 3))),
)


class World:
    """The logs of a group, what was heard of copies, and the table of one coordinator."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.table, self.read = PieceTable(), set[tuple[SourcePartition, int]]()
        self.told: dict[int, dict[int, Copy]] = {}
        self.leaving: set[int] = set()
        self.holds: set[int] = set()
        self.rules = StandbyRules(1, is_early=False)
        self._begin()

    def _begin(self) -> None:
        """Another ledger, of a group that has only begun."""
        self.ledger, self.turn = Ledger(), Turn(1)
        evolve(self.ledger, coordinator_elected(1, "c", "x"))
        evolve(self.ledger, StoreDeclared(*self.turn.next(), 0, "s", "orders", "value", "", "int", "json"))
        for _ in range(3):
            self.does("join", 0, PLACES[0], (0, 3))
        for place in PLACES[:2]:
            self.does("start", 0, place, (0, 3))

    def does(self, kind: str, who: int, place: SourcePartition, span: tuple[int, int]) -> None:
        """One step."""
        first, end = BOUNDS[span[0]], BOUNDS[span[1]]
        self.now_ms += 1
        match kind:
            case "leave":
                self.leaving ^= {who}
            case "hold":
                self.holds ^= {who}
            case "read":
                self.read |= {(place, e) for _, _, e in self.ledger.partition(place).newest.pieces(first, end)}
            case "tell":
                own = [m for m, asked in self.ledger.control.moves.copies.items() if asked.incarnation == who]
                self.told[who] = {move: Copy(move, span[0], 3, 0, is_ready=span[1] == 3) for move in own}
            case "forget":
                self.told.pop(who, None)
            case "anew":
                self._begin()
            case "lost":  # and another one, as from a snapshot
                self.ledger.partitions[place] = PartitionLedger(version=self.ledger.partition(place).version)
            case "look":
                self.looks()
            case _:
                events_of = self._of_moves if kind in OF_MOVES else self._of_owners
                for event in events_of(kind, who, place, first, end):
                    evolve(self.ledger, event)

    def _of_owners(self, kind: str, who: int, place: SourcePartition, first: int, end: int) -> list[Event]:
        fold, control, turn = self.ledger.partition(place), self.ledger.control, self.turn
        epoch, new = fold.epoch_next, control.incarnation_next
        match kind:
            case "grant":
                return [RangesGranted(*turn.next(), 0, who, epoch, *place, (Band(first, end, 0),), (), ())]
            case "release" | "early":  # an early one is read before its grant
                over = fold.newest.pieces(first, end) if kind == "release" else [(first, end, epoch)]
                owners = {e: part.incarnation for e, part in fold.parts.items()} | {epoch: who}
                return [RangesReleased(owners[e], 1, e, *place, 0, (Edge(a, b, 0),), ()) for a, b, e in over]
            case "cut":
                over = fold.newest.pieces(first, end)
                return [WorkersCut(fold.parts[e].incarnation, 1, e, *place, 0, (a, b)) for a, b, e in over]
            case "commit":
                edges = [
                    (fold.parts[e], Tile(0, 1, a, b, edge, edge + 1))
                    for a, b, e in fold.owners().pieces(first, end)
                    for edge in (fold.parts[e].edges.at(a) or 0,)
                ]
                return [Committed(p.incarnation, 1, 0, 1, p.epoch, *place, (tile,), 0, 0, 0) for p, tile in edges]
            case "expel" | "fence":
                expelled = MemberExpelled(*turn.next(), who, "", 60_000)
                return [expelled, MemberFenced(*turn.next(), who)] if kind == "fence" else [expelled]
            case "join":
                sources = tuple(Sourced(topic, 8, "earliest", 0, 0.0) for topic in ("orders", "bills")[: 1 + new % 2])
                name, host, ids = f"m{new % 3}", f"h{new % 2}", (f"x.{new}",)
                return [
                    MemberJoined(
                        *turn.next(), new, name, str(new), ids, host, "", 1.0, 1, sources, (), until_level=False
                    )
                ]
            case _:
                return [PartitionStarted(*turn.next(), *place, 0, "earliest", 2)]

    def _of_moves(self, kind: str, who: int, place: SourcePartition, first: int, end: int) -> list[Event]:
        control, turn = self.ledger.control, self.turn
        moves, number = control.moves, control.moves.move_max + 1
        match kind:
            case "plan":
                owners = self.ledger.partition(place).newest.pieces(first, end)
                origin = self.ledger.partition(place).parts[owners[0][2]].incarnation if owners else 0
                move = PlannedMove(number, *place, first, end, origin, who, 0, 0.0, 0)
                old = tuple(moves.planned.values())
                return [PlanMade(*turn.next(), moves.plan + 1, 0, "change", 0, 0, 1, (*old, move))]
            case "ask":
                return [
                    ReleaseAsked(*turn.next(), n, m.origin, epoch, *m.topic_partition, a, b, 9)
                    for n, m in [*moves.planned.items()][-1:]
                    for a, b, epoch in self.ledger.partition(m.topic_partition).newest.pieces(m.first, m.end)[:1]
                ]
            case "withdraw":
                return [ReleaseWithdrawn(*turn.next(), n, "") for n in [*moves.release_requests][:1]]
            case "copy":
                role = LEARNER if number % 2 else STANDBY
                of_move = [n for n, m in moves.planned.items() if m.topic_partition == place][-1:] or [number]
                return [CopyAsked(*turn.next(), of_move[0], who, *place, (Span(first, end),), role, 1)]
            case "end":
                return [CopyEnded(*turn.next(), n, "") for n in [*moves.copies][:1]]
        return []

    def look(self, table: PieceTable) -> PieceTable:
        """A look by that table."""
        control = self.ledger.control
        awaited = {i: m.joined.instance for i, m in control.members.items() if m.expelled and i not in self.holds}
        present = members_present(control, self.leaving, awaited)
        told = {i: copies for i, copies in self.told.items() if i in control.members}
        table.look(self.ledger, self.read, present, told, self.rules, self.now_ms)
        return table

    def looks(self) -> None:
        """The table that is kept, and one that keeps nothing, are equal."""
        kept, dumb = self.look(self.table), self.look(PieceTable())
        for place in self.ledger.control.started:
            assert kept.cells(place) == cells(self.ledger.control, self.ledger.partitions, place, self.read)
            assert kept.row(place) == dumb.row(place)
        assert kept.places == dumb.places
        assert kept.touching_ms.keys() == dumb.touching_ms.keys()


def played(steps: list[tuple[str, int, SourcePartition, tuple[int, int]]], *, looks_always: bool) -> None:
    """The steps, and a look at the end; or after each step."""
    world = World()
    for step in steps:
        world.does(*step)
        if looks_always:
            world.looks()
    world.looks()


@given(st.lists(STEP, max_size=40))
def test_the_table_is_what_a_new_one_is(steps: list[tuple[str, int, SourcePartition, tuple[int, int]]]) -> None:
    """After any events, signals and looks, and with another ledger."""
    played(steps, looks_always=False)


@given(st.lists(STEP, min_size=25, max_size=40))
def test_the_table_is_what_a_new_one_is_at_each_look(
    steps: list[tuple[str, int, SourcePartition, tuple[int, int]]],
) -> None:
    """The same, looked at after each step: so a change that is missed shows by itself."""
    played(steps, looks_always=True)


def test_of_points_without_an_owner_the_position_of_a_copy_counts() -> None:
    """The most advanced copy gets them, though no copy turns ready."""
    world, place, whole = World(), PLACES[0], (0, 3)
    for kind, who in (("grant", 1), ("hold", 1), ("copy", 2), ("copy", 3), ("fence", 1), ("read", 1)):
        world.does(kind, who, place, whole)
    for who, span in ((2, (1, 2)), (3, (0, 1)), (3, (2, 2))):
        world.does("tell", who, place, span)
        world.looks()
        assert world.table.pieces(place)[0].heir == (3 if span == (2, 2) else 2)


@pytest.mark.parametrize(
    ("owner", "name", "piece"),
    [
        (PieceTable, "look", (" or row.version != fold.version", "")),
        (PieceTable, "look", (" or row.fold is not fold", "")),
        (
            PieceTable,
            "_places_changed",
            ("self._moves.update(moves.planned) |", "(self._moves.update(moves.planned) and set()) |"),
        ),
        (
            PieceTable,
            "_places_changed",
            (
                "| self._requests.update(moves.release_requests)",
                "| (self._requests.update(moves.release_requests) and set())",
            ),
        ),
        (
            PieceTable,
            "_places_changed",
            ("self._copies.update(moves.copies) |", "(self._copies.update(moves.copies) and set()) |"),
        ),
        (PieceTable, "_places_changed", (" | self.places.uncut", "")),
        (PieceTable, "_places_changed", ("self._places_told(told) |", "(self._places_told(told) and set()) |")),
        (PieceTable, "_places_changed", (" if len(read) > self._reads else ", " if False else ")),
        (PieceTable, "_places_changed", ("if members != self._members:", "if False:")),
        (PieceTable, "_forget_others", ("if control is not self._control or ", "if ")),
        (PieceTable, "_places_of_owners", ("if row.owners & changed", "if False")),
        (PieceTable, "_places_of_owners", (', present.awaited.get(i, "")', "")),
        (PieceTable, "_note_touching", ("self.touching_ms.pop(place, None)", "pass")),
        (PlaceSets, "note", ("places.discard(place)", "pass")),
    ],
)
def test_what_is_not_noticed_is_found(
    owner: type, name: str, piece: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each input of the rows is needed."""
    changed(owner, name, piece)(Planting(monkeypatch))
    is_found(test_the_table_is_what_a_new_one_is_at_each_look)
