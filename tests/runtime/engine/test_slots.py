"""Slots where handlers hang, wait for a thread, or end badly while the application stops."""

import asyncio
import threading

from keylanes import Context, DeadLetter, Retry

from ...stage.ground import Ground

WAIT_S = 30.0


def test_a_hung_sync_handler_keeps_its_own_thread_only(ground: Ground) -> None:
    """With two threads and one of them hung, the records of all other workers are handled."""
    others = 300
    ground.fill([(b"hung", b"0"), *((b"k%d" % (i % 100), b"%d" % i) for i in range(1, others + 1))])
    app = ground.app(threads=2)
    all_others = threading.Event()
    handled: list[int] = []

    @app.handler(ground.source, parallelising_factor=64)
    def hang_first(value: int, ctx: Context) -> None:
        if ctx.key == b"hung":
            assert all_others.wait(WAIT_S), f"only {len(handled)} others were handled beside it"
        else:
            handled.append(value)
            if len(handled) >= others - 20:  # some keys share the hung one's range and come behind it
                all_others.set()

    app.run(until="level")
    assert sorted(handled) == list(range(1, others + 1))


def test_waiting_for_a_thread_is_not_the_handlers_time(ground: Ground) -> None:
    """Sixteen workers share one thread: together they take far longer than one may, and none is timed out."""
    ground.fill([(b"k%d" % i, b"%d" % i) for i in range(16)])
    app = ground.app(threads=1, handler_timeout_ms=400)
    handled, pause = [], threading.Event()

    @app.handler(ground.source, parallelising_factor=256, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    def slow(value: int) -> None:
        pause.wait(0.06)
        handled.append(value)

    app.run(until="level")
    assert sorted(handled) == list(range(16))
    assert ground.values(ground.dead) == []


async def test_what_a_cancelled_handler_raises_at_a_stop_is_no_failure_of_its_record(ground: Ground) -> None:
    """It is neither dead-lettered nor does it end the application: the next start handles it."""
    await asyncio.to_thread(ground.fill, [(b"a", b"1")])
    app = ground.app(drain_timeout_ms=100)
    running, again = asyncio.Event(), []

    @app.handler(ground.source, parallelising_factor=2, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    async def never(value: int) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("the rollback failed")

    async with app:
        async with asyncio.timeout(WAIT_S):
            await running.wait()
    assert await asyncio.to_thread(ground.values, ground.dead) == []
    second = ground.app()

    @second.handler(ground.source, parallelising_factor=2, on_failure=DeadLetter(ground.dead))
    async def handle(value: int) -> None:
        again.append(value)

    await asyncio.to_thread(second.run, until="level")
    assert again == [1]
    assert await asyncio.to_thread(ground.values, ground.dead) == []


async def test_most_workers_stuck_with_full_queues_starve_nobody(ground: Ground) -> None:
    """Five of eight workers hang with records queued, one of them full: what lies behind for the others is handled."""
    from keylanes.keyrange.hashing import SPACE_END, point_of

    def key_of(worker: int) -> bytes:
        keys = (b"key-%d" % i for i in range(1_000))
        return next(key for key in keys if point_of(key, 0, 0) * 8 // SPACE_END == worker)

    stuck, free = [key_of(worker) for worker in range(5)], [key_of(worker) for worker in range(5, 8)]
    queued = [(key, b"0") for key in stuck for _ in range(20)] + [(stuck[0], b"0")] * 40
    await asyncio.to_thread(ground.fill, [*queued, *((free[i % 3], b"1") for i in range(150))])
    app = ground.app(buffer_bytes_max=8 * 30 * 210, full_wait_ms=200, fetch_records_max=10)
    go_on, counted, handled = asyncio.Event(), asyncio.Event(), []

    @app.handler(ground.source, parallelising_factor=8)
    async def hang(value: int) -> None:
        if value == 0:
            await go_on.wait()
        handled.append(value)
        if handled.count(1) == 150:
            counted.set()

    async with app:
        async with asyncio.timeout(WAIT_S):
            await counted.wait()
        assert handled.count(0) == 0
        go_on.set()
