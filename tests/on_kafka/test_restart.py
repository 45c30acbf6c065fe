"""Starting again from the logs: what was left is read once, and what was done is not done again."""

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest

from keylanes import App, Context, Settings
from keylanes.brokers.protocol import TopicPartition, Watermarks
from keylanes.keyrange.hashing import point_of
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets import snapshots
from keylanes.offsets.codec import decode
from keylanes.offsets.events import Event, WorkersCut, WorkersMerged, WorkerSplit
from keylanes.runtime.logs import trimming

from ..stage.counting import Counting
from ..stage.ground import Ground
from ..stage.limited import settings_of
from ..stage.waiting import reached


def has_done(work: "Work", count: int) -> bool:
    """Whether it is through with as many."""
    return work.count >= count


def has_committed(app: App, count: int) -> bool:
    """Whether it has made so many commits."""
    return app.statistics().commits >= count


class Work:
    """A handler that publishes its value, waits while ``gate`` closes its key, and notes what it did."""

    def __init__(self) -> None:
        self.is_blocked: Callable[[bytes | None, int], bool] = lambda key, value: False
        self.gate = asyncio.Event()
        self.seen: defaultdict[bytes | None, list[int]] = defaultdict(list)
        self.count = 0
        self.pause_s = 0.0
        self.watch: Callable[[], None] = lambda: None

    def declare(self, app: App, ground: Ground, factor: int) -> None:
        """Handle the source with so many workers."""

        @app.handler(ground.source, to=ground.late, parallelising_factor=factor)
        async def publish(value: int, ctx: Context) -> int:
            if self.is_blocked(ctx.key, value):
                await self.gate.wait()
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
            self.seen[ctx.key].append(value)
            self.count += 1
            self.watch()
            return value


def fill(ground: Ground, records: int, keys: int) -> None:
    """Values 0, 1, … in turn under ``keys`` keys."""
    ground.fill([(b"k%d" % (i % keys), b"%d" % i) for i in range(records)])


def check_outputs(ground: Ground, records: int) -> None:
    """Every value once, each key's in order."""
    by_key: defaultdict[bytes | None, list[int]] = defaultdict(list)
    for record in ground.read(ground.late):  # of one partition: in the order of the log
        by_key[record.key].append(int(record.value or b""))
    for key, values in by_key.items():
        assert values == sorted(set(values)), key
    assert sorted(value for values in by_key.values() for value in values) == list(range(records))


def events(ground: Ground, topic: str = "offsets") -> list[Event]:
    """A log of ours."""
    return [decode(record.value or b"") for record in ground.read(f"{ground.name}.{topic}")]


def workers_of(app: App) -> int:
    """How many workers the only partition has."""
    (partition,) = app.statistics().partitions
    return partition.workers


def front(app: App) -> int:
    """The front of the only partition."""
    (partition,) = app.statistics().partitions
    return partition.front


def lowest_edge(app: App) -> int:
    """The least edge of the only partition."""
    (partition,) = app.statistics().partitions
    return partition.offset_least


def stops_at(key: bytes | None, keys: int) -> int:
    """Which record of a key (from 1) its handler is stuck at: another one from key to key."""
    return int((key or b"")[1:]) % 5 + 1


def scattered(records: int, keys: int, factor: int) -> tuple[int, int]:
    """When every worker stands at the first record that its handler is stuck at: (records done, least edge)."""
    bounds = even_bounds(factor)
    stuck: dict[int, int] = {}
    done = 0
    for value in range(records):
        key = b"k%d" % (value % keys)
        worker = bisect_right(bounds, point_of(key, 0, value)) - 1
        if worker in stuck:
            continue
        if value // keys == stops_at(key, keys):
            stuck[worker] = value
        else:
            done += 1
    return done, min(stuck.values())


