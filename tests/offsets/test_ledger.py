"""The fold of both logs: independent of how they interleave, and equal to a twin that looks at single points."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
    RangesGranted,
)
from keylanes.offsets.event_values import Band, Tile
from keylanes.offsets.events import (
    Committed,
    LogOpened,
    OffsetEvent,
    StateChanged,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)
from keylanes.offsets.ledger import Ledger, evolve, evolve_all

from ..stage.log_events import (
    coordinator_elected,
    fold_in_turn,
    partition_started,
    range_released,
    ranges_granted,
    store_declared,
)
from ..tiers.marks import tier
from .ledger_twin import judge, roll
from .log_strategies import BOUNDS, PARTITION, PLACE, POINTS, TOPIC, control_logs, offset_logs

pytestmark = tier("check")

END = BOUNDS[-1]


def merged(
    control: Sequence[ControlEvent], offsets: Sequence[OffsetEvent], taken: Sequence[int]
) -> Iterator[ControlEvent | OffsetEvent]:
    """One interleaving: control events stand at the places ``taken``."""
    rows, others = iter(control), iter(offsets)
    for i in range(len(control) + len(offsets)):
        yield next(rows) if i in taken else next(others)


def assert_judged_alike(ledger: Ledger, control: Sequence[ControlEvent], offsets: Sequence[OffsetEvent]) -> None:
    """The ledger says at every point, and of every member, what the twin says."""
    fold, wanted = ledger.partition(PLACE), judge(control, offsets, POINTS)
    edges, owners = fold.edges(ledger.control.started[PLACE]), fold.owners()
    assert {p: edges.at(p) for p in POINTS} == wanted.edges
    assert {p: owners.at(p) for p in POINTS} == wanted.owners
    assert set(fold.violations) == wanted.violations
    assert set(fold.waiting) == wanted.waiting
    assert fold.changed == wanted.changed
    assert fold.destinations == wanted.destinations
    found, known = ledger.control, roll(control)
    assert (found.app_birth, found.level, found.term) == (known.app_birth, known.level, known.term)
    assert found.incarnation_next == known.used + 1
    assert {i for i in range(1, known.used + 1) if found.is_fenced(i)} == known.fenced


@settings(max_examples=120)
@given(control_logs(4, wrong=True), offset_logs(4))
def test_every_interleaving_gives_the_same_ledger(control: list[ControlEvent], offsets: list[OffsetEvent]) -> None:
    """Small logs, right or wrong, read in every order against each other, fold to one ledger: the twin's."""
    n = len(control) + len(offsets)
    head, free = 4, range(4, n)  # who coordinates and where the partition started is read before any grant
    wanted = evolve_all(Ledger(), [*control, *offsets])
    assert_judged_alike(wanted, control, offsets)
    for chosen in combinations(free, len(control) - head):
        taken = {*range(head), *chosen}
        assert evolve_all(Ledger(), merged(control, offsets, sorted(taken))) == wanted


@tier("test")
@settings(max_examples=300)
@given(control_logs(12, wrong=True), offset_logs(25), st.randoms(use_true_random=False))
def test_random_interleavings_of_longer_logs_give_the_same_ledger(
    control: list[ControlEvent], offsets: list[OffsetEvent], random: object
) -> None:
    """Longer logs in random orders, the offset log first among them, fold to one ledger: the twin's."""
    n = len(control) + len(offsets)
    wanted = evolve_all(Ledger(), [*control, *offsets])
    assert_judged_alike(wanted, control, offsets)
    assert evolve_all(Ledger(), [*offsets, *control]) == wanted
    for _ in range(4):
        taken = sorted(random.sample(range(n), len(control)))  # type: ignore[attr-defined]  # a random.Random
        assert evolve_all(Ledger(), merged(control, offsets, taken)) == wanted


# --- single cases a reader can check by eye ---------------------------------------------------------------------------


