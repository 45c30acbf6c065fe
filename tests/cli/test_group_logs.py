"""What ``keylanes group`` reads: of processes at work, at moments that have passed, of logs that were trimmed."""

import asyncio
import json
from collections.abc import Callable

import pytest

from keylanes import SettingsError
from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import EPOCH_MS, Latency
from keylanes.cli.group_logs import GroupMoment, LastBeats, read_group, read_history
from keylanes.cli.group_text import group_json, group_text, history_text
from keylanes.cli.moments import moment_ms
from keylanes.group.history_entries import Change, MoveEntry, MoveState
from keylanes.group.overview import GroupState
from keylanes.runtime.outside_requests import GroupLogs
from keylanes.runtime.settings import Settings

from ..stage.cluster import Cluster
from ..stage.engine import OUT, SOURCE, Engine, application
from ..stage.virtual import virtual

PARTITIONS = 4
WAIT_S = 60.0


def now_ms() -> int:
    """By the clock of the brokers."""
    return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)


class Group:
    """Processes on one cluster, and who looks at their logs."""

    def __init__(self) -> None:
        self.cluster, self.names = Cluster(1, Latency()), 0
        self.cluster.create_topic(SOURCE, PARTITIONS)

    async def start(self, name: str) -> Engine:
        """A process that works."""
        app = application(snapshot_every_commits=1, history_ms=1_000)

        @app.handler(SOURCE, to=OUT, parallelising_factor=4)
        async def same(value: bytes) -> bytes:
            return value

        engine = Engine(app, partitions=PARTITIONS, cluster=self.cluster, name=name)
        await engine.start()
        return engine

    async def logs(self) -> GroupLogs:
        """The logs, over a connection of their own."""
        self.names += 1
        broker = self.cluster.connect(f"looker {self.names}")
        await broker.open()
        return await GroupLogs.of("app", broker, Settings())

    async def stands(self, at_ms: int | None = None) -> GroupMoment:
        """How it stands, or stood."""
        return await read_group(await self.logs(), at_ms, now_ms)

    async def until(self, holds: Callable[[GroupMoment], bool]) -> GroupMoment:
        """Wait until it stands so."""
        async with asyncio.timeout(WAIT_S):
            while not holds(stands := await self.stands()):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.5)
        return stands

    def send(self, number: int) -> None:
        """A record to each partition."""
        self.cluster.write([Outgoing(SOURCE, p, b"k", b"%d" % number) for p in range(PARTITIONS)], ())


def runs_with(*names: str) -> Callable[[GroupMoment], bool]:
    """Whether these have all partitions, and are at work on them."""

    def does(stands: GroupMoment) -> bool:
        held = {member.instance for member in stands.group.members if member.held}
        return held == {*names} and stands.group.state is GroupState.RUNNING

    return does


@virtual
async def test_who_lives_was_heard_a_moment_ago_and_who_was_killed_was_not() -> None:
    """Each member is shown with its last beat, the coordinator too; one whose signals are gone is told from one that
    never said anything.
    """
    group = Group()
    first, second = await group.start("a"), await group.start("b")
    await group.until(runs_with("a", "b"))
    await asyncio.sleep(2)
    stands = await group.stands()
    assert stands.heard is not None
    ages = [stands.now_ms - ms for _, ms in sorted(stands.heard.last_ms.items())]
    assert len(ages) == 2
    assert all(0 <= age <= 1_500 for age in ages), ages
    await second.crash()
    await asyncio.sleep(5)
    text = group_text("app", await group.stands())
    assert "b on" in text
    assert [line for line in text.splitlines() if "last beat 5." in line or "last beat 6." in line], text
    for partition in range(5):
        place = TopicPartition("app.signals", partition)
        group.cluster.forget(place, group.cluster.watermarks(place).high)
    await asyncio.sleep(2)
    gone = await group.stands()
    assert gone.heard is not None
    assert (list(gone.heard.last_ms), gone.heard.expired) == ([1], {2})
    assert "the signals hold nothing of it" in group_text("app", gone)
    assert group_text("app", gone._replace(heard=LastBeats({}, ()))).count("never heard of") == 2
    assert "heard" not in group_text("app", gone._replace(heard=None))
    first_told, second_told = json.loads(group_json("app", gone))["members"]
    assert moment_ms("--at", first_told["last_beat"], 0) == gone.heard.last_ms[1]
    assert 0 <= first_told["last_beat_age_s"] <= 1.5
    assert (second_told["last_beat"], second_told["last_beat_age_s"]) == (None, None)
    await first.stop()


