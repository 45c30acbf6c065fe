"""A book as Markdown: the README's table, and the tables of docs/benchmarks.md."""

import statistics

from comparison.arms import ARMS
from comparison.bars import best, judge, median, ratios, why_not
from comparison.report import KILL_COLUMNS, LATENCY_COLUMNS, kill_row
from comparison.workloads import PC, WORKLOADS, Workload
from rig.figures import Content, values

_SERIAL_PEERS = (("streams-eos-2", "streams-eos"), ("quix-eos",), ("flechtwerk",))
"""Of each column the arms, the first one that a workload has."""
_PEERS = {
    "fastest exactly-once peer": {
        "streams-eos": "Kafka Streams",
        "streams-eos-2": "Kafka Streams, 2 threads,",
        "quix-eos": "Quix Streams",
        "flechtwerk": "Flechtwerk",
    },
    "fastest at-least-once peer": {
        **dict.fromkeys(PC, "Parallel Consumer"),
        "streams-alo": "Kafka Streams",
        "quix-alo": "Quix Streams",
        "pyrallel": "Pyrallel-Consumer",
    },
    "aiokafka, one record at a time": {"aiokafka-serial": ""},
}
"""The columns of the README's table. What commits nothing is no peer."""


def summary_table(content: Content) -> str:
    """For the README: each workload that is judged by its rate, against the fastest peer of each guarantee."""
    lines = [f"| workload | keylanes, exactly once | {' | '.join(_PEERS)} |", "|---" * (2 + len(_PEERS)) + "|"]
    for workload in WORKLOADS:
        rate = median(content, workload.name, workload.ours)
        if workload.kind == "rate" and rate is not None:
            cells = [_fastest(content, workload, names) for names in _PEERS.values()]
            lines.append(f"| {workload.title} | {rate:,.0f} | {' | '.join(cells)} |")
    when = f"{content['when'][:10]} at commit {content['commit'][:10]}"
    counts = {len({run["round"] for run in content["runs"] if run["workload"] == w.name}) for w in WORKLOADS} - {0}
    rounds = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    said = f"Records/s, medians of {rounds} interleaved rounds{_size(content)}, measured on {when}."
    return "\n".join([*lines, "", said])


def _fastest(content: Content, workload: Workload, names: dict[str, str]) -> str:
    """The peer with the best median, and how many times that ours is, bold where we lose; empty when there is none."""
    peers = [arm for arm in workload.arms if arm in names and ratios(content, workload.name, arm)]
    if not peers:
        return ""
    peer = best(content, workload.name, peers)
    return f"{names[peer]} {_against(content, workload, peer)}".strip()


def benchmark_tables(content: Content) -> str:
    """Throughput, the kill and the latencies as Markdown, with what was and was not reached."""
    parts = [_head(content), *_rates(content), *_written(content), *_figures(content)]
    verdicts = judge(content)
    counted = [verdict for verdict in verdicts if not verdict.why_not]
    failing = [verdict for verdict in counted if not verdict.holds]
    if content["settings"]["size"] != "full":
        return "\n".join([*parts, "At quick sizes no bar counts."])
    held = len(counted) - len(failing)
    parts.append(f"{held} of {len(verdicts)} bars hold; each is judged by the median of the rounds' own ratios.")
    parts += [f"- **Missed:** {v.bar.workload} {v.bar.text}: {v.value:.3g}, not {v.bar.required:g}." for v in failing]
    for workload in WORKLOADS:
        reason = why_not(content, workload)
        if reason:
            parts.append(f"- Not counted: {workload.name}: {reason}.")
    parts += [f"- A run failed its check and was repeated, or has no figures: {what}." for what in content["failures"]]
    return "\n".join(parts)


def _head(content: Content) -> str:
    machine = content["machine"]
    memory = machine["memory_bytes"] / 2**30
    return (
        f"Medians of {_rounds(content)}{_size(content)} on {machine['cores']} cores "
        f"({machine['processor']}, {memory:.0f} GiB), in records/s. The figure in brackets behind a peer is keylanes' "
        f"rate divided by the peer's; it is bold where keylanes is slower. Measured on {content['when'][:10]} at "
        f"commit {content['commit'][:10]}"
        f"{', with changes,' if content.get('has_changes') else ''} with {_versions(content)}.\n"
    )


def _versions(content: Content) -> str:
    """What ran, each with its version, or those that several arms have."""
    found: dict[str, dict[str, None]] = {"kafka": {content["versions"]["kafka"]: None}}
    for ran in content["peers"].values():
        for name, version in ran.items():
            found.setdefault(name, {})[version] = None
    return ", ".join(f"{name} {' and '.join(versions)}" for name, versions in found.items())


