"""Loads that are out of proportion, on a real Kafka: one key, a million keys, keys that collide. docs/bad-input.md."""

import asyncio
import logging
import sys
from collections import Counter, defaultdict

import pytest
from confluent_kafka import Producer

from keylanes import App, Context, DeadLetter, Retry, State
from keylanes.brokers.protocol import Outgoing
from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.keyrange.ranges import even_bounds
from keylanes.runtime.logs import topics
from keylanes.state.keys import parse_key

from ..stage.feeding import KEPT, feed, passing_on, with_broker, write
from ..stage.ground import Ground
from ..stage.raw import Raw

pytestmark = pytest.mark.broker

TWINS = (b"key-18624", b"key-64659")
"""Two keys of one point, the first pair that counting up finds: they share every range, and are two keys."""


def published(ground: Ground, partitions: int = 1) -> dict[bytes | None, list[int]]:
    """The numbers of each key, in the order of the log."""
    found: defaultdict[bytes | None, list[int]] = defaultdict(list)
    for partition in range(partitions):
        for record in ground.read(ground.late, partition):
            found[record.key].append(int(record.value or b""))
    return dict(found)


def test_one_key_with_all_the_load(kafka: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """64 workers, one has everything: all is processed once and in order, no more is queued than may be, and the key is
    named in a warning and in the figures.
    """
    kafka.fill([(b"hot", b"%d" % i) for i in range(2_000)])
    queued_max = 50_000
    app = kafka.app(buffer_bytes_max=queued_max, fetch_records_max=100, split_hot_ranges=True, balance_interval_ms=100)
    queued: list[int] = []
    hot: set[int] = set()

    @app.handler(kafka.source, to=kafka.late, parallelising_factor=64)
    async def publish(value: int) -> int:
        await asyncio.sleep(0.002)
        if value % 20 == 0:
            figures = app.statistics()
            queued.append(figures.partitions[0].queued_bytes)
            hot.update(key.point for key in figures.hot_keys)
        return value

    with caplog.at_level(logging.WARNING):
        app.run(until="level")
    assert published(kafka) == {b"hot": list(range(2_000))}
    assert 0 < max(queued) <= queued_max
    assert hot == {point_of_key(b"hot")}
    assert "key 'hot' is a bottleneck that can't be split" in caplog.text


def test_one_key_that_is_slow_beside_others(kafka: Ground) -> None:
    """It falls behind and is caught up, as the figures say; all is published once, and nobody's order changes."""
    records = [(b"slow" if i % 2 else b"k%d" % (i % 40), b"%d" % i) for i in range(4_000)]
    kafka.fill(records)
    app = kafka.app(buffer_bytes_max=200_000, fetch_records_max=100, full_wait_ms=50)
    lagging: list[int] = []
    passed = asyncio.Event()

    @app.handler(kafka.source, to=kafka.late, parallelising_factor=16)
    async def publish(value: int, ctx: Context) -> int:
        if ctx.key == b"slow":
            await passed.wait()
            lagging.append(app.statistics().partitions[0].lagging_workers)
        elif value == len(records) - 2:  # the last of the others
            passed.set()
        return value

    app.run(until="level")
    expected: defaultdict[bytes | None, list[int]] = defaultdict(list)
    for key, value in records:
        expected[key].append(int(value))
    assert published(kafka) == dict(expected)
    assert max(lagging) >= 1
    assert app.statistics().partitions[0].lagging_workers == 0
    assert app.statistics().partitions[0].caught_up > 0


def test_a_million_keys(kafka: Ground) -> None:
    """Every one is handled once; memory does not grow with the number of keys: from the first quarter to the end fewer
    objects come to stay than one for ten keys.
    """
    count = 1_000_000
    kafka.create(kafka.source, 2)
    producer = Producer(
        {
            "bootstrap.servers": kafka.servers,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": count + 1,
        }
    )
    for i in range(count):
        producer.produce(kafka.source, None, b"%d" % i, partition=i & 1)
        if i % 50_000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
    app = kafka.app(commit_interval_ms=200, buffer_bytes_max=4_000_000)
    seen = bytearray(count)
    blocks: list[int] = []

    @app.handler(kafka.source, parallelising_factor=64)
    async def note(value: bytes | None, ctx: Context) -> None:
        at = int(ctx.key or b"")
        seen[at] += 1
        if at % 10_000 == 0:
            blocks.append(sys.getallocatedblocks())

    app.run(until="level")
    assert Counter(seen) == {1: count}
    grown = max(blocks[-10:]) - max(blocks[15:25])
    assert grown < 3 * count // 4 // 10, f"{grown} blocks more"
    assert [partition.offset_least for partition in app.statistics().partitions] == [count // 2] * 2


def test_twins_are_keys_of_one_point() -> None:
    """The pair is what it is said to be, and no other below it is one."""
    assert point_of_key(TWINS[0]) == point_of_key(TWINS[1])
    points = {point_of_key(b"key-%d" % i) for i in range(64_659)}
    assert len(points) == 64_659


def test_colliding_keys(kafka: Ground) -> None:
    """Two keys of one point, and many workers: each keeps its order, its values, and its state."""
    records = [(TWINS[i % 2], b"%d" % i) for i in range(400)]
    kafka.fill(records)
    app = kafka.app()

    @app.handler(kafka.source, to=kafka.late, parallelising_factor=256)
    async def publish(value: int, total: State[int]) -> int:
        total.put((total.get() or 0) + value)
        return value

    app.run(until="level")
    assert published(kafka) == {TWINS[0]: list(range(0, 400, 2)), TWINS[1]: list(range(1, 400, 2))}
    kept = kafka.kept(1)
    assert {parse_key(key).key for _, key in kept} == set(TWINS)
    assert len({parse_key(key).point for _, key in kept}) == 1
    totals = sorted(int(value[1:]) for value in kept.values())
    assert totals == [sum(range(0, 400, 2)), sum(range(1, 400, 2))]


def test_keys_at_both_ends_of_the_space(kafka: Ground) -> None:
    """Points next to 0, to the end of the space, and on either side of every bound between workers have an owner."""
    factor = 16
    bounds = even_bounds(factor)
    nearest: dict[int, tuple[int, bytes]] = {}
    for i in range(200_000):
        key = b"n-%d" % i
        point = point_of_key(key)
        for bound in (bounds[point * factor // SPACE_END], bounds[point * factor // SPACE_END + 1]):
            side = 2 * bound + (point >= bound)
            nearest[side] = min(nearest.get(side, (SPACE_END, b"")), (abs(point - bound), key))
    keys = sorted({key for _, key in nearest.values()})
    assert len(keys) == 2 * factor
    kafka.fill([(key, b"%d" % i) for i in range(5) for key in keys])
    app = kafka.app()

    @app.handler(kafka.source, to=kafka.late, parallelising_factor=factor)
    async def publish(value: int) -> int:
        return value

    app.run(until="level")
    assert published(kafka) == {key: list(range(5)) for key in keys}


def test_nothing_but_records_without_keys(kafka: Ground) -> None:
    """They have no order to keep: they spread over all workers, and each is processed once."""
    kafka.fill([(None, b"%d" % i) for i in range(5_000)])
    app = kafka.app()
    workers: set[int] = set()

    @app.handler(kafka.source, to=kafka.late, parallelising_factor=16)
    async def publish(value: int) -> int:
        workers.add(id(asyncio.current_task()))
        await asyncio.sleep(0)
        return value

    app.run(until="level")
    assert sorted(published(kafka)[None]) == list(range(5_000))
    assert len(workers) >= 16


def test_a_record_larger_than_all_buffers(kafka: Ground) -> None:
    """One record is larger than what all queues may hold, and than a fetch: it is processed between small ones."""
    kafka.create(kafka.late, max_message_bytes="2000000", **KEPT)
    for i in range(3):
        feed(kafka, Raw(b"small", b"%d" % i), Raw(b"large", bytes([65 + i]) * 900_000), Raw(b"small", b"%d" % (10 + i)))
    limits = {"buffer_bytes_max": 1_000, "done_bytes_max": 1_000, "fetch_bytes_max": 1_000, "generation_bytes_max": 1}
    passing_on(kafka, **limits).run(until="level")
    found = [(record.key, len(record.value or b"")) for record in kafka.read(kafka.late)]
    assert Counter(found) == {(b"small", 1): 3, (b"small", 2): 3, (b"large", 900_000): 3}
    assert [v for k, v in ((r.key, r.value) for r in kafka.read(kafka.late)) if k == b"small"] == [
        b"0",
        b"10",
        b"1",
        b"11",
        b"2",
        b"12",
    ]


def test_a_record_with_ten_thousand_outputs(kafka: Ground) -> None:
    """They become visible together, each once."""
    kafka.fill([(b"k", b"10000"), (b"k", b"1")])
    app = kafka.app()

    @app.handler(kafka.source, to=kafka.late)
    async def many(count: int) -> list[int]:
        return list(range(count))

    app.run(until="level")
    assert published(kafka) == {b"k": [*range(10_000), 0]}


def test_all_records_fail(kafka: Ground) -> None:
    """Two thousand dead letters in a row, each with its own record, in order of their key."""
    kafka.fill([(b"k", b"%d" % i) for i in range(2_000)])
    app = kafka.app()

    @app.handler(kafka.source, retry=Retry(attempts=1), on_failure=DeadLetter(kafka.dead))
    async def fail(value: int) -> None:
        raise RuntimeError(f"never {value}")

    app.run(until="level")
    letters = kafka.read(kafka.dead)
    assert [letter.value for letter in letters] == [b"%d" % i for i in range(2_000)]
    assert [dict(letter.headers)["kl-error"] for letter in letters] == [
        b"RuntimeError: never %d" % i for i in range(2_000)
    ]


def test_more_partitions_than_the_offset_log_has(kafka: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source wider than the offset log (64 at most; 4 here): its partitions share, and each goes on where it was."""
    monkeypatch.setattr(topics, "LOG_PARTITIONS_MAX", 4)
    kafka.create(kafka.source, 9)
    kafka.create(kafka.late)

    def more(turn: int) -> None:
        places = [(p, 3 * turn + i) for p in range(9) for i in range(3)]
        write(kafka, [Outgoing(kafka.source, p, b"p%d" % p, b"%d" % value) for p, value in places])

    def run() -> App:
        app = kafka.app()

        @app.handler(kafka.source, to=kafka.late, parallelising_factor=2)
        async def publish(value: int) -> int:
            return value

        app.run(until="level")
        return app

    for turn in range(2):
        more(turn)
        assert len(run().statistics().partitions) == 9
    assert published(kafka) == {b"p%d" % p: list(range(6)) for p in range(9)}
    described = with_broker(kafka, lambda broker: broker.describe([f"{kafka.name}.offsets"]))
    assert described[f"{kafka.name}.offsets"].partitions == 4
