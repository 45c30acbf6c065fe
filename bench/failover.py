"""What does a change of the group cost? Three processes share 60 partitions under a steady load; they stop and die.

One run does, one after the other, with a steady group in between:

    calm        nothing, for the same time as each change is watched
    stop        a process that does not coordinate is stopped in order; the others have its 20 partitions
    death       such a process is killed; nobody knows until its session is over
    deaths      the process that coordinates and another one are killed together
    rollout     each process is stopped in order and started again, one after the other

Each process notes the record that it has handled, with the time; a partition *stands* from one note to the next. The
arms are keylanes, aiokafka's consumer group, and Java's with the cooperative-sticky assignor; all with the same
session, heartbeats of their own defaults, and commits each 100 ms. Commits of keylanes are read from its offset log.
Required, of keylanes: see ``BARS``.

    --only keylanes …   some arms
"""

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from comparison.arms import java_command
from failing_over.group import Members
from failing_over.notes import again, stops
from keylanes import Settings
from keylanes.cli.application import Named
from keylanes.cli.group_logs import group_at
from rig.broker import known, running_broker
from rig.child import run_coroutine
from rig.drivers import run_module
from rig.errors import Skipped, WrongRun
from rig.gaps import gaps, percentile
from rig.ground import Ground
from rig.logs import ahead_s, whole
from rig.machine import Processors, surroundings
from rig.places import FOLDER, PEERS
from rig.results import print_table, spread, verdict, write_result
from rig.rounds import Figures, arguments, run_rounds

ARMS = ("keylanes", "aiokafka", "java")
NAMES = ("a", "b", "c")
PARTITIONS, PER_PARTITION = 60, 20.0
FACTOR = 4
SESSION_MS = 10_000
WINDOW_S = 10.0
"""How long a stop and a calm time are watched."""
STANDS_S_MAX = 40.0
"""Longer than anything may stand."""
PARTS = ("stop", "death", "deaths")
BARS = {
    "death": ("a member dies: its partitions work again within session + 2 s", SESSION_MS / 1000 + 2),
    "deaths": ("it and the coordinator: within 2 sessions + 3 s", 2 * SESSION_MS / 1000 + 3),
    "stop": ("a stop in order: the longest stop of a moved partition is below 1 s", 1.0),
}
UNMOVED_S = 0.25
"""The others' commits may be so far apart, or twice as far as in a calm time."""


def run_arm(arm: str, suffix: str, bootstrap: str, folder: Path) -> Figures:
    """One run of an arm. Raises WrongRun, Skipped."""
    ground = Ground(bootstrap, folder)
    with ground.scratch(f"failover-{suffix}") as place:
        topic = group = f"failover-{suffix}"
        ground.make(topic, PARTITIONS)
        run_coroutine(known(bootstrap, topic))
        order = {"arm": arm, "bootstrap": bootstrap, "topic": topic, "group": group, "partitions": PARTITIONS}
        order |= {"session_ms": SESSION_MS, "factor": FACTOR, "per_second": PARTITIONS * PER_PARTITION}
        members = Members(command_of(arm), order, place, PARTITIONS)
        load = run_module("failing_over.load", order, place / "loader")
        try:
            for name in NAMES:
                members.start(name)
            return watch(arm, bootstrap, group, members)
        finally:
            load.kill()
            members.end()


def command_of(arm: str) -> list[str]:
    """What starts a process of an arm. Raises Skipped."""
    if arm == "java":
        return [*java_command()[:-1], "keylanes.bench.GroupMember"]
    return [sys.executable, str(PEERS / "failover_apps.py")]


def watch(arm: str, bootstrap: str, group: str, members: Members) -> Figures:
    """All that is done to a group, and what came of it."""
    figures: Figures = {}
    commits_s: list[tuple[str, float, float, set[int]]] = []
    members.steady()
    began_s = time.monotonic()
    members.last(WINDOW_S)
    commits_s.append(("calm", began_s, time.monotonic(), set(range(PARTITIONS))))
    figures["calm_s"] = sorted(seen(members, began_s).values())

    held = members.steady()
    name = others(arm, bootstrap, group)[0]
    doubled, began_s = again(members.look()), time.monotonic()
    members.stop(name)
    members.last(WINDOW_S - (time.monotonic() - began_s))
    commits_s.append(("stop", began_s, time.monotonic(), set(range(PARTITIONS)) - held[name]))
    figures["stop_s"] = moved(members, began_s, held[name])
    figures["stop_again"] = again(members.look()) - doubled
    members.start(name)

    held = members.steady()
    name = others(arm, bootstrap, group)[0]
    figures["death_s"] = killed(members, held, name)
    members.start(name)

    held = members.steady()
    names = [*coordinators(arm, bootstrap, group), *others(arm, bootstrap, group)][:2]
    figures["deaths_s"] = killed(members, held, *names)
    for name in names:
        members.start(name)

    members.steady()
    doubled, began_s = again(members.look()), time.monotonic()
    for name in NAMES:
        members.stop(name)
        members.start(name)
        members.steady()
    figures["rollout_s"] = sorted(seen(members, began_s).values())
    figures["rollout_again"] = again(members.look()) - doubled
    if arm == "keylanes":
        figures |= commit_gaps(bootstrap, group, commits_s)
    return figures


