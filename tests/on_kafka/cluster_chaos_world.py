"""The world of a round of cluster chaos: three nodes, a proxy before each, a loader, the application, and faults."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic

from keylanes.devkafka.cluster import KafkaCluster
from keylanes.devkafka.node import SMALL, KafkaNode
from keylanes.devkafka.ports import free_port

from ..stage.leaders import Leaders
from . import cluster_chaos_app
from .chaos_app import PARTITIONS, Told
from .chaos_loader import Loader
from .chaos_process import UNAVAILABLE, ChaosError, Process
from .chaos_world import Network
from .cluster_chaos_plan import DOWN_S, SESSION_S, ClusterRound, Fault, draw
from .cluster_check import DEAD, FIN, MID, SOURCE

NAME = "chaos"
NODES = 3
OFFSETS = f"{NAME}.offsets"
TOPICS = (SOURCE, MID, FIN, DEAD)
COMMITS = 5
"""So many commits show that the application works."""
LOOK_S = 0.02
SETTINGS = {
    "commit_interval_ms": 40, "commit_lead_ms": 10, "snapshot_every_commits": 200, "group_instance_id": "one",
}  # fmt: skip
RECORDS_MAX = 10_000_000
"""The loader goes on until it is told to finish."""


class Happened(msgspec.Struct):
    """A fault: when it began, from when on progress is owed, when all was mended and works again; s since the epoch."""

    fault: Fault
    began: float
    owed: float
    ended: float
    stopped_s: float = 0.0
    """How long no commit became visible, from ``owed`` on."""


class ClusterWorld:
    """Everything of one round. ``process`` is the application."""

    def __init__(self, round_: ClusterRound, folder: Path, tell: Callable[[str], None]) -> None:
        self.round, self.plan = round_, draw(round_, PARTITIONS)
        self.folder, self._tell = folder, tell
        self.story: list[str] = []
        self._began = time.monotonic()
        ports = {number: free_port() for number in range(1, NODES + 1)}
        self.cluster = KafkaCluster(
            folder / "kafka",
            NODES,
            session_ms=int(SESSION_S * 1000),
            proxied_ports=ports,
            java_options=("-Xmx384m", *SMALL[1:]),
        )
        self.networks: dict[KafkaNode, Network] = {}
        self.loader: Loader | None = None
        self.processes: list[Process] = []
        self.happened: list[Happened] = []
        self.written = self.gave_up = 0

    # --- the frame ---------------------------------------------------------------------------------------------------

    def say(self, what: str) -> None:
        """One line of the story."""
        line = f"{self.seconds():6.1f} s  {what}"
        self.story.append(line)
        self._tell(line)

    def seconds(self) -> float:
        """Since the round began."""
        return time.monotonic() - self._began

    def begin(self) -> None:
        """Nodes, networks, topics, loader, application."""
        for name in ("state", "processes"):
            (self.folder / name).mkdir()
        self.cluster.start()
        self.say("the cluster is ready")
        for node in self.cluster.nodes:
            self.networks[node] = Network(node.proxied_port, node.proxied_listener_port)
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in TOPICS]).values():
            made.result(60)
        self.leaders = Leaders(self.cluster)
        self.loader = Loader(self.cluster.bootstrap, SOURCE, RECORDS_MAX, self.round.rate, self.round.seed, first=0.0)
        self.loader.start()
        self.start()
        self.works()

    @property
    def process(self) -> Process:
        """The process that was started last."""
        return self.processes[-1]

    def start(self, **told: object) -> None:
        """The next process of the application."""
        number = len(self.processes)
        values: dict[str, Any] = {
            "address": "kafka://" + ",".join(f"127.0.0.1:{node.proxied_port}" for node in self.cluster.nodes),
            "name": NAME, "source": SOURCE, "late": MID, "dead": DEAD, "notes": "",
            "settings": {**SETTINGS, "state_folder": str(self.folder / "state")},
            **told,
        }  # fmt: skip
        script = cluster_chaos_app.__file__
        self.processes.append(
            Process(msgspec.convert(values, Told), self.folder / "processes", number, slot=0, script=script)
        )

    def tails(self) -> str:
        """The ends of what the last processes said."""
        return "\n".join(f"--- process {one.number}, exit code {one.code}\n{one.tail()}" for one in self.processes[-2:])

    def works(self, commits: int = COMMITS) -> None:
        """Wait until the application has made so many more commits; one that gave up is counted and has a successor."""
        while not self.process.wait_more("applied", commits):
            if self.process.code != UNAVAILABLE or self.gave_up > 5:
                raise ChaosError(f"the application ended with exit code {self.process.code}")
            self.gave_up += 1
            self.say("the application gave up")
            self.start()

    def heal(self) -> None:
        """No more faults: all is written, and the application works until it is level."""
        self.say("healed")
        assert self.loader is not None, "the round has begun"
        self.written = self.loader.finish(is_enough=True)
        self.process.send(signal.SIGTERM)
        if (code := self.process.ended()) != 0:
            raise ChaosError(f"the application was told to stop and ended with exit code {code}")
        self.start(until="level")
        if (code := self.process.ended()) != 0:
            raise ChaosError(f"the last process ended with exit code {code}")

    def end(self) -> None:
        """Nothing is left behind, whatever has happened."""
        for process in self.processes:
            process.close()
        if self.loader is not None:
            self.loader.stop()
        for network in self.networks.values():
            network.close()
        self.cluster.kill()
        shutil.rmtree(self.folder / "kafka", ignore_errors=True)

    # --- what happens ------------------------------------------------------------------------------------------------

    def happen(self, fault: Fault) -> None:
        """One fault, from an application at work to one that is at work again with all nodes."""
        self.works()
        began = time.time()
        owed = self._do(fault, self._node(fault)) or began
        self.works()
        self.happened.append(Happened(fault, began, owed, time.time()))

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
                self.process.send(signal.SIGKILL)
                node.kill()
                self.process.ended()
                self.start()
                self.works()
                node.start()
            case "restart application", None:
                self.process.send(signal.SIGKILL)
                self.process.ended()
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

    def last(self, seconds: float) -> None:
        """A state of things lasts so long: its length is what is tested."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(LOOK_S)


def checked(world: ClusterWorld) -> dict[str, Any]:
    """What the independent check finds, in a process of its own."""
    script = Path(__file__).with_name("cluster_check.py")
    done = subprocess.run(
        [sys.executable, "-P", str(script), world.cluster.bootstrap],
        capture_output=True, text=True, check=False, timeout=600, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    if done.returncode not in (0, 1) or not done.stdout:
        raise ChaosError(f"the check ended with code {done.returncode}: {done.stderr[-2_000:]}")
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found
