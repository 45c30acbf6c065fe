"""Which points copies have, against sets of points."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from keylanes.group.copies import uncovered_spans
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.event_values import Span

from ..keyrange.twins import bounds, members, ranges
from ..tiers.marks import tier

pytestmark = tier("check")


@given(st.lists(ranges), st.lists(st.builds(Span, bounds, bounds)))
def test_uncovered_points_are_the_difference_in_as_few_spans_as_possible(held: list[KeyRange], by: list[Span]) -> None:
    """Ranges may overlap; a band of a log that holds no point covers none."""
    left = uncovered_spans([(one.first, one.end) for one in held], by)
    wanted = set[int]().union(*(members(one.first, one.end) for one in held))
    assert set[int]().union(*(members(span.first, span.end) for span in left)) == wanted.difference(
        *(members(span.first, span.end) for span in by)
    )
    assert all(a.end < b.first for a, b in pairwise(left))
