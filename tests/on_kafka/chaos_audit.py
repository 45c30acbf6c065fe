"""What a round of chaos was, in figures, and what Spark says about it."""

import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from keylanes.devkafka.java import java_home
from keylanes.offsets.codec import decode
from keylanes.offsets.control_events import RangesGranted
from keylanes.offsets.events import Committed, RangesReleased, WorkersMerged, WorkerSplit

from ..stage.ground import Ground
from .chaos_process import ChaosError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .chaos_world import World

AUDIT_S = 400.0
KINDS = {
    "lost": ("level", "tile-cover", "record-tile", "output-complete"),
    "doubled": ("output-once", "output-source", "stale-commit"),
    "out of order": ("key-order", "tile-order"),
    "torn": ("transaction-parts", "commit-outputs", "commit-digest"),
    "state differences": ("state-key", "state-partition", "state-beacon", "state"),
}
"""What a violated statement of the audit counts as; the others count as "wrong"."""
CHANGES = {
    "splits": WorkerSplit,
    "merges": WorkersMerged,
    "releases": RangesReleased,
    "grants": RangesGranted,
    "transactions": Committed,
}


class Audited(msgspec.Struct, kw_only=True):
    """What the audit counted and found: ``found`` is all 0, or the round has raised."""

    seed: int
    seconds: float = 0.0
    records: int = 0
    outputs: int = 0
    dead_letters: int = 0
    state_keys: int = 0
    keys_of_copies: int = 0
    found: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys([*KINDS, "wrong"], 0))
    """Violations: lost, doubled, out of order, torn, state differences; anything else is wrong."""
    violated: list[str] = msgspec.field(default_factory=list)
    """The names of the audit's statements that do not hold."""

    def all_found(self) -> dict[str, int]:
        """What a round that failed tells."""
        return self.found

    def take(self, report: dict[str, Any]) -> None:
        """What a report says; raises ChaosError for what is not proven."""
        counts = report["figures"]
        self.records, self.outputs = counts["records"], counts["outputs"]
        self.dead_letters, self.state_keys = counts["dead_letters"], counts["state_keys"]
        self.keys_of_copies = counts.get("keys_of_copies", 0)
        for check in report["checks"]:
            if check["violations"]:
                kind = next((kind for kind, names in KINDS.items() if check["name"] in names), "wrong")
                self.found[kind] += check["violations"]
                self.violated.append(check["name"])
        if self.violated or not report["proven"]:
            raise ChaosError(f"NOT exactly once: {', '.join(self.violated)}: {_examples(report)}")


class Figures(Audited, kw_only=True):
    """What was done in a round, and what the audit found."""

    kills: int = 0
    """SIGKILLs of the application, without those of the broker; as ``stops``, the SIGSTOPs."""
    kills_in_transaction: int = 0
    stops: int = 0
    broker_kills: int = 0
    broker_stops: int = 0
    broker_restarts: int = 0
    starts: int = 0
    fenced: int = 0
    """Processes that ended with exit code 3, because another one took over."""
    shared: int = 0
    """Times that two processes were at work side by side."""
    gave_up: int = 0
    """Processes that ended with exit code 6, because the broker did not answer."""
    faults: dict[str, int] = msgspec.field(default_factory=dict)
    """Of the network, by kind."""
    changes: dict[str, int] = msgspec.field(default_factory=dict)
    """Events in the logs: transactions, splits, merges, releases, grants."""


def judge(world: "World", *, is_level: bool) -> None:
    """Fill in the figures; raises ChaosError when something does not hold. ``is_level``: nothing may be left to do."""
    from .chaos_app import PARTITIONS
    from .chaos_stage import NAME
    from .chaos_world import LATE
    from .cluster_check import DEAD

    figures = world.figures
    figures.faults = {fault.name.lower(): count for fault, count in sorted(world.proxy.met.items(), key=str)}
    figures.changes = changes_of(Ground(world.address), NAME, PARTITIONS)
    world.say("the audit")
    asked = Asked(NAME, world.address, outputs=(LATE,), dead=DEAD, expectation="chaos_expectation", level=is_level)
    report = audit(world.folder, asked)
    world.say(f"the audit took {report['seconds']}")
    figures.take(report)
    if not is_level:
        raise ChaosError("the application did not get level")
    if figures.records != world.written:
        raise ChaosError(f"the loader wrote {world.written} records, the source has {figures.records}")


class Asked(msgspec.Struct, frozen=True):
    """What is audited. ``expectation``: the module beside this one that computes the expected outputs and state;
    ``copies``: the folders of copies.
    """

    app: str
    broker: str
    outputs: tuple[str, ...]
    dead: str
    expectation: str
    level: bool = True
    group: bool = False
    copies: tuple[str, ...] = ()


def audit(folder: Path, asked: Asked) -> dict[str, Any]:
    """The report of an audit: in the Spark session of this process if one runs, else by the command of its own, which
    starts one.
    """
    spark = sys.modules.get("pyspark.sql")
    running = spark.SparkSession.getActiveSession() if spark is not None else None
    return _by_command(folder, asked) if running is None else _within(running, asked)


def _within(running: "SparkSession", asked: Asked) -> dict[str, Any]:
    from keylanes.spark.audit import AuditSpec, audit  # here: `make check` has no Spark

    expectation = importlib.import_module(f".{asked.expectation}", __package__)
    spec = AuditSpec(
        app=asked.app,
        broker=asked.broker,
        outputs=asked.outputs,
        dead_letters=[asked.dead],
        expected=expectation.expected_outputs,
        state=expectation.expected_state,
        level=asked.level,
        group=asked.group,
        copies=asked.copies,
    )
    report: dict[str, Any] = json.loads(audit(running, spec).to_json())
    return report


def _by_command(folder: Path, asked: Asked) -> dict[str, Any]:
    command = ["--app", asked.app, "--broker", asked.broker, "--json", "--dead-letters", asked.dead]
    command += [word for topic in asked.outputs for word in ("--outputs", topic)]
    command += ["--expected", f"{asked.expectation}:expected_outputs", "--state", f"{asked.expectation}:expected_state"]
    command += [word for folder in asked.copies for word in ("--copies", folder)]
    command += [f"--{option}" for option in ("level", "group") if getattr(asked, option)]
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-m", "keylanes.cli.entry", "audit", *command],
        env={**java_home().environment(os.environ), "PYTHONPATH": here},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=AUDIT_S,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise ChaosError(f"the audit ended with code {done.returncode}: {done.stderr[-3_000:]}")
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def _examples(report: dict[str, Any]) -> str:
    broken = [check for check in report["checks"] if check["violations"]]
    return "; ".join(f"{check['name']}: {check['violations']}, {check['examples'][:2]}" for check in broken)


def changes_of(ground: Ground, name: str, partitions: int) -> dict[str, int]:
    """How many events of each kind stand in the logs of an application."""
    counted: Counter[str] = Counter()
    for topic, places in ((f"{name}.control", 1), (f"{name}.offsets", partitions)):
        for partition in range(places):
            for record in ground.read(topic, partition):
                event = decode(record.value or b"")
                counted.update(kind for kind, type_ in CHANGES.items() if isinstance(event, type_))
    return dict(counted)
