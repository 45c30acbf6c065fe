"""PURE. What people read of the moves of state: tables for the terminal, bars, and the page of docs/benchmarks.md."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from handing_over.state_sizes import OURS, PARTS, SCALED, STREAMS, WAYS, WITH_STANDBY
from handing_over.tables import Table
from handing_over.verdicts import GAP_FREE_S, GAP_TIMES, Verdict, figures
from rig.figures import Content
from rig.gaps import percentile

MB = 1e6
BYTES = ("read_bytes", "copied_bytes")
WINDOWS = ("calm", "busy")
HOW_STREAMS_MOVES = (
    "by partition: warm-up replicas, two at a time by default, looked at every 10 minutes "
    "(`probing.rebalance.interval.ms`)"
)
STOOD_TIMES, STOOD_MS_AIM = 1.5, 150.0
"""A range with the largest state stands still so many times as long as one with the smallest, in the median, at most;
and what is aimed at. One that is moved a few times only is told of.
"""
JUDGED_MOVES_MIN = 6
COPIED_TIMES, COPIED_SHARE = 1.2, 0.7
"""Of the least that has to move, so much is copied at most; of what moves to members that join, so much at least before
it is owned. Who has owned a range before still has most of its state.
"""
CRASH_S_MAX, TAIL_BYTES_PER_S = 4.0, 15e6
"""Until a process works that starts again, beside what it reads of changelogs, at a pace of copies under load."""
TAIL_S = 1.0
"""Beside the time that a process was away, so much of what all change meanwhile is read when it comes back: changes
that it committed and did not write to its copy, and those of the others' bands of a partition.
"""


def tables(content: Content) -> list[Table]:
    """Of all that was run."""
    found = [_state(content), _curves(content), _scaling(content), _crash(content), _rollout(content)]
    return [table for table in found if table.rows]


def judge(content: Content) -> list[Verdict]:
    """All bars of which something was run."""
    return [
        *_judged_state(content),
        *_judged_scaling(content),
        *_judged_crash(content),
        *_judged_rollout(content),
    ]


def least_bytes(run: dict[str, Any], step: dict[str, Any]) -> float:
    """Of state that has to move in a step, if all members have an even share of it before and after."""
    before, after = int(step["before"]), int(step["after"])
    return float(run["state_bytes"]) * abs(before - after) / max(before, after)


def sizes_of(content: Content) -> list[str]:
    """The sizes that were run, the smallest first."""
    return [run["arm"] for run in sorted(_runs(content, "state"), key=lambda run: float(run["figures"]["gb"]))]


def stood_ms(content: Content, arm: str) -> list[float]:
    """How long the range stood still in each move, from the old owner's last record to the new one's first."""
    return [move["stood_ms"] for run in figures(content, "state", arm) for move in run["moves"]]


def _runs(content: Content, part: str) -> list[dict[str, Any]]:
    return [run for run in content["runs"] if run["workload"] == part and "figures" in run]


def _state(content: Content) -> Table:
    columns = ["state", "moves", "p50 ms", "p99 ms", "longest ms", "the first ms", "gap of its records, longest ms"]
    columns += ["from the request s", "late p99 ms: calm", "moving", "gaps of those that stay, longest ms: calm"]
    columns += ["moving"]
    rows: list[list[Any]] = []
    for arm in dict.fromkeys(sizes_of(content)):
        runs, stood = figures(content, "state", arm), stood_ms(content, arm)
        asked = [one for run in runs for one in run["asked"]]
        row = [arm, len(stood), median(stood), percentile(stood, 0.99), max(stood)]
        row += [median(run["moves"][0]["stood_ms"] for run in runs), max(one["gap_ms"] for one in asked)]
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
        "balanced after s",
        "MB read",
        "MB copied",
        "MB of another owner",
        "least MB",
        "longest gap ms",
        "records late by 100 ms",
    )
    rows = [
        [arm, f"{step['before']} to {step['after']}", step["even_s"]]
        + [step[name] / MB for name in (*BYTES, "moved_bytes")]
        + [least_bytes(run, step) / MB]
        + [step["gap_ms"], step["stood"]]
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
    arms = [arm for arm in arms if len(stood_ms(content, arm)) >= JUDGED_MOVES_MIN]
    yield from (_stays(content, arm) for arm in arms)
    if len(arms) < 2:
        return
    first, last = (median(stood_ms(content, arm)) for arm in (arms[0], arms[-1]))
    text = f"a range with {arms[-1]} of state stands still for {last:.0f} ms (p50), with {arms[0]} for {first:.0f} ms; "
    text += f"required at most {STOOD_TIMES:g} times as long, aimed at {STOOD_MS_AIM:g} ms"
    yield Verdict("state", text, last <= first * STOOD_TIMES)


def _stays(content: Content, arm: str) -> Verdict:
    gaps = [[gap for run in figures(content, "state", arm) for gap in run[f"gaps_{n}_s"]] for n in WINDOWS]
    calm_s, busy_s = (percentile(own, 0.999) for own in gaps)
    text = (
        f"ranges that stay beside one with {arm}: 99.9 % of the gaps between commits are below {busy_s * 1e3:.0f} ms "
    )
    text += f"(in the calm minute {calm_s * 1e3:.0f} ms); required at most twice those of the calm minute, or 250 ms"
    return Verdict("state", text, busy_s <= max(GAP_TIMES * calm_s, GAP_FREE_S))


def _judged_scaling(content: Content) -> Iterator[Verdict]:
    for run in figures(content, "scaling", OURS):
        read = sum(step["read_bytes"] for step in run["steps"]) / MB
        least = sum(least_bytes(run, step) for step in run["steps"]) / MB
        text = f"1, 2, 4, 2 and 1 members: {read:,.0f} MB of changelogs were read, before and after a range was owned, "
        text += f"{least:,.0f} had to move; required at most {COPIED_TIMES:g} times as much"
        yield Verdict("scaling", text, read <= COPIED_TIMES * least)
        grows = [step for step in run["steps"] if step["before"] < step["after"]]
        copied, moved = (sum(step[name] for step in grows) / MB for name in ("copied_bytes", "moved_bytes"))
        text = f"while members joined, {copied:,.0f} MB were copied before they were owned, and {moved:,.0f} moved; "
        text += f"required at least {COPIED_SHARE:g} of what moved"
        yield Verdict("scaling", text, copied >= COPIED_SHARE * moved)


def _judged_crash(content: Content) -> Iterator[Verdict]:
    for run in figures(content, "crash"):
        crashes = run["crashes"]
        works_s, gap_s = median(one["works_s"] for one in crashes), median(one["gap_ms"] / 1e3 for one in crashes)
        found = median(one["gap_ms"] / 1e3 - one["read_bytes"] / TAIL_BYTES_PER_S for one in crashes)
        text = f"a member that was killed handles its first record {works_s:.2f} s later (median of {len(crashes)}); "
        text += (
            f"between two records of a partition there are up to {gap_s:.2f} s, {found:.2f} s of that beside the tail "
        )
        text += f"that it reads, at {TAIL_BYTES_PER_S / MB:g} MB/s"
        yield Verdict("crash", f"{text}; required below {CRASH_S_MAX:g} s", found < CRASH_S_MAX)


def _judged_rollout(content: Content) -> Iterator[Verdict]:
    for run in figures(content, "rollout"):
        read = sum(one["read_bytes"] + one["others_read_bytes"] for one in run["restarts"])
        away_s = sum(one["works_s"] + TAIL_S for one in run["restarts"])
        tails = away_s * run["changed_bytes_per_s"]
        text = f"{len(run['restarts'])} members with names were started anew, and {read / MB:,.1f} MB of changelogs "
        text += f"were read of {run['state_bytes'] / MB:,.0f}; the tails have up to {tails / MB:,.1f}"
        yield Verdict("rollout", text, read <= tails)


# --- the page --------------------------------------------------------------------------------------------------------


def page(content: Content) -> str:
    """For docs/benchmarks.md."""
    machine = content["machine"]
    when = f"{content['when'][:10]} at commit {content['commit'][:10]}"
    size = "" if content["settings"]["size"] == "full" else f" ({content['settings']['size']} sizes)"
    where = f"{machine['cores']} cores ({machine['processor']}), which the broker, the load and all members shared"
    lines = [f"Measured on {when}{size} on {where}, with kafka {content['versions']['kafka']}.", ""]
    found = tables(content)
    for table in found:
        lines += [f"{table.title}:", "", *_markdown(table.columns, table.rows), ""]
    lines += [f"- {'holds' if one.holds else '**Missed**'}: {one.text}." for one in judge(content)]
    if missing := [part for part in PARTS if part not in {table.part for table in found}]:
        lines.append(f"- not measured in this run: {', '.join(missing)}.")
    return "\n".join(lines)


def peers(content: Content) -> str:
    """For the README's table of peers: the cells from keylanes' to that of Kafka Streams of how state moves."""
    ours = "".join(_evened(content, arm) for arm in (OURS, WITH_STANDBY))
    return f"{ours} | no state | {HOW_STREAMS_MOVES}{_evened(content, STREAMS)}"


def _evened(content: Content, arm: str) -> str:
    """How long it took until the work was even, while members joined and while they went."""
    runs = figures(content, "scaling", arm)
    if not runs:
        return ""
    steps = runs[0]["steps"]
    grows, shrinks = (
        [step["even_s"] for step in steps if (step["before"] < step["after"]) is up] for up in (True, False)
    )
    read = sum(step["read_bytes"] for step in steps) / MB
    rises, falls = (" and ".join(f"{even_s:.0f}" for even_s in found) for found in (grows, shrinks))
    how = " and a standby" if arm == WITH_STANDBY else ""
    when = f"balanced {rises} s after members joined, and {falls} s after they went"
    return f"; 1, 2, 4, 2, 1 members with 0.3 GB{how}: {when}; {read:,.0f} MB read"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---|" + "---:|" * (len(columns) - 1)
    for row in rows:
        yield f"| {' | '.join(map(_figure, row))} |"


def _figure(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
