"""W7: records are sent at one absolute rate, whatever an arm does; how long after its scheduled time each is through.

The rate is half of what the slowest of these arms reached in W1, and the same for all. "Handled" is the end of the
handler, by the driver's own clock reading; "visible" is when a committed reader of the output gets the record, which
is read a second time afterwards and checked: complete, once, in order. The first quarter of the records is not counted:
every arm is still warming up.
"""

import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparison.arms import driver
from comparison.rate import RESULT_SECONDS_MAX, order_of, source_keys
from comparison.workloads import Workload
from rig.counts import write_counts
from rig.drivers import READY_SECONDS_MAX, checked, run_module
from rig.ground import Ground
from rig.outputs import check_output
from rig.records import counts_of

SECONDS = {"full": 20.0, "quick": 5.0}
WARM_UP_SHARE = 0.25
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


def run(workload: Workload, arm: str, size: str, ground: Ground, per_second: float) -> dict[str, Any]:
    """Percentiles in milliseconds of one run at a rate. Raises WrongRun."""
    records = min(workload.records(size), int(per_second * SECONDS[size]))
    with ground.scratch(f"{workload.name}-{arm}") as folder:
        order = order_of(workload, arm, size, ground, folder)
        order |= {"records": records, "topic": f"{order['group']}-source"}
        order["expected"] = write_counts(
            folder / "expected", counts_of(source_keys("uniform", records, workload.keys), workload.keys)
        )
        ground.make(order["topic"])
        if workload.has_output:
            order["output"] = f"{order['group']}-output"
            ground.make(order["output"])
        found = _run_beside_loader(workload, arm, size, ground, order, per_second)
        latencies = array("Q", Path(found["latency_ns"]).read_bytes())
    kept = latencies[int(len(latencies) * WARM_UP_SHARE) :]
    figures = {name: found[name] for name in ("records", "seconds", "cpu_us_per_record", "rss_peak_bytes")}
    return {**figures, "rate": per_second, "versions": found.get("versions", {}), **percentiles_ms(kept)}


def _run_beside_loader(
    workload: Workload, arm: str, size: str, ground: Ground, order: dict[str, Any], per_second: float
) -> dict[str, Any]:
    """The driver's result, with the latencies that this workload is about."""
    load = {name: order[name] for name in ("topic", "records", "keys")} | {"per_second": per_second}
    folder, limit = Path(order["folder"]), RESULT_SECONDS_MAX[size]
    with driver(arm, order) as running:
        running.event("ready", READY_SECONDS_MAX)
        if not workload.has_output:
            with ground.loader(load) as loader:
                result = checked(running.event("result", limit))
                loader.end()
        else:
            asked = {"topic": order["output"], "bootstrap": ground.bootstrap, "records": order["records"]}
            asked |= {"live": True, "latency_ns": str(folder.with_name("visible"))}
            with run_module("rig.reader", asked, folder.with_name("reader")) as reader:
                reader.event("ready", READY_SECONDS_MAX)
                with ground.loader(load) as loader:
                    result = checked(running.event("result", limit))
                    loader.end()
                running.end()
                result |= {"latency_ns": reader.event("result", limit)["latency_ns"]}
            check_output(order, workload.distribution, ground)
        running.end()
    return result


def percentiles_ms(latencies_ns: Sequence[int]) -> dict[str, float]:
    """Each percentile: the least latency that so large a share does not exceed."""
    ordered = sorted(latencies_ns)
    return {name: ordered[math.ceil(share * len(ordered)) - 1] / 1e6 for name, share in PERCENTILES.items()}
