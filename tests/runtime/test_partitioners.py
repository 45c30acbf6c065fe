"""A key lies in one partition, whoever writes it: outputs, dead letters and their replay, in the real engine."""

import logging
from typing import Any

import pytest

from keylanes import App, Context, DeadLetter, Elsewhere, HandlerFailed, Retry, SettingsError, State, StateNotReady
from keylanes.brokers.partitioner import partition_by_crc32, partition_of_key

from ..stage.engine import Engine, started
from ..stage.virtual import virtual
from .membership.group import Group, held, in_group, start, until
from .membership.test_questions import counting

PARTITIONS = 4
KEYS = [b"c%d" % i for i in range(40)]


def totals(**given: Any) -> App:
    """Counts by key; a value of 0 fails."""
    app = App("totals", broker="embedded:never-opened", **given)

    @app.handler("orders", to="out", sends=("audit",), retry=Retry(attempts=1), on_failure=DeadLetter("orders.dead"))
    async def count(value: int, ctx: Context, total: State[int]) -> int:
        if value == 0:
            raise ValueError("no pieces")
        ctx.send("audit", value, key=ctx.key)
        total.put((total.get() or 0) + value)
        return value

    return app


def second(key: bytes, partitions: int) -> int:
    """Everything to partition 1."""
    return 1


async def test_a_replayed_dead_letter_lands_where_the_record_came_from() -> None:
    """The source is written by crc32, and nothing is said of it: letters lie in their records' partition numbers, so
    what is sent back by number from there finds the state of its key, and no key is in two partitions.
    """
    app = totals()
    async with app.test() as broker:
        for key in KEYS:
            await broker.send("orders", 1, key=key, partition=partition_by_crc32(key, 2))
            await broker.send("orders", 0, key=key, partition=partition_by_crc32(key, 2))
        letters = await broker.records("orders.dead")
        assert len(letters) == len(KEYS)
        for letter in letters:
            assert letter.key is not None
            assert letter.partition == partition_by_crc32(letter.key, 2)
            await broker.send("orders", 1, key=letter.key, partition=letter.partition)
        await broker.read("out", int)
        for key in KEYS:
            assert app.store("total").get(key) == 2  # it would raise if two partitions had it


async def test_a_topic_is_written_by_the_partitioner_that_is_named_for_it() -> None:
    """What is returned, what is sent, and dead letters, each by its topic; a topic that is not named by murmur2."""
    app = totals(partitioners={"out": "crc32", "orders.dead": second})
    async with app.test() as broker:
        for key in KEYS:
            await broker.send("orders", 1, key=key)
            await broker.send("orders", 0, key=key)
        for record in await broker.records("out"):
            assert record.partition == partition_by_crc32(record.key or b"", 2)
        for record in await broker.records("audit"):
            assert record.partition == partition_of_key(record.key or b"", 2)
        assert {record.partition for record in await broker.records("orders.dead")} == {1}


async def test_a_source_that_another_partitioner_wrote_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Both partitioners and the setting are named; with the setting nothing is said."""
    for given, count in (({}, 1), ({"partitioners": {"orders": "crc32"}}, 0)):
        caplog.clear()
        async with totals(**given).test() as broker:
            for key in KEYS:
                await broker.send("orders", 1, key=key, partition=partition_by_crc32(key, 2))
            await broker.read("out", int)
        said = [
            r.getMessage()
            for r in caplog.records
            if r.levelno == logging.WARNING and "not written by" in r.getMessage()
        ]
        assert len(said) == count
        assert all("murmur2" in text and "crc32" in text and "partitioners" in text for text in said)
        assert all("a query" in text and "partition_of" in text and "StateNotReady" in text for text in said)


def send_by_crc32(engine: Engine, keys: list[bytes]) -> None:
    """A record of each key, as librdkafka's clients place it."""
    for key in keys:
        engine.send(key, b"1", partition=partition_by_crc32(key, PARTITIONS))


ASTRAY = next(key for key in KEYS if partition_of_key(key, PARTITIONS) != partition_by_crc32(key, PARTITIONS))
SETTING = r'App\(partitioners={"in": "crc32"}\)'


