"""The first plan of members that were started together: who would have nothing has half of a partition."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylanes.group import plan_moves

from ..stage.planting import Planting, changed
from .finding import is_found
from .stage import Group

NAMES = "abcdefgh"
FEW = settings(max_examples=60)


def started(members: int, partitions: int, *, factor: int = 64) -> Group:
    """A group whose members asked to join together."""
    group = Group()
    names = NAMES[:members]
    group.run(f"topic orders {partitions}")
    group.run(f"eager {' '.join(names)}")
    group.run("hold decisions")
    for name in names:
        group.run(f"ask {name} orders factor {factor} of {members}")
    group.run("done decisions")
    group.run("pass 3s")
    return group


def owners(group: Group) -> list[set[int]]:
    """Who has something of each partition."""
    count, _ = group.topics["orders"]
    return [{cell.owner for cell in group.view().cells(("orders", partition))} for partition in range(count)]


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


def test_a_planted_defect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are halved: the property fails. The script halves.txt finds others."""
    changed(plan_moves, "_places_to_halve", ("max(0, idle)", "None"))(Planting(monkeypatch))
    is_found(test_as_many_partitions_are_halved_as_members_would_have_nothing)
