"""A learner beside writers of a changelog on a simulated cluster, for tests."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest

from keylanes.brokers.protocol import TopicPartition
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.offsets.control_events import CopyAsked
from keylanes.offsets.event_values import Span
from keylanes.offsets.ledger import SourcePartition
from keylanes.offsets.signals import Copy as CopyTold
from keylanes.runtime.handlers.partition_state import PartitionState
from keylanes.runtime.stores.copy_pass import CopyMeans
from keylanes.runtime.stores.copy_writes import CopyWrites
from keylanes.runtime.stores.learner import Learner
from keylanes.runtime.stores.storage import CopyTable, OwnCopy, StateThreads, Storage
from keylanes.state.memory import MemoryCopy
from keylanes.state.restore import Writers
from keylanes.state.tables import Change, LocalCopy, Mark

from ...stage.virtual import Decorator, virtual_in
from .test_restore import TOPIC, World, key_of

SOURCE = "source"
PLACE = (SOURCE, 0)
NEVER = float("inf")


class Beside(World):
    """A world whose copies are followed. ``told``: when what was said, by the loop's time. ``kept``: a copy that lies
    elsewhere than in memory.
    """

    kept: LocalCopy | None = None

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        super().__init__(partitions, **settings)
        self.asked: dict[int, CopyAsked] = {}
        self.told: list[tuple[float, tuple[CopyTold, ...]]] = []
        self.task: asyncio.Task[None] | None = None
        self.ask_writers: Callable[[SourcePartition], Awaitable[Writers]] = self.logged

    async def logged(self, _: SourcePartition) -> Writers:
        """Incarnation 1 wrote all transactions, and goes on."""
        return Writers({1: self.transaction}, frozenset({1}), frozenset({1}), incarnation_max=1)

    async def begin(self) -> None:
        """The process starts, with the copies that there are."""
        connection = self.cluster.connect("learner")
        await connection.open()
        self.threads = StateThreads()
        self.followers = {(SOURCE, p): self.follower(p) for p in range(self.cluster.topics()[TOPIC].partitions)}
        storages: dict[tuple[str, int], Storage] = {**self.followers}
        self.means = CopyMeans(connection, self.settings, lambda: self.now_ms, CopyWrites(self.settings, self.threads))
        self.learner = Learner(
            means=self.means,
            storages=storages,
            tell=lambda copies: self.told.append((asyncio.get_running_loop().time(), copies)),
            ask_writers=lambda place: self.ask_writers(place),
            compare=lambda _: None,
        )
        self.task = asyncio.ensure_future(self.learner.run())
        self.learner.follow(self.asked.values())

    def follower(self, partition: int) -> OwnCopy:
        """One that nobody has restored yet."""
        copy = self.kept or self.copy(partition)
        state = PartitionState("source[0]", CopyTable(copy), entry_bytes_max=1_000_000, ahead_bytes_max=1_000_000)
        return OwnCopy(TopicPartition(TOPIC, partition), state, copy, self.threads)

    def ask(self, move: int, *bands: KeyRange, role: str = "learner", bytes_per_s: int = 0, partition: int = 0) -> None:
        """COPY_ASKED."""
        spans = tuple(Span(band.first, band.end) for band in bands or (WHOLE,))
        self.asked[move] = CopyAsked(1, 1, move, 1, SOURCE, partition, spans, role, bytes_per_s)
        self.learner.follow(self.asked.values())

    def end(self, move: int) -> None:
        """COPY_ENDED."""
        del self.asked[move]
        self.learner.follow(self.asked.values())

    def told_of(self, move: int) -> CopyTold | None:
        """What is said of a copy now."""
        return next((one for one in self.learner.copies() if one.move == move), None)

    def stale_ms(self, point: int) -> float:
        """How old the copy of a point is; ``NEVER``: there is none that is whole."""
        stale_ms = self.learner.stale_ms(PLACE, point)
        return NEVER if stale_ms is None else stale_ms

    def is_ready(self, *moves: int) -> bool:
        """Whether these copies are."""
        told = [self.told_of(move) for move in moves]
        return all(one is not None and one.is_ready for one in told)

    async def wait_ready(self, *moves: int, limit_s: float = 60.0) -> float:
        """Wait until these copies are ready; the seconds that it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(limit_s):
            while not self.is_ready(*moves):  # nothing but virtual time passes
                assert self.task is not None
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.005)
        return loop.time() - began_s

    async def fails(self, kind: type[Exception], says: str) -> None:
        """The process ends with such an error."""
        assert self.task is not None
        with pytest.raises(kind, match=says):
            await self.task

    async def stop(self) -> None:
        """The process ends, however: what it wrote is there."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.threads.shutdown()

    @property
    def copied_bytes(self) -> int:
        """So much was written since the process began."""
        sizes = self.learner.statistics()
        return sizes.bytes_learner + sizes.bytes_standby

    @property
    def high(self) -> int:
        """Where the changelog ends."""
        return self.cluster.watermarks(TopicPartition(TOPIC, 0)).high


def beside(partitions: int = 1, *, kept: Callable[[], LocalCopy] | None = None, **settings: Any) -> Decorator:
    """Run a test in virtual time, with the process at work; it ends behind the test."""

    @contextlib.asynccontextmanager
    async def at_work() -> AsyncIterator[Beside]:
        world = Beside(partitions, **settings)
        world.kept = kept and kept()
        await world.begin()
        try:
            yield world
        finally:
            await world.stop()

    return virtual_in(at_work)


class CheckedCopy(MemoryCopy):
    """A copy that looks, behind each write, whether what its markers claim is there.

    What is above a marker may be there already. So a key is right if it has the newest value below the marker, or one
    that was committed behind that.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.writes = world, 0

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        super().write(changes, marks)
        self.writes += 1
        by_key: dict[bytes | None, list[Any]] = defaultdict(list)
        for record in self.world.cluster.committed_records(TOPIC):
            by_key[record.key].append(record)
        for number in range(200):
            own = by_key.get(key := key_of(number), [])
            marker = self.markers().at(int.from_bytes(key[:4], "big"))
            if marker is None or not own:
                continue
            below = [record.value for record in own if record.offset < marker.position]
            above = [record.value for record in own if record.offset >= marker.position]
            assert self.get(key) in [*below[-1:], *([] if below else [None]), *above], (number, marker)
