"""``max_in_flight``: so many handlers run at once, over all partitions. Whoever waits for a turn does not run."""

import asyncio
import random
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from keylanes import App, Context, DeadLetter, Retry, SettingsError, State
from keylanes.keyrange.hashing import SPACE_END

from ...stage.engine import DEAD, SOURCE, Engine, application, started
from ...stage.ground import Ground
from ...stage.virtual import virtual

PARTITIONS = 4
LIMIT = 20
WORK_S = 0.2
TIMEOUT_MS = 1_000


class Seen:
    """What handlers saw of each other."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.values: dict[int, list[int]] = defaultdict(list)
        """By key."""
        self.attempts: list[int] = []
        self._guard = threading.Lock()

    def begin(self, value: int) -> None:
        """A handler begins."""
        with self._guard:
            self.now += 1
            self.most = max(self.most, self.now)

    def end(self, value: int, keys: int) -> None:
        """It comes to its end."""
        with self._guard:
            self.now -= 1
            self.values[value % keys].append(value)


def fill(engine: Engine, records: int, keys: int) -> None:
    """Records of keys that lie in one partition each."""
    for value in range(records):
        key = value % keys
        engine.send(b"k%d" % key, b"%d" % value, partition=key % PARTITIONS)


@pytest.mark.parametrize("kind", ["suspends", "now and then", "context", "state"])
@virtual
async def test_at_most_so_many_run_at_once(kind: str) -> None:
    """512 workers of each of four partitions, 20 at once: all records are handled in the order of their keys, none runs
    out of its time although it waits for many times as long, and what waits counts nowhere as running.
    """
    records, keys = 2_000, 700
    seen = Seen()
    running: list[int] = []

    async def work(value: int) -> None:
        seen.begin(value)
        statistics = app.statistics()
        running.append(statistics.running)
        if kind != "now and then" or value % 3 == 0:
            await asyncio.sleep(WORK_S)
        seen.end(value, keys)

    async def with_context(value: int, ctx: Context) -> None:
        seen.attempts.append(ctx.attempt)
        await work(value)

    async def with_state(value: int, count: State[int]) -> None:
        count.put((count.get() or 0) + 1)
        await work(value)

    handlers = {"context": with_context, "state": with_state}
    app = application()
    handler: Any = handlers.get(kind, work)
    app.handler(SOURCE, parallelising_factor=512, max_in_flight=LIMIT, timeout_ms=TIMEOUT_MS)(handler)
    engine = Engine(app, partitions=PARTITIONS)
    fill(engine, records, keys)
    app._adopt(await engine.start(), lambda work: work)
    await engine.level()
    assert not app.statistics().running
    await engine.stop()
    assert seen.most == LIMIT
    assert max(running) <= LIMIT
    assert all(values == sorted(values) for values in seen.values.values())
    assert sorted(value for values in seen.values.values() for value in values) == list(range(records))
    assert set(seen.attempts) <= {1}


async def test_threads_are_limited_too(ground: Ground) -> None:
    """16 threads, 3 at once."""
    await asyncio.to_thread(ground.fill, [(b"k%d" % (i % 90), b"%d" % i) for i in range(300)])
    app = ground.app(threads=16)
    seen = Seen()

    @app.handler(ground.source, parallelising_factor=512, max_in_flight=3)
    def work(value: int) -> None:
        seen.begin(value)
        time.sleep(0.002)  # its work
        seen.end(value, 90)

    await asyncio.to_thread(app.run, until="level")
    assert seen.most == 3
    assert all(values == sorted(values) for values in seen.values.values())
    assert sum(map(len, seen.values.values())) == 300


ENDS = (
    "returns",
    "raises",
    "hangs",
    "cancels itself",
    "does not suspend",
    "raises at once",
    "can't be sent",
    "empty",
)


@virtual
async def test_a_permit_comes_back_on_every_way_out() -> None:
    """However a handler ends, it gives way: afterwards as many run at once as before, and never more."""
    limit, seen = 3, Seen()
    app = application()

    @app.handler(
        SOURCE,
        to="out",
        parallelising_factor=64,
        max_in_flight=limit,
        timeout_ms=500,
        retry=Retry(attempts=2, backoff_ms=50),
        on_failure=DeadLetter(DEAD),
    )
    async def end(value: int) -> Any:
        how = ENDS[value % len(ENDS)]
        seen.begin(value)
        try:
            if how == "raises at once":
                raise ValueError(value)
            if how == "can't be sent":
                return object()
            if how == "does not suspend":
                return value
            await asyncio.sleep(3_600 if how == "hangs" else 0.01)
            if how == "raises":
                raise ValueError(value)
            if how == "cancels itself":
                raise asyncio.CancelledError
        finally:
            seen.end(value, 1)
        return None

    engine = await started(app, partitions=PARTITIONS)
    for wave in range(3):
        seen.most = 0
        for i in range(80):
            is_empty = ENDS[i % len(ENDS)] == "empty"
            value = None if is_empty else b"%d" % (wave * 80 + i)
            engine.send(b"k%d" % (i * 7), value, partition=i % PARTITIONS)
        await engine.level()
        assert seen.most == limit, "all permits are there"
        assert seen.now == 0
    dead = sum(len(values) for values in engine.values(DEAD).values())
    failing = sum(how not in ("returns", "does not suspend") for how in ENDS)
    assert dead == 3 * 80 // len(ENDS) * failing


@virtual
async def test_partitions_take_turns() -> None:
    """A few records of one partition do not wait for the backlog of another one."""
    app = application()
    done: dict[int, list[float]] = defaultdict(list)

    @app.handler(SOURCE, parallelising_factor=64, max_in_flight=2)
    async def work(value: int, ctx: Context) -> None:
        await asyncio.sleep(0.1)
        done[ctx.partition].append(asyncio.get_running_loop().time())

    engine = Engine(app, partitions=2)
    for value in range(500):
        engine.send(b"k%d" % value, b"%d" % value, partition=0)
    await engine.start()
    await asyncio.sleep(2.0)
    sent_s = asyncio.get_running_loop().time()
    for value in range(10):
        engine.send(b"k%d" % value, b"%d" % value, partition=1)
    await engine.level()
    assert done[1][-1] - sent_s < 3.0, "every other turn was theirs: 10 of them, and as many of the others"
    assert done[0][-1] - sent_s > 20.0


@virtual
async def test_one_that_is_tried_again_lets_others_go_on() -> None:
    """Between two attempts a record holds no permit; its key waits, as always."""
    app = application()
    order: list[tuple[int, int]] = []

    @app.handler(
        SOURCE,
        parallelising_factor=64,
        max_in_flight=1,
        timeout_ms=900,
        retry=Retry(attempts=3, backoff_ms=1_000),
        on_failure=DeadLetter(DEAD),
    )
    async def work(value: int, ctx: Context) -> None:
        order.append((value, ctx.attempt))
        await asyncio.sleep(0.3)
        if value == 0:
            raise ValueError(value)

    engine = await started(app)
    for value in range(40):
        engine.send(b"first" if value < 2 else b"k%d" % value, b"%d" % value)
    await engine.level()
    assert len(order) == 42
    first = [entry for entry in order if entry[0] < 2]
    assert first == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert order.index((0, 2)) - order.index((0, 1)) > 2, "others had their turns meanwhile"
    assert not any(value != b"0" for values in engine.values(DEAD).values() for value in values)


@pytest.mark.parametrize("seed", range(8))
@virtual
async def test_ranges_change_while_workers_stand_in_line(seed: int) -> None:
    """Splits, merges, crashes and stops while most wait: every record is handled, each key in order, never more at
    once.
    """
    rng = random.Random(f"turns {seed}")
    limit, records, keys = rng.randint(1, 6), 400, 80
    seen = Seen()
    app = application(merge_hold_ms=200, drain_timeout_ms=500)

    @app.handler(SOURCE, parallelising_factor=16, max_in_flight=limit, timeout_ms=500)
    async def work(value: int) -> None:
        seen.begin(value)
        try:
            if rng.random() < 0.8:
                await asyncio.sleep(rng.uniform(0.01, 0.1))
        finally:
            seen.end(value, keys)

    changes: list[asyncio.Task[None]] = []
    engine = await started(app, seed=seed, partitions=PARTITIONS)
    for value in range(records):
        key = value % keys
        engine.send(b"k%d" % key, b"%d" % value, partition=key % PARTITIONS)
        if value % 10 == 0:
            await asyncio.sleep(rng.uniform(0.0, 0.1))
        if value % 20 == 0:
            dispatch = rng.choice(engine.member.runs).dispatch
            asking = engine.member.work.requests.split(dispatch.place, rng.randrange(1, SPACE_END))
            changes.append(asyncio.get_running_loop().create_task(asking))
        if value % 150 == 149:
            await (engine.crash() if rng.random() < 0.5 else engine.stop())
            seen.now = 0
            await engine.start()
    await engine.level()
    await engine.stop()
    await asyncio.gather(*changes, return_exceptions=True)
    assert seen.most <= limit
    for values in seen.values.values():
        firsts = list(dict.fromkeys(values))  # what was done and not committed is done again after a crash
        assert firsts == sorted(firsts)
    assert {value for values in seen.values.values() for value in values} == set(range(records))


WRONG = (0, -1, 1.5, "20", True)


def test_a_wrong_limit_is_refused() -> None:
    """At the declaration, with what is allowed, what was seen and what to do."""
    app = App("a", broker="embedded:nowhere")
    for limit, most in (("max_in_flight", 1_000_000), ("timeout_ms", 86_400_000)):
        for wrong in (*WRONG, most + 1):
            said = f"handler .* of topic 't': {limit} is a whole number from 1 to {most}; seen {wrong!r}; leave it out"
            with pytest.raises(SettingsError, match=said):
                app.handler("t", **{limit: wrong})(lambda value: None)  # type: ignore[arg-type]  # that is the test
    app.handler("t", max_in_flight=1, timeout_ms=1)(lambda value: None)


@virtual
async def test_a_handlers_own_time_counts() -> None:
    """``timeout_ms`` is one handler's; another one has what the settings say."""
    app = application(handler_timeout_ms=2_000)
    for topic, own in ((SOURCE, 300), ("slow", None)):

        @app.handler(topic, timeout_ms=own, retry=Retry(attempts=1), on_failure=DeadLetter(DEAD))
        async def work(value: int) -> None:
            await asyncio.sleep(1.0)

    engine = await started(app, sources=(SOURCE, "slow"))
    engine.send(b"short", b"1")
    engine.send(b"long", b"1", topic="slow")
    await engine.level()
    assert set(engine.values(DEAD)) == {b"short"}


@virtual
async def test_what_a_record_waits_for_is_not_the_time_of_the_next_one() -> None:
    """An output that can't be sent is tried again, for longer than a handler may take: the next record has all of its
    own time.
    """
    app = application()
    calls: list[int] = []

    @app.handler(
        SOURCE, to="out", timeout_ms=500, retry=Retry(attempts=2, backoff_ms=2_000), on_failure=DeadLetter(DEAD)
    )
    async def work(value: int) -> Any:
        calls.append(value)
        await asyncio.sleep(0.3)
        return object() if value == 1 and calls.count(1) == 1 else value

    engine = await started(app)
    for value in range(3):  # the first one runs straight from its batch
        engine.send(b"k", b"%d" % value)
    await engine.level()
    assert calls == [0, 1, 1, 2]
