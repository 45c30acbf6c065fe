"""PURE. What people read of a book: tables for the terminal, and rows for docs/benchmarks.md."""

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from handing_over.sizes import MEMBERS, MOVES_PER_SECOND, TIMES
from handing_over.verdicts import figures, gaps_of, groups_of, judge
from rig.figures import Content
from rig.gaps import percentile

MIB = 1024 * 1024
HANDLERS = {
    "wait": "an asynchronous handler that waits for 5 ms",
    "spin": "a handler that uses 100 µs of the processor",
}


class Table(NamedTuple):
    """A table; its rows may be empty."""

    part: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def tables(content: Content) -> list[Table]:
    """Of all that was run."""
    found = [*_amplification(content), _moves(content), _skew(content), _join(content), _held(content)]
    return [table for table in found if table.rows]


def _amplification(content: Content) -> list[Table]:
    columns = (
        "members",
        "records/s",
        "late s",
        "read per record",
        "CPU µs/record",
        "least own commits in 10 s",
        "runs",
    )
    found = []
    for handler, text in HANDLERS.items():
        rows = []
        for members in MEMBERS:
            if runs := figures(content, "amplification", f"{handler}, {members}"):
                names = ("per_second", "late_s", "amplification", "cpu_us_per_record")
                middle = [median(run[name] for run in runs) for name in names]
                rows.append([f"{members}", *middle, min(run["window_commits_least"] for run in runs), len(runs)])
        found.append(Table("amplification", f"One partition, {text}, factor 64", columns, rows))
    return found


def _moves(content: Content) -> Table:
    columns = (
        "members on partitions",
        "moves",
        "p50 ms",
        "p99 ms",
        "longest",
        *(f"{p} ms" for p in TIMES),
        "records/s",
        "others",
        "not done",
    )
    rows = []
    for arm in [*groups_of(content), ""]:
        runs = figures(content, "moves", arm)
        moves = [move for run in runs for move in run["moves"]]
        if moves:
            stood = [move["stood_ms"] for move in moves]
            row = [arm or "all", len(moves), percentile(stood, 0.5), percentile(stood, 0.99), max(stood)]
            row += [*(_middle(moves, part) for part in TIMES), min(run["per_second"] for run in runs)]
            rows.append([*row, sum(run["others"] for run in runs), sum(run["failed"] for run in runs)])
    title = (
        f"Hand-overs under {MOVES_PER_SECOND:,.0f} records/s: how long a range stands still; when each part of it came"
    )
    return Table("moves", f"{title}, in the median, behind the last record of the old owner", columns, rows)


def _middle(moves: Sequence[dict[str, Any]], part: str) -> float:
    known = [move[part] for move in moves if move[part] is not None]
    return median(known) if known else 0.0


def _skew(content: Content) -> Table:
    columns = (
        "all traffic to one",
        "even after s",
        "at the end",
        "allowed",
        "heaviest unit",
        "moves",
        "moved",
        "least",
    )
    rows = []
    for arm in ("partition", "keys"):
        for run in figures(content, "skew", arm):
            even = "never" if run["even_after_s"] is None else f"{run['even_after_s']:.1f}"
            row = [arm, even, run["unevenness_at_end"], run["allowed"], f"{run['heaviest_share']:.1%}"]
            rows.append([*row, run["moves"], run["moved"], run["least"]])
    title = "Skewed load, 4 members on 4 partitions: the greatest load in mean loads; what moved, in partitions"
    return Table("skew", title, columns, rows)


def _join(content: Content) -> Table:
    columns = ("a member joins", "joins", "median s", "longest s")
    rows = []
    for run in figures(content, "join"):
        for text, name in (("behind JOINED", "joined_s"), ("behind the start of its process", "started_s")):
            rows.append([text, len(run[name]), median(run[name]), max(run[name])])
    return Table("join", "A join under load: until its first record begins", columns, rows)


def _held(content: Content) -> Table:
    columns = ("moves", "snapshot bytes", "epochs kept", "control log KiB", "start s", "start MiB")
    rows = [
        [
            f"{point['moves']:,}",
            point["snapshot_bytes"],
            point["epochs_kept"],
            point["control_bytes"] / 1024,
            point["start_seconds"],
            point["start_bytes"] / MIB,
        ]
        for run in figures(content, "held")
        for point in run["points"]
    ]
    return Table("held", "Moves beside a range that is held throughout, in process", columns, rows)


# --- the page --------------------------------------------------------------------------------------------------------


