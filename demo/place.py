"""The demo's folder: what an interrupted demo leaves behind, so that the next one goes on with it.

    demo-<broker>/state.json      the run, its size, and the phase it is in      lock          held while a demo runs
                  broker-<run>/   the broker's data                             demo.log      what the runtime said
                  copies-<run>/   local copies of state, beside a Kafka         plane.png, report.json   the results

A demo without a readable state, with a finished one, or of another size starts afresh. The data of each run have a
folder of their own: a broker that is still stopping never writes into the data of the next run.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from ..errors import StoreError

Phase = Literal["load", "process", "audit", "finished"]
"""What is to be done next."""


class DemoState(msgspec.Struct, frozen=True):
    """``run`` names the data of this run; ``rows`` is its size."""

    run: str
    rows: int
    phase: Phase
    version: Literal[1] = 1


class DemoPlace:
    """A folder that one demo at a time uses. ``open`` first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.state = DemoState("", 0, "finished")

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

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other demos out; raises StoreError when one is in."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor, self.folder)
            yield
        finally:
            os.close(descriptor)

    def open(self, rows: int, *, reset: bool) -> bool:
        """Take up what was interrupted, else start afresh; True when it goes on. Only while ``held``."""
        found = self._read()
        if found is not None and found.phase != "finished" and found.rows == rows and not reset:
            self.state = found
            return True
        # The state goes first: killed half way, the next start finds none and clears the rest away.
        (self.folder / "state.json").unlink(missing_ok=True)
        for left in (self.picture, self.report, self.log):
            left.unlink(missing_ok=True)
        for data in (*self.folder.glob("broker-*"), *self.folder.glob("copies-*")):
            shutil.rmtree(data, ignore_errors=True)
        self.state = DemoState(uuid.uuid4().hex[:8], rows, "load")
        self._write()
        return False

    def reached(self, phase: Phase) -> None:
        """The phases before this one are through."""
        self.state = msgspec.structs.replace(self.state, phase=phase)
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


def _lock(descriptor: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows; there only the embedded broker's own lock keeps a second one out
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"another demo is running in {folder}; wait for its end, or stop it") from None
