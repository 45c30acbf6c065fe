"""Reading source partitions: the main reader that moves the front, and the catch-up pass behind it.

The main reader waits while the workers, not the reading, are slow. The main reader drops a worker that delays the
others: the worker's records are no longer queued. Then a single catch-up pass per partition serves all dropped workers,
from their least offset on. The pass never waits for a single full worker, and stops at the front. Where the pass would
have to wait and a worker left behind has room, the pass begins anew: the worker furthest behind is the bottleneck, and
must not be idle while others are served. The decisions are in dispatch.py and room.py; this module does the fetching.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from ...brokers.patience import Patience, ask_until_answered, close_within, rest
from ...brokers.protocol import (
    Batch,
    Broker,
    BrokerError,
    BrokerTimeout,
    ConsumerRecord,
    NotAuthorized,
    Reader,
    TopicPartition,
)
from ...errors import InvariantBroken
from ...state.overlay import OverlayEntry
from ..partition.dispatch import Blocked, PartitionDispatch
from ..partition.room import RoomWait, Verdict
from ..partition.worker import Worker
from ..settings import Settings
from .old_records import OldRecords
from .partition_run import PartitionRun
from .slots import Slots

logger = logging.getLogger("keylanes")

FETCH_WAIT_MS = 200
"""The longest wait of a fetch for new records."""
STARTED_MS = 20
"""The longest wait of a reader for ready workers to begin, when the loop has had no time for them."""

WORKED_OFF_MS = 100
"""The longest wait of a reader for workers to work off their records."""

IDLE_TURNS = 3
"""After this number of turns of the loop without a finished record, the loop has time for more records."""

BLOCKED_CHECK_MS = 20
"""How often a reader that stands at a full worker looks whether the others run dry."""

CATCH_UP_CHECK_MS = 1_000
"""How often a partition looks whether a dropped worker has room again, beside the event ``lacks``."""

CATCH_UP_READERS_MAX = 8
"""The limit of catch-up passes at once; other partitions wait for a reader."""

CATCH_UP_PASS_MS = 100
"""A pass that has read for this long and has to wait leaves the reader to a waiting partition."""

ReadAhead: TypeAlias = Callable[[PartitionRun, Sequence[ConsumerRecord]], Awaitable[Sequence[OverlayEntry | None]]]
"""Reads the state of records ahead and returns the overlay entries: see ``Keeper.read_ahead``."""


class MainReader:
    """Reads all source partitions on one connection, each only after its last batch was handed out."""

    def __init__(
        self,
        broker: Broker,
        slots: Slots,
        settings: Settings,
        read_ahead: ReadAhead,
        old_records: OldRecords,
    ) -> None:
        self.runs: dict[TopicPartition, PartitionRun] = {}
        self.broker = broker
        self.slots = slots
        self.settings = settings
        self.read_ahead = read_ahead
        self.is_stopped = False
        self.old_records = old_records
        self._begun: set[TopicPartition] = set()
        """Partitions with at least one record read."""
        self._positions: dict[TopicPartition, int] = {}
        """The offset behind the last batch of each partition."""
        self._blocked: dict[TopicPartition, asyncio.Task[None]] = {}
        """Tasks that stand at a full worker and hand out the rest of a batch. These partitions are not fetched."""
        self._moved = asyncio.Event()
        """Partitions to fetch may have come, or the reader stops."""
        self._fetching: asyncio.Task[list[Batch]] | None = None
        self._has_changed = self._has_ended = False
        """The set of partitions has changed since it was assigned to the reader; ``run`` has ended."""
        self._removed: set[asyncio.Task[None]] = set()
        """Cancelled tasks that stood at a full worker of a removed partition."""
        self._records_read = 0
        """The number of read records, the counterpart of ``slots.records_done``."""

    async def run(self) -> None:
        """Read until stopped or cancelled; waits for a broker that is away or refuses reading."""
        patience = Patience(self.settings.broker_retry_ms, "reading")
        try:
            await ask_until_answered(lambda: self._read(patience), patience)
        finally:
            self._has_ended = True
            for task in list(self._blocked.values()):
                task.cancel()

    async def _read(self, patience: Patience) -> None:
        """Read on one connection until stopped, from the offset behind the last fetched record."""
        if self.is_stopped:
            return
        reader = await self.broker.reader(self._positions)
        try:
            while not self.is_stopped:
                await self._step(reader)
                patience.note_answer()
        finally:
            await _close(reader, self.settings)

    def add(self, run: PartitionRun) -> None:
        """Read another partition, too, from its front on."""
        self.runs[run.dispatch.place] = run
        self._positions[run.dispatch.place] = run.dispatch.front
        self._has_changed = True
        self._moved.set()
        if self._fetching is not None:  # a fetch under way may wait long for a record of another partition
            self._fetching.cancel()

    def remove(self, run: PartitionRun) -> None:
        """Read a partition no more. Fetched records that were not handed out are dropped."""
        place = run.dispatch.place
        if self.runs.get(place) is run:
            del self.runs[place], self._positions[place]
            self._has_changed = True
            if (task := self._blocked.pop(place, None)) is not None:
                self._removed.add(task)
                task.cancel()
            self._moved.set()

    def stop(self) -> None:
        """Hand out nothing more."""
        self.is_stopped = True
        self._moved.set()

    async def _step(self, reader: Reader) -> None:
        """Fetch once from the partitions without a full worker, and hand out the batches. A partition may leave in each
        await, and come back with another ``PartitionRun``: its batch is then dropped.
        """
        if self._has_changed:  # here, where all fetched records are handed out
            self._has_changed = False
            reader.assign(self._positions)
        fetched = dict(self.runs)  # as assigned
        free = [source for source in self.runs if source not in self._blocked]
        if not free:
            self._moved.clear()
            await self._moved.wait()
            return
        await self._until_started()
        await self._until_worked_off()
        wait_ms = BLOCKED_CHECK_MS if self._blocked else FETCH_WAIT_MS
        batches = await self._fetch(reader, free, wait_ms)
        for batch in batches:
            if self.is_stopped:
                return
            run = fetched[batch.source]
            if self.runs.get(batch.source) is not run:
                continue
            cells = await self.read_ahead(run, batch.records)
            if self.is_stopped:
                return
            if self.runs.get(batch.source) is not run:
                continue
            if batch.records and batch.source not in self._begun:
                self._begun.add(batch.source)
                self.old_records.look(run, batch.records[0])
            self._positions[batch.source] = batch.offset_next
            self._records_read += len(batch.records)
            index = await self.slots.hand_through(run, batch, cells) if run.handler.is_plain else 0
            if self.is_stopped:
                return
            if self.runs.get(batch.source) is not run:
                continue
            blocked = self._hand_out(run, batch, index)
            if blocked is not None:
                name = f"the reader that stands in {run.label}"
                task = asyncio.get_running_loop().create_task(self._stand(run, batch, blocked), name=name)
                self._blocked[batch.source] = task
                task.add_done_callback(self._stood(batch.source))
        if batches:
            await asyncio.sleep(0)

    async def _fetch(self, reader: Reader, free: Sequence[TopicPartition], wait_ms: int) -> list[Batch]:
        """Fetch records of the partitions ``free``; nothing when the set of partitions has changed."""
        if self._has_changed:
            return []
        fetch = reader.fetch(free, records_max=self.settings.limits.fetch_records_max, wait_ms=wait_ms)
        fetching = self._fetching = asyncio.ensure_future(fetch)
        try:
            await asyncio.wait({fetching})
        finally:
            self._fetching = None
            fetching.cancel()
        return [] if fetching.cancelled() else fetching.result()

    async def _until_started(self) -> None:
        """Let workers that wait for the loop begin: reading on would only make queues longer. The wait is bounded:
        other workers may have nothing to do.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + STARTED_MS / 1000
        while self.slots.has_unstarted and not self.is_stopped and loop.time() < until:  # noqa: ASYNC110  # one turn of the loop each
            await asyncio.sleep(0)

    async def _until_worked_off(self) -> None:
        """Let the workers work off their records, down to about one fetch and one record for each worker, as long as
        the processor is the bottleneck. The longer records are queued, the fewer of them are in the processor's caches
        when their turn comes. Where the loop has time, a wait would only make workers idle. The wait is bounded:
        skipped records, and records queued behind a stuck record, count as waiting, too.
        """
        slots, loop = self.slots, asyncio.get_running_loop()
        most = self.settings.limits.fetch_records_max + sum(len(run.dispatch.workers) for run in self.runs.values())
        until, done, idle = loop.time() + WORKED_OFF_MS / 1000, -1, 0
        while self._records_read - slots.records_done > most and idle < IDLE_TURNS and not self.is_stopped:
            if loop.time() >= until:
                self._records_read = slots.records_done
            idle = idle + 1 if slots.records_done == done else 0
            done = slots.records_done
            await asyncio.sleep(0)
        self._records_read = max(self._records_read, slots.records_done)

    def _hand_out(self, run: PartitionRun, batch: Batch, index: int) -> Blocked | None:
        """Hand out a batch from ``index`` on, and start workers; see ``PartitionDispatch.hand_out``."""
        ready: list[Worker] = []
        blocked = run.dispatch.hand_out(batch, index, ready)
        self.slots.activate(run, ready)
        return blocked

    async def _stand(self, run: PartitionRun, batch: Batch, blocked: Blocked | None) -> None:
        """Hand out the rest of a batch: at each full worker wait for room, or go on without the worker."""
        dispatch = run.dispatch
        while blocked is not None and not self.is_stopped:
            full_wait_ms = self.settings.limits.full_wait_ms
            has_room = await wait_for_room(run, run.room, blocked, dispatch.fed_by_front, full_wait_ms)
            if self.is_stopped:
                return
            if not has_room:
                dispatch.drop(blocked, batch)
                run.lacks.set()
            blocked = self._hand_out(run, batch, blocked.index)

    def _stood(self, source: TopicPartition) -> Callable[["asyncio.Task[None]"], None]:
        """The callback for the end of a task of ``_stand``."""

        def ended(task: "asyncio.Task[None]") -> None:
            is_removed = task in self._removed
            self._removed.discard(task)
            if not is_removed:
                self._blocked.pop(source, None)
            self._moved.set()
            if task.cancelled():
                if not self._has_ended and not is_removed:  # the rest of the batch would be skipped in silence
                    self.slots.fail(InvariantBroken(f"{task.get_name()} was cancelled by somebody else"))
            elif (error := task.exception()) is not None:
                self.slots.fail(error)

        return ended