@virtual
async def test_state_that_another_partitioner_placed_is_noticed_after_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There is no record to look at, and the state says it: nobody is told that a key has none which has some. What is
    found is right, wherever it lies. With the declaration mended all is answered.
    """
    engine = await started(counting(), partitions=PARTITIONS)
    send_by_crc32(engine, KEYS)
    await engine.level()
    await engine.crash()
    caplog.clear()
    await engine.start()
    seen = engine.view("seen")
    await until(lambda: bool(caplog.records))
    for ask in (
        lambda: seen.partition_of(ASTRAY),
        lambda: seen.get(ASTRAY, partition=partition_of_key(ASTRAY, PARTITIONS)),
        lambda: seen.get(b"nobody", partition=0),
    ):
        with pytest.raises(StateNotReady, match=SETTING):
            ask()
    assert [seen.get(key) for key in KEYS] == [1] * len(KEYS)
    assert seen.get(ASTRAY, partition=partition_by_crc32(ASTRAY, PARTITIONS)) == 1
    assert (seen.get(b"nobody"), len(list(seen.scan()))) == (None, len(KEYS)), "of all partitions"
    await engine.stop()
    app = counting()
    app.partitioners = {"in": "crc32"}
    await engine.start(app)
    assert [seen.get(key, partition=seen.partition_of(key)) for key in KEYS] == [1] * len(KEYS)
    await until(lambda: seen.get(b"nobody", partition=seen.partition_of(b"nobody")) is None)


async def come_back(group: Group, *engines: Engine, done: int) -> None:
    """All are stopped when so many records are done, and started again: each has the partitions that it had."""
    await until(lambda: len(group.cluster.committed_records("out")) == done)
    for engine in engines:
        await engine.stop()
    await start(*engines)


@in_group(partitions=PARTITIONS)
async def test_no_process_says_that_a_key_has_no_state_which_another_partitioner_placed(group: Group) -> None:
    """Each looks at the tables that it has; who does not have a partition leads to who has its table."""
    engines = [group.process(n, counting(endpoint=f"http://{n}:80")) for n in "ab"]
    await start(*engines)
    send_by_crc32(engines[0], KEYS)
    await come_back(group, *engines, done=len(KEYS))
    partition = partition_of_key(ASTRAY, PARTITIONS)
    owner, other = engines if partition in held(engines[0]) else engines[::-1]
    for engine in engines:
        with pytest.raises(StateNotReady, match=SETTING):
            engine.view("seen").partition_of(ASTRAY)
    with pytest.raises(StateNotReady, match=SETTING):
        owner.view("seen").get(ASTRAY, partition=partition)
    with pytest.raises(Elsewhere, match=f"http://{owner.name}:80"):
        other.view("seen").get(ASTRAY, partition=partition)


@in_group(partitions=PARTITIONS)
async def test_a_copy_says_by_whom_its_topic_is_written(group: Group) -> None:
    """All keys lie in one partition: who does not own it has no other state to look at."""
    engines = [group.process(n, counting(standbys=1)) for n in "ab"]
    await start(*engines)
    partition, other = min(held(engines[0])), engines[1]
    keys = [key for key in (b"%d" % n for n in range(200)) if partition_by_crc32(key, PARTITIONS) == partition]
    send_by_crc32(engines[0], keys)
    await come_back(group, *engines, done=len(keys))
    assert partition not in held(other)
    await until(lambda: bool(other.member.keeper.learner.copied_ranges(("in", partition))))
    with pytest.raises(StateNotReady, match=SETTING):
        other.view("seen").partition_of(ASTRAY)


async def test_a_partitioner_that_gives_no_partition_fails_the_record() -> None:
    """It becomes a dead letter; where the dead letters' own partitioner fails, the application stops and says so."""

    def wrong(key: bytes, partitions: int) -> int:
        return partitions

    async with totals(partitioners={"out": wrong}).test() as broker:
        await broker.send("orders", 1, key=b"a")
        (letter,) = await broker.records("orders.dead")
        assert b"gave partition 2 for a key of 1 bytes" in (dict(letter.headers)["kl-error"] or b"")
    async with totals(partitioners={"orders.dead": wrong}).test() as broker:
        await broker.send("orders", 0, key=b"a")
        with pytest.raises(HandlerFailed, match=r"its dead letter can't be written: 'orders\.dead': its partitioner"):
            await broker.read("out", int)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"out": "md5"}, "'out' has 'md5'; a partitioner is 'murmur2', 'crc32' or a function"),
        ({"": "crc32"}, "partitioners: a topic name has 1 to 249"),
        ("crc32", "partitioners is a mapping from topics to partitioners; seen 'crc32'"),
    ],
)
def test_wrong_partitioners_are_refused_when_they_are_declared(wrong: Any, says: str) -> None:
    """As every other setting."""
    with pytest.raises(SettingsError, match=says):
        App("totals", broker="embedded:never-opened", partitioners=wrong)
