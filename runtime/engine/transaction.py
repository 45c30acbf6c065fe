"""Transactions: each makes a generation visible, and moves the edges after its commit.

A failed transaction is sent again from memory: handlers are not run again. After any failure the producer is replaced,
in this order:

1. INIT: a new producer for the transactional id. The broker ends an open transaction of the old producer first.
2. READ the control log to an own append: an expelled process stops there.
3. If the outcome is unknown: READ the partitions of the offset log that the transaction wrote to, each to an own
   append, and look for the transaction there.

A missing transaction is sent again. A refused transaction is taken apart until the refused record stands alone; the
record then fails as its handler would. A transaction that timed out is sent in halves.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import assert_never

from ...brokers.patience import close_within, fatal_of, give_up_error, refusal_in, within_limit
from ...brokers.protocol import (
    BrokerError,
    BrokerProducer,
    BrokerTimeout,
    Outgoing,
    ProducerFenced,
    ProducerForgotten,
    TopicPartition,
    TransactionAborted,
    TransactionRefused,
    TransactionThrottled,
    TransactionUnknown,
)
from ...brokers.throttling import BYTES_OPEN
from ...errors import BrokerUnavailable, HandlerFailed, InvariantBroken
from ...keyrange.ranges import KeyRange
from ...offsets.codec import encode
from ...offsets.events import (
    Committed,
    LogOpened,
    OffsetEvent,
    RangesReleased,
    SnapshotTaken,
    StateChanged,
    TopicsWritten,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)
from ...offsets.ledger import SourcePartition
from ..handlers.handler import DeadLetter, Stop
from ..logs.own_ledger import OwnLedger, check_violations
from ..logs.reader import offsets_topic
from ..logs.snapshots import Snapshots
from ..partition.cut import Released
from ..partition.generation import Generation, move_edges
from ..partition.taking_apart import Apart, Failed, Replaced, Unblamed, take_apart
from ..settings import Settings
from ..stores.keeper import Keeper
from ..watch.steps import Step
from .slots import Slots

logger = logging.getLogger("keylanes")

RETRY_WAIT_MS = 100
"""The wait before the next try to make a producer, or to send an aborted transaction."""
STOP_SHARE = 0.5
"""The part of a stop's time to drain and to close that is planned for waits of a quota."""