class CatchUp:
    """The catch-up pass of each partition. A bounded number of readers serves all passes; the next pass reuses them."""

    def __init__(self, broker: Broker, slots: Slots, settings: Settings, read_ahead: ReadAhead) -> None:
        self.broker = broker
        self.slots = slots
        self.settings = settings
        self.read_ahead = read_ahead
        self.passes = 0
        self.is_stopped = False
        self._limit = asyncio.Semaphore(CATCH_UP_READERS_MAX)
        self._waiting = 0
        """The number of partitions that wait for a reader."""
        self._idle: list[Reader] = []
        self._opening: asyncio.Task[None] | None = None
        """Connects an idle reader."""

    def make_ready(self) -> None:
        """Connect a reader for a pass that will begin soon, unless a reader is idle."""
        if not (self._idle or self._opening or self.is_stopped):
            self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        try:
            self._idle.append(await self.broker.reader({}))
        except BrokerError as error:
            logger.debug("a reader for the next pass can't be connected: %s", error)  # the pass will report the error
        finally:
            self._opening = None

    async def run(self, run: PartitionRun) -> None:
        """Begin a pass of a partition whenever a dropped worker has room; until stopped or cancelled."""
        patience = Patience(self.settings.broker_retry_ms, f"catching up on {run.label}")
        while not self.is_stopped:
            run.lacks.clear()
            if run.dispatch.catch_up_start() is None:
                await rest(CATCH_UP_CHECK_MS / 1000, run.lacks)
                continue
            self._waiting += 1
            try:
                await self._limit.acquire()
            finally:
                self._waiting -= 1
            try:
                await self._pass(run, patience)
            except (BrokerTimeout, NotAuthorized) as error:
                await patience.wait(error)
            finally:
                self._limit.release()

    def stop(self) -> None:
        """Begin no pass any more, and end passes under way."""
        self.is_stopped = True

    async def close(self) -> None:
        """Let go of the readers."""
        if (opening := self._opening) is not None:
            opening.cancel()
            await asyncio.wait({opening})
        idle, self._idle = self._idle, []
        for reader in idle:
            await _close(reader, self.settings)

    async def _pass(self, run: PartitionRun, patience: Patience) -> None:
        """One catch-up pass, with an idle reader or a new one."""
        dispatch, source = run.dispatch, run.dispatch.place
        start = dispatch.catch_up_start()
        if start is None:
            return
        if not self._idle and self._opening is not None:
            await asyncio.wait({self._opening})
        if self._idle:
            reader = self._idle.pop()
            reader.assign({source: start})
        else:
            reader = await self.broker.reader({source: start})
        dispatch.begin_pass(start)
        is_over = self._pass_end(dispatch)
        self.passes += 1
        is_usable = False
        try:
            while dispatch.pass_position is not None and not self.is_stopped:
                batches = await reader.fetch(
                    [source], records_max=self.settings.limits.fetch_records_max, wait_ms=BLOCKED_CHECK_MS
                )
                patience.note_answer()
                for batch in batches or [Batch(source, (), reader.position(source))]:
                    await self._hand_out(run, batch, is_over)
                    if dispatch.pass_position is None or self.is_stopped:
                        break
                if not dispatch.followers():
                    dispatch.end_pass()
            is_usable = True
        finally:
            dispatch.end_pass()
            if is_usable:
                reader.assign({})
                self._idle.append(reader)
            else:
                await _close(reader, self.settings)

    async def _hand_out(self, run: PartitionRun, batch: Batch, is_over: Callable[[], bool]) -> None:
        """Hand out a batch of the pass; at each full worker wait for room, drop the worker again, or end the pass."""
        dispatch, index = run.dispatch, 0
        await self.read_ahead(run, batch.records)
        while not self.is_stopped:
            ready: list[Worker] = []
            blocked = dispatch.catch_up(batch, index, ready)
            self.slots.activate(run, ready)
            if blocked is None:
                await asyncio.sleep(0)
                return
            index = blocked.index
            has_room = await wait_for_room(
                run, run.catch_up_room, blocked, dispatch.followers, self.settings.limits.full_wait_ms, is_over
            )
            if not has_room and is_over():
                dispatch.end_pass()
                return
            if not has_room:
                dispatch.drop_again(blocked, batch)
                if not dispatch.followers():
                    dispatch.end_pass()
                    return

    def _pass_end(self, dispatch: PartitionDispatch) -> Callable[[], bool]:
        """A function that says whether a pass that begins now should end where the pass has to wait: when a worker left
        behind has room, or when another partition waits for the reader. The next pass goes on from there.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + CATCH_UP_PASS_MS / 1000
        return lambda: dispatch.should_begin_anew() or (self._waiting > 0 and loop.time() >= until)


async def wait_for_room(
    run: PartitionRun,
    room: asyncio.Event,
    blocked: Blocked,
    fed: Callable[[], Sequence[Worker]],
    full_wait_ms: int,
    is_over: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until the full worker has room: True. False: the reader should go on without the worker, or end."""
    loop = asyncio.get_running_loop()
    waiting = RoomWait(run.dispatch, blocked, loop.time(), full_wait_ms)
    verdict: Verdict = "go" if waiting.may_go_on() else "wait"
    while verdict == "wait":
        blocked.worker.awaited_bytes = blocked.size
        room.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BLOCKED_CHECK_MS / 1000):
                await room.wait()
        verdict = waiting.look(loop.time(), fed)
        if verdict != "go" and is_over():
            return False
    return verdict == "go"


async def _close(reader: Reader, settings: Settings) -> None:
    await close_within(settings.close_timeout_ms, reader.close(), "closing a reader")
