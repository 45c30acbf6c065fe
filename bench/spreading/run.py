"""One run: a source that was filled before, a handler that computes, and so many processes of one parent."""

import json
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from rig.drivers import Driver, run_peer
from rig.ground import Ground
from rig.loader import counts_of, keys_of_order
from rig.notes import Notes, Unproven, notes_of, prove
from rig.witness import WrongRun

KEYS = 10_000
LOOK_S, RUN_S_MAX = 0.1, 180.0
NOTES_MORE = 1_000
THREADS = 16


class Arm(NamedTuple):
    """``spin_us`` of processor time per record, on so many source partitions, in so many processes."""

    spin_us: int
    partitions: int
    processes: int

    @property
    def name(self) -> str:
        """As it is called in the book."""
        return f"{self.spin_us} µs, {self.partitions} partitions, {self.processes} processes"


def run(ground: Ground, arm: Arm, records: int, suffix: str) -> dict[str, Any]:
    """The figures of an arm. Raises WrongRun."""
    source = {"distribution": "uniform", "records": records, "keys": KEYS, "partitions": arm.partitions}
    topic = f"cores-{records}-{arm.partitions}"
    ground.fill(topic, source)
    with ground.scratch(f"cores-{suffix}") as folder:
        order = {
            "bootstrap": ground.bootstrap,
            "topic": topic,
            "group": f"cores-{suffix}",
            "processes": arm.processes,
            "threads": THREADS,
            "spin_us": arm.spin_us,
            "notes": str(folder / "notes"),
            "notes_max": records + NOTES_MORE,
            "samples": str(folder / "samples"),
        }
        with run_peer("cores_app.py", order, folder / "app") as driver:
            _until_handled(driver, folder, arm.processes, records)
            driver.process.send_signal(signal.SIGTERM)
            driver.end()
        notes = [notes_of((folder / f"notes-{n}").read_bytes(), f"{n}") for n in range(1, arm.processes + 1)]
        try:
            prove(notes, counts_of(keys_of_order({**source, "topic": topic}), KEYS))
        except Unproven as error:
            raise WrongRun(str(error)) from None
        return figures_of(notes, [_samples(folder, n) for n in range(1, arm.processes + 1)], records)


def _samples(folder: Path, number: int) -> list[dict[str, float]]:
    path = folder / f"samples-{number}"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def _until_handled(driver: Driver, folder: Path, processes: int, records: int) -> None:
    """Raises WrongRun when it takes too long, or the parent ends."""
    until_s = time.monotonic() + RUN_S_MAX
    while True:
        time.sleep(LOOK_S)
        done = sum(int(of[-1]["records"]) for n in range(1, processes + 1) if (of := _samples(folder, n)))
        if done >= records:
            return
        if driver.process.poll() is not None or time.monotonic() > until_s:
            raise WrongRun(f"{done:,} of {records:,} records were handled: {driver.last_words()}")


def figures_of(notes: list[Notes], samples: list[list[dict[str, float]]], records: int) -> dict[str, Any]:
    """From the first record of all that began to the last that ended."""
    began_ns = min(min(of.began_ns) for of in notes if of.began_ns)
    ended_ns = max(of.ended_ns[-1] for of in notes if of.ended_ns)
    began_s, ended_s = began_ns / 1e9, ended_ns / 1e9
    cpu_s = 0.0
    for of in samples:
        before = [one["cpu_s"] for one in of if one["at_s"] <= began_s]
        then = [one["cpu_s"] for one in of if one["at_s"] <= ended_s + LOOK_S]
        cpu_s += (then[-1] if then else 0.0) - (before[-1] if before else 0.0)
    return {
        "records": records,
        "per_second": records / (ended_s - began_s),
        "cpu_us_per_record": cpu_s / records * 1e6,
        "peak_bytes": sum(of[-1]["peak_bytes"] for of in samples if of),
        "shares": [len(of.ended_ns) / records for of in notes],
    }
