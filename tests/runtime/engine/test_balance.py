"""Ranges that are split and merged while an application runs, on the simulated broker in virtual time."""

import asyncio
import contextlib
import logging
import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from keylanes import Retry
from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.keyrange.ranges import KeyRange, even_bounds
from keylanes.offsets.codec import decode
from keylanes.offsets.events import Event, WorkersMerged, WorkerSplit
from keylanes.runtime.engine.balance import SAY_LOOKS, Balance
from keylanes.runtime.engine.partition_run import PartitionRun
from keylanes.runtime.engine.range_changes import RangeChanges
from keylanes.runtime.handlers.context import Context
from keylanes.runtime.partition.wishes import MergeWish, ReleaseWish, SplitWish
from keylanes.runtime.partition.worker import Worker
from keylanes.runtime.watch.statistics import HotKey

from ...stage.cluster import fold_of
from ...stage.engine import OUT, SOURCE, Engine, application
from ...stage.virtual import Decorator, virtual, virtual_in

LIMIT_S = 600.0
HALF = SPACE_END // 2


class Running(Engine):
    """A process whose handler takes ``cost_s`` seconds a record, of the only source partition."""

    def __init__(
        self, cost_s: Callable[[bytes], float], factor: int = 4, has_context: bool = False, **settings: Any
    ) -> None:
        app, loop = application(**settings), asyncio.get_running_loop()
        self.running: dict[bytes, int] = {}
        self.keys: list[bytes] = []
        self.cpu_share = 0.0

        async def work(value: bytes) -> bytes:
            key = self.keys[int(value)]
            assert key not in self.running, "two records of one key run at once"
            self.running[key] = int(value)
            await asyncio.sleep(cost_s(key))
            del self.running[key]
            return value

        async def work_with_context(value: bytes, ctx: Context) -> bytes:
            assert ctx.key == self.keys[int(value)]
            return await work(value)

        app.handler(SOURCE, to=OUT, parallelising_factor=factor)(work_with_context if has_context else work)
        super().__init__(app, seed=7)
        self.cpu_s = lambda: loop.time() * self.cpu_share

    @property
    def balance(self) -> Balance:
        """What looks at the loads."""
        assert self.member.work.balance is not None, "it is on, and the start is through"
        return self.member.work.balance

    @property
    def range_changes(self) -> RangeChanges:
        """Who splits and merges."""
        return self.member.work.cycle.range_changes

    @property
    def part(self) -> PartitionRun:
        """The only partition."""
        (run,) = self.member.runs
        return run

    @property
    def workers(self) -> list[Worker]:
        """Its workers."""
        return self.part.dispatch.workers

    def write(self, keys: Sequence[bytes]) -> None:
        """One record each; the values are numbered."""
        for key in keys:
            self.send(key, b"%d" % len(self.keys))
            self.keys.append(key)

    async def reached(self, condition: Callable[[], bool]) -> None:
        """Let virtual time pass until then."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                if self.task.done():
                    await self.task
                await asyncio.sleep(0.05)

    def check(self) -> None:
        """Every record's output is there once, those of each key in order; the log is sound."""
        seen = [[int(value or b"") for value in values] for values in self.values().values()]
        assert all(values == sorted(values) for values in seen)
        assert sorted(value for values in seen for value in values) == list(range(len(self.keys)))
        ledger = fold_of(self.cluster, self.app.name)
        assert not ledger.violations()
        assert not ledger.early_epochs()

    def events(self) -> list[Event]:
        """What the offset log tells, partition after partition."""
        return [decode(record.value or b"") for record in self.cluster.committed_records("app.offsets")]

    def told(self, kind: type[Event]) -> int:
        """How many events of a kind there are."""
        return sum(type(event) is kind for event in self.events())


@contextlib.asynccontextmanager
async def at_work(cost_s: Callable[[bytes], float], factor: int = 4, **options: Any) -> AsyncIterator[Running]:
    """An application that has started; it is stopped in order."""
    app = Running(cost_s, factor, **options)
    await app.start()
    await asyncio.sleep(0)
    try:
        yield app
    finally:
        await app.stop()


def running(cost_s: Callable[[bytes], float], factor: int = 4, **settings: Any) -> Decorator:
    """Run a test on such an application, in virtual time."""
    return virtual_in(lambda: at_work(cost_s, factor, **settings))


