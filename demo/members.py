"""Several processes that work together, watched by the demo: it starts them, kills, pauses and adds some, and ends all.

It starts each of them, or a service that keeps them and starts again who was killed. It hears from each process who it
is. None outlives the demo for long: what it starts has the other end of a pipe, and notices when the demo is gone;
those of a service notice when the service is.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ..brokers.protocol import BrokerError
from .child import ChildSpec, Said
from .course import (
    Act,
    Course,
    Joined,
    Killed,
    Looked,
    Paused,
    Scaled,
    Step,
    Told,
    act_of,
    do_all_work,
    due,
    is_near_end,
    is_quiet,
    late,
    may_be,
)
from .saying import Say
from .wishes import ASKED_EVERY_S, Wish, wish_of

MODULE: Final = "keylanes.demo.child"
STOP_S: Final = 40.0
"""From SIGTERM to SIGKILL; a process that stops in order ends its records, and has time limits of its own."""
LINE_BYTES_MAX: Final = 65_536
REST_ASKED_EVERY_S: Final = 0.5
"""Whether a group is at rest stands in its log, which is read anew each time."""


class _Started:
    """What the demo started: one process, or the service that keeps all. ``members``: by name, at work in it."""

    def __init__(self, name: str, process: Process) -> None:
        self.name, self.process = name, process
        self.members: dict[str, _Member] = {}

    def kill(self) -> None:
        """All of it, the service first: it would start the others again."""
        self.process.kill()
        for member in self.members.values():
            if member.process != self.process.pid:
                member.send(signal.SIGKILL)


class _Member:
    """A process of a name, or the one in its place: its number and what it told last."""

    def __init__(self, name: str, process: int) -> None:
        self.name, self.process = name, process
        self.told = Told()
        self.before = 0
        """Records that it did before it was expelled or killed: it counts anew when it is back."""
        self.is_paused = False
        self.killed_s: float | None = None
        """When, on the clock of the loop, while it is not back at work."""
        self._dead: int | None = None

    def take(self, said: Said) -> None:
        """What it tells."""
        if said.process == self._dead:  # it was on its way when it was killed
            return
        if said.process != self.process or said.told.records_done < self.told.records_done:
            self.before += self.told.records_done
        self.process, self.told = said.process, said.told

    def kill(self, now_s: float) -> None:
        """For good, unless somebody starts it again."""
        self.send(signal.SIGKILL)
        self.before += self.told.records_done
        self.told, self._dead, self.killed_s = Told(), self.process, now_s

    def resume(self) -> None:
        """Of what it told before the pause nothing need be so: others may have its ranges."""
        self.is_paused = False
        self.told = msgspec.structs.replace(self.told, workers=0)

    @property
    def is_back(self) -> bool:
        """Whether it was killed and is at work again."""
        return self.killed_s is not None and self.told.workers > 0

    @property
    def done(self) -> int:
        """How many records it has done."""
        return self.before + self.told.records_done

    def send(self, number: signal.Signals) -> None:
        """Nothing happens when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, number)


