"""A broker in a folder: topics in RocksDB, for one process at a time, with atomic and durable transactions.

The caller holds the records of a transaction. The transaction is one write of the store, guarded by the producer's
epoch, so no transaction is ever open, aborted or half visible, and offsets have no holes but trimmed ones. Acknowledged
records survive kill -9. Acknowledged records survive the death of the machine as far as the operating system had
written them. Retention and compaction are not carried out; a write never creates a topic. A topic created with
``TABLE_CONFIG`` is kept by key, in the same write as the rest of a transaction.

All ``EmbeddedBroker`` objects of a process for the same folder share one store, in any thread and on any loop; the last
object to close lets go of the store. Small steps of the store are done on the loop, large steps in a thread.
"""

import asyncio
import functools
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from ..errors import EmbeddedInUse, StoreError
from ..state.rocks import RocksError, RocksInUse
from ..state.tables import Table
from ..state.topics import EpochStale, Guard, NotALog, OffsetMissing, StoredRecord, TopicMissing, TopicStore
from .batch_records import by_partition
from .delivery import PartitionTurns
from .protocol import (
    Batch,
    BrokerError,
    GroupOffsets,
    OffsetOutOfRange,
    Outgoing,
    ProducerFenced,
    TopicDescription,
    TopicPartition,
    TopicSpec,
    TransactionRefused,
    UnknownTopic,
    Watermarks,
)
from .refusal import complete_spec, describe_refusals, refusals
from .rights import Lacking, Right
from .threads import DaemonThreads
from .throttling import Throttling

T = TypeVar("T")

INLINE_RECORDS_MAX: Final = 500  # more are checked and written in a thread
INLINE_BYTES_MAX: Final = 256 * 1024
READ_RECORDS_MAX: Final = 2_000  # at a time; then the loop has its turn
READ_BYTES_MAX: Final = 4 * 1024 * 1024
BITES_MAX: Final = 8  # in one fetch, and one more per partition: its memory is bounded
THREADS: Final = 4  # of each broker, made when there is work; the store takes one write after the other


