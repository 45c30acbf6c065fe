"""The parent of several processes of an application: starts children, restarts them, and ends with the last child.

The parent runs no handler and is no member of the group. The parent starts its own program anew for each child (spawn:
a fork would share sockets and locks). A crashed child is started again, after a wait that doubles; the parent reports
the death at once, and the group does not wait for the end of the child's session. A child that ends for a cause that
would come again ends all children. A signal to stop goes to all children; a second signal has them release at once, a
third signal aborts. The parent kills a child that does not end within the time of a stop.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from typing import Final, Literal, TypeAlias

from ...brokers.protocol import BrokerError
from ...errors import KeylanesError, SettingsError
from ...group.requests import Expulsion, make_expulsion_of_dead
from ...group.signals_fold import COORDINATORS
from ...offsets.control import Control
from ..connect import connect
from ..outside_requests import GroupLogs, requester_text, send_request
from ..settings import Settings
from .child import ABORT, AT_ONCE, CAUSE, COMES_BACK, START_FOLDER, STOP, VARIABLE
from .restarts import BACK_OFF_S, Then, after, next_wait_s

logger = logging.getLogger("keylanes")

PROCESSES_MAX: Final = 256
CORES: Final = "cores"
STOP_SPARE_MS: Final = 5_000
"""The time between the limit of a stop and the kill."""

Processes: TypeAlias = int | Literal["cores"]


def count_of(processes: object) -> int:
    """The number of processes that the argument means. Raises SettingsError."""
    if processes == CORES:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if type(processes) is not int or not 1 <= processes <= PROCESSES_MAX:
        raise SettingsError(
            f"processes is a whole number from 1 to {PROCESSES_MAX}, or {CORES!r} for one on each core; seen "
            f"{processes!r}: leave it out for one process"
        )
    return processes


def run_processes(app: str, broker: object, settings: Settings, processes: Processes, *, until_level: bool) -> None:
    """Run an application in several processes until all have ended for good. Raises SettingsError where several
    processes are impossible; SystemExit with an exit code other than 0.
    """
    count = count_of(processes)
    if sys.platform == "win32":
        raise SettingsError(
            f"processes={processes!r}: one parent of several processes needs a Unix system; seen {sys.platform}: start "
            "the program several times instead"
        )
    if not isinstance(broker, str) or broker.startswith("embedded:"):
        raise SettingsError(
            f"several processes need a Kafka that all of them reach; seen broker={broker!r} and processes="
            f'{processes!r}: give its address, App(…, broker="kafka://host:port")'
        )
    if code := Parent(app, broker, settings, count, until_level=until_level).run():
        raise SystemExit(code)


class _Child:
    """A started child. ``birth``: the last birth that the child told; ``comes_back``: the group expelled the child, and
    a restart may help, as the child said; ``cause``: the error that ends the child, as the child said.
    """

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self.birth: str | None = None
        self.cause: str | None = None
        self.comes_back = False
        self._writer = writer
        self._hearing = asyncio.ensure_future(self._hear(reader))

    @classmethod
    async def start(cls, number: int, of: int) -> "_Child":
        """Start a child. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            environ = {**os.environ, VARIABLE: f"{number}/{of}/{theirs.fileno()}"}
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *sys.orig_argv[1:],
                env=environ,
                cwd=START_FOLDER,
                stdin=DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl+C reaches the parent alone, and the parent passes the order on
            )
        return cls(process, *await asyncio.open_unix_connection(sock=ours))

    def say(self, what: bytes) -> None:
        """Tell the child to stop: STOP, AT_ONCE or ABORT."""
        self._writer.write(what)

    async def wait_for_end(self) -> int:
        """Wait for the child's end; returns the exit code."""
        code = await self.process.wait()
        await self._hearing
        self._writer.close()
        return code

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):  # the child has ended
            while line := await reader.readline():
                if (text := line.decode().strip()) == COMES_BACK:
                    self.comes_back = True
                elif text.startswith(CAUSE):
                    self.cause = json.loads(text.removeprefix(CAUSE))
                else:
                    self.birth = text


