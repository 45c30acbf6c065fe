"""PURE. What is required of a hand-over, and whether the runs in a book keep it."""

from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from handing_over.balance import EVEN
from handing_over.sizes import GROUPS, MEMBERS, MOVES_PER_SECOND
from rig.figures import Content
from rig.gaps import percentile

STOOD_MS = {"p50": (0.5, 60.0, 30.0), "p99": (0.99, 300.0, 120.0)}
"""By name: the share of all moves, what is required of it, and what is aimed at."""
MOVES_MIN = 200
UNSEEN_SHARE = 0.02
"""Of so few moves it may not be known how long the range stood still."""
LOAD_SHARE, LATE_S_MAX = 0.97, 2.0
"""Of the load of the moves so much has to come, and what comes last is handled so soon."""
GAP_FREE_S, GAP_TIMES = 0.25, 2.0
EVEN_S_MAX, MOVED_TIMES = 60.0, 1.3
JOIN_S_MAX = 3.0
SNAPSHOT_TIMES, START_FREE_S = 1.1, 0.5


class Verdict(NamedTuple):
    """A bar of a part. ``text``: what is required, with the figures."""

    part: str
    text: str
    holds: bool


def figures(content: Content, part: str, arm: str = "") -> list[dict[str, Any]]:
    """Of the runs of a part, or of one arm of it, that ended well, in the order of the rounds."""
    runs = [run for run in content["runs"] if run["workload"] == part and "figures" in run]
    return [run["figures"] for run in sorted(runs, key=lambda run: run["round"]) if arm in ("", run["arm"])]


def judge(content: Content) -> list[Verdict]:
    """All bars of which something was run."""
    return [
        *_amplification(content),
        *_moves(content),
        *_stays(content),
        *_skew(content),
        *_join(content),
        *_held(content),
    ]


def _amplification(content: Content) -> Iterator[Verdict]:
    for members in MEMBERS:
        if members == 1 or not (runs := figures(content, "amplification", f"wait, {members}")):
            continue
        least = min(run["window_commits_least"] for run in runs)
        records = min(run["window_records_least"] for run in runs)
        text = (
            f"{members} members on 1 partition: each commits records of its own in every 10 s of load; seen at least "
            f"{least:,} commits and {records:,} records"
        )
        yield Verdict("amplification", text, least > 0 and records > 0)


def stood_ms(content: Content) -> list[float]:
    """How long each range that was moved stood still."""
    return [move["stood_ms"] for run in figures(content, "moves") for move in run["moves"]]


def _moves(content: Content) -> Iterator[Verdict]:
    if not (stood := stood_ms(content)):
        return
    for name, (share, most, goal) in STOOD_MS.items():
        found = percentile(stood, share)
        text = f"{len(stood):,} hand-overs: {name} of the time a range stands still is {found:.0f} ms"
        yield Verdict("moves", f"{text}; required below {most:g} ms, aimed at below {goal:g} ms", found < most)
    failed = sum(run["failed"] for run in figures(content, "moves"))
    unseen = sum(run["unseen"] for run in figures(content, "moves"))
    text = f"every hand-over that was asked for came to its end; {failed} did not, and {unseen} had no record on a side"
    yield Verdict("moves", text, failed == 0 and unseen <= UNSEEN_SHARE * len(stood))
    runs = figures(content, "moves")
    rate, late_s = min(run["per_second"] for run in runs), max(run["late_s"] for run in runs)
    text = (
        f"the members keep up with {MOVES_PER_SECOND:,.0f} records/s; seen {rate:,.0f}, {late_s:.1f} s late at the end"
    )
    yield Verdict("moves", text, rate >= LOAD_SHARE * MOVES_PER_SECOND and late_s <= LATE_S_MAX)
    if content["settings"]["size"] == "full":
        yield Verdict(
            "moves", f"at least {MOVES_MIN} hand-overs were measured: {len(stood):,}", len(stood) >= MOVES_MIN
        )


class Gaps(NamedTuple):
    """Of ranges that did not move: p99.9 of the gaps between commits in both windows, medians of the rounds, and the
    longest gap of all while others moved, in s.
    """

    calm_s: float
    busy_s: float
    longest_s: float