def killed(members: Members, held: dict[str, set[int]], *names: str) -> list[float]:
    """How long each partition of processes that are killed stands."""
    began_s = time.monotonic()
    partitions = set[int]().union(*(held[name] for name in names))
    members.kill(*names)

    def work_again() -> bool:
        now = members.owned()
        return not partitions & set[int]().union(*(now.get(name, set[int]()) for name in names))

    members.last(STANDS_S_MAX, until=work_again)
    return moved(members, began_s, partitions)


def moved(members: Members, began_s: float, partitions: set[int]) -> list[float]:
    """How long each of these stood."""
    return sorted(stop for partition, stop in seen(members, began_s).items() if partition in partitions)


def seen(members: Members, began_s: float) -> dict[int, float]:
    """How long each partition stood at most since then."""
    notes = members.look()
    return stops(((note.partition, note.at_s) for note in notes), began_s, time.monotonic())


def coordinators(arm: str, bootstrap: str, group: str) -> list[str]:
    """Who decides, by name; of Kafka's own groups no process does."""
    if arm != "keylanes":
        return []
    named = Named(group, f"kafka://{bootstrap}", Settings())
    found = run_coroutine(group_at(named, None, lambda: int(time.time() * 1_000)))
    return [member.instance for member in found.group.members if member.is_coordinator]


def others(arm: str, bootstrap: str, group: str) -> list[str]:
    """Who does not decide."""
    return [name for name in NAMES if name not in coordinators(arm, bootstrap, group)]


def commit_gaps(bootstrap: str, group: str, windows: list[tuple[str, float, float, set[int]]]) -> Figures:
    """Of partitions that did not move: the gaps between commits in each window, 99.9th percentile and longest."""
    times: dict[int, list[float]] = {}
    for commit in run_coroutine(whole(bootstrap, group, group)).commits:
        times.setdefault(commit.partition, []).append(commit.at_ms / 1_000 - ahead_s())
    found: Figures = {}
    for name, since_s, until_s, partitions in windows:
        between = [gap for partition in partitions for gap in gaps(times.get(partition, []), since_s, until_s)]
        found |= {f"commits_{name}_p999_s": percentile(between, 0.999), f"commits_{name}_max_s": max(between)}
    return found


def main() -> int:
    """Run the rounds; 0 when the requirements hold."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--only", nargs="+", choices=ARMS, default=ARMS)
    parsed = parser.parse_args()
    where, processors = surroundings(), Processors()
    with running_broker("failover") as bootstrap:
        folder = FOLDER / "failover-runs"

        def run(arm: str, suffix: str) -> Figures:
            try:
                return run_arm(arm, suffix, bootstrap, folder)
            except (WrongRun, Skipped) as error:
                return {"failure": str(error)}

        rounds = run_rounds(parsed.rounds, parsed.only, run, said)
    result = {**where, "stolen_share": processors.stolen_share(), "session_ms": SESSION_MS, "rounds": rounds}
    write_result("failover", result)
    return report(rounds)


def said(figures: Figures) -> str:
    """A run, for a person."""
    if "failure" in figures:
        return str(figures["failure"])
    told = [f"{part} {median(figures[f'{part}_s']):.2f} s, longest {max(figures[f'{part}_s']):.2f} s" for part in PARTS]
    return "; ".join([*told, f"handled again: stop {figures['stop_again']}, rollout {figures['rollout_again']}"])


def report(rounds: list[Figures]) -> int:
    """The tables and the verdicts."""
    good = [figures for figures in rounds if "failure" not in figures]
    rows = []
    for arm in dict.fromkeys(figures["arm"] for figures in good):
        own = [figures for figures in good if figures["arm"] == arm]
        row: list[Any] = [arm]
        for part in PARTS:
            longest = spread([max(figures[f"{part}_s"]) for figures in own])
            middle = median(stop for figures in own for stop in figures[f"{part}_s"])
            row.append(f"{middle:.2f}, {longest['median']:.2f}, {longest['greatest']:.2f}")
        row += [max(figures["stop_again"] for figures in own), max(figures["rollout_again"] for figures in own)]
        rows.append([*row, len(own)])
    print_table(
        "Seconds that a moved partition stands: median of all; median and worst of the runs' longest",
        ["", *PARTS, "handled again: stop", "rollout", "runs"],
        rows,
    )
    own = [figures for figures in good if figures["arm"] == "keylanes"]
    failed = [verdict("every run came to its end", len(good) == len(rounds))]
    if not own:
        return 0 if all(failed) else 1
    for part, (required, bar_s) in BARS.items():
        failed.append(verdict(required, median(max(figures[f"{part}_s"]) for figures in own) <= bar_s))
    calm, stop = (median(figures[f"commits_{name}_p999_s"] for figures in own) for name in ("calm", "stop"))
    longest = max(figures["commits_stop_max_s"] for figures in own)
    failed.append(
        verdict(
            f"unmoved partitions: 99.9 % of the gaps between commits are below {stop * 1000:.0f} ms (calm: "
            f"{calm * 1000:.0f} ms, longest {longest * 1000:.0f} ms); allowed: twice a calm time's, or 250 ms",
            stop <= max(2 * calm, UNMOVED_S),
        )
    )
    doubled = max(figures["stop_again"] + figures["rollout_again"] for figures in own)
    failed.append(verdict("a rollout handles no record again", doubled == 0))
    return 0 if all(failed) else 1


if __name__ == "__main__":
    sys.exit(main())
