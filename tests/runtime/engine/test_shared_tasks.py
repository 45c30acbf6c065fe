"""Workers whose handlers do not suspend share a task; whoever suspends has one of his own, which is kept for others."""

import asyncio
from collections import defaultdict

from keylanes import DeadLetter, Retry

from ...stage.ground import Ground

WAIT_S = 30.0


async def test_one_that_suspends_holds_up_nobody(ground: Ground) -> None:
    """All others are handled while it waits, also those that were about to run in its task."""
    await asyncio.to_thread(ground.fill, [(b"k%d" % i, b"%d" % i) for i in range(300)])
    app = ground.app()
    handled: set[int] = set()
    others_are_through, all_are_through, at_first = asyncio.Event(), asyncio.Event(), {0, 7, 123, 299}

    @app.handler(ground.source, parallelising_factor=1_000)
    async def handle(value: int) -> None:
        if value in at_first:
            await others_are_through.wait()
        handled.add(value)
        if len(handled) >= 300 - 2 * len(at_first):  # some keys share a range with one that waits
            others_are_through.set()
        if len(handled) == 300:
            all_are_through.set()

    async with app:
        async with asyncio.timeout(WAIT_S):
            await others_are_through.wait()
            await all_are_through.wait()
    assert not app.statistics().running


async def test_a_handler_has_a_current_task_and_its_own_time_limit(ground: Ground) -> None:
    """``asyncio.timeout`` strikes the handler that asked for it, and no other that ran in the same task before."""
    await asyncio.to_thread(ground.fill, [(b"k%d" % i, b"%d" % i) for i in range(200)])
    app = ground.app()
    tasks: dict[asyncio.Task[object] | None, list[int]] = defaultdict(list)
    waiting: dict[int, asyncio.Task[object] | None] = {}
    timed_out: list[int] = []

    @app.handler(ground.source, parallelising_factor=1_000, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    async def handle(value: int) -> None:
        tasks[asyncio.current_task()].append(value)
        if value % 50 == 0:
            waiting[value] = asyncio.current_task()
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            except TimeoutError:
                timed_out.append(value)

    await asyncio.to_thread(app.run, until="level")
    assert None not in tasks
    assert sorted(value for values in tasks.values() for value in values) == list(range(200))
    assert len(tasks) < 150, "those that did not suspend shared tasks"
    assert len(set(waiting.values())) == 4, "each that suspended had one of its own"
    assert sorted(timed_out) == [0, 50, 100, 150]
    assert await asyncio.to_thread(ground.values, ground.dead) == []


async def test_an_error_before_the_first_suspension_is_its_records_alone(ground: Ground) -> None:
    """Raised before or behind an await, it leads to one dead letter; the task's other records are handled."""
    await asyncio.to_thread(ground.fill, [(b"k%d" % i, b"%d" % i) for i in range(100)])
    app = ground.app()
    handled: list[int] = []

    @app.handler(ground.source, parallelising_factor=1_000, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    async def handle(value: int) -> None:
        if value % 10 == 3:
            await asyncio.sleep(0)
        if value % 10 in (3, 4):
            raise ValueError(value)
        handled.append(value)

    await asyncio.to_thread(app.run, until="level")
    dead = sorted(int(value or b"") for value in await asyncio.to_thread(ground.values, ground.dead))
    assert dead == [value for value in range(100) if value % 10 in (3, 4)]
    assert sorted(handled) == [value for value in range(100) if value % 10 not in (3, 4)]


async def test_a_task_whose_work_is_done_gets_the_next(ground: Ground) -> None:
    """Records that come one by one run in one task, although each suspends. One that is cancelled while it has nothing
    to do takes nothing with it: the next record has another one.
    """
    await asyncio.to_thread(ground.fill, [(b"k", b"0")])
    app = ground.app()
    tasks: list[asyncio.Task[object] | None] = []
    is_through = asyncio.Event()

    @app.handler(ground.source, parallelising_factor=1_000)
    async def handle(value: int) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0.001)
        is_through.set()

    async with app, asyncio.timeout(WAIT_S):
        for value in range(1, 7):
            await is_through.wait()
            is_through.clear()
            while app.statistics().running:  # noqa: ASYNC110  # the handler has set it: a turn or two
                await asyncio.sleep(0)
            if value == 3:
                assert tasks[-1] is not None
                tasks[-1].cancel()
            if value < 6:
                await asyncio.to_thread(ground.fill, [(b"k%d" % value, b"%d" % value)])
    assert tasks == [tasks[0]] * 3 + [tasks[3]] * 3
    assert tasks[0] is not tasks[3]
    assert app.health().state == "stopped"
    assert all(task is not None and task.done() for task in tasks)
