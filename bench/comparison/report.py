"""What a person reads of a book: tables and verdicts. It opens no broker and starts nothing."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from comparison.bars import Verdict, judge, median, ratios
from comparison.workloads import WORKLOADS, Workload
from rig.figures import Content, values

Printer = Callable[[str, Sequence[str], Sequence[Sequence[Any]]], None]
MIB = 1024 * 1024

_RATE_COLUMNS = (
    "arm", "records", "median /s", "least", "greatest", "keylanes is ×", "written /s", "CPU µs", "MiB", "in flight",
)  # fmt: skip
KILL_COLUMNS = (
    "arm", "records/s", "run again", "committed ones", "allowed", "after quiet", "stuck left out", "outputs doubled",
    "outputs missing",
)  # fmt: skip
LATENCY_COLUMNS = ("arm", "records/s", "p50 ms", "p99 ms", "p99.9 ms", "greatest p99.9", "CPU µs", "MiB")


def latency_rate(content: Content) -> float:
    """W7's rate: half of what the slowest of its arms reached in W1 with the same handler; the same for a whole book.

    Raises ValueError when W1 has no figures.
    """
    known: float | None = content.get("latency_rate")
    if known is None:
        handled = next(w for w in WORKLOADS if w.name == "W7-handled")
        rates = [m for arm in handled.arms if (m := median(content, "W1-2ms", arm)) is not None]
        if not rates:
            raise ValueError("W7's rate is half of the slowest W1-2ms, and none of its arms has a figure there")
        known = content["latency_rate"] = min(rates) / 2
    return known


def report(content: Content, workloads: Sequence[Workload], show: Printer) -> list[Verdict]:
    """Show the tables and the verdicts; the bars that count and fail."""
    for workload in workloads:
        if any(run["workload"] == workload.name for run in content["runs"]):
            columns, rows = table(content, workload)
            show(f"{workload.name}: {workload.title}{sizes(content, workload)}", columns, rows)
            for note in notes(content, workload):
                print(note)
    verdicts = judge(content, workloads)
    for verdict in verdicts:
        print(verdict)
    return [verdict for verdict in verdicts if not verdict.why_not and not verdict.holds]


def sizes(content: Content, workload: Workload) -> str:
    """How large a workload is in this book, for the title of its table."""
    size = content["settings"]["size"]
    partitions = "1 partition" if workload.partitions == 1 else f"{workload.partitions} partitions"
    keys = "distinct keys" if workload.distribution == "distinct" else f"{workload.keys:,} keys"
    return f" ({workload.records(size):,} records, {keys}, {partitions}, {size})"


def table(content: Content, workload: Workload) -> tuple[Sequence[str], list[list[Any]]]:
    """Columns and rows of a workload; an arm without figures says why in its first cell."""
    row = {"rate": _rate_row, "kill": kill_row, "latency": _latency_row}[workload.kind]
    columns = {"rate": _RATE_COLUMNS, "kill": KILL_COLUMNS, "latency": LATENCY_COLUMNS}[workload.kind]
    rows = []
    for arm in workload.arms:
        if median(content, workload.name, arm) is None and median(content, workload.name, arm, "p50") is None:
            rows.append([arm, _why_none(content, workload, arm)] + ["-"] * (len(columns) - 2))
        else:
            rows.append([arm, *row(content, workload, arm)])
    return columns, rows


def _why_none(content: Content, workload: Workload, arm: str) -> str:
    if arm in content["skipped"]:
        return "skipped"
    tries = [run for run in content["runs"] if run["workload"] == workload.name and run["arm"] == arm]
    return "failed" if any("failed" in run for run in tries) else "-"


def _rate_row(content: Content, workload: Workload, arm: str) -> list[Any]:
    rates = values(content, workload.name, arm)
    found = ratios(content, workload.name, arm)
    ratio = "" if arm == workload.ours or not found else f"{statistics.median(found):.2f}"
    records = int(median(content, workload.name, arm, "records") or 0)
    prefix = " (prefix)" if median(content, workload.name, arm, "is_prefix") else ""
    return [
        f"{records:,}{prefix}",
        statistics.median(rates.values()),
        min(rates.values()),
        max(rates.values()),
        ratio,
        "" if (written := median(content, workload.name, arm, "written_per_second")) is None else round(written),
        *_costs(content, workload, arm),
        int(median(content, workload.name, arm, "concurrency_peak") or 0),
    ]


def _costs(content: Content, workload: Workload, arm: str) -> list[str]:
    cpu, memory = (median(content, workload.name, arm, name) for name in ("cpu_us_per_record", "rss_peak_bytes"))
    return ["" if cpu is None else f"{cpu:.1f}", "" if memory is None else f"{memory / MIB:.0f}"]


def kill_row(content: Content, workload: Workload, arm: str) -> list[Any]:
    """An arm in the table of the kill, behind its name."""
    names = ["per_second", "again", "committed_again", "bound", "again_quiet", "stuck_left_out"]
    names += ["outputs_doubled", "outputs_missing"]
    found = [median(content, workload.name, arm, name) for name in names]
    return ["" if value is None else round(value) for value in found]


def _latency_row(content: Content, workload: Workload, arm: str) -> list[Any]:
    found = [median(content, workload.name, arm, name) for name in ("rate", "p50", "p99", "p99.9")]
    greatest = max(values(content, workload.name, arm, "p99.9").values())
    return [*[value if value is not None else "" for value in found], greatest, *_costs(content, workload, arm)]


def notes(content: Content, workload: Workload) -> list[str]:
    """What a reader of the table must know."""
    said = [f"skipped: {arm}: {content['skipped'][arm]}" for arm in workload.arms if arm in content["skipped"]]
    said += [f"failed: {failure}" for failure in content["failures"] if failure.startswith(f"{workload.name},")]
    stolen = [v for arm in workload.arms for v in values(content, workload.name, arm, "stolen_share").values()]
    if stolen:
        said.append(f"The machine's host took {min(stolen):.1%} to {max(stolen):.1%} of the processors' time away.")
    slow = [arm for arm in workload.arms if median(content, workload.name, arm, "is_prefix")]
    taken = [seconds for arm in slow for seconds in values(content, workload.name, arm, "seconds").values()]
    if taken:
        said.append(f"(prefix): slow arms handle only the first of the records; the longest took {max(taken):.1f} s.")
    return said
