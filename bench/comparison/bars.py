"""PURE. The bars of the bench: what keylanes must reach against whom, judged from what was written down.

A bar counts only when every arm of its workload ran in every round, three at least, at full size; without that its
value is shown, but it neither holds nor fails. Ratios are of runs of the same round, so that a machine that changes its
speed changes both.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from comparison.workloads import OURS, PC, WORKLOADS, Workload, ours_in
from rig.figures import Content, values

ROUNDS_MIN = 3
"""Fewer say nothing about the spread."""


def median(content: Content, workload: str, arm: str, name: str = "per_second") -> float | None:
    """Over the rounds; None when there is none."""
    found = values(content, workload, arm, name)
    return statistics.median(found.values()) if found else None


def ratios(content: Content, workload: str, other: str, name: str = "per_second") -> list[float]:
    """Ours divided by the other's in each round that both have."""
    ours, theirs = values(content, workload, ours_in(workload), name), values(content, workload, other, name)
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys()) if theirs[number]]


def best(content: Content, workload: str, arms: Sequence[str], name: str = "per_second", *, least: bool = False) -> str:
    """The arm with the best median; the first one when none has any."""
    found = {arm: m for arm in arms if (m := median(content, workload, arm, name)) is not None}
    if not found:
        return arms[0]
    return min(found, key=found.__getitem__) if least else max(found, key=found.__getitem__)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """``value`` must be at least ``required`` (at most, with ``is_limit``)."""

    workload: str
    text: str
    value: Callable[[Content, str], float | None]
    required: float
    goal: float | None = None
    is_limit: bool = False


@dataclass(frozen=True)
class Verdict:
    """``why_not``: why the bar does not count; empty when it does."""

    bar: Bar
    value: float | None
    holds: bool
    reaches_goal: bool
    why_not: str

    def __str__(self) -> str:
        bar, sign = self.bar, "≤" if self.bar.is_limit else "≥"
        seen = "no figure" if self.value is None else f"{self.value:.3g}"
        goal = "" if bar.goal is None else f", goal {bar.goal:g}" + (" reached" if self.reaches_goal else " missed")
        outcome = f"does not count ({self.why_not})" if self.why_not else "holds" if self.holds else "FAILS"
        return f"{outcome}: {bar.workload} {bar.text}: {seen} ({sign} {bar.required:g}{goal})"


def against(arms: Sequence[str], name: str = "per_second", *, least: bool = False) -> Callable[..., float | None]:
    """The median ratio to the best of some arms."""

    def value(content: Content, workload: str) -> float | None:
        found = ratios(content, workload, best(content, workload, arms, name, least=least), name)
        return statistics.median(found) if found else None

    return value


def of_bound(content: Content, workload: str) -> float | None:
    """Throughput as a share of the bound that the hottest key sets."""
    rates, bounds = values(content, workload, OURS), values(content, workload, OURS, "bound_per_second")
    shares = [rates[number] / bounds[number] for number in rates.keys() & bounds.keys()]
    return statistics.median(shares) if shares else None


def worst(name: str, of: str = "") -> Callable[..., float | None]:
    """The greatest of our figure over the rounds, or of its share of another figure."""

    def value(content: Content, workload: str) -> float | None:
        found = values(content, workload, OURS, name)
        if of:
            limits = values(content, workload, OURS, of)
            return max((found[number] / limits[number] for number in found.keys() & limits.keys()), default=None)
        return max(found.values(), default=None)

    return value


