"""An application as its users run it, on the embedded broker: inside a service, to the end of its input, watched."""

import asyncio
import logging
import re
import signal
import threading
import time
from collections.abc import Callable

import pytest

from keylanes import App, Context, DeadLetter, HandlerFailed, Retry, SettingsError
from keylanes.brokers.protocol import TopicPartition
from keylanes.runtime.watch.statistics import PartitionStatistics, ToLevel

from ..stage.ground import Ground

WAIT_S = 30.0


async def reached(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fails when it takes too long."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.005)


def numbers(ground: Ground, records: int, keys: int = 10) -> None:
    """Values 0, 1, … in turn under ``keys`` keys."""
    ground.fill([(b"k%d" % (i % keys), b"%d" % i) for i in range(records)])


def partition_of(app: App) -> PartitionStatistics:
    """What is known of the only partition."""
    (partition,) = app.statistics().partitions
    return partition


# --- inside a service ----------------------------------------------------------------------------------------------


async def test_service_processes_and_stops_in_order(ground: Ground) -> None:
    """Inside `async with` records are processed; leaving it waits for what runs, commits and closes; signal handlers
    stay as they are.
    """
    await asyncio.to_thread(numbers, ground, 100)
    app = ground.app()
    handled: list[int] = []
    hold, held = asyncio.Event(), asyncio.Event()

    @app.handler(ground.source, to=ground.late, parallelising_factor=8)
    async def publish(value: int) -> int:
        if value == 99:
            held.set()
            await hold.wait()
        handled.append(value)
        return value

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert app.health().state == "idle"
    async with app:
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
        assert (app.health().is_good, app.health().state) == (True, "running")
        await held.wait()
        app.stop()
        assert (app.health().is_good, app.health().state) == (True, "stopping")
        hold.set()
    assert (app.health().is_good, app.health().state) == (False, "stopped")
    assert sorted(handled) == list(range(100))
    values = await asyncio.to_thread(ground.values, ground.late)
    assert sorted(int(value or b"") for value in values) == list(range(100))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    await reached(lambda: len(asyncio.all_tasks()) == 1)


async def test_fatal_error_in_a_service(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged as CRITICAL, turns the health bad with its cause, calls `on_fatal` once, and is raised where the
    block ends; an `on_fatal` that fails hides nothing.
    """
    await asyncio.to_thread(numbers, ground, 10)
    heard: list[BaseException] = []
    fatal = asyncio.Event()

    def on_fatal(error: BaseException) -> None:
        heard.append(error)
        fatal.set()
        raise ValueError("nobody may hear this")

    app = ground.app()
    app.on_fatal = on_fatal

    @app.handler(ground.source, retry=Retry(attempts=1), parallelising_factor=4)
    async def fail(value: int) -> None:
        if value == 7:
            raise RuntimeError("seven")

    with pytest.raises(HandlerFailed, match="seven"):  # noqa: PT012  # it is raised where the block ends
        async with app:
            await fatal.wait()
            assert len(heard) == 1
            await asyncio.get_running_loop().create_future()
    assert app.health().state == "failed"
    assert not app.health().is_good
    assert "offset 7" in (app.health().cause or "")
    (critical,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "seven" in critical.getMessage()
    assert 'raise RuntimeError("seven")' in caplog.text, "where it was raised"


def failing(ground: Ground) -> App:
    """An application that stops at the first record of its source, when ``numbers`` has filled that."""
    app = ground.app()

    @app.handler(ground.source, retry=Retry(attempts=1))
    async def fail(value: int) -> None:
        raise RuntimeError(f"no {value}")

    return app


async def test_a_fatal_error_cancels_the_body(ground: Ground) -> None:
    """Whoever waits inside ``async with app`` waits no more, and may clean up; the error comes out."""
    await asyncio.to_thread(numbers, ground, 1)
    story: list[str] = []
    with pytest.raises(HandlerFailed, match="no 0"):  # noqa: PT012  # it is raised where the block ends
        async with failing(ground):
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                story.append("cleaned up")
    assert story == ["cleaned up"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing of the cancellation is left


async def test_a_fatal_error_reaches_a_body_that_ends_with_an_error_of_its_own(ground: Ground) -> None:
    """The run's error comes out; the body's is its context."""
    await asyncio.to_thread(numbers, ground, 1)
    app = failing(ground)
    with pytest.raises(HandlerFailed) as caught:  # noqa: PT012  # it is raised where the block ends
        async with app:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                raise ValueError("mine") from None
    assert isinstance(caught.value.__context__, ValueError)


async def test_a_body_that_is_cancelled_by_somebody_else_stays_cancelled(ground: Ground) -> None:
    """``asyncio.timeout`` around it ends as one: the application has stopped in order."""
    await asyncio.to_thread(numbers, ground, 1)
    app, seen = ground.app(), asyncio.Event()

    @app.handler(ground.source)
    async def see(value: int) -> None:
        seen.set()

    with pytest.raises(TimeoutError):  # noqa: PT012  # of what is inside, the wait is ended
        async with asyncio.timeout(None) as limit:
            async with app:
                await seen.wait()
                limit.reschedule(0)
                await asyncio.get_running_loop().create_future()
    assert app.health().state == "stopped"


async def test_service_that_is_cancelled_while_it_starts() -> None:
    """Who gives up waiting for the start leaves nothing running behind."""
    app = Ground("kafka://127.0.0.1:1").app(default_api_timeout_ms=60_000, broker_retry_ms=60_000)
    app.handler("any")(lambda value: None)
    with pytest.raises(TimeoutError):  # noqa: PT012  # of what is inside, none is begun
        async with asyncio.timeout(0.2):
            async with app:
                pytest.fail("it can't have started")
    await reached(lambda: len(asyncio.all_tasks()) == 1)


async def test_run_inside_a_loop_is_refused(ground: Ground) -> None:
    """`app.run()` has a loop of its own: inside another one the message names the other way."""
    app = ground.app()
    app.handler(ground.source)(lambda value: None)
    with pytest.raises(RuntimeError, match="async with app"):
        app.run()


def test_run_off_the_main_thread(ground: Ground) -> None:
    """`app.run()` works on any thread; only the main one may ask for signals."""
    numbers(ground, 20)
    app = ground.app()
    app.handler(ground.source, parallelising_factor=2)(lambda value: None)
    thread = threading.Thread(target=app.run, kwargs={"until": "level"})
    thread.start()
    thread.join(WAIT_S)
    assert app.health().state == "stopped"
    assert app.statistics().records_done == 20


async def test_application_runs_once_at_a_time(ground: Ground) -> None:
    """Entering it twice is refused; after it was left it can be entered again."""
    await asyncio.to_thread(numbers, ground, 5)
    app = ground.app()
    handled: list[int] = []

    @app.handler(ground.source, parallelising_factor=2)
    async def note(value: int) -> None:
        handled.append(value)

    async with app:
        with pytest.raises(SettingsError, match="runs already"):
            await app.__aenter__()
        await reached(lambda: len(handled) == 5)
    async with app:
        await asyncio.to_thread(numbers, ground, 5)
        await reached(lambda: len(handled) == 10)
    assert len(handled) == 10


# --- looking -------------------------------------------------------------------------------------------------------


async def test_statistics_during_a_run(ground: Ground) -> None:
    """Front, least offset, the oldest running record and the age of the last commit are those of the moment."""
    app = ground.app(commit_all_workers_max=100)
    assert app.statistics().partitions == ()
    await asyncio.to_thread(numbers, ground, 50)
    hold, held = asyncio.Event(), asyncio.Event()

    @app.handler(ground.source, to=ground.late, parallelising_factor=8)
    async def publish(value: int) -> int:
        if value == 13:
            held.set()
            await hold.wait()
        return value

    async with app:
        await held.wait()
        # the ten keys' other records are through; those behind 13 under its key, or in its range, wait
        await reached(lambda: app.statistics().running == 1 and partition_of(app).front == 50)
        await reached(lambda: partition_of(app).offset_least == 13)
        seen = app.statistics()
        partition = partition_of(app)
        assert (partition.topic, partition.partition, partition.workers) == (ground.source, 0, 8)
        assert (partition.lagging_workers, partition.dropped) == (0, 0)
        assert partition.queued_records == 50 - seen.records_done - 1 >= 3
        assert partition.queued_bytes >= 200 * partition.queued_records
        assert seen.oldest_running is not None
        where, offset, age_s = seen.oldest_running
        assert (where, offset) == (f"{ground.source}[0]", 13)
        assert 0 <= age_s < WAIT_S, "an age, not a time of some clock"
        assert seen.commits > 0
        assert seen.tiles > 0
        assert seen.event_bytes > 0
        assert seen.last_commit_age_s is not None
        elsewhere = await asyncio.to_thread(app.statistics)
        assert elsewhere.last_commit_age_s is not None
        assert abs(elsewhere.last_commit_age_s - seen.last_commit_age_s) < 5, "asked from a thread it is the same clock"
        assert elsewhere.oldest_running is not None
        assert age_s <= elsewhere.oldest_running.age_s < age_s + 5
        hold.set()
        await reached(lambda: partition_of(app).offset_least == 50)
        assert app.statistics().oldest_running is None
        assert app.statistics().records_done == 50


async def test_loop_lag_is_measured(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """A handler that blocks the loop shows in the statistics and the health, and is named."""
    await asyncio.to_thread(numbers, ground, 1)
    app = ground.app(loop_lag_ms=100)
    blocked = asyncio.Event()

    @app.handler(ground.source, parallelising_factor=1)
    async def block(value: int) -> None:
        time.sleep(0.3)  # noqa: ASYNC251  # what is measured
        blocked.set()

    async with app:
        await blocked.wait()
        await reached(lambda: app.statistics().loop_lag_ms_max >= 200)
        assert app.health().loop_lag_ms_max >= 200
    assert re.search(r"the async handler block blocks it", caplog.text)


async def test_stall_is_said_and_ends(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """When records wait and nothing has moved for `stall_ms` it is said once, naming the oldest running record, and the
    health is bad; it is good again when things move.
    """
    await asyncio.to_thread(numbers, ground, 10, 1)
    app = ground.app(stall_ms=300)
    hold = asyncio.Event()

    @app.handler(ground.source, parallelising_factor=2)
    async def wait(value: int) -> None:
        if value == 4:
            await hold.wait()

    async with app:
        await reached(lambda: not app.health().is_good)
        assert app.health().cause == "records wait and nothing moves"
        assert app.health().state == "running"
        hold.set()
        await reached(lambda: app.health().is_good)
        await reached(lambda: app.statistics().records_done == 10)
    said = [record.getMessage() for record in caplog.records if "nothing has moved for 300 ms" in record.getMessage()]
    assert len(said) == 1
    assert re.search(rf"oldest running record: {ground.source}\[0\] offset 4, for [01]\.\d s$", said[0])


# --- until level ---------------------------------------------------------------------------------------------------


def test_until_level_ends_though_more_is_written(ground: Ground) -> None:
    """The ends are pinned at the start: a job that feeds its own source comes to its end."""
    numbers(ground, 30)
    app = ground.app(fetch_records_max=10, drain_timeout_ms=200)

    @app.handler(ground.source, to=ground.source, parallelising_factor=4)
    async def feed(value: int) -> int:
        return value + 1_000

    app.run(until="level")
    assert app.health().state == "stopped"
    assert partition_of(app).offset_least >= 30
    values = [int(v or b"") for v in ground.values(ground.source)]
    assert sorted(v - 1_000 for v in values[30:] if v < 2_000) == list(range(30))


def test_the_way_to_level_is_as_long_as_it_was_at_the_start(ground: Ground) -> None:
    """Progress is told of a total that stays, whatever is read, queued or written meanwhile; after a part of it was
    done before, of the rest. It never goes back, and ends at the total.
    """
    numbers(ground, 600)
    seen: list[ToLevel] = []

    def app_of(last: int) -> App:
        app = ground.app(fetch_records_max=50, commit_interval_ms=21, drain_timeout_ms=200)
        seen.clear()

        @app.handler(ground.source, to=ground.source, parallelising_factor=16)
        async def feed(value: int) -> int:
            await asyncio.sleep(0.002)
            if value == last:
                app.stop()
            return value + 1_000

        return app

    def on_step(step: str) -> None:
        if step == "applied" and (way := app.statistics().to_level) is not None:
            seen.append(way)

    app = app_of(300)
    app.run(until="level", on_step=on_step)
    assert {way.total for way in seen} == {600}
    assert len({way.done for way in seen}) > 3
    assert 0 < seen[-1].done < 600
    written, done = len(ground.values(ground.source)), seen[-1].done
    app = app_of(-1)
    app.run(until="level", on_step=on_step)
    (rest,) = {way.total for way in seen}
    assert 0 < rest <= written - done
    assert [way.done for way in seen] == sorted(way.done for way in seen)
    assert seen[-1].done == rest
    assert app.statistics().to_level == (rest, rest)


def test_until_level_on_empty_topics(ground: Ground) -> None:
    """Nothing to do ends at once, also with several partitions and handlers."""
    ground.create(ground.source, 3)
    ground.create("another")
    app = ground.app()
    app.handler(ground.source)(lambda value: None)
    app.handler("another")(lambda value: None)
    app.run(until="level")
    assert app.statistics().records_done == 0
    assert len(app.statistics().partitions) == 4


def test_until_level_after_a_trim(ground: Ground) -> None:
    """A source that starts above 0, or is empty above 0, is no hole to wait for."""
    numbers(ground, 10)

    async def trim(before: int) -> None:
        broker = ground.connect()
        await broker.open()
        await broker.trim({TopicPartition(ground.source, 0): before})
        await broker.close()

    asyncio.run(trim(4))
    seen: list[bytes] = []
    app = ground.app()
    app.handler(ground.source, parallelising_factor=2)(seen.append)
    app.run(until="level")
    assert sorted(seen) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    asyncio.run(trim(10))
    other = ground.app(f"{ground.name}-other")
    other.handler(ground.source)(seen.append)
    other.run(until="level")
    assert len(seen) == 6


# --- failures that must not be silent --------------------------------------------------------------------------------


def test_handler_that_cancels_itself(ground: Ground) -> None:
    """A cancel from inside is a failed attempt like any other, never a worker that stands still; the records behind it
    find a whole task.
    """
    numbers(ground, 3, 1)
    app = ground.app(handler_timeout_ms=10_000)
    seen: list[int] = []

    @app.handler(ground.source, parallelising_factor=1, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    async def cancel(value: int, ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        if value == 0:
            task.cancel()
            await asyncio.sleep(0)
        if value == 1:
            raise asyncio.CancelledError
        assert task.cancelling() == 0
        seen.append(value)

    app.run(until="level")
    assert seen == [2]
    causes = [dict(letter.headers)["kl-error"] for letter in ground.read(ground.dead)]
    assert causes == [b"HandlerError: the handler was cancelled from inside"] * 2


def test_handler_that_swallows_its_time_out(ground: Ground) -> None:
    """It has failed all the same, and the next record of its worker is not half cancelled."""
    numbers(ground, 2, 1)
    app = ground.app(handler_timeout_ms=100)

    @app.handler(
        ground.source,
        to=ground.late,
        parallelising_factor=1,
        retry=Retry(attempts=1),
        on_failure=DeadLetter(ground.dead),
    )
    async def swallow(value: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        if value == 0:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return 100
        return value

    app.run(until="level")
    assert ground.values(ground.late) == [b"1"]
    assert [letter.value for letter in ground.read(ground.dead)] == [b"0"]


@pytest.mark.parametrize("is_async", [True, False])
def test_handler_that_raises_stop_iteration(ground: Ground, is_async: bool) -> None:
    """`next()` on something empty is a failed attempt, not a worker that waits for ever."""
    numbers(ground, 2, 1)
    app = ground.app()
    empty: list[int] = []

    def on_thread(value: int) -> None:
        next(iter(empty))

    async def on_loop(value: int) -> None:
        next(iter(empty))

    declare = app.handler(ground.source, parallelising_factor=1, retry=Retry(attempts=1), on_failure=DeadLetter("dead"))
    declare(on_loop if is_async else on_thread)
    app.run(until="level")
    assert [letter.value for letter in ground.read("dead")] == [b"0", b"1"]