def page(content: Content) -> str:
    """For docs/benchmarks.md."""
    machine = content["machine"]
    when = f"{content['when'][:10]} at commit {content['commit'][:10]}"
    size = "" if content["settings"]["size"] == "full" else f" ({content['settings']['size']} sizes)"
    where = f"{machine['cores']} cores ({machine['processor']}), which the broker, the load and all members shared"
    lines = [
        f"Measured on {when}{size} on {where}, with kafka {content['versions']['kafka']}.",
        "",
        "| question | figure |",
        "|---|---|",
        *(f"| {question} | {figure} |" for question, figure in rows(content)),
        "",
        *(f"- {'holds' if verdict.holds else '**Missed**'}: {verdict.text}." for verdict in judge(content)),
    ]
    return "\n".join(lines)


def cell(content: Content) -> str:
    """For the README's table of peers: how long a range stands still that changes hands."""
    stood = [
        move["stood_ms"]
        for arm in groups_of(content)
        for run in figures(content, "moves", arm)
        for move in run["moves"]
    ]
    if not stood:
        return ""
    middle, most = percentile(stood, 0.5), percentile(stood, 0.99)
    return f"; a range that changes hands stands still for {middle:.0f} ms (p50), {most:.0f} ms (p99)"


def rows(content: Content) -> list[tuple[str, str]]:
    """A question and its figures for each part that was run."""
    found = []
    for handler, text in HANDLERS.items():
        by_members = {n: runs for n in MEMBERS if (runs := figures(content, "amplification", f"{handler}, {n}"))}
        if by_members:
            said = "; ".join(f"{members}: {_amplified(runs)}" for members, runs in by_members.items())
            question = f"What do {', '.join(map(str, by_members))} members on one partition read and cost, with {text}?"
            found.append((question, f"Records/s, records read per record, processor time per record: {said}"))
    for arm in groups_of(content):
        moves = [move for run in figures(content, "moves", arm) for move in run["moves"]]
        stood = [move["stood_ms"] for move in moves]
        load = f"{arm} partitions, {MOVES_PER_SECOND:,.0f} records/s"
        question = f"How long does a range stand still that is handed over, {load}?"
        parts = ", ".join(f"{part} {_middle(moves, part):+.0f} ms" for part in TIMES)
        figure = f"p50 **{percentile(stood, 0.5):.0f} ms**, p99 {percentile(stood, 0.99):.0f} ms, longest "
        found.append((question, f"{figure}{max(stood):.0f} ms, of {len(moves)}; behind the last record: {parts}"))
    if (gaps := gaps_of(content)) is not None:
        figure = (
            f"p99.9 of the gaps between commits {gaps.busy_s * 1e3:.0f} ms, without moves {gaps.calm_s * 1e3:.0f} ms"
        )
        found.append(("What do ranges that stay see of it?", f"{figure}; longest {gaps.longest_s * 1e3:.0f} ms"))
    return [*found, *_later_rows(content)]


def _amplified(runs: Sequence[dict[str, Any]]) -> str:
    rate, read, cpu = (median(run[n] for run in runs) for n in ("per_second", "amplification", "cpu_us_per_record"))
    return f"{rate:,.0f}, {read:.2f}, {cpu:.0f} µs"


def _later_rows(content: Content) -> list[tuple[str, str]]:
    found = []
    for arm, what in (("partition", "one of four partitions"), ("keys", "a quarter of two of four partitions")):
        for run in figures(content, "skew", arm)[-1:]:
            even = "not within the run" if run["even_after_s"] is None else f"**{run['even_after_s']:.1f} s**"
            figure = (
                f"{even}; {run['moved']:.2f} partitions moved, at least {run['least']:.2f} had to; the heaviest unit "
            )
            question = f"All traffic goes to {what}: when is the load of four members even to 15 %?"
            found.append((question, f"{figure}has {run['heaviest_share']:.1%} of the load"))
    for run in figures(content, "join"):
        figure = (
            f"**{median(run['joined_s']):.2f} s** behind JOINED, {median(run['started_s']):.2f} s behind the start "
        )
        question = "A member joins under load: when does its first range work?"
        found.append((question, f"{figure}of its process (medians of {len(run['joined_s'])})"))
    for run in figures(content, "held"):
        first, last = run["points"][0], run["points"][-1]
        question = f"What do {last['moves']:,} moves beside a range that is held leave behind?"
        figure = (
            f"A snapshot of {last['snapshot_bytes']:,} bytes ({first['snapshot_bytes']:,} after {first['moves']:,})"
        )
        starts = f"a start takes {last['start_seconds']:.2f} s ({first['start_seconds']:.2f})"
        found.append((question, f"{figure}; {starts}"))
    return found
