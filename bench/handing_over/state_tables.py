"""PURE. What people read of the moves of state: tables for the terminal, bars, and the page of docs/benchmarks.md."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from handing_over.state_sizes import WAYS
from handing_over.tables import Table
from handing_over.verdicts import Verdict, figures
from rig.figures import Content
from rig.gaps import percentile

MB = 1e6
BYTES = ("read_bytes", "copied_bytes")
WINDOWS = ("calm", "busy")
MORE_MS_MAX = 20.0
"""A range with the largest state stands still by so much longer than one with the smallest, in the median."""
COPIED_TIMES, COPIED_SHARE = 1.3, 0.7
"""Of the least that has to be: so much is copied at most, and so much at least before it is owned."""
CRASH_S_MAX = 5.0
"""The start of a process, two beats, and the tail."""


def tables(content: Content) -> list[Table]:
    """Of all that was run."""
    found = [_state(content), _curves(content), _scaling(content), _crash(content), _rollout(content)]
    return [table for table in found if table.rows]


def judge(content: Content) -> list[Verdict]:
    """All bars of which something was run."""
    return [*_judged_state(content), *_judged_scaling(content), *_judged_crash(content)]


def sizes_of(content: Content) -> list[str]:
    """The sizes that were run, the smallest first."""
    return [run["arm"] for run in sorted(_runs(content, "state"), key=lambda run: float(run["figures"]["gb"]))]


def stood_ms(content: Content, arm: str) -> list[float]:
    """How long the range stood still in each move, from the old owner's last record to the new one's first."""
    return [move["stood_ms"] for run in figures(content, "state", arm) for move in run["moves"]]


def _runs(content: Content, part: str) -> list[dict[str, Any]]:
    return [run for run in content["runs"] if run["workload"] == part and "figures" in run]


def _state(content: Content) -> Table:
    columns = ["state", "moves", "p50 ms", "p99 ms", "longest ms", "gap of its records, longest ms"]
    columns += ["from the request s", "late p99 ms: calm", "moving", "gaps of those that stay, longest ms: calm"]
    columns += ["moving"]
    rows: list[list[Any]] = []
    for arm in dict.fromkeys(sizes_of(content)):
        runs, stood = figures(content, "state", arm), stood_ms(content, arm)
        asked = [one for run in runs for one in run["asked"]]
        row = [arm, len(stood), median(stood), percentile(stood, 0.99), max(stood), max(one["gap_ms"] for one in asked)]
        row += [median(one["took_s"] for one in asked), *(median(run[n]["p99_ms"] for run in runs) for n in WINDOWS)]
        row += [max((gap * 1e3 for run in runs for gap in run[f"gaps_{n}_s"]), default=0.0) for n in WINDOWS]
        rows.append(row)
    return Table("state", "A range with state goes to another member and back", columns, rows)


def _curves(content: Content) -> Table:
    columns = (
        "half of the state",
        "s",
        "longest gap ms",
        "latest ms",
        "records late by 100 ms",
        "MB read",
        "MB copied",
    )
    rows = [
        [way, run["took_s"], run["gap_ms"], run["late_ms_max"], run["stood"]] + [run[name] / MB for name in BYTES]
        for way in WAYS
        for run in figures(content, "curves", way)
    ]
    return Table("curves", "Half of the state moves, under load", columns, rows)


def _scaling(content: Content) -> Table:
    columns = (
        "arm",
        "members",
        "even after s",
        "MB read",
        "MB copied",
        "least MB",
        "longest gap ms",
        "records late by 100 ms",
    )
    rows = [
        [arm, f"{step['before']} to {step['after']}", step["even_s"]]
        + [step[name] / MB for name in (*BYTES, "least_bytes")]
        + [step["gap_ms"], step["stood"]]
        for arm in ("keylanes", "Kafka Streams")
        for run in figures(content, "scaling", arm)
        for step in run["steps"]
    ]
    return Table("scaling", "Members join and go, under load", columns, rows)


def _crash(content: Content) -> Table:
    columns = ("crash", "works again after s", "steady after s", "records read", "MB read", "longest gap ms")
    rows = [
        [f"{number + 1}", one["works_s"], one["steady_s"], one["read_records"], one["read_bytes"] / MB, one["gap_ms"]]
        for run in figures(content, "crash")
        for number, one in enumerate(run["crashes"])
    ]
    return Table("crash", "A member with a name is killed, and started again at once", columns, rows)


def _rollout(content: Content) -> Table:
    columns = ("member", "stopped after s", "works again after s", "MB read", "MB read by others", "longest gap ms")
    rows = [
        [one["name"], one["stopped_s"], one["works_s"], one["read_bytes"] / MB, one["others_read_bytes"] / MB]
        + [one["gap_ms"]]
        for run in figures(content, "rollout")
        for one in run["restarts"]
    ]
    return Table("rollout", "Members with names are started anew, one after the other", columns, rows)


# --- bars ------------------------------------------------------------------------------------------------------------


def _judged_state(content: Content) -> Iterator[Verdict]:
    arms = list(dict.fromkeys(sizes_of(content)))
    if not arms:
        return
    failed = sum(run["failed"] for run in figures(content, "state"))
    yield Verdict("state", f"every move that was asked for came to its end; {failed} did not", failed == 0)
    if len(arms) < 2:
        return
    first, last = (median(stood_ms(content, arm)) for arm in (arms[0], arms[-1]))
    text = f"a range with {arms[-1]} of state stands still for {last:.0f} ms (p50), with {arms[0]} for {first:.0f} ms; "
    yield Verdict("state", f"{text}required at most {MORE_MS_MAX:g} ms more", last <= first + MORE_MS_MAX)


def _judged_scaling(content: Content) -> Iterator[Verdict]:
    for run in figures(content, "scaling", "keylanes"):
        copied, least = (sum(step[name] for step in run["steps"]) / MB for name in ("copied_bytes", "least_bytes"))
        text = (
            f"1, 2, 4, 2 and 1 members: {copied:,.0f} MB of state were copied before they were owned, {least:,.0f} had"
        )
        text += f" to move; required {COPIED_SHARE:g} to {COPIED_TIMES:g} times as much"
        yield Verdict("scaling", text, COPIED_SHARE * least <= copied <= COPIED_TIMES * least)


def _judged_crash(content: Content) -> Iterator[Verdict]:
    for run in figures(content, "crash"):
        found = median(one["works_s"] for one in run["crashes"])
        text = f"a member that was killed works again {found:.2f} s later (median of {len(run['crashes'])})"
        yield Verdict("crash", f"{text}; required below {CRASH_S_MAX:g} s", found < CRASH_S_MAX)


# --- the page --------------------------------------------------------------------------------------------------------


def page(content: Content) -> str:
    """For docs/benchmarks.md."""
    machine = content["machine"]
    when = f"{content['when'][:10]} at commit {content['commit'][:10]}"
    size = "" if content["settings"]["size"] == "full" else f" ({content['settings']['size']} sizes)"
    where = f"{machine['cores']} cores ({machine['processor']}), which the broker, the load and all members shared"
    lines = [f"Measured on {when}{size} on {where}, with kafka {content['versions']['kafka']}.", ""]
    for table in tables(content):
        lines += [f"{table.title}:", "", *_markdown(table.columns, table.rows), ""]
    lines += [f"- {'holds' if one.holds else '**Missed**'}: {one.text}." for one in judge(content)]
    return "\n".join(lines)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---|" + "---:|" * (len(columns) - 1)
    for row in rows:
        yield f"| {' | '.join(map(_figure, row))} |"


def _figure(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
