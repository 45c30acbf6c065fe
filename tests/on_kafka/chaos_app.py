"""The application under chaos, a process of its own: state that depends on order, outputs, dead letters, and unrest.

Argument: a ``Told`` as JSON. Every step of its commit cycle becomes a line in its file of notes.
"""

import asyncio
import ctypes
import logging
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from keylanes import App, Context, DeadLetter, State
from keylanes.brokers.producer import TransactionalProducer
from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.keyrange.ranges import KeyRange, even_bounds
from keylanes.runtime.engine.transaction import Transactions

PARTITIONS = 4
FACTOR = 16
POISON = 500
"""One value in so many is refused by the handler, and becomes a dead letter."""
UNREST_PAUSE_S = 0.4
KERNEL_KILLS_CHILD_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Told(msgspec.Struct, kw_only=True):
    """What a process is told. ``point`` and ``count``: where it kills itself (see dying.py), "" for nowhere;
    ``busy_ms``: how long each record keeps its handler (cluster_chaos_app.py).
    """

    address: str
    name: str
    source: str
    late: str
    dead: str
    notes: str
    settings: dict[str, Any]
    until: Literal["level"] | None = None
    point: str = ""
    count: int = 0
    unrest: int | None = None
    busy_ms: float = 0.0
    planted: tuple[str, ...] = ()


class Seen(msgspec.Struct):
    """What is kept of a key. ``weighted``: the sum of each value times its number, which depends on the order."""

    count: int = 0
    sum: int = 0
    last: int = 0
    weighted: int = 0


class Poison(ValueError):
    """A value that the handler refuses."""


def declare(app: App, told: Told) -> None:
    """The one handler. Some records keep it a moment, so that workers do not move in step."""

    @app.handler(told.source, to=told.late, parallelising_factor=FACTOR, on_failure=DeadLetter(told.dead))
    async def see(value: int, ctx: Context, seen: State[Seen]) -> Seen:
        if value % POISON == 7:
            raise Poison(f"{value} is poison")
        before = seen.get() or Seen()
        if value % 16 == 0:
            await asyncio.sleep(value % 5 / 1000)
        count = before.count + 1
        now = Seen(count, before.sum + value, value, before.weighted + count * value)
        seen.put(now)
        return now


class Unrest:
    """Splits, merges, releases and grants, as an operator might, until the run ends."""

    def __init__(self, app: App, source: str, seed: int) -> None:
        self._app, self._source, self._seed = app, source, seed
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """All partitions side by side."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._disturb(partition)) for partition in range(PARTITIONS)]

    async def _disturb(self, partition: int) -> None:
        chance = random.Random(f"{self._seed} {partition}")
        app, source, bounds = self._app, self._source, even_bounds(FACTOR)
        while True:
            i = chance.randrange(FACTOR - 3)
            given_up = KeyRange(_middle(bounds, i), _middle(bounds, i + 2))
            if await _tried(app.release(source, partition, given_up)):
                await asyncio.sleep(chance.uniform(0, UNREST_PAUSE_S))
                await _tried(app.grant(source, partition, given_up))
            i = chance.randrange(FACTOR - 3)
            await _tried(app.split(source, partition, _middle(bounds, i)))
            await _tried(app.merge(source, partition, KeyRange(bounds[i], bounds[i + chance.choice([1, 2])])))
            await asyncio.sleep(UNREST_PAUSE_S * (1 + chance.random()))


async def _tried(change: Awaitable[None]) -> bool:
    try:
        await change
    except ValueError:  # the runtime was faster, or they were not level in time
        return False
    return True


def _middle(bounds: tuple[int, ...], worker: int) -> int:
    return (bounds[worker] + bounds[worker + 1]) // 2


def resend_without_reading() -> None:
    """A defect: after a commit without an answer nobody looks what became of it; all is sent again."""

    async def forgetful(
        self: Transactions, deadline: float, doubtful: Collection[int] = (), *, was_fenced: bool = False
    ) -> None:
        self._producer = await self.own_ledger.identity.make_producer()

    Transactions._replace_producer = forgetful  # type: ignore[method-assign]  # a defect changes the class


def lose_an_output(late: str, nth: int = 20) -> None:
    """A defect: one output of one transaction is not written, as if nobody had looked at its answer."""
    transact = TransactionalProducer.transact
    calls = 0

    async def lossy(
        self: TransactionalProducer[Any], records: Sequence[Outgoing], *, in_parts: bool = False
    ) -> dict[TopicPartition, int]:
        nonlocal calls
        found = next((i for i, record in enumerate(records) if record.topic == late), None)
        calls += found is not None
        if calls == nth and found is not None:
            records = [*records[:found], *records[found + 1 :]]
            calls += 1
        return await transact(self, records, in_parts=in_parts)

    TransactionalProducer.transact = lossy  # type: ignore[method-assign]  # a defect changes the class


def forget_changes(key: bytes = b"k3") -> None:
    """A defect: the changes of a key's state are not written to the changelog."""
    transact = TransactionalProducer.transact

    async def forgetful(
        self: TransactionalProducer[Any], records: Sequence[Outgoing], *, in_parts: bool = False
    ) -> dict[TopicPartition, int]:
        kept = [r for r in records if not (".changelog." in r.topic and r.key is not None and r.key.endswith(key))]
        return await transact(self, kept, in_parts=in_parts)

    TransactionalProducer.transact = forgetful  # type: ignore[method-assign]  # a defect changes the class


def plant(told: Told) -> None:
    """Break what is told to be broken: the harness's own test."""
    defects: dict[str, Callable[[], None]] = {
        "resend": resend_without_reading,
        "lose": lambda: lose_an_output(told.late),
        "forget": forget_changes,
    }
    for name in told.planted:
        defects[name]()


def end_with_parent() -> None:
    """Be killed when the program that started this one is: nobody else would wake it up if it were suspended then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(KERNEL_KILLS_CHILD_WITH_PARENT, signal.SIGKILL)


def main() -> None:
    """Run as told."""
    end_with_parent()
    if TYPE_CHECKING:
        from ..stage.dying import arrange
        from ..stage.limited import settings_of
    else:
        sys.path.append(str(Path(__file__).parent.parent / "stage"))
        from dying import arrange  # this is run as a script
        from limited import settings_of

    told = msgspec.json.decode(sys.argv[1], type=Told)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    notes = os.open(told.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    plant(told)
    reached = arrange(told.point, told.count) if told.point else lambda step: None
    app = App(told.name, broker=told.address, settings=settings_of(**told.settings))
    declare(app, told)
    unrest = None if told.unrest is None else Unrest(app, told.source, told.unrest)

    def on_step(step: str) -> None:
        os.write(notes, f"{step}\n".encode())
        reached(step)
        if unrest is not None and step == "applied" and app.health().state == "running":
            unrest.begin()

    os.write(notes, b"begun\n")
    app.run(until=told.until, on_step=on_step)
    os.write(notes, b"ended\n")


if __name__ == "__main__":
    main()
