"""When ranges change while the process runs: splits, merges, releases, grants that arrive.

The host of structure.py. All of it happens in the commit cycle between two transactions, on what a generation was just
taken from, and is written with that generation. A release waits until nothing of its range runs and all that was done
there is taken; from the moment it is asked for none of its records is begun.

Who comes first when several things are asked of the same points: a release ends a hold, and refuses splits and merges
from the moment it is asked for. A split waits while its worker is held, which is a bounded time; a merge waits while
another one holds one of its workers.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ...keyrange.ranges import KeyRange
from ...keyrange.steps import Steps
from ...offsets.ledger import EpochPart, Ledger
from ..partition.cut import (
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
from ..partition.generation import Generation
from ..partition.worker import Worker
from ..settings import Settings
from .partition_run import PartitionRun
from .slots import Slots

HOLD_PAUSE = 4
"""After a hold that led to no merge, its neighbours run freely for so many times its length."""


@dataclass(slots=True, eq=False)
class Leaving:
    """A range that is being given up. ``settled`` is done when its release is committed."""

    run: PartitionRun
    within: KeyRange
    settled: "asyncio.Future[None]"
    workers: Sequence[Worker] = ()


@dataclass(slots=True, eq=False)
class Arriving:
    """A grant to be worked on. ``settled`` is done when its cut into workers is committed."""

    run: PartitionRun
    epoch: int
    settled: "asyncio.Future[None]"


@dataclass(slots=True, eq=False)
class Splitting:
    """A split that was asked for. ``settled`` is done when it is committed."""

    run: PartitionRun
    at: int
    settled: "asyncio.Future[None]"


@dataclass(slots=True, eq=False)
class Merging:
    """A merge that was asked for. ``settled`` is done when it is committed."""

    run: PartitionRun
    within: KeyRange
    settled: "asyncio.Future[None]"


@dataclass(slots=True, eq=False)
class Held:
    """Neighbours that shall become one, held until they are level or the time is up; ``settled`` if one asked."""

    run: PartitionRun
    workers: list[Worker]
    until_s: float
    settled: "asyncio.Future[None] | None" = None

    def refuse(self, why: str) -> None:
        """It does not come to the merge."""
        let_go(self.workers)
        if self.settled is not None:
            within = KeyRange(self.workers[0].first, self.workers[-1].end)
            refuse(self.settled, f"{self.run.label}: {within} {why}")


@dataclass(slots=True, eq=False)
class Reshape:
    """What is changing, over all partitions of this process."""

    slots: Slots
    settings: Settings
    holds: list[Held] = field(default_factory=list)
    leaving: list[Leaving] = field(default_factory=list)
    arriving: list[Arriving] = field(default_factory=list)
    splitting: list[Splitting] = field(default_factory=list)
    merging: list[Merging] = field(default_factory=list)
    _released: list[Leaving] = field(default_factory=list)
    """No worker holds these any more; that they were given up is not committed yet."""
    _settling: "list[asyncio.Future[None]]" = field(default_factory=list)

    # --- what the member asks for ------------------------------------------------------------------------------------

    def give_up(self, run: PartitionRun, within: KeyRange) -> "asyncio.Future[None]":
        """Release a range of a partition; the result is there when that is committed, ValueError when it is not held.

        Raises ValueError when part of it is being given up already.
        """
        if (other := overlapped(self.leaving, run, within)) is not None:
            raise ValueError(f"{run.label}: {within} overlaps {other}, which is being given up already")
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaving.append(Leaving(run, within, settled))
        return settled

    def is_leaving(self, run: PartitionRun, within: KeyRange) -> KeyRange | None:
        """What overlaps a range and is being given up: as long as that is not committed, nobody knows its edges."""
        return overlapped([*self.leaving, *self._released], run, within)

    def take_up(self, run: PartitionRun, epoch: int) -> "asyncio.Future[None]":
        """Work on a grant; the result is there when its cut is committed, ValueError when it is not ours to take."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.arriving.append(Arriving(run, epoch, settled))
        return settled

    def ask_split(self, run: PartitionRun, at: int) -> "asyncio.Future[None]":
        """Cut the worker that owns both sides of a point; the result is there when that is committed.

        ValueError, raised here or as the result, when that range is being given up, or no worker's range holds the
        point strictly inside.
        """
        for leaving in self.leaving:
            if leaving.run is run and leaving.within.contains(at):
                raise ValueError(f"{run.label}: {at:08x} can't be split at: {leaving.within} is being given up")
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.splitting.append(Splitting(run, at, settled))
        return settled

    def ask_merge(self, run: PartitionRun, within: KeyRange) -> "asyncio.Future[None]":
        """Make one worker of those that make up a range; the result is there when that is committed.

        They are held for at most ``merge_hold_ms`` to become level. ValueError, raised here or as the result, when the
        range is being given up, is not made up of whole neighbours of one grant, two or more, or when they do not
        become level in time.
        """
        if (leaving := overlapped(self.leaving, run, within)) is not None:
            raise ValueError(f"{run.label}: {within} can't be merged: {leaving} is being given up")
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.merging.append(Merging(run, within, settled))
        return settled

    # --- what the commit cycle does ----------------------------------------------------------------------------------

    def arrive(self, waiting: Sequence[Arriving], ledger: Ledger, incarnation: int) -> list[Change]:
        """Workers for grants. ``ledger``: both logs, read to their ends after these were asked for."""
        events: list[Change] = []
        for arrival in (a for a in waiting if not a.settled.done()):
            dispatch = arrival.run.dispatch
            part = ledger.partition(dispatch.place).parts.get(arrival.epoch)
            try:
                if part is None or part.incarnation != incarnation:
                    raise ValueError(f"{arrival.run.label}: epoch {arrival.epoch} is no grant to this process")
                events += add_granted(arrival.run, part)
            except ValueError as error:
                arrival.settled.set_exception(error)
            else:
                self._settling.append(arrival.settled)
        return events

    def change(self, generation: Generation, now: float) -> None:
        """Release what is through, merge what is level, split: all written with this generation."""
        changed: dict[PartitionRun, None] = {}
        for leaving in list(self.leaving):
            changed[leaving.run] = None
            self._leave(generation, leaving)
        for held in list(self.holds):
            if are_level(held.workers) and all(w.taken_to == w.hold_at for w in held.workers):
                heir, events = merge(held.run.dispatch, held.workers)
                generation.add(events, [(heir, heir.taken_to)])
                self.holds.remove(held)
                if held.settled is not None:
                    self._settling.append(held.settled)
            elif now >= held.until_s:
                held.refuse(f"did not become level within {self.settings.merge_hold_ms} ms")
                self.holds.remove(held)
                held.run.hold_after_s = now + HOLD_PAUSE * self.settings.merge_hold_ms / 1000
            else:
                continue
            changed[held.run] = None
        for splitting in list(self.splitting):
            if self._split(generation, splitting):
                self.splitting.remove(splitting)
                changed[splitting.run] = None
        for run in changed:
            self.slots.activate(run, run.dispatch.runnable())

    def begin_holds(self, runs: Sequence[PartitionRun], now: float) -> None:
        """Hold neighbours that shall become one, a bounded time each: those asked for, then, where nothing is held or
        leaving, those that lie in one range of a wanted cut.
        """
        until = now + self.settings.merge_hold_ms / 1000
        self.merging = [merging for merging in self.merging if not self._begin_merge(merging, until)]
        busy = {held.run for held in self.holds} | {leaving.run for leaving in self.leaving}
        for run in runs:
            if not run.wanted_bounds or run in busy or now < run.hold_after_s:
                continue
            groups = groups_to_merge(run.dispatch, run.wanted_bounds)
            if not groups:
                run.wanted_bounds = ()
            self.holds += [Held(run, group, until) for group in groups if hold(group)]

    def settle(self) -> None:
        """The generation was committed, and with it what was asked for."""
        settling, self._settling = self._settling, []
        self._released.clear()
        for settled in settling:
            if not settled.done():
                settled.set_result(None)

    def close(self) -> None:
        """Nothing more will be settled."""
        changes = (self.leaving, self.arriving, self.splitting, self.merging, self.holds)
        asked = [change.settled for kind in changes for change in kind]
        for settled in (*asked, *self._settling):
            if settled is not None:
                settled.cancel()

    def _leave(self, generation: Generation, leaving: Leaving) -> None:
        run = leaving.run
        if not leaving.workers:
            held = sum(part.size for w in run.dispatch.workers if (part := overlap(leaving.within, w)) is not None)
            if held < leaving.within.size:
                self.leaving.remove(leaving)
                refuse(leaving.settled, f"{run.label}: not all of {leaving.within} is held here")
                return
            for hold_now in [h for h in self.holds if h.run is run]:
                hold_now.refuse(f"is not merged while {leaving.within} is being given up")
                self.holds.remove(hold_now)
            carved = carve(run.dispatch, leaving.within)
            generation.add(carved, [(worker, worker.taken_to) for worker in run.dispatch.workers])
            leaving.workers = workers_within(run.dispatch, leaving.within)
            wind_up(run.dispatch, leaving.workers)
        if are_through(leaving.workers):
            generation.add(release(run.dispatch, leaving.workers))
            self.leaving.remove(leaving)
            self._released.append(leaving)
            self._settling.append(leaving.settled)

    def _split(self, generation: Generation, splitting: Splitting) -> bool:
        """Whether the split is through, one way or the other; it waits while its worker is held to be merged."""
        run, at, settled = splitting.run, splitting.at, splitting.settled
        worker = next((w for w in run.dispatch.workers if w.first < at < w.end), None)
        if worker is None:
            refuse(settled, f"{run.label}: {at:08x} lies strictly inside no worker's range")
            return True
        if any(change.run is run and worker in change.workers for change in self.leaving):
            refuse(settled, f"{run.label}: {at:08x} can't be split at: its range is being given up")
            return True
        if settled.done() or worker.hold_at is not None:
            return settled.done()
        parted = split(run.dispatch, worker, at)
        generation.add([parted], [(w, w.taken_to) for w in run.dispatch.workers if at in (w.first, w.end)])
        if run.wanted_bounds:  # what goes on merging to the wanted cut shall not undo it
            run.wanted_bounds = tuple(sorted({*run.wanted_bounds, at}))
        self._settling.append(settled)
        return True

    def _begin_merge(self, merging: Merging, until_s: float) -> bool:
        """Whether the merge is under way or refused; it waits while one of its workers is held."""
        run, within, settled = merging.run, merging.within, merging.settled
        group = workers_within(run.dispatch, within)
        if settled.done():
            return True
        if overlapped(self.leaving, run, within) is not None:
            refuse(settled, f"{run.label}: {within} can't be merged: it is being given up")
        elif len(group) < 2 or sum(w.end - w.first for w in group) != within.size:
            refuse(settled, f"{run.label}: {within} is not made up of two or more whole workers' ranges")
        elif len({w.epoch for w in group}) > 1:
            refuse(settled, f"{run.label}: {within} is held under several grants")
        elif any(w.hold_at is not None for w in group):
            return False
        elif hold(group):
            self.holds.append(Held(run, group, until_s, settled))
        else:
            refuse(settled, f"{run.label}: a worker in {within} has to catch up first")
        return True


