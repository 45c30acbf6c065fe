"""Where an application begins a topic: chosen at its first start, written down, and not changed afterwards."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from keylanes import App, SettingsError, SourceError
from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import EPOCH_MS
from keylanes.errors import FatalError

from ..stage.appending import append
from ..stage.engine import OUT, SOURCE, Engine, application
from ..stage.virtual import virtual

PARTITIONS = 2
RECORDS = 10


def passing_on(start: Any = "earliest", name: str = "app") -> App:
    """Passes on values."""
    app = application(name)

    @app.handler(SOURCE, to=OUT, start=start)
    async def pass_on(value: int) -> int:
        return value

    return app


def moment(number: int) -> datetime:
    """The time of record ``number`` of each partition."""
    return datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(seconds=number)


async def filled(app: App) -> Engine:
    """An engine whose source holds ten records in each of two partitions, a second apart."""
    engine = Engine(app, partitions=PARTITIONS)
    await write(engine, 0, RECORDS)
    return engine


async def write(engine: Engine, first: int, end: int, partitions: int = PARTITIONS) -> None:
    """Write records number ``first`` to ``end`` to each partition."""
    connection = engine.cluster.connect("writer")
    for p in range(partitions):
        for number in range(first, end):
            at = EPOCH_MS + 1000 * number
            await append(connection, [Outgoing(SOURCE, p, b"k%d" % number, b"%d" % (100 * p + number), (), at)])


def seen(engine: Engine) -> list[int]:
    """What was passed on."""
    return sorted(int(record.value or b"") for record in engine.cluster.committed_records(OUT))


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", RECORDS),
        (moment(4), 4),
        (moment(3) + timedelta(microseconds=1), 4),
        (moment(4).astimezone(timezone(timedelta(hours=5))), 4),
        (moment(-5), 0),
        (moment(RECORDS), RECORDS),
    ],
    ids=["earliest", "latest", "a moment", "just behind a record", "another zone", "before all", "behind all"],
)
@virtual
async def test_an_application_begins_where_it_is_told(start: Any, first: int, caplog: pytest.LogCaptureFixture) -> None:
    """Of each partition what lies from there on, and all that comes later; the first start says where."""
    engine = await filled(passing_on(start))
    with caplog.at_level(logging.INFO, "keylanes"):
        await engine.start()
    await write(engine, RECORDS, RECORDS + 2)
    await engine.level()
    await engine.stop()
    assert seen(engine) == [100 * p + n for p in range(PARTITIONS) for n in range(first, RECORDS + 2)]
    (said,) = [r.getMessage() for r in caplog.records if "is started from" in r.getMessage()]
    assert said.endswith(f": [0] at {first}, [1] at {first}")


@virtual
async def test_an_application_goes_on_where_a_group_stands(caplog: pytest.LogCaptureFixture) -> None:
    """Each partition at its own offset; one of which the group has committed nothing from its first record, loudly."""
    engine = await filled(passing_on("group:orders"))
    engine.cluster.set_group("orders", {TopicPartition(SOURCE, 0): 7, TopicPartition("else", 1): 3})
    with caplog.at_level(logging.INFO, "keylanes"):
        await engine.start()
    await engine.level()
    await engine.stop()
    assert seen(engine) == [7, 8, 9, *range(100, 110)]
    said = [r.getMessage() for r in caplog.records]
    assert f"{SOURCE} is started from group:orders: [0] at 7, [1] at 0" in said
    assert any("has committed nothing for partition 1, which is read from its first record (0)" in s for s in said)


async def refused(engine: Engine, app: App | None = None) -> FatalError | SettingsError:
    """The start is refused."""
    with pytest.raises((FatalError, SettingsError)) as error:
        await engine.start(app)
    return error.value  # type: ignore[return-value]  # one of these


@virtual
async def test_a_group_that_is_at_work_is_refused_and_nothing_is_begun() -> None:
    """The sentence says what to do; once it is done, the start succeeds."""
    engine = await filled(passing_on("group:orders"))
    own = {TopicPartition(SOURCE, p): 7 for p in range(PARTITIONS)}
    engine.cluster.set_group("orders", own, members=True)
    error = await refused(engine)
    assert isinstance(error, SettingsError)
    assert "the group has members (it is Stable)" in str(error)
    assert "Stop all consumers of the group" in str(error)
    assert engine.cluster.committed_records("app.control") == []
    engine.cluster.set_group("orders", dict.fromkeys(own, 8))
    await engine.start()
    await engine.level()
    await engine.stop()
    assert seen(engine) == [8, 9, 108, 109]
    engine.cluster.set_group("orders", {}, members=True)  # it is not asked again
    await engine.start()


@virtual
async def test_a_group_without_offsets_or_with_impossible_ones_is_refused() -> None:
    """A wrong name, and offsets that the topic does not hold: both are said before anything is begun."""
    engine = await filled(passing_on("group:order"))
    error = await refused(engine)
    assert isinstance(error, SettingsError)
    assert "the group has committed no offset for this topic" in str(error)
    for offset in (2, 11):
        engine.cluster.set_group("order", {TopicPartition(SOURCE, 0): offset})
        engine.cluster.trim(TopicPartition(SOURCE, 0), 3)
        error = await refused(engine)
        assert isinstance(error, SourceError)
        assert f"stands at offset {offset} of partition 0, which holds offsets 3 to 10" in str(error)
    assert engine.cluster.committed_records("app.control") == []


@pytest.mark.parametrize("later", ["earliest", moment(4), "group:orders"])
@virtual
async def test_a_later_change_is_refused_with_the_way_out(later: Any) -> None:
    """It does not silently do nothing; the old word goes on, and so does a new name."""
    engine = await filled(passing_on("latest"))
    await engine.start()
    await engine.stop()
    error = await refused(engine, passing_on(later))
    assert isinstance(error, SettingsError)
    for part in ("was started from 'latest'", "Write start='latest' again", "under a new application name"):
        assert part in str(error)
    await engine.start(passing_on("latest"))
    await write(engine, RECORDS, RECORDS + 1)
    await engine.level()
    await engine.stop()
    assert seen(engine) == [10, 110]


@virtual
async def test_latest_is_decided_once() -> None:
    """What is written while the application is down is read at the next start."""
    engine = await filled(passing_on("latest"))
    await engine.start()
    await engine.stop()
    await write(engine, RECORDS, RECORDS + 3)
    await engine.start()
    await engine.level()
    await engine.stop()
    assert seen(engine) == [10, 11, 12, 110, 111, 112]


@pytest.mark.parametrize("grows", ["while it is down", "while it works"])
@virtual
async def test_a_partition_that_is_added_is_read_from_its_first_record(grows: str) -> None:
    """Also where the topic was started from its end: it would skip what was written before it was noticed."""
    engine = await filled(passing_on("latest"))
    await engine.start()
    if grows == "while it is down":
        await engine.stop()
    engine.cluster.grow_topic(SOURCE)
    await append(engine.cluster.connect("writer"), [Outgoing(SOURCE, 2, b"k", b"200")])
    if grows == "while it is down":
        await engine.start()
    await asyncio.sleep(60)
    await engine.level()
    await engine.stop()
    assert seen(engine) == [200]
    await engine.start()  # no change of anything


@virtual
async def test_a_start_that_was_cut_short_is_no_growth() -> None:
    """The first partition was started, then the process died: the second one is started from the end, too."""
    engine = await filled(passing_on("latest"))
    await engine.start()
    await engine.stop()
    log = engine.cluster.state.log(TopicPartition("app.control", 0))
    at = next(i for i, e in enumerate(log.entries) if e.record and b"partition_started" in (e.record.value or b""))
    log.truncate(at + 1)
    for partition in range(PARTITIONS):
        engine.cluster.state.log(TopicPartition("app.offsets", partition)).truncate(0)
    await write(engine, RECORDS, RECORDS + 1)
    await engine.start()
    await write(engine, RECORDS + 1, RECORDS + 2)
    await engine.level()
    await engine.stop()
    assert seen(engine) == [10, 11, 111], "partition 1 began at its end as it was at the second start"


async def test_a_handler_that_goes_on_from_a_group_can_be_tested(caplog: pytest.LogCaptureFixture) -> None:
    """``app.test()`` has the group, in front of whatever is sent, in every partition."""
    app = passing_on("group:orders")
    for partitions in (2, 5):
        async with app.test(partitions=partitions) as broker:
            for partition in range(partitions):
                await broker.send(SOURCE, partition, key="a", partition=partition)
            assert sorted(await broker.read(OUT, int)) == list(range(partitions))
    assert "has committed nothing" not in caplog.text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("first", "seen 'first'"),
        ("group:", "seen 'group:'"),
        ("2026-01-31", "give it as datetime"),
        (datetime(2026, 1, 31), "has none, so it is another moment on another machine"),  # noqa: DTZ001  # that is it
        (datetime(1969, 1, 1, tzinfo=UTC), "not before 1970"),
        (17, "seen 17"),
        (None, "seen None"),
    ],
)
def test_a_wrong_start_is_refused_when_it_is_declared(wrong: Any, says: str) -> None:
    """With what was seen, what is allowed and what to write."""
    with pytest.raises(SettingsError) as error:
        passing_on(wrong)
    assert says in str(error.value)
    assert 'start= is "earliest", "latest", "group:NAME" or a datetime with a time zone' in str(error.value)


def test_a_moment_is_written_down_in_words_that_do_not_change() -> None:
    """The same moment in another zone is the same start."""
    texts = {
        passing_on(at).handlers[SOURCE].start.text
        for at in (moment(4), moment(4).astimezone(timezone(timedelta(hours=-3))))
    }
    assert texts == {"2023-11-14T22:13:24.000+00:00"}
