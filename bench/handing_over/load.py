"""Fills the source at a steady rate, in phases. Called as ``-m handing_over.load ORDER.json``.

Each key belongs to one partition. A phase has a rate, and draws its keys; with ``is_once`` it takes each key once, and
then it waits. A value has the time at which it is due by the system's monotonic clock, in ns. SIGUSR1 begins the next
phase, SIGTERM ends: then it tells how many records each key has. A record that comes late comes all the same: none is
left out.
"""

import json
import random
import signal
import sys
import time
from array import array
from pathlib import Path
from typing import Any, NamedTuple

from keylanes.keyrange.hashing import point_of_key
from rig.counts import write_counts
from rig.records import SEED, key_bytes, partition_of, value_of

TICK_S = 0.002
AHEAD_MAX = 5_000
"""Records that are made before the producer's answers are looked at."""


class Key(NamedTuple):
    """One of the source's keys."""

    number: int
    name: bytes
    partition: int
    point: int


def keys_of(count: int, partitions: int) -> list[Key]:
    """All keys of a source."""
    names = [key_bytes(number) for number in range(count)]
    return [Key(n, name, partition_of(name, partitions), point_of_key(name)) for n, name in enumerate(names)]


class Load:
    """A running load."""

    def __init__(self, order: dict[str, Any]) -> None:
        from confluent_kafka import Producer

        self.order = order
        self.producer = Producer({"bootstrap.servers": order["bootstrap"], "linger.ms": 2, "enable.idempotence": True})
        self.keys = keys_of(order["keys"], order["partitions"])
        self.counts = array("I", bytes(4 * order["keys"]))
        self.records = 0
        self.phase, self.is_over = 0, False
        self._draw = random.Random(SEED).random

    def next_phase(self, *_: object) -> None:
        """SIGUSR1."""
        self.phase = min(self.phase + 1, len(self.order["phases"]) - 1)

    def end(self, *_: object) -> None:
        """SIGTERM."""
        self.is_over = True

    def run(self) -> None:
        """All phases, until the end."""
        while not self.is_over:
            self._run_phase(self.phase)
        self.producer.flush()
        write_counts(Path(self.order["counts"]), self.counts)
        say({"event": "result", "records": self.records})

    def _run_phase(self, number: int) -> None:
        phase = self.order["phases"][number]
        keys, per_second, is_once = self.keys, phase["per_second"], phase["is_once"]
        began_s, sent, before = time.monotonic(), 0, self.records
        say({"event": "phase", "number": number, "at_s": began_s})
        while self.phase == number and not self.is_over:
            due = min(int((time.monotonic() - began_s) * per_second), sent + AHEAD_MAX)
            due = min(due, len(keys)) if is_once else due
            for place in range(sent, due):
                key = keys[place] if is_once else keys[int(self._draw() * len(keys))]
                self._send(key, int((began_s + place / per_second) * 1e9))
            if is_once and sent < due == len(keys):
                self.producer.flush()
                say({"event": "all once", "records": self.records})
            sent = due
            self.producer.poll(TICK_S)
        seconds = time.monotonic() - began_s
        say({"event": "phase ended", "number": number, "seconds": seconds, "records": self.records - before})

    def _send(self, key: Key, due_ns: int) -> None:
        number = self.counts[key.number]
        value = value_of(key.number, number, due_ns, self.records)
        while True:
            try:
                self.producer.produce(self.order["topic"], value, key.name, partition=key.partition)
            except BufferError:
                self.producer.poll(0.1)
            else:
                break
        self.counts[key.number] = number + 1
        self.records += 1


def say(event: dict[str, Any]) -> None:
    """Tell the harness."""
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    load = Load(json.loads(Path(sys.argv[1]).read_text()))
    signal.signal(signal.SIGUSR1, load.next_phase)
    signal.signal(signal.SIGTERM, load.end)
    load.run()
