"""Placement of workers on slots."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange.placement import Piece, place

LOADS = st.integers(0, 40) | st.integers(0, 1_000_000)


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[Piece], int]:
    """Pieces, some with a slot (which may be gone), and a number of slots."""
    slots = draw(st.integers(1, 6))
    numbers = draw(st.lists(st.integers(0, 1_000), unique=True, max_size=14))
    slot = st.none() | st.integers(0, slots)
    return [Piece(n, draw(LOADS), draw(slot), draw(st.integers(0, 9))) for n in numbers], slots


def loads_of(pieces: list[Piece], placed: dict[int, int], slots: int) -> list[int]:
    """What each slot carries."""
    return [sum(p.load for p in pieces if placed[p.number] == slot) for slot in range(slots)]


def imbalance(loads: list[int]) -> int:
    """The measure that each step lowers."""
    return sum(load * load for load in loads)


def moved(pieces: list[Piece], placed: dict[int, int]) -> list[Piece]:
    """The pieces as they are after a placement."""
    return [replace(piece, slot=placed[piece.number]) for piece in pieces]


@given(placements(), st.integers(0, 50))
def test_the_heaviest_slot_is_bounded(drawn: tuple[list[Piece], int], hysteresis: int) -> None:
    """Every piece has a slot, and the heaviest slot at most mean + (1 - 1/slots) * (heaviest piece + hysteresis)."""
    pieces, slots = drawn
    placed = place(pieces, slots, hysteresis=hysteresis)
    assert list(placed) == sorted(p.number for p in pieces)
    assert all(0 <= slot < slots for slot in placed.values())
    loads = loads_of(pieces, placed, slots)
    heaviest = max((p.load for p in pieces), default=0)
    assert max(loads) * slots <= sum(loads) + (slots - 1) * (heaviest + hysteresis)


@given(placements(), st.integers(0, 50))
def test_nothing_moves_when_nothing_gains(drawn: tuple[list[Piece], int], hysteresis: int) -> None:
    """The dumb twin tries every move there is: none is left, and placing again changes nothing."""
    pieces, slots = drawn
    placed = place(pieces, slots, hysteresis=hysteresis)
    after = moved(pieces, placed)
    assert place(after, slots, hysteresis=hysteresis) == placed
    loads = loads_of(pieces, placed, slots)
    for piece in after:
        for to in range(slots):
            if to != piece.slot:
                tried = list(loads)
                tried[placed[piece.number]] -= piece.load
                tried[to] += piece.load
                assert imbalance(loads) - imbalance(tried) <= 2 * piece.load * hysteresis


@given(placements(), st.integers(0, 20), st.integers(1, 3))
def test_a_budget_takes_the_same_way_in_smaller_steps(
    drawn: tuple[list[Piece], int], hysteresis: int, moves_max: int
) -> None:
    """Repeated calls move at most so many, each lowers the imbalance, and they end where one call without ends."""
    pieces, slots = drawn
    wanted = place(pieces, slots, hysteresis=hysteresis)
    now = moved(pieces, place(pieces, slots, hysteresis=hysteresis, moves_max=0))
    while True:
        placed = place(now, slots, hysteresis=hysteresis, moves_max=moves_max)
        changed = [p for p in now if placed[p.number] != p.slot]
        assert len(changed) <= moves_max
        if not changed:
            break
        before = imbalance(loads_of(now, {p.number: p.slot or 0 for p in now}, slots))
        assert imbalance(loads_of(now, placed, slots)) < before
        now = moved(now, placed)
    assert {p.number: p.slot for p in now} == wanted


@given(placements(), st.integers(0, 20), st.integers())
def test_the_order_of_the_input_does_not_matter(drawn: tuple[list[Piece], int], hysteresis: int, seed: int) -> None:
    """Any order gives the same answer."""
    pieces, slots = drawn
    shuffled = list(pieces)
    Random(seed).shuffle(shuffled)
    assert place(shuffled, slots, hysteresis=hysteresis) == place(pieces, slots, hysteresis=hysteresis)


def test_equal_pieces_are_dealt_out_evenly() -> None:
    """Workers of which nothing is known yet: the slots get equally many, in order."""
    assert place([Piece(n, 0) for n in range(5)], 2) == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}


def test_what_is_cheap_to_move_goes_first() -> None:
    """Of two pieces of one load the one with less state is moved."""
    pieces = [Piece(0, 10, 0, 1_000), Piece(1, 10, 0, 10), Piece(2, 0, 1)]
    assert place(pieces, 2) == {0: 0, 1: 1, 2: 1}


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


def test_loads_are_not_negative() -> None:
    """A piece says so when it is made."""
    with pytest.raises(ValueError, match="seen -1"):
        Piece(0, -1)
