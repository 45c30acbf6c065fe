"""What rounds of chaos have in common: nodes, a loader, processes of the application, a plan, a story, judges."""

import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic

from keylanes.devkafka.cluster import KafkaCluster
from keylanes.devkafka.node import SMALL
from keylanes.devkafka.ports import free_port
from keylanes.offsets.codec import decode
from keylanes.offsets.events import Committed

from ..stage.leaders import Leaders
from . import cluster_chaos_app
from .chaos_app import PARTITIONS, Told
from .chaos_audit import Asked, Audited, audit
from .chaos_loader import Loader
from .chaos_process import ChaosError, Process
from .cluster_check import DEAD, FIN, MID, SOURCE, longest_gap, read

NAME = "chaos"
OFFSETS = f"{NAME}.offsets"
TOPICS = (SOURCE, MID, FIN, DEAD)
LOOK_S = 0.02
RECORDS_MAX = 10_000_000
"""The loader goes on until it is told to finish."""


class Judged(Audited, kw_only=True):
    """What was done in a round on a cluster, and what both judges found; ``checked``, what the independent check found,
    is empty, or the round has raised.
    """

    commits: int = 0
    starts: int = 0
    stops: list[tuple[str, float]] = msgspec.field(default_factory=list)
    """Each fault, and how many seconds it stopped progress, in their order."""
    checked: dict[str, int] = msgspec.field(default_factory=dict)

    def all_found(self) -> dict[str, int]:
        """By the audit and by the check."""
        return {**self.found, **self.checked}

    def table(self) -> str:
        """Fault and seconds without progress, as Markdown."""
        rows = [f"| {name} | {seconds:.1f} |" for name, seconds in self.stops]
        return "\n".join(["| fault | seconds without progress |", "|---|---:|", *rows])


class Planned(Protocol):
    """One thing of a plan."""

    def told(self) -> str:
        """In words."""


Happens = TypeVar("Happens", bound=Planned)
Judging = TypeVar("Judging", bound=Audited)
Hear = Callable[[dict[str, int]], object]


def commits_of(bootstrap: str, times: Sequence[tuple[float, float]]) -> tuple[int, list[float]]:
    """How many commits stand in the offset log, and the longest gap between two within each of these times (s)."""
    rows = [row for row in read(bootstrap, OFFSETS) if isinstance(decode(row.value), Committed)]
    at = sorted(row.timestamp / 1000 for row in rows)
    return len(rows), [longest_gap(at, *one) for one in times]


class ChaosStage(ABC, Generic[Happens]):
    """A round in ``folder``, and its judges: what is in ``plan`` happens. ``session_ms``: of the nodes; ``topics``, of
    so many ``partitions``; ``is_proxied``: clients may reach each node through a proxy.
    """

    def __init__(
        self,
        plan: Sequence[Happens],
        folder: Path,
        tell: Callable[[str], None],
        *,
        nodes: int,
        session_ms: int | None = None,
        topics: Sequence[str] = TOPICS,
        partitions: int = PARTITIONS,
        is_proxied: bool = False,
    ) -> None:
        self.plan, self.folder, self._tell = plan, folder, tell
        self._topics, self.partitions = topics, partitions
        self.story: list[str] = []
        self._began = time.monotonic()
        self.cluster = KafkaCluster(
            folder / "kafka",
            nodes,
            session_ms=session_ms,
            proxied_ports={number: free_port() for number in range(1, nodes + 1)} if is_proxied else None,
            java_options=("-Xmx384m", *SMALL[1:]),
        )
        self.loader: Loader | None = None
        self.processes: list[Process] = []
        self.written = 0

    @abstractmethod
    def begin(self) -> None:
        """All that is at work before anything happens."""

    @abstractmethod
    def happen(self, happening: Happens) -> None:
        """One thing, from an application at work to one that is at work again."""

    @abstractmethod
    def heal(self) -> None:
        """No more faults: all is written, and the application works until it is level."""

    def play(self, round_: object, figures: Judging, judge: Callable[[], None], hear_found: Hear) -> Judging:
        """Play the plan, ``judge`` what came of it, and delete the folder when all went well; the figures.

        Raises ChaosError with what happened; ``hear_found`` hears then what was found. All is ended in any case.
        """
        try:
            self.begin()
            for number, happening in enumerate(self.plan, 1):
                self.say(f"{number} of {len(self.plan)}: {happening.told()}")
                self.happen(happening)
            self.heal()
            judge()
        except BaseException as error:
            hear_found(figures.all_found())
            for line in (f"{round_}", f"{figures}", *self.story[-16:], self.tails()):
                error.add_note(line)
            raise
        finally:
            self.end()
            figures.seconds = self.seconds()
        shutil.rmtree(self.folder, ignore_errors=True)
        return figures

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
            (self.folder / name).mkdir(parents=True)
        self.cluster.start()
        self.say("the cluster is ready")
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        for made in admin.create_topics([NewTopic(topic, self.partitions) for topic in self._topics]).values():
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

    def process(
        self,
        address: str,
        settings: Mapping[str, Any],
        *,
        slot: int = 0,
        script: str = cluster_chaos_app.__file__,
        **told: object,
    ) -> Process:
        """One more process of the application, which knows its folder of state by the number ``slot``."""
        values: dict[str, Any] = {
            "address": address,
            "name": NAME, "source": SOURCE, "late": MID, "dead": DEAD, "notes": "",
            "settings": {"state_folder": str(self.folder / "state"), **settings},
            **told,
        }  # fmt: skip
        number = len(self.processes)
        made = Process(msgspec.convert(values, Told), self.folder / "processes", number, slot, script)
        self.processes.append(made)
        return made

    def tails(self) -> str:
        """The ends of what the last processes said."""
        last = self.processes[-4:]
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
