"""The demo's tests start it as a process of its own, and kill it where a test wants it killed. Its modules import each
other by bare names, as they do when it runs.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

Start = Callable[..., "subprocess.CompletedProcess[str]"]
FLIGHTS = Path(__file__).resolve().parents[3] / "examples" / "flights"
sys.path[:0] = [str(FLIGHTS)]


@pytest.fixture
def demo(tmp_path: Path) -> Start:
    """Run the demo in a folder of its own; with ``kill_at`` only until it has taken so many steps."""

    def start(*arguments: str, kill_at: int | None = None) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(FLIGHTS / "demo.py"), *arguments]
        if kill_at is None:
            return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return killed_after(command, kill_at, tmp_path)

    return start


def killed_after(command: list[str], steps: int, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run until that many lines of steps have come, then kill -9; the last line is what it was at."""
    read, write = os.pipe()
    with open(folder / "killed.out", "w") as out:
        process = subprocess.Popen(
            [*command, "--steps", f"/dev/fd/{write}"], cwd=folder, stdout=out, stderr=out, pass_fds=[write]
        )
        os.close(write)
        with os.fdopen(read) as lines:
            taken = list(islice(lines, steps))
            if len(taken) == steps:
                process.send_signal(signal.SIGKILL)
            code = process.wait()
    last = taken[-1].strip() if taken else ""
    return subprocess.CompletedProcess(command, code, last, (folder / "killed.out").read_text())
