"""PURE. Changes of ranges while the process runs: wishes for a release, a split or a merge, and their answers.

A caller that wants a range released, split or merged hands in a wish. The commit cycle looks at the wishes between two
transactions, on workers whose finished records a generation has just taken. A wish whose time has come changes the
dispatch, and the changes are written with the generation. Each wish gets one answer: refused, or settled when the last
of its changes is committed.

A release begins with its wish: from then on no record of the range is begun. A release may take several steps: each
look releases the workers that run nothing and whose done records are all taken. A partition declared with one worker is
released as a whole.

A grant is taken up at once, in any situation. The new workers are written in front of the next generation, in the
*opening*. The opening also has the splits of workers that lie across the border of a release.

Precedence between wishes for the same points: a release ends a hold, and refuses splits and merges. A split waits while
its worker has a hold, for a bounded time. A merge waits while another merge holds one of its workers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ...keyrange.ranges import KeyRange, even_bounds
from ...keyrange.steps import Steps
from ...offsets.event_values import NO_MOVE
from ...offsets.ledger import EpochPart
from .cut import (
    Change,
    are_releasable,
    begin_hold,
    cut,
    end_hold,
    groups_to_merge,
    have_one_edge,
    hold_at_ends,
    hot_bounds,
    merge,
    release,
    split,
    split_at_borders,
    workers_within,
)
from .dispatch import PartitionDispatch
from .worker import Worker

HOLD_PAUSE = 4
"""After a hold without a merge, no hold for the wanted cut begins in the partition for this many lengths of a hold."""

EPOCH_ANY = 1 << 62
"""Above all epochs."""

_ONE_WORKER = even_bounds(1)
"""The cut of a partition that runs one record at a time: a release gives it up as a whole, even where it was split."""


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseWish:
    """Give up this process's workers in the range ``within``, under grants up to ``epoch``, for the move ``move``.
    ``wanted``: the bounds of the declared cut.
    """

    dispatch: PartitionDispatch
    within: KeyRange
    wanted: Sequence[int] = ()
    move: int = NO_MOVE
    epoch: int = EPOCH_ANY


@dataclass(frozen=True, slots=True, eq=False)
class SplitWish:
    """Cut the worker that owns both sides of a point."""

    dispatch: PartitionDispatch
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class MergeWish:
    """Merge the workers that make up a range into a single worker."""

    dispatch: PartitionDispatch
    within: KeyRange


Wish: TypeAlias = ReleaseWish | SplitWish | MergeWish
"""A wish for a change. Two wishes with equal fields are two wishes."""


@dataclass(slots=True, eq=False)
class LeavingRange:
    """The rest of a release. ``workers``: not released yet; they begin no record. ``hot``: the bounds where workers met
    before the release, without the bounds of the declared cut.
    """

    workers: list[Worker]
    hot: frozenset[int]


@dataclass(slots=True, eq=False)
class MergeHold:
    """Neighbours to be merged, on hold until all have one edge, at most until ``until_s``. ``wish``: None for the
    merge to the wanted cut.
    """

    dispatch: PartitionDispatch
    workers: list[Worker]
    until_s: float
    wish: MergeWish | None = None


@dataclass(slots=True)
class Reshaped:
    """The result of one look at the wishes: changes and their heirs belong to the generation that was just taken."""

    changes: list[Change] = field(default_factory=list)
    heirs: list[tuple[Worker, int]] = field(default_factory=list)
    """Workers made by the changes, each with the offset where it goes on."""
    ready: list[tuple[PartitionDispatch, list[Worker]]] = field(default_factory=list)
    """Idle workers that may run now; marked active."""
    refused: list[tuple[Wish, str]] = field(default_factory=list)
    """Refused wishes, each with the reason."""

    def refuse(self, wish: Wish, why: str) -> None:
        """Refuse a wish, with the reason ``why``."""
        self.refused.append((wish, f"{wish.dispatch.label}: {why}"))

    def refuse_merge(self, held: MergeHold, why: str) -> None:
        """End a hold without a merge, and refuse the hold's wish."""
        end_hold(held.workers)
        if held.wish is not None:
            self.refuse(held.wish, f"{KeyRange(held.workers[0].first, held.workers[-1].end)} {why}")