def gaps_of(content: Content) -> Gaps | None:
    """All groups of a round taken together; None where there is none."""
    rounds: dict[int, dict[str, list[float]]] = {}
    for run in content["runs"]:
        if run["workload"] == "moves" and "figures" in run:
            of = rounds.setdefault(run["round"], {"calm": [], "busy": []})
            for name, known in of.items():
                known += run["figures"][f"gaps_{name}_s"]
    if not rounds:
        return None
    calm, busy = (median(percentile(of[name], 0.999) for of in rounds.values()) for name in ("calm", "busy"))
    return Gaps(calm, busy, max(max(of["busy"], default=0.0) for of in rounds.values()))


def _stays(content: Content) -> Iterator[Verdict]:
    if (gaps := gaps_of(content)) is None:
        return
    text = (
        f"ranges that stay: 99.9 % of the gaps between commits are below {gaps.busy_s * 1e3:.0f} ms (without moves "
        f"{gaps.calm_s * 1e3:.0f} ms, longest {gaps.longest_s * 1e3:.0f} ms); required at most twice that without "
        "moves, or 250 ms"
    )
    yield Verdict("moves", text, gaps.busy_s <= max(GAP_TIMES * gaps.calm_s, GAP_FREE_S))


def _skew(content: Content) -> Iterator[Verdict]:
    for arm in ("partition", "keys"):
        if not (runs := figures(content, "skew", arm)):
            continue
        times = [run["even_after_s"] for run in runs]
        worst = None if None in times else max(times)
        seen = "it did not come to that" if worst is None else f"seen {worst:.1f} s"
        text = (
            f"traffic skewed to {arm}: the greatest load is at most {max(EVEN, max(r['allowed'] for r in runs)):.2f} "
        )
        text += (
            f"mean loads within {EVEN_S_MAX:g} s; {seen}, {max(r['unevenness_at_end'] for r in runs):.2f} at the end"
        )
        yield Verdict("skew", text, worst is not None and worst <= EVEN_S_MAX)
        moved, least = (median(run[name] for run in runs) for name in ("moved", "least"))
        text = f"traffic skewed to {arm}: {moved:.3f} partitions moved, at least {least:.3f} had to"
        is_little = moved <= MOVED_TIMES * least and worst is not None
        yield Verdict("skew", f"{text}; required at most {MOVED_TIMES:g} times as much", is_little)


def _join(content: Content) -> Iterator[Verdict]:
    for run in figures(content, "join"):
        found = median(run["joined_s"])
        text = f"{len(run['joined_s'])} joins under load: the first range works {found:.2f} s behind JOINED (median; "
        text += f"longest {max(run['joined_s']):.2f} s); required below {JOIN_S_MAX:g} s"
        yield Verdict("join", text, found < JOIN_S_MAX)


def _held(content: Content) -> Iterator[Verdict]:
    for run in figures(content, "held"):
        # Half as many: what a snapshot keeps of epochs has come to its bound then, and numbers to their width.
        last = run["points"][-1]
        first = next(point for point in run["points"] if 2 * point["moves"] >= last["moves"])
        times = last["snapshot_bytes"] / first["snapshot_bytes"]
        more_s = last["start_seconds"] - first["start_seconds"]
        text = f"{last['moves']:,} moves beside a range that is held: a snapshot has {last['snapshot_bytes']:,} bytes, "
        text += f"{times:.2f} times those after {first['moves']:,}; required at most {SNAPSHOT_TIMES:g} times"
        yield Verdict("held", text, times <= SNAPSHOT_TIMES)
        text = (
            f"the same: a start takes {last['start_seconds']:.2f} s, {more_s:+.2f} s against {first['moves']:,} moves; "
        )
        yield Verdict("held", f"{text}required at most {START_FREE_S:g} s more", more_s <= START_FREE_S)


def groups_of(content: Content) -> list[str]:
    """The arms of the moves that were run, in order."""
    return [group.arm for group in GROUPS if figures(content, "moves", group.arm)]