class Transactions:
    """Sends generations, one transaction at a time. Owns the producer.

    ``policies``: dead letter or stop for a record that failed for good, by source topic. ``tiles`` and ``event_bytes``:
    how many tiles, and how many bytes of events, were sent. ``on_release_committed`` is called with the number of a
    committed transaction, for each release in the transaction.
    """

    def __init__(
        self,
        own_ledger: OwnLedger,
        producer: BrokerProducer,
        slots: Slots,
        keeper: Keeper,
        snapshots: Snapshots,
        policies: Mapping[str, DeadLetter | Stop],
        settings: Settings,
        on_step: Callable[[Step], None],
        on_release_committed: Callable[[int, Released], None],
    ) -> None:
        self.own_ledger = own_ledger
        self.slots = slots
        self.keeper = keeper
        self.snapshots = snapshots
        self.policies = policies
        self.settings = settings
        self.commits = 0
        self.tiles = 0
        self.event_bytes = 0
        self.last_commit_s: float | None = None
        self._allowance = own_ledger.identity.broker.throttling.writing
        self._weight = 1.0
        """Bytes written for each byte of the last generation, at most 1: of a key's changes only the last one is
        written.
        """
        self._written = 0
        """The bytes of all transactions before the last one."""
        self._refusals = 0
        """The number of refusals in a row."""
        self._producer: BrokerProducer | None = producer
        self._on_step = on_step
        self._on_release_committed = on_release_committed

    async def send(self, generation: Generation) -> None:
        """Make a generation visible, by as many transactions as needed; raises a FatalError for a failure for good.

        The last try begins after ``broker_retry_ms``: the broker may have come back since an earlier try.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.broker_retry_ms / 1000
        waiting = [generation]
        while waiting:
            part = waiting.pop(0)
            if self.is_throttled:
                self.bound_done(loop.time())
                size = int(part.size * self._weight)
                if self._allowance.is_too_much(size) and part.is_divisible:
                    waiting = [*part.halves(), *waiting]
                    continue
                await asyncio.sleep(self._allowance.wait_s(size, loop.time()))
            began = loop.time()
            failure = self._too_large(part) or await self._transact(part, deadline)
            if failure is None:
                deadline = loop.time() + self.settings.broker_retry_ms / 1000
            elif isinstance(failure, TransactionRefused):
                waiting = [*self._take_apart(part, failure), *waiting]
            elif isinstance(failure, TransactionThrottled | TransactionUnknown | BrokerTimeout):
                waiting = [*part.halves(), *waiting]
            else:
                waiting = [part, *waiting]
                await asyncio.sleep(RETRY_WAIT_MS / 1000)  # the cause of a broker's abort may last
            if failure is not None and began >= deadline:
                what = f"no transaction could be committed within {self.settings.broker_retry_ms} ms"
                raise give_up_error(what, failure) from failure

    def bytes_max(self, now_s: float) -> int:
        """The limit of a generation's bytes now, by the share of the memory and by a quota of the cluster."""
        return min(self.settings.limits.generation_bytes_max, int(self._allowance.bytes_max(now_s) / self._weight))

    def bound_done(self, now_s: float) -> None:
        """Bound the bytes that wait for a commit: a stop has to commit them in time, also under a quota, present or
        possible.
        """
        stop_s = (self.settings.drain_timeout_ms + self.settings.close_timeout_ms) / 1000 * STOP_SHARE
        least = 0 if self.is_throttled else BYTES_OPEN
        most = max(least, int(self._allowance.least_rate(now_s) * stop_s / self._weight))
        self.slots.bound_done(max(1, min(self.settings.limits.done_bytes_max, most)))

    @property
    def is_throttled(self) -> bool:
        """Whether a quota limits the size of generations."""
        return self._allowance.rate is not None

    async def close(self) -> None:
        """Let go of the producer; aborts an open transaction."""
        producer, self._producer = self._producer, None
        if producer is not None:
            limit = self.settings.close_timeout_ms
            await close_within(limit, producer.close(), "closing a producer", excused=BrokerError)

    # --- one transaction -------------------------------------------------------------------------------------------

    async def _transact(self, generation: Generation, deadline: float) -> BrokerError | None:
        """Send one transaction. None: committed; else the error of a transaction that was surely not committed."""
        if self._producer is None:
            await self._replace_producer(deadline)
        assert self._producer is not None, "a producer was made"
        own_ledger = self.own_ledger
        transaction = own_ledger.next_transaction()
        changes = generation.changes()
        changelog, changed = self.keeper.records(changes, own_ledger.incarnation, transaction)
        events = [*generation.events(transaction), *changed, *self._first_writes(generation, transaction)]
        snapshot = await self.snapshots.take_when_due(transaction)
        logged = self._log_records([*events, *snapshot])
        records = [*generation.outputs(), *changelog, *logged]
        if not records:  # a snapshot was due, and can't be taken now
            return None
        limit = self.settings.transaction_limit_ms
        failure: BrokerError | None = None
        positions: Mapping[TopicPartition, int] = {}
        released = [change for change in generation.structure if isinstance(change, Released)]
        self.keeper.part_with(_points(released))
        self._written = self._allowance.total
        async with own_ledger.transaction_lock:
            self._on_step("transact")
            try:
                writing = self._producer.transact(records, in_parts=generation.is_divisible)
                positions = await within_limit(writing, limit, "a transaction")
            except BrokerError as error:
                failure = error
                own_ledger.fold_unknown()
            else:
                self._on_step("committed")
                own_ledger.fold(transaction, events)
        if failure is not None:
            has_expired = isinstance(failure, ProducerForgotten)  # or a newer producer exists: READ raises then
            if not (has_expired or isinstance(failure, TransactionThrottled) or self._say_refusal(failure)):
                logger.warning("transaction %d failed: %s: %s", transaction, type(failure).__name__, failure)
            await self.close()
            is_known = isinstance(failure, TransactionAborted | TransactionRefused | ProducerFenced)
            doubtful = set() if is_known else {record.partition for record in logged}
            await self._replace_producer(deadline, doubtful, was_fenced=isinstance(failure, ProducerFenced))
            if not own_ledger.has_committed(transaction):
                self.keeper.keep(_points(released))
                if has_expired:
                    logger.info("the transactional id had expired; transaction %d is sent again", transaction)
                return failure
            logger.info("transaction %d had been committed after all", transaction)
        for change in released:  # at once: other processes wait for the ranges
            self._on_release_committed(transaction, change)
        # Another member may change the state of a released range soon, and the range may come back. So its state is
        # written here, before the release is done (``is_last``).
        await self.keeper.note_commit(changes, positions, is_last=bool(released))
        self._finish(generation, has_snapshot=bool(snapshot))
        return None

    def _too_large(self, generation: Generation) -> TransactionRefused | None:
        """The refusal of outputs too large for a quota: of one output, or all outputs of a lone record; else None."""
        limit = self._allowance.passes_max()
        if limit is None:
            return None
        sizes = [len(output.key or b"") + len(output.value or b"") for output in generation.outputs()]
        culprits = [index for index, size in enumerate(sizes) if size > limit]
        largest = max(sizes, default=0)
        if not generation.is_divisible and sum(sizes) > limit:
            culprits, largest = list(range(len(sizes))), sum(sizes)
        if not culprits:
            return None
        return TransactionRefused(
            f"{largest} bytes of outputs, and the cluster lets {limit} bytes pass at once (a quota)", culprits
        )

    def _first_writes(self, generation: Generation, transaction: int) -> list[TopicsWritten]:
        """Events for the first writes to source topics: a run with ``until="level"`` waits for these topics, too."""
        ledger = self.own_ledger.ledger
        if not ledger.control.has_member_until_caught_up:
            return []
        sources = {topic for topic, _ in ledger.control.started}
        new: dict[tuple[str, int], set[str]] = {}
        for place, destination in generation.writes():
            if destination in sources and destination not in ledger.partition(place).destinations:
                new.setdefault(place, set()).add(destination)
        incarnation = self.own_ledger.incarnation
        return [
            TopicsWritten(
                incarnation=incarnation,
                transaction=transaction,
                topic=place[0],
                partition=place[1],
                destinations=tuple(sorted(destinations)),
            )
            for place, destinations in sorted(new.items())
        ]

    def _say_refusal(self, error: BrokerError) -> bool:
        """Log the first of several refusals in a row. Returns whether the error is a refusal."""
        refusal = refusal_in(error)
        if refusal is None:
            return False
        self._refusals += 1
        if self._refusals == 1:
            logger.warning("nothing is committed, trying for %d ms: %s", self.settings.broker_retry_ms, refusal)
        return True

    def _finish(self, generation: Generation, *, has_snapshot: bool) -> None:
        """Move the edges after a commit, and tell the other parts of the engine. Raises InvariantBroken when the ledger
        does not count the commit.
        """
        ledger, own = self.own_ledger.ledger, self.own_ledger.incarnation
        for place, epoch in [*ledger.violations(own), *ledger.early_epochs(own)]:
            raise InvariantBroken(f"a commit of epoch {epoch} at {place} lies outside what was granted")
        check_violations(ledger)  # other processes' events, read beside the transaction
        if self._refusals:
            logger.info("transactions are committed again; they were refused %d times", self._refusals)
            self._refusals = 0
        move_edges(generation)
        for place, within in _points([change for change in generation.structure if isinstance(change, Released)]):
            self.keeper.release(place, within)
        size, self.last_commit_s = generation.size, asyncio.get_running_loop().time()
        self.slots.note_commit(size)
        self._weight = min(1.0, (self._allowance.total - self._written + 1) / (size + 1))
        self.commits += 1
        self.snapshots.count_commit(has_snapshot=has_snapshot)
        self._on_step("applied")

    def _log_records(self, events: Sequence[OffsetEvent]) -> list[Outgoing]:
        logs = self.own_ledger.logs
        topic = offsets_topic(logs.app)
        records = []
        for event in events:
            data = encode(event)
            self.event_bytes += len(data)
            if isinstance(event, Committed):
                self.tiles += len(event.tiles)
            records.append(Outgoing(topic, logs.log_partition_of(_partition_of(event)), None, data))
        return records

    # --- after a failed transaction --------------------------------------------------------------------------------

    async def _replace_producer(
        self, deadline: float, doubtful: Collection[int] = (), *, was_fenced: bool = False
    ) -> None:
        """INIT → READ the control log; raises Expelled when the log says so. Then READ the offset log's ``doubtful``
        partitions, where a transaction of unknown outcome wrote, to an own append. The broker answers INIT when the
        transaction is decided and its markers are written, so the whole transaction lies below the append.

        After a fence (``was_fenced``) the control log is read before INIT, too: an expelled process stops there. A
        process that was not expelled was fenced by the broker, because a transaction was open for too long.
        """
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                if was_fenced:
                    await self.own_ledger.read_control()
                    self.own_ledger.check()
                producer = await self.own_ledger.identity.make_producer()
                try:
                    await self.own_ledger.confirm()
                    if doubtful:
                        await self.own_ledger.confirm_offsets(doubtful)
                except BaseException:
                    limit = self.settings.close_timeout_ms
                    # An error of the close, or a cancellation, would hide the raised error.
                    await asyncio.shield(close_within(limit, producer.close(), "closing", excused=BrokerError))
                    raise
                self._producer = producer
                return
            except BrokerError as error:
                if began >= deadline:
                    what = f"no producer could be made for {self.settings.broker_retry_ms} ms"
                    raise give_up_error(what, error) from error
                self._say_refusal(error)
                await asyncio.sleep(RETRY_WAIT_MS / 1000)

    def _take_apart(self, generation: Generation, refusal: TransactionRefused) -> Sequence[Generation]:
        """The generations to send in place of a refused generation; raises HandlerFailed, BrokerUnavailable."""
        match take_apart(generation, refusal, self.policies, self.slots.destinations.known):
            case Apart(parts):
                return parts
            case Replaced(again, said, grown_bytes, letter_of):
                failures = self.slots.failures
                failures.attempts += 1
                failures.dead_letters += 1
                now_s = asyncio.get_running_loop().time()
                if (more := failures.line_end(letter_of, "refused", "", now_s)) is not None:
                    logger.warning("%s%s", said, more)
                self.slots.note_growth(grown_bytes)
                return [again]
            case Failed(why):
                raise HandlerFailed(why) from refusal
            case Unblamed(why):
                raise fatal_of(refusal) if refusal.is_untimely else BrokerUnavailable(why) from refusal


def _partition_of(event: OffsetEvent) -> int:
    """The partition number that gives the offset log's partition for an event."""
    match event:
        case WorkersCut() | WorkerSplit() | WorkersMerged() | RangesReleased() | Committed():
            return event.partition
        case StateChanged() | TopicsWritten():
            return event.partition
        case SnapshotTaken():  # a snapshot of no source partition has the number of the log's partition
            return event.partition
        case LogOpened():
            return event.log_partition
        case _:
            assert_never(event)


def _points(released: Sequence[Released]) -> list[tuple[SourcePartition, KeyRange]]:
    return [(change.dispatch.place, KeyRange(band.first, band.end)) for change in released for band in change.bands]
