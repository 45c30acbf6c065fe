"""What shall happen to a group of processes in a round: drawn from its seed, the same each time."""

import random
from typing import Literal

import msgspec

SESSION_S = 8.0
BEAT_S = 1.0
BELOW_S = SESSION_S / 2
"""So long a pause expels nobody."""
BEYOND_S = SESSION_S + 2.0
"""So long one is paused on after it was expelled."""
AWAY_S = 20.0
"""So long the leaders of topics are away."""

Deed = Literal[
    "killed",
    "killed and away",
    "paused",
    "paused and expelled",
    "stopped",
    "joined",
    "restarted",
    "leaders killed",
    "leaders paused",
]
Role = Literal["coordinator", "member"]
Topic = Literal["signals", "control"]
ROLES: tuple[Role, ...] = ("coordinator", "member")
DEEDS: tuple[Deed, ...] = ("killed", "killed and away", "paused", "paused and expelled")
LEADERS: tuple[Deed, ...] = ("leaders killed", "leaders paused")
LOGS: tuple[tuple[Topic, ...], ...] = (("signals",), ("control",), ("signals", "control"))


class GroupFault(msgspec.Struct, frozen=True):
    """A deed, and whom it meets: a process by its role, ``members`` of them, or the nodes that lead topics of the
    application.
    """

    deed: Deed
    role: Role | None = None
    topics: tuple[Topic, ...] = ()
    members: int = 1

    def told(self) -> str:
        """In words, as a table has it."""
        whom = f"the {self.role}" if self.role else ""
        leaders = f"the leaders of {' and '.join(self.topics)}"
        return {
            "killed": f"kill -9 of {whom}, started again at once",
            "killed and away": f"kill -9 of {whom}, started again when it was expelled",
            "paused": f"SIGSTOP of {whom} for {BELOW_S:.0f} s, half a session",
            "paused and expelled": f"SIGSTOP of {whom} until it was expelled, and {BEYOND_S:.0f} s more",
            "stopped": f"stop in order of {whom}, started again",
            "joined": "one more process joins",
            "restarted": "rolling restart",
            "leaders killed": f"kill -9 of {leaders} for {AWAY_S:.0f} s",
            "leaders paused": f"SIGSTOP of {leaders} for {AWAY_S:.0f} s",
        }[self.deed]

    @property
    def causes(self) -> tuple[str, ...]:
        """Why members may be expelled by it: each one that it meets, once, and nobody else."""
        match self.deed:
            case "killed":
                return ("superseded",)
            case "killed and away" | "paused and expelled":
                return ("silent",)
            case "stopped" | "restarted":
                return ("left",) * self.members
            case _:
                return ()

    @property
    def may_elect(self) -> bool:
        """Whether another coordinator may be elected: never while the one there is lives."""
        return self.deed == "restarted" or (self.role == "coordinator" and self.deed != "paused")


JOIN = GroupFault("joined")


class GroupRound(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what. ``nodes``: 1 or 3; ``members`` that begin, of a source with so many ``partitions``; ``rate``:
    records a second, bursts come on top; ``busy_ms``: how long each keeps its handler; ``is_whole``: every deed on
    everybody, else some that are drawn: of three nodes those to nodes, of one those to processes.

    ``is_moving``: somebody asks all the time that ranges move. ``standbys``: copies of each range, at rest.
    """

    seed: int
    nodes: int = 1
    members: int = 3
    partitions: int = 4
    rate: float = 80.0
    busy_ms: float = 0.0
    is_moving: bool = False
    standbys: int = 0
    is_whole: bool = False


def draw(round_: GroupRound) -> list[GroupFault]:
    """The faults of a round, in their order."""
    chance = random.Random(f"group {round_.seed}")
    of_processes = [GroupFault(deed, role) for deed in DEEDS for role in ROLES]
    stops = [GroupFault("stopped", role) for role in ROLES]
    logs = LOGS if round_.nodes > 1 else LOGS[-1:]  # of one node all are led by the same
    of_nodes = [GroupFault(deed, None, topics) for deed in LEADERS for topics in logs]
    if round_.is_whole:
        found = [*of_processes, *stops, *of_nodes, JOIN, GroupFault("restarted", members=round_.members)]
    elif round_.nodes > 1:
        found = [*(GroupFault(deed, None, LOGS[-1]) for deed in LEADERS), chance.choice(of_processes)]
    else:
        roles = chance.sample(ROLES, 2)  # each deed meets one of them, and each of them a pause beyond or a kill
        found = [GroupFault("killed", roles[0]), GroupFault("killed and away", roles[1])]
        found += [GroupFault("paused", roles[1]), GroupFault("paused and expelled", roles[0])]
        found += [chance.choice(stops), JOIN]
    chance.shuffle(found)
    return found
