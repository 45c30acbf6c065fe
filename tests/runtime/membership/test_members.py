"""Several processes of one application: they share whole partitions, come and go, and each record is handled once."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from keylanes import FencedError, MapState, SettingsError, State, StateNotReady
from keylanes.brokers.protocol import BrokerTimeout, Reader, TopicPartition
from keylanes.brokers.simulated.broker import Latency
from keylanes.offsets.codec import decode_signal
from keylanes.offsets.signals import Beat
from keylanes.runtime.app_runs import AppRuns
from keylanes.runtime.logs.own_ledger import Expelled
from keylanes.runtime.logs.reader import signals_topic
from keylanes.runtime.member import AppRun
from keylanes.runtime.membership.coordinator_beats import PROBES

from ...stage.engine import OUT, SOURCE, Engine, application
from ...stage.passing import Passing
from .group import (
    BEAT_S,
    PARTITIONS,
    PROCESSED_S,
    SESSION_S,
    Group,
    coordinators,
    held,
    in_group,
    passing_on,
    share,
    start,
    three,
    until,
)

# --- sharing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
@in_group()
async def test_members_share_whole_partitions_and_each_record_is_handled_once(group: Group, count: int) -> None:
    """Whoever joins gets its part, whoever leaves gives it back; meanwhile all goes on."""
    engines = [group.process(name) for name in "abc"[:count]]
    group.send(300)
    for engine in engines:
        await engine.start()
        group.send(300)
    await until(share(*engines))
    group.send(300)
    await group.done()
    assert len(coordinators(*engines)) == 1
    for engine in engines[:-1]:
        await engine.stop()
        group.send(100)
    await until(lambda: held(engines[-1]) == set(range(PARTITIONS)))
    await group.done()
    await engines[-1].stop()


@in_group()
async def test_a_join_moves_only_what_must_move(group: Group) -> None:
    """Of six partitions two go to the third process, one of each; nobody loses what it keeps, even for a moment."""
    engines = [group.process(name) for name in "abc"]
    await start(*engines[:2])
    before = [{run.dispatch for run in engine.member.runs} for engine in engines[:2]]
    await engines[2].start()
    await until(share(*engines))
    for engine, runs in zip(engines, before, strict=False):
        assert {run.dispatch for run in engine.member.runs} < runs, "the same runs, and fewer of them"


@pytest.mark.parametrize("who", ["the coordinator", "another one"])
@in_group()
async def test_a_member_that_is_killed_is_replaced_by_the_others(group: Group, who: str) -> None:
    """What it had not committed is handled by them; who coordinates next goes on from the logs."""
    killed, left = await three(group, who)
    group.send(300)
    await asyncio.sleep(0.05)
    await killed.crash()
    group.send(300)
    assert await until(share(*left)) <= 2 * SESSION_S + 2 * BEAT_S
    await group.done()
    assert len(coordinators(*left)) == 1


# --- at rest ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
@in_group(partitions=3)
async def test_an_idle_group_writes_nothing_but_beats(group: Group, count: int) -> None:
    """For ten minutes no epoch begins, and neither the control log nor the offset log grows."""
    group.send(50)
    engines = await group.sharing("abc"[:count], passing_on(commit_interval_ms=2_000))
    await group.done()
    await asyncio.sleep(5)
    logs = ("app.control", "app.offsets")
    ends, epochs = [group.end(log) for log in logs], [run.dispatch.epoch for run in engines[0].member.runs]
    beats = group.end("app.signals")
    await asyncio.sleep(600)
    assert [group.end(log) for log in logs] == ends
    assert [run.dispatch.epoch for run in engines[0].member.runs] == epochs
    assert 0 < group.end("app.signals") - beats <= 1.1 * 600 * (5 + count)


# --- who may not take part --------------------------------------------------------------------------------------------


async def refused(engine: Engine, kind: type[Exception]) -> str:
    """A process is refused: what it says."""
    with pytest.raises(kind) as error:
        await engine.start()
    return str(error.value)


@in_group()
async def test_a_second_process_of_a_name_at_work_is_refused(group: Group) -> None:
    """With exit code 3; the first one goes on."""
    first = group.process("a")
    await first.start()
    settings = first.settings()
    second = group.process("b")
    second.settings = lambda: settings  # type: ignore[method-assign]  # it has the other's name
    said = await refused(second, FencedError)
    assert "group_instance_id='a' is the name of incarnation 1" in said
    assert FencedError.exit_code == 3
    group.send(10)
    await group.done()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"factor": 5}, "parallelising_factor=5 for topic 'in', and 4 at incarnation 1"),
        ({"start": "latest"}, "start= is 'latest' now"),
    ],
    ids=["factor", "start"],
)
@in_group()
async def test_who_contradicts_those_at_work_is_refused(group: Group, other: dict[str, Any], says: str) -> None:
    """With exit code 2; nobody is disturbed."""
    first = group.process("a")
    await first.start()
    said = await refused(group.process("b", passing_on(**other)), SettingsError)
    assert says in said
    assert SettingsError.exit_code == 2
    group.send(10)
    await group.done()
    assert held(first) == set(range(PARTITIONS))


# --- until the level --------------------------------------------------------------------------------------------------


@in_group()
async def test_members_that_run_to_the_level_end_together(group: Group) -> None:
    """When all that there was at the start is done, by whichever of them."""
    group.send(2_000)
    engines = [group.process(name) for name in "ab"]
    await asyncio.gather(*(engine.start(until_level=True) for engine in engines))
    async with asyncio.timeout(PROCESSED_S):
        await asyncio.gather(*(engine.task for engine in engines))
    assert sorted(group.passed_on()) == list(range(group.sent))


@in_group()
async def test_who_has_no_level_to_reach_stays(group: Group) -> None:
    """One that runs to the level ends, the other one takes over what it had."""
    stays, ends = group.process("a"), group.process("b")
    await stays.start()
    group.send(1_000)
    await ends.start(until_level=True)
    async with asyncio.timeout(PROCESSED_S):
        await ends.task
    assert len(group.passed_on()) >= 1_000
    await until(lambda: held(stays) == set(range(PARTITIONS)))
    group.send(100)
    await group.done()


# --- who can't read the control log -----------------------------------------------------------------------------------


class Deaf(Passing):
    """A connection that can't read the control log for some time."""

    is_deaf = False

    async def reader(self, positions: Any) -> Any:
        """A reader."""
        return DeafReader(self, await self.real.reader(positions))

    async def watermarks(self, sources: Sequence[TopicPartition]) -> Any:
        """See the protocol."""
        self.check(sources)
        return await self.real.watermarks(sources)

    def check(self, sources: Sequence[TopicPartition]) -> None:
        """Raises BrokerTimeout when the control log is asked for."""
        if self.is_deaf and any(source.topic == "app.control" for source in sources):
            raise BrokerTimeout("no answer on demand")


