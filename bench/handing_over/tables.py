"""PURE. What people read of a book: a table for each part."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from handing_over.sizes import GROUPS, MOVES_PER_SECOND, SCALED, TIMES
from handing_over.verdicts import MB, least_bytes, sizes_of, stood_ms
from rig.figures import Content
from rig.gaps import percentile
from rig.parts import Table, figures

WINDOWS = ("calm", "busy")


def tables(content: Content) -> list[Table]:
    """Of all parts."""
    return [_moves(content), _state(content), _scaling(content), _crash(content), _rollout(content)]


def _moves(content: Content) -> Table:
    columns = ["members on partitions", "moves", "p50 ms", "p99 ms", "longest", *(f"{p} ms" for p in TIMES)]
    columns += ["records/s", "others", "not done"]
    rows = []
    for arm in (*(group.arm for group in GROUPS), ""):
        if stood := stood_ms(content, "moves", arm):
            runs = figures(content, "moves", arm)
            row = [arm or "all", len(stood), percentile(stood, 0.5), percentile(stood, 0.99), max(stood)]
            row += [*(_middle(runs, part) for part in TIMES), min(run["per_second"] for run in runs)]
            rows.append([*row, sum(run["others"] for run in runs), sum(run["failed"] for run in runs)])
    title = f"Ranges without state, under {MOVES_PER_SECOND:,.0f} records/s: how long a range stands still; the time of"
    return Table("moves", f"{title} each step behind the old owner's last record, medians", columns, rows)


def _middle(runs: Sequence[dict[str, Any]], part: str) -> float:
    known = [move[part] for run in runs for move in run["moves"] if move[part] is not None]
    return median(known) if known else 0.0


def _state(content: Content) -> Table:
    columns = ["state", "moves", "p50 ms", "p99 ms", "longest ms", "the first ms", "gap of its records, longest ms"]
    columns += ["from the request s", "late p99 ms: calm", "moving", "gaps of those that stay, longest ms: calm"]
    columns += ["moving"]
    rows: list[list[Any]] = []
    for arm in sizes_of(content):
        runs, stood = figures(content, "state", arm), stood_ms(content, "state", arm)
        asked = [one for run in runs for one in run["asked"]]
        row = [arm, len(stood), median(stood), percentile(stood, 0.99), max(stood)]
        row += [median(run["moves"][0]["stood_ms"] for run in runs), max(one["gap_ms"] for one in asked)]
        row.append(median(one["took_s"] for one in asked))
        row += [median(run[f"{n}_late_p99_ms"] for run in runs) for n in WINDOWS]
        row += [max((gap * 1e3 for run in runs for gap in run[f"gaps_{n}_s"]), default=0.0) for n in WINDOWS]
        rows.append(row)
    return Table("state", "A range with state goes to another member and back", columns, rows)


def _scaling(content: Content) -> Table:
    columns = ["arm", "members", "balanced after s", "MB read", "MB copied", "MB of another owner", "least MB"]
    columns += ["longest gap ms", "records late by 100 ms"]
    rows = [
        [arm, f"{step['before']} to {step['after']}", step["even_s"]]
        + [step[name] / MB for name in ("read_bytes", "copied_bytes", "moved_bytes")]
        + [least_bytes(run, step) / MB, step["gap_ms"], step["stood"]]
        for arm in SCALED
        for run in figures(content, "scaling", arm)
        for step in run["steps"]
    ]
    return Table("scaling", "Members join and go, under load", columns, rows)


def _crash(content: Content) -> Table:
    columns = ("crash", "works again after s", "steady after s", "records read", "MB read", "longest gap ms")
    rows = [
        [f"{number + 1}", one["works_s"], one["steady_s"], one["read_records"], one["read_bytes"] / MB, one["gap_ms"]]
        for run in figures(content, "crash")
        for number, one in enumerate(run["returns"])
    ]
    return Table("crash", "A member with a name is killed, and started again at once", columns, rows)


def _rollout(content: Content) -> Table:
    columns = ("member", "stopped after s", "works again after s", "MB read", "MB read by others", "longest gap ms")
    rows = [
        [one["name"], one["stopped_s"], one["works_s"], one["read_bytes"] / MB, one["others_read_bytes"] / MB]
        + [one["gap_ms"]]
        for run in figures(content, "rollout")
        for one in run["returns"]
    ]
    return Table("rollout", "Members with names are started anew, one after the other", columns, rows)
