"""The demo's folder: an interrupted demo leaves its data here, and the next start goes on with these data.

The next start begins afresh where the state is missing, unreadable or finished, and where the number of flights or the
processes differ. The data of each run have a folder of their own: a broker that is still stopping never writes into
the data of the next run. The processes of a demo hold the lock of the folder, too: the next start waits for the
processes that a killed demo has left.
"""

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from course import Course
from saying import say

Phase = Literal["load", "process", "audit", "finished"]
"""The phase to be done next."""


class DemoState(msgspec.Struct, frozen=True):
    """The state of a run. ``run``: the name of its data; ``rows``: the number of flights; ``course``: its course."""

    run: str
    rows: int
    phase: Phase
    course: Course = Course()
    version: Literal[5] = 5


class DemoPlace:
    """A folder for one demo at a time. ``open`` comes first. Two files tell all processes what to do: while ``loud``
    exists, the unrest of several processes may begin changes; while ``slow`` exists, the processes work slowly.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder = folder.absolute()
        self.picture, self.report, self.log = folder / "plane.png", folder / "report.json", folder / "demo.log"
        self.loud, self.slow = folder / "loud", folder / "slow"
        self.state = DemoState("", 0, "finished")
        self.lock: int | None = None
        """The descriptor of the lock, while this process has the lock."""

    @property
    def data(self) -> Path:
        """The folder for the data of the broker of this run."""
        return self.folder / f"broker-{self.state.run}"

    @property
    def copies(self) -> Path:
        """The folder for the local copies of state of this run."""
        return self.folder / f"copies-{self.state.run}"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other demos out of the folder. Waits for the end of another demo, and of processes of a killed demo."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for the end of a demo in {self.folder}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            self.lock = descriptor
            yield
        finally:
            self.lock = None
            os.close(descriptor)

    def open(self, rows: int, course: Course, *, reset: bool) -> bool:
        """Go on with an interrupted run, else start afresh; returns whether a run goes on. Only while ``held``.

        ``course``: the course of a new run.
        """
        found = self.state if reset else self._read()
        is_same = (found.rows, found.course.members, found.course.is_kept) == (rows, course.members, course.is_kept)
        if found.phase != "finished" and is_same:
            self.state = found
            return True
        # The state goes first: after a kill in between, the next start finds no state and deletes the rest.
        for left in (self.folder / "state.json", self.picture, self.report, self.log):
            left.unlink(missing_ok=True)
        for data in (*self.folder.glob("broker-*"), *self.folder.glob("copies-*")):
            shutil.rmtree(data, ignore_errors=True)
        self.put(run=uuid.uuid4().hex[:8], rows=rows, phase="load", course=course)
        return False

    def put(self, **changes: object) -> None:
        """Change the state and write it, whole or not at all."""
        self.state = msgspec.structs.replace(self.state, **changes)
        partial = self.folder / "state.json.partial"
        partial.write_bytes(msgspec.json.encode(self.state))
        partial.replace(self.folder / "state.json")

    def _read(self) -> DemoState:
        try:
            return msgspec.json.decode((self.folder / "state.json").read_bytes(), type=DemoState)
        except (OSError, msgspec.MsgspecError):
            return self.state
