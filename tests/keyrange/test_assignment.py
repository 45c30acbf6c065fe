"""Assignments against a dict from points to worker numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylanes.keyrange.assignment import Assignment, cut, recut
from keylanes.keyrange.ranges import KeyRange, even_bounds

from .twins import POINTS, TOP, bounds, cuts, members


class AssignmentAgainstDict(RuleBasedStateMachine):
    """Splits and merges in any order; the twin writes each point's worker into a dict."""

    @initialize(bounds=cuts, number=st.integers(0, 9))
    def begin(self, bounds: tuple[int, ...], number: int) -> None:
        """A fresh cut, numbered in order of points."""
        self.assignment = cut(4, bounds, number)
        self.twin: dict[int, int] = {}
        self.next = number
        self.steps = 0
        for first, end in pairwise(bounds):
            self.twin.update(dict.fromkeys(members(first, end), self.next))
            self.next += 1
        self.used = set(range(number, self.next))

    @rule(data=st.data(), at=bounds)
    def split(self, data: st.DataObject, at: int) -> None:
        """Inside the worker's range: two new numbers. Elsewhere: refused, nothing changed."""
        worker = data.draw(st.sampled_from(sorted(self.assignment.workers)))
        band = self.assignment.range_of(worker)
        if not band.first < at < band.end:
            with pytest.raises(ValueError, match="strictly inside"):
                self.assignment.split(worker, at)
            return
        self.assignment = self.assignment.split(worker, at)
        for point in members(band.first, band.end):
            self.twin[point] = self.next if point < at else self.next + 1
        self.took(2)

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        """Neighbours in order of points: one new number. Any other pair: refused."""
        workers = self.assignment.workers
        left, right = (data.draw(st.sampled_from(sorted(workers))) for _ in range(2))
        if (left, right) not in pairwise(workers):
            with pytest.raises(ValueError, match="right neighbour"):
                self.assignment.merge(left, right)
            return
        self.assignment = self.assignment.merge(left, right)
        self.twin = {p: self.next if w in (left, right) else w for p, w in self.twin.items()}
        self.took(1)

    @precondition(lambda self: self.steps > 0)
    @rule(data=st.data())
    def ask_for_a_number_that_owns_nothing(self, data: st.DataObject) -> None:
        """A number that was given up never comes back, and asking for it is an error."""
        worker = data.draw(st.sampled_from(sorted(self.used - set(self.assignment.workers)) + [self.next]))
        for ask in (
            lambda: self.assignment.range_of(worker),
            lambda: self.assignment.split(worker, 1),
            lambda: self.assignment.merge(worker, worker),
        ):
            with pytest.raises(ValueError, match="owns nothing"):
                ask()

    def took(self, count: int) -> None:
        """Numbers were used."""
        self.used |= set(range(self.next, self.next + count))
        self.next += count
        self.steps += 1

    @invariant()
    def agrees_with_the_dict(self) -> None:
        """Every point has the twin's worker, every worker the twin's points, and nothing outside has any."""
        for point in POINTS:
            if point in self.twin:
                assert self.assignment.worker_of_point(point) == self.twin[point]
            else:
                with pytest.raises(ValueError, match="covers"):
                    self.assignment.worker_of_point(point)
        for worker in self.assignment.workers:
            band = self.assignment.range_of(worker)
            assert members(band.first, band.end) == {p for p, w in self.twin.items() if w == worker}
        assert (self.assignment.epoch, self.assignment.revision) == (4, self.steps)
        assert self.assignment.number_next == self.next


TestAssignmentAgainstDict = AssignmentAgainstDict.TestCase


@given(cuts, cuts)
def test_recut_leads_from_one_cut_to_the_other(present: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Splitting at the first list and then merging away the second gives the wanted bounds; other spans are refused."""
    if (present[0], present[-1]) != (wanted[0], wanted[-1]):
        with pytest.raises(ValueError, match="same points"):
            recut(present, wanted)
        return
    splits, merges = recut(present, wanted)
    assignment = cut(1, present, 0)
    for at in splits:
        assignment = assignment.split(assignment.worker_of_point(at), at)
    for at in merges:
        assignment = assignment.merge(assignment.worker_of_point(at - 1), assignment.worker_of_point(at))
    assert assignment.bounds == wanted
    assert list(splits) == sorted(splits)
    assert list(merges) == sorted(merges)


@pytest.mark.parametrize(("parts", "wanted"), [(256, 512), (512, 256), (7, 3), (3, 1000), (5, 5)])
def test_recut_between_parallelising_factors_changes_only_what_differs(parts: int, wanted: int) -> None:
    """Bounds that both cuts share stay; nothing is done when the factor is the same."""
    present, after = even_bounds(parts), even_bounds(wanted)
    splits, merges = recut(present, after)
    assert not (set(splits) | set(merges)) & (set(present) & set(after))
    assert (set(present) | set(splits)) - set(merges) == set(after)


@pytest.mark.parametrize("bad", [(), (5,), (5, 5), (0, 5, 5, 7), (0, 7, 3), (0, TOP + 1)])
def test_recut_refuses_what_is_no_cut(bad: tuple[int, ...]) -> None:
    """Two rising bounds at least, inside the space."""
    for present, wanted in ((bad, (0, 7)), ((0, 7), bad)):
        with pytest.raises(ValueError, match=r"a cut has|a key range needs"):
            recut(present, wanted)


@pytest.mark.parametrize(
    ("bounds", "workers", "number_next", "words"),
    [
        ((0,), (), 0, "n >= 1"),
        ((0, 5), (1, 2), 3, "n . 1 bounds"),
        ((0, 5, 5), (1, 2), 3, "a key range needs"),
        ((0, 5, 3), (1, 2), 3, "a key range needs"),
        ((0, TOP + 1), (1,), 2, "a key range needs"),
        ((0, 5, 9), (1, 1), 3, "distinct"),
        ((0, 5, 9), (1, 3), 3, "below number_next"),
    ],
)
def test_parts_that_do_not_fit_are_no_assignment(
    bounds: tuple[int, ...], workers: tuple[int, ...], number_next: int, words: str
) -> None:
    """An assignment that exists covers its range exactly, by distinct numbers that were given out."""
    with pytest.raises(ValueError, match=words):
        Assignment(1, 0, bounds, workers, number_next)


@given(cuts, bounds)
def test_an_assignment_covers_from_its_first_bound_to_its_last(bounds: tuple[int, ...], point: int) -> None:
    """Its range is that of all workers together."""
    assignment = cut(1, bounds, 7)
    assert assignment.range == KeyRange(bounds[0], bounds[-1])
    assert assignment.workers == tuple(range(7, 7 + len(bounds) - 1))
    if assignment.range.contains(point):
        place = assignment.index_of_point(point)
        assert assignment.bounds[place] <= point < assignment.bounds[place + 1]