def zipf(count: int, keys: int, exponent: float = 1.0) -> list[bytes]:
    """Keys of records, the first one the hottest."""
    weights = [1 / (rank + 1) ** exponent for rank in range(keys)]
    return random.Random(5).choices([b"key %d" % i for i in range(keys)], weights, k=count)


def keys_below(bound: int, count: int = 1, *, above: int = 0) -> list[bytes]:
    """Keys whose points lie in ``[above, bound)``."""
    return [key for i in range(1_000) if above <= point_of_key(key := b"%d" % i) < bound][:count]


def bounds_of(app: Running) -> list[int]:
    """Where the workers' ranges begin, and the end of the last one."""
    return [*(w.first for w in app.workers), app.workers[-1].end]


# --- the whole -----------------------------------------------------------------------------------------------------


@running(lambda key: 0.01)
async def test_hot_ranges_are_split_and_merged_back_when_idle(app: Running) -> None:
    """Zipf keys: workers are split while they run, order and exactly-once are kept, the hottest key works alone,
    so that the whole takes little longer than that key alone; idle, the declared cut comes back.
    """
    keys = zipf(6_000, 60)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    app.write(keys)
    await app.level()
    seconds = loop.time() - begun
    assert app.balance.splits > 3
    assert len(app.workers) > 6
    assert len(app.workers) <= 4 * 4
    assert seconds <= keys.count(b"key 0") * 0.01 / 0.8 + 4, "the first looks have to find out"
    app.check()
    await app.reached(lambda: bounds_of(app) == list(even_bounds(4)))
    assert app.balance.merges > 0
    # The last one may not be visible yet.
    await app.reached(lambda: app.told(WorkersMerged) == app.told(WorkerSplit))
    assert app.told(WorkerSplit) == app.balance.splits
    app.write(keys[:200])
    await app.level()
    app.check()


@running(lambda key: 0.01)
async def test_splits_and_merges_are_summed_up(app: Running, caplog: pytest.LogCaptureFixture) -> None:
    """None has a line of its own; those of an interval stand in the line about it, also while nothing else is done."""
    caplog.set_level(logging.INFO, "keylanes")
    app.write(zipf(3_000, 60))
    await app.level()
    await app.reached(lambda: bounds_of(app) == list(even_bounds(4)))
    await asyncio.sleep(60)
    (run,) = app.member.runs
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert app.balance.splits > 3
    assert not [line for line in said if run.label in line]
    sums = re.findall(r" done in 60 s .*; ranges: (\d+) splits?, (\d+) merges?$", "\n".join(said), re.MULTILINE)
    assert sum(int(splits) for splits, _ in sums) == app.balance.splits
    assert sum(int(merges) for _, merges in sums) == app.balance.merges


@virtual
async def test_a_wait_for_the_next_attempt_splits_nothing() -> None:
    """Records wait behind those that are to be tried again, and a worker can't begin them: no range costs anything."""
    tried: Counter[bytes] = Counter()
    app = application(balance_interval_ms=500)

    @app.handler(SOURCE, to=OUT, parallelising_factor=4, retry=Retry(attempts=3, backoff_ms=1_000))
    async def call(value: bytes) -> bytes:
        tried[value] += 1
        if tried[value] < 3:
            raise TimeoutError
        return value

    engine = Engine(app, seed=7)
    member = await engine.start()
    assert member.work.balance is not None
    for n in range(200):
        engine.send(b"key %d" % (n % 20), b"%d" % n)
    await engine.level()
    assert member.statistics(0.0).retries == 400
    assert (member.work.balance.splits, member.work.balance.hot_keys) == (0, [])
    await engine.stop()


@running(lambda key: 0.01, 16, buffer_bytes_max=50_000, split_hot_ranges=False)
async def test_the_bottleneck_is_not_idle_while_others_catch_up(app: Running) -> None:
    """With queues of a few records readers go past the worker that has the most to do, and past others; it always gets
    its next records before it has none: the whole takes little longer than its records do.
    """
    keys, cut = zipf(3_000, 300), even_bounds(16)
    of_worker = Counter(bisect_right(cut, point_of_key(key)) for key in keys)
    (_, most), (_, second) = of_worker.most_common(2)
    assert most > 1.2 * second
    loop = asyncio.get_running_loop()
    begun = loop.time()
    app.write(keys)
    await app.level()
    assert app.part.dispatch.records_dropped > 0
    assert loop.time() - begun <= 1.1 * most * 0.01
    app.check()


