"""Which slot runs which piece of the key space: sticky, by measured load, one step after the other.

Nothing uses it yet: it is to place grants on the members of a group, and pieces on threads.

Start from the placement that there is. In each step make the single move or split that lowers the imbalance most per
byte of state moved; stop when none gains more than the hysteresis, or the budget is spent. The imbalance is the sum of
the squares of the slots' loads: moving a load ``w`` from a slot with load ``a`` to one with load ``b`` lowers it by
``2 w (a - b - w)``, so for every piece the lightest slot is the best one to go to.

A piece that knows where its load lies may be cut: one part stays, the other one goes to the lightest slot. Of all its
cuts the one that levels the two slots best is tried. (By gain per byte, the smallest part would always win, and all
would be cut to crumbs.) A move is taken before a split that gains as much.

What follows, and is tested:

- A step depends on nothing but the pieces that it starts from, and its result is pieces. So calls with a budget, one
  after the other on the same loads, take the steps of one call without, and end at the same place.
- At the end no piece of the heaviest slot gains by going to the lightest, nor does a part of one, down to a single
  point at its border: the heaviest slot carries at most ``mean + (1 - 1/slots) * (heaviest unsplittable piece +
  hysteresis)``. Unsplittable are a single point and a piece that doesn't know its points.
- Loads are integers and ties are broken by the pieces' numbers: the order of the input does not matter.

Left out on purpose: joining parts again (workers that cost nothing are merged by policy.py), and the threads of one
process: state does not move between them, and any free one takes the next record.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to be placed: what it costs, in any unit, and what moves with it; ``slot`` None: not placed yet.

    ``points``, rising and with their loads, which make up the whole: where it may be cut. The parts of a piece keep its
    number and differ in ``first``, the point that they begin at.
    """

    number: int
    load: int
    slot: int | None = None
    state_bytes: int = 0
    first: int = 0
    points: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.load < 0 or self.state_bytes < 0:
            raise ValueError(f"load and state_bytes are 0 or more; seen {self.load} and {self.state_bytes}")
        if self.points and sum(load for _, load in self.points) != self.load:
            raise ValueError(f"piece {self.number} has points, but not with all of its load {self.load}")
        if any(a >= b for (a, _), (b, _) in pairwise(self.points)) or any(load < 1 for _, load in self.points):
            raise ValueError(f"the points of piece {self.number} rise and have loads above 0; seen {self.points[:9]}")

    @property
    def unsplittable(self) -> int:
        """The heaviest load in it that can't be cut."""
        return max((load for _, load in self.points), default=self.load)

    def cut(self, i: int) -> tuple["Piece", "Piece"]:
        """Two parts, the right one from its i-th point on; state is taken to lie as the load does."""
        at = self.points[i][0]
        left_load = sum(load for _, load in self.points[:i])
        left_bytes = self.state_bytes * left_load // self.load
        left = replace(self, load=left_load, state_bytes=left_bytes, points=self.points[:i])
        right = replace(
            self,
            load=self.load - left_load,
            state_bytes=self.state_bytes - left_bytes,
            first=at,
            points=self.points[i:],
        )
        return left, right


@dataclass(frozen=True, slots=True)
class _Step:
    """What goes to the lightest slot: the whole of ``pieces[index]`` (``stays`` None), or a part of it."""

    index: int
    goes: Piece
    stays: Piece | None = None


def place(
    pieces: Iterable[Piece], slots: int, *, hysteresis: int = 0, moves_max: int | None = None
) -> tuple[Piece, ...]:
    """The pieces with their slots in ``[0, slots)``, cut where that was a step; in order of number and first point.

    A piece whose slot is None or gone is placed at once, the heaviest first. Then follow at most ``moves_max`` steps
    (None: no limit), each across a gap between two slots that is larger than what goes and ``hysteresis`` together.
    Raises ValueError for no slots, a piece that is there twice, or a negative limit.
    """
    ordered = sorted(pieces, key=_key)
    _check(ordered, slots, hysteresis, moves_max)
    loads = _settle(ordered, slots)
    moves = 0
    while moves_max is None or moves < moves_max:
        to = min(range(slots), key=lambda s: (loads[s], s))
        step = _best_step(ordered, loads, to, hysteresis)
        if step is None:
            break
        loads[_slot(ordered[step.index])] -= step.goes.load
        loads[to] += step.goes.load
        stays = () if step.stays is None else (step.stays,)
        ordered[step.index : step.index + 1] = sorted((*stays, replace(step.goes, slot=to)), key=_key)
        moves += 1
    return tuple(ordered)


