"""What shall be: the properties that target.py promises, each against a plain twin."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from keylanes.group import target
from keylanes.group.target import NOBODY, Share, Shift, Taker, solve

from ..stage.planting import Planting, changed
from .finding import is_found

TOPICS = ("t", "u", "v")
ALL = frozenset(TOPICS)
UNIT = 100

TAKERS = st.lists(
    st.builds(
        Taker,
        st.integers(1, 6),
        st.sampled_from((0.5, 1.0, 1.0, 1.0, 3.0)),
        st.frozensets(st.sampled_from(TOPICS), min_size=1),
    ),
    max_size=4,
    unique_by=lambda taker: taker.incarnation,
)


def shares_of(sizes: list[tuple[str, int, int, bool]]) -> list[Share]:
    """Shares of (topic, points, owner, whether there is state); each in a partition of its own."""
    return [Share(topic, n, 0, points, owner, state) for n, (topic, points, owner, state) in enumerate(sizes)]


SHARES = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.sampled_from((UNIT, UNIT, UNIT, 30, 250)), st.integers(0, 6), st.booleans()),
    max_size=9,
).map(shares_of)


def owners(shares: list[Share], shifts: list[Shift]) -> dict[Share, int]:
    """Who has what afterwards."""
    return {share: share.owner for share in shares} | {shift.share: shift.target for shift in shifts}


def fullness(taker: Taker, after: dict[Share, int]) -> Fraction:
    """Points over capacity; of what it can handle."""
    own = [share.points for share, owner in after.items() if owner == taker.incarnation and share.topic in taker.topics]
    return Fraction(sum(own)) / Fraction(taker.capacity)


def unlevel(takers: list[Taker], after: dict[Share, int]) -> list[tuple[int, int, Share]]:
    """Pairs of which the fuller one could give the other a share and stay the fuller one, as it was before."""
    return [
        (giver.incarnation, taker.incarnation, share)
        for giver, taker in product(takers, repeat=2)
        for share, owner in after.items()
        if owner == giver.incarnation
        and share.topic in taker.topics
        and fullness(taker, {**after, share: taker.incarnation}) < fullness(giver, after)
        and giver != taker
    ]


@given(TAKERS, SHARES)
def test_everything_that_somebody_can_handle_has_an_owner_who_can(takers: list[Taker], shares: list[Share]) -> None:
    """What nobody can handle is left alone."""
    shifts = solve(takers, shares)
    able = {taker.incarnation: taker.topics for taker in takers}
    for share, owner in owners(shares, shifts).items():
        if any(share.topic in topics for topics in able.values()):
            assert share.topic in able[owner]
        else:
            assert owner == share.owner


@given(TAKERS, SHARES)
def test_no_pair_could_be_levelled_further(takers: list[Taker], shares: list[Share]) -> None:
    """For each pair and each share."""
    assert not unlevel(takers, owners(shares, solve(takers, shares)))


@given(TAKERS, SHARES)
def test_what_is_level_stays(takers: list[Taker], shares: list[Share]) -> None:
    """Solved once more, nothing moves; and no shift goes to who has the share."""
    shifts = solve(takers, shares)
    assert all(shift.target != shift.share.owner for shift in shifts)
    again = [share._replace(owner=owner) for share, owner in owners(shares, shifts).items()]
    assert not solve(takers, again)


@given(TAKERS, SHARES, st.randoms())
def test_the_order_of_the_problem_does_not_matter(takers: list[Taker], shares: list[Share], chance: object) -> None:
    """The same shifts, in the same order."""
    wanted = solve(takers, shares)
    chance.shuffle(takers)  # type: ignore[attr-defined]  # Hypothesis's Random
    chance.shuffle(shares)  # type: ignore[attr-defined]  # the same
    assert solve(takers, shares) == wanted


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 9))
def test_whole_partitions_are_spread_to_a_difference_of_one(counts: list[int], homeless: int) -> None:
    """With members that can handle all."""
    takers = [Taker(n, 1.0, ALL) for n, _ in enumerate(counts, 1)]
    sizes = [("t", UNIT, n, False) for n, count in enumerate(counts, 1) for _ in range(count)]
    shares = shares_of(sizes + [("t", UNIT, NOBODY, False)] * homeless)
    after = [*owners(shares, solve(takers, shares)).values()]
    found = [after.count(taker.incarnation) for taker in takers]
    assert max(found) - min(found) <= 1


def fewest_moves(takers: list[Taker], shares: list[Share]) -> int:
    """Of all ways to deal the shares out rightly, the least number that change hands."""
    able = [[t.incarnation for t in takers if share.topic in t.topics] or [share.owner] for share in shares]
    ways = sorted(product(*able), key=lambda way: _moved(shares, way))
    level = (way for way in ways if not unlevel(takers, dict(zip(shares, way, strict=True))))
    return _moved(shares, next(level))


def _moved(shares: list[Share], way: tuple[int, ...]) -> int:
    return sum(share.owner != owner for share, owner in zip(shares, way, strict=True))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.sampled_from(("join", "leave")))
def test_a_join_or_a_leave_moves_no_more_than_must_move(had: list[int], event: str) -> None:
    """Equal partitions, members that can handle all: from any level start, the least number of moves by brute force."""
    takers = [Taker(n, 1.0, ALL) for n in (1, 2, 3)]
    level = owners(before := shares_of([("t", UNIT, owner, False) for owner in had]), solve(takers, before))
    shares = [share._replace(owner=owner) for share, owner in level.items()]
    changed_takers = [*takers, Taker(4, 1.0, ALL)] if event == "join" else takers[:2]
    assert len(solve(changed_takers, shares)) == fewest_moves(changed_takers, shares)


SMALL_TAKERS = st.lists(
    st.builds(Taker, st.integers(1, 4), st.just(1.0), st.frozensets(st.sampled_from(TOPICS[:2]), min_size=1)),
    min_size=1,
    max_size=3,
    unique_by=lambda taker: taker.incarnation,
)
SMALL_SHARES = st.lists(
    st.tuples(st.sampled_from(TOPICS[:2]), st.just(UNIT), st.integers(0, 4), st.just(False)), max_size=5
).map(shares_of)


@given(SMALL_TAKERS, SMALL_SHARES)
def test_members_that_can_handle_different_topics_move_little_more_than_must_move(
    takers: list[Taker], shares: list[Share]
) -> None:
    """Shares are looked at one by one, so one more may move than the least that leaves all pairs level."""
    assert len(solve(takers, shares)) <= fewest_moves(takers, shares) + 1


@given(TAKERS, SHARES)
def test_shares_without_state_move_first(takers: list[Taker], shares: list[Share]) -> None:
    """Of several equal ones of a topic at one owner."""
    assume(takers)
    alike = [share._replace(end=UNIT) for share in shares]
    shifts = {shift.share: shift.target for shift in solve(takers, alike)}
    able = {taker.incarnation: taker.topics for taker in takers}
    for moved in shifts:
        rightly = moved.topic in able.get(moved.owner, ())
        for stayed in alike:
            same = (stayed.topic, stayed.owner) == (moved.topic, moved.owner) and stayed not in shifts
            assert not (rightly and same and moved.has_state and not stayed.has_state)


def test_two_takers_of_one_incarnation_are_refused() -> None:
    """It would have two shares of everything."""
    with pytest.raises(ValueError, match="once"):
        solve([Taker(1, 1.0, ALL), Taker(1, 2.0, ALL)], [])


PLANTED = {
    "a gain that turns the pair around": (
        ("books.fullness(taker, share.points) <", "books.fullness(taker, 2 * share.points) <"),
        test_no_pair_could_be_levelled_further,
    ),
    "only the fullest gives": (
        ("in reversed(by_fullness):", "in by_fullness[-1:]:"),
        test_no_pair_could_be_levelled_further,
    ),
    "all may take all": (
        ("books.can(taker, share.topic) and ", ""),
        test_everything_that_somebody_can_handle_has_an_owner_who_can,
    ),
    "what has state may move first": (
        ("books.cost(share, giver, taker)", "books.cost(share, giver, taker)[1:]"),
        test_shares_without_state_move_first,
    ),
}


@pytest.mark.parametrize(("pieces", "found_by"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_defect_is_found(
    pieces: tuple[str, str], found_by: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the property that it breaks."""
    changed(target, "_levelling", pieces)(Planting(monkeypatch))
    is_found(found_by)


def test_a_tie_that_chance_decides_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members that are equally full: the order of the problem would show."""
    pieces = (", self._by_topic[incarnation, topic], incarnation", ", 0, 0")
    changed(target._Books, "rank", pieces)(Planting(monkeypatch))
    is_found(test_the_order_of_the_problem_does_not_matter)


def test_who_deals_all_out_anew_moves_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least number of moves is a property that can fail."""
    changed(target, "solve", ("if books.can(share.owner, share.topic):", "if False:"))(Planting(monkeypatch))
    is_found(test_a_join_or_a_leave_moves_no_more_than_must_move)