async def test_thousand_workers_at_their_own_offsets(ground: Ground) -> None:
    """A restart reads the stretch from the least edge to the front for all of them together, in bounded memory; all is
    processed once, in the order of its key. A machine that stands still makes a worker look stuck: then, again.
    """
    records, keys, factor = 10_000, 2_000, 1_000
    await asyncio.to_thread(fill, ground, records, keys)
    done, least = scattered(records, keys, factor)
    first = Work()
    first.is_blocked = lambda key, value: value // keys == stops_at(key, keys)
    app = ground.app(drain_timeout_ms=500)
    first.declare(app, ground, factor)
    async with app:
        await reached(lambda: first.count == done and front(app) == records)
    limit = factor * 4 * 250
    counting = Counting(ground.connect())
    values = {"commit_interval_ms": 50, "buffer_bytes_max": limit, "fetch_records_max": 500}
    again = App(ground.name, broker=counting.as_broker(), settings=settings_of(**values))
    work, peak = Work(), 0

    def watch() -> None:
        nonlocal peak
        if work.count % 50 == 0:
            peak = max(peak, sum(p.queued_bytes for p in again.statistics().partitions))

    work.watch = watch
    work.is_blocked = lambda key, value: True  # until the edges are looked at
    work.declare(again, ground, factor)
    async with again:
        assert lowest_edge(again) == least
        assert again.statistics().partitions[0].lagging_workers > factor // 2
        work.gate.set()
        await reached(lambda: lowest_edge(again) == records)
        dropped = again.statistics().partitions[0].dropped
    await counting.close()
    assert work.count == records - done, "what was done is not done again"
    assert dropped < 5
    assert records - least <= counting.read[TopicPartition(ground.source, 0)] <= (1 + dropped) * (records - least)
    assert 0 < peak <= limit
    await asyncio.to_thread(check_outputs, ground, records)


async def test_stuck_worker_does_not_stop_the_pass(ground: Ground) -> None:
    """While one worker is full and stuck, the catch-up pass goes past it and brings all others to the front."""
    records, keys = 6_000, 60
    await asyncio.to_thread(fill, ground, records, keys)
    first = Work()
    first.is_blocked = lambda key, value: value > 100 + int((key or b"")[1:])
    app = ground.app(drain_timeout_ms=1)
    first.declare(app, ground, 32)
    async with app:
        await reached(lambda: front(app) == records)
    second = Work()
    second.is_blocked = lambda key, value: key == b"k7" and value >= 600
    app = ground.app(buffer_bytes_max=32 * 220 * 10)
    second.declare(app, ground, 32)
    async with app:
        await reached(lambda: app.statistics().running == 1 and app.statistics().partitions[0].lagging_workers == 1)
        assert second.count > records * 0.8
        # what shares the stuck one's worker waits with it; the others are level, and stay so with what is new
        more = [(b"k%d" % (i % keys), b"%d" % i) for i in range(records, records + 600)]
        before = second.count
        await asyncio.to_thread(ground.fill, more)
        await reached(lambda: second.count > before + 500)
        second.gate.set()
        await reached(lambda: lowest_edge(app) == records + 600)
    await asyncio.to_thread(check_outputs, ground, records + 600)


