"""Several processes that work together. The demo starts, kills, pauses and adds processes, and ends all of them.

The demo starts each process itself, or a service that keeps the processes and starts a killed process again. Each
process reports its name and number to the demo. No process outlives the demo for long: a started process has the other
end of a pipe and notices when the demo is gone; a process of a service notices when the service is gone.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from child import ChildSpec, Said
from course import NEAR_END, Act, Looked, Step, Told, act_of, do_all_work, due, is_quiet, late, may_be
from keylanes.brokers.protocol import BrokerError
from place import DemoPlace
from saying import say
from wishes import ASKED_EVERY_S, Asking

PROGRAM: Final = str(Path(__file__).with_name("child.py"))
STOP_S: Final = 40.0
"""The time from SIGTERM to SIGKILL. A process that stops in order ends its records, and has time limits of its own."""
LINE_BYTES_MAX: Final = 65_536
REST_ASKED_EVERY_S: Final = 0.5
"""The time between two questions whether the group is at rest. Each question reads the whole control log."""


class _Member:
    """A process that has reported, or the process that came back under its name. ``process``: the number in the system;
    ``told``: the last report; ``started``: the process that the demo started, either this one or the service that keeps
    it.
    """

    def __init__(self, process: int, started: Process) -> None:
        self.process, self.started, self.told = process, started, Told()
        self.before = 0
        """The records done before an expulsion or a kill: a process that is back counts from 0."""
        self.is_paused = False
        self._killed: int | None = None
        """The number of the process that the demo killed last."""

    @property
    def done(self) -> int:
        """The number of records done under this name."""
        return self.before + self.told.records_done

    def take(self, said: Said) -> None:
        """Take a report."""
        if said.process == self._killed:  # the report was on its way when the process was killed
            return
        if said.process != self.process or said.told.records_done < self.told.records_done:
            self.before += self.told.records_done
        self.process, self.told = said.process, said.told

    def kill(self) -> None:
        """Kill the process. A service may start another process under the same name."""
        self.send(signal.SIGKILL)
        self.before += self.told.records_done
        self.told, self._killed = Told(), self.process

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process. Nothing happens when the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, number)


class Members:
    """The processes of a run, from their start to their end.

    ``place``: the folder with the course; each act is written there before it happens. ``spec``: the specification of
    each process, without the name. ``partitions``: of all sources. ``before``: the number of records done in earlier
    starts; ``expected``: of all records. ``on_progress`` is called with the number of records done.
    """

    def __init__(
        self,
        place: DemoPlace,
        spec: ChildSpec,
        asking: Asking,
        *,
        partitions: Sequence[tuple[str, int]],
        before: int,
        expected: int,
        on_progress: Callable[[int], None],
    ) -> None:
        self.place, self.spec, self.asking, self.partitions = place, spec, asking, partitions
        self.course = place.state.course
        self.before, self.expected, self.on_progress = before, expected, on_progress
        self.failure: str | None = None
        """The first unexpected end of a started process, in words."""
        self.exit_code = 0
        """The exit code of that process; 1 if a signal ended it."""
        self._started: dict[str, Process] = {}
        """The processes that the demo has started and that have not ended, by name."""
        self._members: dict[str, _Member] = {}
        """All processes that have reported, by name."""
        self._rest_read_s = 0.0
        self._signals = 0
        self._ending: asyncio.Task[None] | None = None
        self._is_to_end = asyncio.Event()

    @property
    def done(self) -> int:
        """About the number of records of both sources that are done. Records that a killed process had done and not
        committed count twice.
        """
        return self.before + sum(member.done for member in self._members.values())

    def _at_work(self) -> dict[str, _Member]:
        """The processes at work, by name. A killed process counts while its service lives: it is started again."""
        started = self._started.values()
        return {name: member for name, member in self._members.items() if member.started in started}

    async def run(self) -> None:
        """Run the processes until all have ended: because all records are done, because of a signal, or because a
        process has failed.
        """
        self._keep_quiet()
        try:
            with self._hearing_signals():
                async with asyncio.TaskGroup() as group:
                    for name in self.course.started():
                        await self._begin(name, group)
                    if self.course.is_restless:
                        group.create_task(self._ask_for_moves())
                    while self._started:
                        await asyncio.sleep(0.1)
                        await self._look(group)
                    self._is_to_end.set()
        finally:
            self._kill_all()
            self._keep_quiet()
            if self._ending is not None:
                self._ending.cancel()

    async def _begin(self, name: str, group: asyncio.TaskGroup) -> None:
        spec = msgspec.structs.replace(self.spec, name=name)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, PROGRAM, msgspec.json.encode(spec).decode()),
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_BYTES_MAX,
            pass_fds=() if self.place.lock is None else (self.place.lock,),
            start_new_session=True,  # an interrupt from the terminal goes to the demo alone; it stops all in order
        )
        say(f"{name} is process {process.pid}{f', which keeps {spec.processes} others' if self.course.is_kept else ''}")
        self._started[name] = process
        group.create_task(self._read_reports(name, process))
        if self._ending is not None:  # all were told to stop while this process was started
            process.terminate()

    async def _read_reports(self, name: str, process: Process) -> None:
        """Take the reports of a started process, and of the processes that it keeps, until its end."""
        assert process.stdout is not None, "it is a pipe"
        while line := await process.stdout.readline():
            with contextlib.suppress(msgspec.DecodeError):  # the line was cut off, because the pipe was full
                said = msgspec.json.decode(line, type=Said)
                self._members.setdefault(said.name, _Member(said.process, process)).take(said)
        code = await process.wait()
        del self._started[name]
        is_of_demo = self._ending is not None or name in [act.name for act in self.course.acts_of("kill")]
        if code == 0 or (is_of_demo and code < 0):  # a signal of the demo ended it
            return
        if self.failure is None:
            how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
            self.failure = f"{name} ended with {how}"
            self.exit_code = max(1, code)
            self.stop()

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """Show the progress, and take the next step of the course if it is due."""
        members = self._at_work()
        if self._ending is not None or not members:
            return
        self.on_progress(self.done)
        told = {name: member.told for name, member in members.items()}
        is_paused = any(member.is_paused for member in members.values())
        looked = Looked(self.done / self.expected, told, "", is_paused)
        is_early = not do_all_work(told, self.course, places=len(self.partitions))
        _mark(self.place.loud, there=not is_early and not is_quiet(looked.share, self.course))
        self._slow_down(late(looked.share, self.course))
        if (step := due(looked, self.course, places=len(self.partitions))) is None:
            return
        try:
            looked = await self._looked_at_logs(step, looked)
        except BrokerError:  # the next look reads again
            return
        if may_be(step, looked, self.course):
            act = act_of(step, looked, self.course, int(time.time() * 1000))
            if act.deed in ("join", "scale") or act.name in self._at_work():
                await self._do(act, group)

    async def _looked_at_logs(self, step: Step, looked: Looked) -> Looked:
        """``looked`` with the facts from the logs that a step needs. Raises BrokerError."""
        if step.deed == "join":
            return looked
        if step.deed != "scale":
            return looked._replace(coordinator=(await self.asking.group()).coordinator)
        if (now_s := time.monotonic()) - self._rest_read_s < REST_ASKED_EVERY_S:
            return looked
        self._rest_read_s = now_s
        return looked._replace(at_rest=(await self.asking.group()).at_rest)

    def _keep_quiet(self) -> None:
        """Remove both files that the processes look at: no unrest, and full speed."""
        _mark(self.place.loud, there=False)
        _mark(self.place.slow, there=False)

    def _slow_down(self, step: Step | None) -> None:
        """Slow the work down while ``step`` is late; None: no step is late. The first call for a step prints a line."""
        if step is not None and not self.place.slow.exists():
            say(f"the work slows down until this is done: {step.label}")
        _mark(self.place.slow, there=step is not None)

    async def _do(self, act: Act, group: asyncio.TaskGroup) -> None:
        self.course = msgspec.structs.replace(self.course, acts=(*self.course.acts, act))
        self.place.put(course=self.course)
        names, at = ", ".join(act.names), f"at {act.share:.0%}"
        if act.deed == "kill":
            member = self._members[act.name]
            member.kill()
            then = "its service starts it again" if self.course.is_kept else "it does not come back"
            say(f"killed {names} ({act.role}, process {member.process}) {at}; {then}")
        elif act.deed == "pause":
            say(f"paused {names} ({act.role}) {at} for {act.seconds:.0f} s")
            group.create_task(self._pause(act))
        elif act.deed == "join" or act.is_up:
            say(f"added {names} {at}")
            for name in act.names:
                await self._begin(name, group)
        else:  # they work on until other processes have their state
            say(f"told {names} to stop {at}; the processes that stay: {len(self.course.names())}")
            for name in act.names:
                if name in self._started:
                    self._started[name].terminate()

    async def _pause(self, act: Act) -> None:
        """Suspend a process for ``act.seconds``, or until all shall end."""
        member = self._members[act.name]
        member.is_paused = True
        member.send(signal.SIGSTOP)
        await self._wait(act.seconds)
        member.is_paused = False
        member.told = msgspec.structs.replace(member.told, workers=0)  # other members may own its ranges by now
        if act.name in self._at_work():
            member.send(signal.SIGCONT)

    async def _ask_for_moves(self) -> None:
        """Ask for moves in intervals, until shortly before the end."""
        number = 0
        while not self._is_to_end.is_set() and self.done / self.expected <= NEAR_END:
            await self._wait(ASKED_EVERY_S)
            told = {name: m.told for name, m in self._at_work().items() if m.told.records_done and not m.is_paused}
            if told and not self._is_to_end.is_set():
                with contextlib.suppress(BrokerError):  # the next move will do as well
                    await self.asking.move(number, self.partitions, told)
                number += 1

    async def _wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until all shall end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_to_end.wait()

    def stop(self) -> None:
        """Begin to end all processes in order."""
        self._is_to_end.set()
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        for process in self._started.values():
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a paused process gets SIGTERM only when it goes on
        await asyncio.sleep(STOP_S)
        self._kill_all()

    def _kill_all(self) -> None:
        """Kill all processes, the started ones first: a service would start its processes again."""
        at_work = self._at_work().values()
        for process in self._started.values():
            process.kill()
        for member in at_work:
            member.send(signal.SIGKILL)

    @contextlib.contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)

        def on_signal() -> None:
            self._signals += 1
            if self._signals > 1:
                self._kill_all()
                return
            say("Stopping in order; once more aborts.")
            self.stop()

        for number in numbers:
            loop.add_signal_handler(number, on_signal)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def _mark(path: Path, *, there: bool) -> None:
    """Make or remove a file that all processes look at."""
    if there:
        path.touch()
    else:
        path.unlink(missing_ok=True)
