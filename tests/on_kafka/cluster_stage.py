"""What rounds of chaos on a cluster have in common: nodes, a loader, processes of the application, and a story."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic

from keylanes.devkafka.cluster import KafkaCluster
from keylanes.devkafka.node import SMALL

from ..stage.leaders import Leaders
from . import cluster_chaos_app
from .chaos_app import PARTITIONS, Told
from .chaos_loader import Loader
from .chaos_process import ChaosError, Process
from .cluster_check import DEAD, FIN, MID, SOURCE

NAME = "chaos"
OFFSETS = f"{NAME}.offsets"
TOPICS = (SOURCE, MID, FIN, DEAD)
LOOK_S = 0.02
RECORDS_MAX = 10_000_000
"""The loader goes on until it is told to finish."""


class ClusterStage:
    """Begin and end of a round in ``folder``. ``session_ms``: of the nodes; ``proxied_ports``: by number of a node."""

    def __init__(
        self,
        folder: Path,
        tell: Callable[[str], None],
        *,
        nodes: int,
        session_ms: int,
        proxied_ports: Mapping[int, int] | None = None,
    ) -> None:
        self.folder, self._tell = folder, tell
        self.story: list[str] = []
        self._began = time.monotonic()
        self.cluster = KafkaCluster(
            folder / "kafka",
            nodes,
            session_ms=session_ms,
            proxied_ports=proxied_ports,
            java_options=("-Xmx384m", *SMALL[1:]),
        )
        self.loader: Loader | None = None
        self.processes: list[Process] = []
        self.written = 0

    def say(self, what: str) -> None:
        """One line of the story."""
        line = f"{self.seconds():6.1f} s  {what}"
        self.story.append(line)
        self._tell(line)

    def seconds(self) -> float:
        """Since the round began."""
        return time.monotonic() - self._began

    def open(self) -> None:
        """The nodes and the topics."""
        for name in ("state", "processes"):
            (self.folder / name).mkdir()
        self.cluster.start()
        self.say("the cluster is ready")
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        for made in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in TOPICS]).values():
            made.result(60)
        self.leaders = Leaders(self.cluster)

    def load(self, rate: float, seed: int) -> None:
        """So many records a second, from here on until ``close_source``."""
        self.loader = Loader(self.cluster.bootstrap, SOURCE, RECORDS_MAX, rate, seed, first=0.0)
        self.loader.start()

    def close_source(self) -> None:
        """All is written."""
        assert self.loader is not None, "the round has begun"
        self.written = self.loader.finish(is_enough=True)

    def process(self, address: str, settings: Mapping[str, Any], **told: object) -> Process:
        """One more process of the application."""
        values: dict[str, Any] = {
            "address": address,
            "name": NAME, "source": SOURCE, "late": MID, "dead": DEAD, "notes": "",
            "settings": {**settings, "state_folder": str(self.folder / "state")},
            **told,
        }  # fmt: skip
        script, number = cluster_chaos_app.__file__, len(self.processes)
        made = Process(msgspec.convert(values, Told), self.folder / "processes", number, slot=0, script=script)
        self.processes.append(made)
        return made

    def tails(self, count: int = 2) -> str:
        """The ends of what the last processes said."""
        last = self.processes[-count:]
        return "\n".join(f"--- process {one.number}, exit code {one.code}\n{one.tail()}" for one in last)

    def last(self, seconds: float) -> None:
        """A state of things lasts so long: its length is what is tested."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(LOOK_S)

    def end(self) -> None:
        """Nothing is left behind, whatever has happened."""
        for process in self.processes:
            process.close()
        if self.loader is not None:
            self.loader.stop()
        self.cluster.kill()
        shutil.rmtree(self.folder / "kafka", ignore_errors=True)

    def checked(self) -> dict[str, Any]:
        """What the independent check finds, in a process of its own."""
        script = Path(__file__).with_name("cluster_check.py")
        done = subprocess.run(
            [sys.executable, "-P", str(script), self.cluster.bootstrap],
            capture_output=True, text=True, check=False, timeout=600, env={**os.environ, "PYTHONPATH": ""},
        )  # fmt: skip
        if done.returncode not in (0, 1) or not done.stdout:
            raise ChaosError(f"the check ended with code {done.returncode}: {done.stderr[-2_000:]}")
        found: dict[str, Any] = msgspec.json.decode(done.stdout)
        return found
