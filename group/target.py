"""PURE. The solver: which member shall own which points. A problem in plain numbers goes in, the shifts come out.

Aims, in order of precedence:

A. Every share that some member can handle has an able owner. Other shares wait.
B. A plan moves only the shares that have to move. An able owner keeps a share, unless that would break C.
C. Members are balanced: no step relieves the fullest member by enough. Idle members differ by one partition at most.
   Loaded members differ by a tenth of the mean, or by a share that can't be parted.
D. Whole partitions move first. A partition is parted only with a measured load, and only where parting pays. The parts
   are few and touch.
E. Between equal choices the lowest number wins: the order of a problem does not change the solution.

Phase 1: shares with an able owner stay. A *fixed* share stays in all phases, as a whole.

Phase 2: each share without an owner goes to the least full able member, the heaviest share first. A member that reads
the partition already pays nothing more for reading. A neighbour comes before its equals.

Phase 3: step by step the fullest member, the *giver*, gives to the least full able member, the *receiver*. The amount
brings the nearer of the two to the mean. Less is allowed, and up to a tenth of the mean more, where worth it. The giver
gives, in this order of preference:

- a whole share of at least half of the amount
- cells of the declared cut at an end of a band, next to the receiver's own band if possible, without idle cells at the
  end
- any whole share that fits
- cells of a partition that no further member may read: here the receiver is a present reader of the partition
- a whole share that is too heavy to fit, the lightest first

Idle points do not move to even out the cost of other points, unless the receiver has nothing at all. Between equals the
cheapest moves: without state and without a backlog. A member with nothing to give is put aside until others have given.

A step relieves the pair by at least half of the moved load or by a tenth of the mean. A pair is left alone if the
fuller member would be relieved by less than 1/``SLACK`` of the mean. Each step lowers the fullness of the fuller
member, so the steps end.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from ..keyrange.ranges import join_neighbours
from .books import IDLE, MILLI, Books, Entry, SharePiece, pieces_of
from .shares import UNIT_US, PlanMember, Share, Shift

SLACK: Final = 20
"""A pair is balanced if the fuller member would be relieved by at most 1/``SLACK`` of the mean, in whole units."""
GAIN: Final = 10
"""A plan for load alone relieves a member by more than 1/``GAIN`` of the mean. A step that relieves by less must
relieve by half of the moved load.
"""
GAIN_US: Final = 50_000
"""The least relief by a plan for load alone, and by parting a partition, in microseconds a second."""
LEAST_US: Final = UNIT_US // 4
"""The least relief by any step, in microseconds a second."""
BANDS_MAX: Final = 3
"""The most bands of a partition that a member may have."""
IDLE_LEAST: Final = 4
"""Idle cells at the outer end of a part stay if they are at least 1/``IDLE_LEAST`` of the part's cells."""
LOOK: Final = 16
"""The number of nearest candidates among which the best is chosen."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """The limits that make a step worth taking, as fullness. ``mean``: of all members; ``slack``: the relief up to
    which a pair is balanced; ``gain``: the relief above which a step pays in any case; ``floor``: as ``slack``, for a
    plan for load alone.
    """

    mean: int
    slack: int
    gain: int
    floor: int

    def is_balanced(self, books: Books, giver: int, receiver: int) -> bool:
        """Whether a pair is balanced: the giver would be relieved by too little, however much is given."""
        load, capacity = books.load, books.capacity
        together = (load[giver] + load[receiver]) * MILLI // (capacity[giver] + capacity[receiver])
        return books.full[giver] - together <= max(self.slack, self.floor)

    def pays(self, gain: int, moved: int) -> bool:
        """Whether a step pays. ``gain``: its relief; ``moved``: the moved load, as fullness of the giver."""
        return gain >= LEAST_US and (2 * gain >= moved or gain > self.gain)


class _Step(NamedTuple):
    """A piece goes to a member, or the cells ``[begin, end)`` of the piece go."""

    piece: SharePiece
    target: int
    gain: int
    cells: tuple[int, int] | None = None


@dataclass(slots=True)
class _Pair:
    """A giver and a receiver. ``wanted``: the load that brings the nearer of the two to the mean; ``most``: the largest
    load that is still good; ``half``: the load that makes both equally full.
    """

    books: Books
    terms: _Terms
    giver: int
    receiver: int
    wanted: int = field(init=False)
    most: int = field(init=False)
    half: int = field(init=False)

    def __post_init__(self) -> None:
        books = self.books
        mean = self.terms.mean
        giver = self.giver
        receiver = self.receiver
        had = books.capacity[giver]
        has = books.capacity[receiver]
        self.wanted = min(books.load[giver] - mean * had // MILLI, mean * has // MILLI - books.load[receiver])
        self.most = self.wanted + mean * min(had, has) // (MILLI * GAIN)
        self.half = (books.full[giver] - books.full[receiver]) * had * has // ((had + has) * MILLI)
        if self.wanted <= 0:  # both are on one side of the mean: the others are far on the other side
            self.wanted = self.most = self.half

    def gain(self, out: int, more: int) -> int:
        """The fall of the higher fullness of the two, if the giver loses ``out`` and the receiver's load rises by
        ``more``.
        """
        books = self.books
        after = max(books.fullness(self.giver, -out), books.fullness(self.receiver, more))
        return books.full[self.giver] - after

    def score(self, weight: int, wanted: int) -> int:
        """How much of the wanted load a weight provides. Excess counts against the weight."""
        return min(weight, wanted) - max(0, weight - wanted)

    def whole(self, *, is_more: bool) -> _Step | None:
        """The best step with a whole share that fits. ``is_more``: with one of the lightest shares too heavy to fit."""
        books, best, best_key = self.books, None, None
        for topic, ordered in sorted(books.owned[self.giver].items()):
            if not books.can(self.receiver, topic):
                continue
            excess = books.by_topic[self.giver, topic] - books.by_topic[self.receiver, topic]
            for piece in _above(ordered, self.most) if is_more else _nearest(ordered, self.most):
                out, more = books.loses(piece), books.takes(self.receiver, piece.place, piece.weight)
                gain = self.gain(out, more)
                if not self.terms.pays(gain, out * MILLI // books.capacity[self.giver]) or not self._may_have(piece):
                    continue
                # A piece without a working owner costs nothing to move. Between equals a piece beside the receiver's
                # own comes first, then a piece of the topic of which the giver has most in excess of the receiver.
                cost_us = piece.cost_us if piece.is_owned else 1
                score = self.score(piece.weight, self.wanted)
                worth = score * 1_000_000 // cost_us if score > 0 else score * cost_us
                is_near = self.receiver in books.neighbours(piece)
                key = (-worth, not is_near, -excess, cost_us, piece.number, piece.first)
                if best_key is None or key < best_key:
                    best, best_key = _Step(piece, self.receiver, gain), key
        return best

    def _may_have(self, piece: SharePiece) -> bool:
        """Whether the receiver may have a whole piece: one with load, within the most readers and bands of a place."""
        books, place = self.books, piece.place
        if books.load[self.receiver] and books.is_idle(piece):
            return False
        if len(books.pieces[place]) == 1:
            return True
        left_and_right = books.neighbours(piece)
        is_inside = left_and_right == (self.giver, self.giver)
        return (
            books.may_read(self.receiver, place, self.giver if books.is_last(piece) else 0)
            and books.bands(self.receiver, place) + (self.receiver not in left_and_right) <= BANDS_MAX
            and books.bands(self.giver, place) + is_inside <= BANDS_MAX
        )

    def part(self, pieces: Iterable[SharePiece]) -> _Step | None:
        """The best step with a part of one of the pieces. The part lies at an end of a band of the giver, so the giver
        keeps one band there. If idle cells at the end stay behind, the giver keeps two bands.
        """
        books, best, best_key = self.books, None, None
        for piece in pieces:
            if not books.can(self.receiver, piece.place[0]) or not books.may_read(self.receiver, piece.place, 0):
                continue
            ends = books.neighbours(piece)
            has = books.bands(self.receiver, piece.place)
            for is_last, owner in enumerate(ends):
                if owner == self.giver or has + (owner != self.receiver) > BANDS_MAX:
                    continue
                step = self._at_an_end(piece, is_last=bool(is_last))
                if step is None:
                    continue
                if owner != self.receiver and books.bands(self.giver, piece.place) < BANDS_MAX:
                    step = _without_idle_end(step, is_last=bool(is_last))
                rank = 0 if owner == self.receiver else 1 if not has else 2
                worth = step.gain * 1_000_000 // (piece.cost_us if piece.is_owned else 1)
                key = (rank, -worth, piece.number, piece.first, is_last)
                if best_key is None or key < best_key:
                    best, best_key = step, key
        return best

    def _at_an_end(self, piece: SharePiece, *, is_last: bool) -> _Step | None:
        """The step with a part at an end of the piece: the first cells, or the last. The load of the part is nearest to
        ``wanted``, else to ``most``, else to ``half``: the first that relieves by enough. None: no load does.
        """
        cells = piece.slices[::-1] if is_last else piece.slices
        sums = [*accumulate(weight for _, weight in cells)][:-1]
        for wanted in (self.wanted, self.most, self.half):
            at = bisect_left(sums, wanted)
            near = [n for n in (at - 1, at) if 0 <= n < len(sums)]
            n = max(near, key=lambda n: (self.score(sums[n], wanted), -n))
            gain = self.gain(sums[n], self.books.takes(self.receiver, piece.place, sums[n]))
            if gain > max(GAIN_US - 1, self.terms.gain):
                count = len(cells)
                return _Step(piece, self.receiver, gain, (count - n - 1, count) if is_last else (0, n + 1))
        return None


def _without_idle_end(step: _Step, *, is_last: bool) -> _Step:
    """The step without the nearly idle cells at its outer end, if the idle cells are many."""
    assert step.cells is not None, "a part"
    begin, end = step.cells
    weights = [weight for _, weight in step.piece.slices[begin:end]]
    idle_most = sum(weights) // IDLE
    outer = weights[::-1] if is_last else weights
    idle = bisect_right([*accumulate(outer)], idle_most)
    if idle * IDLE_LEAST < len(weights):
        return step
    return step._replace(cells=(begin, end - idle) if is_last else (begin + idle, end))


def solve(
    members: Collection[PlanMember], shares: Sequence[Share], *, balances: bool = True, floor_us: int = 0
) -> list[Shift]:
    """The shifts that solve the problem, in order of the shares.

    Shares without an able owner are always given to a member. ``balances``: whether the members are balanced, too.
    ``floor_us``: unless 0, shifts between members are dropped if no member is relieved by more than a tenth of the mean
    and by more than ``floor_us``, in microseconds a second. Raises ValueError for two members of one incarnation.
    """
    if len({member.incarnation for member in members}) != len(members):
        raise ValueError(f"each incarnation is there once; seen {sorted(t.incarnation for t in members)}")
    ordered = sorted(shares, key=lambda share: share[:4])
    books = Books(members, ordered)
    owned = {n for n, share in enumerate(ordered) if books.can(share.owner, share.topic)}
    unowned: list[SharePiece] = []
    pieces = [piece for piece in pieces_of(ordered, owned) if books.is_able(piece.place[0])]
    for piece in pieces:
        if piece.is_owned:
            books.give(piece, piece.owner)
        else:
            unowned.append(piece)
    terms = _terms(books, sum(piece.weight for piece in unowned), floor_us)
    for piece in sorted(unowned, key=lambda piece: (-piece.weight, piece.number)):
        books.give(piece, _new_owner(books, piece, terms.slack))
    if balances:
        only_given = _shifts(books, ordered)
        before = books.full.copy()
        _level(books, _terms(books, 0, floor_us))
        relief = max((before[i] - full for i, full in books.full.items()), default=0)
        if floor_us and relief <= max(terms.gain, floor_us):
            return only_given
    return _shifts(books, ordered)


def _terms(books: Books, more: int, floor_us: int) -> _Terms:
    """The limits of the steps. ``more``: load that no member has yet."""
    capacity = sum(books.capacity.values())
    mean = (sum(books.load.values()) + more) * MILLI // capacity if capacity else 0
    return _Terms(mean, mean // SLACK // UNIT_US * UNIT_US, mean // GAIN // UNIT_US * UNIT_US, floor_us)


def _new_owner(books: Books, piece: SharePiece, slack: int) -> int:
    """The member that gets a share without an owner: the least full member, or a neighbour that is hardly fuller."""
    place, around = piece.place, books.neighbours(piece)
    topic = place[0]
    able = {*books.least_full(topic, LOOK), *(i for i in books.readers(place) if books.can(i, topic))}
    fitting = {i for i in able if books.may_read(i, place, 0) and (i in around or books.bands(i, place) < BANDS_MAX)}

    def after(incarnation: int) -> int:
        return books.fullness(incarnation, books.takes(incarnation, place, piece.weight))

    least = min(map(after, fitting or able))
    return min(
        (i for i in fitting or able if after(i) <= least or (i in around and after(i) <= least + slack)),
        key=lambda i: (i not in around, after(i), books.by_topic[i, topic], i),
    )


def _level(books: Books, terms: _Terms) -> None:
    """Take steps until no step is worth taking. A member without a step is put aside. When no giver is left, the
    members put aside are tried once more, if a step was taken meanwhile.
    """
    was_aside = False
    books.put_back()
    while True:
        if not books.givers:
            if not was_aside:
                return
            books.put_back()
            was_aside = False
        giver = books.givers[-1][1]
        step = _step_of(books, terms, giver)
        if step is None:
            books.put_aside()
            continue
        _do(books, terms, step)
        was_aside = was_aside or len(books.givers) < len(books.members)


def _step_of(books: Books, terms: _Terms, giver: int) -> _Step | None:
    """The best step of the giver; None: no step of the giver is worth taking."""
    pieces = [piece for _, _, _, piece in books.partable[giver][-LOOK:]]
    pairs = [
        _Pair(books, terms, giver, receiver)
        for receiver in books.least_full_of_all()
        if receiver != giver and not terms.is_balanced(books, giver, receiver)
    ]
    for pair in pairs:
        step = pair.whole(is_more=False)
        if step is None or 2 * step.piece.weight < pair.wanted:  # many light shares would move for the amount
            step = pair.part(pieces) or step
        if step is not None:
            return step
    for piece in pieces:  # the receivers may not become further readers: the present readers may take a part
        for reader in books.readers(piece.place):
            if reader != giver and not terms.is_balanced(books, giver, reader):
                step = _Pair(books, terms, giver, reader).part([piece])
                if step is not None:
                    return step
    return next((step for pair in pairs if (step := pair.whole(is_more=True)) is not None), None)


def _do(books: Books, terms: _Terms, step: _Step) -> None:
    """Take a step: cut the piece if only some cells go, and give the rest back to the giver."""
    piece, giver = step.piece, step.piece.owner
    gain = step.gain / terms.mean
    books.take(piece)
    if step.cells is not None:
        begin, end = step.cells
        if end < len(piece.slices):
            piece, stays = books.cut(piece, end)
            books.give(stays, giver)
        if begin:
            stays, piece = books.cut(piece, begin)
            books.give(stays, giver)
    piece.gain = gain if piece.is_owned else 0.0
    books.give(piece, step.target)


def _nearest(ordered: list[Entry], most: int) -> Iterator[SharePiece]:
    """Yield the heaviest pieces up to a limit, from pieces in order of weight. Equal pieces come in order."""
    end = bisect_right(ordered, (most + 1,))  # a shorter tuple sorts before the entry
    looked = 0
    while end and looked < LOOK:
        begin = bisect_left(ordered, (ordered[end - 1][0],), hi=end)
        for entry in ordered[begin : min(end, begin + LOOK - looked)]:
            looked += 1
            yield entry[3]
        end = begin


def _above(ordered: list[Entry], most: int) -> Iterator[SharePiece]:
    """The lightest pieces above a limit."""
    begin = bisect_right(ordered, (most + 1,))  # a shorter tuple sorts before the entry
    return (entry[3] for entry in ordered[begin : begin + LOOK])


def _shifts(books: Books, shares: Sequence[Share]) -> list[Shift]:
    """Pieces with a new owner. Touching pieces of a share for the same member are joined."""
    found: list[Shift] = []
    for piece in sorted((p for over in books.pieces.values() for p in over), key=lambda p: (p.number, p.first)):
        share = shares[piece.number]
        if piece.owner == share.owner:
            continue
        found.append(
            Shift(
                share=share,
                first=piece.first,
                end=piece.end,
                target=piece.owner,
                gain=piece.gain,
                cost_us=piece.cost_us,
            )
        )
    return join_neighbours(found, _join_shifts)


def _join_shifts(left: Shift, right: Shift) -> Shift | None:
    if left.share is not right.share or left.target != right.target:
        return None
    return left._replace(end=right.end, gain=max(left.gain, right.gain), cost_us=left.cost_us + right.cost_us)