class DeafReader(Passing):
    """A reader of such a connection."""

    def __init__(self, connection: Deaf, reader: Reader) -> None:
        super().__init__(reader)
        self.connection = connection

    async def fetch(self, sources: Any, **limits: Any) -> Any:
        """See the protocol. A fetch that was under way is not answered either."""
        try:
            self.connection.check(list(sources))
            batches = await self.real.fetch(sources, **limits)
            self.connection.check(list(sources))
        except BrokerTimeout:
            await asyncio.sleep(0.5)
            raise
        return batches


@in_group(partitions=1, wrap=Deaf)
async def test_who_cant_read_the_control_log_begins_no_record_and_answers_nothing(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """After a session it does not know what it may do; when it can again, it goes on."""
    begun: list[bytes] = []
    app = application(commit_interval_ms=100)

    @app.handler(SOURCE, to=OUT, parallelising_factor=4)
    async def count(value: bytes, seen: State[int]) -> bytes:
        begun.append(value)
        seen.put((seen.get() or 0) + 1)
        return value

    engine = group.process("a", app)
    await engine.start()
    group.send(10)
    await group.done()
    connection: Any = engine.connection
    connection.is_deaf = True
    group.send(10)
    await until(lambda: len(begun) == 20, SESSION_S / 2)
    await asyncio.sleep(SESSION_S + 2 * BEAT_S)
    group.send(10)
    await asyncio.sleep(SESSION_S)
    assert len(begun) == 20
    with pytest.raises(StateNotReady, match="whether this process still has it is not known"):
        engine.view("seen").get(b"k0")
    connection.is_deaf = False
    await group.done()
    assert len(begun) == 30
    assert engine.view("seen").get(b"k0") == 1
    assert caplog.text.count("can't be read for session_timeout_ms: records are not begun until it can") == 1
    assert caplog.text.count("can be read again: records are begun again") == 1


@in_group(partitions=2)
async def test_state_is_answered_by_the_member_that_has_it(group: Group) -> None:
    """Each answers for its partitions; of a key that it does not have it can't say that there is none. One that has
    all of them can, and one that has stopped answers nothing.
    """
    app = application(commit_interval_ms=100)

    @app.handler(SOURCE, to=OUT, parallelising_factor=4)
    async def count(value: bytes, seen: State[int], by: MapState[int, int]) -> bytes:
        seen.put((seen.get() or 0) + 1)
        by.put(1, int(value))
        return value

    first, second = group.process("a", app), group.process("b", app)
    await start(first, second)
    group.send(2)  # k0 in partition 0, k1 in 1
    await group.done()
    (of_first,), (of_second,) = held(first), held(second)
    for engine, own, foreign in ((first, of_first, of_second), (second, of_second, of_first)):
        seen, by = engine.view("seen"), engine.view("by")
        assert (seen.get(b"k%d" % own), by.items(b"k%d" % own)) == (1, [(1, own)])
        for key in (b"k%d" % foreign, b"nobody's"):
            with pytest.raises(StateNotReady, match=rf"in\[{foreign}\]: .* held here"):
                seen.get(key)
            with pytest.raises(StateNotReady, match=rf"in\[{foreign}\]: .* held here"):
                by.items(key)
        assert seen.get(b"nobody's", partition=own) is None
        with pytest.raises(StateNotReady, match="not held here"):
            seen.get(b"k%d" % foreign, partition=foreign)
    await second.stop()
    with pytest.raises(StateNotReady, match="this process does not work any more"):
        second.view("seen").get(b"k%d" % of_second)
    await until(lambda: held(first) == {0, 1})
    assert [first.view("seen").get(key) for key in (b"k0", b"k1", b"nobody's")] == [1, 1, None]


# --- health -----------------------------------------------------------------------------------------------------------


@in_group(partitions=1)
async def test_a_member_is_ready_when_it_holds_what_is_its_own(group: Group) -> None:
    """On an empty topic, too: nobody waits for a record. Where there are fewer partitions than processes one without
    ranges is ready, stands by, and takes over.
    """
    first, second = group.process("a"), group.process("b")
    async with asyncio.timeout(5):
        await first.start()
    assert first.member.is_ready.is_set()
    assert held(first) == {0}
    async with asyncio.timeout(5):
        member: AppRun = await second.start()
    assert member.is_ready.is_set()
    assert held(second) == set()
    assert member.state == "running"
    assert not member.run_watch.stall.is_stalled
    await asyncio.sleep(20)
    assert not member.run_watch.stall.is_stalled
    await first.stop()
    group.send(10)
    await group.done()
    assert held(second) == {0}


@in_group()
async def test_who_was_expelled_comes_back(group: Group) -> None:
    """It was not heard for a session: what it ran is over, and a second later it asks to join again, as another one."""
    other, away = (group.process(name, is_named=False) for name in "ab")
    await other.start()
    lives: list[AppRun] = []
    life = AppRuns(away.make, lives.append, away.settings())
    living = asyncio.get_running_loop().create_task(life.run())
    await until(share(other, away))
    signals: Any = away.member.group.signals
    signals.send = lambda partition, signal: None  # nobody hears it any more
    assert await until(lambda: life.is_coming_back) <= SESSION_S + 2 * BEAT_S
    (first,) = lives
    assert isinstance(first.cause, Expelled)
    assert "was expelled (silent)" in str(first.cause)
    await until(lambda: held(other) == set(range(PARTITIONS)))
    group.send(100)
    await until(share(other, away))
    assert [member.own_ledger.incarnation for member in lives] == [2, 3]
    group.send(100)
    await group.done()
    life.stop()
    await living


@in_group(latency=Latency(timeout_ms=1_500.0))
async def test_beats_that_could_not_be_told_are_not_told_later(group: Group) -> None:
    """Behind an outage a beat says how it is now: those of before would say that this process has read nothing."""
    _, away = await group.sharing("ab")
    topic, faults = signals_topic(away.app.name), group.cluster.faults
    partition = TopicPartition(topic, away.member.group.member_signals.partition)

    def beats() -> int:
        records = [entry.record for entry in group.cluster.all_entries(partition) if entry.record]
        found = [decode_signal(record.value or b"") for record in records]
        own = away.member.own_ledger.incarnation
        return sum(isinstance(signal, Beat) and signal.incarnation == own for signal in found)

    await until(lambda: beats() > 0)
    faults.cut_from.add((away.member.identity.birth, topic))
    await asyncio.sleep(0.6 * SESSION_S)
    before = beats()
    faults.cut_from.clear()
    await until(lambda: beats() > before)
    await asyncio.sleep(2 * BEAT_S)
    told = "the one that waits, one in each interval, and probes until the coordinator is heard again"
    assert beats() - before <= 1 + 2 * (1 + PROBES), told


@in_group()
async def test_who_coordinates_next_expels_nobody_that_it_did_not_listen_to(group: Group) -> None:
    """It listened for longer than a session before it joined, and not since; somebody has joined meanwhile, and the
    coordinator stops.
    """
    first, *others = (group.process(name, is_named=False) for name in "abc")
    await first.start()
    await first.crash()
    await asyncio.gather(*(engine.start() for engine in others))
    (second,) = coordinators(*others)
    (third,) = [engine for engine in others if engine is not second]
    new = group.process("d", is_named=False)
    await new.start()
    await until(share(second, third, new))
    await second.stop()
    await until(share(third, new))
    await asyncio.sleep(SESSION_S)
    assert third.member.state == new.member.state == "running"
