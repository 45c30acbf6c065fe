"""One run of one arm that is judged by its throughput: W1 to W5, W8. Figures of a run that is not right don't exist."""

import functools
import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comparison.arms import ARMS, driver
from comparison.workloads import Workload
from rig.counts import write_counts
from rig.drivers import READY_SECONDS_MAX, checked
from rig.errors import WrongRun
from rig.ground import Ground
from rig.outputs import COMMIT_MS, HEADERS, ask_reader, check_output
from rig.reader import changelog_of
from rig.records import counts_of, keys_of

RESULT_SECONDS_MAX = {"full": 300.0, "quick": 120.0}
IN_FLIGHT = 1_000
OUTPUT_SETTINGS = {"message.timestamp.type": "LogAppendTime"}
"""Of outputs whose end is of interest: the broker's own clock says when it wrote the last record."""


@functools.cache
def source_keys(distribution: str, records: int, keys: int) -> "array[int]":
    """The keys of a source topic."""
    return keys_of(distribution, records, keys)


def prepare(workload: Workload, size: str, ground: Ground) -> None:
    """Fill the workload's topic, unless it is there."""
    records, keys = workload.records(size), workload.keys_at(size)
    order = {"distribution": workload.distribution, "records": records, "keys": keys}
    ground.fill(workload.source(size), {**order, "partitions": workload.partitions})


def order_of(workload: Workload, arm: str, size: str, ground: Ground, folder: Path) -> dict[str, Any]:
    """What a driver is told, but for what only some workloads need. The group is fresh."""
    return {
        "workload": workload.family,
        "bootstrap": ground.bootstrap,
        "topic": workload.source(size),
        "partitions": workload.partitions,
        "output": "",
        "group": f"bench-{workload.name}-{arm}-{os.urandom(4).hex()}",
        "folder": str(folder / "own"),
        "records": workload.records_of_arm(arm, size),
        "keys": workload.keys_at(size),
        "handler_ms": workload.handler_ms,
        "spin_us": workload.spin_us,
        "in_flight": IN_FLIGHT,
        "commit_ms": COMMIT_MS if ARMS[arm].is_exactly_once else 0,
        "stuck": -1,
        "counters": "",
        "expected": "",
        "header": HEADERS.get(arm, ""),
    }


def run(
    workload: Workload, arm: str, size: str, ground: Ground, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The figures of one run, of an arm with these variables or else those of this process. Raises WrongRun."""
    with ground.scratch(f"{workload.name}-{arm}") as folder:
        order = order_of(workload, arm, size, ground, folder)
        keys = source_keys(workload.distribution, workload.records(size), workload.keys_at(size))
        counts = counts_of(keys[: order["records"]], order["keys"])
        order["expected"] = write_counts(folder / "expected", counts)
        if workload.has_output:
            order["output"] = f"{order['group']}-output"
            ground.make(order["output"], settings=OUTPUT_SETTINGS)
        with driver(arm, order, env) as running:
            running.event("ready", READY_SECONDS_MAX)
            result = checked(running.event("result", RESULT_SECONDS_MAX[size]))
            running.end()
        if workload.has_output:
            written_at_s = check_output(order, workload.distribution, ground)["written_at_s"]
            result["written_per_second"] = result["records"] / (written_at_s - result["began_at_s"])
        if workload.family == "W3":
            check_changelog(order, arm, ground)
    figures = {name: value for name, value in result.items() if name != "event"}
    figures["per_second"] = figures["records"] / figures["seconds"]
    figures["is_prefix"] = order["records"] < workload.records(size)
    if "bare_handler_ms" in figures:
        figures["bound_per_second"] = figures["records"] / (max(counts) * figures["bare_handler_ms"] / 1_000)
    return figures


def check_changelog(order: dict[str, Any], arm: str, ground: Ground) -> None:
    """W3: raises WrongRun unless the last count of each key in the changelog is the number of its records."""
    topic = changelog_of(arm, order["group"], order["topic"])
    asked = {"changelog_of": arm, "topic": topic, "expected": order["expected"], "partitions": order["partitions"]}
    wrong = ask_reader(asked, order, ground)["wrong_keys"]
    if wrong:
        raise WrongRun(f"{wrong} keys have a wrong last count in the changelog")