class Wishes:
    """The open wishes of all partitions of a process. A merge holds its workers at most ``merge_hold_ms``."""

    def __init__(self, merge_hold_ms: int) -> None:
        self.merge_hold_ms = merge_hold_ms
        self.leaving: dict[ReleaseWish, LeavingRange] = {}
        self.uncommitted_releases: list[tuple[PartitionDispatch, KeyRange]] = []
        """Ranges released in a generation that is not committed yet."""
        self.splitting: list[SplitWish] = []
        self.merging: list[MergeWish] = []
        self.holds: list[MergeHold] = []
        self.wanted: dict[PartitionDispatch, tuple[int, ...]] = {}
        """The bounds of the cut to which a partition's workers are merged."""
        self._hold_after_s: dict[PartitionDispatch, float] = {}
        """The earliest time of a partition's next hold for the wanted cut, in seconds."""
        self._staying: set[PartitionDispatch] = set()
        """Partitions with workers whose release or hold was ended: the workers may be runnable again."""
        self._fulfilled: list[Wish] = []
        """Wishes that are fulfilled in a generation that is not committed yet."""
        self._opening: list[Change] = []
        """The opening of the next generation."""
        self._heirs: list[tuple[Worker, int]] = []
        """Workers that the opening's splits made, each with the offset where it goes on."""
        self._refused: list[tuple[Wish, str]] = []
        """Refused wishes, for the result of the next look."""

    # --- wishes come in ----------------------------------------------------------------------------------------------

    def ask(self, wish: Wish) -> None:
        """Take a wish in. A release begins at once; the commit cycle looks at the other wishes. Raises ValueError when
        there is nothing to release, or when the wish needs a range that is being given up.
        """
        dispatch = wish.dispatch
        match wish:
            case ReleaseWish():
                self._begin_leaving(wish)
            case SplitWish():
                if any(w.first < wish.at < w.end for w in self._leaving_of(dispatch)):
                    raise ValueError(f"{dispatch.label}: {wish.at:08x} can't be split at: its range is being given up")
                self.splitting.append(wish)
            case MergeWish():
                if self._is_leaving(dispatch, wish.within):
                    raise ValueError(f"{dispatch.label}: {wish.within} can't be merged: it is being given up")
                self.merging.append(wish)

    def withdraw(self, wish: Wish) -> None:
        """Withdraw a wish: its caller waits for no answer any more. A split, or a merge without a hold yet, is
        forgotten. Workers that a release has not released yet run on.
        """
        if isinstance(wish, ReleaseWish) and wish in self.leaving:
            end_hold(self.leaving.pop(wish).workers)
            self._staying.add(wish.dispatch)
        self.splitting = [other for other in self.splitting if other is not wish]
        self.merging = [other for other in self.merging if other is not wish]

    def add_grant(
        self,
        dispatch: PartitionDispatch,
        epoch: int,
        part: EpochPart | None,
        within: Iterable[KeyRange],
        wanted: Sequence[int],
    ) -> None:
        """Add workers for ranges of a grant at once, by the bounds of the wanted cut. ``part``: the ledger's part of
        ``epoch``. Raises ValueError when the epoch is no grant to this process, or a worker has points of the ranges.
        """
        if part is None or part.incarnation != dispatch.incarnation:
            raise ValueError(f"{dispatch.label}: epoch {epoch} is no grant to this process")
        ranges = list(within)
        if (worker := _worker_inside(dispatch, ranges)) is not None:
            raise ValueError(f"{dispatch.label}: epoch {epoch} overlaps worker {worker.number}, which is not released")
        before = self._kept_bounds(dispatch)
        self._opening += add_granted(dispatch, part, ranges, wanted)
        self.wanted[dispatch] = tuple(sorted({*wanted, *part.granted_bounds, *before}))

    # --- wishes are answered -----------------------------------------------------------------------------------------

    def take_opening(self) -> tuple[list[Change], list[tuple[Worker, int]]]:
        """Take the opening of the next generation, and the workers that the opening's splits made."""
        opened, self._opening, self._heirs = (self._opening, self._heirs), [], []
        return opened

    def change(self, now: float) -> Reshaped:
        """Release finished workers, merge neighbours with one edge, split: written with the last taken generation."""
        reshaped = Reshaped(refused=self._refused)
        self._refused = []
        changed: dict[PartitionDispatch, None] = dict.fromkeys(self._staying)
        self._staying = set()
        for leaving in list(self.leaving):
            self._leave(leaving, reshaped)
        for held in list(self.holds):
            if self._end_hold(held, now, reshaped):
                self.holds.remove(held)
                changed[held.dispatch] = None
        for splitting in list(self.splitting):
            if self._split(splitting, reshaped):
                self.splitting.remove(splitting)
                changed[splitting.dispatch] = None
        reshaped.ready = [(dispatch, dispatch.runnable()) for dispatch in changed]
        return reshaped

    def begin_holds(self, now: float) -> Reshaped:
        """Begin holds on neighbours to be merged, for a bounded time each: first by wishes; then, in partitions without
        a hold or a release, on neighbours in the same range of the wanted cut.
        """
        reshaped = Reshaped()
        until_s = now + self.merge_hold_ms / 1000
        self.merging = [wish for wish in self.merging if not self._begin_merge(wish, until_s, reshaped)]
        busy = {held.dispatch for held in self.holds} | {leaving.dispatch for leaving in self.leaving}
        for dispatch, wanted in list(self.wanted.items()):
            if dispatch in busy or now < self._hold_after_s.get(dispatch, 0.0):
                continue
            groups = groups_to_merge(dispatch, wanted)
            if not groups:
                del self.wanted[dispatch]
            self.holds += [MergeHold(dispatch, group, until_s) for group in groups if begin_hold(group)]
        return reshaped

    def settle(self) -> list[Wish]:
        """The generation was committed: return the wishes fulfilled in it."""
        self.uncommitted_releases.clear()
        settled, self._fulfilled = self._fulfilled, []
        return settled

    def _kept_bounds(self, dispatch: PartitionDispatch) -> Iterable[int]:
        """The bounds of the present workers that stay when workers are merged to the wanted cut."""
        workers = dispatch.workers
        return self.wanted.get(dispatch) or {bound for worker in workers for bound in (worker.first, worker.end)}

    def _begin_leaving(self, wish: ReleaseWish) -> None:
        """Begin a release: end holds in its range, cut workers at its borders, and have its workers begin no record."""
        dispatch, within = wish.dispatch, wish.within
        if not self._to_leave(wish):
            raise ValueError(f"{dispatch.label}: nothing of {within} is held here that is not given up already")
        for held in [h for h in self.holds if h.dispatch is dispatch]:
            if any(_common(within, worker) for worker in held.workers):
                # The refusal comes with the result of the next look.
                Reshaped(refused=self._refused).refuse_merge(held, f"is not merged while {within} is being given up")
                self.holds.remove(held)
                self._staying.add(dispatch)
        hot = hot_bounds(dispatch.workers, wish.wanted)  # of all workers: some neighbours leave by another wish
        parted = split_at_borders(dispatch, within, self._leaving_of(dispatch))
        if parted:
            self._opening += parted
            self._heirs += [(worker, worker.taken_to) for worker in dispatch.workers]
        workers = self._to_leave(wish)
        self.leaving[wish] = LeavingRange(workers, hot)
        hold_at_ends(dispatch, workers)

    def _to_leave(self, wish: ReleaseWish) -> list[Worker]:
        """The workers that the wish is to release, in order of points."""
        leaving = self._leaving_of(wish.dispatch)
        workers = (worker for worker in wish.dispatch.workers if _common(wish.within, worker))
        return [worker for worker in workers if worker.epoch <= wish.epoch and worker not in leaving]

    def has_releasable(self, wish: ReleaseWish) -> bool:
        """Whether a worker of a release runs nothing, and can be released."""
        idle = (worker.running is None for worker in self.leaving[wish].workers)
        return all(idle) if _goes_whole(wish) else any(idle)

    def _leave(self, wish: ReleaseWish, reshaped: Reshaped) -> None:
        """Release the workers of a wish that are finished; the wish is fulfilled with the last one."""
        dispatch, leaving = wish.dispatch, self.leaving[wish]
        through = [worker for worker in leaving.workers if are_releasable([worker])]
        if _goes_whole(wish) and len(through) < len(leaving.workers):
            return
        if through:
            leaving.workers = [worker for worker in leaving.workers if worker not in through]
            reshaped.changes += release(dispatch, through, leaving.hot, wish.move)
            self.uncommitted_releases += [(dispatch, KeyRange(worker.first, worker.end)) for worker in through]
        if not leaving.workers:
            del self.leaving[wish]
            self._fulfilled.append(wish)

    def _leaving_of(self, dispatch: PartitionDispatch) -> set[Worker]:
        """The workers of a partition that are being given up."""
        return {worker for wish, one in self.leaving.items() if wish.dispatch is dispatch for worker in one.workers}

    def _is_leaving(self, dispatch: PartitionDispatch, within: KeyRange) -> bool:
        return any(_common(within, worker) for worker in self._leaving_of(dispatch))

    def _end_hold(self, held: MergeHold, now: float, reshaped: Reshaped) -> bool:
        """Merge the workers of a hold, or end the hold when its time is up. Returns whether the hold is over."""
        if have_one_edge(held.workers) and all(w.taken_to == w.hold_at for w in held.workers):
            heir, changes = merge(held.dispatch, held.workers)
            reshaped.changes += changes
            reshaped.heirs.append((heir, heir.taken_to))
            if held.wish is not None:
                self._fulfilled.append(held.wish)
        elif now >= held.until_s:
            reshaped.refuse_merge(held, f"did not become level within {self.merge_hold_ms} ms")
            self._hold_after_s[held.dispatch] = now + HOLD_PAUSE * self.merge_hold_ms / 1000
        else:
            return False
        return True

    def _split(self, wish: SplitWish, reshaped: Reshaped) -> bool:
        """Split or refuse. Returns False while the split waits because its worker has a hold."""
        dispatch, at = wish.dispatch, wish.at
        worker = next((w for w in dispatch.workers if w.first < at < w.end), None)
        if worker is None:
            reshaped.refuse(wish, f"{at:08x} lies strictly inside no worker's range")
        elif worker in self._leaving_of(dispatch):
            reshaped.refuse(wish, f"{at:08x} can't be split at: its range is being given up")
        elif worker.hold_at is not None:
            return False
        else:
            reshaped.changes.append(split(dispatch, worker, at))
            reshaped.heirs += [(w, w.taken_to) for w in dispatch.workers if at in (w.first, w.end)]
            if dispatch in self.wanted:  # merging to the wanted cut shall not undo the split
                self.wanted[dispatch] = tuple(sorted({*self.wanted[dispatch], at}))
            self._fulfilled.append(wish)
        return True

    def _begin_merge(self, wish: MergeWish, until_s: float, reshaped: Reshaped) -> bool:
        """Begin the merge's hold or refuse the wish. Returns False while the merge waits for another hold to end."""
        dispatch, within = wish.dispatch, wish.within
        group = workers_within(dispatch, within)
        if self._is_leaving(dispatch, within):
            reshaped.refuse(wish, f"{within} can't be merged: it is being given up")
        elif len(group) < 2 or sum(w.end - w.first for w in group) != within.size:
            reshaped.refuse(wish, f"{within} is not made up of two or more whole workers' ranges")
        elif len({w.epoch for w in group}) > 1:
            reshaped.refuse(wish, f"{within} is held under several grants")
        elif any(w.hold_at is not None for w in group):
            return False
        elif begin_hold(group):
            self.holds.append(MergeHold(dispatch, group, until_s, wish))
        else:
            reshaped.refuse(wish, f"a worker in {within} has to catch up first")
        return True


