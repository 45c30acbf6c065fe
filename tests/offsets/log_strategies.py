"""Control and offset logs for property tests: mostly right, often wrong, on a small grid of points and offsets."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from msgspec.structs import replace

from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
    Decision,
    LevelRaised,
)
from keylanes.offsets.event_values import NO_MOVE, Band, Edge, Tile
from keylanes.offsets.events import (
    Committed,
    OffsetEvent,
    RangesReleased,
    StateChanged,
    TopicsWritten,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)

from ..stage.log_events import (
    APP_BIRTH,
    coordinator_elected,
    member_expelled,
    member_fenced,
    member_joined,
    partition_started,
    ranges_granted,
    store_declared,
)

TOPIC, PARTITION = "source", 0
PLACE = (TOPIC, PARTITION)
BOUNDS = (0, 1 << 29, 1 << 30, 3 << 30, SPACE_END)
CELLS = range(len(BOUNDS) - 1)
POINTS = tuple(BOUNDS[:-1])
"""One point of each cell: all bounds lie on the grid, so these stand for all points."""


def holder(epoch: int) -> int:
    """The incarnation that epochs are rightly granted to."""
    return epoch % 3 + 1


@st.composite
def spans(draw: st.DrawFn) -> tuple[int, int]:
    """Cells ``[first, end)``."""
    first = draw(st.sampled_from(CELLS))
    return first, draw(st.integers(first + 1, len(CELLS)))


@dataclass
class Writing:
    """A control log that is being written: by whom, and what it says so far."""

    term: int = 0
    number: int = 0
    joined: int = 0
    epoch: int = 0
    log: list[ControlEvent] = field(default_factory=list)

    def elect(self, birth: str) -> None:
        """A higher term."""
        self.term, self.number = self.term + 1, 0
        self.log.append(coordinator_elected(self.term, birth, APP_BIRTH))

    def decide(self, *events: Decision) -> None:
        """The next decisions of the term."""
        for event in events:
            self.number += 1
            self.log.append(replace(event, term=self.term, number=self.number))

    def join(self) -> None:
        """One more member."""
        self.joined += 1
        self.decide(member_joined(0, self.joined, f"birth {self.joined}", "an id"))


@st.composite
def control_logs(draw: st.DrawFn, grants_max: int, *, wrong: bool) -> list[ControlEvent]:
    """Elections, members, stores, grants at rising epochs in chunks; wrong offsets if asked for. In between what must
    not count: stale terms, second copies of anything, numbers out of turn, and elections of another application.
    """
    log = Writing()
    log.log.append(AppCreated("app", "hash", 1))
    log.elect("a")
    log.join()
    log.decide(partition_started(0, TOPIC, PARTITION, 0, "earliest", 1))
    kinds = ("grant",) * 6 + ("chunk", "elect", "join", "expel", "store", "raise", *NOT_COUNTING)
    for _ in range(draw(st.integers(1, grants_max))):
        kind = draw(st.sampled_from(kinds))
        if kind in NOT_COUNTING:
            log.log += draw(not_counting(log, kind))
        elif kind == "elect":
            log.elect(draw(st.sampled_from("abc")))
        elif kind == "join":
            log.join()
        elif kind == "raise":
            log.decide(LevelRaised(0, 0, 1))
        elif kind == "expel":
            incarnation = draw(st.integers(1, log.joined))
            log.decide(member_expelled(0, incarnation), member_fenced(0, incarnation))
        elif kind == "store":
            name = draw(st.sampled_from("abc"))
            log.decide(store_declared(0, draw(st.integers(0, 3)), name, TOPIC, "value", "", "int", "json"))
        else:
            log.epoch += 0 if kind == "chunk" and log.epoch else draw(st.sampled_from((1, 1, 2)))
            incarnation = holder(log.epoch) if not wrong or draw(st.integers(0, 9)) else 9
            log.decide(ranges_granted(0, incarnation, log.epoch, TOPIC, PARTITION, draw(bands(wrong=wrong))))
    return log.log


NOT_COUNTING = ("stale", "again", "skip", "behind", "foreign")
"""Ways for an event not to count: of a term before, a copy, a number too high or used, an election that is refused."""


@st.composite
def bands(draw: st.DrawFn, *, wrong: bool) -> tuple[Band, ...]:
    """One band, or several in order of points; ``wrong``: also several."""
    found: list[Band] = []
    cell = 0
    while cell < len(CELLS) and (wrong or not found):
        first = draw(st.integers(cell, len(CELLS) - 1))
        cell = draw(st.integers(first + 1, len(CELLS)))
        found.append(Band(BOUNDS[first], BOUNDS[cell], draw(st.sampled_from((0, 0, 2, 4, 4, 6)))))
    return tuple(found)


@st.composite
def not_counting(draw: st.DrawFn, log: Writing, kind: str) -> list[ControlEvent]:
    """Events that change nothing at this place, or nothing that was not so already."""
    grant = ranges_granted(log.term, 1, log.epoch + draw(st.integers(0, 1)), *PLACE, draw(bands(wrong=False)))
    match kind:
        case "stale" if log.term > 1:
            return [replace(grant, term=log.term - 1, number=draw(st.integers(0, 4)))]
        case "again":
            return [draw(st.sampled_from(log.log))]
        case "skip":
            return [replace(grant, number=log.number + 2)]
        case "behind" if log.number:
            return [replace(grant, number=draw(st.integers(0, log.number)))]
        case "foreign":
            return [coordinator_elected(log.term + 1, "z", "another application")]
    return []


@st.composite
def offset_logs(draw: st.DrawFn, events_max: int) -> list[OffsetEvent]:
    """Commits right and wrong, cuts, splits, merges, releases, of epochs that may or may not be granted; state."""
    edges: dict[tuple[int, int], int] = {}
    log: list[OffsetEvent] = []
    for transaction in range(1, 1 + draw(st.integers(0, events_max))):
        epoch = draw(st.sampled_from((1, 1, 1, 2, 2, 3, 4)))
        incarnation = holder(epoch) if draw(st.integers(0, 19)) else 7
        first, end = draw(spans())
        head = (incarnation, transaction)
        kind = draw(st.sampled_from(("commit",) * 6 + ("cut", "split", "merge", "release", "state", "topics")))
        if kind == "commit":
            cells = range(first, end)
            starts = {edges.get((epoch, cell), 0) for cell in cells}
            offset_from = draw(st.sampled_from(sorted(starts))) if draw(st.integers(0, 7)) else draw(st.integers(0, 8))
            offset_to = offset_from + draw(st.sampled_from((1, 2, 2, 2, 4, 0)))
            for cell in cells:
                edges[epoch, cell] = offset_to
            tile = Tile(0, 1, BOUNDS[first], BOUNDS[end], offset_from, offset_to)
            tiles = (tile,) if draw(st.integers(0, 9)) else draw(st.sampled_from(((), (tile, tile))))
            log.append(Committed(*head, 0, 1, epoch, *PLACE, tiles, 0, 0, 0))
        elif kind == "state":
            succeeded = draw(st.sampled_from(((), (), (1,), (2, 3))))
            log.append(StateChanged(*head, TOPIC, PARTITION, draw(st.integers(1, 3)), succeeded))
        elif kind == "topics":
            log.append(TopicsWritten(*head, TOPIC, PARTITION, (draw(st.sampled_from("abc")),)))
        elif kind == "cut":
            log.append(WorkersCut(*head, epoch, *PLACE, transaction * 10, BOUNDS[first : end + 1]))
        elif kind == "split":
            log.append(WorkerSplit(*head, epoch, *PLACE, draw(st.integers(10, 60)), BOUNDS[first], transaction * 10))
        elif kind == "merge":
            left = draw(st.integers(10, 60))
            log.append(WorkersMerged(*head, epoch, *PLACE, left, left + 1, transaction * 10))
        else:
            at = edges.get((epoch, first), 0) if draw(st.booleans()) else draw(st.sampled_from((None, 3)))
            last = end if draw(st.booleans()) else first + 1
            released = tuple(Edge(BOUNDS[cell], BOUNDS[cell + 1], at) for cell in range(first, last))
            bounds = draw(st.sampled_from(((), (BOUNDS[1],), BOUNDS[1:3])))
            log.append(RangesReleased(*head, epoch, *PLACE, NO_MOVE, released, bounds))
    return log
