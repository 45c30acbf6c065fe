"""Workers that fall behind: they hold nobody back, and lose, double and reorder nothing when they go on."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable

from keylanes import App, Context
from keylanes.runtime.engine.readers import CATCH_UP_READERS_MAX

from ...stage.engine import SOURCE, Engine, application
from ...stage.ground import Ground
from ...stage.virtual import virtual

WAIT_S = 60.0
VALUE_BYTES = 6


async def reached(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fails when it takes too long."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)


class Seen:
    """What handlers saw, by key, in their order."""

    def __init__(self) -> None:
        self.by_key: defaultdict[bytes | None, list[int]] = defaultdict(list)
        self.count = 0

    def note(self, value: int, ctx: Context) -> None:
        """One more record was handled."""
        self.by_key[ctx.key].append(value)
        self.count += 1

    def check(self, records: int) -> None:
        """Every record once, each key in order."""
        assert self.count == records
        for values in self.by_key.values():
            assert values == sorted(set(values))
        assert sum(len(values) for values in self.by_key.values()) == records


def queued_bytes(app: App) -> int:
    """What all workers' queues hold."""
    return sum(partition.queued_bytes for partition in app.statistics().partitions)


async def test_stuck_key_holds_back_nobody(ground: Ground) -> None:
    """While one key is stuck a hundred thousand other records pass, in bounded memory; released, it catches up: every
    record once, each key in order.
    """
    records, keys, limit = 100_000, 200, 64 * 4_000
    filled = [(b"k%d" % (i % keys), b"%d" % i) for i in range(records)]
    await asyncio.to_thread(ground.fill, filled)
    app = ground.app(buffer_bytes_max=limit)
    seen, hold, peak = Seen(), asyncio.Event(), 0

    @app.handler(ground.source, parallelising_factor=64)
    async def work(value: int, ctx: Context) -> None:
        nonlocal peak
        if value == 3:
            await hold.wait()
        seen.note(value, ctx)
        if seen.count % 500 == 0:
            peak = max(peak, queued_bytes(app))

    async with app:
        # at most the keys that share the stuck one's range wait with it
        await reached(lambda: app.statistics().partitions[0].front == records)
        await reached(lambda: app.statistics().running == 1 and app.statistics().partitions[0].lagging_workers == 1)
        assert seen.count > records * 0.9
        assert seen.by_key[b"k3"] == []
        hold.set()
        await reached(lambda: app.statistics().partitions[0].offset_least == records)
        assert app.statistics().partitions[0].lagging_workers == 0
    seen.check(records)
    assert 0 < peak <= limit


async def test_slow_keys_hold_back_nobody(ground: Ground) -> None:
    """One stuck key and two slow ones with a long queue: the front passes them, and records of idle keys behind them
    are handled long before the slow ones are through.
    """
    slow = [b"slow-a", b"slow-b"]
    filled: list[tuple[bytes | None, bytes | None]] = [(b"stuck", b"0")] * 30
    filled += [(slow[i % 2], b"1") for i in range(60)]
    filled += [(b"stuck", b"0")] * 30
    filled += [(b"idle-%d" % i, b"2") for i in range(50)]
    await asyncio.to_thread(ground.fill, filled)
    app = ground.app(buffer_bytes_max=256 * 40 * 210, full_wait_ms=200)  # forty small records for each worker
    hold, idle = asyncio.Event(), 0

    @app.handler(ground.source, parallelising_factor=256)
    async def work(value: int) -> None:
        nonlocal idle
        if value == 0:
            await hold.wait()
        elif value == 1:
            await asyncio.wait([asyncio.ensure_future(hold.wait())], timeout=3.0)
        else:
            idle += 1

    async with app:
        await reached(lambda: app.statistics().running >= 3)
        began = asyncio.get_running_loop().time()
        await reached(lambda: idle >= 45)  # a few may share a range with a slow key
        took = asyncio.get_running_loop().time() - began
        hold.set()
    assert took < 3.0, "it did not wait until a slow record was through"


@virtual
async def test_hot_keys_of_many_partitions_are_not_idle() -> None:
    """More partitions than may catch up at once, each with a hot key and some that are behind, too: a pass that stands
    at a full worker leaves its reader to the others, so each hot key has a record to work on nearly all of the time.
    """
    partitions, records, cost_s = 3 * CATCH_UP_READERS_MAX, 2_000, 0.01
    busy_s: defaultdict[int, float] = defaultdict(float)
    ended_s: dict[int, float] = {}
    clock = asyncio.get_running_loop().time
    # room for thirty records in each queue
    app = application(buffer_bytes_max=partitions * 64 * 30 * 220)

    @app.handler(SOURCE, parallelising_factor=64)
    async def work(value: bytes) -> None:
        began = clock()
        await asyncio.sleep(cost_s)
        if value:
            partition = int(value)
            busy_s[partition] += clock() - began
            ended_s[partition] = clock()

    engine = Engine(app, seed=7, partitions=partitions)
    for partition in range(partitions):
        ranks = random.Random(partition).choices(range(40), [1 / (rank + 1) for rank in range(40)], k=records)
        for rank in ranks:
            engine.send(b"%d" % rank, b"" if rank else b"%d" % partition, partition=partition)
    await engine.start()
    began = clock()
    await engine.level()
    assert len(busy_s) == partitions
    shares = sorted(busy_s[p] / (ended_s[p] - began) for p in range(partitions))
    assert shares[0] > 0.8, f"hot keys worked for so much of their time: {shares}"
