"""``rate_per_s``: so many attempts begin in a second, over all processes of an application, whatever happens."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from keylanes import App, Context, Retry, SettingsError, State
from keylanes.runtime.partition.pace import CATCH_UP_S

from ...stage.engine import SOURCE, Engine, application, started
from ...stage.virtual import virtual
from ..membership.group import BEAT_S, SESSION_S, Group, coordinators, in_group, share, start, until

RATE = 20.0
SLACK_S = CATCH_UP_S + 0.05
"""Somewhat later than it has its permit a record begins."""


class Begun:
    """When attempts began, and of which process."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.by: Counter[str] = Counter()

    def one(self, process: str = "") -> None:
        """One begins."""
        self.at.append(asyncio.get_running_loop().time())
        self.by[process] += 1

    async def during(self, seconds: float) -> int:
        """How many begin from now on in so many seconds."""
        now_s = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        return sum(at_s >= now_s for at_s in self.at)

    def see(self, rate: float, members: int = 1) -> None:
        """In no time there were more than the rate allows so many members."""
        for i, since_s in enumerate(self.at):
            for count, until_s in enumerate(self.at[i:], 1):
                most = rate * (until_s - since_s + SLACK_S) + members
                assert count <= most, f"{count} began from {since_s:.3f} s to {until_s:.3f} s, {most:.1f} may"


# --- one process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "state", "context", "thread"])
@virtual
async def test_attempts_of_one_process_keep_to_the_rate(kind: str) -> None:
    """Of whatever kind the handler is; all records are handled, as fast as that allows."""
    begun, records = Begun(), 60

    async def plain(value: int) -> None:
        begun.one()

    async def with_state(value: int, count: State[int]) -> None:
        begun.one()
        count.put(value)

    async def with_context(value: int, ctx: Context) -> None:
        begun.one()

    def in_thread(value: int) -> None:
        begun.one()

    handlers: dict[str, Any] = {"plain": plain, "state": with_state, "context": with_context, "thread": in_thread}
    app = application()
    app.handler(SOURCE, rate_per_s=RATE)(handlers[kind])
    engine = await filled(app, records)
    began_s = asyncio.get_running_loop().time()
    await engine.level()
    assert asyncio.get_running_loop().time() - began_s <= records / RATE * 1.1 + 1.0
    await engine.stop()
    assert len(begun.at) == records
    begun.see(RATE)


@pytest.mark.parametrize("limit", [None, 3])
@virtual
async def test_each_attempt_counts(limit: int | None) -> None:
    """A record that is tried again waits for its turn each time, beside ``max_in_flight``, too."""
    begun, records = Begun(), 30

    async def fails_first(value: int, ctx: Context) -> None:
        begun.one()
        await asyncio.sleep(0.01)
        if ctx.attempt < 3:
            raise ValueError("not yet")

    app = application()
    retry = Retry(attempts=3, backoff_ms=1)
    app.handler(SOURCE, rate_per_s=RATE, retry=retry, max_in_flight=limit)(fails_first)
    engine = await filled(app, records)
    await engine.level()
    await engine.stop()
    assert len(begun.at) == 3 * records
    begun.see(RATE)


@virtual
async def test_partitions_take_turns_where_there_is_a_rate() -> None:
    """A few records of one partition do not wait for the backlog of another one."""
    seen: list[int] = []

    async def work(value: int, ctx: Context) -> None:
        seen.append(ctx.partition)

    app = application()
    app.handler(SOURCE, rate_per_s=RATE)(work)
    engine = Engine(app, partitions=2)
    for value in range(200):
        engine.send(b"k%d" % value, b"%d" % value, partition=0)
    await engine.start()
    await until(lambda: len(seen) >= 10)
    for value in range(5):
        engine.send(b"k%d" % value, b"%d" % value, partition=1)
    before = len(seen)
    await until(lambda: seen.count(1) == 5)
    assert len(seen) - before <= 20
    await engine.level()


async def filled(app: App, records: int) -> Engine:
    """One process that works, and records of many keys for it."""
    engine = await started(app, partitions=2)
    for value in range(records):
        engine.send(b"k%d" % value, b"%d" % value, partition=value % 2)
    return engine


# --- several ----------------------------------------------------------------------------------------------------------


def limited(name: str, begun: Begun, rate: float = RATE) -> App:
    """Notes when attempts begin."""
    app = application(commit_interval_ms=100)

    @app.handler(SOURCE, parallelising_factor=16, rate_per_s=rate)
    async def work(value: int, _: Context) -> None:
        begun.one(name)

    return app


async def members(group: Group, begun: Begun, names: Sequence[str]) -> list[Engine]:
    """So many processes, at work."""
    engines = [group.process(name, limited(name, begun), is_named=False) for name in names]
    await start(*engines)
    return engines


@in_group()
async def test_processes_share_the_rate_and_use_all_of_it(group: Group) -> None:
    """Each has a part of it, together they reach it, while one joins and one leaves."""
    begun = Begun()
    group.send(3_000)
    engines = await members(group, begun, "abc")
    assert await begun.during(20) >= 0.95 * RATE * 20
    assert min(begun.by.values()) >= 20 * RATE / 6, "each has a part of it"
    late = group.process("d", limited("d", begun), is_named=False)
    await late.start()
    await engines[0].stop()
    assert await begun.during(20) >= 0.9 * RATE * 20, "what the one had is the others' soon"
    assert begun.by["d"] >= 20 * RATE / 6
    begun.see(RATE, 4)


@pytest.mark.parametrize("who", ["the coordinator", "another one"])
@in_group()
async def test_what_a_killed_process_had_is_free_once_it_is_fenced(group: Group, who: str) -> None:
    """Until then the others go on with what they have, also when nobody coordinates; then they have all of it."""
    begun = Begun()
    group.send(4_000)
    engines = await members(group, begun, "abc")
    (leads,) = coordinators(*engines)
    killed = leads if who == "the coordinator" else next(engine for engine in engines if engine is not leads)
    left = [engine for engine in engines if engine is not killed]
    await asyncio.sleep(5)
    await killed.crash()
    between = await begun.during(SESSION_S - 1)
    assert 0.5 * RATE * (SESSION_S - 1) <= between <= 0.8 * RATE * (SESSION_S - 1), "two of three parts"
    await until(share(*left))
    await asyncio.sleep(2 * BEAT_S)
    assert await begun.during(20) >= 0.95 * RATE * 20
    begun.see(RATE, 3)


@in_group()
async def test_a_rollout_changes_the_rate(group: Group) -> None:
    """While processes differ the lower rate counts; it is no reason to refuse one."""
    begun = Begun()
    group.send(3_000)
    engines = await members(group, begun, "ab")
    await asyncio.sleep(2 * BEAT_S)
    assert sum(engine.member.statistics(0.0).rates[SOURCE] for engine in engines) == pytest.approx(RATE)
    slower = group.process("c", limited("c", begun, RATE / 2), is_named=False)
    await slower.start()
    await asyncio.sleep(2 * BEAT_S)
    assert 0.9 * RATE / 2 * 20 <= (await begun.during(20)) <= RATE / 2 * 20 + 3
    await slower.stop()
    await asyncio.sleep(2 * BEAT_S)
    assert await begun.during(20) >= 0.9 * RATE * 20


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), "10", True, 2e6])
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    """By what it is, what is allowed and what to do."""
    with pytest.raises(SettingsError, match=r"rate_per_s is a number from 0\.001 to 1000000; seen .*: give how many"):
        application().handler(SOURCE, rate_per_s=rate)(lambda value: None)
