"""Attempts that end otherwise than by returning: cancelled, out of time, with the whole process."""

import asyncio
import logging
import sys
from typing import Any

import pytest

from keylanes import Context, DeadLetter, HandlerFailed, Retry

from ..stage.ground import Ground

WAIT_S = 30.0


@pytest.mark.parametrize("takes_context", [False, True])
@pytest.mark.parametrize("raises", [False, True])
async def test_a_stop_leaves_nothing_of_an_attempt_that_swallows_it(
    ground: Ground, takes_context: bool, raises: bool
) -> None:
    """The handler catches its cancellation and returns half a result, or raises. The record is for the next start."""
    begun = asyncio.Event()

    async def half(value: int, ctx: Context) -> bytes:
        begun.set()
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            if raises:
                raise ValueError("half") from None
        return b"half"

    async def without_context(value: int) -> bytes:
        return await half(value, None)  # type: ignore[arg-type]  # it asks for nothing of it

    await asyncio.to_thread(ground.fill, [(b"k", b"1")])
    app = ground.app(drain_timeout_ms=1)
    declared: Any = half if takes_context else without_context
    app.handler(ground.source, to=ground.late, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))(declared)
    async with app:
        await asyncio.wait_for(begun.wait(), WAIT_S)

    again = ground.app()

    @again.handler(ground.source, to=ground.late)
    async def whole(value: int) -> bytes:
        return b"whole"

    await asyncio.to_thread(again.run, until="level")
    assert await asyncio.to_thread(ground.values, ground.late) == [b"whole"]


def test_an_attempt_out_of_time_that_swallows_it_has_failed(ground: Ground) -> None:
    """Whatever it returns."""
    ground.fill([(b"k", b"1")])
    app = ground.app()
    retry, letters = Retry(attempts=1), DeadLetter(ground.dead)

    @app.handler(ground.source, to=ground.late, timeout_ms=50, retry=retry, on_failure=letters)
    async def half(value: int) -> bytes:
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            return b"half"
        return b"whole"

    app.run(until="level")
    (letter,) = ground.read(ground.dead)
    assert (dict(letter.headers)["kl-error"] or b"").startswith(b"HandlerTimeout")
    assert ground.read(ground.late) == []


def test_a_handler_that_ignores_its_cancellation_is_ended_and_named(
    ground: Ground, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one line; nothing is said of its task when Python ends."""
    ground.fill([(b"k", b"1")])
    app = ground.app(drain_timeout_ms=1, close_timeout_ms=500)
    ended: list[str] = []

    @app.handler(ground.source)
    async def deaf(value: int) -> None:
        app.stop()
        try:
            while True:
                try:
                    await asyncio.sleep(WAIT_S)
                except asyncio.CancelledError:
                    continue
        finally:
            ended.append("closed")

    with caplog.at_level(logging.ERROR):
        app.run()
    assert ended == ["closed"]
    said = [message for message in caplog.messages if "pending" not in message]
    assert [message for message in said if "ignores that it is cancelled" in message] == said == caplog.messages
    assert "Task was destroyed" not in capfd.readouterr().err


def test_a_stop_without_time_is_said_once(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said of the single steps that had none left."""
    ground.fill([(b"k", b"1")])
    app = ground.app(drain_timeout_ms=1, close_timeout_ms=1)

    @app.handler(ground.source)
    async def slow(value: int) -> None:
        app.stop()
        await asyncio.sleep(WAIT_S)

    with pytest.raises(SystemExit):
        app.run()
    assert "stopped without the last commit: no time was left (close_timeout_ms)" in caplog.text
    assert sum("the stop was cut short: 0.001 s (close_timeout_ms) were over" in text for text in caplog.messages) == 1
    assert not any("longer than 0 ms" in text for text in caplog.messages)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(("raised", "code"), [(SystemExit(7), 7), (SystemExit("gone"), 1), (KeyboardInterrupt(), 130)])
def test_a_handler_may_end_the_process(
    ground: Ground, caplog: pytest.LogCaptureFixture, is_async: bool, raised: BaseException, code: int
) -> None:
    """One line names the handler and the record; the exit code is the one that it asked for."""
    ground.fill([(b"k", b"1")])
    app = ground.app()

    def leave(value: int) -> None:
        raise raised

    async def leave_async(value: int) -> None:
        await asyncio.sleep(0)
        raise raised

    app.handler(ground.source, on_failure=DeadLetter(ground.dead))(leave_async if is_async else leave)
    with pytest.raises(SystemExit) as ended:
        app.run(until="level")
    assert ended.value.code == code
    assert isinstance(ended.value.__cause__, HandlerFailed)
    assert f"ended the process at {ground.source}[0] offset 0" in str(ended.value.__cause__)
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_ends_a_run_is_said_once(ground: Ground, caplog: pytest.LogCaptureFixture, is_ours: bool) -> None:
    """In one line. Behind it stands the stack of what a handler raised, and of nothing that we raised about it."""
    ground.fill([(b"k", b"1")])
    app = ground.app()

    @app.handler(ground.source, to=ground.late, retry=Retry(attempts=1))
    async def work(value: int) -> Any:
        return object() if is_ours else [][value]

    with pytest.raises(SystemExit):
        app.run()
    (last,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "stops: work failed for good at" in last.getMessage()
    stack = logging.Formatter().format(last).removeprefix(last.getMessage())
    assert "HandlerFailed" not in stack
    assert "OutputRefused" not in stack
    assert is_ours or stack.rstrip().endswith("IndexError: list index out of range")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks can't begin at once before Python 3.12")
def test_a_loop_whose_tasks_begin_at_once_is_refused(ground: Ground) -> None:
    """In one sentence, before anything is opened."""
    ground.fill([(b"k", b"1")])
    app = ground.app()
    app.handler(ground.source)(lambda value: None)

    async def enter() -> None:
        asyncio.get_running_loop().set_task_factory(vars(asyncio)["eager_task_factory"])
        async with app:
            pass

    with pytest.raises(ValueError, match="this event loop begins tasks at once"):
        asyncio.run(enter())


async def test_each_attempt_has_a_task_of_its_own_on_request(ground: Ground) -> None:
    """What a library keeps by ``asyncio.current_task`` does not go from record to record."""
    await asyncio.to_thread(ground.fill, [(b"k", b"%d" % i) for i in range(20)])
    tasks: list[asyncio.Task[Any] | None] = []
    app = ground.app()

    @app.handler(ground.source, own_task=True)
    async def note(value: int) -> None:
        tasks.append(asyncio.current_task())

    await asyncio.to_thread(app.run, until="level")
    assert len({id(task) for task in tasks}) == len(tasks) == 20