def refuse(settled: "asyncio.Future[None]", why: str) -> None:
    """Answer with a ValueError, unless nobody waits any more."""
    if not settled.done():
        settled.set_exception(ValueError(why))


def overlapped(leaving: Iterable[Leaving], run: PartitionRun, within: KeyRange) -> KeyRange | None:
    """The first range of a partition among those that leave which overlaps another one."""
    return next((other.within for other in leaving if other.run is run and other.within.overlaps(within)), None)


def overlap(within: KeyRange, worker: Worker) -> KeyRange | None:
    """What of a range a worker owns."""
    first, end = max(within.first, worker.first), min(within.end, worker.end)
    return KeyRange(first, end) if first < end else None


def add_granted(run: PartitionRun, part: EpochPart) -> list[Change]:
    """New workers for all points of an epoch, by the wanted cut and where edges differ.

    One whose edge lies below the front is caught up; the main reader passes over what lies below an edge ahead of it.
    Raises ValueError when the epoch overlaps what is held.
    """
    dispatch = run.dispatch
    spans: list[list[int]] = []
    for first, end, _ in part.edges.pieces():
        if spans and spans[-1][-1] == first:
            spans[-1].append(end)
        else:
            spans.append([first, end])
    for span in spans:
        if workers := [w for w in dispatch.workers if w.first < span[-1] and span[0] < w.end]:
            raise ValueError(
                f"{run.label}: epoch {part.epoch} overlaps worker {workers[0].number}, which is not released"
            )
    dispatch.epoch = part.epoch
    events: list[Change] = []
    for span in spans:
        inside = [bound for bound in run.cut if span[0] < bound < span[-1]]
        events.append(cut(dispatch, dispatch.add_workers(sorted({*span, *inside}), defined(part.edges))))
    return events


