"""Decisions as events: grants from the edges, tiles of neighbours that moved alike, events of bounded size."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keylanes.keyrange.hashing import HASH_NAME, SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.offsets.codec import EVENT_BYTES_MAX, encode
from keylanes.offsets.control import Control, evolve_control
from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
    StoreDeclared,
)
from keylanes.offsets.decide import (
    STORE_NUMBER_MAX,
    WRITERS_MAX,
    CommitKey,
    StoreChanged,
    StoreSpec,
    Turn,
    WorkerAdvance,
    decide_commits,
    decide_grant,
    decide_opening,
    decide_stores,
    spec_of,
    tiles_of,
)
from keylanes.offsets.event_values import NO_MOVE, Band, Edge, Tile, Writer
from keylanes.offsets.events import Committed, Event, LogOpened, RangesReleased, StateChanged
from keylanes.offsets.ledger import Ledger, evolve, evolve_all

from ..stage.log_events import coordinator_elected, in_turn, partition_started, ranges_granted, store_declared

PLACE = ("t", 0)
MASK = (1 << 64) - 1


@st.composite
def moves(draw: st.DrawFn, first: int = 0) -> list[WorkerAdvance]:
    """Workers in order of points, some as one, some missing, numbers mostly consecutive, few different edges."""
    result, point, number = [], first, draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 30))):
        point += draw(st.sampled_from((0, 0, 0, 0, 7)))
        number += draw(st.sampled_from((0, 0, 0, 0, 2)))
        workers = draw(st.sampled_from((1, 1, 3)))
        start = draw(st.sampled_from((0, 0, 0, 4)))
        to = start + draw(st.sampled_from((2, 2, 2, 3)))
        result.append(
            WorkerAdvance(
                number,
                point,
                point + 10 * workers,
                start,
                to,
                draw(st.integers(0, 3)),
                1,
                draw(st.integers(0, MASK)),
                workers,
            )
        )
        point += 10 * workers
        number += workers
    return result


def cells_of_moves(of: Sequence[WorkerAdvance]) -> dict[int, tuple[int, int, int]]:
    """The twin: (worker, from, to) at every tenth point."""
    return {
        point: (m.worker + (point - m.first) // 10, m.offset_from, m.offset_to)
        for m in of
        for point in range(m.first, m.end)
    }


def cells_of_tiles(tiles: Sequence[Tile]) -> dict[int, tuple[int, int, int]]:
    """The same from tiles; workers of a tile share its points evenly here, ten points each."""
    cells: dict[int, tuple[int, int, int]] = {}
    for tile in tiles:
        assert tile.end - tile.first == 10 * tile.count
        for point in range(tile.first, tile.end):
            assert point not in cells
            cells[point] = (tile.worker + (point - tile.first) // 10, tile.offset_from, tile.offset_to)
    return cells


@settings(max_examples=200)
@given(moves())
def test_tiles_say_what_the_moves_said(of: list[WorkerAdvance]) -> None:
    """Each point moves by the same worker over the same offsets; production is summed; no two tiles could be one."""
    tiles = tiles_of(of)
    assert cells_of_tiles([tile for tile, _ in tiles]) == cells_of_moves(of)
    assert sum(total.outputs for _, total in tiles) == sum(m.outputs for m in of)
    assert sum(total.dead_letters for _, total in tiles) == sum(m.dead_letters for m in of)
    for (a, _), (b, _) in pairwise(tiles):
        alike = (a.offset_from, a.offset_to) == (b.offset_from, b.offset_to)
        assert not (a.end == b.first and a.worker + a.count == b.worker and alike)


@settings(max_examples=100)
@given(moves(), moves(), st.integers(1, 5))
def test_commit_events_are_the_tiles_in_parts(
    left: list[WorkerAdvance], right: list[WorkerAdvance], tiles_max: int
) -> None:
    """Tiles stay with their own partition and epoch, parts are numbered over the transaction, sums are per event."""
    one, two = CommitKey(1, 7, 3, "t", 0), CommitKey(1, 7, 4, "t", 0)
    events = decide_commits([(one, left), (two, right)], tiles_max)
    assert [e.part for e in events] == list(range(len(events)))
    assert all(e.parts == len(events) and 1 <= len(e.tiles) <= tiles_max for e in events)
    for key, of in ((one, left), (two, right)):
        mine = [e for e in events if e.epoch == key.epoch]
        assert cells_of_tiles([t for e in mine for t in e.tiles]) == cells_of_moves(of)
        assert sum(e.digest for e in mine) & MASK == sum(m.digest for m in of) & MASK
        for event in mine:
            inside = [m for m in of if any(t.first <= m.first < t.end for t in event.tiles)]
            produced = sum(m.outputs for m in inside), sum(m.dead_letters for m in inside)
            assert (event.outputs, event.dead_letters) == produced
            assert event.digest == sum(m.digest for m in inside) & MASK


def test_no_event_is_larger_than_the_limit() -> None:
    """Sixty thousand workers that all moved differently, far up in offsets: several events, each below 256 KB."""
    big = 1 << 50
    of = [WorkerAdvance(big + i, i * 1000, i * 1000 + 999, big + i, big + 2 * i + 1, 9, 9, MASK) for i in range(60_000)]
    events = decide_commits([(CommitKey(1, 1, 1, "t" * 249, 0), of)])
    assert len(events) > 1
    assert max(len(encode(e)) for e in events) <= EVENT_BYTES_MAX
    assert sum(len(e.tiles) for e in events) == 60_000


def started(*events: Event) -> Ledger:
    """A ledger in term 4 of a partition that starts at 10."""
    head: list[ControlEvent] = [
        AppCreated("a", HASH_NAME, 1),
        coordinator_elected(4, "x"),
        partition_started(4, *PLACE, 10, "earliest", 1),
    ]
    return evolve_all(Ledger(), [*in_turn(head), *events])


def turn(control: Control) -> Turn:
    """Whose turn it is by the fold."""
    return Turn(control.term, control.number)


def test_a_grant_runs_from_the_edges_at_the_next_epoch() -> None:
    """First from where the partition started, then from what was committed, band by band; each in turn."""
    ledger = started()
    first = decide_grant(ledger, turn(ledger.control), PLACE, 1)
    assert first == [replace(ranges_granted(4, 1, 1, *PLACE, (Band(0, SPACE_END, 10),)), number=2)]
    middle = SPACE_END // 2
    evolve_all(ledger, [*first, Committed(1, 1, 0, 1, 1, *PLACE, (Tile(0, 1, 0, middle, 10, 25),), 0, 0, 0)])
    second = decide_grant(ledger, turn(ledger.control), PLACE, 2)
    bands = (Band(0, middle, 25), Band(middle, SPACE_END, 10))
    assert second == [replace(ranges_granted(4, 2, 2, *PLACE, bands), number=3)]


def test_a_grant_names_whose_changes_the_changelog_must_show() -> None:
    """The newest writers of the partition's state that were not succeeded, in order of incarnations."""
    changes = [StateChanged(i, i + 100, *PLACE, 1, ()) for i in range(70, 0, -1)]
    ledger = started(*changes, StateChanged(71, 1, *PLACE, 1, (70, 3)))
    (grant,) = decide_grant(ledger, turn(ledger.control), PLACE, 72)
    assert grant.writers == (*(Writer(i, i + 100) for i in range(6, 70)), Writer(71, 1))[-WRITERS_MAX:]