def _all_bars() -> Iterator[Bar]:
    for name in ("W1-2ms", "W1-5ms"):
        yield Bar(workload=name, text="× the best Parallel Consumer", value=against(PC), required=1.5, goal=2)
        yield Bar(workload=name, text="× bare lanes", value=against(["bare-lanes"]), required=0.8, goal=0.9)
    for name in ("W2-1p", "W2-8p"):
        yield Bar(workload=name, text="× raw getmany", value=against(["getmany"]), required=0.4, goal=0.5)
        yield Bar(workload=name, text="× the best Parallel Consumer", value=against(PC), required=4, goal=5)
    for name, required, goal in (("W3", 1.5, 2.0), ("W4", 1.0, 1.5)):
        streams, quix = against(["streams-eos"]), against(["quix-eos"])
        yield Bar(workload=name, text="× Kafka Streams exactly once", value=streams, required=required, goal=goal)
        yield Bar(workload=name, text="× Quix Streams exactly once", value=quix, required=3, goal=4)
    for name, required, goal in (("W3-4p", 1.5, 2.0), ("W4-4p", 1.0, 1.5)):
        streams = against(["streams-eos-2"])
        text = "in 2 processes, × Kafka Streams with 2 threads"
        yield Bar(workload=name, text=text, value=streams, required=required, goal=goal)
    yield Bar(workload="W5", text="of the hottest key's bound", value=of_bound, required=0.9, goal=0.95)
    yield Bar(workload="W5", text="× the best Parallel Consumer", value=against(PC), required=1)
    limits: dict[str, Any] = {"is_limit": True, "workload": "W6"}
    yield Bar(text="committed records run again", value=worst("committed_again"), required=0, **limits)
    text = "run again, as a share of rate × (interval + lead + transaction)"
    yield Bar(text=text, value=worst("again", of="bound"), required=1, **limits)
    yield Bar(text="run again after a quiet log", value=worst("again_quiet"), required=1, **limits)
    text = "restarts, of two, that left the stuck record out"
    yield Bar(text=text, value=worst("stuck_left_out"), required=0, **limits)
    for name in ("doubled", "missing", "out_of_order", "damaged"):
        text = f"outputs {name.replace('_', ' ')}"
        yield Bar(text=text, value=worst(f"outputs_{name}"), required=0, **limits)
    for name in ("p50", "p99", "p99.9"):
        value = against(PC, name, least=True)
        text = f"{name}, × the best Parallel Consumer"
        yield Bar(workload="W7-handled", text=text, value=value, required=1, is_limit=True)


BARS = tuple(_all_bars())


def judge(content: Content, workloads: Sequence[Workload] = WORKLOADS) -> list[Verdict]:
    """Every bar of these workloads."""
    by_name = {workload.name: workload for workload in workloads}
    return [_verdict(content, bar, by_name[bar.workload]) for bar in BARS if bar.workload in by_name]


def _verdict(content: Content, bar: Bar, workload: Workload) -> Verdict:
    value = bar.value(content, bar.workload)
    if value is None:
        return Verdict(bar, None, False, False, why_not(content, workload) or "no figure")
    holds = value <= bar.required if bar.is_limit else value >= bar.required
    reaches = bar.goal is not None and (value <= bar.goal if bar.is_limit else value >= bar.goal)
    return Verdict(bar, value, holds, reaches, why_not(content, workload))


def own_failures(content: Content) -> list[str]:
    """The failures that are ours. A peer that fails is shown with its reason, and its bars do not count."""
    arms = [(failure.partition(": ")[0].rpartition(", ")[2], failure) for failure in content["failures"]]
    return [failure for arm, failure in arms if arm.startswith(OURS)]


def why_not(content: Content, workload: Workload) -> str:
    """Why bars of a workload do not count; empty when they do."""
    runs = [run for run in content["runs"] if run["workload"] == workload.name]
    rounds = {run["round"] for run in runs}
    name = "p50" if workload.kind == "latency" else "per_second"
    for arm in workload.arms:
        if arm in content["skipped"]:
            return f"{arm} was skipped"
        if not rounds or values(content, workload.name, arm, name).keys() != rounds:
            failed = any(run["arm"] == arm and "failed" in run for run in runs)
            return f"{arm} {'failed' if failed else 'did not run'} in some round"
    if content["settings"]["size"] != "full":
        return "quick sizes"
    return "" if len(rounds) >= ROUNDS_MIN else f"{len(rounds)} of {ROUNDS_MIN} rounds"
