"""PURE. When ranges change while the process runs: what is asked for, and what becomes of it.

Whoever wants a range released, taken up, split or merged asks with a wish. In the commit cycle, between two
transactions, on what a generation was just taken from, the wishes are looked at: those whose time has come change the
dispatches, and what they changed is written with that generation. Each wish is answered once: refused, or settled when
the generation is committed. A release waits until nothing of its range runs and all that was done there is taken; from
the first look on none of its records is begun.

Who comes first when several things are asked of the same points: a release ends a hold, and refuses splits and merges
from the moment it is asked for. A split waits while its worker is held, which is a bounded time; a merge waits while
another one holds one of its workers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ...keyrange.ranges import KeyRange
from ...keyrange.steps import Steps
from ...offsets.ledger import EpochPart, Ledger
from .cut import (
    Change,
    are_level,
    are_through,
    carve,
    cut,
    groups_to_merge,
    hold,
    let_go,
    merge,
    release,
    split,
    wind_up,
    workers_within,
)
from .dispatch import PartitionDispatch
from .worker import Worker

HOLD_PAUSE = 4
"""After a hold that led to no merge, its neighbours run freely for so many times its length."""


@dataclass(frozen=True, slots=True, eq=False)
class ReleaseWish:
    """Give up a range. ``wanted``: the bounds of the declared cut."""

    dispatch: PartitionDispatch
    within: KeyRange
    wanted: Sequence[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class TakeUpWish:
    """Work on a grant, with workers by the bounds of the wanted cut."""

    dispatch: PartitionDispatch
    epoch: int
    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SplitWish:
    """Cut the worker that owns both sides of a point."""

    dispatch: PartitionDispatch
    at: int


@dataclass(frozen=True, slots=True, eq=False)
class MergeWish:
    """Make one worker of those that make up a range."""

    dispatch: PartitionDispatch
    within: KeyRange


Wish: TypeAlias = ReleaseWish | TakeUpWish | SplitWish | MergeWish
"""What can be asked for. Two that ask for the same are two wishes."""


@dataclass(slots=True, eq=False)
class Held:
    """Neighbours that shall become one, held until they are level or the time is up; ``wish`` if one asked."""

    dispatch: PartitionDispatch
    workers: list[Worker]
    until_s: float
    wish: MergeWish | None = None


@dataclass(slots=True)
class Reshaped:
    """What one look at the wishes led to: changes and their heirs belong to the generation that was just taken."""

    changes: list[Change] = field(default_factory=list)
    heirs: list[tuple[Worker, int]] = field(default_factory=list)
    """Workers made by the changes, and the offset that they go on from."""
    ready: list[tuple[PartitionDispatch, list[Worker]]] = field(default_factory=list)
    """Workers that were idle and may run now; marked active."""
    refused: list[tuple[Wish, str]] = field(default_factory=list)
    """These wishes come to nothing, and why."""

    def refuse(self, wish: Wish, why: str) -> None:
        """The wish comes to nothing."""
        self.refused.append((wish, f"{wish.dispatch.label}: {why}"))

    def let_go(self, held: Held, why: str) -> None:
        """The held neighbours do not come to the merge."""
        let_go(held.workers)
        if held.wish is not None:
            self.refuse(held.wish, f"{KeyRange(held.workers[0].first, held.workers[-1].end)} {why}")


class Wishes:
    """What is asked for, over all partitions of a process. A merge holds its workers at most ``merge_hold_ms``."""

    def __init__(self, merge_hold_ms: int) -> None:
        self.merge_hold_ms = merge_hold_ms
        self.leaving: dict[ReleaseWish, Sequence[Worker]] = {}
        """What is to be released; the workers that make it up once they begin no record any more."""
        self.arriving: list[TakeUpWish] = []
        self.splitting: list[SplitWish] = []
        self.merging: list[MergeWish] = []
        self.holds: list[Held] = []
        self.wanted: dict[PartitionDispatch, tuple[int, ...]] = {}
        """The bounds to which a partition's workers are merged as they become level."""
        self._hold_after_s: dict[PartitionDispatch, float] = {}
        """Neighbours are held to be merged to the wanted cut from then on."""
        self._staying: set[PartitionDispatch] = set()
        """Of which something was to be released, and is not."""
        self._fulfilled: list[Wish] = []
        """That they were is not committed yet."""

    # --- what is asked for -------------------------------------------------------------------------------------------

    def ask(self, wish: Wish) -> None:
        """It is looked at in the next commit cycle. Raises ValueError when its range is being given up."""
        dispatch = wish.dispatch
        match wish:
            case ReleaseWish():
                if (other := self._overlapped(dispatch, wish.within)) is not None:
                    raise ValueError(
                        f"{dispatch.label}: {wish.within} overlaps {other}, which is being given up already"
                    )
                self.leaving[wish] = ()
            case TakeUpWish():
                self.arriving.append(wish)
            case SplitWish():
                for leaving in self.leaving:
                    if leaving.dispatch is dispatch and leaving.within.contains(wish.at):
                        raise ValueError(
                            f"{dispatch.label}: {wish.at:08x} can't be split at: {leaving.within} is being given up"
                        )
                self.splitting.append(wish)
            case MergeWish():
                if (other := self._overlapped(dispatch, wish.within)) is not None:
                    raise ValueError(f"{dispatch.label}: {wish.within} can't be merged: {other} is being given up")
                self.merging.append(wish)

    def withdraw(self, wish: Wish) -> None:
        """Nobody waits for it any more: a split, a merge or a grant is forgotten unless it has begun. What is to be
        released and was not yet stays: its workers go on.
        """
        if isinstance(wish, ReleaseWish) and wish in self.leaving:
            let_go(self.leaving.pop(wish))
            self._staying.add(wish.dispatch)
        self.arriving = [other for other in self.arriving if other is not wish]
        self.splitting = [other for other in self.splitting if other is not wish]
        self.merging = [other for other in self.merging if other is not wish]

    # --- what becomes of it ------------------------------------------------------------------------------------------

    def take_up(self, wishes: Iterable[TakeUpWish], ledger: Ledger, incarnation: int) -> Reshaped:
        """Workers for grants to a process. ``ledger``: both logs, read to their ends after these were asked for."""
        reshaped = Reshaped()
        for wish in [wish for wish in wishes if wish in self.arriving]:
            self.arriving.remove(wish)
            part = ledger.partition(wish.dispatch.place).parts.get(wish.epoch)
            if part is None or part.incarnation != incarnation:
                reshaped.refuse(wish, f"epoch {wish.epoch} is no grant to this process")
            elif (worker := _worker_inside(wish.dispatch, part)) is not None:
                reshaped.refuse(wish, f"epoch {part.epoch} overlaps worker {worker.number}, which is not released")
            else:
                before = self._kept_bounds(wish.dispatch)
                reshaped.changes += add_granted(wish.dispatch, part, wish.wanted)
                self.wanted[wish.dispatch] = tuple(sorted({*wish.wanted, *part.granted_bounds, *before}))
                self._fulfilled.append(wish)
        return reshaped

    def change(self, now: float) -> Reshaped:
        """Release what is through, merge what is level, split: all written with the generation that was just taken."""
        reshaped = Reshaped()
        changed: dict[PartitionDispatch, None] = dict.fromkeys(self._staying)
        self._staying = set()
        for leaving in list(self.leaving):
            changed[leaving.dispatch] = None
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
        """Hold neighbours that shall become one, a bounded time each: those asked for, then, where nothing is held or
        leaving, those that lie in one range of a wanted cut.
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
            self.holds += [Held(dispatch, group, until_s) for group in groups if hold(group)]
        return reshaped

    def settle(self) -> list[Wish]:
        """The generation was committed, and with it these wishes."""
        settled, self._fulfilled = self._fulfilled, []
        return settled

    def _kept_bounds(self, dispatch: PartitionDispatch) -> Iterable[int]:
        """Those of the workers there are that merging to the wanted cut shall not undo."""
        workers = dispatch.workers
        return self.wanted.get(dispatch) or {bound for worker in workers for bound in (worker.first, worker.end)}

    def _leave(self, wish: ReleaseWish, reshaped: Reshaped) -> None:
        dispatch, within = wish.dispatch, wish.within
        if not self.leaving[wish]:
            if sum(_common(within, worker) for worker in dispatch.workers) < within.size:
                del self.leaving[wish]
                reshaped.refuse(wish, f"not all of {within} is held here")
                return
            for held in [h for h in self.holds if h.dispatch is dispatch]:
                reshaped.let_go(held, f"is not merged while {within} is being given up")
                self.holds.remove(held)
            reshaped.changes += carve(dispatch, within)
            reshaped.heirs += [(worker, worker.taken_to) for worker in dispatch.workers]
            self.leaving[wish] = workers_within(dispatch, within)
            wind_up(dispatch, self.leaving[wish])
        if are_through(self.leaving[wish]):
            reshaped.changes += release(dispatch, self.leaving.pop(wish), wish.wanted)
            self._fulfilled.append(wish)

    def _end_hold(self, held: Held, now: float, reshaped: Reshaped) -> bool:
        """Whether a hold is over: its workers are merged, or the time is up."""
        if are_level(held.workers) and all(w.taken_to == w.hold_at for w in held.workers):
            heir, changes = merge(held.dispatch, held.workers)
            reshaped.changes += changes
            reshaped.heirs.append((heir, heir.taken_to))
            if held.wish is not None:
                self._fulfilled.append(held.wish)
        elif now >= held.until_s:
            reshaped.let_go(held, f"did not become level within {self.merge_hold_ms} ms")
            self._hold_after_s[held.dispatch] = now + HOLD_PAUSE * self.merge_hold_ms / 1000
        else:
            return False
        return True

    def _split(self, wish: SplitWish, reshaped: Reshaped) -> bool:
        """Whether the split is through, one way or the other; it waits while its worker is held to be merged."""
        dispatch, at = wish.dispatch, wish.at
        worker = next((w for w in dispatch.workers if w.first < at < w.end), None)
        if worker is None:
            reshaped.refuse(wish, f"{at:08x} lies strictly inside no worker's range")
        elif any(worker in workers for workers in self.leaving.values()):
            reshaped.refuse(wish, f"{at:08x} can't be split at: its range is being given up")
        elif worker.hold_at is not None:
            return False
        else:
            reshaped.changes.append(split(dispatch, worker, at))
            reshaped.heirs += [(w, w.taken_to) for w in dispatch.workers if at in (w.first, w.end)]
            if dispatch in self.wanted:  # what goes on merging to the wanted cut shall not undo it
                self.wanted[dispatch] = tuple(sorted({*self.wanted[dispatch], at}))
            self._fulfilled.append(wish)
        return True

    def _begin_merge(self, wish: MergeWish, until_s: float, reshaped: Reshaped) -> bool:
        """Whether the merge is under way or refused; it waits while one of its workers is held."""
        dispatch, within = wish.dispatch, wish.within
        group = workers_within(dispatch, within)
        if self._overlapped(dispatch, within) is not None:
            reshaped.refuse(wish, f"{within} can't be merged: it is being given up")
        elif len(group) < 2 or sum(w.end - w.first for w in group) != within.size:
            reshaped.refuse(wish, f"{within} is not made up of two or more whole workers' ranges")
        elif len({w.epoch for w in group}) > 1:
            reshaped.refuse(wish, f"{within} is held under several grants")
        elif any(w.hold_at is not None for w in group):
            return False
        elif hold(group):
            self.holds.append(Held(dispatch, group, until_s, wish))
        else:
            reshaped.refuse(wish, f"a worker in {within} has to catch up first")
        return True

    def _overlapped(self, dispatch: PartitionDispatch, within: KeyRange) -> KeyRange | None:
        return overlapped(self.leaving, dispatch, within)


def overlapped(leaving: Iterable[ReleaseWish], dispatch: PartitionDispatch, within: KeyRange) -> KeyRange | None:
    """The first range of a partition among those that leave which overlaps another one."""
    return next((w.within for w in leaving if w.dispatch is dispatch and w.within.overlaps(within)), None)


def _common(within: KeyRange, worker: Worker) -> int:
    """How many points of a range a worker owns."""
    return max(0, min(within.end, worker.end) - max(within.first, worker.first))


def _spans(part: EpochPart) -> list[list[int]]:
    """The bounds at which the edges of an epoch differ, one list for each run of points without a gap."""
    spans: list[list[int]] = []
    for first, end, _ in part.edges.pieces():
        if spans and spans[-1][-1] == first:
            spans[-1].append(end)
        else:
            spans.append([first, end])
    return spans


def _worker_inside(dispatch: PartitionDispatch, part: EpochPart) -> Worker | None:
    """A worker that holds points of an epoch already."""
    inside = (w for span in _spans(part) for w in dispatch.workers if w.first < span[-1] and span[0] < w.end)
    return next(inside, None)


def add_granted(dispatch: PartitionDispatch, part: EpochPart, wanted: Iterable[int]) -> list[Change]:
    """New workers for all points of an epoch, by the wanted cut, the bounds that came with the grant, and where edges
    differ; none may be held.

    One whose edge lies below the front is caught up; the main reader passes over what lies below an edge ahead of it.
    """
    dispatch.epoch = part.epoch
    changes: list[Change] = []
    for span in _spans(part):
        inside = [bound for bound in (*wanted, *part.granted_bounds) if span[0] < bound < span[-1]]
        changes.append(cut(dispatch, dispatch.add_workers(sorted({*span, *inside}), defined(part.edges))))
    return changes


def defined(edges: Steps[int]) -> Callable[[int], int]:
    """The edges as a function of points where they are known to be defined."""

    def edge_of(first: int) -> int:
        edge = edges.at(first)
        assert edge is not None, "what is granted has an edge"
        return edge

    return edge_of