def test_a_grant_says_where_hot_ranges_were_cut_that_were_released() -> None:
    """All of its points that are released, whichever it is granted with; what is granted passes them on to the fold."""
    half, bounds = SPACE_END // 2, (SPACE_END - 200, SPACE_END - 100)
    ledger = started()
    evolve_all(ledger, decide_grant(ledger, turn(ledger.control), PLACE, 1))
    evolve(ledger, RangesReleased(1, 1, 1, *PLACE, NO_MOVE, (Edge(half, SPACE_END, 10),), bounds))
    for within in (WHOLE, KeyRange(half, SPACE_END)):
        assert decide_grant(ledger, turn(ledger.control), PLACE, 2, within)[0].bounds == bounds
    assert decide_grant(ledger, turn(ledger.control), PLACE, 2, KeyRange(0, half))[0].bounds == ()
    (grant,) = decide_grant(ledger, turn(ledger.control), PLACE, 2, KeyRange(SPACE_END - 150, SPACE_END))
    assert grant.bounds == bounds[1:]
    evolve(ledger, grant)
    assert ledger.partition(PLACE).parts[2].granted_bounds == bounds[1:]


def test_a_grant_of_many_bands_comes_in_chunks_of_one_epoch() -> None:
    """Each below the limit, together every band once; the fold takes them as one grant."""
    cut = [SPACE_END * i // 40_000 for i in range(40_001)]
    tiles = tuple(Tile(i, 1, a, b, 10, 1 << 40) for i, (a, b) in enumerate(pairwise(cut)) if i % 2)
    ledger = started()
    evolve_all(ledger, decide_grant(ledger, turn(ledger.control), PLACE, 1))
    evolve(ledger, Committed(1, 1, 0, 1, 1, *PLACE, tiles, 0, 0, 0))
    edges = ledger.partition(PLACE).edges(10)
    chunks = decide_grant(ledger, turn(ledger.control), PLACE, 2)
    assert len(chunks) > 1
    assert [chunk.number for chunk in chunks] == list(range(3, 3 + len(chunks)))
    assert max(len(encode(chunk)) for chunk in chunks) <= EVENT_BYTES_MAX
    evolve_all(ledger, chunks)
    assert ledger.partition(PLACE).edges(10) == edges
    assert ledger.partition(PLACE).epoch_next == 3
    assert not ledger.violations()


def test_the_opening_names_the_application_and_the_hash() -> None:
    """The first event of each partition of the offset log."""
    assert decide_opening("app", 3, 2, 1, 1) == LogOpened("app", HASH_NAME, 2, 3, 1, 1)


@pytest.mark.parametrize("change", ["gap in points", "gap in numbers", "other start", "other end"])
def test_neighbours_that_differ_are_two_tiles(change: str) -> None:
    """A tile never spans a gap, a break in the numbers, or different offsets."""
    left = WorkerAdvance(1, 0, 10, 0, 5)
    right = {
        "gap in points": WorkerAdvance(2, 11, 20, 0, 5),
        "gap in numbers": WorkerAdvance(3, 10, 20, 0, 5),
        "other start": WorkerAdvance(2, 10, 20, 1, 5),
        "other end": WorkerAdvance(2, 10, 20, 0, 6),
    }[change]
    assert len(tiles_of([left, right])) == 2
    assert len(tiles_of([left, WorkerAdvance(2, 10, 20, 0, 5)])) == 1


# --- stores -----------------------------------------------------------------------------------------------------------

SPEC = StoreSpec("seen", "flights", "map", "str", "int", "json")


def declared(*stores: StoreDeclared) -> Control:
    """The control log's fold in term 4 with these stores."""
    control = Control()
    for store in in_turn([coordinator_elected(4, "x"), *stores]):
        control = evolve_control(control, store)
    return control


def spec(name: str) -> StoreSpec:
    """A store of that name; what else it is follows from the name."""
    return SPEC._replace(name=name, topic=f"topic of {name}")


@settings(max_examples=200)
@given(st.lists(st.lists(st.sampled_from("abcdefgh").map(spec), max_size=6), max_size=6))
def test_stores_keep_their_numbers_whatever_is_asked_for_later(starts: list[list[StoreSpec]]) -> None:
    """Start after start: numbers are dense from 0 in the order of first asking; no number or store ever goes."""
    control, order = declared(), list[StoreSpec]()
    for wanted in starts:
        before = dict(control.stores)
        new = decide_stores(control, turn(control), wanted)
        assert {store.name for store in new} == {s.name for s in wanted} - before.keys()
        control = declared(*before.values(), *new)
        order += [s for i, s in enumerate(wanted) if s not in order and s not in wanted[:i]]
        assert [spec_of(store) for store in sorted(control.stores.values(), key=lambda s: s.store)] == order
        assert sorted(store.store for store in control.stores.values()) == list(range(len(order)))
        assert dict(control.stores).items() >= before.items()
        assert decide_stores(control, turn(control), wanted) == []


@pytest.mark.parametrize("field", StoreSpec._fields[1:])
def test_a_store_of_another_kind_under_an_old_name_is_refused(field: str) -> None:
    """The message names the store, what it was, what it is now, and what to do."""
    other = SPEC._replace(**{field: "another"})
    control = declared(store_declared(4, 0, *SPEC))
    with pytest.raises(StoreChanged, match="store 'seen' was a map of int by str for flights as json") as raised:
        decide_stores(control, turn(control), [other])
    assert "another" in str(raised.value)
    assert "Give the new store another name, or start under a new application name" in str(raised.value)
    with pytest.raises(StoreChanged):
        decide_stores(declared(), Turn(4), [SPEC, other])


def test_the_numbers_of_stores_end() -> None:
    """They are two bytes of every state key; the last number is given, a further one is refused."""
    last = store_declared(4, STORE_NUMBER_MAX, *spec("last"))
    before = store_declared(4, STORE_NUMBER_MAX - 1, *spec("before"))
    assert [store.store for store in decide_stores(declared(before), Turn(4), [SPEC])] == [STORE_NUMBER_MAX]
    with pytest.raises(ValueError, match="has had 65536 stores"):
        decide_stores(declared(last), Turn(4), [SPEC])
