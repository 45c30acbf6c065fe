"""The commit cycle: takes a generation of what is done and makes it visible, without stopping any handler.

A transaction that fails is sent again from memory: handlers are not run again. Whatever the failure, the producer is
replaced: INIT → READ the control log and the own offset log to their ends → look whether the transaction is there →
send it again if not. A refused one is taken apart until the record that is refused stands alone, which then fails as
its handler would; one that timed out is sent in halves.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from ...brokers.protocol import (
    BrokerError,
    BrokerTimeout,
    Outgoing,
    Producer,
    ProducerFenced,
    TopicPartition,
    TransactionRefused,
    TransactionUnknown,
)
from ...brokers.waiting import bounded, fatal_of
from ...errors import BrokerUnavailable, HandlerFailed, InvariantBroken, LogError
from ...keyrange.ranges import KeyRange
from ...offsets.codec import encode
from ...offsets.events import OffsetEvent, RangeReleased
from ...offsets.ledger import Ledger, evolve_all
from ...offsets.snapshots import take_snapshot
from ..handlers.handler import DeadLetter
from ..handlers.outputs import build_dead_letter, stamped_anew
from ..logs.office import Identity, Office
from ..logs.reader import LogReader, offsets_topic, places_of
from ..logs.trimming import History
from ..partition.generation import Generation, StructuralEvent, committed, take
from ..settings import Settings
from ..stores.keeper import Keeper
from .ends import Level
from .partition_run import PartitionRun
from .reshape import Arriving, Reshape, share_buffer
from .slots import Slots

logger = logging.getLogger("keylanes")

RETRY_WAIT_MS = 100
"""The wait before a producer is made again, or an aborted transaction sent again."""


class CommitCycle:
    """One transaction at a time, for all partitions of this process."""

    def __init__(
        self,
        office: Office,
        identity: Identity,
        logs: LogReader,
        runs: Sequence[PartitionRun],
        slots: Slots,
        keeper: Keeper,
        settings: Settings,
        on_step: Callable[[str], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self.ledger: Ledger = office.ledger
        self.incarnation = office.incarnation
        self.transaction = office.transaction
        self.identity, self.logs, self.runs, self.slots = identity, logs, runs, slots
        self.keeper, self.settings = keeper, settings
        self.commits = 0
        self.tiles = 0
        self.event_bytes = 0
        self.last_commit_s: float | None = None
        self.level: Level | None = None
        """Hears which topics are written to, before the edges of the records that did move."""
        self.is_sending = False
        """A generation was taken and is not committed yet: no other may be taken, or a tile would be skipped."""
        self._producer: Producer | None = office.producer
        self._on_step = on_step
        self._folded = 0
        self._since_snapshot = 0
        self._history = History(logs, settings, wall_ms)
        self.reshape = Reshape(slots, settings)
        self._restoring: dict[Arriving, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    # --- the cycle -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Commit in intervals until cancelled; between two transactions nothing of ours is open.

        An interval begins where a commit begins, not where it ends: so what is run again after a crash is what was done
        in an interval, the lead and one transaction, and not in the transaction before, too. One that takes longer than
        an interval is followed by the next at once.
        """
        loop = asyncio.get_running_loop()
        interval, lead = self.settings.commit_interval_ms / 1000, self.settings.commit_lead_ms / 1000
        began = loop.time()
        while True:
            await self._pause(max(began + interval - lead - loop.time(), 0.0))
            lines = self._lines()
            await self._pause(lead)
            began = loop.time()
            await self.commit(lines)
            await self.keeper.write_when_due()

    def _lines(self) -> list[int] | None:
        """The fronts, as the lines that the next generation is cut at. None while so few workers are at work that a
        commit stays small with all that is done then: nothing has to wait for a line.
        """
        more = self.settings.commit_all_workers_max
        for run in self.runs:
            more -= run.dispatch.count_behind(more + 1)
            if more < 0:
                return [run.dispatch.line() for run in self.runs]
        return None

    async def commit(self, lines: Sequence[int] | None = None) -> bool:
        """One generation: what is done below the lines (None: all that is done). False when there was nothing."""
        arrived = await self._arrive()
        self._on_step("take")
        drawn = lines or []
        lines = [*drawn, *(run.dispatch.line() for run in self.runs[len(drawn) :])]  # some are added while it runs
        below = [(run.dispatch, line) for run, line in zip(self.runs, lines, strict=True)]
        turn = self.commits % max(1, len(below))  # where the limits are what ends it, the last would never have a turn
        generation = take(
            [*below[turn:], *below[:turn]],
            records_max=self.settings.generation_records_max,
            bytes_max=self.settings.generation_bytes_max,
        )
        generation.structure += arrived
        now = asyncio.get_running_loop().time()
        self.reshape.change(generation, now)
        self.reshape.begin_holds(self.runs, now)
        if generation.structure:
            share_buffer(self.runs, self.settings.buffer_bytes_max)
        if generation:
            await self.send(generation)
        self.reshape.settle()
        return bool(generation)

    async def _arrive(self) -> list[StructuralEvent]:
        """Workers for the grants that arrived; the ledger must know their epochs before anything is committed there."""
        waiting = self.reshape.arriving
        if all(a in self._restoring and not self._restoring[a].done() for a in waiting):
            return []
        self.reshape.arriving = []  # one that is asked for from here on may be written behind what is read now
        whole: list[Arriving] = []
        try:
            if not all(map(self._knows, waiting)):
                try:
                    await self._read_logs()
                except BrokerError as error:
                    logger.warning("grants that arrived wait: %s", error)
                    return []
            whole = [arrival for arrival in waiting if self._is_whole(arrival)]
        finally:  # also of a run that ends here: whoever waits for a grant is told
            self.reshape.arriving = [*(a for a in waiting if a not in whole), *self.reshape.arriving]
        return self.reshape.arrive(whole, self.ledger, self.incarnation)

    def _knows(self, arrival: Arriving) -> bool:
        """Whether the ledger has the epoch of a grant."""
        place = arrival.run.dispatch.place
        return arrival.epoch in self.ledger.partition(place).parts

    def _is_whole(self, arrival: Arriving) -> bool:
        """Whether the state of what arrives is here; it is restored beside the work on everything else."""
        if (restoring := self._restoring.get(arrival)) is not None:
            if not restoring.done():
                return False
            del self._restoring[arrival]
            restoring.result()
            return True
        if any(other.run is arrival.run for other in self._restoring):
            # Of a grant that nobody waits for any more, maybe over the same points: what it reads of the changelog must
            # not be written behind what is committed under this one.
            return False
        place = arrival.run.dispatch.place
        part = self.ledger.partition(place).parts.get(arrival.epoch)
        if arrival.run.state is None or part is None or part.incarnation != self.incarnation:
            return True
        ranges = [KeyRange(first, end) for first, end, _ in part.froms.pieces()]
        task = asyncio.get_running_loop().create_task(self.keeper.take_up(place, ranges))
        task.add_done_callback(lambda _: self.wake())
        self._restoring[arrival] = task
        return False

    async def send(self, generation: Generation) -> None:
        """Make a generation visible, whatever it takes; raises a FatalError when that can't be done."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.broker_retry_ms / 1000
        waiting = [generation]
        self.is_sending = True
        while waiting:
            part = waiting.pop(0)
            failure = await self._transact(part, deadline)
            if failure is None:
                deadline = loop.time() + self.settings.broker_retry_ms / 1000
            elif isinstance(failure, TransactionRefused):
                waiting = [*self._take_apart(part, failure), *waiting]
            elif isinstance(failure, TransactionUnknown | BrokerTimeout):
                waiting = [*part.halves(), *waiting]
            else:
                waiting = [part, *waiting]
                await asyncio.sleep(RETRY_WAIT_MS / 1000)  # what makes a broker abort may last
            if failure is not None and loop.time() >= deadline:
                raise BrokerUnavailable(
                    f"a transaction could not be committed within {self.settings.broker_retry_ms} ms: {failure}"
                ) from failure
        self.is_sending = False

    def wake(self) -> None:
        """Commit now instead of at the end of the interval."""
        self._wake.set()

    async def close(self) -> None:
        """Let go of the producer; what is open is aborted."""
        self.reshape.close()
        for task in self._restoring.values():
            task.cancel()
        if self._restoring:
            await asyncio.wait(self._restoring.values(), timeout=self.settings.close_timeout_ms / 1000)
        await self._drop_producer()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    # --- one transaction -------------------------------------------------------------------------------------------

    async def _transact(self, generation: Generation, deadline: float) -> BrokerError | None:
        """Send one transaction; None when it was committed, else why it was not (for sure)."""
        if self._producer is None:
            await self._replace_producer(deadline)
        assert self._producer is not None, "a producer was made"
        self.transaction += 1
        transaction = self.transaction
        if self.level is not None:
            for source, destination in generation.writes():
                self.level.discover(source, destination)
        changes = generation.changes()
        changelog, changed = self.keeper.records(changes, self.incarnation, transaction)
        events = [*generation.events(transaction), *changed]
        snapshot = await self._snapshot(transaction)
        records = [*generation.outputs(), *changelog, *self._log_records([*events, *snapshot])]
        limit = self.settings.transaction_timeout_ms + self.settings.request_timeout_ms
        failure: BrokerError | None = None
        positions: Mapping[TopicPartition, int] = {}
        self._on_step("transact")
        try:
            positions = await bounded(self._producer.transact(records), limit, "a transaction")
        except BrokerError as error:
            failure = error
        if failure is not None:
            logger.warning("transaction %d failed: %s: %s", transaction, type(failure).__name__, failure)
            await self._drop_producer()
            await self._replace_producer(deadline, was_fenced=isinstance(failure, ProducerFenced))
            if self.ledger.transactions.get(self.incarnation, 0) < transaction:
                return failure
            logger.info("transaction %d had been committed after all", transaction)
        else:
            self._on_step("committed")
            self.ledger = evolve_all(self.ledger, events)
            self._folded = transaction
        # What is given up may be written by others soon, and may come back: nothing of it may be written later.
        gives_up = any(isinstance(event, RangeReleased) for event in generation.structure)
        await self.keeper.committed(changes, positions, is_last=gives_up)
        self._finish(generation, len(snapshot))
        return None

    def _finish(self, generation: Generation, snapshots: int) -> None:
        for place, epoch in [*self.ledger.violations(), *self.ledger.waiting()]:
            raise InvariantBroken(f"a commit of epoch {epoch} at {place} lies outside what was granted")
        committed(generation)
        for event in generation.structure:
            if isinstance(event, RangeReleased):
                self.keeper.release((event.topic, event.partition), KeyRange(event.first, event.end))
        self.slots.done_bytes -= generation.size
        self.slots.resume()
        self.commits += 1
        self._since_snapshot = 0 if snapshots else self._since_snapshot + 1
        self.last_commit_s = asyncio.get_running_loop().time()
        self._on_step("applied")

    def _log_records(self, events: Sequence[OffsetEvent]) -> list[Outgoing]:
        topic = offsets_topic(self.logs.app)
        records = []
        for event in events:
            log_partition = self.logs.log_partition_of(getattr(event, "partition", 0))
            data = encode(event)
            self.event_bytes += len(data)
            self.tiles += len(getattr(event, "tiles", ()))
            records.append(Outgoing(topic, log_partition, None, data))
        return records

    # --- when a transaction failed ---------------------------------------------------------------------------------

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(BrokerError):
                await bounded(producer.close(), self.settings.close_timeout_ms, "closing a producer")

    async def _replace_producer(self, deadline: float, *, was_fenced: bool = False) -> None:
        """INIT → READ control log and offset log to their ends; raises FencedError when another process took over.

        After a fence it looks before INIT, too: who was expelled stops there. If nobody was, the broker itself fenced a
        transaction that was open for too long.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                if was_fenced:
                    await self._read_logs()
                producer = await self.identity.make_producer()
                try:
                    await self._read_logs()
                except BaseException:
                    with contextlib.suppress(BrokerError):  # else it would stand for what is raised, a cancellation too
                        await asyncio.shield(bounded(producer.close(), self.settings.close_timeout_ms, "closing"))
                    raise
                self._producer = producer
                return
            except BrokerError as error:
                if isinstance(error, ProducerFenced):
                    raise fatal_of(error) from error
                if loop.time() >= deadline:
                    raise BrokerUnavailable(
                        f"the broker could not be reached for {self.settings.broker_retry_ms} ms: {error}"
                    ) from error
                await asyncio.sleep(RETRY_WAIT_MS / 1000)

    async def _read_logs(self) -> None:
        self.ledger = await self.logs.read_control(self.ledger)
        self.identity.check_in_office(self.ledger, self.incarnation)
        folded = (self.incarnation, self._folded)
        try:
            self.ledger = await self.logs.read_offsets(self.ledger, folded)
        except LogError:  # who took over meanwhile trims the log as it sees fit: that is no damage
            self.ledger = await self.logs.read_control(self.ledger)
            self.identity.check_in_office(self.ledger, self.incarnation)
            raise
        self.ledger = await self.identity.checked(self.ledger, self.incarnation)

    def _take_apart(self, generation: Generation, refusal: TransactionRefused) -> list[Generation]:
        culprits = [i for i in refusal.culprits if i < len(generation.outputs())]
        if not culprits:
            raise BrokerUnavailable(
                f"the broker refuses to take the offset log's events or changes of state: {refusal}"
            ) from refusal
        if generation.stretches:  # who is to blame is told when it has been sent record by record
            generation.spread()
            return [generation]
        records = [done for share in generation.shares for done in share.done]
        if len(records) > 1:
            return generation.isolate(culprits)
        share = next(share for share in generation.shares if share.done)  # others may have moved without producing
        done = share.done[0]
        run = next(run for run in self.runs if run.dispatch is share.dispatch)
        failed = run.handler.on_failure
        where = f"{run.label} offset {done.record.offset}: the broker refuses its output: {refusal}"
        destination = self.slots.destinations.get(failed.topic) if isinstance(failed, DeadLetter) else None
        if done.changes:  # later records of its key have seen them
            raise HandlerFailed(f"{where}; it changed state, so it can't become a dead letter any more") from refusal
        if (letter := stamped_anew(done)) is not None:
            logger.warning("%s; it goes there with the time of now", where)
            share.done = [letter]
            return [generation]
        if not isinstance(failed, DeadLetter) or destination is None or done.dead:
            raise HandlerFailed(where) from refusal
        logger.warning("%s; it goes to %s", where, failed.topic)
        letter = build_dead_letter(done.record, failed.topic, destination, run.place, refusal, 1)
        self.slots.done_bytes += letter.size - done.size
        share.done = [letter]
        return [generation]

    # --- snapshots -------------------------------------------------------------------------------------------------

    async def _snapshot(self, transaction: int) -> list[OffsetEvent]:
        """A snapshot of every log partition when it is time for one: to be written with this transaction."""
        if self._since_snapshot < self.settings.snapshot_every_commits:
            return []
        try:
            return await self._take_snapshot(transaction)
        except BrokerError as error:
            logger.warning("no snapshot with transaction %d: %s", transaction, error)
            return []

    async def _take_snapshot(self, transaction: int) -> list[OffsetEvent]:
        await self._read_logs()
        events: list[OffsetEvent] = []
        for log_partition in range(self.logs.log_partitions):
            position = self.logs.positions[self.logs.offsets(log_partition)]
            places = places_of(self.ledger, log_partition, self.logs.log_partitions)
            events += take_snapshot(
                self.ledger, self.logs.app, log_partition, places, position, self.incarnation, transaction
            )
            await self._history.trim(log_partition, position)
        await self.logs.close()  # until the next snapshot its memory is for other things
        return events
