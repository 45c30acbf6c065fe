"""Control and offset logs for property tests: mostly right, often wrong, on a small grid of points and offsets."""

from hypothesis import strategies as st

from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
)
from keylanes.offsets.event_values import Band, Tile
from keylanes.offsets.events import (
    Committed,
    OffsetEvent,
    StateChanged,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)

from ..stage.log_events import (
    coordinator_elected,
    member_expelled,
    member_fenced,
    member_joined,
    partition_started,
    range_released,
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


@st.composite
def control_logs(draw: st.DrawFn, grants_max: int, *, wrong: bool) -> list[ControlEvent]:
    """Elections, stale terms, members, stores, grants at rising epochs in chunks; wrong offsets if asked for."""
    term, epoch = 1, 0
    log: list[ControlEvent] = [
        AppCreated("app", "hash", 1),
        coordinator_elected(1, "a"),
        member_joined(1, 1, "a", "app.a"),
        partition_started(1, TOPIC, PARTITION, 0, "earliest", 1),
    ]
    offsets = st.sampled_from((0, 0, 2, 4, 4, 6))
    for _ in range(draw(st.integers(1, grants_max))):
        kind = draw(st.sampled_from(("grant", "grant", "grant", "chunk", "elect", "stale", "expel", "store")))
        if kind == "elect":
            term += 1
            log.append(coordinator_elected(term, draw(st.sampled_from("abc"))))
        elif kind == "expel":
            log += [member_expelled(term, 1), member_fenced(term, 1)]
        elif kind == "store":
            name, by = draw(st.sampled_from("abc")), term - draw(st.integers(0, 1))
            log.append(store_declared(by, draw(st.integers(0, 3)), name, TOPIC, "value", "", "int", "json"))
        elif kind == "stale" and term > 1:
            first, end = draw(spans())
            band = Band(BOUNDS[first], BOUNDS[end], draw(offsets))
            log.append(ranges_granted(term - 1, 1, epoch + draw(st.integers(0, 1)), TOPIC, PARTITION, (band,)))
        else:
            epoch += 0 if kind == "chunk" and epoch else draw(st.sampled_from((1, 1, 2)))
            bands: list[Band] = []
            cell = 0
            while cell < len(CELLS) and (wrong or not bands):
                first = draw(st.integers(cell, len(CELLS) - 1))
                cell = draw(st.integers(first + 1, len(CELLS)))
                bands.append(Band(BOUNDS[first], BOUNDS[cell], draw(offsets)))
            incarnation = holder(epoch) if not wrong or draw(st.integers(0, 9)) else 9
            log.append(ranges_granted(term, incarnation, epoch, TOPIC, PARTITION, tuple(bands)))
    return log


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
        kind = draw(st.sampled_from(("commit",) * 6 + ("cut", "split", "merge", "release", "state")))
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
            log.append(StateChanged(*head, TOPIC, PARTITION, draw(st.integers(1, 3))))
        elif kind == "cut":
            log.append(WorkersCut(*head, epoch, *PLACE, transaction * 10, BOUNDS[first : end + 1]))
        elif kind == "split":
            log.append(WorkerSplit(*head, epoch, *PLACE, draw(st.integers(10, 60)), BOUNDS[first], transaction * 10))
        elif kind == "merge":
            left = draw(st.integers(10, 60))
            log.append(WorkersMerged(*head, epoch, *PLACE, left, left + 1, transaction * 10))
        else:
            log.append(range_released(*head, epoch, *PLACE, BOUNDS[first], BOUNDS[end]))
    return log