class Parent:
    """The parent of ``count`` processes of an application. ``address``: the broker's address."""

    def __init__(self, app: str, address: str, settings: Settings, count: int, *, until_level: bool) -> None:
        self.app = app
        self.address = address
        self.settings = settings
        self.count = count
        self.until_level = until_level
        self._children: dict[int, _Child] = {}
        self._reports: set[asyncio.Task[None]] = set()
        self._stops = asyncio.Event()
        self._stops_sent = 0
        """How often all children were told to stop; each time the word is more urgent."""
        self._code = 0
        """The exit code of this process."""
        self._cause: str | None = None
        """The cause that ended a child, and then all children."""

    def run(self) -> int:
        """Run until all children have ended for good; returns the exit code."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for sent in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sent, self._stop, sent)
        logger.info("%s: starting %d processes", self.app, self.count)
        async with asyncio.TaskGroup() as group:
            for number in range(1, self.count + 1):
                group.create_task(self._keep_running(number))
        for report in self._reports:
            report.cancel()
        if self._cause is not None:  # logged behind all lines of the children
            logger.critical("%s stops: %s", self.app, self._cause)
        return self._code

    async def _keep_running(self, number: int) -> None:
        """Run a child, and restart it, until no restart is to follow."""
        loop, wait_s = asyncio.get_running_loop(), BACK_OFF_S
        while not self._stops.is_set():
            began_s = loop.time()
            child = self._children[number] = await _Child.start(number, self.count)
            if self._stops.is_set():  # the order came during the start
                child.say(STOP)
            logger.info("%s: process %d of %d is %d", self.app, number, self.count, child.process.pid)
            code = await child.wait_for_end()
            lived_s = loop.time() - began_s
            del self._children[number]
            then = self._after(number, child, code)
            if then is not Then.AGAIN:
                return
            logger.warning(
                "%s: process %d %s; it is started again in %.1f s", self.app, number, exit_code_text(code), wait_s
            )
            try:
                async with asyncio.timeout(wait_s):
                    await self._stops.wait()
            except TimeoutError:
                wait_s = next_wait_s(wait_s, lived_s)

    def _after(self, number: int, child: _Child, code: int) -> Then:
        """Decide what follows the end of a child, and begin it: the end of all children, or the report of a death."""
        then = after(
            code,
            has_begun=child.birth is not None,
            stops=self._stops.is_set(),
            until_level=self.until_level,
            may_come_back=child.comes_back,
        )
        if then is Then.ALL_END:
            self._code, self._cause = code, child.cause or f"process {number} {exit_code_text(code)}"
            logger.error("%s: process %d %s, and so all of them end", self.app, number, exit_code_text(code))
            self._stop(signal.SIGTERM)
        elif code and self._stops.is_set():
            self._code = self._code or (code if code > 0 else 128 - code)  # by a signal: the number that a shell gives
            logger.error("%s: process %d %s while it stopped", self.app, number, exit_code_text(code))
        elif code and child.birth is not None:
            report = asyncio.ensure_future(self._report(number, child.birth))
            self._reports.add(report)
            report.add_done_callback(self._reports.discard)
        return then

    def _stop(self, sent: signal.Signals) -> None:
        """Pass a signal on to all children."""
        self._stops.set()
        match self._stops_sent:
            case 0:
                what, then = STOP, "stopping all processes in order; once more releases at once"
                limit_ms = self.settings.stop_limit_ms + STOP_SPARE_MS
                asyncio.get_running_loop().call_later(limit_ms / 1000, self._kill)
            case 1:
                what, then = AT_ONCE, "all processes release at once; once more aborts"
            case _:
                what, then = ABORT, "aborting all processes"
        self._stops_sent += 1
        logger.info("%s: %s: %s", self.app, sent.name, then)
        for child in self._children.values():
            child.say(what)

    def _kill(self) -> None:
        """Kill the children that are left at the limit of a stop."""
        for number, child in self._children.items():
            logger.error("%s: process %d did not end within its limits, and is killed", self.app, number)
            child.process.kill()

    # --- dead children -----------------------------------------------------------------------------------------------

    async def _report(self, number: int, birth: str) -> None:
        """Tell the group of a child's death until the child is expelled; the group need not wait for the session."""
        request_id, by = os.urandom(8).hex(), requester_text(f"the parent of process {number}")

        def make(control: Control) -> Expulsion:
            return make_expulsion_of_dead(control, request_id, by, birth)

        broker = connect(self.address, self.settings, self.app, "parent")
        try:
            await broker.open()
            logs = await GroupLogs.of(self.app, broker, self.settings)
            timeout_s = 2 * self.settings.session_timeout_ms / 1000
            await send_request(logs, make, request_id, timeout_s, logger.debug, also=(COORDINATORS,))
        except (KeylanesError, BrokerError) as error:
            logger.warning("%s: that process %d has died was not told to the group: %s", self.app, number, error)
        finally:
            await broker.close()


def exit_code_text(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}" if code else "ended in order"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
