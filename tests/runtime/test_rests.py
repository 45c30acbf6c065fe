"""Rounds of an application at rest are left out where a test lets time pass: all that comes out stays as it is."""

import asyncio
import logging
import os
import random
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import Annotated, Any, Final, NamedTuple

import pytest

from keylanes import App, Context, DeadLetter, KeyRange, Retry, Settings, State, Store
from keylanes.brokers.protocol import TopicPartition
from keylanes.brokers.simulated.broker import EPOCH_MS, CommittedRecord
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.codec import decode
from keylanes.offsets.ledger import Ledger, evolve_all
from keylanes.runtime.testing import SimulatedApp
from keylanes.state.changelog import changelog_topic, is_beacon_key

from ..tiers.marks import tier

LONG_S: Final = 600.0
STEP_S: Final = 10.0
"""Of so short an advance nothing is left out."""
PLACES: Final = [TopicPartition("in", partition) for partition in range(2)]
CHANGELOG: Final = changelog_topic("rests", "in")
TOPICS: Final = ("in", "out", "dead", CHANGELOG)
DAY_S: Final = 86_400
ROUNDS_MAX: Final = 1_000
"""So many signals are some minutes of a process; in two days it tells a million."""
SEEDS: Final = range(4)
MANY: Final = range(200)


class Seen(NamedTuple):
    """What came out of a run, but for times of writing and the order of what has none: calls by key, records, what
    became of members, and owners, edges and violations of each source partition. What numbers transactions is left out.
    """

    calls: dict[str, list[Any]]
    records: dict[str, list[CommittedRecord]]
    control: Counter[str]
    offsets: list[Any]


class Drawn:
    """An application of a seed, and what is done to it within ten minutes."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        draw = self.random.choice
        self.fails, self.later_s, self.ttl_ms = self.random.random(), draw((None, 7, 90)), draw((None, 200_000))
        self.retry = Retry(attempts=2, backoff_ms=draw((100, 3_000, 10_000)))
        self.app = App("rests", settings=Settings(commit_interval_ms=draw((100, 1_000))))
        self.calls: dict[str, list[Any]] = defaultdict(list)
        self.tasks: list[asyncio.Task[None]] = []
        self._declare(draw((1, 2, 8)))

    def _declare(self, factor: int) -> None:
        letters = DeadLetter("dead")

        @self.app.handler("in", to="out", parallelising_factor=factor, retry=self.retry, on_failure=letters)
        async def on_record(
            value: int, total: Annotated[State[int], Store(name="total", ttl_ms=self.ttl_ms)], ctx: Context
        ) -> int:
            self.calls[str(ctx.key)].append((value, ctx.attempt))
            if self.later_s is not None:
                self.tasks.append(asyncio.get_running_loop().create_task(self._later(str(ctx.key), self.later_s)))
            if random.Random(f"{self.seed} {value} {ctx.attempt}").random() < self.fails:
                raise ValueError("drawn")
            total.put((total.get() or 0) + value)
            return total.get() or 0

    async def _later(self, key: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(seconds)
        self.calls[f"after {key}"].append(round(loop.time() - began_s, 3))

    async def run(self, *, in_steps: bool) -> Seen:
        """Its ten minutes, let pass in steps or in one go between two things that are done."""
        draw = self.random
        times = [0.0, *sorted(draw.uniform(0, LONG_S) for _ in range(draw.randrange(1, 5))), LONG_S]
        async with self.app.test(seed=self.seed) as broker:
            for number, (at_s, next_s) in enumerate(pairwise(times)):
                for record in range(draw.choice((0, 1, 1, 5))):
                    key, value = f"k{draw.randrange(20)}", number * 100 + record
                    await broker.send("in", value, key=key, timestamp=EPOCH_MS + int(at_s * 1000))
                    if draw.random() < 0.7:
                        await broker.read("out")
                await self._happens(broker, in_steps=in_steps)
                await passes(broker, next_s - at_s, in_steps=in_steps)
            await broker.read("out")
            seen = {topic: [one._replace(timestamp=0) for one in await broker.visible(topic)] for topic in TOPICS}
            seen[CHANGELOG] = [one for one in seen[CHANGELOG] if not is_beacon_key(one.key or b"")]
            control, offsets = [
                [decode(one.value) for one in await broker.visible(topic) if one.value is not None]
                for topic in ("rests.control", "rests.offsets")
            ]
        ledger = evolve_all(Ledger(), [*control, *offsets])
        folds = [ledger.partition(place) for place in PLACES]
        kept = [(fold.owners().pieces(), fold.edges(0).pieces(), fold.violations) for fold in folds]
        return Seen(self.calls, seen, Counter(type(event).__name__ for event in control), kept)

    async def _happens(self, broker: SimulatedApp, *, in_steps: bool) -> None:
        match self.random.randrange(4):
            case 0:
                await broker.advance(2)  # what was sent is committed, or is yet to be tried again
                await broker.crash()
                await passes(broker, self.random.choice((30.0, 100.0)), in_steps=in_steps)
                await broker.restart()
            case 1:
                await self.app.release("in", self.random.randrange(2), KeyRange(0, SPACE_END // 2))
            case 2:
                await broker.read("out")


async def passes(broker: SimulatedApp, seconds: float, *, in_steps: bool) -> None:
    """Let time pass."""
    while in_steps and seconds > STEP_S:
        await broker.advance(STEP_S)
        seconds -= STEP_S
    await broker.advance(seconds)


def both(seed: int) -> tuple[Seen, Seen]:
    """What comes out in steps and in one go."""
    logging.disable(logging.ERROR)  # failed attempts, of which there are many
    return asyncio.run(Drawn(seed).run(in_steps=True)), asyncio.run(Drawn(seed).run(in_steps=False))


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_comes_out_is_the_same_without_rounds(seed: int) -> None:
    """In one go and in steps."""
    assert await Drawn(seed).run(in_steps=False) == await Drawn(seed).run(in_steps=True)


@tier("proof", "rests")
@pytest.mark.timeout(1_200)
def test_what_comes_out_of_many_seeds_is_the_same_without_rounds() -> None:
    """The same, on all cores."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        different = [seed for seed, (long, short) in zip(MANY, pool.map(both, MANY), strict=True) if long != short]
    assert not different


async def test_two_days_at_rest_are_a_few_rounds(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever waits for a timer of another kind is woken in time, and nobody is missed meanwhile."""
    app, woken_s = App("rests"), list[float]()

    @app.handler("in", to="out")
    async def on_record(value: int) -> int:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        loop.call_later(DAY_S, lambda: woken_s.append(loop.time() - began_s))
        return value

    async with app.test() as broker:
        await broker.send("in", 1)
        assert await broker.read("out", int) == [1]
        await broker.advance(2 * DAY_S)
        assert woken_s == [pytest.approx(DAY_S)]
        assert len(await broker.visible("rests.signals")) < ROUNDS_MAX
        await broker.send("in", 2)
        (_, second) = await broker.records("out")
        assert second.timestamp >= EPOCH_MS + 2 * DAY_S * 1000
    assert not caplog.records