def _size(content: Content) -> str:
    return "" if content["settings"]["size"] == "full" else " (quick sizes)"


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


def _rates(content: Content) -> list[str]:
    columns = ["Parallel Consumer, best engine", *(ARMS[arms[-1]].title for arms in _SERIAL_PEERS)]
    head = ["workload", "keylanes, exactly once", *columns, "others and raw limits"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for workload in WORKLOADS:
        rate = median(content, workload.name, workload.ours)
        if workload.kind != "rate" or rate is None:
            continue
        spread = values(content, workload.name, workload.ours).values()
        pc = [arm for arm in workload.arms if arm in PC]
        cells = [_against(content, workload, best(content, workload.name, pc))] if pc else [""]
        serial = [next((arm for arm in names if arm in workload.arms), "") for names in _SERIAL_PEERS]
        cells += [_against(content, workload, arm) if arm else "" for arm in serial]
        others = [arm for arm in workload.arms if arm not in (workload.ours, *PC, *serial)]
        said = [f"{arm} {cell}" for arm in others if (cell := _against(content, workload, arm))]
        ours = f"**{rate:,.0f}** ({min(spread):,.0f} to {max(spread):,.0f})"
        lines.append(f"| {workload.name}: {workload.title} | {ours} | {' | '.join(cells)} | {'; '.join(said)} |")
    return lines


def _written(content: Content) -> list[str]:
    """Of workloads with outputs: the rates that count the time until the last output was in the log."""
    name, lines = "written_per_second", []
    for workload in WORKLOADS:
        ours = median(content, workload.name, workload.ours, name)
        if workload.kind == "rate" and ours is not None:
            others = [
                arm for arm in workload.arms if arm != workload.ours and ratios(content, workload.name, arm, name)
            ]
            said = "; ".join(f"{arm} {_cell(content, workload, arm, name)}" for arm in others)
            lines += ["", f"{workload.name} until the last output is in the log: keylanes {ours:,.0f}; {said}."]
    return lines


def _cell(content: Content, workload: Workload, arm: str, name: str = "per_second") -> str:
    """A peer's median, and how many times that ours is, bold where we lose."""
    rate = median(content, workload.name, arm, name)
    ratio = statistics.median(ratios(content, workload.name, arm, name))
    return f"{rate:,.0f} ({_times(ratio, is_lost=ratio < 1)})"


def _times(ratio: float, *, is_lost: bool) -> str:
    """A ratio, bold where we lose."""
    return f"**{ratio:.2f} ×**" if is_lost else f"{ratio:.2f} ×"


def _against(content: Content, workload: Workload, arm: str) -> str:
    rate, found = median(content, workload.name, arm), ratios(content, workload.name, arm)
    if rate is None:
        was_tried = any(run["workload"] == workload.name and run["arm"] == arm for run in content["runs"])
        return "skipped" if arm in content["skipped"] else "failed" if was_tried else "not run"
    if not found:
        return f"{rate:,.0f}"
    cell = _cell(content, workload, arm)
    return f"{cell[:-1]}, a prefix)" if median(content, workload.name, arm, "is_prefix") else cell


def _kill(content: Content, workload: Workload, arm: str) -> list[str]:
    return [f"{cell:,}" if cell != "" else "" for cell in kill_row(content, workload, arm)]


def _latency(content: Content, workload: Workload, arm: str) -> list[str]:
    """A peer's with the share of it that ours is, bold where that is more."""
    cells = []
    for name in ("p50", "p99", "p99.9"):
        cell, found = f"{median(content, workload.name, arm, name):.1f}", ratios(content, workload.name, arm, name)
        if arm != workload.ours and found:
            share = statistics.median(found)
            cell += f" ({_times(share, is_lost=share > 1)})"
        cells.append(cell)
    return cells


def _figures(content: Content) -> list[str]:
    """A table for each workload that is not judged by its throughput."""
    lines = []
    for workload in WORKLOADS:
        if workload.kind == "rate":
            continue
        is_kill = workload.kind == "kill"
        columns, cells = (KILL_COLUMNS[1:], _kill) if is_kill else (LATENCY_COLUMNS[2:5], _latency)
        found = [arm for arm in workload.arms if values(content, workload.name, arm, "again" if is_kill else "p50")]
        if not found:
            continue
        rate = "" if is_kill else f", {content.get('latency_rate', 0):,.0f} records/s"
        lines += ["", f"| {workload.name}: {workload.title}{rate} | {' | '.join(columns)} |"]
        lines.append("|---" * (1 + len(columns)) + "|")
        lines += [f"| {arm} | {' | '.join(cells(content, workload, arm))} |" for arm in found]
    return [*lines, ""]
