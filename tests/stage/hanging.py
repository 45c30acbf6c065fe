"""An application under load on a cluster of which a node hangs: for how long nothing was committed, and what is there.

What writes and what looks at the end is librdkafka; it shares no code with the project.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from keylanes import App, Settings, State
from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import TopicSpec
from keylanes.devkafka.cluster import KafkaCluster
from keylanes.devkafka.node import KafkaNode

SOURCE, OUT = "source", "out"
PARTITIONS, KEYS, PER_SECOND = 4, 50, 200
LOOK_S = 0.05
LIMIT_S = 120.0
ACTIVATION = "Performing controller activation"


def counting(
    cluster: KafkaCluster, folder: Path, name: str, source: str = SOURCE, to: str = OUT, /, **more: Any
) -> App:
    """Writes each value on, with how many of its key there were."""
    settings = Settings.of(state_folder=str(folder / name), commit_interval_ms=100, **more)
    app = App(name, broker=f"kafka://{cluster.bootstrap}", settings=settings, partitioners={source: "crc32"})

    @app.handler(source, to=to, parallelising_factor=8)
    async def count(value: int, seen: State[int]) -> dict[str, int]:
        await asyncio.sleep(0.002)
        seen.put(nth := (seen.get() or 0) + 1)
        return {"value": value, "nth": nth}

    return app


QUICK = {"topic.metadata.refresh.interval.ms": 500, "socket.timeout.ms": 2_000}
"""Have a client of librdkafka find a new leader soon."""


async def create(cluster: KafkaCluster, *topics: str, **config: str) -> None:
    """Make topics with a copy on each node; underscores in names of settings stand for dots."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    broker = KafkaBroker(cluster.bootstrap)
    await broker.open()
    await broker.create([TopicSpec(topic, PARTITIONS, settings) for topic in topics])
    await broker.close()


def leader_of(cluster: KafkaCluster, topic: str) -> KafkaNode:
    """The node that leads a topic's first partition."""
    return cluster.nodes[leaders_of(cluster, topic)[0] - 1]


def leaders_of(cluster: KafkaCluster, topic: str) -> list[int]:
    """The numbers of the nodes that lead a topic's partitions."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return [partitions[number].leader for number in sorted(partitions)]


def is_controller(node: KafkaNode, cluster: KafkaCluster) -> bool:
    """Whether a node is the active controller, as the logs of the nodes have it."""
    came = [(line[:23], one.number) for one in cluster.nodes for line in lines_of(one) if ACTIVATION in line]
    return max(came)[1] == node.number


def lines_of(node: KafkaNode) -> list[str]:
    """What a node has logged."""
    return (node.folder / "broker.log").read_text(encoding="utf-8").splitlines()


class Lateness:
    """Reads a topic while it is written to: ``latest_s`` is the greatest age of a record when it became visible."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        config = {"bootstrap.servers": cluster.bootstrap, "group.id": "late", "log_level": 0}
        self._consumer = Consumer({**config, **QUICK, "isolation.level": "read_committed", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self.latest_s = 0.0
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._read, name="lateness")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._left.is_set():
            message = self._consumer.poll(LOOK_S)
            if message is not None and message.error() is None:
                self.latest_s = max(self.latest_s, time.time() - message.timestamp()[1] / 1000)


class Load:
    """Writes numbers until it is left, each acknowledged by all copies."""

    def __init__(self, cluster: KafkaCluster, topic: str = SOURCE, first: int = 0) -> None:
        self.topic, self.written, self.failed = topic, first, list[object]()
        config = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0, **QUICK}
        self._producer = Producer(config)
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._write, name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """No more; all is written."""
        self._left.set()
        self._thread.join()
        assert self._producer.flush(LIMIT_S) == 0
        assert not self.failed

    def _write(self) -> None:
        while not self._left.wait(1 / PER_SECOND):
            self.put(self.written)
            self.written += 1

    def put(self, number: int) -> None:
        """One record."""
        self._producer.produce(self.topic, b"%d" % number, b"k%d" % (number % KEYS), on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: object, _message: object) -> None:
        if error is not None:
            self.failed.append(error)


class Gaps:
    """When a count moved, as it is seen in short intervals."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self.moved: list[float] = []
        self.looked = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        before = self._count()
        while True:
            await asyncio.sleep(LOOK_S)
            if (now := self._count()) != before:
                before = now
                self.moved.append(time.monotonic())

    def longest(self, begin: float, end: float) -> float:
        """Seconds without a move that lie in this time, as far as they do."""
        moved = [begin, *(at for at in self.moved if begin <= at <= end), end]
        return max(later - earlier for earlier, later in pairwise(moved))

    def between(self, begin: float, end: float) -> int:
        """How often it moved."""
        return sum(1 for at in self.moved if begin <= at <= end)


def read(cluster: KafkaCluster, topic: str) -> dict[str, list[dict[str, int]]]:
    """All committed values of a topic by key, each key's in the order of its partition."""
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": "look", "log_level": 0, "enable.auto.commit": False}
    consumer = Consumer({**config, "isolation.level": "read_committed", "enable.partition.eof": True})
    found: dict[str, list[dict[str, int]]] = {}
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        ended, until = set[int](), time.monotonic() + LIMIT_S
        while len(ended) < PARTITIONS:
            assert time.monotonic() < until, f"{topic} can't be read to its end: {ended}"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                ended.add(message.partition())
            else:
                found.setdefault(message.key().decode(), []).append(json.loads(message.value()))
        return found
    finally:
        consumer.close()


def expected(written: int) -> dict[str, list[dict[str, int]]]:
    """What ``counting`` makes of so many numbers."""
    return {
        f"k{key}": [{"value": number, "nth": place + 1} for place, number in enumerate(range(key, written, KEYS))]
        for key in range(min(KEYS, written))
    }
