"""Processes of the application under chaos: started, watched by their notes, killed, stopped and let go on."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from . import chaos_app
from .chaos_app import Told

LOOK_S = 0.003
LIMIT_S = 120.0
"""Whatever is waited for comes sooner, on a busy machine too."""

FENCED, LOG_REFUSED, UNAVAILABLE, INVARIANT_BROKEN = 3, 4, 6, 70
"""Exit codes (errors.py)."""


class ChaosError(AssertionError):
    """Something is not as it was promised, or does not come."""


def say(line: str) -> None:
    """What happens, for whoever looks on (pytest -s)."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Process:
    """One process. ``told`` is complete but for the notes; ``slot`` is the number of its folder of state."""

    def __init__(self, told: Told, folder: Path, number: int, slot: int, script: str = chaos_app.__file__) -> None:
        self.number, self.slot = number, slot
        self._notes = folder / f"notes-{number}"
        self._notes.touch()
        self.output = folder / f"output-{number}"
        self.told = msgspec.structs.replace(told, notes=str(self._notes))
        self._read = self._notes.open("rb")
        self._rest = b""
        self.last = ""
        """The step that was noted last, as of the last look."""
        self._counts: Counter[str] = Counter()
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, script, msgspec.json.encode(self.told).decode()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
            )

    def look(self) -> None:
        """Read the steps that were noted since the last look."""
        *lines, self._rest = (self._rest + self._read.read()).split(b"\n")
        if lines:
            steps = [line.decode() for line in lines]
            self._counts.update(steps)
            self.last = steps[-1]

    def count(self, step: str) -> int:
        """How often a step was noted by now."""
        self.look()
        return self._counts[step]

    def wait(self, is_so: Callable[[], bool], what: str, seconds: float = LIMIT_S) -> bool:
        """Wait until it is so, having looked; False when the process ended instead. Raises ChaosError in the end."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            has_ended = self.code is not None  # looked at before the notes: those are complete then
            self.look()
            if is_so():
                return True
            if has_ended:
                return False
            time.sleep(LOOK_S)
        raise ChaosError(f"process {self.number}: no {what} within {seconds:.0f} s; its end:\n{self.tail()}")

    def wait_more(self, step: str, times: int = 1) -> bool:
        """Wait until a step was noted so many times more than by now."""
        wanted = self.count(step) + times
        return self.wait(lambda: self._counts[step] >= wanted, f"{times} more {step}")

    @property
    def code(self) -> int | None:
        """The exit code; None while it lives."""
        return self._process.poll()

    def ended(self, seconds: float = LIMIT_S) -> int:
        """Wait for its end; the exit code."""
        self.wait(lambda: False, "end", seconds)
        assert self.code is not None
        return self.code

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        self._process.send_signal(number)

    def close(self) -> None:
        """End it, in whatever state it is."""
        if self.code is None:
            self._process.kill()
            self._process.wait()
        self._read.close()

    def tail(self, characters: int = 3_000) -> str:
        """The end of what it said."""
        return self.output.read_text(errors="replace")[-characters:]
