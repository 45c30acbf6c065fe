"""What shall happen to a cluster in a round: drawn from its seed, the same each time."""

import random
from typing import Literal

import msgspec

SESSION_S = 6.0
STOP_S_MAX = 3 * SESSION_S
"""Longer than this nothing may stop progress, beyond what ``Fault.allowed_s`` says."""
DOWN_S = SESSION_S + 2.0
"""So long a node stays dead: somebody else must take over meanwhile."""

Deed = Literal["kill", "hang", "stop", "cut", "quorum", "move", "restart application", "application and leader"]
Target = Literal["source", "offset log", "coordinator", ""]
LEADERS: tuple[Target, ...] = ("source", "offset log")
TARGETS: tuple[Target, ...] = (*LEADERS, "coordinator")


class Fault(msgspec.Struct, frozen=True):
    """A deed, and whom it meets: the leader of a partition of the source or of the offset log, or the coordinator of
    the application's transactions. ``seconds``: how long a node hangs or is cut off.
    """

    deed: Deed
    target: Target = ""
    partition: int = 0
    seconds: float = 0.0

    def told(self) -> str:
        """In words, as the table has it."""
        whom = {"": "", "source": "leader of the source", "offset log": "leader of the offset log"}
        node = whom.get(self.target, self.target)
        return {
            "kill": f"kill -9, {node}",
            "hang": f"SIGSTOP {self.seconds:.0f} s, {node}",
            "stop": f"SIGTERM, {node}",
            "cut": f"network cut {self.seconds:.0f} s, {node}",
            "quorum": "kill -9 of all nodes, beyond their absence",
            "move": "all leaders moved",
            "restart application": "kill -9 of the application",
            "application and leader": f"kill -9 of the application and the {node}",
        }[self.deed]

    @property
    def allowed_s(self) -> float:
        """How long it may stop progress. A node that only the application does not reach goes on leading: until it is
        reached again, nobody can write there.
        """
        return STOP_S_MAX + (self.seconds if self.deed == "cut" else 0.0)


class ClusterRound(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what. ``rate``: records a second, bursts come on top; ``hang_s``, ``cut_s``: how long a node hangs or
    is cut off.
    """

    seed: int
    rate: float = 80.0
    hang_s: float = 20.0
    cut_s: float = 8.0
    is_whole: bool = False
    """Every deed on every target; else a few that are drawn, for a test that lasts four minutes."""
    has_hangs: bool = True


def draw(round_: ClusterRound, partitions: int) -> list[Fault]:
    """The faults of a round, in their order."""
    chance = random.Random(f"cluster {round_.seed}")

    def on(deed: Deed, targets: tuple[Target, ...] = TARGETS, seconds: float = 0.0) -> list[Fault]:
        chosen = targets if round_.is_whole else (chance.choice(targets),)
        return [Fault(deed, target, chance.randrange(partitions), seconds) for target in chosen]

    found = on("kill")
    found += on("hang", seconds=round_.hang_s) if round_.has_hangs else []
    found += [*on("stop"), *on("cut", LEADERS, round_.cut_s), Fault("quorum"), Fault("move")]
    found += on("application and leader", LEADERS)
    found += [Fault("restart application")] if round_.is_whole else []
    chance.shuffle(found)
    return found
