"""A round of chaos on a cluster: three nodes, an application with state under load, and whatever may happen to nodes.

Leaders, coordinators and the whole quorum are killed, suspended and stopped, leaders move, the network to a node is
cut. Then all is healed, the application works until it is level, and two judges look at what it wrote: Spark, from the
logs, and another client with plain Python (cluster_check.py). From outside it is read how long each fault stopped
progress: the time between two commits that stand in the offset log.

What happens is in cluster_chaos_plan.py, how it is done in cluster_chaos_world.py.
"""

from collections.abc import Callable
from pathlib import Path

from .chaos_process import ChaosError
from .chaos_stage import Hear, Judged, commits_of
from .cluster_chaos_plan import ClusterRound
from .cluster_chaos_world import ClusterWorld

__all__ = ["ChaosError", "ClusterFigures", "ClusterRound", "run_cluster_round"]


class ClusterFigures(Judged, kw_only=True):
    """What was done in a round, and what both judges found."""

    gave_up: int = 0
    """Processes that ended with exit code 6, because no broker answered."""


def run_cluster_round(
    round_: ClusterRound, folder: Path, tell: Callable[[str], None], hear_found: Hear = dict
) -> ClusterFigures:
    """Run a round in a folder of its own: see ``ChaosStage.play``. ``tell`` hears one line about each thing."""
    world, figures = ClusterWorld(round_, folder, tell), ClusterFigures(seed=round_.seed)
    return world.play(round_, figures, lambda: judge(world, figures), hear_found)


def judge(world: ClusterWorld, figures: ClusterFigures) -> None:
    """Fill in the figures; raises ChaosError when something does not hold, or took too long."""
    figures.starts, figures.gave_up = len(world.processes), world.gave_up
    figures.commits, gaps = commits_of(world.cluster.bootstrap, [(one.owed, one.ended) for one in world.happened])
    for one, gap in zip(world.happened, gaps, strict=True):
        one.stopped_s = gap
    figures.stops = [(one.fault.told(), one.stopped_s) for one in world.happened]
    world.judged(figures)
    late = [one for one in world.happened if one.stopped_s > one.allowed_s]
    if late:
        told = ", ".join(f"{one.fault.told()}: {one.stopped_s:.1f} s of {one.allowed_s:.1f}" for one in late)
        raise ChaosError(f"progress stopped for too long: {told}")
