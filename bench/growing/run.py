"""One point, run: its topic, keylanes in a process of its own, and the figures. What is not right has no figures."""

import os
import time
from pathlib import Path
from typing import Any

from growing.points import COUNT, Point
from rig.counts import write_counts
from rig.drivers import READY_SECONDS_MAX, checked, run_peer
from rig.ground import Ground
from rig.loader import counts_of, keys_of_order
from rig.outputs import COMMIT_MS
from rig.witness import WrongRun

RECORDS_PER_SECOND_MIN = 2_000
"""Slower than that a point is given up."""
MEBIBYTES_PER_SECOND_MIN = 5
CLOSE_S = 120.0


def order_of(point: Point, ground: Ground, folder: Path) -> dict[str, Any]:
    """What the application is told. The group is fresh."""
    source = point.source
    return {
        "arm": "keylanes",
        "workload": "W3" if point.handler == COUNT else "drift" if point.axis == "drift" else "W2",
        "bootstrap": ground.bootstrap,
        "topic": point.topic,
        "partitions": point.partitions,
        "group": f"grow-{point.axis}-{point.x}-{point.handler}-{os.urandom(4).hex()}",
        "folder": str(folder / "own"),
        "records": point.records,
        "keys": point.keys,
        "in_flight": point.workers,
        "commit_ms": COMMIT_MS,
        "stuck": point.stuck,
        "window": point.window if point.axis == "drift" else (0, 0),
        "expected": write_counts(folder / "expected", counts_of(keys_of_order(source), point.keys)),
    }


def seconds_max(point: Point) -> float:
    """The time that a point gets."""
    mebibytes = point.records * point.value_bytes / 2**20
    return CLOSE_S + point.records / RECORDS_PER_SECOND_MIN + mebibytes / MEBIBYTES_PER_SECOND_MIN


def run_point(point: Point, ground: Ground, is_last_of_topic: bool) -> dict[str, Any]:
    """The figures of a point. Raises WrongRun. Its topic goes with the last point that asks for it."""
    ground.fill(point.topic, point.source)
    program = "growth_app.py" if point.axis == "drift" else "keylanes_app.py"
    if is_last_of_topic:
        ground.kept.discard(point.topic)  # the run's end removes what is not kept
    with ground.scratch(f"grow-{point.axis}-{point.x}") as folder:
        order = order_of(point, ground, folder)
        Path(order["folder"]).mkdir()
        began_s = time.monotonic()
        with run_peer(program, order, folder) as running:
            running.event("ready", READY_SECONDS_MAX)
            start_s = time.monotonic() - began_s
            result = checked(running.event("result", seconds_max(point)))
            began_s = time.monotonic()
            running.end()
    return {**figures_of(point, result), "start_s": start_s, "stop_s": time.monotonic() - began_s}


def figures_of(point: Point, result: dict[str, Any]) -> dict[str, Any]:
    """What is written down: the result, and what follows from it."""
    figures = {name: value for name, value in result.items() if name != "event"}
    figures["mean_per_second"] = figures["records"] / figures["seconds"]
    if point.axis == "drift":
        seconds, (first, last) = figures["window_s"], point.window
        if seconds <= 0:
            raise WrongRun("the window of the drift was never measured")
        figures["per_second"] = (last - first) / seconds
    else:
        figures["per_second"] = figures["mean_per_second"]
        figures["event_bytes_per_commit"] = figures["event_bytes"] / max(figures["commits"], 1)
        figures["tiles_per_commit"] = figures["tiles"] / max(figures["commits"], 1)
        figures["event_bytes_per_record"] = figures["event_bytes"] / figures["records"]
    figures["megabytes_per_second"] = figures["per_second"] * point.value_bytes / 1e6
    figures["memory_bytes"] = figures["rss_peak_bytes"]
    return figures
