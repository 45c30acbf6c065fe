"""The demo's tests start it as a process of its own, and kill it where a test wants it killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Start = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def demo(tmp_path: Path) -> Start:
    """Run ``keylanes demo`` with arguments in a folder of its own; with ``kill_at`` until it has taken so many steps."""

    def start(*arguments: str, kill_at: int | None = None) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", "-m", "keylanes.runtime.cli", "demo", *arguments]
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
        line = ""
        with os.fdopen(read) as lines:
            for number, line in enumerate(lines, 1):
                if number == steps:
                    process.send_signal(signal.SIGKILL)
                    break
            code = process.wait()
    return subprocess.CompletedProcess(command, code, line.strip(), (folder / "killed.out").read_text())
