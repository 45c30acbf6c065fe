"""The world of a round of chaos in a group: nodes, a loader, processes that share the work, and what befalls them."""

import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from keylanes.brokers.protocol import BrokerError
from keylanes.errors import FatalError, SettingsError
from keylanes.group.overview import GroupShown, GroupState, MemberShown

from ..stage.groups import group_of
from .chaos_process import LIMIT_S, ChaosError, Process
from .chaos_stage import NAME, ChaosStage
from .cluster_check import MID, SOURCE
from .group_chaos_moves import Mover
from .group_chaos_plan import AWAY_S, BEAT_S, BELOW_S, BEYOND_S, SESSION_S, GroupFault, GroupRound, Role, draw

NODE_SESSION_S = 6.0
LOOK_S = 0.7
MOVE_S = 1.0
"""So often a move is asked for."""
COMMITS_PER_S = 12
"""Of all members together, at most: the machine has few cores."""
SETTINGS = {
    "snapshot_every_commits": 200,
    "session_timeout_ms": int(SESSION_S * 1000),
    "heartbeat_interval_ms": int(BEAT_S * 1000),
    "transaction_timeout_ms": 5_000,
    "return_ms": 4_000,
}


class Befallen(msgspec.Struct):
    """A fault: when it began, and when all members worked again; s since the epoch. ``met``: the incarnations that it
    met; ``stopped_s``: how long no commit became visible.
    """

    fault: GroupFault
    began: float
    ended: float
    met: list[int]
    stopped_s: float = 0.0

    @property
    def may_be_late(self) -> bool:
        """Whether who was killed may have come back behind its session: on a busy machine a start takes that long."""
        return self.fault.deed == "killed" and self.ended - self.began >= SESSION_S