def started(*events: ControlEvent | OffsetEvent) -> Ledger:
    """A ledger in term 1 of a partition that starts at 0, with more events."""
    first: list[ControlEvent] = [
        AppCreated("app", "hash", 1),
        coordinator_elected(1, "a"),
        partition_started(1, TOPIC, PARTITION, 0, "earliest", 1),
    ]
    return fold_in_turn(Ledger(), *first, *events)


def grant(epoch: int, offset: int, *, first: int = 0, end: int = END, term: int = 1, to: int = 1) -> RangesGranted:
    """A grant of one band."""
    return ranges_granted(term, to, epoch, TOPIC, PARTITION, (Band(first, end, offset),))


def commit(epoch: int, start: int, to: int, *, first: int = 0, end: int = END, by: int = 1, n: int = 1) -> Committed:
    """A commit of one tile."""
    return Committed(by, n, 0, 1, epoch, TOPIC, PARTITION, (Tile(0, 1, first, end, start, to),), 0, 0, 0)


def test_the_next_grant_ends_an_epoch_where_it_begins() -> None:
    """What was committed up to there counts, a tile beyond is a violation, also when it is read before the grant."""
    clean = started(grant(1, 0), commit(1, 0, 5), grant(2, 5), commit(2, 5, 9))
    assert clean.frontier(PLACE) == 9
    assert not clean.violations()
    beyond = commit(1, 5, 7)
    assert started(grant(1, 0), commit(1, 0, 5), beyond, grant(2, 5)).violations() == [(PLACE, 1)]
    assert started(grant(1, 0), commit(1, 0, 5), grant(2, 5), beyond).violations() == [(PLACE, 1)]


@pytest.mark.parametrize(
    "tile",
    [Tile(0, 1, 0, END, 1, 5), Tile(0, 1, 0, END, 0, 0), Tile(0, 1, 5, 5, 0, 5), Tile(0, 1, 9, 5, 0, 5)],
    ids=["not at the edge", "no offsets", "no points", "turned round"],
)
def test_a_tile_that_does_not_continue_its_band_is_a_violation(tile: Tile) -> None:
    """It must start at the edge and hold at least one offset and one point."""
    event = Committed(1, 1, 0, 1, 1, TOPIC, PARTITION, (tile,), 0, 0, 0)
    assert started(grant(1, 0), event).violations() == [(PLACE, 1)]


def test_a_commit_by_another_incarnation_or_after_a_release_is_a_violation() -> None:
    """An epoch belongs to one incarnation, until it gives the range up."""
    assert started(grant(1, 0), commit(1, 0, 5, by=2)).violations() == [(PLACE, 1)]
    released = range_released(1, 1, 1, TOPIC, PARTITION, 0, BOUNDS[1])
    ledger = started(grant(1, 0), released)
    assert ledger.partition(PLACE).owners().at(0) is None
    assert ledger.partition(PLACE).owners().at(BOUNDS[1]) == 1
    assert evolve(ledger, commit(1, 0, 5)).violations() == [(PLACE, 1)]


def test_the_ledger_knows_every_worker_range() -> None:
    """Cut, split and merge move the bounds between workers; a worker is named by its incarnation and number."""
    a, b = BOUNDS[1], BOUNDS[2]
    ledger = started(
        grant(1, 0),
        WorkersCut(1, 1, 1, TOPIC, PARTITION, 0, (0, a, END)),
        WorkerSplit(1, 2, 1, TOPIC, PARTITION, 1, b, 2),
        WorkersMerged(1, 3, 1, TOPIC, PARTITION, 0, 2, 4),
    )
    assert list(ledger.partition(PLACE).workers().pieces()) == [(0, b, (1, 4)), (b, END, (1, 3))]


def test_the_highest_transaction_of_each_incarnation_is_known() -> None:
    """So a restarted producer finds out what became of its last commit."""
    ledger = started(LogOpened("app", "hash", 0, 1, 1, 1), grant(1, 0), commit(1, 0, 5, n=4), commit(1, 5, 6, n=3))
    evolve(ledger, StateChanged(2, 1, TOPIC, PARTITION, 1, ()))
    assert dict(ledger.transactions) == {1: 4, 2: 1}
    assert ledger.opened == {0}


