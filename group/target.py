"""PURE. What shall be: which member owns what. A problem in plain numbers goes in, the shifts that solve it come out.

Wanted, in this order:

A. Everything that somebody can handle has an owner who can; what nobody can handle waits.
B. What need not move stays: who can handle it keeps it, unless that would break C.
C. Members are level: no step relieves the fullest member by enough. An idle group differs by one partition at most; one
   with load by a tenth of the mean, or by what can't be parted.
D. Whole partitions move first. One is parted where its load was measured and that pays; its parts are few and touch.
E. Of several equal choices the first by number: the same problem in any order has the same solution.

Phases: (1) what is owned rightly stays; what is *fixed* does so in all phases, as a whole. (2) What has no owner goes
to the least full member that can handle it, the heaviest first; whoever reads the partition already pays nothing for it
again, and a neighbour goes before its equals. (3) Step by step the fullest member gives to the least full one that can
handle it: as much as brings one of them to the mean, and a tenth of the mean more or less where that is worth it. That
is a whole share that is at least half of it, else cells of the declared cut at an end of a band, beside what the taker
has of that partition if it can be, without idle ones at that end, else any whole share that fits. Idle points do not
move for what others cost, unless the taker has nothing at all. Of equals what costs least moves: without state, and
without a backlog. Who can give nothing is put aside until others have given.

The least step relieves the pair by half of what moves or by a tenth of the mean; and a pair is left alone whose fuller
one would be relieved by less than ``SLACK`` of the mean. Each step lowers the fullness of the fuller of the two, so
there is an end.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from .books import IDLE, MILLI, Books, Entry, SharePiece, pieces_of
from .shares import UNIT_US, Share, Shift, Taker

SLACK: Final = 20
"""A pair is level when its fuller one would be relieved by less than this part of the mean fullness, in whole units."""
GAIN: Final = 10
"""A plan for load alone relieves somebody by more than this part of the mean; a step by less is worth half of what it
moves."""
GAIN_US: Final = 50_000
"""The same in microseconds a second; a partition is parted for no less."""
LEAST_US: Final = UNIT_US // 4
"""No step is worth less."""
BANDS_MAX: Final = 3
"""So many bands of a partition a member may have."""
IDLE_LEAST: Final = 4
"""Of a part that is to go, idle cells at its outer end stay if they are at least one such part of its cells."""
LOOK: Final = 16
"""Of so many that are nearest to what is wanted the best is taken."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """When a step is worth it. ``mean``, ``slack``, ``gain``, ``floor``: fullness."""

    mean: int
    slack: int
    gain: int
    floor: int = 0

    def is_level(self, books: Books, giver: int, taker: int) -> bool:
        """Whether the fuller one would be relieved by too little, however much is given."""
        together = (books.load[giver] + books.load[taker]) * MILLI // (books.capacity[giver] + books.capacity[taker])
        return books.full[giver] - together <= max(self.slack, self.floor)

    def pays(self, gain: int, moved: int) -> bool:
        """Whether a step that moves so much of the giver's fullness is worth it."""
        return gain >= LEAST_US and (2 * gain >= moved or gain > self.gain)


class _Step(NamedTuple):
    """A piece goes to a member; or its cells ``[begin, end)`` do."""

    piece: SharePiece
    target: int
    gain: int
    cells: tuple[int, int] | None = None


