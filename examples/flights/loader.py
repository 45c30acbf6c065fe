"""Loads the flights into the source topic. The loader may be killed at any time, and doubles no flight.

Each transaction of the loader carries some rows, and the number of rows in the topic after the transaction (topic
``flights.loader``). A start first makes the producer with the loader's transactional id: this ends and decides every
transaction of an older loader. Only then the start reads the number of rows. A number that was read before could miss
the older loader's last transaction, and the rows of this transaction would come twice.
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from flights import PARTITIONS, SourceRow, source_rows
from keylanes.brokers.protocol import Broker, BrokerProducer, Outgoing, ProducerFenced, TopicPartition, TopicSpec
from keylanes.errors import FencedError, LogError
from keylanes.runtime.settings import Settings

SOURCE = "flights"
PROGRESS = TopicPartition("flights.loader", 0)
TRANSACTIONAL_ID = "flights-demo.loader"
KEEP = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
ROWS_PER_TRANSACTION = 2_000


class Loaded(msgspec.Struct, frozen=True):
    """The progress of loading: the first ``rows`` rows are in the source topic."""

    rows: int


class Loader:
    """Brings the first ``rows`` flights into the source topic of an open broker.

    ``on_progress`` is called with the number of loaded rows, ``on_step`` with the steps of each transaction.
    """

    def __init__(
        self,
        broker: Broker,
        rows: int,
        *,
        on_progress: Callable[[int], None] = lambda _: None,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.broker, self.rows = broker, rows
        self._on_progress, self._on_step = on_progress, on_step

    async def run(self) -> None:
        """Load the missing rows: make the producer, read the progress to its end, go on from there. Raises FencedError
        when another loader took over, LogError, BrokerError.
        """
        await self.broker.create([TopicSpec(SOURCE, PARTITIONS, KEEP), TopicSpec(PROGRESS.topic, 1, KEEP)])
        timeout_ms = Settings().transaction_timeout_ms
        producer = await self.broker.producer(TRANSACTIONAL_ID, transaction_timeout_ms=timeout_ms)
        try:
            loaded = await self._loaded()
            self._on_progress(loaded)
            if loaded < self.rows:
                await self._load_from(loaded, producer)
        except ProducerFenced as error:
            raise FencedError("another loader of this demo took over") from error
        finally:
            await producer.close()

    async def _load_from(self, loaded: int, producer: BrokerProducer) -> None:
        source = source_rows(loaded, self.rows)
        while chunk := await asyncio.to_thread(_records, source):
            loaded += len(chunk)
            chunk.append(Outgoing(*PROGRESS, None, msgspec.json.encode(Loaded(loaded))))
            self._on_step("load transact")
            await producer.transact(chunk)
            self._on_step("load committed")
            self._on_progress(loaded)

    async def _loaded(self) -> int:
        start, high = (await self.broker.watermarks([PROGRESS]))[PROGRESS]
        reader = await self.broker.reader({PROGRESS: start})
        loaded = 0
        try:
            while reader.position(PROGRESS) < high:
                for batch in await reader.fetch([PROGRESS], records_max=10_000, wait_ms=100):
                    loaded = _decoded(batch.records[-1].value) if batch.records else loaded
        finally:
            await reader.close()
        return loaded


def _records(source: Iterator[SourceRow]) -> list[Outgoing]:
    return [Outgoing(SOURCE, *row) for row in islice(source, ROWS_PER_TRANSACTION)]


def _decoded(value: bytes | None) -> int:
    try:
        return msgspec.json.decode(value or b"", type=Loaded).rows
    except msgspec.DecodeError as error:
        raise LogError(f"{PROGRESS.topic} holds something that no loader of ours wrote: {error}") from None
