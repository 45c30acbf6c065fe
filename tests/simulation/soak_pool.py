"""Plans run by several processes: one that dies or hangs costs its own plan, and the others go on."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Self

import msgspec

from .plan import Plan
from .shrink import RUNS_MAX, Shrunk, shrink
from .soak_worker import Answer, Failure, Task, decode, encode

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0
"""So long one plan may take on the clock on the wall; it takes a second at most."""
GRACE_S = 10.0
"""So much later a worker that did not notice by itself that it hangs is killed."""
SHRINK_S = 300.0
"""So long a plan is made smaller, however many runs are left: those of a plan that hangs take long."""
LINE_MAX = 1 << 27
ERRORS_BYTES_MAX = 6_000
HUNG, DIED = "Hung", "Died"


def module_command(name: str, *arguments: str) -> list[str]:
    """A module of the tests as a child process, with the checkout at the end of its path (see ``bare_rooms``)."""
    code = f"import runpy, sys; sys.path.append({str(ROOT)!r}); runpy.run_module({name!r}, run_name='__main__')"
    return [sys.executable, "-P", "-c", code, *arguments]


class Pool:
    """So many workers; ``command`` starts one. Workers differ in their PYTHONHASHSEED, so that sets are walked in
    different orders in them.
    """

    def __init__(self, workers: int, limit_s: float = LIMIT_S, command: Sequence[str] | None = None) -> None:
        self.limit_s = limit_s
        self.command = command or module_command("tests.simulation.soak_worker", str(limit_s))
        self.workers = [Worker(self, number + 1) for number in range(workers)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(worker.end() for worker in self.workers))

    async def run(
        self, tasks: Iterable[Task], on_answer: Callable[[Answer], None], is_over: Callable[[], bool] = bool
    ) -> None:
        """Tell each task's answer when it comes. Once ``is_over``, no more tasks are begun; those under way end."""
        left = iter(tasks)

        async def work(worker: Worker) -> None:
            while not is_over() and (task := next(left, None)) is not None:
                on_answer(await worker.run(task))

        async with asyncio.TaskGroup() as group:
            for worker in self.workers:
                group.create_task(work(worker))

    async def run_one(self, task: Task) -> Answer:
        """By the first worker."""
        return await self.workers[0].run(task)

    async def shrink(self, task: Task, kind: str, runs_max: int = RUNS_MAX) -> Shrunk | None:
        """Make a failing plan smaller (see ``shrink``), by the first worker; None: run again, it does not fail so."""
        loop = asyncio.get_running_loop()
        is_over = False

        until_s = loop.time() + SHRINK_S

        def failure(plan: Plan) -> str | None:
            if is_over or loop.time() > until_s:
                return None
            run = self.run_one(Task(task.seed, "", encode(plan)))
            answer = asyncio.run_coroutine_threadsafe(run, loop).result()
            return answer.failure.kind if answer.failure else None

        plan = decode(task.plan)
        try:
            if await asyncio.to_thread(failure, plan) != kind:
                return None
            return await asyncio.to_thread(shrink, plan, kind, failure, runs_max)
        finally:
            is_over = True


class Worker:
    """A child process, started when there is something to do, and anew after it died."""

    def __init__(self, pool: Pool, number: int) -> None:
        self.pool, self.number = pool, number
        self.child: asyncio.subprocess.Process | None = None
        self.errors: IO[bytes] | None = None
        self.is_busy = False

    async def run(self, task: Task) -> Answer:
        """The answer; when the child dies over it or hangs, the answer says so."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self.is_busy = True
        try:
            child = self.child or await self._start()
            assert child.stdin is not None, "it was asked for"
            assert child.stdout is not None, "it was asked for"
            with contextlib.suppress(ConnectionError):  # dead; its end is noticed below
                child.stdin.write(msgspec.json.encode(task) + b"\n")
                await child.stdin.drain()
            async with asyncio.timeout(self.pool.limit_s + GRACE_S):
                line = await child.stdout.readline()
            if line.endswith(b"\n"):
                self.is_busy = False
                return msgspec.json.decode(line, type=Answer)
            is_hung = False
        except TimeoutError:
            is_hung = True
        seconds = loop.time() - began_s
        failure = await self._bury(is_hung=is_hung or seconds >= self.pool.limit_s)
        return Answer(task.seed, seconds, task.name, plan=task.plan, failure=failure)

    async def _start(self) -> asyncio.subprocess.Process:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the child has ended
        self.child = await asyncio.create_subprocess_exec(
            *self.pool.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self.errors,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(self.number)},
            limit=LINE_MAX,
            start_new_session=True,  # the terminal's interrupt is for us: they end what they have begun
        )
        return self.child

    async def _bury(self, *, is_hung: bool) -> Failure:
        """What the dead child leaves: how it ended, and the end of what it wrote to its standard error."""
        child, errors = self.child, self.errors
        assert child is not None, "it was started"
        assert errors is not None, "it was started"
        code = await _ended(child, 0.0 if is_hung else GRACE_S)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - ERRORS_BYTES_MAX))
        said = errors.read().decode(errors="replace")
        await self.end()
        self.is_busy = False
        if is_hung:
            return Failure(f"{HUNG}: no end", f"it took more than {self.pool.limit_s:g} s\n{said}")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Failure(f"{DIED}: {how}", f"the process ended with {how}\n{said}")

    async def end(self) -> None:
        """No more tasks for it."""
        child, errors, self.child, self.errors = self.child, self.errors, None, None
        if child is not None and child.stdin is not None:
            child.stdin.close()  # an idle one ends by that; one that works holds nothing that could be lost
            await _ended(child, 0.0 if self.is_busy else GRACE_S)
        if errors is not None:
            errors.close()


async def _ended(child: asyncio.subprocess.Process, patience_s: float) -> int:
    """Wait so long for a child to end by itself, then kill it; its exit code.

    Not by ``child.kill()``: that looks whether it has ended, and takes the exit code from the one who waits for it.
    """
    try:
        async with asyncio.timeout(patience_s):
            return await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        return await child.wait()