def _goes_whole(wish: ReleaseWish) -> bool:
    """Whether the wish releases all its workers at once."""
    return len(wish.wanted) == len(_ONE_WORKER)


def _common(within: KeyRange, worker: Worker) -> int:
    """The number of points of a range that a worker owns."""
    return max(0, min(within.end, worker.end) - max(within.first, worker.first))


def _spans(part: EpochPart, within: Iterable[KeyRange]) -> list[list[int]]:
    """The bounds where the edges of an epoch differ inside ranges, a list for each span of points without a gap."""
    spans: list[list[int]] = []
    for one in sorted(within, key=lambda one: one.first):
        for first, end, _ in part.edges.pieces(one.first, one.end):
            if spans and spans[-1][-1] == first:
                spans[-1].append(end)
            else:
                spans.append([first, end])
    return spans


def _worker_inside(dispatch: PartitionDispatch, within: Iterable[KeyRange]) -> Worker | None:
    """A worker that owns points of the ranges already."""
    return next((worker for one in within for worker in dispatch.workers if _common(one, worker)), None)


def add_granted(
    dispatch: PartitionDispatch, part: EpochPart, within: Iterable[KeyRange], wanted: Iterable[int]
) -> list[Change]:
    """New workers for ranges of an epoch without workers, cut at the wanted bounds, at the bounds in the grant, and
    where edges differ.

    A worker with an edge below the front is caught up. The main reader skips records below an edge ahead of the front.
    """
    dispatch.epoch = part.epoch
    changes: list[Change] = []
    for span in _spans(part, within):
        inside = [bound for bound in (*wanted, *part.granted_bounds) if span[0] < bound < span[-1]]
        changes.append(cut(dispatch, dispatch.add_workers(sorted({*span, *inside}), edge_at(part.edges))))
    return changes


def edge_at(edges: Steps[int]) -> Callable[[int], int]:
    """The edges as a function of points; every point has to be granted."""

    def edge_of(first: int) -> int:
        edge = edges.at(first)
        assert edge is not None, "what is granted has an edge"
        return edge

    return edge_of
