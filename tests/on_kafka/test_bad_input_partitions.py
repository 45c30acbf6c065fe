"""Holes, deleted records, more partitions and other topics under the same name, on a real Kafka: docs/bad-input.md."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from keylanes import App, State
from keylanes.brokers.partitioner import partition_of_key
from keylanes.brokers.protocol import Outgoing
from keylanes.errors import KeylanesError, SourceError
from keylanes.runtime.membership import errands

from ..stage.feeding import feed, marks, passing_on, stops_with, trim, write
from ..stage.ground import Ground
from ..stage.raw import Raw
from ..stage.stateful import administer, delete_topics
from ..stage.waiting import reached

pytestmark = pytest.mark.broker

LIMIT_S = 60.0


def fill(ground: Ground, *values: int, topic: str = "", partition: int = 0) -> None:
    """Numbers under three keys."""
    place = topic or ground.source, partition
    write(ground, [Outgoing(*place, b"k%d" % (value % 3), b"%d" % value) for value in values])


def numbers(ground: Ground) -> list[int]:
    """What was published, in order of the log."""
    return [int(value or b"") for value in ground.values(ground.late)]


def front_and_edge(app: App) -> tuple[int, int]:
    """Of the only partition: how far it was handed out, and its least edge."""
    (partition,) = app.statistics().partitions
    return partition.front, partition.offset_least


def transactions(ground: Ground, *turns: tuple[tuple[int, ...], bool]) -> None:
    """For each turn a transaction of these numbers, committed or aborted."""

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=ground.servers, transactional_id=ground.source)
        await producer.start()
        for values, is_committed in turns:
            await producer.begin_transaction()
            for value in values:
                await producer.send_and_wait(ground.source, b"%d" % value, b"k%d" % (value % 3), partition=0)
            await (producer.commit_transaction() if is_committed else producer.abort_transaction())
        await producer.stop()

    asyncio.run(run())


# --- holes -----------------------------------------------------------------------------------------------------------


def test_an_empty_partition(kafka: Ground) -> None:
    """Level at once; what comes later is processed from the first record on."""
    kafka.create(kafka.source)
    passing_on(kafka).run(until="level")
    fill(kafka, 0, 1)
    passing_on(kafka).run(until="level")
    assert numbers(kafka) == [0, 1]


def test_some_empty_partitions(kafka: Ground) -> None:
    """They keep nobody waiting."""
    kafka.create(kafka.source, 5)
    fill(kafka, 1, 2, partition=3)
    kafka.create(kafka.late)
    passing_on(kafka).run(until="level")
    assert sorted(numbers(kafka)) == [1, 2]


def test_a_partition_of_markers_only(kafka: Ground) -> None:
    """Control records alone: nothing is published, and the edge passes them."""
    kafka.create(kafka.source)
    transactions(kafka, ((1,), True), ((2,), True))
    trim(kafka, 3)
    assert tuple(marks(kafka)) == (3, 4)
    app = passing_on(kafka)
    app.run(until="level")
    assert front_and_edge(app) == (4, 4)
    assert numbers(kafka) == []


def test_a_partition_of_aborted_records_only(kafka: Ground) -> None:
    """Nothing is published, and the edge passes them; what comes behind is processed."""
    kafka.create(kafka.source)
    transactions(kafka, (tuple(range(50)), False))
    app = passing_on(kafka)
    app.run(until="level")
    assert front_and_edge(app) == (51, 51)
    fill(kafka, 7)
    passing_on(kafka).run(until="level")
    assert numbers(kafka) == [7]


def test_a_hole_at_the_head(kafka: Ground) -> None:
    """A source whose first records are gone before the application first ran is read from what is there."""
    kafka.create(kafka.source)
    fill(kafka, *range(10))
    trim(kafka, 6)
    passing_on(kafka).run(until="level")
    assert sorted(numbers(kafka)) == [6, 7, 8, 9]


def test_holes_in_the_middle(kafka: Ground) -> None:
    """Aborted records and markers between others: those that count are processed, each once, in order of their keys."""
    kafka.create(kafka.source)
    transactions(kafka, ((0, 3), True), ((90, 93), False), ((6,), True), ((96,), False), ((9, 12), True))
    app = passing_on(kafka, fetch_records_max=1)
    app.run(until="level")
    assert numbers(kafka) == [0, 3, 6, 9, 12]
    assert front_and_edge(app) == (marks(kafka).high,) * 2


@pytest.mark.parametrize(
    "turns",
    [[((0, 1), True)], [(tuple(range(90, 140)), False)], [((0, 1), True), (tuple(range(90, 140)), False)]],
    ids=["markers", "aborted", "both"],
)
def test_a_hole_at_the_tail(kafka: Ground, turns: list[tuple[tuple[int, ...], bool]]) -> None:
    """A source that ends in markers or aborted records is level, and a restart has nothing to do."""
    kafka.create(kafka.source)
    fill(kafka, 2, 3)
    transactions(kafka, *turns)
    for _ in range(2):
        app = passing_on(kafka)
        app.run(until="level")
        assert front_and_edge(app) == (marks(kafka).high,) * 2
    assert sorted(numbers(kafka)) == sorted([2, 3, *(value for values, counts in turns if counts for value in values)])


def test_an_open_transaction_at_the_tail(kafka: Ground) -> None:
    """Nobody sees what stands behind it until it is decided: the application waits, then goes on."""
    kafka.create(kafka.source)
    fill(kafka, 0)

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=kafka.servers, transactional_id=kafka.source)
        await producer.start()
        await producer.begin_transaction()
        await producer.send_and_wait(kafka.source, b"90", b"k0", partition=0)
        await asyncio.to_thread(fill, kafka, 1)
        app = passing_on(kafka)
        async with app:
            await reached(lambda: app.statistics().records_done == 1)
            assert front_and_edge(app)[0] == 1
            await producer.abort_transaction()
            await reached(lambda: front_and_edge(app)[1] == 4)
        await producer.stop()

    asyncio.run(run())
    assert sorted(numbers(kafka)) == [0, 1]


# --- deleted records -------------------------------------------------------------------------------------------------


def test_records_deleted_behind_the_front(kafka: Ground) -> None:
    """What was processed may go."""
    kafka.create(kafka.source)
    fill(kafka, 0, 1, 2, 3)
    passing_on(kafka).run(until="level")
    trim(kafka, 2)
    fill(kafka, 4)
    passing_on(kafka).run(until="level")
    assert sorted(numbers(kafka)) == [0, 1, 2, 3, 4]


def test_records_deleted_up_to_the_front(kafka: Ground) -> None:
    """All that was processed may go, and nothing else has: it goes on at the same offset."""
    kafka.create(kafka.source)
    fill(kafka, 0, 1, 2, 3)
    passing_on(kafka).run(until="level")
    trim(kafka, 4)
    passing_on(kafka).run(until="level")
    fill(kafka, 4)
    passing_on(kafka).run(until="level")
    assert sorted(numbers(kafka)) == [0, 1, 2, 3, 4]


def test_records_deleted_ahead_of_the_front(either: Ground) -> None:
    """Records that nobody processed are gone: refused at the start, with the offsets; nothing is skipped."""
    either.create(either.source)
    fill(either, 0, 1)
    passing_on(either).run(until="level")
    fill(either, 2, 3, 4)
    trim(either, 4)
    says = f"{either.source}[0] starts at offset 4, but records from 2 on were not processed yet"
    for _ in range(2):
        stops_with(SourceError, passing_on(either), says)
    assert sorted(numbers(either)) == [0, 1]


def ends_with(kind: type[KeylanesError], app: App, meanwhile: Callable[[App], Awaitable[Any]]) -> str:
    """Run the application as a service, do something to it, and wait for the error that ends it."""

    async def run() -> None:
        ended = asyncio.Event()
        app.on_fatal = lambda error: ended.set()
        async with app:
            await meanwhile(app)
            async with asyncio.timeout(LIMIT_S):
                await ended.wait()

    with pytest.raises(kind) as caught:
        asyncio.run(run())
    return str(caught.value)


def test_records_deleted_ahead_of_a_running_one(kafka: Ground) -> None:
    """One that is held up by a key and finds the records behind its front gone stops, with the offsets."""
    kafka.create(kafka.source)
    for turn in range(20):  # each a batch of its own: what was fetched before is processed
        fill(kafka, *range(100 * turn, 100 * turn + 100))
    limits = {"fetch_records_max": 10, "fetch_bytes_max": 1_000, "buffer_bytes_max": 2_000, "full_wait_ms": 60_000}
    app = kafka.app(**limits)
    gate, stands = asyncio.Event(), asyncio.Event()

    @app.handler(kafka.source, to=kafka.late, parallelising_factor=1)
    async def publish(value: int) -> int:
        if value == 20:
            stands.set()
            await gate.wait()
        return value

    async def meanwhile(app: App) -> None:
        await stands.wait()
        await asyncio.to_thread(trim, kafka, 2_000)
        gate.set()

    error = ends_with(SourceError, app, meanwhile)
    assert "records that were not processed yet are gone" in error
    assert f"{kafka.source}[0] holds offsets 2000 to 2000" in error


# --- partitions ------------------------------------------------------------------------------------------------------


def grow(ground: Ground, partitions: int) -> None:
    """Give the source more partitions."""

    async def work(admin: AIOKafkaAdminClient) -> None:
        await admin.create_partitions({ground.source: NewPartitions(partitions)})

    administer(ground, work)


def keyed(ground: Ground, partitions: int, values: range) -> None:
    """Numbers under 40 keys, each where a Kafka client puts its key."""
    keys = [b"key-%d" % (value % 40) for value in values]
    write(
        ground,
        [
            Outgoing(ground.source, partition_of_key(key, partitions), key, b"%d" % value)
            for key, value in zip(keys, values, strict=True)
        ],
    )


def check_growth(ground: Ground, before: int, after: int) -> None:
    """Every number once; each key's records of before in order, and those of after."""
    found = [(record.key, int(record.value or b"")) for record in ground.read(ground.late)]
    assert sorted(value for _, value in found) == list(range(after))
    for key in {key for key, _ in found}:
        for values in (range(before), range(before, after)):
            own = [value for other, value in found if other == key and value in values]
            assert own == sorted(own)