def cut_workers(run: PartitionRun, ledger: Ledger) -> list[Change]:
    """Workers for all points of a partition: those of before, then split to the wanted cut; merges come when level.

    ``ledger`` is that from before the grant.
    """
    dispatch, wanted = run.dispatch, run.cut
    fold = ledger.partition(dispatch.place)
    edges = fold.edges(ledger.control.started[dispatch.place])
    before = {bound for first, end, _ in fold.workers().pieces() for bound in (first, end)}
    levels = {bound for first, end, _ in edges.pieces() for bound in (first, end)}
    bounds = sorted((before or set(wanted)) | levels)
    events: list[Change] = [cut(dispatch, dispatch.add_workers(bounds, defined(edges)))]
    for at in sorted(set(wanted) - set(bounds)):
        worker = next(w for w in dispatch.workers if w.first < at < w.end)
        events.append(split(dispatch, worker, at))
    run.wanted_bounds = wanted if len(dispatch.workers) > len(list(pairwise(wanted))) else ()
    return events


def share_buffer(runs: Sequence[PartitionRun], bytes_max: int) -> None:
    """What all queues together may hold, in equal parts for the workers there are: those still to be merged, too."""
    workers = sum(len(run.dispatch.workers) for run in runs)
    for run in runs:
        run.dispatch.quota_bytes = max(1, bytes_max // max(1, workers))


def defined(edges: Steps[int]) -> Callable[[int], int]:
    """The edges as a function of points where they are known to be defined."""

    def edge_of(first: int) -> int:
        edge = edges.at(first)
        assert edge is not None, "what is granted has an edge"
        return edge

    return edge_of
