"""One process of a stateful application on a simulated cluster, with its local copies in a test's hands.

What ``app.test()`` does, for tests that look inside: ranges that change, copies that are lost or old, folded logs.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest

from keylanes import App, Settings
from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import EPOCH_MS, Latency
from keylanes.group.held_ranges import Grant, HeldRanges
from keylanes.group.member import HearGrants, OwnProcess, RestoreState, TakeBack, TakeUp, next_steps
from keylanes.group.member import Step as MemberStep
from keylanes.offsets.ledger import Ledger
from keylanes.runtime.engine.partition_run import PartitionRun
from keylanes.runtime.member import AppRun
from keylanes.runtime.stores.folder import OpenCopies
from keylanes.runtime.stores.view import StoreView
from keylanes.runtime.watch.steps import Step, ignore_step
from keylanes.state.changelog import changelog_topic, is_beacon_key
from keylanes.state.memory import MemoryCopies
from keylanes.state.tables import LocalCopies

from .cluster import Cluster
from .limited import settings_of

SOURCE, OUT, DEAD = "in", "out", "dead"
LEVEL_LIMIT_S = 600.0
BY_KEY_ENTRIES_MAX = 1_000_000
AT_WORK: ContextVar[list["Engine"]] = ContextVar("AT_WORK")
"""Those that were started; who sets a list stops them."""


def application(name: str = "app", **settings: Any) -> App:
    """An application whose broker is never opened; ``Engine`` runs its handlers."""
    return App(name, broker="embedded:never-opened", settings=settings_of(compression_type=None, **settings))


class Engine:
    """See the module. ``copies`` may be changed while it does not run. ``name``: that of the process in its group, ""
    for none; births are made of it, so processes on one cluster have different ones.
    """

    def __init__(
        self,
        app: App,
        *,
        seed: int = 0,
        partitions: int = 1,
        sources: Sequence[str] = (SOURCE,),
        cluster: Any = None,
        name: str = "process",
    ) -> None:
        self.app, self.name = app, name
        self.cluster: Cluster = cluster or Cluster(seed, Latency())
        for topic in (*sources, OUT, DEAD):
            self.cluster.create_topic(topic, partitions)
        self.copies: LocalCopies = MemoryCopies()
        self.open_copies: OpenCopies | None = lambda _: self.copies
        self.cpu_s: Callable[[], float] = lambda: 0.0
        self.clock_ms = 0
        """How far its clock is wrong."""
        self.hears: Callable[[Step], None] = ignore_step
        """Called with each step of the commit cycle and of a hand-over."""
        self._gates: list[_Gate] = []
        self.starts = 0
        self.is_over = True
        """It does not run, or the test itself has ended it."""

    # --- the process -----------------------------------------------------------------------------------------------

    async def start(self, app: App | None = None, *, until_level: bool = False) -> AppRun:
        """Start; returns when it works, raises what ended its start."""
        self.app, self.is_over = app or self.app, True
        self.task = asyncio.get_running_loop().create_task(self.make().run(until_level=until_level))
        await self.member.wait_until_started(self.task)
        self.is_over = False
        AT_WORK.get([]).append(self)
        return self.member

    def make(self) -> AppRun:
        """What runs next, with a birth and a connection of its own."""
        loop = asyncio.get_running_loop()
        birth = f"{self.name or 'unnamed'}-{self.starts}"
        self.connection = self.cluster.connect(birth)
        self._gates = []
        self.member = AppRun(
            self.app.name,
            list(self.app.handlers.values()),
            self.connection,
            self.settings(),
            birth=birth,
            wall_ms=lambda: EPOCH_MS + int(loop.time() * 1000) + self.clock_ms,
            on_step=lambda step: self.hears(step),
            decide=self._decide,
            open_copies=self.open_copies,
            cpu_s=self.cpu_s,
            now_s=loop.time,
            partitioners=self.app.partitioners,
            accepts=self.app.accepts,
        )
        self.starts += 1
        return self.member

    def settings(self) -> Settings:
        """Those of the application, and the name of this process: it comes back soon after a crash."""
        own = self.app.settings
        name = own.group_instance_id or self.name or None
        return msgspec.structs.replace(own, group_instance_id=name)

    async def crash(self) -> None:
        """Kill -9."""
        self.is_over = True
        self.connection.sever()
        self.task.cancel()
        await asyncio.wait([self.task])

    async def stop(self) -> None:
        """Stop in order; raises what ended it."""
        self.is_over = True
        self.member.stop()
        await self.task

    async def fails(self, kind: type[Exception], says: str) -> Exception:
        """Its run ends with such an error."""
        self.is_over = True
        with pytest.raises(kind, match=says) as ended:
            await self.task
        return ended.value

    def hold_back(self, *, is_strange: bool = False) -> asyncio.Event:
        """What is granted from here on is not taken up until this is set; then ``is_strange`` as if another one had had
        it.
        """
        gate = _Gate(self.member.holding.wake, is_strange=is_strange)
        self._gates.append(gate)
        return gate

    def _decide(self, ledger: Ledger, own: OwnProcess, held: HeldRanges) -> list[MemberStep]:
        """What the production decides, but for what is held back."""
        steps = next_steps(ledger, own, held)
        for gate in self._gates:
            if not gate.is_set():
                steps = [step for step in steps if not isinstance(step, HearGrants | TakeBack | RestoreState | TakeUp)]
            elif gate.is_strange:
                unchanged = tuple(grant for step in steps if isinstance(step, TakeBack) for grant in step.grants)
                steps = [*_without(steps, unchanged), RestoreState(unchanged)] if unchanged else steps
        return steps

    async def level(self) -> None:
        """Wait until everything in the sources is committed and settled of what is held; raises what stopped it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LEVEL_LIMIT_S
        while loop.time() < until:
            if self.task.done():
                self.task.result()
            cycle = self.member.work.cycle
            if all(map(self._is_level, self.member.runs)) and not cycle.is_sending:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"not level after {LEVEL_LIMIT_S} s")

    def _is_level(self, run: PartitionRun) -> bool:
        end = self.cluster.watermarks(TopicPartition(run.dispatch.topic, run.dispatch.partition)).high
        return all(worker.edge >= end for worker in run.dispatch.workers)

    def view(self, name: str) -> StoreView[Any]:
        """A store as readers beside the application see it."""
        return StoreView(name, lambda: self.member.keeper.queries.find(name))

    # --- the cluster -----------------------------------------------------------------------------------------------

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        at_ms: int | None = None,
        *,
        partition: int = 0,
        topic: str = SOURCE,
    ) -> None:
        """Write a record at once."""
        self.cluster.write([Outgoing(topic, partition, key, value, (), at_ms)], ())

    def values(self, topic: str = OUT) -> dict[bytes | None, list[bytes | None]]:
        """The committed values of a topic by key."""
        found: dict[bytes | None, list[bytes | None]] = {}
        for record in self.cluster.committed_records(topic):
            found.setdefault(record.key, []).append(record.value)
        return found

    def changelog(self, topic: str = SOURCE) -> str:
        """The name of a source's changelog."""
        return changelog_topic(self.app.name, topic)

    def folded(self, topic: str = SOURCE) -> dict[int, dict[bytes, bytes]]:
        """The committed state by partition, from what a reader of the changelog sees now."""
        state: dict[int, dict[bytes, bytes]] = {}
        for record in self.cluster.committed_records(self.changelog(topic)):
            fold([record], state.setdefault(record.partition, {}))
        return state

    def copied(self, topic: str = SOURCE) -> dict[int, dict[bytes, bytes]]:
        """What the local copies hold, by partition."""
        partitions = range(self.cluster.topics()[topic].partitions)
        found = {p: dict(self.copies.copy(topic, p).page(b"", None, BY_KEY_ENTRIES_MAX)) for p in partitions}
        return {p: entries for p, entries in found.items() if entries}


