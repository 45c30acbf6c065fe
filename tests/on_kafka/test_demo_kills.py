"""The demo on a real Kafka is killed, in the load phase too: the audit still finds every record once.

Ranges are split, merged, released and granted all the while, and the state is what Spark computes from the flights.
Rounds of chaos (test_chaos.py) carry the numbers: here are fewer flights than the demo has, and few kills.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..tiers.marks import tier

FLIGHTS = 30_000
HANDLER_MS = 25
KILLS = (("load transact", 0.3), ("transact", 3.0))
"""In which step, so many seconds after the first step behind the start."""
RUN_SECONDS_MIN = 5
WAIT_SECONDS = 240
END_SECONDS = 600
CHANGES_MIN = 5
"""Of each kind: splits, merges, releases, grants."""
STATE_KEYS_MIN = 2_000
SCRIPT = """
import sys
from pathlib import Path
from keylanes.demo.main import DemoOptions, run_demo
folder, steps, rows, handler_ms = sys.argv[1:]
options = {"folder": Path(folder), "steps": Path(steps), "rows": int(rows), "handler_ms": float(handler_ms)}
sys.exit(run_demo(DemoOptions(broker="kafka", **options)))
"""


class Demo:
    """A demo in a folder of its own, started as often as it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.steps_file = folder / "demo", folder / "steps"
        self.steps_file.touch()
        self._read, self._rest, self._steps = self.steps_file.open(), "", list[str]()
        self.process: subprocess.Popen[bytes] | None = None
        self.output = (folder / "output").open("ab")

    def start(self) -> None:
        """Start it, or let it go on."""
        arguments = [str(self.folder), str(self.steps_file), str(FLIGHTS), str(HANDLER_MS)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", SCRIPT, *arguments], stdout=self.output, stderr=self.output
        )

    def steps(self) -> list[str]:
        """The steps that were noted so far."""
        *lines, self._rest = (self._rest + self._read.read()).split("\n")
        self._steps += [line.partition(" ")[2] for line in lines]
        return self._steps

    def wait_for(self, step: str, seen: int, seconds: float) -> None:
        """Wait until ``step`` is the last that was noted, some time after the first one behind those ``seen``."""
        now = time.monotonic()
        until, begins = now + WAIT_SECONDS, 0.0
        assert self.process is not None
        while (now := time.monotonic()) < until:
            steps = self.steps()
            if len(steps) > seen:
                begins = begins or now
                if now - begins >= seconds and steps[-1] == step:
                    return
            assert self.process.poll() is None, f"the demo ended by itself, waiting for {step}: {self.tail()}"
            time.sleep(0.001)
        pytest.fail(f"no step {step} within {WAIT_SECONDS} s: {self.tail()}")

    def kill(self, step: str, seen: int, seconds: float) -> None:
        """Kill -9 in a step: suspended first, so that it can't leave the step in between."""
        assert self.process is not None
        while True:
            self.wait_for(step, seen, seconds)
            self.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
            if self.steps()[-1] == step:
                self.process.kill()
                self.process.wait()
                return
            self.process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """Let it run to its end; the exit code."""
        assert self.process is not None
        return self.process.wait(END_SECONDS)

    def close(self) -> None:
        """Its files."""
        self._read.close()
        self.output.close()

    def tail(self) -> str:
        """The end of what it said."""
        self.output.flush()
        return Path(self.output.name).read_text()[-2_000:]


@tier("proof", "demo-kills")
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(1_800)
def test_kills(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Killed by kill -9 in the load and in an open transaction: 0 lost, 0 doubled, all state right, says Spark."""
    demo = Demo(tmp_path)
    try:
        for step, seconds in KILLS:
            seen = len(demo.steps())
            demo.start()
            demo.kill(step, seen, seconds)
        demo.start()
        assert demo.end() == 0, demo.tail()
    finally:
        if demo.process is not None and demo.process.poll() is None:
            demo.process.kill()
        demo.close()
    report = json.loads((demo.folder / "report.json").read_text())
    assert report["is_right"] is True, report
    assert report["figures"]["seconds"] >= RUN_SECONDS_MIN
    changes = report["figures"]["changes"]
    record_property("changes", changes)
    assert min(changes.values()) >= CHANGES_MIN, changes
    checks = {check["name"]: check for check in report["audit"]["checks"]}
    assert checks["state"]["violations"] == 0
    assert checks["state"]["checked"] >= STATE_KEYS_MIN