def test_a_store_keeps_the_number_that_it_was_given_first() -> None:
    """A declaration of a stale term gives none; a second one of the same name changes nothing."""
    first = store_declared(1, 0, "seen", TOPIC, "map", "str", "int", "json")
    again = store_declared(2, 1, "seen", TOPIC, "map", "str", "int", "json")
    stale = store_declared(1, 1, "other", TOPIC, "value", "", "int", "json")
    ledger = started(first, coordinator_elected(2, "b"), again, stale)
    assert dict(ledger.control.stores) == {"seen": replace(first, number=2)}


def test_an_epoch_without_points_is_the_newest_until_a_newer_one_is_granted() -> None:
    """It was used, also if its grant is read twice; then nothing of it stays."""
    nothing = ranges_granted(1, 1, 2, TOPIC, PARTITION, ())
    ledger = started(grant(1, 0), nothing, nothing)
    assert ledger.partition(PLACE).epoch_next == 3
    assert list(fold_in_turn(ledger, grant(3, 0)).partition(PLACE).parts) == [3]


def test_a_commit_of_a_closed_epoch_is_a_violation_and_nothing_else_of_it_is() -> None:
    """It is below the newest and not known, as one that was never granted; to release what was done is in order."""
    closed = started(grant(1, 0), commit(1, 0, 5), grant(3, 5))
    again = range_released(1, 2, 1, TOPIC, PARTITION, 0, END, 5)
    cut = WorkersCut(1, 2, 1, TOPIC, PARTITION, 0, (0, END))
    assert evolve_all(closed.copy(), [again, cut, commit(1, 5, 5)]) != closed
    assert not evolve_all(closed.copy(), [again, cut]).violations()
    assert evolve(closed.copy(), commit(1, 5, 6)).violations() == [(PLACE, 1)]
    assert evolve(closed.copy(), commit(2, 5, 6)).violations() == [(PLACE, 2)]
    assert not evolve_all(closed.copy(), [again, commit(1, 5, 6)]).early_epochs()


# --- the fold is changed in place -------------------------------------------------------------------------------------


def test_a_ledger_is_changed_in_place() -> None:
    """Whoever holds it, or the fold of a partition of it, sees what was folded since."""
    ledger = started(grant(1, 0))
    partition, control = ledger.partition(PLACE), ledger.control
    assert evolve(ledger, commit(1, 0, 5)) is ledger
    assert evolve(ledger, replace(grant(2, 5), number=3)) is ledger
    assert ledger.partition(PLACE) is partition
    assert ledger.control is control
    assert partition.epoch_newest == 2


def test_a_partition_of_which_nothing_was_said_is_no_part_of_the_ledger() -> None:
    """To ask for it says nothing of it."""
    ledger = Ledger()
    ledger.partition(PLACE).destinations.add("nowhere")
    assert ledger == Ledger()


@settings(max_examples=100)
@given(control_logs(10, wrong=True), offset_logs(20), st.data())
def test_a_copy_and_its_original_change_by_themselves(
    control: list[ControlEvent], offsets: list[OffsetEvent], data: st.DataObject
) -> None:
    """What is folded into one leaves the other as it was; both come to what a fold of all their events comes to."""
    taken = data.draw(st.permutations(range(len(control) + len(offsets))))[: len(control)]
    events = list(merged(control, offsets, taken))
    half = data.draw(st.integers(0, len(events)))
    original = evolve_all(Ledger(), events[:half])
    copy = original.copy()
    assert copy == original
    evolve_all(copy, events[half:])
    assert original == evolve_all(Ledger(), events[:half])
    kept = copy.copy()
    evolve_all(original, events[half:])
    assert copy == kept == original