class GroupWorld(ChaosStage[GroupFault]):
    """Everything of one round. ``members``: the processes that are in it, by name."""

    def __init__(self, round_: GroupRound, folder: Path, tell: Callable[[str], None]) -> None:
        self.round = round_
        self.settings = {**SETTINGS, "standbys": round_.standbys}
        session_ms = int(NODE_SESSION_S * 1000)
        super().__init__(
            draw(round_), folder, tell, nodes=round_.nodes, session_ms=session_ms, partitions=round_.partitions
        )
        self.members: dict[str, Process] = {}
        self.befallen: list[Befallen] = []
        self.seen: GroupShown | None = None
        """How the group stood when that was asked last."""
        self.mover: Mover | None = None

    # --- the frame ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Nodes, topics, loader, members."""
        self.open()
        self.load(self.round.rate, self.round.seed)
        for number in range(self.round.members):
            self.start(f"m{number}")
        if self.round.is_moving:
            sources = [(topic, partition) for topic in (SOURCE, MID) for partition in range(self.partitions)]
            seed = self.round.seed
            self.mover = Mover(self.cluster.bootstrap, NAME, sources, lambda: self.seen, seed, MOVE_S)
            self.mover.start()
        self.works()

    def start(self, name: str) -> None:
        """A process under a name."""
        address = f"kafka://{self.cluster.bootstrap}"
        interval_ms = 1_000 * self.round.members // COMMITS_PER_S
        settings = {**self.settings, "commit_interval_ms": interval_ms, "group_instance_id": name}
        self.members[name] = self.process(address, settings, busy_ms=self.round.busy_ms)

    def end(self) -> None:
        """Nothing is left behind."""
        self._rest()
        super().end()

    def _rest(self) -> None:
        """Nobody asks for moves any more."""
        if self.mover is not None:
            self.mover.stop()

    def heal(self) -> None:
        """All is written; the members end in order, and new ones work until all is level."""
        self._rest()
        self.say("healed" + ("" if self.mover is None else f"; {self.mover.asked} moves were asked for"))
        self.close_source()
        for process in self.members.values():
            process.send(signal.SIGTERM)
        self._ended_well(self.members.values(), "was told to stop")
        address = f"kafka://{self.cluster.bootstrap}"
        named = [{**self.settings, "group_instance_id": name} for name in self.members]
        last = [self.process(address, settings, until="level") for settings in named]
        self._ended_well(last, "ran to the level")

    def _ended_well(self, processes: Iterable[Process], why: str) -> None:
        for process in processes:
            if (code := process.ended()) != 0:
                raise ChaosError(f"process {process.number} {why} and ended with exit code {code}")

    # --- how it stands -----------------------------------------------------------------------------------------------

    def shown(self) -> GroupShown | None:
        """How the group stands, by its logs; None while the broker does not tell."""
        try:
            self.seen = group_of(NAME, f"kafka://{self.cluster.bootstrap}", default_api_timeout_ms=5_000)
            return self.seen
        except (SettingsError, FatalError, BrokerError):  # before its logs are made, too
            return None

    def until(self, is_so: Callable[[GroupShown], bool], what: str) -> GroupShown:
        """Wait until the group stands so; no member may end meanwhile. Raises ChaosError in the end."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            if (group := self.shown()) is not None and is_so(group):
                return group
            for name, process in self.members.items():
                if (code := process.code) not in (None, -signal.SIGKILL):
                    raise ChaosError(f"{name} ended with exit code {code} beside the others")
            time.sleep(LOOK_S)
        raise ChaosError(f"the group is not {what} within {LIMIT_S:.0f} s: {group}")

    def works(self) -> GroupShown:
        """Wait until all are there, all is owned and taken up, and each one has committed twice since."""
        before = {name: process.count("applied") for name, process in self.members.items()}

        def is_at_work(group: GroupShown) -> bool:
            commits = {name: process.count("applied") - before[name] for name, process in self.members.items()}
            return self._is_whole(group) and min(commits.values()) >= 2

        self.seen = self.until(is_at_work, "whole and at work")
        return self.seen

    def _is_whole(self, group: GroupShown) -> bool:
        there = [member for member in group.members if member.standing == "member"]
        if {member.instance for member in there} != self.members.keys():
            return False
        # While ranges move all the time, something is always on its way, and one may have nothing for a moment.
        return self.round.is_moving or (group.state is GroupState.RUNNING and all(member.held for member in there))

    def one(self, group: GroupShown, role: Role) -> MemberShown:
        """A member of a role."""
        return next(member for member in group.members if member.is_coordinator == (role == "coordinator"))

    # --- what happens ------------------------------------------------------------------------------------------------

    def happen(self, fault: GroupFault) -> None:
        """One fault, from a group that works, as ``works`` found it, to one that works again."""
        group, began = self.seen, time.time()
        assert group is not None, "it works"
        if fault.role is not None:
            met = [self.one(group, fault.role)]
            self.meet(fault, met[0])
        elif fault.topics:
            met = []
            self.lose_leaders(fault)
        elif fault.deed == "joined":
            met = []
            self.start(f"m{len(self.members)}")
        else:
            met = list(group.members)
            self.roll(list(self.members))
        self.works()
        self.befallen.append(Befallen(fault, began, time.time(), [member.incarnation for member in met]))

    def meet(self, fault: GroupFault, member: MemberShown) -> None:
        """Something befalls a member."""
        name = member.instance
        process = self.members[name]
        self.say(f"it is {name}, incarnation {member.incarnation}")
        if fault.deed in ("killed", "killed and away"):
            process.send(signal.SIGKILL)
            process.ended()
            if fault.deed == "killed and away":
                self.expelled(member)
            self.start(name)
            return
        if fault.deed == "stopped":
            self.roll([name])
            return
        process.send(signal.SIGSTOP)
        if fault.deed == "paused":
            self.last(BELOW_S)
        else:
            self.expelled(member)
            self.last(BEYOND_S)
        process.send(signal.SIGCONT)

    def expelled(self, member: MemberShown) -> None:
        """Wait until the others go on without it, with all that it had."""

        def is_out(group: GroupShown) -> bool:
            there = {one.incarnation for one in group.members if one.standing == "member"}
            is_left = any(f" incarnation {member.incarnation}, which " in wait.why for wait in group.waits)
            is_at_rest = group.state is GroupState.RUNNING or (self.round.is_moving and not is_left)
            return member.incarnation not in there and is_at_rest

        self.until(is_out, f"without incarnation {member.incarnation}")

    def roll(self, names: Iterable[str]) -> None:
        """Each of these is stopped in order and started again, one after the other."""
        for name in names:
            process = self.members[name]
            process.send(signal.SIGTERM)
            self._ended_well([process], "was told to stop")
            self.start(name)
            self.works()

    def lose_leaders(self, fault: GroupFault) -> None:
        """The nodes that lead topics are killed or suspended for a time; of two topics two nodes, so that of three only
        one is left, and nothing can be written.
        """
        led = [self.leaders.of(f"{NAME}.{topic}", 0) for topic in fault.topics]
        nodes = [*led, *(node for node in self.cluster.nodes if node not in led)]
        nodes = [node for at, node in enumerate(nodes) if node not in nodes[:at]][: len(fault.topics)]
        for node in nodes:
            node.kill() if fault.deed == "leaders killed" else node.suspend()
        self.last(AWAY_S)
        for node in nodes:
            node.start() if fault.deed == "leaders killed" else node.resume()
