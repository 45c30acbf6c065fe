"""Step functions against a dict of points."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange.ranges import KeyRange
from keylanes.keyrange.steps import Steps

from ..tiers.marks import tier
from .twins import POINTS, TOP, bounds, members, ranges

pytestmark = tier("check")

Piece = tuple[int, int, int]
Change = tuple[int, int, int | None]
values = st.integers(0, 2)  # few, so that neighbours melt often
pieces = st.lists(st.tuples(ranges, values).map(lambda t: (t[0].first, t[0].end, t[1])), max_size=8)
changes = st.lists(st.tuples(ranges, st.none() | values).map(lambda t: (t[0].first, t[0].end, t[1])), max_size=8)


def twin_of(*groups: Sequence[Change]) -> dict[int, int | None]:
    """Each compared point and the last value put on it."""
    twin: dict[int, int | None] = dict.fromkeys(POINTS)
    for group in groups:
        for first, end, value in group:
            twin.update(dict.fromkeys(members(first, end), value))
    return twin


def as_dict(steps: Steps[int]) -> dict[int, int | None]:
    """The function at all compared points."""
    return {point: steps.at(point) for point in POINTS}


@given(pieces, changes)
def test_the_last_piece_put_on_a_point_holds(first: list[Piece], then: list[Change]) -> None:
    """Construction and replacement agree with writing into a dict, None with taking away."""
    steps = Steps(first)
    before = as_dict(steps)
    assert before == twin_of(first)
    assert as_dict(steps.replace(then)) == twin_of(first, then)
    assert as_dict(steps) == before


@given(pieces, changes)
def test_functions_that_agree_everywhere_are_equal(first: list[Piece], then: list[Change]) -> None:
    """However it came about: built anew from its own pieces, or from one piece per part, it is the same value."""
    steps = Steps(first).replace(then)
    assert Steps(steps.pieces()) == steps
    fine = [(a, b, v) for a, b, v in steps.pieces() for a, b in _parts(a, b)]
    assert Steps(reversed(fine)) == steps
    assert steps.replace([]) == steps


def _parts(first: int, end: int) -> list[tuple[int, int]]:
    inner = [first, *(p for p in POINTS if first < p < end), end]
    return list(pairwise(inner))


@given(pieces, changes, pieces)
def test_functions_that_differ_somewhere_are_not_equal(
    first: list[Piece], then: list[Change], other: list[Piece]
) -> None:
    """Equality is that of the dicts."""
    one, two = Steps(first).replace(then), Steps(other)
    assert (one == two) == (as_dict(one) == as_dict(two))
    assert one != as_dict(one)


@given(changes, ranges | st.just(None))
def test_pieces_are_clipped_and_tile_the_asked_range(then: list[Change], within: KeyRange | None) -> None:
    """All pieces lie side by side from first to end, neighbours differ; the defined ones are those with a value."""
    steps: Steps[int] = Steps[int]().replace(then)
    first, end = (within.first, within.end) if within is not None else (0, TOP)
    every = list(steps.all_pieces(first, end))
    assert [a for a, _, _ in every] + [end] == [first] + [b for _, b, _ in every]
    assert all(a < b for a, b, _ in every)
    assert all(x[2] != y[2] for x, y in pairwise(every))
    assert list(steps.pieces(first, end)) == [piece for piece in every if piece[2] is not None]
    assert {p: v for a, b, v in every for p in members(a, b)} == {p: steps.at(p) for p in members(first, end)}


@given(changes, bounds)
def test_an_empty_range_has_no_pieces(then: list[Change], at: int) -> None:
    """[at, at) holds no point, also inside a piece and at the end of the space."""
    assert list(Steps[int]().replace(then).all_pieces(at, at)) == []


@given(pieces, ranges, values)
def test_is_constant_means_the_same_value_at_every_point(first: list[Piece], within: KeyRange, value: int) -> None:
    """Compared with a look at each point."""
    steps = Steps(first)
    a, b = within.first, within.end
    assert steps.is_constant(a, b, value) == all(steps.at(point) == value for point in members(a, b))


@given(pieces, changes)
def test_one_function_goes_on_in_another_that_says_the_same_where_it_is_defined(
    first: list[Piece], then: list[Change]
) -> None:
    """Compared with a look at each point; also with one that differs a little."""
    one, other = Steps(first), Steps(first).replace(then)
    for a, b in ((one, other), (other, one), (one, one), (one, Steps[int]())):
        left, right = as_dict(a), as_dict(b)
        assert a.goes_on_in(b) == all(right[p] == value for p, value in left.items() if value is not None)


@given(pieces, changes)
def test_what_is_put_on_a_copy_is_not_put_on_the_original(first: list[Piece], then: list[Change]) -> None:
    """And what is put in place is what a new function would have."""
    steps = Steps(first)
    copy = steps.copy()
    for a, b, value in then:
        copy.put(a, b, value)
    assert steps == Steps(first)
    assert copy == steps.replace(then)


@given(pieces)
def test_the_text_of_a_function_shows_its_pieces(first: list[Piece]) -> None:
    """Undefined parts are left out."""
    assert repr(Steps(first)).count("=") == len(list(Steps(first).pieces()))
    assert repr(Steps([(0, 16, "x")])) == "Steps([00000000,00000010)='x')"


@pytest.mark.parametrize(("first", "end"), [(5, 5), (6, 5), (-1, 5), (0, TOP + 1)])
def test_a_piece_outside_the_space_or_without_points_is_refused(first: int, end: int) -> None:
    """The bounds seen are named, and the function is left as it was."""
    steps = Steps([(0, 10, 1)])
    with pytest.raises(ValueError, match=f"seen first={first}, end={end}"):
        steps.replace([(2, 3, 2), (first, end, 2)])
    assert steps == Steps([(0, 10, 1)])
