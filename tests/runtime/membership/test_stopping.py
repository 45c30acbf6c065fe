"""A process that is told to stop works on until others have its state, and ends within its time."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from keylanes import App, State
from keylanes.brokers.protocol import Outgoing
from keylanes.errors import BrokerUnavailable
from keylanes.group.signals_fold import COORDINATORS
from keylanes.offsets.codec import decode_signal, encode
from keylanes.offsets.signals import Beat, CoordinatorBeat, LeaveAsked
from keylanes.runtime.logs.reader import signals_topic

from ...stage.engine import OUT, SOURCE, Engine, application
from ...stage.virtual import virtual
from .group import Group, coordinators, held, in_group, passing_on, start, until

LEAVE_S, DRAIN_S, CLOSE_S = 6.0, 4.0, 2.0
AT_ONCE_S = 1.0
"""Longer than what has nothing to wait for takes."""


def counting(handled: list[int] | None = None, *, work_s: float = 0.0, **settings: Any) -> App:
    """Counts the records of each key in state, and passes values on."""
    times = {"leave_ms": LEAVE_S, "drain_timeout_ms": DRAIN_S, "close_timeout_ms": CLOSE_S}
    app = application(**{"commit_interval_ms": 100, **{k: int(v * 1000) for k, v in times.items()}, **settings})

    @app.handler(SOURCE, to=OUT, parallelising_factor=4)
    async def count(value: bytes, seen: State[int]) -> bytes:
        seen.put((seen.get() or 0) + 1)
        await asyncio.sleep(work_s)
        if handled is not None:
            handled.append(int(value))
        return value

    return app


async def pair(group: Group, app: App, *, is_named: bool = False, dismisses: bool = True) -> tuple[Engine, Engine]:
    """Two processes that share all; the first one coordinates, and lets nobody wait, or waits for long itself."""
    first = group.process("a", counting(leave_ms=0 if dismisses else 60_000), is_named=False)
    second = group.process("b", app, is_named=is_named)
    await start(first, second)
    assert coordinators(first, second) == [first]
    return first, second


def cut_off(engine: Engine) -> None:
    """A process that nothing reaches: it decides nothing, and is not yet missed."""
    engine.cluster.faults.cut.add(engine.connection.client_name)


def dismiss(engine: Engine, *incarnations: int) -> None:
    """The coordinator says, as this process hears it, that these need not wait."""
    control = engine.member.own_ledger.ledger.control
    beat = CoordinatorBeat(control.term, 1_000, False, 1_000, False, incarnations, (), ())
    topic = signals_topic(engine.app.name)
    engine.cluster.write([Outgoing(topic, COORDINATORS, None, encode(beat))], ())


async def seconds(engine: Engine) -> float:
    """How long its run goes on; raises what it ends with."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await engine.task
    return loop.time() - began_s


def told(engine: Engine) -> list[LeaveAsked | Beat]:
    """All that it told of its leaving, and of its life."""
    signals = [decode_signal(r.value or b"") for r in engine.cluster.committed_records(signals_topic(engine.app.name))]
    own = engine.member.own_ledger.incarnation
    return [one for one in signals if isinstance(one, LeaveAsked | Beat) and one.incarnation == own]


def said_to_leave(engine: Engine) -> list[LeaveAsked]:
    """Of its leaving alone."""
    return [one for one in told(engine) if isinstance(one, LeaveAsked)]


# --- how long it works on ---------------------------------------------------------------------------------------------


