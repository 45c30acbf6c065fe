"""The demo on a real Kafka is killed, in the load phase too: the audit still finds every record once.

Ranges are split, merged, released and granted all the while, and the state is what Spark computes from the flights.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

KILLS_IN_LOAD = 2
KILLS = 4
HANDLER_MS = 25
LIFE_SECONDS = (1.0, 4.0)
"""From the first step after a start to the kill."""
RUN_SECONDS_MIN = 20
WAIT_SECONDS = 240
END_SECONDS = 600
CHANGES_MIN = 10
"""Of each kind: splits, merges, releases, grants."""
STATE_KEYS_MIN = 4_000


class Demo:
    """A demo in a folder of its own, started as often as it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.steps_file = folder / "demo", folder / "steps"
        self.steps_file.touch()
        self.process: subprocess.Popen[bytes] | None = None
        self.output = (folder / "output").open("ab")

    def start(self) -> None:
        """Start it, or let it go on."""
        arguments = ["demo", "--broker", "kafka", "--folder", str(self.folder), "--steps", str(self.steps_file)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "keylanes.runtime.cli", *arguments],
            env={**os.environ, "KEYLANES_DEMO_HANDLER_MS": str(HANDLER_MS)},
            stdout=self.output,
            stderr=self.output,
        )

    def steps(self) -> list[str]:
        """The steps that were noted so far."""
        return [line.partition(" ")[2] for line in self.steps_file.read_text().splitlines()]

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

    def kill(self) -> str:
        """Kill -9; the step it fell in."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return self.steps()[-1]

    def end(self) -> int:
        """Let it run to its end; the exit code."""
        assert self.process is not None
        return self.process.wait(END_SECONDS)

    def tail(self) -> str:
        """The end of what it said."""
        self.output.flush()
        return Path(self.output.name).read_text()[-2_000:]


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_kills(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Four kill -9, at least one in an open transaction: 0 lost, 0 doubled, every key of state right, says Spark."""
    chance = random.Random(10)
    demo = Demo(tmp_path)
    fell_in: list[str] = []
    try:
        for number in range(KILLS):
            seen = len(demo.steps())
            demo.start()
            if number < KILLS_IN_LOAD:
                demo.wait_for("load transact", seen, 0.3)
            elif number % 2:
                demo.wait_for("transact", seen, chance.uniform(*LIFE_SECONDS))
            else:
                demo.wait_for(chance.choice(["take", "committed", "applied"]), seen, chance.uniform(*LIFE_SECONDS))
            fell_in.append(demo.kill())
        demo.start()
        assert demo.end() == 0, demo.tail()
    finally:
        if demo.process is not None and demo.process.poll() is None:
            demo.process.kill()
        demo.output.close()
    record_property("kills fell in", fell_in)
    sys.stdout.write(f"the kills fell in: {', '.join(fell_in)}\n")
    assert "load transact" in fell_in[:KILLS_IN_LOAD]
    assert "transact" in fell_in, f"no kill fell inside an open transaction: {fell_in}"
    report = json.loads((demo.folder / "report.json").read_text())
    assert report["is_right"] is True, report
    assert report["figures"]["seconds"] >= RUN_SECONDS_MIN
    changes = report["figures"]["changes"]
    record_property("changes", changes)
    assert min(changes.values()) >= CHANGES_MIN, changes
    checks = {check["name"]: check for check in report["audit"]["checks"]}
    assert checks["state"]["violations"] == 0
    assert checks["state"]["checked"] >= STATE_KEYS_MIN
