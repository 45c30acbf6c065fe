"""Runs scripts on a broker and writes down what is visible: on the simulated cluster and on a real Kafka alike."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from aiokafka.protocol.offset import OffsetRequest

from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.kafka.link import TRY_AGAIN, Code, KafkaLink, ProducerIdentity
from keylanes.brokers.kafka.offsets import ask_leaders
from keylanes.brokers.kafka.requests import KafkaRequests
from keylanes.brokers.kafka.transactions import DescribeTransactionsRequest
from keylanes.brokers.producer import TransactionalProducer
from keylanes.brokers.protocol import (
    Appender,
    Broker,
    BrokerError,
    BrokerProducer,
    OffsetOutOfRange,
    Reader,
    TopicPartition,
    TopicSpec,
    TransactionRefused,
    UnknownTopic,
)
from keylanes.brokers.simulated.broker import Fault as SimulatedFault
from keylanes.brokers.simulated.broker import Latency, RequestKind, SimulatedBroker
from keylanes.brokers.simulated.requests import SimulatedRequests
from keylanes.brokers.simulated.virtual_loop import run_virtual

from ..stage.fencing import fence
from ..stage.proxy import ADD_PARTITIONS, END_TXN, INIT_PRODUCER_ID, PRODUCE, Fault, Proxy
from .honest_scripts import CONNECTIONS, IDS, LONG_MS, STAMP_FIRST_MS, STAMPS_MS, Item, Place, Script, Step

Seen = Any
"""What a step has shown: plain values that compare."""

ABSENT: Final = "nothing there"
STEP_SECONDS_MAX: Final = 60.0
READ_SECONDS_MAX: Final = 30.0
CHANGE_SECONDS_MAX: Final = 10.0
REQUEST_TIMEOUT_MS: Final = 6_000
"""Of a real Kafka: longer than a request is held while Kafka ends a transaction by its time limit."""
ARRIVAL_SECONDS: Final = 0.15
"""Of virtual time: in the simulation a request that is let go arrives within 2 ms (``Latency.request_ms``)."""
READ_COMMITTED: Final = 1
LATEST: Final = -1
KINDS: Final = {"INIT": INIT_PRODUCER_ID, "ADD_PARTITIONS": ADD_PARTITIONS, "PRODUCE": PRODUCE, "END_TXN": END_TXN}


class Run(ABC):
    """One script on one broker. Every public method without an underscore is a step."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._brokers: dict[str, Broker] = {}
        self._appenders: dict[str, Appender] = {}
        self._producers: dict[str, tuple[BrokerProducer, str, str]] = {}  # with transactional id and connection
        self._readers: dict[str, Reader] = {}
        self._places: dict[Place, None] = {}
        self._waiting: dict[str, asyncio.Task[Any]] = {}
        self._is_held = False
        self._assigned: dict[str, tuple[TopicPartition, ...]] = {}
        self._outside: set[str] = set()  # readers that stood outside of a log
        self._busy: set[str] = set()  # ids whose markers may still be on their way

    # --- what differs between the brokers --------------------------------------------------------------------------

    @abstractmethod
    async def _connect(self, name: str) -> Broker:
        """A process's way to the broker."""

    @abstractmethod
    def _arm(self, kind: str, fault: str) -> None:
        """The next request of this kind meets the fault."""

    @abstractmethod
    async def _caught(self) -> None:
        """Wait until it has."""

    @abstractmethod
    def _disarm(self) -> None:
        """It has not, and shall not."""

    @abstractmethod
    def _let_go(self) -> None:
        """Held requests go on."""

    @abstractmethod
    async def _carried_out(self) -> None:
        """Wait until the broker has carried out what was let go: an effect that it should not have is visible then."""

    @abstractmethod
    async def _state(self, transactional_id: str) -> tuple[str, int]:
        """The state of an id as Kafka names it, and how often its epoch was raised."""

    @abstractmethod
    async def _stable(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offsets; raises UnknownTopic."""

    @abstractmethod
    async def _twin(self, producer: BrokerProducer, transactional_id: str, connection: str) -> BrokerProducer:
        """Another producer at the same epoch."""

    # --- running ---------------------------------------------------------------------------------------------------

    async def play(self, script: Script, expected: Sequence[Seen] = ()) -> list[Seen]:
        """What each step has shown. ``expected`` only says what is worth waiting for."""
        seen: list[Seen] = []
        try:
            for name in CONNECTIONS:
                self._brokers[name] = await self._connect(name)
                self._appenders[name] = self._brokers[name].appender()
            for number, step in enumerate(script.steps):
                async with asyncio.timeout(STEP_SECONDS_MAX):
                    seen.append(await self._do(step, expected[number] if number < len(expected) else None))
        finally:
            await self._close()
        return seen

    async def _do(self, step: Step, expected: Seen) -> Seen:
        arguments = dict(step.arguments)
        breaks = arguments.pop("breaks", None)
        await self._settle(step)
        if breaks is not None:
            self._arm(*breaks)
        if step.action == "release":
            arguments["expected"] = expected
        try:
            return await getattr(self, step.action)(**arguments)
        except BrokerError as error:
            return outcome_of(error)
        finally:
            if breaks is not None:
                self._disarm()

    async def _settle(self, step: Step) -> None:
        """Wait for markers: which offset they take beside other writes is nobody's promise.

        A step of the same id has to wait for them by itself, but a request that is lost may be one of its tries.
        """
        names = step.arguments.get("name")
        of = self._producers[names][1] if step.action == "transact" and names in self._producers else None
        own = step.arguments.get("id") if step.action in ("fence", "producer") else of
        if self._busy - ({own} if "breaks" not in step.arguments and step.action != "hold" else set()):
            await self._settled(self._busy)
            self._busy.clear()
        if step.action in ("transact", "hold", "together", "fence", "producer", "release", "expire", "finish"):
            self._busy |= set(IDS) if own is None else {own}

    async def _settled(self, ids: Iterable[str]) -> dict[str, tuple[str, int]]:
        """The states of ids when nothing of theirs is between two states."""
        found: dict[str, tuple[str, int]] = {}
        for name in ids:
            pause = 0.002
            while (found.setdefault(name, await self._state(name)))[0].startswith("Prepare"):
                await asyncio.sleep(pause)
                pause = min(0.1, pause * 2)
                del found[name]
        return found

    def _at(self, place: Place) -> TopicPartition:
        return TopicPartition(f"{self._prefix}{place[0]}", place[1])

    def _word(self, source: TopicPartition) -> Place:
        return source.topic.removeprefix(self._prefix), source.partition

    async def _close(self) -> None:
        self._disarm()
        self._let_go()
        for task in self._waiting.values():
            task.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)
        for reader in self._readers.values():
            await reader.close()
        for producer, *_ in self._producers.values():
            await producer.close()
        for broker in self._brokers.values():
            await broker.close()

    # --- steps -----------------------------------------------------------------------------------------------------

    async def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> Seen:
        name = f"{self._prefix}{topic}"
        await self._brokers["one"].create([TopicSpec(name, partitions, config)])
        found = (await self._brokers["one"].describe([name]))[name]
        self._places.update({(topic, partition): None for partition in range(found.partitions)})
        return found.partitions

    async def describe(self, connection: str, topics: Sequence[str]) -> Seen:
        found = await self._brokers[connection].describe([f"{self._prefix}{topic}" for topic in topics])
        wanted = ("cleanup.policy", "retention.ms", "max.message.bytes")
        return {
            name.removeprefix(self._prefix): (topic.partitions, *(topic.config[word] for word in wanted))
            for name, topic in found.items()
        }

    async def append(self, connection: str, items: Sequence[Item]) -> Seen:
        await self._appenders[connection].append([item.outgoing(f"{self._prefix}{item.topic}") for item in items])
        return "written"

    async def producer(self, connection: str, name: str, id: str, timeout_ms: int) -> Seen:  # noqa: A002  # a script's word
        self._producers[name] = (
            await self._brokers[connection].producer(f"{self._prefix}{id}", transaction_timeout_ms=timeout_ms),
            id,
            connection,
        )
        return "made"

    async def fence(self, connection: str, id: str) -> Seen:  # noqa: A002  # a script's word
        await fence(self._brokers[connection], f"{self._prefix}{id}")
        return "fenced"

    async def twin(self, name: str, of: str) -> Seen:
        if of not in self._producers:
            return ABSENT
        producer, transactional_id, connection = self._producers[of]
        self._producers[name] = (
            await self._twin(producer, f"{self._prefix}{transactional_id}", connection),
            transactional_id,
            connection,
        )
        return "made"

    async def transact(self, name: str, items: Sequence[Item]) -> Seen:
        if name not in self._producers:
            return ABSENT
        return await self._transact(name, items)

    async def _transact(self, name: str, items: Sequence[Item]) -> Seen:
        records = [item.outgoing(f"{self._prefix}{item.topic}") for item in items]
        try:
            ends = await self._producers[name][0].transact(records)
        except BrokerError as error:
            return outcome_of(error)
        return sorted((self._word(source), end) for source, end in ends.items())

    async def together(self, transactions: Mapping[str, Sequence[Item]]) -> Seen:
        names = [name for name in transactions if name in self._producers]
        found = await asyncio.gather(*(self._transact(name, transactions[name]) for name in names))
        return list(zip(names, found, strict=True))

    async def hold(self, name: str, items: Sequence[Item], waits: bool, kind: str) -> Seen:
        """A step of a transaction is held; its sender waits for the answer, or dies."""
        if name not in self._producers or name in self._waiting:
            return ABSENT
        self._arm(kind, "HOLD_REQUEST")
        running = asyncio.ensure_future(self._transact(name, items))
        caught = asyncio.ensure_future(self._caught())
        await asyncio.wait([running, caught], return_when=asyncio.FIRST_COMPLETED)
        caught.cancel()
        if running.done():
            self._disarm()
            return running.result()
        self._is_held = True
        if waits:
            self._waiting[name] = running
        else:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self._producers[name][0].close()
        return "held"

    async def release(self, expected: Seen) -> Seen:
        """What was held goes on: what its senders are told, and how that leaves the ids and the partitions."""
        was_held, self._is_held = self._is_held, False
        self._let_go()
        outcomes = {name: await task for name, task in self._waiting.items()}
        self._waiting.clear()
        if was_held:
            await self._carried_out()
        loop = asyncio.get_running_loop()
        until = loop.time() + CHANGE_SECONDS_MAX
        while True:
            seen = outcomes, await self._settled(IDS), await self.watermarks("one", sorted(self._places))
            if seen == expected or expected is None or loop.time() > until:
                return seen
            await asyncio.sleep(0.02)

    async def expire(self, id: str) -> Seen:  # noqa: A002  # a script's word
        """Wait until the broker has ended what is open for too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + CHANGE_SECONDS_MAX
        state = (await self._settled([id]))[id]
        while state[0] == "Ongoing" and loop.time() < until:
            await asyncio.sleep(0.05)
            state = (await self._settled([id]))[id]
        return state

    async def close(self, name: str) -> Seen:
        if name not in self._producers:
            return ABSENT
        await self._producers[name][0].close()
        return "closed"

    async def watermarks(self, connection: str, places: Sequence[Place]) -> Seen:
        sources = [self._at(place) for place in places]
        found = await self._brokers[connection].watermarks(sources)
        stable = await self._stable(sources)
        return [(self._word(source), *found[source], stable[source]) for source in sources]

    async def reader(self, connection: str, name: str, positions: Sequence[tuple[Place, int]]) -> Seen:
        if name in self._readers:
            await self._readers.pop(name).close()
        starts = {self._at(place): start for place, start in positions}
        self._readers[name] = await self._brokers[connection].reader(starts)
        await self._note(name, starts)
        return "made"

    async def _note(self, name: str, starts: Mapping[TopicPartition, int]) -> None:
        """A reader that stands outside of a log may have found that out already, or only when it is asked."""
        known = [source for source in starts if self._word(source) in self._places]
        marks = await self._brokers["one"].watermarks(known)
        self._assigned[name] = tuple(starts)
        if all(marks[source].start <= starts[source] <= marks[source].high for source in known):
            self._outside.discard(name)
        else:
            self._outside.add(name)

    async def assign(self, name: str, positions: Sequence[tuple[Place, int]]) -> Seen:
        if name not in self._readers:
            return ABSENT
        starts = {self._at(place): start for place, start in positions}
        self._readers[name].assign(starts)
        await self._note(name, starts)
        return [self._readers[name].position(self._at(place)) for place, _ in positions]

    async def read(self, name: str, places: Sequence[Place], records_max: int) -> Seen:
        """Everything up to the last stable offsets: records, final positions, and what went wrong where."""
        if name not in self._readers:
            return ABSENT
        reader, wrong = self._readers[name], {}
        there = [source for source in map(self._at, places) if _is_assigned(reader, source)]
        if name in self._outside:  # it looks again
            reader.assign({at: reader.position(at) for at in self._assigned[name]})
        found: dict[Place, list[Seen]] = {self._word(source): [] for source in there}
        known = [source for source in there if self._word(source) in self._places]
        stable, marks = await self._stable(known), await self._brokers["one"].watermarks(known)
        left = {source for source in there if source not in stable}
        for source in known:
            position = reader.position(source)
            if position < stable[source] or not marks[source].start <= position <= marks[source].high:
                left.add(source)
        async with asyncio.timeout(READ_SECONDS_MAX):
            while left:
                try:
                    batches = await reader.fetch(sorted(left), records_max=records_max, wait_ms=200)
                except OffsetOutOfRange as error:
                    wrong[self._word(error.source)] = outcome_of(error)
                    left.discard(error.source)
                    continue
                except UnknownTopic as error:
                    return outcome_of(error), sorted(found.items())
                for batch in batches:
                    found[self._word(batch.source)] += [_shown(record) for record in batch.records]
                    if reader.position(batch.source) >= stable[batch.source]:
                        left.discard(batch.source)
        return sorted(found.items()), sorted(wrong.items()), sorted((at, reader.position(self._at(at))) for at in found)

    async def trim(self, connection: str, place: Place, before: int) -> Seen:
        await self._brokers[connection].trim({self._at(place): before})
        return "trimmed"

    async def finish(self) -> Seen:
        """All ids are fenced, so that nothing is open: the end of every partition, and all that is in them."""
        before = await self._settled(IDS)
        for name in IDS:
            await fence(self._brokers["one"], f"{self._prefix}{name}")
        places = sorted(self._places)
        if not places:
            return before
        ends = await self.watermarks("two", places)
        await self.reader("two", "last", [(place, start) for place, start, *_ in ends])
        return before, await self._settled(IDS), ends, await self.read("last", places, 100)


def outcome_of(error: BrokerError) -> Seen:
    """An error's class, and what it tells."""
    match error:
        case TransactionRefused():
            return type(error).__name__, error.culprits
        case OffsetOutOfRange():
            return type(error).__name__, error.offset, tuple(error.watermarks)
        case _:
            for kind in (*BrokerError.__subclasses__(), BrokerError):
                if isinstance(error, kind):
                    return kind.__name__
    raise AssertionError(error)


def _shown(record: Any) -> Seen:
    is_given = STAMP_FIRST_MS <= record.timestamp < STAMP_FIRST_MS + STAMPS_MS
    stamp = record.timestamp if is_given else "the clock's"
    return record.offset, record.key, record.value, tuple(record.headers), stamp


def _is_assigned(reader: Reader, source: TopicPartition) -> bool:
    with contextlib.suppress(KeyError):
        return reader.position(source) >= 0
    return False


class SimulatedRun(Run):
    """On a simulated cluster of one broker, in virtual time."""

    def __init__(self, prefix: str, seed: int) -> None:
        super().__init__(prefix)
        self._cluster = SimulatedBroker(seed, brokers=1, latency=Latency(timeout_ms=LONG_MS))

    async def _connect(self, name: str) -> Broker:
        connection = self._cluster.connect(name)
        await connection.open()
        return connection

    def _arm(self, kind: str, fault: str) -> None:
        self._cluster.network.arm(RequestKind[kind], SimulatedFault[fault])

    async def _caught(self) -> None:
        await self._cluster.network.caught()

    def _disarm(self) -> None:
        self._cluster.network.disarm()

    def _let_go(self) -> None:
        self._cluster.network.release()

    async def _carried_out(self) -> None:
        await asyncio.sleep(ARRIVAL_SECONDS)

    async def _state(self, transactional_id: str) -> tuple[str, int]:
        return self._cluster.transactional_state(f"{self._prefix}{transactional_id}")

    async def _stable(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {source: self._cluster.stable(source) for source in places}

    async def _twin(self, producer: Any, transactional_id: str, connection: str) -> BrokerProducer:
        broker: Any = self._brokers[connection]
        requests = SimulatedRequests(
            broker._new_link(), broker._limits, transactional_id, producer.requests.initialised
        )
        twin = TransactionalProducer(requests, transactional_id, LONG_MS)
        twin.session.sequences = dict(producer.session.sequences)
        return twin


class KafkaRun(Run):
    """On a real Kafka; with a proxy, all connections go through it."""

    def __init__(self, prefix: str, bootstrap: str, proxy: Proxy | None) -> None:
        super().__init__(prefix)
        self._bootstrap, self._proxy = bootstrap, proxy

    async def _connect(self, name: str) -> Broker:
        broker = KafkaBroker(
            self._bootstrap, client_id=name, compression_type=None, request_timeout_ms=REQUEST_TIMEOUT_MS
        )
        await broker.open()
        return broker

    def _arm(self, kind: str, fault: str) -> None:
        assert self._proxy is not None, "only a script that breaks connections has a proxy"
        self._proxy.arm(KINDS[kind], Fault[fault])

    async def _caught(self) -> None:
        assert self._proxy is not None
        await self._proxy.caught()

    def _disarm(self) -> None:
        if self._proxy is not None:
            self._proxy._armed.clear()

    def _let_go(self) -> None:
        if self._proxy is not None:
            self._proxy.release()

    async def _carried_out(self) -> None:
        assert self._proxy is not None
        await self._proxy.answered()

    async def _state(self, transactional_id: str) -> tuple[str, int]:
        broker: Any = self._brokers["one"]
        name = f"{self._prefix}{transactional_id}"
        link: KafkaLink = broker._link
        deadline = link.deadline("asking for the state of a transactional id")
        while True:
            node = await link.coordinator(name, deadline)
            reply = await link.ask(node, DescribeTransactionsRequest([name]), deadline, coordination=True)
            code, _id, state, _timeout, _start, _number, epoch, *_ = reply.states[0]
            if code == Code.NONE:
                return state, epoch
            if code not in TRY_AGAIN:
                return "None", -1
            await deadline.pause(f"error {code}")

    async def _stable(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        broker: Any = self._brokers["one"]
        answers = await ask_leaders(
            broker._link,
            {place: partial(_latest, place) for place in places},
            lambda rows: OffsetRequest(-1, READ_COMMITTED, rows),
            0,
            "READ",
            broker._link.deadline("asking for the last stable offsets"),
        )
        return {source: row[2] for source, row in answers.items()}

    async def _twin(self, producer: Any, transactional_id: str, connection: str) -> BrokerProducer:
        broker: Any = self._brokers[connection]
        old: KafkaRequests = producer.requests
        link = KafkaLink(broker._settings)
        await link.open()
        same = ProducerIdentity(old.producer_id, old.epoch, old.coordinator)
        requests = KafkaRequests(link, old.limits, old.codec, same, transactional_id)
        twin = TransactionalProducer(requests, transactional_id, LONG_MS)
        twin.session.sequences = dict(producer.session.sequences)
        broker._keep(twin)
        return twin


def _latest(place: TopicPartition) -> tuple[int, int]:
    return place.partition, LATEST


def simulate(script: Script, seed: int = 0) -> list[Seen]:
    """What a script shows on a simulated cluster of this seed."""
    return run_virtual(SimulatedRun("honest-", seed).play(script), seed=seed)