@in_group(partitions=2)
async def test_a_leaver_works_on_until_it_is_dismissed(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """It reads, handles and commits what comes; one heard dismissal of others changes nothing, its own ends that."""
    caplog.set_level(logging.INFO, "keylanes")
    handled = list[int]()
    first, second = await pair(group, counting(handled))
    cut_off(first)
    second.member.stop()
    for _ in range(3):
        before = len(handled)
        dismiss(second, first.member.own_ledger.incarnation)
        group.send(20)
        await until(lambda before=before: len(handled) >= before + 10)  # type: ignore[misc]  # bound at once
        await asyncio.sleep(1)
    committed = len(group.passed_on())
    assert committed == len(handled) == 30
    assert not second.task.done()
    dismiss(second, second.member.own_ledger.incarnation)
    # It waits for nobody but the coordinator, which is cut off, to hear that it has left.
    assert await seconds(second) <= CLOSE_S
    assert len(said_to_leave(second)) >= 3, "in each interval"
    behind = told(second)[told(second).index(said_to_leave(second)[0]) :]
    assert sum(isinstance(one, Beat) for one in behind) >= 2, "others wait for the shares of rates that it confirms"
    await first.crash()
    assert caplog.text.count("stopping: others copy its state first, for at most 6 s") == 1
    assert "others had not copied" not in caplog.text


@in_group(partitions=2)
async def test_a_leaver_that_nobody_dismisses_stops_when_its_time_is_over(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """By its own clock; what it was at then comes to its end, and is committed."""
    caplog.set_level(logging.INFO, "keylanes")
    handled = list[int]()
    first, second = await pair(group, counting(handled, work_s=0.5))
    cut_off(first)
    second.member.stop()
    await asyncio.sleep(LEAVE_S - 0.2)
    group.send(8)
    assert 0.5 <= await seconds(second) <= 0.2 + 0.5 + CLOSE_S
    assert len(handled) == len(group.passed_on()) > 0
    await first.crash()
    assert "others had not copied all of its state within 6 s (leave_ms)" in caplog.text


@in_group(partitions=2)
async def test_a_run_to_the_level_works_on_too_when_it_is_told_to_stop_before(group: Group) -> None:
    """Then the others go on without it."""
    group.send(400)
    first, second = (group.process(name, counting(work_s=0.5), is_named=False) for name in "ab")
    await start(first, second, until_level=True)
    cut_off(first)
    second.member.stop()
    await asyncio.sleep(LEAVE_S - 1)
    assert not second.member.shutdown.budget.has_begun
    assert await seconds(second) <= 1 + DRAIN_S + CLOSE_S
    await first.crash()


async def of_one(group: Group) -> Engine:
    """Nobody else is there."""
    engine = group.process("a", counting(), is_named=False)
    await engine.start()
    return engine


async def without_state(group: Group) -> Engine:
    """Nothing has to be copied."""
    engines = await group.sharing("ab", passing_on(), is_named=False)
    return engines[1]


async def with_a_name(group: Group) -> Engine:
    """Soon it is back, and finds what it had."""
    _, second = await pair(group, counting(return_ms=5_000), is_named=True)
    return second


async def with_nothing(group: Group) -> Engine:
    """The only partition is another one's."""
    engines = [group.process(name, counting(), is_named=False) for name in "ab"]
    for engine in engines:
        await engine.start()
    (one,) = [engine for engine in engines if not held(engine)]
    return one


async def with_no_time(group: Group) -> Engine:
    """By its settings."""
    _, second = await pair(group, counting(leave_ms=0))
    return second


@pytest.mark.parametrize("kind", [of_one, without_state, with_a_name, with_nothing, with_no_time])
@virtual
async def test_who_has_nobody_to_wait_for_stops_at_once(
    kind: Callable[[Group], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """In less than a heartbeat or two, and without a word about copies."""
    caplog.set_level(logging.INFO, "keylanes")
    group = Group(partitions=1 if kind is with_nothing else 2)
    engine = await kind(group)
    engine.member.stop()
    assert await seconds(engine) <= AT_ONCE_S
    assert "others copy its state" not in caplog.text
    assert "stopping: it was told to" in caplog.text


@pytest.mark.parametrize(("is_named", "return_ms", "says_ms"), [(True, 5_000, 5_000), (True, 0, 0), (False, 5_000, 0)])
@in_group(partitions=2)
async def test_a_process_with_a_name_says_that_it_comes_back(
    group: Group, says_ms: int, return_ms: int, *, is_named: bool
) -> None:
    """Unless its settings say that it does not: then it leaves, and works on, as one without a name does."""
    first, second = await pair(group, counting(return_ms=return_ms), is_named=is_named)
    cut_off(first)
    second.member.stop()
    await asyncio.sleep(LEAVE_S / 2)
    assert {one.returns_in_ms for one in said_to_leave(second)} == {says_ms}
    is_leaving = not second.member.shutdown.budget.has_begun
    assert is_leaving == (says_ms == 0)
    second.member.stop(at_once=True)
    await second.task
    await first.crash()


# --- told again -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["it works on", "it drains"])
@in_group(partitions=2)
async def test_told_again_it_releases_at_once(group: Group, when: str, caplog: pytest.LogCaptureFixture) -> None:
    """It waits neither for others nor for handlers: what is done is committed, what runs is dropped. Another one does
    that, and nothing is lost or doubled.
    """
    caplog.set_level(logging.INFO, "keylanes")
    handled = list[int]()
    app = counting(handled, work_s=3.0, leave_ms=0 if when == "it drains" else 60_000)
    first, second = await pair(group, app, dismisses=False)
    group.send(2)
    await asyncio.sleep(0.5)
    second.member.stop()
    await asyncio.sleep(0.5)
    assert second.member.shutdown.budget.has_begun == (when == "it drains")
    assert second.member.slots.count_running() == 1
    second.member.stop(at_once=True)
    assert await seconds(second) <= AT_ONCE_S
    assert not handled
    await until(lambda: held(first) == {0, 1})
    await group.done()
    first.member.stop(at_once=True)
    await first.task
    assert "1 running record was dropped: nothing of that is kept" in caplog.text


# --- in time ----------------------------------------------------------------------------------------------------------


def works_on(engine: Engine) -> bool:
    """It has been told to stop."""
    return engine.member.shutdown.stop_ordered.is_set()


def drains(engine: Engine) -> bool:
    """It reads no more."""
    return engine.member.shutdown.budget.has_begun


def commits(engine: Engine) -> bool:
    """It gives up what it holds."""
    return engine.member.holding.held.gives_all_up


def leaves(engine: Engine) -> bool:
    """It has committed for the last time."""
    return engine.member.group.member_signals._is_done


def closes(engine: Engine) -> bool:
    """It has left."""
    return engine.member.holding.is_closed


@pytest.mark.parametrize(
    ("phase", "ends_with"),
    [(works_on, BrokerUnavailable), (drains, BrokerUnavailable), (commits, None), (leaves, None), (closes, None)],
)
@pytest.mark.parametrize("runs_s", [0.0, 1_000.0], ids=["quick", "stuck"])
@in_group(partitions=2)
async def test_a_stop_ends_in_its_time_whenever_the_broker_hangs(
    group: Group, phase: Callable[[Engine], bool], ends_with: type[Exception] | None, runs_s: float
) -> None:
    """From a phase on nothing is answered; and handlers come to their ends at once, or never."""
    app = counting(work_s=runs_s, handler_timeout_ms=10_000_000)
    first, second = await pair(group, app)
    group.send(8)
    await asyncio.sleep(1)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    second.member.stop()
    if phase is works_on:
        second.cluster.faults.away = True
    while not (phase(second) or second.task.done()):  # noqa: ASYNC110  # before the step that follows
        await asyncio.sleep(0.000_2)
    second.cluster.faults.away = True
    (ended,) = await asyncio.gather(second.task, return_exceptions=True)
    first.is_over = second.is_over = True  # nothing is answered any more
    took_s = loop.time() - began_s
    assert took_s <= LEAVE_S + DRAIN_S + CLOSE_S
    if ends_with is not None:
        assert isinstance(ended, ends_with)