def test_partitions_added_while_it_is_stopped(kafka: Ground) -> None:
    """1 -> 8: the next start reads the new ones from their start; keys that moved keep their order on either side."""
    kafka.create(kafka.source)
    kafka.create(kafka.late)
    keyed(kafka, 1, range(200))
    passing_on(kafka).run(until="level")
    grow(kafka, 8)
    keyed(kafka, 8, range(200, 600))
    app = passing_on(kafka)
    app.run(until="level")
    assert len(app.statistics().partitions) == 8
    check_growth(kafka, 200, 600)


def test_partitions_added_while_it_runs(
    kafka: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """1 -> 8: noticed, read from their start, and said aloud with what it does to order; a restart goes on there."""
    monkeypatch.setattr(errands, "LOOK_AGAIN_MS", 100)
    kafka.create(kafka.source)
    kafka.create(kafka.late)
    keyed(kafka, 1, range(200))

    async def run() -> None:
        app = passing_on(kafka)
        async with app:
            await reached(lambda: app.statistics().records_done == 200)
            await asyncio.to_thread(grow, kafka, 8)
            await asyncio.to_thread(keyed, kafka, 8, range(200, 500))
            await reached(lambda: app.statistics().records_done == 500)
            assert len(app.statistics().partitions) == 8

    asyncio.run(run())
    assert (
        f"{kafka.source} has 8 partitions now and had 1: the new ones are read from their start. Records" in caplog.text
    )
    keyed(kafka, 8, range(500, 600))
    passing_on(kafka).run(until="level")
    check_growth(kafka, 200, 600)


def test_partitions_added_while_one_with_state_runs(kafka: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped: a key's records would go where its state is not. Nothing of the new ones is read."""
    monkeypatch.setattr(errands, "LOOK_AGAIN_MS", 100)
    kafka.create(kafka.source)
    fill(kafka, 0, 1, 2)
    app = kafka.app()

    @app.handler(kafka.source, to=kafka.late)
    async def count(value: int, seen: State[int]) -> int:
        seen.put((seen.get() or 0) + 1)
        return value

    async def meanwhile(app: App) -> None:
        await reached(lambda: front_and_edge(app) == (3, 3))
        await asyncio.to_thread(grow, kafka, 4)

    says = f"{kafka.source} has 4 partitions now and had 1: keys moved to other partitions, their state did not"
    assert says in ends_with(SourceError, app, meanwhile)
    assert sorted(numbers(kafka)) == [0, 1, 2]


# --- other topics under the same name --------------------------------------------------------------------------------


def test_a_topic_that_was_deleted(kafka: Ground) -> None:
    """Refused at the start, naming it; nothing is made in its place."""
    kafka.create(kafka.source)
    fill(kafka, 0)
    passing_on(kafka).run(until="level")
    delete_topics(kafka, kafka.source)
    for _ in range(2):
        stops_with(SourceError, passing_on(kafka), kafka.source, "does not exist")


def create_anew(ground: Ground, count: int, partitions: int = 1) -> None:
    """The source deleted and created under its name, with so many records (from 100 on)."""
    delete_topics(ground, ground.source)
    ground.create(ground.source, partitions)
    if count:
        fill(ground, *range(100, 100 + count))


@pytest.mark.parametrize("count", [0, 2, 4, 9], ids=["empty", "shorter", "as-long", "longer"])
def test_a_topic_created_anew_while_it_is_stopped(kafka: Ground, count: int) -> None:
    """Refused at the start however long it is, with both identities; a new application reads it from its start."""
    kafka.create(kafka.source)
    fill(kafka, 0, 1, 2, 3)
    passing_on(kafka).run(until="level")
    create_anew(kafka, count)
    for _ in range(2):
        stops_with(
            SourceError, passing_on(kafka), f"{kafka.source} was deleted and created anew", ": it was ", ", it is "
        )
    assert sorted(numbers(kafka)) == [0, 1, 2, 3]
    kafka.name += "-new"
    passing_on(kafka).run(until="level")
    assert sorted(numbers(kafka)) == [0, 1, 2, 3, *range(100, 100 + count)]


def test_a_cluster_that_was_restored_from_a_copy(kafka: Ground) -> None:
    """Refused with the same records at the same offsets, under other identities; a new application reads it all."""
    kafka.create(kafka.source)
    fill(kafka, 0, 1, 2, 3)
    passing_on(kafka).run(until="level")
    for topic in (kafka.source, f"{kafka.name}.control", f"{kafka.name}.offsets"):
        copy = [
            Outgoing(topic, 0, record.key, record.value, record.headers, record.timestamp)
            for record in kafka.read(topic)
        ]
        delete_topics(kafka, topic)
        kafka.create(topic, cleanup_policy="delete", retention_ms="-1")
        write(kafka, copy)
    stops_with(SourceError, passing_on(kafka), f"{kafka.source} was deleted", "or this is another cluster: it was")
    assert sorted(numbers(kafka)) == [0, 1, 2, 3]
    kafka.name += "-new"
    passing_on(kafka).run(until="level")
    assert sorted(numbers(kafka)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_topic_created_anew_with_fewer_partitions(kafka: Ground) -> None:
    """Refused: what is missing is not taken for processed."""
    kafka.create(kafka.source, 4)
    fill(kafka, 0, partition=3)
    passing_on(kafka).run(until="level")
    create_anew(kafka, 0, partitions=2)
    stops_with(SourceError, passing_on(kafka), f"{kafka.source} was deleted and created anew")


@pytest.mark.parametrize("count", [0, 2, 4, 9], ids=["empty", "shorter", "as-long", "longer"])
def test_a_topic_created_anew_while_it_runs(kafka: Ground, count: int) -> None:
    """Stopped within seconds, however long it is; a restart is refused. Nothing of it was taken for old records' place
    in silence: what may have been read of it until then is in the message of the error, which says that it is another.
    """
    kafka.create(kafka.source)
    fill(kafka, 0, 1, 2, 3)

    async def meanwhile(app: App) -> None:
        await reached(lambda: front_and_edge(app) == (4, 4))
        await asyncio.to_thread(create_anew, kafka, count)

    error = ends_with(SourceError, passing_on(kafka), meanwhile)
    assert "created anew" in error or "was asked for" in error or "has no partition 0" in error
    stops_with(SourceError, passing_on(kafka), f"{kafka.source} was deleted and created anew")
    assert sorted(numbers(kafka))[:4] == [0, 1, 2, 3]


def test_a_topic_deleted_while_it_runs(kafka: Ground) -> None:
    """Stopped, naming the topic."""
    kafka.create(kafka.source)
    fill(kafka, 0)

    async def meanwhile(app: App) -> None:
        await reached(lambda: front_and_edge(app) == (1, 1))
        await asyncio.to_thread(delete_topics, kafka, kafka.source)

    assert f"topic '{kafka.source}' has no partition 0" in ends_with(SourceError, passing_on(kafka), meanwhile)


def test_a_source_that_no_handler_reads_any_more(kafka: Ground) -> None:
    """It is left as it is; asked for again, it goes on where it was."""
    second = f"{kafka.source}-second"
    for topic in (kafka.source, second):
        kafka.create(topic)
        fill(kafka, 0, 1, topic=topic)

    def both() -> App:
        app = passing_on(kafka)

        @app.handler(second, to=kafka.late)
        async def publish(value: int) -> int:
            return value + 1_000

        return app

    both().run(until="level")
    fill(kafka, 2, topic=second)
    passing_on(kafka).run(until="level")
    both().run(until="level")
    assert sorted(numbers(kafka)) == [0, 1, 1_000, 1_001, 1_002]


def test_a_compacted_source(kafka: Ground) -> None:
    """What the cleaner took left holes; the newest of each key is processed, and the edge passes the holes."""
    config = {"segment_ms": "50", "min_cleanable_dirty_ratio": "0.001", "max_compaction_lag_ms": "50"}
    for value in range(6):  # each with a segment of its own: Kafka goes by the records' time
        feed(kafka, Raw(b"k%d" % (value % 2), b"%d" % value, (), 10_000 * value), cleanup_policy="compact", **config)
    until_compacted(kafka, 3)
    app = passing_on(kafka)
    app.run(until="level")
    assert {4, 5} <= set(numbers(kafka))
    assert len(numbers(kafka)) <= 3
    assert front_and_edge(app) == (6, 6)


def until_compacted(ground: Ground, records_max: int) -> None:
    """Wait until the source holds so few records."""

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            while len(await asyncio.to_thread(ground.read, ground.source)) > records_max:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.2)

    asyncio.run(run())