# --- another parallelising factor ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ground", "before", "after"),
    [
        ("embedded", 8, 24),
        ("embedded", 24, 8),
        ("embedded", 12, 7),
        ("embedded", 7, 1),
        ("embedded", 2, 5),
        pytest.param("kafka", 12, 7, marks=pytest.mark.broker),
    ],
    indirect=["ground"],
)
async def test_another_factor(ground: Ground, before: int, after: int) -> None:
    """The new factor counts from the grant on: cut by its bounds, and where edges differ, which are merged as they
    become level, as the log tells. One that is far behind is no hindrance: every output once, each key in order.
    """
    records, keys = 3_000, 60
    await asyncio.to_thread(fill, ground, records, keys)
    first = Work()
    first.is_blocked = lambda key, value: (key == b"k7" and value > 500) or value > 2_000
    app = ground.app(drain_timeout_ms=1, buffer_bytes_max=before * 220 * 20)
    first.declare(app, ground, before)
    async with app:
        await reached(lambda: first.count > 800 and front(app) > 1_500)
        assert workers_of(app) == before
        assert lowest_edge(app) < 700, "one is far behind"
    second = Work()
    app = ground.app(buffer_bytes_max=after * 220 * 20)
    second.declare(app, ground, after)
    async with app:
        await reached(lambda: lowest_edge(app) == records)
        await reached(lambda: workers_of(app) == after)
        await asyncio.to_thread(ground.fill, [(b"k%d" % (i % keys), b"%d" % i) for i in range(records, records + 600)])
        await reached(lambda: lowest_edge(app) == records + 600)
    assert first.count + second.count >= records + 600
    await asyncio.to_thread(check_outputs, ground, records + 600)
    told = await asyncio.to_thread(events, ground)
    wanted, old = set(even_bounds(after)), set(even_bounds(before))
    bounds = [set(event.bounds) for event in told if isinstance(event, WorkersCut)]
    assert [bounds[0], *map(len, bounds[2:])] == [old]
    assert wanted <= bounds[1] <= wanted | old
    assert not any(isinstance(event, WorkerSplit) for event in told)
    assert sum(isinstance(event, WorkersMerged) for event in told) == len(bounds[1] - wanted)


@pytest.mark.parametrize("ground", ["embedded"], indirect=True)
async def test_stuck_key_does_not_freeze_those_it_shall_be_merged_with(ground: Ground) -> None:
    """Neighbours are held for a moment only, so that they may become level: while one is stuck the others go on."""

    def is_behind(key: bytes | None) -> bool:  # every second worker: neighbours have different edges
        return bool(bisect_right(even_bounds(16), point_of(key, 0, 0)) % 2)

    keys = [b"k%d" % i for i in range(64)]
    stuck = [key for key in keys if is_behind(key)][-1]  # from the start, or all are merged before it is stuck
    await asyncio.to_thread(fill, ground, 128, 64)
    first = Work()
    first.is_blocked = lambda key, value: is_behind(key) and value >= 64
    app = ground.app(drain_timeout_ms=1)
    first.declare(app, ground, 16)
    lacking = sum(map(is_behind, keys))
    async with app:
        await reached(lambda: first.count == 128 - lacking)
    work = Work()
    work.is_blocked = lambda key, value: key == stuck
    app = ground.app(drain_timeout_ms=1, merge_hold_ms=200)
    work.declare(app, ground, 1)
    async with app:
        assert workers_of(app) == 16, "they have to be level first"
        await reached(lambda: work.count == lacking - 1)
        for turn in range(2, 6):
            more = [(key, b"%d" % (64 * turn + i)) for i, key in enumerate(keys)]
            before, commits = work.count, app.statistics().commits
            await asyncio.to_thread(ground.fill, more)
            # a sixteenth of the keys shares the stuck one's worker
            await reached(partial(has_done, work, before + 50))
            await reached(partial(has_committed, app, commits + 1))  # then neighbours are held
        work.gate.set()
        await reached(lambda: lowest_edge(app) == 64 * 6)
        await reached(lambda: workers_of(app) == 1)
    await asyncio.to_thread(check_outputs, ground, 64 * 6)


# --- our own logs ----------------------------------------------------------------------------------------------------


def marks_of(ground: Ground, *topics: str) -> dict[TopicPartition, Watermarks]:
    """The watermarks of partitions 0."""

    async def ask() -> dict[TopicPartition, Watermarks]:
        broker = ground.connect()
        await broker.open()
        try:
            return await broker.watermarks([TopicPartition(topic, 0) for topic in topics])
        finally:
            await broker.close()

    return asyncio.run(ask())


