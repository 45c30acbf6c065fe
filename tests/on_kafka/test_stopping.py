"""Stopping a process, as those see it who send it signals: in order, in time, and nothing is done twice."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from keylanes.devkafka.server import KafkaServer
from keylanes.errors import BrokerUnavailable

from ..stage import stoppable
from ..stage.ground import Ground
from ..stage.spoken import Spoken
from ..tiers.marks import tier

ABORTED = 130
WAIT_S = 60.0


class Running:
    """The process ``stoppable.py`` and what it has said so far."""

    def __init__(self, ground: Ground, kind: str, until: str = "on", **settings: int) -> None:
        values = {
            "commit_interval_ms": 50, "default_api_timeout_ms": 5_000, "broker_retry_ms": 10_000,
            "close_timeout_ms": 1_000, "fetch_records_max": 50, "buffer_bytes_max": 16 * 1_500, **settings,
        }  # fmt: skip
        arguments = [ground.address, ground.name, ground.source, ground.late, kind, json.dumps(values), until]
        self.process = subprocess.Popen(
            [sys.executable, stoppable.__file__, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._spoken = Spoken(self.process)
        self.lines, self.errors = self._spoken.lines, self._spoken.errors

    def wait_for(self, is_reached: Callable[[], bool]) -> None:
        """Wait until what was said fulfils a condition."""
        self._spoken.wait_for(is_reached, WAIT_S)

    def handled(self) -> list[int]:
        """The values that the handler was through with, in its order."""
        return [int(line.split()[1]) for line in list(self.lines) if line.startswith("handled")]

    def end(self, seconds_max: float) -> int:
        """The exit code; fails when the process takes longer than so many seconds."""
        started = time.monotonic()
        try:
            code = self.process.wait(seconds_max)
        finally:
            self.process.kill()
            self.process.wait()
            self._spoken.end(WAIT_S)
        assert time.monotonic() - started < seconds_max
        return code


@pytest.fixture
def folder(tmp_path: Path) -> Ground:
    """The embedded broker: where only the process matters."""
    return Ground(f"embedded:{tmp_path / 'data'}")


def fill(ground: Ground, records: int, stuck: bool = False) -> None:
    """Values 0, 1, … under 40 keys; the first, on demand, under the key that the handler is stuck with."""
    values = [(b"k%d" % (i % 40), b"%d" % i) for i in range(records)]
    if stuck:
        values[0] = (stoppable.STUCK, b"0")
    ground.fill(values)


def published(ground: Ground) -> list[int]:
    """What is visible of the outputs, in order."""
    return [int(value or b"") for value in ground.values(ground.late)]


def test_sigterm_loses_and_repeats_nothing(ground: Ground) -> None:
    """All that was handled is committed when the process ends with 0; the next one runs the rest, and only that."""
    fill(ground, 3_000)
    first = Running(ground, "plain")
    first.wait_for(lambda: len(first.handled()) > 200)
    first.process.terminate()
    assert first.end(20) == 0, first.errors[-10:]
    assert len(first.handled()) < 3_000, "it stopped in the middle"
    assert sorted(published(ground)) == sorted(first.handled())
    second = Running(ground, "plain", "level")
    assert second.end(60) == 0, second.errors[-10:]
    assert sorted(first.handled() + second.handled()) == list(range(3_000))
    values = published(ground)
    assert sorted(values) == list(range(3_000))
    for key in range(40):
        of_key = [value for value in values if value % 40 == key]
        assert of_key == sorted(of_key)


def test_backlog_beyond_the_drain_limit_waits_for_the_next_start(folder: Ground) -> None:
    """Queues are drained up to ``drain_timeout_ms`` only; the exit code is 0 and what was done is committed."""
    fill(folder, 20_000)
    run = Running(folder, "plain", buffer_bytes_max=1 << 26, fetch_records_max=20_000, drain_timeout_ms=300)
    run.wait_for(lambda: len(run.handled()) > 50)
    run.process.terminate()
    assert run.end(10) == 0, run.errors[-10:]
    assert len(run.handled()) < 20_000
    assert sorted(published(folder)) == sorted(run.handled())


@pytest.mark.parametrize("kind", ["loop", "thread", "stubborn", "thread-awaited"])
def test_handler_that_never_ends(folder: Ground, kind: str) -> None:
    """It does not keep the process beyond the limits, whether it waits on the loop, in a thread, or refuses to be
    cancelled; the others' work is committed, its own is tried again.
    """
    fill(folder, 400, stuck=True)
    run = Running(folder, kind, drain_timeout_ms=300)
    run.wait_for(lambda: "stuck" in run.lines and len(run.handled()) > 200)
    run.process.terminate()
    assert run.end(10) == 0, run.errors[-10:]
    (said,) = [line for line in run.errors if "drain_timeout_ms" in line]
    assert "1 running record did not end within 0.3 s (drain_timeout_ms) and was dropped" in said
    assert "it runs again at the next start" in said
    assert sorted(published(folder)) == sorted(run.handled())
    again = Running(folder, "plain", "level")
    assert again.end(60) == 0, again.errors[-10:]
    assert sorted(published(folder)) == list(range(400))
    assert 0 in again.handled()


def says(run: Running, what: str) -> Callable[[], bool]:
    """Whether a line of its log has these words."""
    return lambda: any(what in line for line in run.errors)


def test_second_signal_releases_at_once(ground: Ground) -> None:
    """A second SIGTERM does not wait for the drain: what is done is committed, and it ends in order; what runs is run
    again by the next one.
    """
    fill(ground, 400, stuck=True)
    run = Running(ground, "loop", drain_timeout_ms=60_000)
    run.wait_for(lambda: "stuck" in run.lines and len(run.handled()) > 100)
    run.process.terminate()
    run.wait_for(says(run, "SIGTERM: stopping in order; once more releases at once"))
    run.process.terminate()
    assert run.end(10) == 0, run.errors[-10:]
    assert says(run, "dropped: nothing of that is kept")()
    assert sorted(published(ground)) == sorted(run.handled())
    again = Running(ground, "plain", "level")
    assert again.end(60) == 0, again.errors[-10:]
    assert sorted(published(ground)) == list(range(400))


def test_third_signal_aborts(ground: Ground) -> None:
    """It waits for nothing, also not for a handler that ignores its cancellation: 130; nothing doubles when it is
    started again.
    """
    fill(ground, 400, stuck=True)
    run = Running(ground, "stubborn", drain_timeout_ms=60_000, close_timeout_ms=8_000)
    run.wait_for(lambda: "stuck" in run.lines and len(run.handled()) > 100)
    run.process.terminate()
    run.wait_for(says(run, "SIGTERM: stopping in order; once more releases at once"))
    run.process.terminate()
    run.wait_for(says(run, "SIGTERM again: releasing at once; once more aborts"))
    run.process.terminate()
    assert run.end(15) == ABORTED, run.errors[-10:]
    again = Running(ground, "plain", "level")
    assert again.end(60) == 0, again.errors[-10:]
    assert sorted(published(ground)) == list(range(400))


def test_sigint_stops_in_order(folder: Ground) -> None:
    """Ctrl+C is a stop like SIGTERM."""
    fill(folder, 3_000)
    run = Running(folder, "plain")
    run.wait_for(lambda: len(run.handled()) > 100)
    run.process.send_signal(2)
    assert run.end(20) == 0, run.errors[-10:]
    assert sorted(published(folder)) == sorted(run.handled())


def test_sigterm_while_it_starts() -> None:
    """A process that still waits for its broker stops at once."""
    run = Running(Ground("kafka://127.0.0.1:1"), "plain", default_api_timeout_ms=60_000, broker_retry_ms=60_000)
    run.wait_for(lambda: any("127.0.0.1:1" in line for line in run.errors))
    run.process.terminate()
    assert run.end(5) == 0, run.errors[-10:]


@pytest.mark.broker
@tier("proof", "starting-brokers")
def test_sigterm_when_the_broker_is_gone(tmp_path: Path) -> None:
    """All steps have one limit together: the process ends within that, its exit code says that the last commit is
    missing, and when the broker is back nothing was lost or doubled.
    """
    server = KafkaServer(tmp_path / "kafka")
    server.start()
    try:
        ground = Ground(f"kafka://{server.bootstrap}")
        fill(ground, 3_000)
        run = Running(ground, "plain", drain_timeout_ms=1_000, broker_retry_ms=60_000)
        run.wait_for(lambda: len(run.handled()) > 200)
        server.kill()
        before = len(run.handled())
        run.wait_for(lambda: len(run.handled()) > before or any("failed" in line for line in run.errors))
        run.process.terminate()
        # the drain, then all the rest, and the end of Python
        assert run.end(1 + 1 + 3) == BrokerUnavailable.exit_code, run.errors[-10:]
        server.start()
        again = Running(ground, "plain", "level")
        assert again.end(60) == 0, again.errors[-10:]
        assert sorted(published(ground)) == list(range(3_000))
    finally:
        server.stop()
