"""The ranges of this process: the host of group/member.py.

``next_steps`` compares the logs with the ranges (``HeldRanges``), and says which steps are missing. The host begins the
steps, notes them, and asks again when a log was read on or a step has ended. A range changes hands in these steps, each
of which leads to the next:

1. *Asked.* The owner reads a request to release a range (``HearRequest``).
2. *Winding.* At once no record of the range is begun; all other work goes on (``WindDown``).
3. *Released.* Workers that run nothing go, with their edges and bounds, in a transaction that begins at once. The
   others follow as they come to their end. After a withdrawal the others go on (``GoOn``).
4. The owner tells of the release (``SayReleased``). The coordinator reads the release, and grants the free points.
5. *Granted.* The new owner reads the grant (``HearGrants``). The grant has offsets and bounds, and needs no other log.
6. *Restored.* With state: READ both logs, then the changelog to an end that is asked for after that (``RestoreState``).
   Nothing of that where nobody has written since the own release (``TakeBack``).
7. *Taken up.* Workers are made, and reading begins (``TakeUp``). The next transaction writes the workers down.

Steps that wait run in tasks of their own: no step holds up another one, and ``Out`` acts whatever runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol, assert_never

from ..brokers.patience import Patience, ask_until_answered, fatal_of
from ..brokers.protocol import BrokerError, TopicPartition
from ..group.held_ranges import Grant, HeldRanges
from ..group.member import (
    ExpectMore,
    Fail,
    FollowCopies,
    GiveUpAll,
    GoOn,
    HearGrants,
    HearRequest,
    LogEnds,
    NextSteps,
    Out,
    OwnProcess,
    RestoreState,
    SayReleased,
    Settle,
    Step,
    TakeBack,
    TakeUp,
    WindDown,
    has_left,
    note_step,
)
from ..keyrange.ranges import WHOLE, KeyRange
from ..offsets.ledger import Ledger, SourcePartition
from ..offsets.signals import ReleaseTold
from .engine.commit_alarm import CommitAlarm
from .engine.partition_run import PartitionRun
from .engine.range_changes import RangeChanges, share_buffer
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
from .watch.steps import Step as HandOverStep

logger = logging.getLogger("keylanes")


class Readers(Protocol):
    """Reads the source partitions of a process."""

    def begin_reading(self, runs: Sequence[PartitionRun]) -> None:
        """Read these partitions, too."""

    def end_reading(self, run: PartitionRun) -> None:
        """Read a partition no more."""

    def expect_more(self) -> None:
        """A partition will soon have to be read from behind its front."""


class _OpenRelease(NamedTuple):
    """A release under way; ``settled`` ends with the last commit of the release."""

    wish: ReleaseWish
    settled: "asyncio.Future[None]"


class HeldPoints(NamedTuple):
    """Points ``[first, end)`` of a source partition. All below offset ``edge`` is committed."""

    source: TopicPartition
    first: int
    end: int
    edge: int


class Holding:
    """The ranges of a process. ``runs``: the partitions with ranges here; a run begins with the first range of a
    partition, and ends with the last one. ``log_ends`` is called with new runs once the ends of their partitions are
    known.
    """

    def __init__(
        self,
        own_ledger: OwnLedger,
        member_signals: MemberSignals,
        sources: Sources,
        handlers: Mapping[str, Handler],
        keeper: Keeper,
        range_changes: RangeChanges,
        alarm: CommitAlarm,
        readers: Readers,
        log_ends: Callable[[Sequence[PartitionRun]], None],
        settings: Settings,
        on_step: Callable[[HandOverStep], None],
        decide: NextSteps,
    ) -> None:
        self.own_ledger = own_ledger
        self.member_signals = member_signals
        self.sources = sources
        self.handlers = handlers
        self.keeper = keeper
        self.range_changes = range_changes
        self.alarm = alarm
        self.readers = readers
        self.log_ends = log_ends
        self.settings = settings
        self.on_step = on_step
        self.decide = decide
        self.runs = range_changes.runs
        self.held = HeldRanges()
        self.found: dict[TopicPartition, int] = {}
        """The end of each source partition when a range of the partition was first taken up."""
        self.is_settled = asyncio.Event()
        """The free ranges of the plan that answers the joining were taken up."""
        self.is_closed = False
        """No range changes any more."""
        self._topics = frozenset(handlers)
        self._stateful = frozenset(topic for topic, handler in handlers.items() if handler.stores)
        self._numbers = WorkerNumbers()
        self._tasks: set[asyncio.Task[None]] = set()
        """The restores, and the looks at sources."""
        self._error: BaseException | None = None
        """The error of a task, which ends the run."""
        self._releases: dict[int, _OpenRelease] = {}
        """The releases under way, by move."""
        self._last_releases: list[asyncio.Future[None]] = []
        """The releases at the end of the run."""
        self._changed = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        """The futures of ``wait_for_change``."""
        self._given_up: list[HeldPoints] = []
        """The points that were given up at the end of the run."""
        self._starts = 0
        """How many starts of partitions were read at the last look."""
        self._partitions: dict[str, int] = {}
        """The number of partitions of each source topic, by the starts."""

    def wake(self) -> None:
        """Look again: the control log was read on, or a step has ended."""
        self._changed.set()

    async def wait_for_change(self) -> None:
        """Wait until the ranges have changed, or may have; raises CancelledError when the run ends before."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.is_closed:
            future.cancel()
        self._waiting.append(future)
        await future

    def close(self) -> None:
        """Cancel all waits for a change: no change comes any more."""
        self.is_closed = True
        for future in self._waiting:
            future.cancel()

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Begin steps until cancelled, or until this process has left in order. Raises Expelled, SourceError,
        StateError, LogError.
        """
        try:
            while not self.has_left():
                self._changed.clear()
                self._begin_steps()
                await self._changed.wait()
        finally:
            for task in self._tasks:
                task.cancel()

    def _begin_steps(self) -> None:
        """Begin the next steps. Raises Expelled, and the error of a step that failed."""
        ledger, identity, held = self.own_ledger.ledger, self.own_ledger.identity, self.held
        self._look_at_starts()
        wishes = self.range_changes.wishes
        held.uncommitted = [(dispatch.place, within) for dispatch, within in wishes.uncommitted_releases]
        held.forget_requests(ledger.control.moves.release_requests)
        own = OwnProcess(identity.birth, identity.incarnation, self._topics, self._stateful)
        for step in self.decide(ledger, own, held):
            if self._begin(step):
                note_step(held, own, step)
        self._tell_change()

    def _begin(self, step: Step) -> bool:
        """Begin a step. False: there was nothing to begin."""
        match step:
            case Out():
                self.own_ledger.check()
            case Fail():
                assert self._error is not None, "a step has failed"
                raise self._error
            case HearRequest() | HearGrants():
                self.on_step("asked" if isinstance(step, HearRequest) else "granted")
            case Settle():
                self.is_settled.set()
            case FollowCopies(copies):
                self.keeper.learner.follow(copies)
            case SayReleased(told):
                self.member_signals.tell_release(told)
            case ExpectMore():
                self.readers.expect_more()
            case LogEnds(places):
                self.log_ends([run for run in self.runs if run.dispatch.place in places])
            case GoOn() | WindDown() | TakeBack() | RestoreState() | TakeUp() | GiveUpAll():
                return self._begin_change(step)
            case _:
                assert_never(step)
        return True

    def _begin_change(self, step: GoOn | WindDown | TakeBack | RestoreState | TakeUp | GiveUpAll) -> bool:
        """Begin a step that changes the ranges. False: there was nothing to begin."""
        match step:
            case GoOn(move):
                self._go_on(move)
            case WindDown():
                return self._wind_down(step)
            case TakeBack(grants):
                for place, _, within in grants:
                    self.keeper.take_back(place, within)
            case RestoreState(grants):
                self._spawn(partial(self._restore, grants), "taking up what was granted")
            case TakeUp(grants):
                self._take_up(grants)
            case GiveUpAll(ranges):
                self._give_up(ranges)
        return True

    def _look_at_starts(self) -> None:
        """Tell the runs how many partitions their topics have."""
        events = self.own_ledger.ledger.control.start_events
        if len(events) != self._starts:
            self._starts = len(events)
            for (topic, _), event in events.items():
                self._partitions[topic] = max(self._partitions.get(topic, 0), event.partitions)
            for run in self.runs:
                run.dispatch.partitions = self._partitions[run.dispatch.topic]

    def _tell_change(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _spawn(self, work: Callable[[], Awaitable[None]], what: str) -> None:
        """Begin work that waits; an error of the work ends the run."""
        task = asyncio.ensure_future(ask_until_answered(work, Patience(self.settings.broker_retry_ms, what)))
        self._tasks.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._error = fatal_of(error) if isinstance(error, BrokerError) else error
                self.held.has_failed = True
            self.wake()

        task.add_done_callback(end)

    # --- questions ---------------------------------------------------------------------------------------------------

    def has_left(self) -> bool:
        """Whether the group goes on without this process, after a request to leave."""
        return self.member_signals.leaves and has_left(self.own_ledger.ledger.control, self.own_ledger.incarnation)

    def points(self) -> Iterator[HeldPoints]:
        """All points that are taken up, or are being restored, with their edges; at the end, the points held last."""
        for dispatch in (run.dispatch for run in self.runs):
            for worker in dispatch.workers:
                yield HeldPoints(dispatch.place, worker.first, worker.end, worker.edge)
        for place, epoch, within in (*chain(*self.held.restoring.values()), *self.held.whole):
            part = self.own_ledger.ledger.partition(place).parts.get(epoch)
            if part is not None:  # else it was granted to others since
                for piece in part.edges.pieces(within.first, within.end):
                    yield HeldPoints(TopicPartition(*place), *piece)
        yield from self._given_up

    def edges(self) -> dict[TopicPartition, int]:
        """The least edge of each partition's points."""
        found: dict[TopicPartition, int] = {}
        for source, _, _, edge in self.points():
            found[source] = min(edge, found.get(source, edge))
        return found

    def holds_nothing(self) -> bool:
        """Whether this process has no range, and none is being taken up or released."""
        return not self.runs and not self.held.is_moving

    def is_at_rest(self) -> bool:
        """Whether all granted ranges are taken up, and none is being released."""
        return self.is_settled.is_set() and not self.held.is_moving

    def is_giving_up(self, place: SourcePartition, within: KeyRange = WHOLE) -> bool:
        """Whether a transaction without a known outcome releases some of these points."""
        going = self.range_changes.wishes.uncommitted_releases
        return any(dispatch.place == place and gone.overlaps(within) for dispatch, gone in going)

    def _run_of(self, place: SourcePartition) -> PartitionRun | None:
        return next((run for run in self.runs if run.dispatch.place == place), None)

    # --- taking up ---------------------------------------------------------------------------------------------------

    async def _restore(self, grants: Iterable[Grant]) -> None:
        """Make the state of grants whole, partition by partition; a second call goes on with the rest. Raises Expelled,
        StateError, LogError, BrokerError.
        """
        left = [grant for grant in grants if grant in self.held.restoring.get(grant.place, ())]
        await self.keeper.take_up(
            _by_place(left), partial(self._read, left), self.own_ledger.incarnation, partial(self._note_whole, left)
        )

    async def _read(self, grants: Iterable[Grant]) -> Ledger:
        await self.own_ledger.read_of(sorted({grant.place for grant in grants}))
        self.own_ledger.check()
        return self.own_ledger.ledger

    def _note_whole(self, grants: Iterable[Grant], place: SourcePartition) -> None:
        self.held.note_restored(grant for grant in grants if grant.place == place)
        self.wake()

    def _take_up(self, grants: Sequence[Grant]) -> None:
        """Make workers for grants with whole state, and begin to read."""
        self.on_step("restored")
        ledger, new = self.own_ledger.ledger, []
        for place in dict.fromkeys(grant.place for grant in grants):
            own = [grant for grant in grants if grant.place == place]
            parts = {grant.epoch: ledger.partition(place).parts[grant.epoch] for grant in own}
            run = self._run_of(place)
            if run is None:
                pieces = ((grant.epoch, grant.within) for grant in own)
                edges = [piece for epoch, one in pieces for piece in parts[epoch].edges.pieces(one.first, one.end)]
                run = self._make_run(place, max(edge for _, _, edge in edges))
                self.runs.append(run)
                new.append(run)
            for epoch, part in sorted(parts.items()):
                within = [grant.within for grant in own if grant.epoch == epoch]
                self.range_changes.add_grant(run.dispatch, epoch, part, within, run.cut)
        self.on_step("taken up")
        if new:
            self.readers.begin_reading(new)
        self._spawn(partial(self._look_at_sources, grants, new), "looking at what was granted")

    async def _look_at_sources(self, grants: Iterable[Grant], new: Iterable[PartitionRun]) -> None:
        """Look, beside the work, whether the sources have the records of grants: the work would fail in other words.
        Raises SourceError, BrokerError.
        """
        marks = await self.sources.check_held(self.own_ledger.ledger, _by_place(grants))
        for source, mark in marks.items():
            self.found.setdefault(source, mark.high)
        self.held.looks -= 1
        self.held.new_places += [run.dispatch.place for run in new]

    def _make_run(self, place: SourcePartition, front: int) -> PartitionRun:
        own_ledger, handler = self.own_ledger, self.handlers[place[0]]
        dispatch = PartitionDispatch(*place, front, self.settings.limits.buffer_bytes_max, self._numbers)
        dispatch.incarnation, dispatch.app_id = own_ledger.incarnation, own_ledger.app_id
        dispatch.partitions = self._partitions[dispatch.topic]
        run = PartitionRun(dispatch, handler, place_of(*place, own_ledger.app_id))
        if handler.stores:
            run.state, run.bindings = self.keeper.attach(TopicPartition(*place), handler)
        return run

    # --- giving up ---------------------------------------------------------------------------------------------------

    def _wind_down(self, step: WindDown) -> bool:
        """Begin a release. False: the workers are gone already."""
        run = self._run_of(step.place)
        if run is None:
            return False
        wish = ReleaseWish(dispatch=run.dispatch, within=step.within, wanted=run.cut, move=step.move, epoch=step.epoch)
        try:
            settled = self.range_changes.ask(wish)
        except ValueError:
            return False
        self._releases[step.move] = _OpenRelease(wish, settled)
        self.on_step("winding")
        settled.add_done_callback(partial(self._end_release, step.move, run))
        self.alarm.wake()
        return True

    def note_released(self, transaction: int, released: Released) -> None:
        """A transaction that releases bands was committed."""
        self.on_step("released")
        dispatch, incarnation = released.dispatch, self.own_ledger.incarnation
        told = ReleaseTold(
            incarnation=incarnation,
            transaction=transaction,
            move=released.move,
            topic=dispatch.topic,
            partition=dispatch.partition,
            bands=released.bands,
        )
        self.held.note_released(told, is_stateful=dispatch.topic in self._stateful)
        if self.held.gives_all_up:
            bands = [(band.first, band.end, band.edge) for band in released.bands]
            self._given_up += [HeldPoints(dispatch.place, a, b, edge) for a, b, edge in bands if edge is not None]
        self.wake()

    def note_release_settled(self) -> None:
        """A commit with releases is through: copies may follow the released points."""
        self.held.copies = None
        self.wake()

    def _end_release(self, move: int, run: PartitionRun, settled: "asyncio.Future[None]") -> None:
        """A release is through, or was withdrawn."""
        self._releases.pop(move, None)
        self.held.note_release_ended(move, run.dispatch.place)
        if not settled.cancelled():
            settled.result()
            self._end_run(run)
            self._tell_change()
        self.wake()

    def _go_on(self, move: int) -> None:
        """A release was withdrawn: workers that are not released yet go on."""
        wish = self._releases[move].wish
        leaving = self.range_changes.wishes.leaving.get(wish)
        if leaving is None:  # all workers are released, in a transaction that is not through
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
        self.range_changes.withdraw(wish)

    def _end_run(self, run: PartitionRun) -> None:
        """End the run of a partition, unless the partition has ranges here."""
        if not run.dispatch.workers and run in self.runs:
            self.runs.remove(run)
            self.readers.end_reading(run)
            share_buffer(self.runs, self.settings.limits.buffer_bytes_max)

    def leave(self) -> "list[asyncio.Future[None]]":
        """Give up all ranges, in the last transactions. Returns the future of each open release. Raises Expelled."""
        self.held.gives_all_up = True
        self.range_changes.end()
        self._begin_steps()
        return [*(release.settled for release in self._releases.values()), *self._last_releases]

    def _give_up(self, points: Iterable[tuple[SourcePartition, KeyRange]]) -> None:
        """Begin the last releases."""
        runs = ((self._run_of(place), within) for place, within in points)
        wishes = [ReleaseWish(run.dispatch, within, run.cut) for run, within in runs if run is not None]
        self._last_releases += [self.range_changes.ask(wish) for wish in wishes]


def _by_place(grants: Iterable[Grant]) -> dict[SourcePartition, list[KeyRange]]:
    """The ranges of grants, by place."""
    found: dict[SourcePartition, list[KeyRange]] = {}
    for grant in grants:
        found.setdefault(grant.place, []).append(grant.within)
    return found
