"""A key lies in one partition, whoever writes it: outputs, dead letters and their replay, in the real engine."""

import logging
from typing import Any

import pytest

from keylanes import App, Context, DeadLetter, HandlerFailed, Retry, SettingsError, State
from keylanes.brokers.partitioner import partition_by_crc32, partition_of_key

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
