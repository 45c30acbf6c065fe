"""A round of chaos on a cluster: three nodes, an application with state under load, and whatever may happen to nodes.

Leaders, coordinators and the whole quorum are killed, suspended and stopped, leaders move, the network to a node is
cut. Then all is healed, the application works until it is level, and two judges look at what it wrote: Spark, from the
logs, and another client with plain Python (cluster_check.py). From outside it is read how long each fault stopped
progress: the time between two commits that stand in the offset log.

What happens is in cluster_chaos_plan.py, how it is done in cluster_chaos_world.py.
"""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from keylanes.offsets.codec import decode
from keylanes.offsets.events import Committed

from .chaos_process import ChaosError
from .cluster_chaos_plan import ClusterRound
from .cluster_chaos_world import ClusterWorld, Happened
from .cluster_check import read
from .cluster_stage import OFFSETS, Judged

__all__ = ["ChaosError", "ClusterFigures", "ClusterRound", "run_cluster_round", "table"]


class ClusterFigures(Judged, kw_only=True):
    """What was done in a round, and what both judges found."""

    seed: int
    seconds: float = 0.0
    commits: int = 0
    starts: int = 0
    gave_up: int = 0
    """Processes that ended with exit code 6, because no broker answered."""
    stops: list[tuple[str, float]] = msgspec.field(default_factory=list)
    """Each fault, and how many seconds it stopped progress, in their order."""


def run_cluster_round(
    round_: ClusterRound,
    folder: Path,
    tell: Callable[[str], None],
    hear_found: Callable[[dict[str, int]], object] = dict,
) -> ClusterFigures:
    """Run a round in a folder of its own, which is deleted when it went well; raises ChaosError with what happened.

    ``tell`` hears one line about each thing that happens; ``hear_found`` what was found in a round that failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    world, figures = ClusterWorld(round_, folder, tell), ClusterFigures(seed=round_.seed)
    try:
        world.begin()
        for number, fault in enumerate(world.plan):
            world.say(f"{number + 1} of {len(world.plan)}: {fault.name}")
            world.happen(fault)
        world.heal()
        judge(world, figures)
    except BaseException as error:
        hear_found({**figures.found, **figures.checked})
        for line in (f"{round_}", table(figures), *world.story[-12:], world.tails()):
            error.add_note(line)
        raise
    finally:
        world.end()
    figures.seconds = world.seconds()
    shutil.rmtree(folder, ignore_errors=True)
    return figures


def judge(world: ClusterWorld, figures: ClusterFigures) -> None:
    """Fill in the figures; raises ChaosError when something does not hold, or took too long."""
    figures.starts, figures.gave_up = len(world.processes), world.gave_up
    figures.commits = measure(world)
    figures.stops = [(one.fault.name, one.stopped_s) for one in world.happened]
    world.judged(figures)
    late = [one for one in world.happened if one.stopped_s > one.allowed_s]
    if late:
        told = ", ".join(f"{one.fault.name}: {one.stopped_s:.1f} s of {one.allowed_s:.1f}" for one in late)
        raise ChaosError(f"progress stopped for too long: {told}")


def measure(world: ClusterWorld) -> int:
    """How long each fault stopped progress, from the times of the commits in the offset log; how many these are."""
    rows = read(world.cluster.bootstrap, OFFSETS)
    times = sorted(row.timestamp / 1000 for row in rows if isinstance(decode(row.value), Committed))
    for one in world.happened:
        one.stopped_s = longest_gap(times, one)
    return len(times)


def longest_gap(times: list[float], one: Happened) -> float:
    """The longest time without a commit between ``owed`` and ``ended``."""
    within = [one.owed, *(at for at in times if one.owed < at < one.ended), one.ended]
    return max(after - before for before, after in itertools.pairwise(within))


def table(figures: ClusterFigures) -> str:
    """Fault and seconds without progress, as Markdown."""
    rows = [f"| {name} | {seconds:.1f} |" for name, seconds in figures.stops]
    return "\n".join(["| fault | seconds without progress |", "|---|---:|", *rows])
