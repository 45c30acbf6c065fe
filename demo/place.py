"""The demo's folder: what an interrupted demo leaves behind, so that the next one goes on with it.

    demo-<broker>/state.json      the run, its size and course, and its phase    lock          held while a demo runs
                  broker-<run>/   the broker's data                             demo.log      what the runtime said
                  copies-<run>/   local copies of state, beside a Kafka         plane.png, report.json   the results
                  loud            while several processes may disturb their ranges
                  slow            while they are to slow down, because a step of the course is late

A demo without a readable state, with a finished one, of another size or with other processes starts afresh.
The data of each run have a folder of their own: a broker that is still stopping never writes into the data of the next
run. The processes of a demo hold its lock, too: the next one waits for those that a killed demo has left.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from ..errors import StoreError
from .course import Course

ALONE: Final = Course()
Phase = Literal["load", "process", "audit", "finished"]
"""What is to be done next."""


class DemoState(msgspec.Struct, frozen=True):
    """``run`` names the data of this run; ``rows`` is its size; ``course``: what became of its processes."""

    run: str
    rows: int
    phase: Phase
    course: Course = Course()
    version: Literal[4] = 4


class DemoPlace:
    """A folder that one demo at a time uses. ``open`` first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
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

    @property
    def picture(self) -> Path:
        """The plane."""
        return self.folder / "plane.png"

    @property
    def report(self) -> Path:
        """The figures and the verdict."""
        return self.folder / "report.json"

    @property
    def log(self) -> Path:
        """What the runtime said."""
        return self.folder / "demo.log"

    @property
    def loud(self) -> Path:
        """There while several processes may disturb who works on what."""
        return self.folder / "loud"

    @property
    def slow(self) -> Path:
        """There while several processes are to slow down."""
        return self.folder / "slow"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other demos out; raises StoreError when one is in."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor, self.folder)
            self.lock = descriptor
            yield
        finally:
            self.lock = None
            os.close(descriptor)

    def open(self, rows: int, *, reset: bool, course: Course = ALONE) -> bool:
        """Take up what was interrupted, else start afresh; True when it goes on. Only while ``held``.

        ``course``: as a new run begins.
        """
        found = self._read()
        if found is not None and _is_of(found, rows, course) and found.phase != "finished" and not reset:
            self.state = found
            return True
        # The state goes first: killed half way, the next start finds none and clears the rest away.
        (self.folder / "state.json").unlink(missing_ok=True)
        for left in (self.picture, self.report, self.log):
            left.unlink(missing_ok=True)
        for data in (*self.folder.glob("broker-*"), *self.folder.glob("copies-*")):
            shutil.rmtree(data, ignore_errors=True)
        self.state = DemoState(uuid.uuid4().hex[:8], rows, "load", course)
        self._write()
        return False

    def reached(self, phase: Phase) -> None:
        """The phases before this one are through."""
        self.state = msgspec.structs.replace(self.state, phase=phase)
        self._write()

    def went(self, course: Course) -> None:
        """So far the run has gone."""
        self.state = msgspec.structs.replace(self.state, course=course)
        self._write()

    def _read(self) -> DemoState | None:
        try:
            return msgspec.json.decode((self.folder / "state.json").read_bytes(), type=DemoState)
        except (OSError, msgspec.MsgspecError):
            return None

    def _write(self) -> None:
        partial = self.folder / "state.json.partial"
        partial.write_bytes(msgspec.json.encode(self.state))
        partial.replace(self.folder / "state.json")


def _is_of(found: DemoState, rows: int, course: Course) -> bool:
    """Whether a run began with so many rows and processes."""
    before = found.course
    return (found.rows, before.members, before.is_kept) == (rows, course.members, course.is_kept)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows; there only the embedded broker's own lock keeps a second one out
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if _is_there(os.pread(descriptor, 20, 0)):
            raise StoreError(f"another demo is running in {folder}; wait for its end, or stop it") from None
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # it was killed, and its processes are about to notice
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _is_there(pid: bytes) -> bool:
    """Whether the demo that wrote its number into the lock is alive; one that has not written it yet is."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except (PermissionError, ValueError):
        return True
    return True
