"""The world of a round of cluster chaos: three nodes, a proxy before each, a loader, the application, and faults."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from keylanes.devkafka.node import KafkaNode

from .chaos_app import PARTITIONS
from .chaos_process import UNAVAILABLE, ChaosError, Process
from .chaos_stage import NAME, OFFSETS, TOPICS, ChaosStage
from .chaos_world import Network
from .cluster_chaos_plan import DOWN_S, SESSION_S, ClusterRound, Fault, draw
from .cluster_check import SOURCE

NODES = 3
COMMITS = 5
"""So many commits show that the application works."""
SETTINGS = {
    "commit_interval_ms": 40, "commit_lead_ms": 10, "snapshot_every_commits": 200, "group_instance_id": "one",
}  # fmt: skip


class Happened(msgspec.Struct):
    """A fault: when it began, from when on progress is owed, when all was mended and works again; s since the epoch."""

    fault: Fault
    began: float
    owed: float
    ended: float
    stopped_s: float = 0.0
    """How long no commit became visible, from ``owed`` on."""
    starting_s: float = 0.0
    """How long a new process took until it ran the application."""

    @property
    def allowed_s(self) -> float:
        """How long it may stop progress: Python's own start is nobody's fault."""
        return self.fault.allowed_s + self.starting_s


class ClusterWorld(ChaosStage[Fault]):
    """Everything of one round."""

    def __init__(self, round_: ClusterRound, folder: Path, tell: Callable[[str], None]) -> None:
        self.round, plan = round_, draw(round_, PARTITIONS)
        super().__init__(plan, folder, tell, nodes=NODES, session_ms=int(SESSION_S * 1000), is_proxied=True)
        self.networks: dict[KafkaNode, Network] = {}
        self.happened: list[Happened] = []
        self.gave_up = 0
        self.starting_s = 0.0

    # --- the frame ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Nodes, networks, topics, loader, application."""
        self.open()
        for node in self.cluster.nodes:
            self.networks[node] = Network(node.proxied_port, node.proxied_listener_port)
        self.load(self.round.rate, self.round.seed)
        self.start()
        self.works()

    @property
    def current(self) -> Process:
        """The process that was started last."""
        return self.processes[-1]

    def start(self, **told: Any) -> None:
        """The next process of the application; returns when its program runs."""
        began = time.monotonic()
        address = "kafka://" + ",".join(f"127.0.0.1:{node.proxied_port}" for node in self.cluster.nodes)
        self.process(address, SETTINGS, **told)
        if not self.current.wait(lambda: self.current.count("begun") > 0, "begun"):
            raise ChaosError(f"the application did not start: {self.current.tail()}")
        self.starting_s = time.monotonic() - began

    def works(self, commits: int = COMMITS) -> None:
        """Wait until the application has made so many more commits; one that gave up is counted and has a successor."""
        while not self.current.wait_more("applied", commits):
            if self.current.code != UNAVAILABLE or self.gave_up > 5:
                raise ChaosError(f"the application ended with exit code {self.current.code}")
            self.gave_up += 1
            self.say("the application gave up")
            self.start()

    def heal(self) -> None:
        """No more faults: all is written, and the application works until it is level."""
        self.say("healed")
        self.close_source()
        self.current.send(signal.SIGTERM)
        if (code := self.current.ended()) != 0:
            raise ChaosError(f"the application was told to stop and ended with exit code {code}")
        self.start(until="level")
        if (code := self.current.ended()) != 0:
            raise ChaosError(f"the last process ended with exit code {code}")

    def end(self) -> None:
        """Nothing is left behind, whatever has happened."""
        for network in self.networks.values():
            network.close()
        super().end()

    # --- what happens ------------------------------------------------------------------------------------------------

    def happen(self, fault: Fault) -> None:
        """One fault, from an application at work to one that is at work again with all nodes."""
        self.works()
        self.starting_s, began = 0.0, time.time()
        owed = self._do(fault, self._node(fault)) or began
        self.works()
        self.happened.append(Happened(fault, began, owed, time.time(), starting_s=self.starting_s))

    def _node(self, fault: Fault) -> KafkaNode | None:
        """Whom it meets."""
        if not fault.target:
            return None
        if fault.target == "coordinator":
            return self.leaders.coordinator(f"{NAME}.")
        return self.leaders.of(SOURCE if fault.target == "source" else OFFSETS, fault.partition)

    def _do(self, fault: Fault, node: KafkaNode | None) -> float | None:
        """Do it and mend it; from when on progress is owed, if not at once."""
        match fault.deed, node:
            case "kill", KafkaNode():
                node.kill()
                self.last(DOWN_S)
                node.start()
            case "stop", KafkaNode():
                node.stop()
                self.works()
                node.start()
            case "hang", KafkaNode():
                node.suspend()
                self.last(fault.seconds)
                node.resume()
            case "cut", KafkaNode():
                self.cut(node, fault.seconds)
            case "application and leader", KafkaNode():
                self.current.send(signal.SIGKILL)
                node.kill()
                self.current.ended()
                self.start()
                self.works()
                node.start()
            case "restart application", None:
                self.current.send(signal.SIGKILL)
                self.current.ended()
                self.start()
            case "quorum", None:
                self.cluster.kill()
                self.cluster.start()
                return time.time()
            case "move", None:
                moved = self.leaders.move([*TOPICS, OFFSETS, "__transaction_state"])
                self.say(f"{moved} partitions are led by others")
            case _:
                raise AssertionError(f"{fault} at {node}")
        return None

    def cut(self, node: KafkaNode, seconds: float) -> None:
        """Nothing passes between the application and a node, which all others still reach."""
        network = self.networks[node]

        def be_silent(is_silent: bool) -> None:
            network.proxy.silent = is_silent

        network.do(lambda: be_silent(True))
        self.last(seconds)
        network.do(lambda: be_silent(False))
