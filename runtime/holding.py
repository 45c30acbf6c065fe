"""What this process holds of the source partitions: a run begins with the first range that is granted to it, and ends
with the last one that it gives up.

It compares what the control log says with what it has, and does what is missing (group/member.py). A range changes
hands in these steps, each of which wakes the next:

1. *Asked.* The owner reads that it is to release a range.
2. *Winding.* At once no record of it is begun; all else goes on.
3. *Released.* What runs nothing goes, with its edges and bounds, in a transaction that begins at once; the rest follows
   as it comes to its end. What is withdrawn meanwhile goes on.
4. The owner says so, the coordinator reads it, and grants what is free.
5. *Granted.* The new owner reads the grant. It needs no other log for that: the grant has offsets and bounds.
6. *Restored.* With state: READ both logs, then the changelog to its end as it is from then on. Nothing of that where
   nobody has written since this process released it itself.
7. *Taken up.* Workers, and reading begins. That they are there is written with the next transaction.

What is released in a transaction whose outcome is not known here is taken up when it is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ..brokers.patience import Patience, ask_until_answered, fatal_of
from ..brokers.protocol import BrokerError, TopicPartition
from ..group.member import Works, range_of, state_of
from ..group.members import LEFT
from ..keyrange.ranges import WHOLE, KeyRange, join_neighbours
from ..keyrange.steps import Steps
from ..offsets.control_events import ReleaseAsked
from ..offsets.ledger import Ledger, SourcePartition
from ..offsets.signals import ReleaseTold
from ..state.restore import Writers
from .engine.commit import CommitCycle
from .engine.partition_run import PartitionRun
from .engine.range_changes import share_buffer
from .handlers.handler import Handler
from .handlers.outputs import place_of
from .logs.own_ledger import OwnLedger
from .membership.member_signals import MemberSignals
from .membership.sources import Sources
from .partition.cut import Released
from .partition.dispatch import PartitionDispatch
from .partition.wishes import ReleaseWish
from .partition.worker import WorkerNumbers
from .settings import Settings
from .stores.keeper import Keeper

logger = logging.getLogger("keylanes")


class _Release(NamedTuple):
    """What is being given up."""

    wish: ReleaseWish
    settled: "asyncio.Future[None]"


class _GrantPart(NamedTuple):
    """Points of a grant."""

    place: SourcePartition
    epoch: int
    within: KeyRange


class HeldPoints(NamedTuple):
    """Points ``[first, end)`` of a source partition, of which all below offset ``edge`` is committed."""

    source: TopicPartition
    first: int
    end: int
    edge: int


class Holding:
    """Of one process. ``runs``: those of the partitions of which it holds something; others see it change.

    ``begins``, ``ends`` are called when a run begins to read, and when it reads no more; ``finds`` when it is known how
    far the partitions of runs go that have begun, with all of them that began in one go; ``expects`` when a run will
    soon have to read from behind its front.
    """

    def __init__(
        self,
        own_ledger: OwnLedger,
        member_signals: MemberSignals,
        sources: Sources,
        handlers: Mapping[str, Handler],
        keeper: Keeper,
        settings: Settings,
    ) -> None:
        self.own_ledger, self.member_signals, self.sources = own_ledger, member_signals, sources
        self.handlers, self.keeper, self.settings = handlers, keeper, settings
        self.runs: list[PartitionRun] = []
        self.found: dict[TopicPartition, int] = {}
        """Where each source partition ended when something of it was taken up first."""
        self.begins: Callable[[Sequence[PartitionRun]], None] = _nobody
        self.ends: Callable[[PartitionRun], None] = _nobody
        self.finds: Callable[[Sequence[PartitionRun]], None] = _nobody
        self.expects: Callable[[], None] = lambda: None
        self.is_settled = asyncio.Event()
        """All that was planned for it when it joined, and is free, was taken up."""
        self._cycle: CommitCycle | None = None
        self._numbers = WorkerNumbers()
        self._taken: dict[tuple[SourcePartition, int], Steps[bool]] = {}
        """What was taken up of each grant, or is being."""
        self._given_up: dict[SourcePartition, Steps[int]] = {}
        """The edges at which this process released ranges with state that it has not taken up again."""
        self._asked: dict[int, int] = {}
        """Moves that it is asked for, and the newest epoch of what is meant by each: a later grant is not."""
        self._restoring: list[_GrantsRestoring] = []
        self._new: list[PartitionRun] = []
        """Those that have begun since ``finds`` was called last, and of which it is known how far they go."""
        self._tasks: set[asyncio.Task[None]] = set()
        """They make state whole, and look whether the sources are there, beside everything else."""
        self._error: BaseException | None = None
        self._leaving: dict[int, _Release] = {}
        self._changed = asyncio.Event()
        self._heard: list[asyncio.Future[None]] = []
        self._left: list[HeldPoints] = []
        """What was given up at the end."""
        self._leaves = self._is_closed = False
        keeper.learner.tell, keeper.learner.writers = member_signals.tell_copies, self._writers_of

    async def _writers_of(self, place: SourcePartition) -> Writers:
        """Raises LogError, BrokerError."""
        await self.own_ledger.read_of([place])
        return self.keeper.writers(self.own_ledger.ledger, place, self.own_ledger.incarnation)

    def works_with(self, cycle: CommitCycle) -> None:
        """What ranges are taken up and given up with."""
        self._cycle = cycle
        cycle.transactions.on_release_committed, cycle.range_changes.on_release_settled = self._has_released, self.wake

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
                self.own_ledger.check()
                if self._error is not None:
                    raise self._error
                self._follow()
                await self._changed.wait()
        finally:
            for task in self._tasks:
                task.cancel()

    def has_left(self) -> bool:
        """Whether the group goes on without this process, as it asked for."""
        own, control = self.own_ledger.incarnation, self.own_ledger.ledger.control
        member = control.members.get(own)
        return self.member_signals.leaves and control.is_expelled(own) and (member is None or member.cause == LEFT)

    def held(self) -> Iterator[HeldPoints]:
        """All that is held, taken up or about to be, with its edges; after the end what was held until then."""
        for dispatch in (run.dispatch for run in self.runs):
            for worker in dispatch.workers:
                yield HeldPoints(dispatch.place, worker.first, worker.end, worker.edge)
        for place, epoch, within in (granted for restoring in self._restoring for granted in restoring.left):
            part = self.own_ledger.ledger.partition(place).parts.get(epoch)
            if part is not None:  # else it was granted to others since
                for piece in part.edges.pieces(within.first, within.end):
                    yield HeldPoints(TopicPartition(*place), *piece)
        yield from self._left

    def edges(self) -> dict[TopicPartition, int]:
        """The least edge of what is held of each partition."""
        found: dict[TopicPartition, int] = {}
        for source, _, _, edge in self.held():
            found[source] = min(edge, found.get(source, edge))
        return found

    def holds_nothing(self) -> bool:
        """Whether nothing is held here, taken up or being released."""
        return not (self.runs or self._tasks or self._leaving)

    def is_at_rest(self) -> bool:
        """Whether all that is granted is taken up, and nothing is being released."""
        return self.is_settled.is_set() and not (self._tasks or self._leaving)

    def _follow(self) -> None:
        control = self.own_ledger.ledger.control
        own = self.own_ledger.identity
        state = state_of(control, own.birth, own.incarnation, (), self._leaving)
        if not isinstance(state, Works):
            return
        self._asked = {move: epoch for move, epoch in self._asked.items() if move in control.moves.release_requests}
        self._taken = {granted: self._taken[granted] for granted in state.new_epochs if granted in self._taken}
        for move in state.withdrawn_moves:
            self._go_on(move)
        if not self._leaves:
            for asked in state.release_requests:
                self._wind_up(asked)
            if lacking := self._lacking(state):
                self._take_up(lacking)
            elif self._is_promised():
                self.expects()
        counts: dict[str, int] = {}
        for (topic, _), event in control.start_events.items():
            counts[topic] = max(counts.get(topic, 0), event.partitions)
        for run in self.runs:
            run.dispatch.partitions = counts[run.dispatch.topic]
        self.keeper.learner.follow(state.copies)  # behind what is taken back, of which nothing was written since
        if self._new and not self._tasks:
            new, self._new = [run for run in self._new if run in self.runs], []
            self.finds(new)
        if not (self._tasks or self.is_settled.is_set()) and self._is_settled(state.incarnation):
            self.is_settled.set()
        self._tell()

    def _is_promised(self) -> bool:
        """Whether somebody else is asked to release more of a partition of which this process has something."""
        moves = self.own_ledger.ledger.control.moves
        coming = [moves.planned[move] for move in moves.release_requests if move in moves.planned]
        return any(
            move.target == self.own_ledger.incarnation != move.origin and self._run_of(move.topic_partition)
            for move in coming
        )

    def _lacking(self, state: Works) -> list[_GrantPart]:
        """What is granted and was not taken up, but for what is being released here: others may read that before."""
        owners, lacking = self.own_ledger.ledger.control.owners, []
        for place, epoch in state.new_epochs:
            if place[0] not in self.handlers:
                continue
            taken = self._taken.setdefault((place, epoch), Steps())
            for first, end, owner in owners[place].pieces():
                if owner.epoch == epoch:
                    parts = [KeyRange(a, b) for a, b, known in taken.all_pieces(first, end) if known is None]
                    lacking += [_GrantPart(place, epoch, part) for part in parts if not self.is_giving_up(place, part)]
        return lacking

    def is_giving_up(self, place: SourcePartition, within: KeyRange = WHOLE) -> bool:
        """Whether a transaction that releases something of these points is not through here."""
        going = () if self._cycle is None else self._cycle.range_changes.wishes.uncommitted_releases
        return any(dispatch.place == place and gone.overlaps(within) for dispatch, gone in going)

    def _is_settled(self, incarnation: int) -> bool:
        """Whether a plan answers its joining, and what nobody else holds of it was taken up."""
        control = self.own_ledger.ledger.control
        if control.moves.group_epoch < control.group_epoch or self._leaving:
            return False
        for move in control.moves.planned.values():
            owners = control.owners.get(move.topic_partition)
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

    def _take_up(self, lacking: Sequence[_GrantPart]) -> None:
        """At once, but for what has state that others may have written."""
        for place, epoch, within in lacking:
            self._taken[place, epoch].put(within.first, within.end, True)
        self.cycle.on_step("granted")
        strange = [one for one in lacking if self.handlers[one.place[0]].stores and not self._is_unchanged(one)]
        at_once = [one for one in lacking if one not in strange]
        for place, _, within in at_once:
            self.keeper.take_back(place, within)
        if at_once:
            self._begin(at_once)
        if strange:
            restoring = _GrantsRestoring(self, strange)
            self._restoring = [*(one for one in self._restoring if one.left), restoring]
            self._spawn(restoring.run, "taking up what was granted")

    def _is_unchanged(self, granted: _GrantPart) -> bool:
        """Whether it goes on where this process released it: state changes only with progress, so nobody changed it.
        What was followed since has to be restored: values may lie there that are older than those of before.
        """
        place, epoch, within = granted
        if not self.keeper.is_as_released(place, within):
            return False
        ours, part = self._given_up.get(place, Steps()), self.own_ledger.ledger.partition(place).parts[epoch]
        pieces = part.froms.pieces(within.first, within.end)
        return all(ours.is_constant(first, end, edge) for first, end, edge in pieces)

    def _spawn(self, work: Callable[[], Awaitable[None]], what: str) -> None:
        task = asyncio.ensure_future(ask_until_answered(work, Patience(self.settings.broker_retry_ms, what)))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._error = fatal_of(error) if isinstance(error, BrokerError) else error
            self.wake()

        task.add_done_callback(ended)

    def _begin(self, granted: Sequence[_GrantPart]) -> None:
        """Workers for what is granted and whole, which begin to read."""
        self.cycle.on_step("restored")
        ledger, new = self.own_ledger.ledger, []
        for place in dict.fromkeys(one.place for one in granted):
            own = [one for one in granted if one.place == place]
            parts = {one.epoch: ledger.partition(place).parts[one.epoch] for one in own}
            run = self._run_of(place)
            if run is None:
                edges = (parts[one.epoch].edges.pieces(one.within.first, one.within.end) for one in own)
                run = self._make_run(place, max(edge for pieces in edges for _, _, edge in pieces))
                self.runs.append(run)
                new.append(run)
            for epoch, part in sorted(parts.items()):
                within = [one.within for one in own if one.epoch == epoch]
                self.cycle.range_changes.add_grant(run.dispatch, epoch, part, within, run.cut)
            for one in own:
                if place in self._given_up:
                    self._given_up[place].put(one.within.first, one.within.end, None)
        self.cycle.on_step("taken up")
        if new:
            self.begins(new)
        self._spawn(partial(self._look_at_sources, granted, new), "looking at what was granted")

    async def _look_at_sources(self, granted: Sequence[_GrantPart], new: Sequence[PartitionRun]) -> None:
        """Beside the work, which would fail in other words when something is gone that was to be read."""
        within: dict[SourcePartition, list[KeyRange]] = {}
        for one in granted:
            within.setdefault(one.place, []).append(one.within)
        marks = await self.sources.check_held(self.own_ledger.ledger, within)
        for source, mark in marks.items():
            self.found.setdefault(source, mark.high)
        self._new += new

    def _run_of(self, place: SourcePartition) -> PartitionRun | None:
        return next((run for run in self.runs if run.dispatch.place == place), None)

    def _make_run(self, place: SourcePartition, front: int) -> PartitionRun:
        own_ledger, handler = self.own_ledger, self.handlers[place[0]]
        dispatch = PartitionDispatch(*place, front, self.settings.limits.buffer_bytes_max, self._numbers)
        dispatch.incarnation, dispatch.app_id = own_ledger.incarnation, own_ledger.app_id
        run = PartitionRun(dispatch, handler, place_of(*place, own_ledger.app_id))
        if handler.stores:
            run.state, run.bindings = self.keeper.attach(TopicPartition(*place), handler)
        return run

    # --- giving up ---------------------------------------------------------------------------------------------------

    def _wind_up(self, asked: ReleaseAsked) -> None:
        """What is held of it, once; what arrives is looked at again when that is through."""
        place, within = asked.topic_partition, range_of(asked)
        owners = self.own_ledger.ledger.control.owners[place].pieces(within.first, within.end)
        own = [owner.epoch for _, _, owner in owners if owner.incarnation == asked.incarnation]
        if asked.move not in self._asked:
            self._asked[asked.move] = max(own, default=asked.epoch)
            self.cycle.on_step("asked")
        run = self._run_of(place)
        if run is None:
            return
        wish = ReleaseWish(run.dispatch, within, run.cut, asked.move, self._asked[asked.move])
        try:
            settled = self.cycle.range_changes.ask(wish)
        except ValueError:  # nothing of it is held, or no more
            return
        self._leaving[asked.move] = _Release(wish, settled)
        self.cycle.on_step("winding")
        settled.add_done_callback(lambda settled: self._wound_up(asked.move, run, settled))
        self.cycle.wake()

    def _has_released(self, transaction: int, released: Released) -> None:
        """It is committed."""
        self.cycle.on_step("released")
        dispatch = released.dispatch
        if self.handlers[dispatch.topic].stores:
            ours = self._given_up.setdefault(dispatch.place, Steps())
            for band in released.bands:
                ours.put(band.first, band.end, band.edge)
        if self._leaves:
            bands = [(band.first, band.end, band.edge) for band in released.bands]
            self._left += [
                HeldPoints(dispatch.place, first, end, edge) for first, end, edge in bands if edge is not None
            ]
        incarnation, move = self.own_ledger.incarnation, released.move
        told = ReleaseTold(incarnation, transaction, move, dispatch.topic, dispatch.partition, released.bands)
        self.member_signals.tell_release(told)

    def _wound_up(self, move: int, run: PartitionRun, settled: "asyncio.Future[None]") -> None:
        self._leaving.pop(move, None)
        if not settled.cancelled():
            settled.result()
            self._end(run)
            self._tell()
        self.wake()

    def _go_on(self, move: int) -> None:
        """What is left of a release that was withdrawn, unless all of it is on its way."""
        wish = self._leaving[move].wish
        leaving = self.cycle.range_changes.wishes.leaving.get(wish)
        if leaving is None:
            return
        running = [(w.started_s, w.running) for w in leaving.workers if w.running is not None]
        if running:
            began_s, record = min(running, key=lambda one: one[0])
            logger.warning(
                "%s: %s was not released in time, what is left of it stays: offset %d has been running for %.1f s",
                wish.dispatch.label,
                wish.within,
                record.offset,
                max(0.0, asyncio.get_running_loop().time() - began_s),
            )
        self.cycle.range_changes.withdraw(wish)

    def _end(self, run: PartitionRun) -> None:
        """Of a partition of which nothing is held any more."""
        if not run.dispatch.workers and run in self.runs:
            self.runs.remove(run)
            self.ends(run)
            share_buffer(self.runs, self.settings.limits.buffer_bytes_max)

    def leave(self) -> "list[asyncio.Future[None]]":
        """Give up all that is held, in the last transactions; what was asked for before is among it."""
        self._leaves = True
        self.cycle.range_changes.end()
        futures = [leaving.settled for leaving in self._leaving.values()]
        for run in self.runs:
            wishes = [ReleaseWish(run.dispatch, within, run.cut) for within in self._held(run)]
            futures += [self.cycle.range_changes.ask(wish) for wish in wishes]
        return futures

    def _held(self, run: PartitionRun) -> list[KeyRange]:
        """What a run holds and does not give up yet, touching ranges as one."""
        workers = (worker for worker in run.dispatch.workers if not self.cycle.releases.is_given_up(worker))
        return join_neighbours((KeyRange(worker.first, worker.end) for worker in workers), KeyRange.join)


class _GrantsRestoring:
    """Of the state of grants, until all of them are taken up; ``run`` may be called again."""

    def __init__(self, holding: Holding, granted: Sequence[_GrantPart]) -> None:
        self.holding, self.left = holding, list(granted)

    async def run(self) -> None:
        """Each partition is taken up when its state is whole. Raises Expelled, StateError, LogError, BrokerError."""
        ranges: dict[SourcePartition, list[KeyRange]] = {}
        for one in self.left:
            ranges.setdefault(one.place, []).append(one.within)
        await self.holding.keeper.take_up(ranges, self._read, self.holding.own_ledger.incarnation, self._is_whole)

    async def _read(self) -> Ledger:
        own_ledger = self.holding.own_ledger
        await own_ledger.read_of(sorted({one.place for one in self.left}))
        own_ledger.check()
        return own_ledger.ledger

    def _is_whole(self, place: SourcePartition) -> None:
        own = [one for one in self.left if one.place == place]
        self.left = [one for one in self.left if one.place != place]
        self.holding.own_ledger.check()
        self.holding._begin(own)


def _nobody(_: object) -> None:
    """Nobody hears it."""
