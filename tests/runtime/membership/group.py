"""Several processes of one application on a simulated cluster, and what tests wait for."""

import asyncio
from collections.abc import Callable
from typing import Any

from keylanes import App, Context
from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import Latency

from ...stage.cluster import Cluster
from ...stage.engine import OUT, SOURCE, Engine, application
from ...stage.virtual import Decorator, virtual_with

PARTITIONS = 6
SESSION_S, BEAT_S = 10.0, 1.0
"""The defaults."""
PROCESSED_S = 120.0
"""So long a test waits for something at most."""


def passing_on(*, start: str = "earliest", factor: int = 4, **settings: Any) -> App:
    """Passes on values."""
    app = application(**{"commit_interval_ms": 100, **settings})

    @app.handler(SOURCE, to=OUT, parallelising_factor=factor, start=start)
    async def pass_on(value: bytes, _: Context) -> bytes:
        return value

    return app


class Group:
    """Processes on one cluster, and what is sent to them."""

    def __init__(
        self, *, partitions: int = PARTITIONS, latency: Latency | None = None, wrap: Callable[[Any], Any] | None = None
    ) -> None:
        self.cluster = Cluster(1, latency or Latency())
        self.cluster.wrap = wrap or self.cluster.wrap
        self.partitions, self.sent = partitions, 0
        self.cluster.create_topic(SOURCE, partitions)

    def process(self, name: str, app: App | None = None, *, is_named: bool = True) -> Engine:
        """One that was not started yet; without a name of its own in the group unless it is to have one."""
        engine = Engine(app or passing_on(), partitions=self.partitions, cluster=self.cluster, name=name)
        if not is_named:
            engine.settings = lambda: engine.app.settings  # type: ignore[method-assign]  # it goes by no name
        return engine

    async def sharing(self, names: str, app: App | None = None, *, is_named: bool = True) -> list[Engine]:
        """Processes, one for each letter, that are at work and share all partitions."""
        engines = [self.process(name, app, is_named=is_named) for name in names]
        await start(*engines)
        return engines

    def send(self, count: int) -> None:
        """So many records, to all partitions."""
        numbers = range(self.sent, self.sent + count)
        records = [Outgoing(SOURCE, n % self.partitions, b"k%d" % (n % 50), b"%d" % n) for n in numbers]
        self.cluster.write(records, ())
        self.sent += count

    async def done(self) -> None:
        """Wait until all that was sent was passed on, and see that it was once."""
        await until(lambda: len(self.passed_on()) >= self.sent)
        assert sorted(self.passed_on()) == list(range(self.sent))

    def passed_on(self) -> list[int]:
        """What stands in the outputs."""
        return [int(record.value or b"") for record in self.cluster.committed_records(OUT)]

    def end(self, topic: str) -> int:
        """How far all partitions of a topic go."""
        marks = range(self.cluster.topics()[topic].partitions)
        return sum(self.cluster.watermarks(TopicPartition(topic, p)).high for p in marks)


async def until(condition: Callable[[], bool], limit_s: float = PROCESSED_S) -> float:
    """Wait for a condition; the seconds that it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.05)
    return loop.time() - began_s


def held(engine: Engine) -> set[int]:
    """The partitions that a process works on."""
    return {run.dispatch.partition for run in engine.member.runs if run.dispatch.workers}


def share(*engines: Engine) -> Callable[[], bool]:
    """Whether these have all partitions among them, in parts that differ by one at most."""

    def they_do() -> bool:
        parts = [held(engine) for engine in engines]
        sizes = [len(part) for part in parts]
        count = engines[0].cluster.topics()[SOURCE].partitions
        return sum(sizes) == len(set[int]().union(*parts)) == count and max(sizes) - min(sizes) <= 1

    return they_do


async def start(*engines: Engine, until_level: bool = False) -> None:
    """Start one after the other; returns when they share all partitions."""
    for engine in engines:
        await engine.start(until_level=until_level)
    await until(share(*engines))


def coordinators(*engines: Engine) -> list[Engine]:
    """Those that decide, by what they have read."""
    return [engine for engine in engines if engine.member.group.coordinating.is_coordinator]


async def three(group: Group, who: str) -> tuple[Engine, list[Engine]]:
    """Three without names that share all: "the coordinator" or another one, and the other two."""
    engines = await group.sharing("abc", is_named=False)
    (first,) = coordinators(*engines)
    one = first if who == "the coordinator" else next(engine for engine in engines if engine is not first)
    return one, [engine for engine in engines if engine is not one]


def in_group(**options: Any) -> Decorator:
    """Run a test in virtual time, with a group."""
    return virtual_with(lambda: Group(**options))
