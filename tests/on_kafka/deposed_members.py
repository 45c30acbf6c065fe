"""The processes and the load of a run: members as ``keylanes run`` starts them, the dropper, and a loader."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaError, Producer

from .deposed_cluster import CLIENT_SETTINGS
from .deposed_network import CLIENTS, inside_of

HERE = Path(__file__).parent
KEYLANES = Path(sys.executable).with_name("keylanes")
RATE_PER_S = 40.0
FLUSH_S = 60.0


class AppProcess:
    """A process of the application, in the namespace of its member. ``environment``: variables beside ours."""

    def __init__(self, name: str, environment: Mapping[str, str], output: Path, *options: str) -> None:
        self.name, self._output = name, output
        command = inside_of(name, str(KEYLANES), "run", "deposed_app:app", *options)
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command, cwd=HERE, env={**os.environ, "PYTHONPATH": "", **environment}, stdin=subprocess.DEVNULL,
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    @property
    def code(self) -> int | None:
        """The exit code; None while the process lives."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        self._process.send_signal(number)

    def ended(self, seconds: float) -> int | None:
        """Wait for the end; the exit code, or None when the process had to be killed."""
        try:
            return self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            self.close()
            return None

    def close(self) -> None:
        """End the process, in whatever state it is."""
        if self.code is None:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """The last CRITICAL line of the process, else the last line; "" when there is no line."""
        lines = self._output.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if "CRITICAL" in line), lines[-1] if lines else "")[:300]


class Dropping:
    """The dropper at work on a member (see deposed_drop.py), from the constructor to ``stop``."""

    def __init__(self, member: str, output: Path) -> None:
        self._output = output
        command = inside_of(member, sys.executable, "-I", "-S", str(HERE / "deposed_drop.py"), *CLIENTS)
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    def stop(self) -> list[str]:
        """End the dropper; the deeds, each kind with a count."""
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        counts: dict[str, int] = {}
        for line in self._output.read_text(errors="replace").splitlines():
            what = json.loads(line)["what"] if line.startswith("{") else line
            counts[what] = counts.get(what, 0) + 1
        return [f"{count} times: {what}" for what, count in counts.items()]


class Place(NamedTuple):
    """Partition and key of a record."""

    partition: int
    key: bytes


class Orders:
    """A thread writes the ids 0, 1, 2, … to places in turn, at ``RATE_PER_S``, while not paused."""

    def __init__(self, bootstrap: str, topic: str, places: Sequence[Place]) -> None:
        self._topic, self._places, self._all = topic, places, places
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 0,  # for ever
                **CLIENT_SETTINGS,
            }
        )
        self._flows, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)
        self._failed: list[str] = []
        self.written = 0

    def start(self) -> None:
        """Begin to write."""
        self._flows.set()
        self._thread.start()

    def pause(self) -> None:
        """Write nothing until ``resume``."""
        self._flows.clear()

    def resume(self, places: Sequence[Place]) -> None:
        """Write on, to some of the places."""
        self._places = places
        self._flows.set()

    def finish(self) -> None:
        """End the thread, and write one more record to each place.

        Raises RuntimeError when a record was not acknowledged.
        """
        self.stop()
        for place in self._all:
            self._write(place)
        if left := self._producer.flush(FLUSH_S):
            raise RuntimeError(f"the loader's broker did not acknowledge {left} records: {self._failed[:3]}")
        if self._failed:
            raise RuntimeError(f"the loader's broker refused records: {self._failed[:3]}")

    def flush(self) -> None:
        """Wait until all records up to now are acknowledged, for a limited time."""
        self._producer.flush(FLUSH_S)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(1 / RATE_PER_S):
            if self._flows.is_set():
                self._write(self._places[self.written % len(self._places)])
            self._producer.poll(0)

    def _write(self, place: Place) -> None:
        self._producer.produce(
            self._topic, b"%d" % self.written, key=place.key, partition=place.partition, on_delivery=self._hear
        )
        self.written += 1

    def _hear(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._failed.append(str(error))


def wait_until(at: float) -> None:
    """Wait for a moment of ``time.time``. The test is about the length of a state."""
    while (left := at - time.time()) > 0:
        time.sleep(min(left, 0.1))