class Members:
    """``spec_of`` says what that which is started under a name gets, ``descriptors`` are those that it inherits.
    ``loud``: a file that is there while the unrest may go on; ``slow``: one that is there while a step is late and the
    work is to slow down. ``places``: the source partitions; ``before``: how many records were done earlier, of
    ``expected``.

    ``on_progress`` hears how many records are done, ``on_course`` what is about to happen, before it happens.
    ``coordinator``: finds out who that is; ``at_rest``: the names of a group at rest. ``ask``: asks for the n-th move,
    of many processes.
    """

    def __init__(
        self,
        course: Course,
        spec_of: Callable[[str], ChildSpec],
        *,
        descriptors: Sequence[int],
        loud: Path,
        slow: Path,
        places: Sequence[tuple[str, int]],
        before: int,
        expected: int,
        coordinator: Callable[[], Awaitable[str]],
        at_rest: Callable[[], Awaitable[frozenset[str]]],
        ask: Callable[[int, Wish], Awaitable[None]],
        on_progress: Callable[[int], None],
        on_course: Callable[[Course], None],
        say: Say,
    ) -> None:
        self.course, self.spec_of, self.descriptors, self.places = course, spec_of, descriptors, places
        self.loud, self.slow, self.before, self.expected = loud, slow, before, expected
        self.coordinator, self.at_rest, self.ask = coordinator, at_rest, ask
        self.on_progress, self.on_course, self.say = on_progress, on_course, say
        self.failure: str | None = None
        """The first of what was started that ended as it should not, in words."""
        self.exit_code = 0
        """Of it; 1 if a signal ended it."""
        self._started: list[_Started] = []
        """And has not ended."""
        self._gone = 0
        """Records that were done by those that are not at work any more."""
        self._are_named = False
        self._rest_asked_s = 0.0
        self._signals = 0
        self._ending: asyncio.Task[None] | None = None
        self._is_to_end = asyncio.Event()

    @property
    def done(self) -> int:
        """How many records of both sources are done, about: what a killed process had not committed counts twice."""
        return self.before + self._gone + sum(member.done for member in self._members().values())

    def _members(self) -> dict[str, _Member]:
        """Those that have told something and are at work, or are started again."""
        return {name: member for started in self._started for name, member in started.members.items()}

    async def run(self) -> None:
        """Until all have ended: at the level, because of a signal, or because one has failed."""
        self._keep_quiet()
        try:
            with self._hearing_signals():
                async with asyncio.TaskGroup() as group:
                    for name in self.course.started():
                        await self._begin(name, group)
                    if self.course.is_restless:
                        group.create_task(self._operate())
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
        command = [sys.executable, "-P", "-m", MODULE, msgspec.json.encode(self.spec_of(name)).decode()]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            limit=LINE_BYTES_MAX,
            pass_fds=self.descriptors,
            start_new_session=True,  # an interrupt from the terminal is for the demo alone, which stops them in order
        )
        started = _Started(name, process)
        self._started.append(started)
        group.create_task(self._follow(started))
        if self._ending is not None:  # meanwhile all were told to stop
            process.terminate()

    async def _follow(self, started: _Started) -> None:
        """To its end."""
        await self._hear(started)
        code = await started.process.wait()
        self._started.remove(started)
        self._gone += sum(member.done for member in started.members.values())
        is_told = self._ending is not None or started.name in [act.name for act in self.course.killed]
        if code == 0 or (is_told and code < 0):
            return
        if self.failure is None:
            how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
            self.failure = f"{started.name} ended with {how}"
            self.exit_code = max(1, code)
            self.stop()

    async def _hear(self, started: _Started) -> None:
        """What its processes tell, until the last one has ended."""
        assert started.process.stdout is not None, "it is a pipe"
        while line := await started.process.stdout.readline():
            with contextlib.suppress(msgspec.DecodeError):  # cut off, because the pipe was full
                said = msgspec.json.decode(line, type=Said)
                started.members.setdefault(said.name, _Member(said.name, said.process)).take(said)

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """Show how far all are, and do what the course says."""
        members = self._members()
        if self._ending is not None or not members:
            return
        self._tell_who_works(members)
        self.on_progress(self.done)
        told = {name: member.told for name, member in members.items()}
        is_paused = any(member.is_paused for member in members.values())
        looked = Looked(self.done / self.expected, told, "", is_paused)
        is_early = not do_all_work(told, self.course, places=len(self.places))
        _mark(self.loud, there=not is_early and not is_quiet(looked.share, self.course))
        self._slow_down(late(looked.share, self.course))
        if (step := due(looked, self.course, places=len(self.places))) is None:
            return
        try:
            looked = await self._looked_at_logs(step, looked)
        except BrokerError:  # it is asked again at the next look
            return
        if not may_be(step, looked, self.course):
            return
        act = act_of(step, looked, self.course, int(time.time() * 1000))
        if isinstance(act, Joined | Scaled) or act.name in self._members():
            await self._do(act, group)

    async def _looked_at_logs(self, step: Step, looked: Looked) -> Looked:
        """With what a step has to know of the group. Raises BrokerError."""
        match step.deed:
            case "join":
                return looked
            case "scale":
                now_s = asyncio.get_running_loop().time()
                if now_s - self._rest_asked_s < REST_ASKED_EVERY_S:
                    return looked
                self._rest_asked_s = now_s
                return looked._replace(at_rest=await self.at_rest())
            case _:
                return looked._replace(coordinator=await self.coordinator())

    def _keep_quiet(self) -> None:
        """No unrest, and nothing that is waited for."""
        _mark(self.loud, there=False)
        _mark(self.slow, there=False)

    def _slow_down(self, step: Step | None) -> None:
        """While this step is late; it is told once."""
        if step is not None and not self.slow.exists():
            self.say(f"the work slows down until this is done: {step.label}")
        _mark(self.slow, there=step is not None)

    def _tell_who_works(self, members: dict[str, _Member]) -> None:
        """Once all are there; and who is back."""
        if not self._are_named and members.keys() >= set(self.course.names()):
            self._are_named = True
            numbers = ", ".join(f"{name} is process {members[name].process}" for name in sorted(members))
            service = (
                f"; the service that keeps them is process {self._started[0].process.pid}"
                if self.course.is_kept
                else ""
            )
            self.say(f"{numbers}{service}")
        for member in members.values():
            if member.killed_s is not None and member.is_back:
                seconds = asyncio.get_running_loop().time() - member.killed_s
                member.killed_s = None
                self.say(f"{member.name} is back at work after {seconds:.1f} s, as process {member.process}")

    async def _do(self, act: Act, group: asyncio.TaskGroup) -> None:
        self.course = msgspec.structs.replace(self.course, acts=(*self.course.acts, act))
        self.on_course(self.course)
        match act:
            case Killed():
                member = self._members()[act.name]
                member.kill(asyncio.get_running_loop().time())
                then = "its service starts it again" if self.course.is_kept else "it does not come back"
                self.say(f"killed {act.name} ({act.role}, process {member.process}) at {act.share:.0%}; {then}")
            case Paused():
                self.say(f"paused {act.name} ({act.role}) at {act.share:.0%} for {act.seconds:.0f} s")
                group.create_task(self._pause(self._members()[act.name], act.seconds))
            case Joined():
                await self._begin(act.name, group)
                self.say(f"added {act.name} at {act.share:.0%}")
            case Scaled():
                await self._scale(act, group)

    async def _scale(self, act: Scaled, group: asyncio.TaskGroup) -> None:
        """Start processes, or tell them to stop: these work on until others have their state."""
        count, names = len(self.course.names()), ", ".join(act.names)
        if act.is_up:
            for name in act.names:
                await self._begin(name, group)
            self.say(f"added {names} at {act.share:.0%}: {count} processes")
            return
        for started in self._started:
            if started.name in act.names:
                started.process.terminate()
        self.say(f"told {names} to stop at {act.share:.0%}; the processes that stay: {count}")

    async def _pause(self, member: _Member, seconds: float) -> None:
        """Suspend a process for so long, or until all are to end."""
        member.is_paused = True
        member.send(signal.SIGSTOP)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_to_end.wait()
        member.resume()
        if self._members().get(member.name) is member:
            member.send(signal.SIGCONT)

    async def _operate(self) -> None:
        """Ask for moves until shortly before the end."""
        number = 0
        while not self._is_to_end.is_set() and not is_near_end(self.done / self.expected):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASKED_EVERY_S):
                    await self._is_to_end.wait()
            told = {name: m.told for name, m in self._members().items() if m.told.records_done and not m.is_paused}
            if told and not self._is_to_end.is_set():
                with contextlib.suppress(BrokerError):  # there is another one to ask for
                    await self.ask(number, wish_of(number, self.places, told))
                number += 1

    def stop(self) -> None:
        """End all in order."""
        self._is_to_end.set()
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        for started in self._started:
            started.process.terminate()
            started.process.send_signal(signal.SIGCONT)  # who is paused hears it then
        await asyncio.sleep(STOP_S)
        self._kill_all()

    def _kill_all(self) -> None:
        for started in self._started:
            started.kill()

    @contextlib.contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)

        def on_signal() -> None:
            self._signals += 1
            if self._signals == 1:
                self.say("Stopping in order; once more aborts.")
                self.stop()
                return
            self._kill_all()

        for number in numbers:
            loop.add_signal_handler(number, on_signal)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def _mark(path: Path, *, there: bool) -> None:
    """A file that all processes look at."""
    if there:
        path.touch()
    else:
        path.unlink(missing_ok=True)
