"""The demo's folder: what an interrupted demo leaves behind, so that the next one goes on with it.

A demo without a readable state, with a finished one, of another size or with other processes starts afresh.
The data of each run have a folder of their own: a broker that is still stopping never writes into the data of the next
run. The processes of a demo hold its lock, too: the next one waits for those that a killed demo has left.
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
"""What is to be done next."""


class DemoState(msgspec.Struct, frozen=True):
    """``run`` names the data of this run; ``rows`` is its size; ``course``: what became of its processes."""

    run: str
    rows: int
    phase: Phase
    course: Course = Course()
    version: Literal[5] = 5


class DemoPlace:
    """A folder that one demo at a time uses. ``open`` first. ``loud`` is there while several processes may disturb who
    works on what, ``slow`` while they are to slow down.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder = folder.absolute()
        self.picture, self.report, self.log = folder / "plane.png", folder / "report.json", folder / "demo.log"
        self.loud, self.slow = folder / "loud", folder / "slow"
        self.state = DemoState("", 0, "finished")
        self.lock: int | None = None
        """The descriptor of the lock, while it is held here."""

    @property
    def data(self) -> Path:
        """Where the broker of this run keeps its data."""
        return self.folder / f"broker-{self.state.run}"

    @property
    def copies(self) -> Path:
        """Where the application of this run keeps copies of its state."""
        return self.folder / f"copies-{self.state.run}"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other demos out: wait until one that is in has ended, and the processes that a killed one has left."""
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
        """Take up what was interrupted, else start afresh; True when it goes on. Only while ``held``.

        ``course``: as a new run begins.
        """
        found = self.state if reset else self._read()
        is_same = (found.rows, found.course.members, found.course.is_kept) == (rows, course.members, course.is_kept)
        if found.phase != "finished" and is_same:
            self.state = found
            return True
        # The state goes first: killed half way, the next start finds none and clears the rest away.
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
