"""Several processes that work together, watched by the demo: it starts them, kills, pauses and adds some, and ends all.

None outlives the demo for long: each has the other end of a pipe, and notices when the demo is gone.
"""

import asyncio
import contextlib
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import msgspec

from ..brokers.protocol import BrokerError
from .child import LOUD, QUIET, ChildSpec
from .course import (
    MANY,
    Act,
    Course,
    Joined,
    Killed,
    Looked,
    Paused,
    Told,
    act_of,
    do_all_work,
    due,
    is_near_end,
    is_quiet,
)
from .saying import Say
from .wishes import ASKED_EVERY_S, Wish, wish_of

MODULE: Final = "keylanes.demo.child"
STOP_S: Final = 40.0
"""From SIGTERM to SIGKILL; a process that stops in order ends its records, and has time limits of its own."""
LINE_BYTES_MAX: Final = 65_536


class _Member:
    """A process: what it told last, and whether it is to end before the others."""

    def __init__(self, name: str, process: Process) -> None:
        self.name, self.process = name, process
        self.told = Told()
        self.before = 0
        """Records that it did as a member that was expelled: it counts anew when it is back."""
        self.is_killed = self.is_paused = False
        self.is_quiet = True

    async def lines(self) -> None:
        """Take what it tells, to the end of it."""
        assert self.process.stdout is not None, "it is a pipe"
        while line := await self.process.stdout.readline():
            with contextlib.suppress(msgspec.DecodeError):  # cut off, because the pipe was full
                told = msgspec.json.decode(line, type=Told)
                self.before += self.told.records_done if told.records_done < self.told.records_done else 0
                self.told = told

    @property
    def done(self) -> int:
        """How many records it has done."""
        return self.before + self.told.records_done

    def hush(self, *, is_quiet: bool) -> None:
        """Tell its unrest."""
        if is_quiet != self.is_quiet and self.process.stdin is not None and not self.process.stdin.is_closing():
            self.is_quiet = is_quiet
            self.process.stdin.write(QUIET if is_quiet else LOUD)


class Members:
    """``spec_of`` says what a process of a name gets, ``descriptors`` are those that each inherits. ``places``: the
    source partitions; ``before``: how many records were done earlier, of ``expected``.

    ``on_progress`` hears how many records are done, ``on_course`` what is about to happen, before it happens.
    ``coordinator``: finds out who that is. ``ask``: asks for the n-th move, of many processes.
    """

    def __init__(
        self,
        course: Course,
        spec_of: Callable[[str], ChildSpec],
        *,
        descriptors: Sequence[int],
        places: Sequence[tuple[str, int]],
        before: int,
        expected: int,
        coordinator: Callable[[], Awaitable[str]],
        ask: Callable[[int, Wish], Awaitable[None]],
        on_progress: Callable[[int], None],
        on_course: Callable[[Course], None],
        say: Say,
    ) -> None:
        self.course, self.spec_of, self.descriptors, self.places = course, spec_of, descriptors, places
        self.before, self.expected = before, expected
        self.coordinator, self.ask = coordinator, ask
        self.on_progress, self.on_course, self.say = on_progress, on_course, say
        self.failure: str | None = None
        """The first process that ended as it should not, in words."""
        self.exit_code = 0
        """Of that process; 1 if a signal ended it."""
        self._members: dict[str, _Member] = {}
        """At work."""
        self._gone = 0
        """Records that were done by those that are not."""
        self._signals = 0
        self._ending: asyncio.Task[None] | None = None
        self._is_to_end = asyncio.Event()

    @property
    def done(self) -> int:
        """How many records of both sources are done, about: what a killed process had not committed counts twice."""
        return self.before + self._gone + sum(member.done for member in self._members.values())

    async def run(self) -> None:
        """Until all have ended: at the level, because of a signal, or because one has failed."""
        try:
            with self._hearing_signals():
                async with asyncio.TaskGroup() as group:
                    for name in self.course.names():
                        await self._begin(name, group)
                    if self.course.members >= MANY:
                        group.create_task(self._operate())
                    while self._members:
                        await asyncio.sleep(0.1)
                        await self._look(group)
                    self._is_to_end.set()
        finally:
            for member in self._members.values():
                member.process.kill()
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
        member = self._members[name] = _Member(name, process)
        group.create_task(self._follow(member))
        if self._ending is not None:  # meanwhile all were told to stop
            process.terminate()

    async def _follow(self, member: _Member) -> None:
        """To its end."""
        await member.lines()
        code = await member.process.wait()
        del self._members[member.name]
        self._gone += member.done
        is_told = member.is_killed or self._ending is not None
        if code == 0 or (is_told and code < 0):
            return
        if self.failure is None:
            how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
            self.failure = f"{member.name} ended with {how}"
            self.exit_code = max(1, code)
            self.stop()

    async def _look(self, group: asyncio.TaskGroup) -> None:
        """Show how far all are, and do what the course says."""
        if self._ending is not None or not self._members:
            return
        self.on_progress(self.done)
        told = {name: member.told for name, member in self._members.items()}
        is_paused = any(member.is_paused for member in self._members.values())
        looked = Looked(self.done / self.expected, told, "", is_paused)
        is_early = not do_all_work(told, self.course, places=len(self.places))
        for member in self._members.values():
            member.hush(is_quiet=is_early or is_quiet(looked.share, self.course))
        if (step := due(looked, self.course, places=len(self.places))) is None:
            return
        if step.deed != "join":
            try:
                looked = looked._replace(coordinator=await self.coordinator())
            except BrokerError:  # it is asked again at the next look
                return
        act = act_of(step, looked, self.course, int(time.time() * 1000))
        if isinstance(act, Joined) or act.name in self._members:
            await self._do(act, group)

    async def _do(self, act: Act, group: asyncio.TaskGroup) -> None:
        self.course = msgspec.structs.replace(self.course, acts=(*self.course.acts, act))
        self.on_course(self.course)
        match act:
            case Killed():
                self._members[act.name].is_killed = True
                self._members[act.name].process.kill()
                self.say(f"killed {act.name} ({act.role}) at {act.share:.0%}; it does not come back")
            case Paused():
                self.say(f"paused {act.name} ({act.role}) at {act.share:.0%} for {act.seconds:.0f} s")
                group.create_task(self._pause(self._members[act.name], act.seconds))
            case Joined():
                await self._begin(act.name, group)
                self.say(f"added {act.name} at {act.share:.0%}")

    async def _pause(self, member: _Member, seconds: float) -> None:
        """Suspend a process for so long, or until all are to end."""
        member.is_paused = True
        member.process.send_signal(signal.SIGSTOP)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_to_end.wait()
        member.is_paused = False
        if member.process.returncode is None:
            member.process.send_signal(signal.SIGCONT)

    async def _operate(self) -> None:
        """Ask for moves until shortly before the end."""
        number = 0
        while not self._is_to_end.is_set() and not is_near_end(self.done / self.expected):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASKED_EVERY_S):
                    await self._is_to_end.wait()
            told = {name: m.told for name, m in self._members.items() if m.told.records_done and not m.is_paused}
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
        for member in self._members.values():
            member.process.terminate()
            member.process.send_signal(signal.SIGCONT)  # who is paused hears it then
        await asyncio.sleep(STOP_S)
        for member in self._members.values():
            member.process.kill()

    @contextlib.contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)

        def on_signal() -> None:
            self._signals += 1
            if self._signals == 1:
                self.say("Stopping in order; once more aborts.")
                self.stop()
                return
            for member in self._members.values():
                member.process.kill()

        for number in numbers:
            loop.add_signal_handler(number, on_signal)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