def test_idle_application_appends_nothing(ground: Ground) -> None:
    """Over many commit intervals both logs stay as they are; that it leaves then is told by both."""
    fill(ground, 50, 10)
    logs = [f"{ground.name}.control", f"{ground.name}.offsets"]
    app = ground.app(commit_interval_ms=20, commit_lead_ms=1)
    Work().declare(app, ground, 8)
    takes: list[dict[TopicPartition, Watermarks]] = []
    thread_marks: list[dict[TopicPartition, Watermarks]] = []

    def on_step(step: str) -> None:
        if step != "take" or not app.statistics().partitions or lowest_edge(app) < 50:
            return
        takes.append({})
        if len(takes) in (10, 40):
            loop = asyncio.get_running_loop()
            asking = loop.run_in_executor(None, marks_of, ground, *logs)
            asking.add_done_callback(lambda marks: thread_marks.append(marks.result()))
        if len(thread_marks) == 2:
            app.stop()

    app.run(on_step=on_step)
    assert len(takes) >= 40
    assert thread_marks[0] == thread_marks[1]


async def test_snapshots_bound_the_start(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the log, a start reads from its newest snapshot on, looking for it from the log's end."""
    records = 9_000
    monkeypatch.setattr(snapshots, "FIRST_STEP", 10)  # a log of some thousand events would take its time
    await asyncio.to_thread(fill, ground, records, 40)
    app = ground.app(
        snapshot_every_commits=5,
        commit_interval_ms=5,
        commit_lead_ms=1,
        buffer_bytes_max=8 * 220 * 4,
        fetch_records_max=20,
    )
    work = Work()
    work.pause_s = 0.01
    work.declare(app, ground, 8)
    async with app:
        await reached(lambda: app.statistics().commits > 150)  # the search takes steps of 10 and 40 events
    counting = Counting(ground.connect())
    again = App(ground.name, broker=counting.as_broker(), settings=Settings(commit_interval_ms=50))
    work.pause_s = 0.0
    work.declare(again, ground, 8)
    async with again:
        read = counting.read[TopicPartition(f"{ground.name}.offsets", 0)]
        marks = (await asyncio.to_thread(marks_of, ground, f"{ground.name}.offsets")).popitem()[1]
        assert marks.high > 2 * read, (marks, read)
        await reached(lambda: lowest_edge(again) == records)
    await counting.close()
    await asyncio.to_thread(check_outputs, ground, records)


@pytest.mark.parametrize(
    ("ground", "looked_at"),
    [("embedded", 5_000), ("embedded", 2), pytest.param("kafka", 5_000, marks=pytest.mark.broker)],
    indirect=["ground"],
)
async def test_own_log_is_trimmed_and_restarts_work(
    ground: Ground, looked_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no history to keep the log's start moves on while it runs, also when more lies between two snapshots than is
    looked at each time; each restart goes on where the last one ended.
    """
    monkeypatch.setattr(trimming, "READ_RECORDS_MAX", looked_at)
    await asyncio.to_thread(fill, ground, 3_000, 40)
    app = ground.app(
        snapshot_every_commits=3,
        commit_interval_ms=5,
        commit_lead_ms=1,
        buffer_bytes_max=8 * 220 * 4,
        fetch_records_max=20,
        history_ms=0,
    )
    work = Work()
    work.pause_s = 0.01
    work.declare(app, ground, 8)
    starts = [0]
    for _ in range(3):
        async with app:
            await reached(lambda: app.statistics().commits > 25)
        marks = (await asyncio.to_thread(marks_of, ground, f"{ground.name}.offsets")).popitem()[1]
        starts.append(marks.start)
        assert marks.high - marks.start < 60, "what is left is some snapshots long"
    assert starts == sorted(set(starts))
    work.pause_s = 0.0
    last = ground.app()
    work.declare(last, ground, 8)
    async with last:
        await reached(lambda: lowest_edge(last) == 3_000)
    assert work.count == 3_000, "a stop in order leaves nothing to be done again"
    await asyncio.to_thread(check_outputs, ground, 3_000)
