"""Lanes: threads run the workers of ``def`` handlers, and only what has to wait has a task."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from keylanes import Context, DeadLetter, Retry, State
from keylanes.brokers.protocol import Batch, Broker, TopicPartition
from keylanes.brokers.simulated.broker import SimulatedRecord
from keylanes.brokers.throttling import Throttling
from keylanes.errors import ContextClosed, HandlerFailed
from keylanes.keyrange.ranges import even_bounds
from keylanes.runtime.engine.commit_alarm import CommitAlarm, Releases
from keylanes.runtime.engine.destinations import Destinations
from keylanes.runtime.engine.partition_run import PartitionRun
from keylanes.runtime.engine.slots import Slots
from keylanes.runtime.handlers.handler import declare
from keylanes.runtime.handlers.outputs import Destination, place_of
from keylanes.runtime.partition.dispatch import PartitionDispatch
from keylanes.runtime.partition.worker import Worker, WorkerNumbers
from keylanes.runtime.settings import Settings

from ...stage.ground import Ground

WAIT_S = 30.0
WORKERS, RECORDS = 8, 400


class Stage:
    """A partition whose records are queued, and slots that run them."""

    def __init__(self, function: Any, settings: Settings | None = None, **options: Any) -> None:
        self.failures: list[BaseException] = []
        self.dispatch = PartitionDispatch("in", 0, 0, 1 << 20, WorkerNumbers())
        self.dispatch.add_workers(even_bounds(WORKERS), lambda first: 0)
        settings = settings or Settings(threads=2)
        destinations = Destinations(cast(Broker, None), settings)
        for topic in ("out", "dead"):
            destinations.known[topic] = Destination(1, 1 << 20, False)
        alarm = CommitAlarm(Releases(settings.limits.merge_hold_ms), Throttling().writing)
        self.slots = Slots(
            destinations, settings, self.failures.append, alarm, cpu_s=time.thread_time, now_s=time.monotonic
        )
        self.slots.bound_done(settings.limits.done_bytes_max)  # no commit says what a quota allows
        handler = declare(function, "in", to="out", **options)
        self.run = PartitionRun(self.dispatch, handler, place_of("in", 0, b"test app"))

    def hand_out(self, records: int = RECORDS) -> None:
        """Queue so many, and start their workers."""
        batch = [SimulatedRecord(i, 0, b"k%d" % (i % 40), b"%d" % i, ()) for i in range(records)]
        ready: list[Worker] = []
        self.dispatch.hand_out(Batch(TopicPartition("in", 0), batch, records), 0, ready)
        self.slots.activate(self.run, ready)

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Turns of the loop."""
        async with asyncio.timeout(WAIT_S):
            while not is_reached():  # noqa: ASYNC110  # turns of the loop
                await asyncio.sleep(0)

    async def until_done(self) -> None:
        """All that was queued is through."""
        await self.until(lambda: self.slots.is_idle() or bool(self.failures))

    def sent(self) -> list[bytes | None]:
        """The values of what was sent, worker by worker."""
        return [output.value for w in self.dispatch.workers for done in w.done for output in done.outputs]


async def test_records_have_no_task_and_keep_the_order_of_keys() -> None:
    """Each of hundreds is handled once, behind those of its key that came before it."""
    tasks: list[int] = []
    seen: list[int] = []

    def handle(value: int) -> int:
        seen.append(value)
        tasks.append(len(stage.slots.tasks.working))
        return value

    stage = Stage(handle)
    stage.hand_out()
    assert stage.slots.count_running() == WORKERS
    await stage.until_done()
    assert sorted(seen) == list(range(RECORDS))
    for key in range(40):
        assert [v for v in seen if v % 40 == key] == list(range(key, RECORDS, 40))
    assert {*tasks} == {0}
    assert sorted(int(value or b"") for value in stage.sent()) == list(range(RECORDS))
    assert not stage.slots.count_running()
    assert stage.slots.records_done == RECORDS
    assert all(not worker.active and worker.running is None for worker in stage.dispatch.workers)
    await stage.slots.close(1.0)


async def test_what_fails_is_tried_again_before_its_successors() -> None:
    """The others go on meanwhile; what fails for good becomes a dead letter, and what can't be sent, too."""
    attempts: list[int] = []

    def handle(value: int) -> Any:
        attempts.append(value)
        if value in (3, 203) and attempts.count(value) < 3:
            raise ValueError(value)
        if value == 5:
            raise ValueError("always")
        return object() if value == 7 else value

    stage = Stage(handle, retry=Retry(attempts=3, backoff_ms=1), on_failure=DeadLetter("dead"))
    stage.hand_out()
    await stage.until_done()
    assert not stage.failures
    assert [attempts.count(value) for value in (3, 203, 5, 7)] == [3, 3, 3, 3]
    for key in (3, 5, 7):
        seen = [value for value in attempts if value % 40 == key]
        assert seen == sorted(seen)
    assert stage.slots.failures.dead_letters == 2
    assert len(stage.sent()) == RECORDS
    await stage.slots.close(1.0)


async def test_a_failure_that_stops_is_told() -> None:
    """Once; its record stays its worker's running one, and so below every edge."""

    def handle(value: int) -> None:
        if value == 5:
            raise ValueError("always")

    stage = Stage(handle, retry=Retry(attempts=1))
    stage.hand_out()
    await stage.until(lambda: bool(stage.failures))
    assert isinstance(stage.failures[0], HandlerFailed)
    assert [w.running.offset for w in stage.dispatch.workers if w.running and w.running.offset == 5] == [5]
    await stage.slots.close(1.0)