async def started(app: App, **options: Any) -> Engine:
    """A process at work."""
    engine = Engine(app, **options)
    await engine.start()
    return engine


class _Gate(asyncio.Event):
    """Tells when it is opened. ``is_strange``: see ``Engine.hold_back``."""

    def __init__(self, wake: Callable[[], None], *, is_strange: bool) -> None:
        super().__init__()
        self.is_strange = is_strange
        self._wake = wake

    def set(self) -> None:
        super().set()
        self._wake()


def _without(steps: Iterable[MemberStep], grants: Collection[Grant]) -> Iterator[MemberStep]:
    """The steps, of which none takes these grants up."""
    for step in steps:
        if isinstance(step, TakeUp) and (left := tuple(one for one in step.grants if one not in grants)):
            yield TakeUp(left)
        elif not isinstance(step, TakeUp | TakeBack):
            yield step


def fold(rows: Iterable[Any], state: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Apply a changelog's records to a state."""
    for row in rows:
        if row.key is None or is_beacon_key(row.key):
            continue
        if row.value is None:
            state.pop(row.key, None)
        else:
            state[row.key] = row.value
    return state


def duplicate(copies: MemoryCopies, topics: Mapping[str, int]) -> MemoryCopies:
    """A copy of copies as they are now: what a folder that was saved holds."""
    saved = MemoryCopies()
    for topic, partitions in topics.items():
        for partition in range(partitions):
            old = copies.copy(topic, partition)
            saved.copy(topic, partition).write(old.page(b"", None, BY_KEY_ENTRIES_MAX), old.markers().pieces())
    return saved