class _Shared:
    """The store of one folder in this process, and the readers that wait for records."""

    def __init__(self, folder: Path) -> None:
        self.store = TopicStore.open(folder)
        self.users = 0
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Future[None], frozenset[TopicPartition]] = {}

    def wait_for(self, sources: frozenset[TopicPartition]) -> "asyncio.Future[None]":
        """A future of the running loop, done at the next change of one of the partitions."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting[news] = sources
        return news

    def forget(self, news: "asyncio.Future[None]") -> None:
        """Forget a future: nobody waits any more."""
        with self._lock:
            self._waiting.pop(news, None)

    def wake(self, sources: Collection[TopicPartition] | None = None) -> None:
        """Tell the readers that wait for the partitions (None: all readers); from any thread."""
        with self._lock:
            woken = [
                news for news, watched in self._waiting.items() if sources is None or not watched.isdisjoint(sources)
            ]
            for news in woken:
                del self._waiting[news]
        for news in woken:
            loop = news.get_loop()
            if loop is asyncio._get_running_loop():
                _finish(news)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_finish, news)


_shared: dict[Path, _Shared] = {}
_shared_lock = threading.Lock()


def _threads() -> DaemonThreads:
    return DaemonThreads(THREADS, "keylanes-embedded")


def _acquire(folder: Path) -> _Shared:
    with _shared_lock:
        shared = _shared.get(folder)
        if shared is None:
            shared = _shared[folder] = _Shared(folder)
        shared.users += 1
        return shared


def _release_unwanted(folder: Path, opening: "asyncio.Future[_Shared]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        _release(folder, opening.result())


def _release(folder: Path, shared: _Shared) -> None:
    with _shared_lock:
        shared.users -= 1
        if shared.users:
            return
        del _shared[folder]
        shared.store.close()


class EmbeddedBroker:
    """A ``Broker`` in a folder. ``clock_ms`` stamps the records that bring no timestamp."""

    is_alone: bool = True

    def __init__(self, folder: Path | str, *, clock_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self.folder = Path(os.path.abspath(folder))
        self._clock_ms = clock_ms
        self.throttling = Throttling()
        self._shared_if_open: _Shared | None = None
        self._threads = _threads()

    async def open(self) -> None:
        """Open the folder, or make a new one. Raises StoreError; EmbeddedInUse when another process uses the folder."""
        if self._shared_if_open is not None:
            return
        opening = asyncio.ensure_future(self._in_thread(functools.partial(_acquire, self.folder)))
        try:
            self._shared_if_open = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on, and nobody will use the opened store: release the store.
            opening.add_done_callback(functools.partial(_release_unwanted, self.folder))
            raise
        finally:
            if self._shared_if_open is None:
                self._end_threads()

    async def close(self) -> None:
        """Let go; a second call does nothing. Readers that wait in a fetch of this folder look again."""
        shared, self._shared_if_open = self._shared_if_open, None
        if shared is not None:
            shared.wake()
            try:
                await self._in_thread(functools.partial(_release, self.folder, shared))
            finally:
                self._end_threads()

    async def describe(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """The topics among the given names that exist."""
        known = self._store.topics()
        return {name: TopicDescription(*known[name]) for name in topics if name in known}

    async def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """See the protocol."""
        return {name: topic.partitions for name, topic in (await self.describe(topics)).items()}

    async def missing_rights(self, rights: Sequence[Right]) -> Lacking:  # noqa: ARG002  # here everybody may do everything
        """No right is lacking."""
        return Lacking()

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create topics; existing topics stay unchanged."""
        store = self._store
        for spec in [complete_spec(spec) for spec in specs]:
            await self._write(functools.partial(store.create, spec.name, spec.partitions, spec.config), large=True)

    async def watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Watermarks; raises UnknownTopic."""
        store = self._store
        return {
            source: Watermarks(*_translate_errors(functools.partial(store.watermarks, *source)))
            for source in partitions
        }

    async def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See the protocol. There is no index: a thread looks at the records."""
        store, found = self._store, {}
        for source, timestamp in times.items():
            found[source] = await self._in_thread(functools.partial(store.offset_at, *source, timestamp))
        return found

    async def group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> GroupOffsets:  # noqa: ARG002  # there is none
        """A group that does not exist: the broker has no consumer groups."""
        return GroupOffsets("Dead", is_live=False, offsets={})

    async def reader(self, positions: Mapping[TopicPartition, int]) -> "EmbeddedReader":
        """A new reader."""
        reader = EmbeddedReader(self)
        reader.assign(positions)
        return reader

    async def producer(self, transactional_id: str, *, transaction_timeout_ms: int) -> "EmbeddedProducer":  # noqa: ARG002  # no transaction is ever open
        """A new producer; fences all older producers, after a write that is under way."""
        epoch = await self._write(functools.partial(self._store.bump_epoch, transactional_id))
        return EmbeddedProducer(self, Guard(transactional_id, epoch))

    def table(self, topic: str, partition: int) -> "EmbeddedTable | None":
        """A partition of a topic, kept by key; None for a log. Raises UnknownTopic."""
        found = _translate_errors(functools.partial(self._store.table, topic, partition))
        return None if found is None else EmbeddedTable(found)

    def appender(self) -> "EmbeddedAppender":
        """A new appender."""
        return EmbeddedAppender(self)

    async def trim(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records below these offsets; raises UnknownTopic, OffsetOutOfRange, BrokerError for a table."""
        shared = self._open_folder
        for source, offset in before.items():
            await self._write(functools.partial(shared.store.trim, *source, offset))
        shared.wake(before)

    @property
    def _open_folder(self) -> _Shared:
        if self._shared_if_open is None:
            raise BrokerError(f"the embedded broker in {self.folder} is not open")
        return self._shared_if_open

    @property
    def _store(self) -> TopicStore:
        return self._open_folder.store

    async def _append(self, records: Sequence[Outgoing], guard: Guard | None) -> dict[TopicPartition, int]:
        shared = self._open_folder
        large = len(records) > INLINE_RECORDS_MAX or _value_bytes(records) > INLINE_BYTES_MAX
        step = functools.partial(_check_and_append, shared, records, guard, self._clock_ms())
        return await self._write(step, large=large)

    async def _write(self, step: Callable[[], T], *, large: bool = False) -> T:
        """Do a step of the store; in a thread when the step is large or when a thread is writing."""
        if large or self._store.is_writing:
            return await self._in_thread(step)
        return _translate_errors(step)

    async def _in_thread(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _translate_errors, step)

    def _end_threads(self) -> None:
        """Let the threads end after the last job; the broker may be opened again."""
        threads, self._threads = self._threads, _threads()
        threads.shutdown(wait=False)


class EmbeddedReader:
    """A ``Reader`` of an embedded broker. A reader knows positions, and nothing else."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._positions: dict[TopicPartition, int] = {}
        self._closed = False
        self._turn = 0

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read from these positions, and no others."""
        self._positions = {TopicPartition(*source): offset for source, offset in positions.items()}

    def position(self, source: TopicPartition) -> int:
        """The offset to be read next."""
        return self._positions[source]

    async def fetch(self, sources: Collection[TopicPartition], *, records_max: int, wait_ms: int) -> list[Batch]:
        """See the protocol."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        wanted = {source: self._positions[source] for source in sources}
        await asyncio.sleep(0)  # a reader that always finds something must not keep the loop to itself
        while True:
            if self._closed:
                raise BrokerError("the reader was closed")
            shared = self._broker._open_folder
            # Registered before the look: an append between the look and the wait is not missed.
            news = shared.wait_for(frozenset(wanted))
            try:
                found = await self._look(shared.store, wanted, records_max)
                # After an ``assign`` meanwhile, a batch of a partition that is no longer read is worthless.
                fresh = [batch for batch in found if self._positions.get(batch.source) == wanted[batch.source]]
                for batch in fresh:
                    self._positions[batch.source] = batch.offset_next
                wait = deadline - loop.time()
                if fresh or wait <= 0:
                    return fresh
                if not found:
                    await asyncio.wait({news}, timeout=wait)
                wanted = {source: self._positions[source] for source in sources if source in self._positions}
            finally:
                shared.forget(news)

    async def close(self) -> None:
        """Let go; a waiting fetch ends with an error."""
        self._closed = True
        if self._broker._shared_if_open is not None:
            self._broker._shared_if_open.wake(self._positions)

    async def _look(self, store: TopicStore, wanted: Mapping[TopicPartition, int], records_max: int) -> list[Batch]:
        """Read present records in bites, with turns of the loop between; each call begins with another partition."""
        order = list(wanted)
        self._turn = (self._turn + 1) % max(1, len(order))
        room = records_max
        batches: list[Batch] = []
        bites = BITES_MAX + len(order)
        pause = False
        for source in order[self._turn :] + order[: self._turn]:
            position = wanted[source]
            records: list[StoredRecord] = []
            while room > 0 and bites > 0:
                if pause:
                    await asyncio.sleep(0)
                bite, position = _translate_errors(
                    functools.partial(store.read, *source, position, min(room, READ_RECORDS_MAX), READ_BYTES_MAX)
                )
                if not bite:
                    break
                bites -= 1
                pause = len(bite) > INLINE_RECORDS_MAX
                room -= len(bite)
                records = records + bite if records else bite
            if records:
                batches.append(Batch(source, records, position))
        return batches


class EmbeddedProducer:
    """A ``BrokerProducer`` at one epoch of a transactional id."""

    def __init__(self, broker: EmbeddedBroker, guard: Guard) -> None:
        self._broker = broker
        self._guard = guard
        self._usable = True

    async def transact(self, records: Sequence[Outgoing], *, in_parts: bool = False) -> dict[TopicPartition, int]:  # noqa: ARG002  # nothing throttles
        """See the protocol. One write decides: nothing is aborted, and only a cancelled call has an unknown outcome."""
        if not self._usable:
            raise BrokerError("this producer is in use, was closed or has failed: make a new one")
        self._usable = False
        ends = await self._broker._append(records, self._guard)
        self._usable = True
        return ends

    async def close(self) -> None:
        """Let go."""
        self._usable = False


class EmbeddedAppender:
    """An ``Appender``; each call is all or nothing."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._turns = PartitionTurns()  # two threads would write in any order
        self._closed = False

    async def append(self, records: Sequence[Outgoing]) -> dict[TopicPartition, int]:
        """See the protocol; a large write is done in a thread."""
        async with self._turns.at(by_partition(records)):
            if self._closed:
                raise BrokerError("the appender was closed")
            try:
                return await self._broker._append(records, None)
            except TransactionRefused as error:  # nothing was written, so every record is a culprit
                raise TransactionRefused(str(error), range(len(records))) from error

    async def close(self) -> None:
        """Let go."""
        self._closed = True


class EmbeddedTable:
    """A ``Table`` of committed values. While a thread writes a large transaction, a call sees none or all of the
    values.

    Raises StoreError, also when the last broker of the folder was closed.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, key: bytes) -> bytes | None:
        """See ``Table``."""
        return _translate_errors(functools.partial(self._table.get, key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Table``."""
        return _translate_errors(functools.partial(self._table.get_many, keys))

    def page(self, first: bytes, end: bytes | None, entries_max: int) -> list[tuple[bytes, bytes]]:
        """See ``Table``."""
        return _translate_errors(functools.partial(self._table.page, first, end, entries_max))


def _check_and_append(
    shared: _Shared, records: Sequence[Outgoing], guard: Guard | None, now_ms: int
) -> dict[TopicPartition, int]:
    known = shared.store.topics()
    names = {record.topic for record in records}
    refused = refusals(records, {name: TopicDescription(*known[name]) for name in names if name in known})
    if refused:
        raise TransactionRefused(describe_refusals(refused), tuple(refused))
    written = shared.store.append(records, timestamp_default=now_ms, guard=guard)
    ends = {TopicPartition(*place): end for place, end in written.items()}
    shared.wake(ends)
    return ends


def _value_bytes(records: Sequence[Outgoing]) -> int:
    return sum(len(record.value) for record in records if record.value is not None)


def _translate_errors(step: Callable[[], T]) -> T:
    """Do a step; errors of the store leave as errors of the protocol."""
    try:
        return step()
    except TopicMissing as error:
        raise UnknownTopic(str(error)) from error
    except NotALog as error:
        raise BrokerError(str(error)) from error
    except OffsetMissing as error:
        raise OffsetOutOfRange(
            TopicPartition(error.topic, error.partition), error.offset, Watermarks(*error.marks)
        ) from error
    except EpochStale as error:
        raise ProducerFenced(str(error)) from error
    except RocksInUse as error:
        raise EmbeddedInUse(
            f"{error}. The embedded broker is for one process: stop that one, or give this one a folder of its own. "
            "Several processes of an application need a Kafka: `keylanes broker` starts one for development, and its "
            "address is kafka://host:port"
        ) from error
    except RocksError as error:
        raise StoreError(str(error)) from error


def _finish(news: "asyncio.Future[None]") -> None:
    if not news.done():
        news.set_result(None)