async def test_a_lane_that_takes_too_long_is_named_and_its_record_tried_again() -> None:
    """Its thread can't be stopped: the record waits for its end. It is the oldest that runs until then."""
    begun, ended = threading.Event(), threading.Event()
    attempts: list[int] = []

    def handle(value: int) -> None:
        attempts.append(value)
        if value == 5 and attempts.count(5) == 1:
            begun.set()
            ended.wait(WAIT_S)

    stage = Stage(handle, Settings(threads=2, handler_timeout_ms=1_000), retry=Retry(attempts=2, backoff_ms=1))
    stage.hand_out()
    await stage.until(begun.is_set)
    now = time.monotonic()
    await stage.until(lambda: stage.slots.count_running() == 1)
    oldest = stage.slots.oldest_running(now + 5)
    assert oldest is not None
    assert (oldest.partition, oldest.offset) == ("in[0]", 5)
    assert 4 < oldest.age_s < WAIT_S
    stage.slots.end_overdue(now + 0.5)
    assert not any(worker.timed_out for worker in stage.dispatch.workers)
    stage.slots.end_overdue(now + 5)
    assert [w.running.offset for w in stage.dispatch.workers if w.timed_out and w.running is not None] == [5]
    ended.set()
    await stage.until_done()
    assert attempts.count(5) == 2
    assert stage.slots.failures.attempts == 1
    assert not stage.failures
    await stage.slots.close(1.0)


async def test_what_comes_back_after_the_end_changes_nothing() -> None:
    """Its record is for the next start: what commits it holds by then no longer asks who runs."""
    begun, ended = threading.Event(), threading.Event()

    def handle(value: int) -> int:
        begun.set()
        ended.wait(WAIT_S)
        return value

    stage = Stage(handle)
    stage.hand_out()
    await stage.until(begun.is_set)
    assert stage.slots.count_running() == WORKERS
    await stage.slots.close(1.0)
    assert not stage.slots.count_running()
    stage.dispatch.cut_off()
    ended.set()
    await stage.until(lambda: stage.slots.oldest_running(time.monotonic()) is None)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not stage.slots.records_done
    assert not stage.sent()
    assert sum(len(worker.queue) for worker in stage.dispatch.workers) == RECORDS


async def test_stores_of_records_in_lanes_hold_what_their_last_attempts_wrote(ground: Ground) -> None:
    """An attempt that fails leaves nothing; nor does one whose value can't be sent."""
    await asyncio.to_thread(ground.fill, [(b"k%d" % (i % 5), b"%d" % i) for i in range(100)])
    app = ground.app(threads=3)
    tried: set[int] = set()

    @app.handler(ground.source, to=ground.late, retry=Retry(attempts=2, backoff_ms=1), parallelising_factor=8)
    def count(value: int, seen: State[int]) -> Any:
        number = (seen.get() or 0) + 1
        seen.put(number)
        if value % 10 in (3, 4) and value not in tried:
            tried.add(value)
            if value % 10 == 3:
                raise ValueError(value)
            return object()
        return number if value % 2 else [number]

    await asyncio.to_thread(app.run, until="level")
    said = sorted(int(value or b"") for value in await asyncio.to_thread(ground.values, ground.late))
    assert said == sorted([*range(1, 21)] * 5)


async def test_what_a_context_sends_in_a_lane_is_of_the_last_attempt(ground: Ground) -> None:
    """Together with what is returned, in that order; a context that was closed sends nothing more."""
    await asyncio.to_thread(ground.fill, [(b"k%d" % (i % 5), b"%d" % i) for i in range(100)])
    app = ground.app(threads=3)
    attempts: list[tuple[int, int]] = []
    kept: list[Context] = []

    @app.handler(ground.source, to=ground.late, retry=Retry(attempts=2, backoff_ms=1), parallelising_factor=8)
    def handle(value: int, seen: State[int], ctx: Context) -> int | None:
        attempts.append((value, ctx.attempt))
        seen.put((seen.get() or 0) + 1)
        ctx.send(ground.late, 1_000 + value, key=ctx.key)
        if value % 10 == 3 and ctx.attempt == 1:
            kept.append(ctx)
            raise ValueError(value)
        return (seen.get() or 0) if value % 2 else None

    await asyncio.to_thread(app.run, until="level")
    assert sorted(attempts) == sorted([*((i, 1) for i in range(100)), *((i, 2) for i in range(3, 100, 10))])
    said = [int(value or b"") for value in await asyncio.to_thread(ground.values, ground.late)]
    assert sorted(value for value in said if value >= 1_000) == list(range(1_000, 1_100))
    counted = [n for key in range(5) for n in range(1, 21) if (key + 5 * (n - 1)) % 2]
    assert sorted(value for value in said if value < 1_000) == sorted(counted)
    with pytest.raises(ContextClosed):
        kept[0].send(ground.late, 1)


@pytest.mark.parametrize("limit", [{"max_in_flight": 1}, {"rate_per_s": 2_000.0}])
async def test_lanes_take_turns(limit: dict[str, Any]) -> None:
    """With a limit for what runs at once, or for what begins in a second, each record is handled once and in order."""
    seen: list[int] = []

    def handle(value: int) -> None:
        seen.append(value)

    stage = Stage(handle, **limit)
    stage.slots.turns.set_rate("in", 2_000.0)
    stage.hand_out()
    await stage.until(lambda: stage.slots.records_done == RECORDS)
    assert sorted(seen) == list(range(RECORDS))
    for key in range(40):
        assert [v for v in seen if v % 40 == key] == list(range(key, RECORDS, 40))
    assert not stage.failures
    assert stage.slots.is_idle()
    await stage.slots.close(1.0)
