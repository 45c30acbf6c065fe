"""PURE. What is required of a hand-over, and whether the runs in a book keep it."""

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any, NamedTuple

from handing_over.sizes import MOVES_PER_SECOND, OURS
from rig.figures import Content
from rig.gaps import percentile
from rig.parts import Verdict, figures

MB = 1e6
STOOD_MS = {"p50": (0.5, 60.0, 30.0), "p99": (0.99, 300.0, 120.0)}
"""Of ranges without state, by name: the share of all moves, what is required of it, and what is aimed at."""
MOVES_MIN = 200
UNSEEN_SHARE = 0.02
"""Of so few moves it may not be known how long the range stood still."""
LOAD_SHARE, LATE_S_MAX = 0.97, 2.0
"""Of the load of the moves so much has to come, and what comes last is handled so soon."""
GAP_FREE_S, GAP_TIMES = 0.25, 2.0
STOOD_TIMES, STOOD_MS_AIM = 1.5, 150.0
"""A range with the largest state stands still so many times as long as one with the smallest, in the median, at most;
and what is aimed at. A size that is moved a few times only is not judged.
"""
JUDGED_MOVES_MIN = 6
COPIED_TIMES, COPIED_SHARE = 1.2, 0.7
"""Of the least that has to move, so much is copied at most; of what moves to members that join, so much at least before
it is owned. A member that has owned a range before still has most of its state.
"""
CRASH_S_MAX, TAIL_BYTES_PER_S = 4.0, 15e6
"""Until a process works that starts again, beside what it reads of changelogs, at a pace of copies under load."""
TAIL_S = 1.0
"""Beside the time that a process was away, so much of what all change meanwhile is read when it comes back: changes
that it committed and did not write to its copy, and those of the others' bands of a partition.
"""


def judge(content: Content) -> list[Verdict]:
    """All bars of which something was run."""
    return [
        *_moves(content),
        *_state(content),
        *_scaling(content),
        *_crash(content),
        *_rollout(content),
    ]


def stood_ms(content: Content, part: str, arm: str = "") -> list[float]:
    """How long a range stood still in each move, from the old owner's last record to the new one's first."""
    return [move["stood_ms"] for run in figures(content, part, arm) for move in run["moves"]]


def _moves(content: Content) -> Iterator[Verdict]:
    if not (stood := stood_ms(content, "moves")):
        return
    for name, (share, most, goal) in STOOD_MS.items():
        found = percentile(stood, share)
        text = f"{len(stood):,} hand-overs: {name} of the time a range stands still is {found:.0f} ms"
        yield Verdict("moves", f"{text}; required below {most:g} ms, aimed at below {goal:g} ms", found < most)
    runs = figures(content, "moves")
    failed, unseen = (sum(run[name] for run in runs) for name in ("failed", "unseen"))
    text = f"every hand-over that was asked for came to its end; {failed} did not, and {unseen} had no record on a side"
    yield Verdict("moves", text, failed == 0 and unseen <= UNSEEN_SHARE * len(stood))
    rate, late_s = min(run["per_second"] for run in runs), max(run["late_s"] for run in runs)
    text = (
        f"the members keep up with {MOVES_PER_SECOND:,.0f} records/s; seen {rate:,.0f}, {late_s:.1f} s late at the end"
    )
    yield Verdict("moves", text, rate >= LOAD_SHARE * MOVES_PER_SECOND and late_s <= LATE_S_MAX)
    if content["settings"]["size"] == "full":
        text = f"at least {MOVES_MIN} hand-overs were measured: {len(stood):,}"
        yield Verdict("moves", text, len(stood) >= MOVES_MIN)
    if (gaps := gaps_of(content)) is not None:
        yield _stays("moves", "ranges that stay", gaps)


# --- ranges that stay ------------------------------------------------------------------------------------------------


class Gaps(NamedTuple):
    """Between commits of ranges that did not move, in s: the p99.9 without moves, and beside moves; the longest one."""

    calm_s: float
    busy_s: float
    longest_s: float


