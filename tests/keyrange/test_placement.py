"""Placement of pieces on slots."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange.placement import Piece, cuts, place

LOADS = st.integers(0, 40) | st.integers(0, 1_000_000)


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[Piece], int]:
    """Pieces, some with a slot (which may be gone), some that know their points, and a number of slots."""
    slots = draw(st.integers(1, 6))
    numbers = draw(st.lists(st.integers(0, 1_000), unique=True, max_size=9))
    slot = st.none() | st.integers(0, slots)
    pieces = []
    for number in numbers:
        points: tuple[tuple[int, int], ...] = ()
        load = draw(LOADS)
        if draw(st.booleans()):
            costs = draw(st.lists(st.integers(1, 40) | st.integers(1, 300_000), max_size=7))
            points = tuple((10 * i, cost) for i, cost in enumerate(costs))
            load = sum(costs)
        pieces.append(Piece(number, load, draw(slot), draw(st.integers(0, 9)), points=points))
    return pieces, slots


def loads_of(pieces: tuple[Piece, ...] | list[Piece], slots: int) -> list[int]:
    """What each slot carries."""
    return [sum(p.load for p in pieces if p.slot == slot) for slot in range(slots)]


def imbalance(loads: list[int]) -> int:
    """The measure that each step lowers."""
    return sum(load * load for load in loads)


def parts(piece: Piece) -> set[int]:
    """The loads of everything that a piece could give away: itself, and each part left or right of a cut."""
    found = {piece.load}
    for i in range(1, len(piece.points)):
        found |= {part.load for part in piece.cut(i)}
    return found


@given(placements(), st.integers(0, 50))
def test_the_heaviest_slot_is_bounded(drawn: tuple[list[Piece], int], hysteresis: int) -> None:
    """Everything has a slot, and the heaviest slot at most mean + (1 - 1/slots) * (heaviest unsplittable + hysteresis).

    Unsplittable: a point, or a piece without points.
    """
    pieces, slots = drawn
    placed = place(pieces, slots, hysteresis=hysteresis)
    assert all(p.slot is not None and 0 <= p.slot < slots for p in placed)
    loads = loads_of(placed, slots)
    heaviest = max((p.unsplittable for p in pieces), default=0)
    assert max(loads) * slots <= sum(loads) + (slots - 1) * (heaviest + hysteresis)


@given(placements(), st.integers(0, 50))
def test_parts_make_up_their_piece(drawn: tuple[list[Piece], int], hysteresis: int) -> None:
    """Nothing is lost or doubled: loads, bytes and points of the parts of each piece are those of the whole."""
    pieces, slots = drawn
    placed = place(pieces, slots, hysteresis=hysteresis)
    named = cuts(pieces, placed)
    for piece in pieces:
        found = [p for p in placed if p.number == piece.number]
        assert sum(p.load for p in found) == piece.load
        assert sum(p.state_bytes for p in found) == piece.state_bytes
        assert tuple(point for p in found for point in p.points) == piece.points
        assert tuple(p.first for p in found[1:]) == named.get(piece.number, ())
        assert all(p.first == p.points[0][0] for p in found[1:])


@given(placements(), st.integers(0, 50))
def test_nothing_moves_when_nothing_gains(drawn: tuple[list[Piece], int], hysteresis: int) -> None:
    """The dumb twin tries every move and every split there is: none is left, and placing again changes nothing."""
    pieces, slots = drawn
    placed = place(pieces, slots, hysteresis=hysteresis)
    assert place(placed, slots, hysteresis=hysteresis) == placed
    loads = loads_of(placed, slots)
    for piece in placed:
        for to in range(slots):
            for load in parts(piece) if to != piece.slot else ():
                tried = list(loads)
                tried[piece.slot or 0] -= load
                tried[to] += load
                assert imbalance(loads) - imbalance(tried) <= 2 * load * hysteresis


@given(placements(), st.integers(0, 20), st.integers(1, 3))
def test_a_budget_takes_the_same_way_in_smaller_steps(
    drawn: tuple[list[Piece], int], hysteresis: int, moves_max: int
) -> None:
    """Repeated calls move at most so much, each lowers the imbalance, and they end where one call without ends."""
    pieces, slots = drawn
    now = place(pieces, slots, hysteresis=hysteresis, moves_max=0)
    while True:
        after = place(now, slots, hysteresis=hysteresis, moves_max=moves_max)
        if after == now:
            break
        slot_of = {(p.number, point): p.slot for p in now for point, _ in p.points or [(p.first, 0)]}
        changed = {
            (p.number, p.first)
            for p in after
            if any(slot_of[p.number, point] != p.slot for point, _ in p.points or [(p.first, 0)])
        }
        assert len(changed) <= moves_max
        assert len(after) <= len(now) + moves_max
        assert imbalance(loads_of(after, slots)) < imbalance(loads_of(now, slots))
        now = after
    assert now == place(pieces, slots, hysteresis=hysteresis)


@given(placements(), st.integers(0, 20), st.integers())
def test_the_order_of_the_input_does_not_matter(drawn: tuple[list[Piece], int], hysteresis: int, seed: int) -> None:
    """Any order gives the same answer."""
    pieces, slots = drawn
    shuffled = list(pieces)
    Random(seed).shuffle(shuffled)
    assert place(shuffled, slots, hysteresis=hysteresis) == place(pieces, slots, hysteresis=hysteresis)


def slots_of(placed: tuple[Piece, ...]) -> dict[tuple[int, int], int | None]:
    """Number and first point to slot."""
    return {(p.number, p.first): p.slot for p in placed}


def test_equal_pieces_are_dealt_out_evenly() -> None:
    """Pieces of which nothing is known yet: the slots get equally many, in order."""
    placed = place([Piece(n, 0) for n in range(5)], 2)
    assert [p.slot for p in placed] == [0, 1, 0, 1, 0]


def test_what_is_cheap_to_move_goes_first() -> None:
    """Of two pieces of one load the one with less state is moved."""
    pieces = [Piece(0, 10, 0, 1_000), Piece(1, 10, 0, 10), Piece(2, 0, 1)]
    assert [p.slot for p in place(pieces, 2)] == [0, 1, 1]


def test_a_piece_is_cut_where_it_levels_the_slots() -> None:
    """One piece on two slots: half of its load goes, with as much of its state, in as many steps as that takes."""
    piece = Piece(7, 40, 0, 400, points=((1, 5), (2, 5), (3, 20), (9, 10)))
    assert slots_of(place([piece], 2, moves_max=1)) == {(7, 0): 1, (7, 3): 0}
    placed = place([piece], 2)
    assert slots_of(placed) == {(7, 0): 1, (7, 3): 0, (7, 9): 1}
    assert [(p.load, p.state_bytes) for p in placed] == [(10, 100), (20, 200), (10, 100)]
    assert cuts([piece], placed) == {7: (3, 9)}
    assert place([piece], 2, hysteresis=40) == (piece,)


def test_a_point_is_not_cut() -> None:
    """What lies at one point stays in one piece, however heavy."""
    placed = place([Piece(0, 100, 0, points=((5, 100),)), Piece(1, 3, 1)], 2)
    assert slots_of(placed) == {(0, 0): 0, (1, 0): 1}


@pytest.mark.parametrize(
    ("pieces", "slots", "options", "says"),
    [
        ([], 0, {}, "seen 0"),
        ([], -1, {}, "seen -1"),
        ([Piece(3, 1), Piece(3, 2)], 2, {}, "piece 3 is there twice"),
        ([Piece(3, 1, -2)], 2, {}, "on slot -2"),
        ([], 1, {"hysteresis": -1}, "seen -1"),
        ([], 1, {"moves_max": -4}, "-4"),
    ],
)
def test_wrong_input_is_an_error(pieces: list[Piece], slots: int, options: dict[str, int], says: str) -> None:
    """In words, with what was seen."""
    with pytest.raises(ValueError, match=says):
        place(pieces, slots, **options)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"load": -1}, "seen -1"),
        ({"load": 3, "points": ((1, 2),)}, "not with all of its load 3"),
        ({"load": 3, "points": ((2, 1), (1, 2))}, "rise"),
        ({"load": 3, "points": ((1, 3), (2, 0))}, "above 0"),
    ],
)
def test_wrong_loads_are_an_error(values: dict[str, Any], says: str) -> None:
    """A piece says so when it is made."""
    with pytest.raises(ValueError, match=says):
        replace(Piece(0, 0), **values)