@running(lambda key: 0.02)
async def test_nothing_is_split_while_the_loop_has_no_time_left(app: Running) -> None:
    """All handlers take long then, and more workers would make it worse; when there is time again, the hot one is."""
    app.cpu_share = 0.95
    app.write(zipf(2_000, 200))
    await app.reached(lambda: app.balance.looks >= 4)
    assert app.part.dispatch.workers[0].queue
    assert app.balance.splits == 0
    app.cpu_share = 0.5
    await app.reached(lambda: app.balance.splits > 0)
    await app.level()
    app.check()


@pytest.mark.parametrize("cpu_share", [0.5, 0.95])
@running(lambda key: 0.01, factor=4)
async def test_what_waits_says_at_once_where_a_hot_range_is_cut(app: Running, cpu_share: float) -> None:
    """In the first look, also while the loop has no time left: this range has far more to do than the others."""
    keys = zipf(4_000, 400, 0.0)
    keys += [key for key in keys if point_of_key(key) < HALF // 2] * 4
    app.cpu_share = cpu_share
    random.Random(1).shuffle(keys)
    app.write(keys)
    await app.reached(lambda: app.balance.splits > 0)
    assert app.balance.looks == 1
    assert app.workers[0].end < HALF // 2
    await app.level()
    app.check()


@pytest.mark.parametrize("has_context", [False, True])
@virtual
async def test_a_worker_that_is_split_in_mid_run_is_still_measured(has_context: bool) -> None:
    """One key with all the load: its worker never rests, is cut down to its point, and is then named."""
    async with at_work(lambda key: 0.005, has_context=has_context) as app:
        app.write([b"hot"] * 3_000)
        await app.reached(lambda: bool(app.balance.hot_keys))
        assert app.balance.splits > 0
        assert [key.point for key in app.balance.hot_keys] == [point_of_key(b"hot")]
        assert any(worker.queue for worker in app.workers), "there is more to do"
        await app.level()
        app.check()


@pytest.mark.parametrize("has_context", [False, True])
@virtual
async def test_a_slow_key_comes_to_work_alone_and_is_told(has_context: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A key that takes a second a record gets a worker to itself, others of its range pass it; it is said once, by its
    name.
    """
    point = point_of_key(b"slow")
    others = [b"other %d" % i for i in range(400)]
    near = [key for key in others if (point_of_key(key) < HALF) is (point < HALF)]
    keys = [key for other in others[:40] for key in (b"slow", other)] + others
    caplog.set_level(logging.INFO)
    async with at_work(lambda key: 1.0 if key == b"slow" else 0.001, factor=2, has_context=has_context) as app:
        app.write(keys)
        await app.reached(lambda: len(app.cluster.committed_records(OUT)) >= 430)
        assert sum(1 for output in app.cluster.committed_records(OUT) if output.key == b"slow") < 12
        assert len(near) > 100
        await app.reached(lambda: bool(app.balance.hot_keys))
        (hot,) = app.balance.hot_keys
        assert (hot.topic, hot.partition, hot.point, hot.key) == (SOURCE, 0, point, b"slow")
        assert hot.share > 0.5
        await app.level()
        app.check()
        await app.reached(lambda: app.balance.hot_keys == [])
    said = [record for record in caplog.records if "bottleneck" in record.getMessage()]
    assert len(said) == 1
    assert said[0].levelno == logging.WARNING
    assert said[0].getMessage().startswith("in[0]: key 'slow' is a bottleneck")


@virtual
async def test_keys_with_the_same_load_are_no_bottleneck(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty keys, each with a backlog: each has a worker to itself and is busy all of the time, and none is warned of.
    One that takes four times as long is.
    """
    for slow_s in (0.2, 0.8):
        assert "bottleneck" not in caplog.text
        async with at_work(lambda key, slow_s=slow_s: slow_s if key == b"key 7" else 0.2, factor=64) as app:  # type: ignore[misc]  # bound at once
            app.write([b"key %d" % i for i in range(20)] * 60)
            await app.level()
            app.check()
            assert app.balance.looks > 2 * SAY_LOOKS
    assert {r.getMessage()[:35] for r in caplog.records if "bottleneck" in r.getMessage()} == {
        "in[0]: key 'key 7' is a bottleneck "
    }


@running(lambda key: 0.3, factor=4, balance_interval_ms=200, drain_timeout_ms=8_000)
async def test_nothing_is_split_while_it_drains(app: Running, caplog: pytest.LogCaptureFixture) -> None:
    """A stop with hot ranges and slow handlers takes several looks' time: none of them splits anything, and what was
    asked for before is not done.
    """
    caplog.set_level(logging.DEBUG, "keylanes")
    app.write(zipf(4_000, 400, 0.0))
    await app.reached(lambda: app.balance.looks > 0)
    before, said = app.balance.looks, len(split_messages(caplog))
    numbers = len(app.workers)
    part = app.part.dispatch
    app.member.stop()
    while part.workers:  # it gives up all that it has, with its last commit
        assert len(part.workers) == numbers
        await asyncio.sleep(0.001)
    await asyncio.wait([app.task])
    assert (app.balance.looks, len(split_messages(caplog))) == (before, said)


def test_a_hot_key_is_named_by_what_is_known_of_it() -> None:
    """As text where it is some, bytes as they are written, the start of a long one; its point where no record of it is
    at hand.
    """
    assert str(HotKey("src", 0, 0xAB, 0.5)) == "the key at point 000000ab"
    assert str(HotKey("src", 0, 0xAB, 0.5, "Zoë".encode())) == "key 'Zoë'"
    assert str(HotKey("src", 0, 0xAB, 0.5, b"\xff1")) == r"key '\\xff1'"
    assert str(HotKey("src", 0, 0xAB, 0.5, b"k" * 1_000)) == f"key '{'k' * 100}'"


def split_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of splits."""
    return [record.getMessage() for record in caplog.records if "is split at" in record.getMessage()]


@pytest.mark.parametrize(("factor", "settings"), [(1, {}), (4, {"split_hot_ranges": False})])
@virtual
async def test_who_does_not_want_it_is_left_alone(factor: int, settings: dict[str, object]) -> None:
    """One declared worker stays one, and a setting turns it off."""
    async with at_work(lambda key: 0.01, factor, **settings) as app:
        app.write(zipf(1_000, 20))
        await app.level()
        assert len(app.workers) == factor
        assert app.member.work.balance is None or app.member.work.balance.splits == 0
        app.check()


@running(lambda key: 3.0, commit_interval_ms=900)
async def test_a_merge_that_failed_is_not_tried_again_at_once(app: Running) -> None:
    """Its workers count as busy for some looks; nobody holds them in vain all the time."""
    await app.range_changes.ask(SplitWish(app.part.dispatch, 9))
    await app.reached(lambda: bool(app.range_changes.wishes.merging))
    app.write(keys_below(SPACE_END // 4))
    await app.reached(lambda: bool(app.range_changes.wishes.holds))
    assert app.running, "it began before the hold"
    await app.reached(lambda: not app.range_changes.wishes.holds)
    assert app.balance.merges == 0
    refused = app.balance.looks
    await app.reached(lambda: bool(app.range_changes.wishes.merging))
    assert app.balance.looks >= refused + 5
    await app.reached(lambda: app.balance.merges == 1)
    app.check()


# --- what can be asked ---------------------------------------------------------------------------------------------


@running(lambda key: 0.0)
async def test_a_split_that_is_asked_for(app: Running) -> None:
    """It is there when the answer is; a point that no worker's range holds inside is refused."""
    await app.range_changes.ask(SplitWish(app.part.dispatch, 5))
    assert bounds_of(app) == [0, 5, *even_bounds(4)[1:]]
    assert [event.at for event in app.events() if isinstance(event, WorkerSplit)] == [5]
    for at in (5, 0, SPACE_END):
        with pytest.raises(ValueError, match="strictly inside no worker"):
            await app.range_changes.ask(SplitWish(app.part.dispatch, at))


@running(lambda key: 0.001, split_hot_ranges=False)
async def test_a_merge_that_is_asked_for(app: Running) -> None:
    """It is there when the answer is, also while records come; what is no row of whole workers is refused."""
    app.write(zipf(500, 50))
    await app.range_changes.ask(MergeWish(app.part.dispatch, KeyRange(0, HALF)))
    assert bounds_of(app) == [0, *even_bounds(4)[2:]]
    for first, end in ((0, HALF), (0, HALF + 5), (5, SPACE_END)):
        with pytest.raises(ValueError, match="not made up of two or more whole workers"):
            await app.range_changes.ask(MergeWish(app.part.dispatch, KeyRange(first, end)))
    await app.level()
    app.check()


@running(lambda key: 2.0, merge_hold_ms=100, split_hot_ranges=False)
async def test_a_merge_that_does_not_become_level_is_refused(app: Running) -> None:
    """A record that runs too long for it: its workers go on, and the next attempt may succeed."""
    app.write(keys_below(SPACE_END // 4))
    await app.reached(lambda: bool(app.running))
    with pytest.raises(ValueError, match="did not become level within 100 ms"):
        await app.range_changes.ask(MergeWish(app.part.dispatch, KeyRange(0, HALF)))
    assert all(worker.hold_at is None for worker in app.workers)
    await app.level()
    await app.range_changes.ask(MergeWish(app.part.dispatch, KeyRange(0, HALF)))
    app.check()


@running(lambda key: 2.0, merge_hold_ms=300, split_hot_ranges=False)
async def test_a_split_waits_while_its_worker_is_held(app: Running) -> None:
    """The merge ends first, here for lack of time; then the split is done."""
    app.write(keys_below(SPACE_END // 4))
    await app.reached(lambda: bool(app.running))
    merge = app.range_changes.ask(MergeWish(app.part.dispatch, KeyRange(0, HALF)))
    await app.reached(lambda: bool(app.range_changes.wishes.holds))
    split = app.range_changes.ask(SplitWish(app.part.dispatch, 9))
    await asyncio.wait([split])
    assert merge.done()
    assert isinstance(merge.exception(), ValueError)
    assert bounds_of(app)[:2] == [0, 9]
    await app.level()
    app.check()


@running(lambda key: 1.0, split_hot_ranges=False)
async def test_a_release_comes_first(app: Running) -> None:
    """From when it is asked for, splits and merges of its points are refused, also those asked for before; others go
    on.
    """
    app.write(keys_below(SPACE_END // 4))
    await app.reached(lambda: bool(app.running))
    before = {worker.epoch for worker in app.part.dispatch.workers}
    merge = app.range_changes.ask(MergeWish(app.part.dispatch, KeyRange(0, HALF)))
    await app.reached(lambda: bool(app.range_changes.wishes.holds))
    split = app.range_changes.ask(SplitWish(app.part.dispatch, 9))
    elsewhere = app.range_changes.ask(SplitWish(app.part.dispatch, HALF + 9))
    release = app.range_changes.ask(ReleaseWish(app.part.dispatch, KeyRange(0, HALF)))
    with pytest.raises(ValueError, match="is being given up"):
        app.range_changes.ask(SplitWish(app.part.dispatch, 9))
    with pytest.raises(ValueError, match="is being given up"):
        app.range_changes.ask(MergeWish(app.part.dispatch, KeyRange(0, HALF)))
    answers = await asyncio.gather(merge, split, elsewhere, release, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ValueError, ValueError, type(None), type(None)]
    stayed = [worker.first for worker in app.part.dispatch.workers if worker.epoch in before]
    assert stayed == [HALF, HALF + 9, *even_bounds(4)[3:-1]], "the rest was given up, and may have come back"
    app.check()


@virtual
async def test_what_is_asked_for_ends_with_the_run() -> None:
    """Nobody waits for ever."""
    asked: list[asyncio.Future[None]] = []
    options = {"merge_hold_ms": 100_000, "drain_timeout_ms": 100, "handler_timeout_ms": 100_000}
    async with at_work(lambda key: 60.0, **options) as app:
        app.write(keys_below(SPACE_END // 4))
        await app.reached(lambda: bool(app.running))
        asked.append(app.range_changes.ask(MergeWish(app.part.dispatch, KeyRange(0, HALF))))
        await app.reached(lambda: bool(app.range_changes.wishes.holds))
        asked.append(app.range_changes.ask(SplitWish(app.part.dispatch, 9)))
        asked.append(app.range_changes.ask(MergeWish(app.part.dispatch, KeyRange(0, SPACE_END))))
    assert [future.cancelled() for future in asked] == [True] * 3


@running(lambda key: 0.0, split_hot_ranges=False)
async def test_a_split_is_not_undone_by_merges_to_the_declared_cut(app: Running) -> None:
    """After a start with fewer workers than before, neighbours merge to the new cut; what is split meanwhile stays."""
    app.range_changes.wishes.wanted[app.part.dispatch] = (0, HALF, SPACE_END)
    await app.range_changes.ask(SplitWish(app.part.dispatch, 9))
    await app.reached(lambda: not app.range_changes.wishes.wanted)
    assert bounds_of(app) == [0, 9, HALF, SPACE_END]
