"""What this process holds of the source partitions: a run begins with the first range that is granted to it, and ends
with the last one that it gives up.

It compares what the control log says with what it has, and does what is missing (group/member.py). A range is taken up
in this order: READ both logs → make its state whole, to the end of its changelog as it is then → workers, in the next
transaction → read. It is given up in the transaction that carries the last of its progress.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ..brokers.protocol import BrokerError, TopicPartition
from ..brokers.waiting import Patience, fatal_of, until_answered
from ..group.member import Works, range_of, state_of
from ..group.members import LEFT
from ..keyrange.ranges import KeyRange
from ..offsets.control_events import ReleaseAsked
from ..offsets.event_values import Edge
from ..offsets.ledger import EpochPart, Place
from ..offsets.signals import ReleaseTold
from .engine.commit import CommitCycle
from .engine.partition_run import PartitionRun
from .engine.reshaping import share_buffer
from .handlers.handler import Handler
from .handlers.outputs import place_of
from .logs.office import Standing
from .membership.sources import Sources
from .membership.taking_part import TakingPart
from .partition.dispatch import PartitionDispatch, WorkerNumbers
from .partition.reshape import ReleaseWish, TakeUpWish
from .settings import Settings
from .stores.keeper import Keeper

logger = logging.getLogger("keylanes")


class _Leaving(NamedTuple):
    """What is being given up."""

    wish: ReleaseWish
    settled: "asyncio.Future[None]"


class Holding:
    """Of one process. ``runs``: those of the partitions of which it holds something; others see it change.

    ``begins``, ``ends`` are called when a run begins to read, and when it reads no more.
    """

    def __init__(
        self,
        standing: Standing,
        taking_part: TakingPart,
        sources: Sources,
        handlers: Mapping[str, Handler],
        keeper: Keeper,
        settings: Settings,
    ) -> None:
        self.standing, self.taking_part, self.sources = standing, taking_part, sources
        self.handlers, self.keeper, self.settings = handlers, keeper, settings
        self.runs: list[PartitionRun] = []
        self.found: dict[TopicPartition, int] = {}
        """Where each source partition ended when something of it was taken up first."""
        self.begins: Callable[[Sequence[PartitionRun]], None] = _nobody
        self.ends: Callable[[PartitionRun], None] = _nobody
        self.is_settled = asyncio.Event()
        """All that was planned for it when it joined, and is free, was taken up."""
        self._cycle: CommitCycle | None = None
        self._numbers = WorkerNumbers()
        self._taken: set[tuple[Place, int]] = set()
        self._reading: set[PartitionDispatch] = set()
        """Of the runs that have begun to read."""
        self._arriving: set[tuple[Place, int]] = set()
        """What is being taken up, beside everything else."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._leaving: dict[int, _Leaving] = {}
        self._released: set[int] = set()
        """Moves that were done here, as long as the control log has them: until what was released is granted."""
        self._changed = asyncio.Event()
        self._heard: list[asyncio.Future[None]] = []
        self._leaves = self._is_closed = False

    def works_with(self, cycle: CommitCycle) -> None:
        """What ranges are taken up and given up with."""
        self._cycle = cycle

    @property
    def cycle(self) -> CommitCycle:
        """See ``works_with``."""
        assert self._cycle is not None, "it works"
        return self._cycle

    def wake(self) -> None:
        """The control log was read on."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait until it holds something else than now, or may; raises CancelledError when the run ends before."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.cancel()
        self._heard.append(future)
        await future

    def close(self) -> None:
        """Nothing more will change: whoever waits is told."""
        self._is_closed = True
        for future in self._heard:
            future.cancel()

    # --- following ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled, or this process is out; raises Expelled, SourceError, StateError, LogError."""
        try:
            while True:
                self._changed.clear()
                if self.has_left():
                    return
                self.standing.check()
                if self._error is not None:
                    raise self._error
                self._follow()
                await self._changed.wait()
        finally:
            for task in self._tasks:
                task.cancel()

    def has_left(self) -> bool:
        """Whether the group goes on without this process, as it asked for."""
        own, control = self.standing.incarnation, self.standing.ledger.control
        member = control.members.get(own)
        return self.taking_part.leaves and control.is_expelled(own) and (member is None or member.cause == LEFT)

    def _follow(self) -> None:
        control = self.standing.ledger.control
        own = self.standing.identity
        self._released &= control.moves.asked.keys()
        winding = self._leaving.keys() | self._released
        state = state_of(control, own.birth, own.incarnation, self._taken, winding)
        if not isinstance(state, Works):
            return
        for move in state.go_on:
            if not self._is_on_its_way(self._leaving[move]):
                self._leaving.pop(move).settled.cancel()
                self.cycle.wake()
        for asked in state.wind_up if not self._leaves else ():
            self._wind_up(asked)
        take_up = [
            (place, epoch)
            for place, epoch in state.take_up
            if place[0] in self.handlers and (place, epoch) not in self._arriving and not self.is_giving_up(place)
        ]
        if take_up and not self._leaves:
            self._arriving |= set(take_up)
            self._spawn(take_up)
        counts = Counter(topic for topic, _ in control.started)
        for (topic, _), event in control.begun.items():  # level 0 does not say how many there are
            counts[topic] = max(counts[topic], event.partitions)
        for run in self.runs:
            run.dispatch.partitions = counts[run.dispatch.topic]
        is_through = not state.take_up and not self._arriving
        if is_through and not self.is_settled.is_set() and self._is_settled(state.incarnation):
            self.is_settled.set()
        self._tell()

    def _is_on_its_way(self, leaving: _Leaving) -> bool:
        """Whether it is released in a transaction that is not through here: others may have read it before."""
        return leaving.wish not in self.cycle.reshape.wishes.leaving

    def is_giving_up(self, place: Place) -> bool:
        """Whether a transaction that releases something of a partition is not through here."""
        return any(one.wish.dispatch.place == place and self._is_on_its_way(one) for one in self._leaving.values())

    def _is_settled(self, incarnation: int) -> bool:
        """Whether a plan answers its joining, and what nobody else holds of it was taken up."""
        control = self.standing.ledger.control
        if control.moves.group_epoch < control.group_epoch or self._leaving:
            return False
        for move in control.moves.planned.values():
            owners = control.owners.get((move.topic, move.partition))
            own = [] if owners is None else owners.pieces(move.first, move.end)
            is_there = any(owner.incarnation == incarnation for _, _, owner in own)
            if move.target == incarnation and not move.origin and not is_there:
                return False
        return True

    def _tell(self) -> None:
        heard, self._heard = self._heard, []
        for future in heard:
            if not future.done():
                future.set_result(None)

    # --- taking up ---------------------------------------------------------------------------------------------------

    def _spawn(self, granted: Collection[tuple[Place, int]]) -> None:
        patience = Patience(self.settings.broker_retry_ms, "taking up what was granted")
        task = asyncio.ensure_future(until_answered(lambda: self._take_up(granted), patience))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._arriving -= set(granted)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._error = fatal_of(error) if isinstance(error, BrokerError) else error
            self.wake()

        task.add_done_callback(ended)

    async def _take_up(self, granted: Collection[tuple[Place, int]]) -> None:
        standing, keeper = self.standing, self.keeper
        self.cycle.on_step("granted")
        await standing.read()
        standing.check()
        ledger = standing.ledger
        parts = {(place, epoch): ledger.partition(place).parts.get(epoch) for place, epoch in granted}
        held = [(place, epoch) for (place, epoch), part in parts.items() if part is not None]
        marks = await self.sources.check_held(ledger, sorted({place for place, _ in held}))
        for source, mark in marks.items():
            self.found.setdefault(source, mark.high)
        ranges: dict[Place, list[KeyRange]] = {}
        for (place, _), part in parts.items():
            if part is not None:
                ranges.setdefault(place, []).extend(KeyRange(a, b) for a, b, _ in part.froms.pieces())
        await keeper.take_up(ranges, ledger, standing.incarnation)
        self.cycle.on_step("restored")
        new: dict[Place, PartitionRun] = {}
        settled = []
        for place, epoch in held:
            run = next((run for run in self.runs if run.dispatch.place == place), None) or new.get(place)
            if run is None:
                edges = [edge for (at, _), part in parts.items() if at == place for edge in _edges(part)]
                run = new[place] = self._make_run(place, max(edges))
            settled.append(self.cycle.reshape.ask(TakeUpWish(run.dispatch, epoch, run.cut)))
        self._taken |= set(granted)
        self.runs += new.values()
        self.cycle.wake()
        await asyncio.gather(*settled)
        self.cycle.on_step("taken up")
        begun = [run for run in new.values() if run in self.runs]  # it may have been given up again meanwhile
        if begun:
            self._reading |= {run.dispatch for run in begun}
            self.begins(begun)

    def _make_run(self, place: Place, front: int) -> PartitionRun:
        standing, handler = self.standing, self.handlers[place[0]]
        dispatch = PartitionDispatch(*place, front, self.settings.buffer_bytes_max, self._numbers)
        dispatch.incarnation, dispatch.app_id = standing.incarnation, standing.app_id
        run = PartitionRun(dispatch, handler, place_of(*place, standing.app_id))
        if handler.stores:
            run.state, run.bindings = self.keeper.attach(TopicPartition(*place), handler)
        return run

    # --- giving up ---------------------------------------------------------------------------------------------------

    def _wind_up(self, asked: ReleaseAsked) -> None:
        place = asked.topic, asked.partition
        grant, run = (place, asked.epoch), next((run for run in self.runs if run.dispatch.place == place), None)
        if run is None or grant not in self._taken or grant in self._arriving:  # looked at again when that is through
            return
        wish = ReleaseWish(run.dispatch, range_of(asked), run.cut)
        self.cycle.on_step("asked")
        try:
            settled = self.cycle.reshape.ask(wish)
        except ValueError as error:
            logger.info("a release that was asked for waits: %s", error)
            return
        self._leaving[asked.move] = _Leaving(wish, settled)
        self.cycle.on_step("winding")
        settled.add_done_callback(lambda settled: self._wound_up(asked, run, settled))
        self.cycle.wake()

    def _wound_up(self, asked: ReleaseAsked, run: PartitionRun, settled: "asyncio.Future[None]") -> None:
        self._leaving.pop(asked.move, None)
        if not settled.cancelled() and (error := settled.exception()) is not None:
            logger.info("a release that was asked for waits: %s", error)
            return  # and is tried again when something has changed: the control log, or what is held
        self.wake()
        if settled.cancelled():
            return
        self._released.add(asked.move)
        self.cycle.on_step("released")
        bands = (Edge(asked.first, asked.end, None),)
        place, standing = (asked.topic, asked.partition), self.standing
        told = ReleaseTold(standing.incarnation, standing.transaction, asked.move, *place, bands)
        self.taking_part.has_released(told)
        self._end(run)
        self._tell()

    def _end(self, run: PartitionRun) -> None:
        """Of a partition of which nothing is held any more."""
        is_coming = any(wish.dispatch is run.dispatch for wish in self.cycle.reshape.wishes.arriving)
        if not run.dispatch.workers and not is_coming and run in self.runs:
            self.runs.remove(run)
            if run.dispatch in self._reading:
                self._reading.remove(run.dispatch)
                self.ends(run)
            share_buffer(self.runs, self.settings.buffer_bytes_max)

    def leave(self) -> "list[asyncio.Future[None]]":
        """Give up all that is held, in the last transactions; what was asked for before is among it."""
        self._leaves = True
        self.cycle.reshape.end()
        futures = [leaving.settled for leaving in self._leaving.values()]
        for run in self.runs:
            leaving = [one.wish.within for one in self._leaving.values() if one.wish.dispatch is run.dispatch]
            wishes = [ReleaseWish(run.dispatch, within, run.cut) for within in _held(run, leaving)]
            futures += [self.cycle.reshape.ask(wish) for wish in wishes]
        return futures


def _nobody(_: object) -> None:
    """Nobody hears it."""


def _edges(part: EpochPart | None) -> list[int]:
    """Where the ranges of an epoch go on."""
    return [] if part is None else [edge for _, _, edge in part.edges.pieces()]


def _held(run: PartitionRun, leaving: Collection[KeyRange]) -> list[KeyRange]:
    """What a run holds and does not give up yet, touching ranges as one."""
    found: list[KeyRange] = []
    for worker in sorted(run.dispatch.workers, key=lambda worker: worker.first):
        within = KeyRange(worker.first, worker.end)
        if any(one.overlaps(within) for one in leaving):
            continue
        if found and found[-1].end == within.first:
            found[-1] = found[-1].join(within)
        else:
            found.append(within)
    return found