def gaps_of(content: Content) -> Gaps | None:
    """Of the moves without state: of each round the p99.9 of all groups, and of these the median; None where there is
    none.
    """
    rounds: dict[int, list[dict[str, Any]]] = {}
    for run in content["runs"]:
        if run["workload"] == "moves" and "figures" in run:
            rounds.setdefault(run["round"], []).append(run["figures"])
    found = [_gaps(runs) for runs in rounds.values()]
    if not found:
        return None
    calm_s, busy_s = median(one.calm_s for one in found), median(one.busy_s for one in found)
    return Gaps(calm_s, busy_s, max(one.longest_s for one in found))


def _gaps(runs: Iterable[dict[str, Any]]) -> Gaps:
    calm, busy = ([gap for run in runs for gap in run[f"gaps_{name}_s"]] for name in ("calm", "busy"))
    return Gaps(percentile(calm, 0.999), percentile(busy, 0.999), max(busy, default=0.0))


def _stays(part: str, who: str, gaps: Gaps) -> Verdict:
    text = (
        f"{who}: 99.9 % of the gaps between commits are below {gaps.busy_s * 1e3:.0f} ms (without moves "
        f"{gaps.calm_s * 1e3:.0f} ms, longest {gaps.longest_s * 1e3:.0f} ms); required at most twice that without "
        "moves, or 250 ms"
    )
    return Verdict(part, text, gaps.busy_s <= max(GAP_TIMES * gaps.calm_s, GAP_FREE_S))


# --- state -----------------------------------------------------------------------------------------------------------


def sizes_of(content: Content) -> list[str]:
    """The sizes of state that were run, the smallest first."""
    runs = [run for run in content["runs"] if run["workload"] == "state" and "figures" in run]
    return list(dict.fromkeys(run["arm"] for run in sorted(runs, key=lambda run: float(run["figures"]["gb"]))))


def least_bytes(run: dict[str, Any], step: dict[str, Any]) -> float:
    """Of state that has to move in a step, if all members have an even share of it before and after."""
    before, after = int(step["before"]), int(step["after"])
    return float(run["state_bytes"]) * abs(before - after) / max(before, after)


def _state(content: Content) -> Iterator[Verdict]:
    if not (arms := sizes_of(content)):
        return
    failed = sum(run["failed"] for run in figures(content, "state"))
    yield Verdict("state", f"every move that was asked for came to its end; {failed} did not", failed == 0)
    arms = [arm for arm in arms if len(stood_ms(content, "state", arm)) >= JUDGED_MOVES_MIN]
    for arm in arms:
        yield _stays("state", f"ranges that stay beside one with {arm}", _gaps(figures(content, "state", arm)))
    if len(arms) < 2:
        return
    first, last = (median(stood_ms(content, "state", arm)) for arm in (arms[0], arms[-1]))
    text = f"a range with {arms[-1]} of state stands still for {last:.0f} ms (p50), with {arms[0]} for {first:.0f} ms; "
    text += f"required at most {STOOD_TIMES:g} times as long, aimed at {STOOD_MS_AIM:g} ms"
    yield Verdict("state", text, last <= first * STOOD_TIMES)


def _scaling(content: Content) -> Iterator[Verdict]:
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


def _crash(content: Content) -> Iterator[Verdict]:
    for run in figures(content, "crash"):
        returns = run["returns"]
        works_s, gap_s = median(one["works_s"] for one in returns), median(one["gap_ms"] / 1e3 for one in returns)
        found = median(one["gap_ms"] / 1e3 - one["read_bytes"] / TAIL_BYTES_PER_S for one in returns)
        text = (
            f"a member that was killed handles its first record {works_s:.2f} s later (median of {len(returns)}); "
            f"between two records of a partition there are up to {gap_s:.2f} s, {found:.2f} s of that beside the tail "
            f"that it reads, at {TAIL_BYTES_PER_S / MB:g} MB/s; required below {CRASH_S_MAX:g} s"
        )
        yield Verdict("crash", text, found < CRASH_S_MAX)


def _rollout(content: Content) -> Iterator[Verdict]:
    for run in figures(content, "rollout"):
        read = sum(one["read_bytes"] + one["others_read_bytes"] for one in run["returns"])
        tails = sum(one["works_s"] + TAIL_S for one in run["returns"]) * run["changed_bytes_per_s"]
        text = f"{len(run['returns'])} members with names were started anew, and {read / MB:,.1f} MB of changelogs "
        text += f"were read of {run['state_bytes'] / MB:,.0f}; the tails have up to {tails / MB:,.1f}"
        yield Verdict("rollout", text, read <= tails)