def cuts(pieces: Iterable[Piece], placed: Iterable[Piece]) -> dict[int, tuple[int, ...]]:
    """Where a placement cut the pieces that it was given: number to rising points, without those that are whole."""
    before = {_key(piece) for piece in pieces}
    found: dict[int, list[int]] = {}
    for number, first in sorted(_key(piece) for piece in placed):
        if (number, first) not in before:
            found.setdefault(number, []).append(first)
    return {number: tuple(firsts) for number, firsts in found.items()}


def _settle(ordered: list[Piece], slots: int) -> list[int]:
    """Give every piece a slot, in place; the slots' loads."""
    loads, counts = [0] * slots, [0] * slots
    homeless = []
    for i, piece in enumerate(ordered):
        if piece.slot is None or piece.slot >= slots:
            homeless.append(i)
        else:
            loads[piece.slot] += piece.load
            counts[piece.slot] += 1
    for i in sorted(homeless, key=lambda i: (-ordered[i].load, i)):
        slot = min(range(slots), key=lambda s: (loads[s], counts[s], s))
        ordered[i] = replace(ordered[i], slot=slot)
        loads[slot] += ordered[i].load
        counts[slot] += 1
    return loads


def _best_step(ordered: Sequence[Piece], loads: Sequence[int], to: int, hysteresis: int) -> _Step | None:
    """The step to the lightest slot that gains most per byte; a move before a split, the first of equals."""
    best, best_gain = None, Fraction(0)
    steps: list[_Step] = []
    for index, piece in enumerate(ordered):
        gap = loads[_slot(piece)] - loads[to]
        if gap - hysteresis > 1:  # what goes is 1 at least
            steps.append(_Step(index, piece))
            steps += _split(index, piece, gap, hysteresis)
    for step in sorted(steps, key=lambda s: s.stays is not None):
        load = step.goes.load
        left = loads[_slot(step.goes)] - loads[to] - load
        if load and left > hysteresis:
            gain = Fraction(2 * load * left, 1 + step.goes.state_bytes)
            if gain > best_gain:
                best, best_gain = step, gain
    return best


def _split(index: int, piece: Piece, gap: int, hysteresis: int) -> list[_Step]:
    """The cut that levels two slots best across a gap: the part that goes has about half of it, or what it may have."""
    if len(piece.points) < 2:
        return []
    below = list(accumulate(load for _, load in piece.points))[:-1]  # below[i]: the part left of point i + 1
    best = min(gap // 2, gap - hysteresis - 1)
    tried: list[tuple[int, int, bool]] = []
    for wanted in (best, piece.load - best):  # as the left part, as the right one
        i = bisect_left(below, wanted)
        for j in {max(0, i - 1), min(i, len(below) - 1)}:
            tried += [(below[j], j, True), (piece.load - below[j], j, False)]
    tried = [part for part in tried if gap - part[0] > hysteresis]
    if not tried:
        return []
    _, j, goes_left = min(tried, key=lambda t: (-t[0] * (gap - t[0]), t[1], not t[2]))
    left, right = piece.cut(j + 1)
    return [_Step(index, left, right) if goes_left else _Step(index, right, left)]


def _key(piece: Piece) -> tuple[int, int]:
    return piece.number, piece.first


def _slot(piece: Piece) -> int:
    assert piece.slot is not None, "it was given one"
    return piece.slot


def _check(ordered: list[Piece], slots: int, hysteresis: int, moves_max: int | None) -> None:
    if slots < 1:
        raise ValueError(f"pieces need at least one slot; seen {slots}")
    if hysteresis < 0 or (moves_max is not None and moves_max < 0):
        raise ValueError(f"hysteresis and moves_max are 0 or more; seen {hysteresis} and {moves_max}")
    for before, piece in pairwise(ordered):
        if _key(before) == _key(piece):
            raise ValueError(f"piece {piece.number} is there twice")
    for piece in ordered:
        if piece.slot is not None and piece.slot < 0:
            raise ValueError(f"piece {piece.number} is on slot {piece.slot}; slots count from 0")