@dataclass(slots=True)
class _Pair:
    """What one member gives to another. ``wanted``: load that would bring one of them to the mean; ``most``: so much is
    well, too; ``half``: what makes the two equal.
    """

    books: Books
    terms: _Terms
    giver: int
    taker: int
    wanted: int = field(init=False)
    most: int = field(init=False)
    half: int = field(init=False)

    def __post_init__(self) -> None:
        books, mean, giver, taker = self.books, self.terms.mean, self.giver, self.taker
        had, has = books.capacity[giver], books.capacity[taker]
        self.wanted = min(books.load[giver] - mean * had // MILLI, mean * has // MILLI - books.load[taker])
        self.most = self.wanted + mean * min(had, has) // (MILLI * GAIN)
        self.half = (books.full[giver] - books.full[taker]) * had * has // ((had + has) * MILLI)
        if self.wanted <= 0:  # the mean is that of others
            self.wanted = self.most = self.half

    def gain(self, out: int, more: int) -> int:
        """By how much the fuller one is relieved."""
        books = self.books
        after = max(books.fullness(self.giver, -out), books.fullness(self.taker, more))
        return books.full[self.giver] - after

    def score(self, weight: int, wanted: int) -> int:
        """How much of what is wanted it is; what is too much counts against it."""
        return min(weight, wanted) - max(0, weight - wanted)

    def whole(self, *, is_more: bool) -> _Step | None:
        """The best share that fits; ``is_more``: the least of those that are more than what fits."""
        books, best, best_key = self.books, None, None
        for topic, ordered in sorted(books.owned[self.giver].items()):
            if not books.can(self.taker, topic):
                continue
            excess = books.by_topic[self.giver, topic] - books.by_topic[self.taker, topic]
            for piece in _above(ordered, self.most) if is_more else _nearest(ordered, self.most):
                out, more = books.loses(piece), books.takes(self.taker, piece.place, piece.weight)
                gain = self.gain(out, more)
                if not self.terms.pays(gain, out * MILLI // books.capacity[self.giver]) or not self._may_have(piece):
                    continue
                worth = self.score(piece.weight, self.wanted) * 1_000_000 // (piece.cost_us if piece.is_owned else 1)
                is_near = self.taker in books.neighbours(piece)
                key = (-worth, not is_near, -excess, piece.number, piece.first)
                if best_key is None or key < best_key:
                    best, best_key = _Step(piece, self.taker, gain), key
        return best

    def _may_have(self, piece: SharePiece) -> bool:
        books, place = self.books, piece.place
        if books.load[self.taker] and books.is_idle(piece):
            return False
        if len(books.pieces[place]) == 1:
            return True
        left_and_right = books.neighbours(piece)
        is_inside = left_and_right == (self.giver, self.giver)
        return (
            books.may_read(self.taker, place, self.giver if books.is_last(piece) else 0)
            and books.bands(self.taker, place) + (self.taker not in left_and_right) <= BANDS_MAX
            and books.bands(self.giver, place) + is_inside <= BANDS_MAX
        )

    def part(self, pieces: Iterable[SharePiece]) -> _Step | None:
        """The best part of one of these; at an end of a band of the giver, so what is left is one band, or two if that
        end is idle.
        """
        books, best, best_key = self.books, None, None
        for piece in pieces:
            if not books.can(self.taker, piece.place[0]) or not books.may_read(self.taker, piece.place, 0):
                continue
            ends = books.neighbours(piece)
            has = books.bands(self.taker, piece.place)
            for is_last, owner in enumerate(ends):
                if owner == self.giver or has + (owner != self.taker) > BANDS_MAX:
                    continue
                step = self._at_an_end(piece, is_last=bool(is_last))
                if step is None:
                    continue
                if owner != self.taker and books.bands(self.giver, piece.place) < BANDS_MAX:
                    step = _without_idle_end(step, is_last=bool(is_last))
                rank = 0 if owner == self.taker else 1 if not has else 2
                worth = step.gain * 1_000_000 // (piece.cost_us if piece.is_owned else 1)
                key = (rank, -worth, piece.number, piece.first, is_last)
                if best_key is None or key < best_key:
                    best, best_key = step, key
        return best

    def _at_an_end(self, piece: SharePiece, *, is_last: bool) -> _Step | None:
        """As many of its first cells as come nearest to what is wanted, or of its last ones."""
        cells = piece.cells[::-1] if is_last else piece.cells
        sums = [*accumulate(weight for _, weight in cells)][:-1]
        for wanted in (self.wanted, self.most, self.half):
            at = bisect_left(sums, wanted)
            near = [n for n in (at - 1, at) if 0 <= n < len(sums)]
            n = max(near, key=lambda n: (self.score(sums[n], wanted), -n))
            gain = self.gain(sums[n], self.books.takes(self.taker, piece.place, sums[n]))
            if gain > max(GAIN_US - 1, self.terms.gain):
                count = len(cells)
                return _Step(piece, self.taker, gain, (count - n - 1, count) if is_last else (0, n + 1))
        return None


def _without_idle_end(step: _Step, *, is_last: bool) -> _Step:
    """Cells at an end of a piece without those at that end that have next to no load, where these are many of them."""
    assert step.cells is not None, "a part"
    begin, end = step.cells
    weights = [weight for _, weight in step.piece.cells[begin:end]]
    idle_most = sum(weights) // IDLE
    outer = weights[::-1] if is_last else weights
    idle = bisect_right([*accumulate(outer)], idle_most)
    if idle * IDLE_LEAST < len(weights):
        return step
    return step._replace(cells=(begin, end - idle) if is_last else (begin + idle, end))


def solve(takers: Collection[Taker], shares: Sequence[Share], *, levels: bool = True, floor_us: int = 0) -> list[Shift]:
    """The shifts that bring about what shall be, in order of the shares; those with no owner who can handle them
    included, and without ``levels`` only those. ``floor_us``: none between members that relieve nobody by a tenth of
    the mean, and by so much. Raises ValueError for two takers of one incarnation.
    """
    if len({taker.incarnation for taker in takers}) != len(takers):
        raise ValueError(f"each incarnation is there once; seen {sorted(t.incarnation for t in takers)}")
    ordered = sorted(shares, key=lambda share: share[:4])
    books = Books(takers, ordered)
    rightly = {n for n, share in enumerate(ordered) if books.can(share.owner, share.topic)}
    homeless: list[SharePiece] = []
    pieces = [piece for piece in pieces_of(ordered, rightly) if books.is_able(piece.place[0])]
    for piece in pieces:
        if piece.is_owned:
            books.give(piece, piece.owner)
        else:
            homeless.append(piece)
    terms = _terms(books, sum(piece.weight for piece in homeless), floor_us)
    for piece in sorted(homeless, key=lambda piece: (-piece.weight, piece.number)):
        books.give(piece, _home(books, piece, terms.slack))
    if levels:
        settled = _shifts(books, ordered)
        before = books.full.copy()
        _level(books, _terms(books, 0, floor_us))
        relieved = max((before[i] - full for i, full in books.full.items()), default=0)
        if floor_us and relieved <= max(terms.gain, floor_us):
            return settled
    return _shifts(books, ordered)


def _terms(books: Books, more: int, floor_us: int) -> _Terms:
    capacity = sum(books.capacity.values())
    mean = (sum(books.load.values()) + more) * MILLI // capacity if capacity else 0
    return _Terms(mean, mean // SLACK // UNIT_US * UNIT_US, mean // GAIN // UNIT_US * UNIT_US, floor_us)


def _home(books: Books, piece: SharePiece, slack: int) -> int:
    """Where what has no owner goes."""
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
    """Step after step, until none is worth it."""
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
        was_aside = was_aside or len(books.givers) < len(books.takers)


def _step_of(books: Books, terms: _Terms, giver: int) -> _Step | None:
    """What the fullest member gives, and to whom."""
    pieces = [piece for _, _, _, piece in books.partable[giver][-LOOK:]]
    pairs = [
        _Pair(books, terms, giver, taker)
        for taker in books.least_full_of_all()
        if taker != giver and not terms.is_level(books, giver, taker)
    ]
    for pair in pairs:
        step = pair.whole(is_more=False)
        if step is None or 2 * step.piece.weight < pair.wanted:  # many with little load would move for it
            step = pair.part(pieces) or step
        if step is not None:
            return step
    for piece in pieces:  # nobody else may read it
        for reader in books.readers(piece.place):
            if reader != giver and not terms.is_level(books, giver, reader):
                step = _Pair(books, terms, giver, reader).part([piece])
                if step is not None:
                    return step
    return next((step for pair in pairs if (step := pair.whole(is_more=True)) is not None), None)


def _do(books: Books, terms: _Terms, step: _Step) -> None:
    """Take a step."""
    piece, giver = step.piece, step.piece.owner
    gain = step.gain / terms.mean
    books.take(piece)
    if step.cells is not None:
        begin, end = step.cells
        if end < len(piece.cells):
            piece, stays = books.cut(piece, end)
            books.give(stays, giver)
        if begin:
            stays, piece = books.cut(piece, begin)
            books.give(stays, giver)
    piece.gain = gain if piece.is_owned else 0.0
    books.give(piece, step.target)


def _nearest(ordered: list[Entry], most: int) -> Iterator[SharePiece]:
    """Of pieces in order of weight the heaviest ones up to a limit, of equal ones the first."""
    end = bisect_right(ordered, (most + 1,))  # shorter, and so less
    looked = 0
    while end and looked < LOOK:
        begin = bisect_left(ordered, (ordered[end - 1][0],), hi=end)
        for entry in ordered[begin : min(end, begin + LOOK - looked)]:
            looked += 1
            yield entry[3]
        end = begin


def _above(ordered: list[Entry], most: int) -> Iterator[SharePiece]:
    """The lightest ones above a limit."""
    begin = bisect_right(ordered, (most + 1,))  # shorter, and so less
    return (entry[3] for entry in ordered[begin : begin + LOOK])


def _shifts(books: Books, shares: Sequence[Share]) -> list[Shift]:
    """What is somebody else's now; parts of one share that touch and go to one member are one."""
    found: list[Shift] = []
    for piece in sorted((p for over in books.pieces.values() for p in over), key=lambda p: (p.number, p.first)):
        share = shares[piece.number]
        if piece.owner == share.owner:
            continue
        shift = Shift(share, piece.first, piece.end, piece.owner, piece.gain, piece.cost_us)
        before = found[-1] if found else None
        if before is not None and before.share is share and (before.end, before.target) == (shift.first, shift.target):
            costs = before.cost_us + shift.cost_us
            found[-1] = before._replace(end=shift.end, gain=max(before.gain, shift.gain), cost_us=costs)
        else:
            found.append(shift)
    return found