@virtual
async def test_how_it_stood_at_each_moment_is_told_as_it_was_shown_then() -> None:
    """Between two changes, and after the application has ended; what no log knows of is refused."""
    group = Group()
    before_ms = now_ms()
    await asyncio.sleep(1)
    first = await group.start("a")
    alone = await group.until(runs_with("a"))
    await asyncio.sleep(1)
    second = await group.start("b")
    both = await group.until(runs_with("a", "b"))
    await asyncio.sleep(1)
    await first.stop()
    await second.stop()
    await asyncio.sleep(1)
    for shown in (alone, both):
        then = await group.stands(shown.now_ms)
        assert then.group == shown.group
        assert then.heard == shown.heard
    assert (await group.stands()).group.state is GroupState.EMPTY
    text = group_text("app", await group.stands(both.now_ms))
    assert text.startswith("app at 2")
    assert ": RUNNING, " in text
    with pytest.raises(SettingsError, match=r"--at: .* is before the application began: app.control begins at 2"):
        await group.stands(before_ms)
    with pytest.raises(SettingsError, match=r"--at: .* is to come"):
        await group.stands(now_ms() + 60_000)


@virtual
async def test_what_was_trimmed_is_not_known_and_said_so() -> None:
    """A moment before the oldest snapshot that is left is refused, with the first one that is known; that one is."""
    group = Group()
    engine = await group.start("a")
    await group.until(runs_with("a"))
    early_ms = now_ms()
    for number in range(20):
        await asyncio.sleep(1)
        group.send(number)
        await engine.level()
    await engine.stop()
    assert group.cluster.trims > 0
    with pytest.raises(SettingsError, match=r"is before what app.offsets holds, which was trimmed") as caught:
        await group.stands(early_ms)
    words = str(caught.value).split()
    known = words[words.index("from") + 1]
    then = await group.stands(moment_ms("--at", known, 0))
    assert then.group.state is GroupState.RUNNING
    with pytest.raises(SettingsError, match="which was trimmed"):
        await group.stands(moment_ms("--at", known, 0) - 1)
    history = await read_history(await group.logs())
    assert sorted(history.begins_ms) == list(range(PARTITIONS))
    entries = history.entries()
    moves = [entry for entry in entries if isinstance(entry, MoveEntry)]
    done = [(move.state, move.taken_up_ms) for move in moves if not move.is_open]
    assert done == [(MoveState.MOVED, None)] * PARTITIONS
    assert "of the offset log begins at" in history_text("app", history, entries, now_ms())


@virtual
async def test_a_log_that_is_trimmed_while_it_is_read_is_read_again() -> None:
    """The application goes on, and trims what is about to be read."""
    group = Group()
    engine = await group.start("a")
    await group.until(runs_with("a"))

    async def feed() -> None:
        for number in range(200):
            group.send(number)
            await asyncio.sleep(0.1)

    feeding = asyncio.create_task(feed())
    read = 0
    while not feeding.done():
        history = await read_history(await group.logs())
        assert history.control.coordinator == "a-0"
        read += bool(history.begins_ms)
    await engine.stop()
    assert group.cluster.trims > 10
    assert read > 10


@virtual
async def test_the_history_of_a_crash() -> None:
    """Who was killed is expelled and fenced before the others have its partitions; each time stands behind the last."""
    group = Group()
    first, second = await group.start("a"), await group.start("b")
    await group.until(runs_with("a", "b"))
    await second.crash()
    await group.until(runs_with("a"))
    history = await read_history(await group.logs())
    entries = history.entries()
    lost = [entry for entry in entries if isinstance(entry, MoveEntry) and entry.cause == "silent"]
    assert len(lost) == PARTITIONS // 2
    for move in lost:
        assert move.origin is not None
        assert move.target is not None
        assert (move.origin.instance, move.target.instance, move.state) == ("b", "a", MoveState.MOVED)
        assert move.asked is not None
        assert move.released is not None
        assert (move.asked.what, move.released.what) == ("expelled", "fenced")
        assert move.times_ms() == sorted(move.times_ms())
        assert len(move.times_ms()) == 4
    gained = [entry for entry in entries if isinstance(entry, MoveEntry) and entry.cause == "join"]
    assert {move.asked.what for move in gained if move.asked is not None} == {"asked"}
    assert len(gained) == PARTITIONS // 2
    changes = [entry.what for entry in entries if isinstance(entry, Change)]
    assert changes == ["elected", "joined", "joined", "expelled", "fenced"]
    text = history_text("app", history, entries, now_ms())
    assert text.count("stood still at least ") == len(lost)
    assert not any(entry.is_open for entry in entries)
    await first.stop()
