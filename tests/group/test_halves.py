"""The first plan of members that were started together: who would have nothing has half of a partition."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylanes.group import plans
from keylanes.group.cells import Cell
from keylanes.keyrange.hashing import SPACE_END

from ..stage.planting import Planting, changed
from .finding import is_found
from .stage import Group

NAMES = "abcdefgh"
FEW = settings(max_examples=60)


def started(members: int, partitions: int, *, factor: int = 64, expected: int | None = None) -> Group:
    """A group whose members asked to join together; ``expected``: so many of them, as they say."""
    group = Group()
    names = NAMES[:members]
    group.run(f"topic orders {partitions}")
    group.run(f"eager {' '.join(names)}")
    group.run("hold decisions")
    for name in names:
        group.run(f"ask {name} orders factor {factor} of {members if expected is None else expected}")
    group.run("done decisions")
    group.run("pass 3s")
    return group


def cells_of(group: Group, topic: str = "orders") -> list[list[Cell]]:
    """What each partition of a topic consists of."""
    return [group.view().cells((topic, partition)) for partition in range(group.topics[topic][0])]


def owners(group: Group) -> list[set[int]]:
    """Who has something of each partition."""
    return [{cell.owner for cell in cells} for cells in cells_of(group)]


@FEW
@given(st.integers(1, 8), st.integers(1, 8), st.sampled_from((1, 2, 3, 64)))
def test_as_many_partitions_are_halved_as_members_would_have_nothing(
    members: int, partitions: int, factor: int
) -> None:
    """The two halves of one have two owners, all others stay whole; what is never parted is not halved."""
    halved = min(max(0, members - partitions), partitions) if factor > 1 else 0
    found = owners(started(members, partitions, factor=factor))
    assert [len(of) for of in found] == [2] * halved + [1] * (partitions - halved)
    assert len(set[int]().union(*found)) == min(members, partitions + halved)


@pytest.mark.parametrize(("factor", "middle"), [(2, 1 / 2), (3, 1 / 3), (64, 1 / 2)])
def test_a_half_begins_at_the_declared_cut(factor: int, middle: float) -> None:
    """At the border of a cell that is nearest to the middle."""
    (cells,) = cells_of(started(2, 1, factor=factor))
    assert [cell[:2] for cell in cells] == [(0, int(SPACE_END * middle)), (int(SPACE_END * middle), SPACE_END)]


@FEW
@given(st.integers(0, 4_000), st.integers(0, 50_000))
def test_halves_stay_whatever_their_load_is(ms_per_s: int, records_per_s: int) -> None:
    """Even load relieves nobody by a move, so nothing moves, and nothing goes back."""
    group = started(2, 1)
    group.run(f"load orders 0 {ms_per_s} {records_per_s}")
    assert not group.run("pass 60s")


@FEW
@given(st.integers(200, 4_000))
def test_more_members_have_something_when_the_load_is_known(ms_per_s: int) -> None:
    """Eight on one partition: two at first, and all where a record costs much more than to read it."""
    group = started(8, 1)
    assert len(owners(group)[0]) == 2
    group.run(f"load orders 0 {8 * ms_per_s} 100")
    group.run("pass 60s")
    assert len(owners(group)[0]) == 8


def test_two_read_what_costs_no_more_to_handle_than_to_read() -> None:
    """Eight on one partition, 1.8 µs a record: a third reader would not be worth it."""
    group = started(8, 1)
    group.run("load orders 0 800 500000")
    group.run("pass 60s")
    assert len(owners(group)[0]) == 2


def test_members_that_were_not_started_together_halve_nothing() -> None:
    """Each may be there for another's end: a partition is parted when its load is known."""
    assert owners(started(2, 1, expected=0)) == [{1}]


def test_a_partition_that_was_granted_once_stays_as_it_is() -> None:
    """Its load is known from before, and its state lies where it was: one process had it, and two are started."""
    group = started(1, 1)
    for command in ("leave a", "release a orders 0", "pass 3s", "hold decisions"):
        group.run(command)
    for command in ("ask a orders of 2", "ask b orders of 2", "coordinator is a", "done decisions", "pass 3s"):
        group.run(command)
    assert owners(group) == [{2}]


def test_members_that_handle_different_topics_halve_nothing() -> None:
    """Who has nothing may not be able to handle what could be halved."""
    group = Group()
    for command in ("topic orders 2", "topic bills 1", "hold decisions"):
        group.run(command)
    for name, topics in (("a", "orders"), ("b", "orders"), ("c", "bills"), ("d", "bills")):
        group.run(f"ask {name} {topics} of 4")
    for command in ("done decisions", "pass 3s"):
        group.run(command)
    assert [len(cells) for topic in ("orders", "bills") for cells in cells_of(group, topic)] == [1, 1, 1]


PLANTED: dict[str, tuple[str, tuple[str, str], Callable[[], None]]] = {
    "all are halved": (
        "_halved",
        ("max(0, idle)", "None"),
        test_as_many_partitions_are_halved_as_members_would_have_nothing,
    ),
}
LATE: dict[str, tuple[str, tuple[str, str], Callable[[], None]]] = {
    "any members halve": (
        "_halved",
        ("not question.halves or ", ""),
        test_members_that_were_not_started_together_halve_nothing,
    ),
    "the other part is the larger one": (
        "_halves",
        ("factor // 2", "factor // 2 - 1 or 1"),
        lambda: test_a_half_begins_at_the_declared_cut(64, 1 / 2),
    ),
    "what was granted is halved": (
        "_halved",
        ("== [0]", "!= []"),
        test_a_partition_that_was_granted_once_stays_as_it_is,
    ),
    "what nobody else can handle is halved": (
        "_halved",
        ("len(topics) != 1", "False"),
        test_members_that_handle_different_topics_halve_nothing,
    ),
}


@pytest.mark.parametrize(("name", "pieces", "found_by"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_defect_is_found_by_a_property(
    name: str, pieces: tuple[str, str], found_by: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that it breaks."""
    changed(plans, name, pieces)(Planting(monkeypatch))
    is_found(found_by)


@pytest.mark.parametrize(("name", "pieces", "found_by"), LATE.values(), ids=LATE.keys())
def test_a_planted_defect_is_found_by_an_example(
    name: str, pieces: tuple[str, str], found_by: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that it breaks."""
    changed(plans, name, pieces)(Planting(monkeypatch))
    with pytest.raises(AssertionError):
        found_by()
