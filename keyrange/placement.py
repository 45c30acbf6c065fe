"""Which slot runs which worker: sticky, by measured load, one step after the other.

Start from the placement that there is. In each step make the single move that lowers the imbalance most per byte of
state moved; stop when none gains more than the hysteresis, or the budget is spent. The imbalance is the sum of the
squares of the slots' loads: moving a load ``w`` from a slot with load ``a`` to one with load ``b`` lowers it by
``2 w (a - b - w)``, so for every piece the lightest slot is the best one to go to.

What follows, and is tested:

- A step depends on nothing but the placement that it starts from. So calls with a budget, one after the other on the
  same loads, take the steps of one call without, and end at the same place.
- At the end no piece of the heaviest slot gains by going to the lightest: the heaviest slot carries at most
  ``mean + (1 - 1/slots) * (heaviest piece + hysteresis)``.
- Loads are integers and ties are broken by the pieces' numbers: the order of the input does not matter.

Left out on purpose: cutting a piece in two (workers are cut where their load is measured, by split events), and the
threads of one process: state does not move between them, and any free one takes the next record.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to be placed: what it costs, in any unit, and what moves with it; ``slot`` None: not placed yet."""

    number: int
    load: int
    slot: int | None = None
    state_bytes: int = 0

    def __post_init__(self) -> None:
        if self.load < 0 or self.state_bytes < 0:
            raise ValueError(f"load and state_bytes are 0 or more; seen {self.load} and {self.state_bytes}")


def place(pieces: Iterable[Piece], slots: int, *, hysteresis: int = 0, moves_max: int | None = None) -> dict[int, int]:
    """Piece number to slot index in ``[0, slots)``, in order of numbers.

    A piece whose slot is None or gone is placed at once, the heaviest first. Then follow at most ``moves_max`` moves
    (None: no limit), each across a gap between two slots that is larger than the piece's load and ``hysteresis``
    together. Raises ValueError for no slots, a number that is there twice, or a negative limit.
    """
    ordered = sorted(pieces, key=lambda piece: piece.number)
    _check(ordered, slots, hysteresis, moves_max)
    placed = {p.number: p.slot for p in ordered if p.slot is not None and p.slot < slots}
    loads, counts = [0] * slots, [0] * slots
    for piece in ordered:
        if (slot := placed.get(piece.number)) is not None:
            loads[slot] += piece.load
            counts[slot] += 1
    for piece in sorted(ordered, key=lambda p: (-p.load, p.number)):
        if piece.number not in placed:
            slot = min(range(slots), key=lambda s: (loads[s], counts[s], s))
            placed[piece.number] = slot
            loads[slot] += piece.load
            counts[slot] += 1
    moves = 0
    while moves_max is None or moves < moves_max:
        to = min(range(slots), key=lambda s: (loads[s], s))
        best = _best_move(ordered, placed, loads, to, hysteresis)
        if best is None:
            break
        loads[placed[best.number]] -= best.load
        loads[to] += best.load
        placed[best.number] = to
        moves += 1
    return {piece.number: placed[piece.number] for piece in ordered}


def _best_move(
    pieces: Iterable[Piece], placed: dict[int, int], loads: list[int], to: int, hysteresis: int
) -> Piece | None:
    """The piece whose move to the lightest slot gains most per byte; the first of equals."""
    best, best_gain = None, Fraction(0)
    for piece in pieces:
        left = loads[placed[piece.number]] - loads[to] - piece.load
        if piece.load and left > hysteresis:
            gain = Fraction(2 * piece.load * left, 1 + piece.state_bytes)
            if gain > best_gain:
                best, best_gain = piece, gain
    return best


def _check(ordered: list[Piece], slots: int, hysteresis: int, moves_max: int | None) -> None:
    if slots < 1:
        raise ValueError(f"workers need at least one slot; seen {slots}")
    if hysteresis < 0 or (moves_max is not None and moves_max < 0):
        raise ValueError(f"hysteresis and moves_max are 0 or more; seen {hysteresis} and {moves_max}")
    for before, piece in pairwise(ordered):
        if before.number == piece.number:
            raise ValueError(f"piece {piece.number} is there twice")
    for piece in ordered:
        if piece.slot is not None and piece.slot < 0:
            raise ValueError(f"piece {piece.number} is on slot {piece.slot}; slots count from 0")
