"""What a person reads of a book: tables, verdicts, and the README's table. It opens no broker and starts nothing."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _bars import OURS, Content, Verdict, best, judge, median, ratios, values, why_not
from _workloads import PC, WORKLOADS, Workload

Printer = Callable[[str, Sequence[str], Sequence[Sequence[Any]]], None]
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
MIB = 1024 * 1024
_SERIAL_PEERS = ("streams-eos", "quix-eos")

_RATE_COLUMNS = ("arm", "records", "median /s", "least", "greatest", "keylanes is ×", "CPU µs", "MiB", "in flight")
_KILL_COLUMNS = (
    "arm", "records/s", "run again", "committed ones", "allowed", "after quiet", "stuck left out", "outputs doubled",
    "outputs missing",
)  # fmt: skip
_LATENCY_COLUMNS = ("arm", "records/s", "p50 ms", "p99 ms", "p99.9 ms", "greatest p99.9", "CPU µs", "MiB")


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
            show(f"{workload.name}: {workload.title}{_sizes(content, workload)}", columns, rows)
            for note in notes(content, workload):
                print(note)
    verdicts = judge(content, workloads)
    for verdict in verdicts:
        print(verdict)
    return [verdict for verdict in verdicts if not verdict.why_not and not verdict.holds]


def _sizes(content: Content, workload: Workload) -> str:
    size = content["settings"]["size"]
    partitions = "1 partition" if workload.partitions == 1 else f"{workload.partitions} partitions"
    keys = "distinct keys" if workload.distribution == "distinct" else f"{workload.keys:,} keys"
    return f" ({workload.records(size):,} records, {keys}, {partitions}, {size})"


def table(content: Content, workload: Workload) -> tuple[Sequence[str], list[list[Any]]]:
    """Columns and rows of a workload; an arm without figures says why in its first cell."""
    row = {"rate": _rate_row, "kill": _kill_row, "latency": _latency_row}[workload.kind]
    columns = {"rate": _RATE_COLUMNS, "kill": _KILL_COLUMNS, "latency": _LATENCY_COLUMNS}[workload.kind]
    rows = []
    for arm in workload.arms:
        if median(content, workload.name, arm) is None and median(content, workload.name, arm, "p50") is None:
            rows.append([arm] + ["-"] * (len(columns) - 1))
        else:
            rows.append([arm, *row(content, workload, arm)])
    return columns, rows


def _rate_row(content: Content, workload: Workload, arm: str) -> list[Any]:
    rates = values(content, workload.name, arm)
    found = ratios(content, workload.name, arm)
    ratio = "" if arm == OURS or not found else f"{statistics.median(found):.2f}"
    records = int(median(content, workload.name, arm, "records") or 0)
    prefix = " (prefix)" if median(content, workload.name, arm, "is_prefix") else ""
    return [
        f"{records:,}{prefix}",
        statistics.median(rates.values()),
        min(rates.values()),
        max(rates.values()),
        ratio,
        *_costs(content, workload, arm),
        int(median(content, workload.name, arm, "concurrency_peak") or 0),
    ]


def _costs(content: Content, workload: Workload, arm: str) -> list[str]:
    cpu, memory = (median(content, workload.name, arm, name) for name in ("cpu_us_per_record", "rss_peak_bytes"))
    return ["" if cpu is None else f"{cpu:.1f}", "" if memory is None else f"{memory / MIB:.0f}"]


def _kill_row(content: Content, workload: Workload, arm: str) -> list[Any]:
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
    failed = [run for run in content["runs"] if run["workload"] == workload.name and "failed" in run]
    said += [f"failed: {run['arm']}, round {run['round'] + 1}: {run['failed']}" for run in failed]
    stolen = [v for arm in workload.arms for v in values(content, workload.name, arm, "stolen_share").values()]
    if stolen:
        said.append(f"The machine's host took {min(stolen):.1%} to {max(stolen):.1%} of the processors' time away.")
    slow = [arm for arm in workload.arms if median(content, workload.name, arm, "is_prefix")]
    taken = [seconds for arm in slow for seconds in values(content, workload.name, arm, "seconds").values()]
    if taken:
        said.append(f"(prefix): slow arms handle only the first of the records; the longest took {max(taken):.1f} s.")
    return said


# --- the README ---------------------------------------------------------------------------------------------------


def write_readme(path: Path, content: Content) -> None:
    """Put the tables between the two markers. Raises ValueError when they are missing."""
    text = path.read_text()
    before, found, rest = text.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"{path.name} has no {BEGIN} … {END}")
    path.write_text(f"{before}{BEGIN}\n{readme_tables(content)}\n{END}{after}")


def readme_tables(content: Content) -> str:
    """Throughput, the kill and the latencies as Markdown, with what was and was not reached."""
    parts = [_readme_head(content), *_readme_rates(content), *_readme_figures(content)]
    verdicts = judge(content)
    counted = [verdict for verdict in verdicts if not verdict.why_not]
    failing = [verdict for verdict in counted if not verdict.holds]
    if content["settings"]["size"] != "full":
        return "\n".join([*parts, "At quick sizes no bar counts."])
    parts.append(f"{len(counted) - len(failing)} of {len(verdicts)} bars hold.")
    parts += [f"- **Missed:** {v.bar.workload} {v.bar.text}: {v.value:.3g}, not {v.bar.required:g}." for v in failing]
    for workload in WORKLOADS:
        reason = why_not(content, workload)
        if reason and any(verdict.bar.workload == workload.name for verdict in verdicts):
            parts.append(f"- Not counted: {workload.name}: {reason}.")
    return "\n".join(parts)


def _readme_head(content: Content) -> str:
    machine = content["machine"]
    memory = machine["memory_bytes"] / 2**30
    size = "" if content["settings"]["size"] == "full" else " (quick sizes)"
    return (
        f"Medians of {_rounds(content)}{size} on {machine['cores']} cores "
        f"({machine['processor']}, {memory:.0f} GiB), records/s; in brackets how many times that keylanes does. "
        f"Measured on {content['when'][:10]} at commit {content['commit'][:10]} with {_versions(content)}.\n"
    )


def _versions(content: Content) -> str:
    """What ran, each with its version, or those that several arms have."""
    found: dict[str, dict[str, None]] = {"kafka": {content["versions"]["kafka"]: None}}
    for ran in content["peers"].values():
        for name, version in ran.items():
            found.setdefault(name, {})[version] = None
    return ", ".join(f"{name} {' and '.join(versions)}" for name, versions in found.items())


def _rounds(content: Content) -> str:
    """How many there were: of most workloads, and of which ones more."""
    families: dict[int, dict[str, None]] = {}
    for workload in WORKLOADS:
        count = len({run["round"] for run in content["runs"] if run["workload"] == workload.name})
        if count:
            families.setdefault(count, {})[workload.family] = None
    least, *more = sorted(families)
    said = "".join(f", {count} of {', '.join(families[count])}" for count in more)
    return f"{least} interleaved rounds{said}"


def _readme_rates(content: Content) -> list[str]:
    columns = ("Parallel Consumer, best engine", "Kafka Streams, exactly once", "Quix Streams, exactly once")
    lines = [f"| workload | keylanes, exactly once | {' | '.join(columns)} | others and raw limits |", "|---" * 6 + "|"]
    for workload in WORKLOADS:
        rate = median(content, workload.name, OURS)
        if workload.kind != "rate" or rate is None:
            continue
        spread = values(content, workload.name, OURS).values()
        pc = [arm for arm in workload.arms if arm in PC]
        cells = [_against(content, workload, best(content, workload.name, pc))] if pc else [""]
        cells += [_against(content, workload, arm) if arm in workload.arms else "" for arm in _SERIAL_PEERS]
        others = [arm for arm in workload.arms if arm not in (OURS, *PC, *_SERIAL_PEERS)]
        said = [f"{arm} {cell}" for arm in others if (cell := _against(content, workload, arm))]
        ours = f"**{rate:,.0f}** ({min(spread):,.0f} to {max(spread):,.0f})"
        lines.append(f"| {workload.name}: {workload.title} | {ours} | {' | '.join(cells)} | {'; '.join(said)} |")
    return lines


def _against(content: Content, workload: Workload, arm: str) -> str:
    rate, found = median(content, workload.name, arm), ratios(content, workload.name, arm)
    if rate is None:
        return "skipped" if arm in content["skipped"] else "failed"
    if not found:
        return f"{rate:,.0f}"
    ratio = statistics.median(found)
    prefix = ", a prefix" if median(content, workload.name, arm, "is_prefix") else ""
    return f"{rate:,.0f} ({f'{ratio:.2f} ×' if ratio >= 1 else f'**{ratio:.2f} ×**'}{prefix})"


def _readme_kill(content: Content, workload: Workload, arm: str) -> list[str]:
    return [f"{cell:,}" if cell != "" else "" for cell in _kill_row(content, workload, arm)]


def _readme_latency(content: Content, workload: Workload, arm: str) -> list[str]:
    return [f"{median(content, workload.name, arm, name):.1f}" for name in ("p50", "p99", "p99.9")]


def _readme_figures(content: Content) -> list[str]:
    """A table for each workload that is not judged by its throughput."""
    lines = []
    for workload in WORKLOADS:
        if workload.kind == "rate":
            continue
        is_kill = workload.kind == "kill"
        columns, cells = (_KILL_COLUMNS[1:], _readme_kill) if is_kill else (_LATENCY_COLUMNS[2:5], _readme_latency)
        found = [arm for arm in workload.arms if values(content, workload.name, arm, "again" if is_kill else "p50")]
        if not found:
            continue
        rate = "" if is_kill else f", {content.get('latency_rate', 0):,.0f} records/s"
        lines += ["", f"| {workload.name}: {workload.title}{rate} | {' | '.join(columns)} |"]
        lines.append("|---" * (1 + len(columns)) + "|")
        lines += [f"| {arm} | {' | '.join(cells(content, workload, arm))} |" for arm in found]
    return [*lines, ""]
