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
from .chaos_audit import Asked, Audited, audit
from .chaos_loader import Loader
from .chaos_process import ChaosError, Process
from .cluster_check import DEAD, FIN, MID, SOURCE

NAME = "chaos"
OFFSETS = f"{NAME}.offsets"
TOPICS = (SOURCE, MID, FIN, DEAD)
LOOK_S = 0.02
RECORDS_MAX = 10_000_000
"""The loader goes on until it is told to finish."""


class Judged(Audited, kw_only=True):
    """What both judges found; ``checked``, what the independent check found, is empty, or the round has raised."""

    checked: dict[str, int] = msgspec.field(default_factory=dict)


class ClusterStage:
    """Begin and end of a round in ``folder``, and its judges. ``session_ms``: of the nodes; ``partitions``: of each
    topic; ``proxied_ports``: by number of a node.
    """

    def __init__(
        self,
        folder: Path,
        tell: Callable[[str], None],
        *,
        nodes: int,
        session_ms: int,
        partitions: int = PARTITIONS,
        proxied_ports: Mapping[int, int] | None = None,
    ) -> None:
        self.folder, self._tell, self.partitions = folder, tell, partitions
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
        for made in admin.create_topics([NewTopic(topic, self.partitions) for topic in TOPICS]).values():
            made.result(60)
        self.leaders = Leaders(self.cluster)

    def load(self, rate: float, seed: int) -> None:
        """So many records a second, from here on until ``close_source``."""
        address, partitions = self.cluster.bootstrap, self.partitions
        self.loader = Loader(address, SOURCE, RECORDS_MAX, rate, seed, first=0.0, partitions=partitions)
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

    def judged(self, figures: Judged, *, group: bool = False) -> dict[str, Any]:
        """Fill in what the check and the audit find; the audit's report, also of the ``group``. Raises ChaosError when
        something does not hold.
        """
        self.say("the check")
        answer = self._checked()
        figures.checked, read_of = answer["found"], answer["read"]
        # The load's own producer may write a record again when all nodes were killed: then the source has it twice, and
        # so must what came of it, which the check compares.
        held = self.written + figures.checked.pop("source doubled", 0)
        self.say("the audit")
        address, expectation = f"kafka://{self.cluster.bootstrap}", "cluster_chaos_expectation"
        copies = (str(self.folder / "state"),)
        asked = Asked(NAME, address, (MID, FIN), DEAD, expectation, group=group, copies=copies)
        report = audit(self.folder, asked)
        self.say(f"the audit took {report['seconds']}")
        figures.take(report)
        if figures.checked:
            raise ChaosError(f"the independent check found {figures.checked}")
        if read_of[MID] + read_of[DEAD] != held or figures.outputs != read_of[MID] + read_of[FIN]:
            raise ChaosError(f"the source holds {held}, the check has read {read_of}, the audit {figures}")
        return report

    def _checked(self) -> dict[str, Any]:
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
