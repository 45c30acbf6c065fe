"""What is kept of how partitions stand is what ``cells`` says, whatever happens in between."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.group.cell_cache import CellCache, touch
from keylanes.group.cells import CellState, cells
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control_events import MemberExpelled, MemberFenced, MemberJoined, PartitionStarted, RangesGranted
from keylanes.offsets.decide import Turn
from keylanes.offsets.event_values import Band, Edge, Tile
from keylanes.offsets.events import Committed, Event, RangesReleased
from keylanes.offsets.ledger import Ledger, PartitionLedger, SourcePartition, evolve

from ..stage.log_events import coordinator_elected
from ..stage.planting import Planting, changed
from ..tiers.marks import tier
from .finding import is_found

pytestmark = tier("check")

PLACES: tuple[SourcePartition, ...] = (("orders", 0), ("orders", 1), ("bills", 0))
BOUNDS = (0, 1 << 30, 1 << 31, SPACE_END)
KINDS = (
    "grant",
    "grant",
    "release",
    "commit",
    "expel",
    "fence",
    "read",
    "read",
    "join",
    "start",
    "copy",
    "early",
    "lost",
    "look",
)
STEP = st.tuples(
    st.sampled_from(KINDS),
    st.integers(1, 3),
    st.sampled_from(PLACES),
    st.sampled_from(((0, 3), (0, 1), (1, 3), (1, 2), (2, 3))),
)


class World:
    """The logs of a group, and what one coordinator keeps of them."""

    def __init__(self) -> None:
        self.ledger, self.turn, self.now_ms = Ledger(), Turn(1), 0
        self.kept, self.read = CellCache(), set[tuple[SourcePartition, int]]()
        evolve(self.ledger, coordinator_elected(1, "c", "x"))
        for _ in range(2):
            self.does("join", 0, PLACES[0], (0, 3))
        for place in PLACES[:2]:
            self.does("start", 0, place, (0, 3))

    def does(self, kind: str, who: int, place: SourcePartition, span: tuple[int, int]) -> None:
        """One step."""
        first, end = BOUNDS[span[0]], BOUNDS[span[1]]
        fold, control, turn = self.ledger.partition(place), self.ledger.control, self.turn
        epoch, incarnation = fold.epoch_next, control.incarnation_next
        events: list[Event] = []
        self.now_ms += 1
        match kind:
            case "grant":
                events = [RangesGranted(*turn.next(), 0, who, epoch, *place, (Band(first, end, 0),), (), ())]
            case "release" | "early":  # an early one is read before its grant
                over = fold.newest.pieces(first, end) if kind == "release" else [(first, end, epoch)]
                owners = {e: part.incarnation for e, part in fold.parts.items()} | {epoch: who}
                events = [RangesReleased(owners[e], 1, e, *place, 0, (Edge(a, b, 0),), ()) for a, b, e in over]
            case "commit":
                for a, b, e in fold.owners().pieces(first, end):
                    edge = fold.parts[e].edges.at(a) or 0
                    tile = Tile(0, 1, a, b, edge, edge + 1)
                    events.append(Committed(fold.parts[e].incarnation, 1, 0, 1, e, *place, (tile,), 0, 0, 0))
            case "expel":
                events = [MemberExpelled(*turn.next(), who, "", 0)]
            case "fence":
                events = [MemberExpelled(*turn.next(), who, "", 0), MemberFenced(*turn.next(), who)]
            case "join":
                birth = str(incarnation)
                ids = (f"x.{birth}",)
                joined = MemberJoined(
                    *turn.next(), incarnation, "", birth, ids, "", "", 1.0, 1, (), (), until_level=False
                )
                events = [joined]
            case "start":
                events = [PartitionStarted(*turn.next(), *place, 0, "earliest", 2)]
            case "read":
                self.read |= {(place, e) for _, _, e in fold.newest.pieces(first, end)}
            case "copy":
                self.ledger = self.ledger.copy()
            case "lost":  # and another one, as from a snapshot
                self.ledger.partitions[place] = PartitionLedger(version=fold.version)
            case _:
                self.looks()
        for event in events:
            evolve(self.ledger, event)

    def looks(self) -> None:
        """What is kept is what is."""
        ledger, kept = self.ledger, self.kept
        kept.refresh(ledger, self.read, self.now_ms)
        all_cells = {
            place: cells(ledger.control, ledger.partitions, place, self.read) for place in ledger.control.started
        }
        assert {place: kept.cells(place) for place in all_cells} == all_cells
        assert kept.free == {p for p, own in all_cells.items() if any(c.state is CellState.FREE for c in own)}
        assert kept.unread == {p for p, own in all_cells.items() if any(c.state is CellState.UNREAD for c in own)}
        touching = {p for p, own in all_cells.items() if any(touch(a, b) for a, b in pairwise(own))}
        assert kept.touching_ms.keys() == touching


@given(st.lists(STEP, max_size=30))
def test_what_is_kept_is_what_is(steps: list[tuple[str, int, SourcePartition, tuple[int, int]]]) -> None:
    """After any grants, releases, commits, expulsions, fences, reads, joins, starts, and with another ledger."""
    world = World()
    for step in steps:
        world.does(*step)
    world.looks()


@given(st.lists(STEP, min_size=20, max_size=30))
def test_what_is_kept_is_what_is_at_each_look(steps: list[tuple[str, int, SourcePartition, tuple[int, int]]]) -> None:
    """The same, looked at after each step: so a change that is missed shows by itself."""
    world = World()
    for step in steps:
        world.does(*step)
        world.looks()


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("refresh", (" or entry.version != fold.version", "")),
        ("refresh", ("entry.fold is not fold or ", "")),
        ("_forget", ("elif len(read) > self._reads:", "elif False:")),
        ("_forget", ("if entry.owners & changed]", "if False]")),
        ("_enter", ("places.discard(place)", "pass")),
        ("_enter", ("self.touching_ms.pop(place, None)", "pass")),
    ],
)
def test_what_is_not_noticed_is_found(name: str, piece: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thing that cells are made of is needed."""
    changed(CellCache, name, piece)(Planting(monkeypatch))
    is_found(test_what_is_kept_is_what_is_at_each_look)
