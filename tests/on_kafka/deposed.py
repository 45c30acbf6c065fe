"""A leader that was deposed and still answers, on a real Kafka of three nodes: nothing is doubled, lost or reordered.

    python -m tests.on_kafka.deposed                        the whole matrix, three runs of each case: hours
    python -m tests.on_kafka.deposed --led offsets --member killed --version 2 --runs 1

Broker 1 leads one log, loses its peers, and goes on answering clients. Meanwhile something happens to member A of the
application. Another client judges what was written. One run takes about 100 s. Runs have variants, in turn:

    1  stateful, quiet    no record comes around the cut, so that no transaction is open
    2  plain, quiet       without state: no changelog tells that an offset log was read too early
    3  stateful, busy     records come all the time

Needs root, ``ip``, ``tc``, ``ss``, ``setpriv`` and Java; where network namespaces can't be made it says "not run".
Exit code 1: something is doubled, lost, out of order or miscounted; a member ended with an exit code that blames a log,
a topic, a declaration or keylanes; the application did not go on during the cut or after it, or did not start again
afterwards. Exit code 2: another process runs the same; 77: not run. The output of all processes is in FOLDER/runs.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import msgspec
from confluent_kafka import KafkaException

from keylanes.devkafka.guard import process_start
from keylanes.devkafka.jars import KafkaServerError
from keylanes.errors import StoreError

from .deposed_cases import FATES, LOGS, VERSIONS, Case, Outcome, Version, chosen, table, variant
from .deposed_cluster import DeposedCluster
from .deposed_network import Network, NotPossible, remove, why_not
from .deposed_run import MEMBERS, CaseRun, Lab

FOLDER = Path(tempfile.gettempdir()) / "keylanes-deposed"
TROUBLE = (AssertionError, KafkaException, KafkaServerError, NotPossible, OSError, RuntimeError, StoreError, ValueError)
"""What spoils a run, and no finding: the run counts as failed, and the cluster is made anew."""


class Matrix:
    """The chosen cases, run after run. ``folder``: for the cluster and the output of the processes."""

    def __init__(self, cases: Sequence[Case], runs: Sequence[int], folder: Path) -> None:
        self._cases, self._runs, self._folder = cases, runs, folder
        self.found: dict[Case, list[Outcome]] = {case: [] for case in cases}
        self._network = Network(MEMBERS)
        self._cluster: DeposedCluster | None = None
        self._version: Version | None = None
        self._began = time.monotonic()

    def run(self) -> None:
        """Run all cases; ``found`` grows meanwhile. No process and no link is left in any case."""
        try:
            self._network.make()
            wanted = [(case, run) for case in self._cases for run in self._runs]
            for number, (case, run) in enumerate(wanted, 1):
                self._tell(f"== {number} of {len(wanted)}: {case.name}, run {run} ({variant(case, run).name})")
                outcome = self._run_one(case, run)
                self.found[case].append(outcome)
                self._write()
                self._tell(f"== {case.name}, run {run}: {', '.join(outcome.faults) or 'all is well'}")
        finally:
            self._stop_cluster()
            remove()

    def _run_one(self, case: Case, run: int) -> Outcome:
        folder = self._folder / "runs" / f"{case.led}-{case.fate}-{case.version}-{run}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            cluster = self._started(case.version)
            return CaseRun(case, run, Lab(cluster, self._network, self._tell), folder).run()
        except TROUBLE as error:
            for line in traceback.format_exception(error):
                self._tell(line.rstrip())
            self._stop_cluster()
            return Outcome(run=run, failed=repr(error)[:300])

    def _started(self, version: Version) -> DeposedCluster:
        """The cluster of a version. There is one cluster at a time: the other version's is stopped and deleted."""
        if self._cluster is None or self._version != version:
            self._stop_cluster()
            shutil.rmtree(self._folder / "kafka", ignore_errors=True)
            self._tell(f"starting a cluster with transaction.version {version}")
            self._cluster, self._version = DeposedCluster(self._folder / "kafka", version), version
            self._cluster.start()
            self._tell("the cluster is ready")
        return self._cluster

    def _stop_cluster(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.stop()

    def _write(self) -> None:
        """Write the table and the outcomes up to now."""
        (self._folder / "table.md").write_text(table(list(self.found.items())) + "\n", encoding="utf-8")
        lines = [{"case": case.name, **msgspec.to_builtins(one)} for case, runs in self.found.items() for one in runs]
        (self._folder / "outcomes.json").write_text(json.dumps(lines, indent=1), encoding="utf-8")

    def _tell(self, what: str) -> None:
        say(f"{time.monotonic() - self._began:7.1f} s  {what}")


def say(line: str) -> None:
    """A line of progress."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def claim(folder: Path) -> str:
    """Take the folder, the namespaces and the addresses for this process; the reason for a refusal, or "".

    Leftovers of an aborted run are removed.
    """
    path = folder / "owner.json"
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        owner = {}
    if owner and owner["start"] and process_start(owner["pid"]) == owner["start"]:
        return f"process {owner['pid']} runs the same in {folder}"
    for left in remove():
        say(f"removed what an earlier run left: {left}")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pid": os.getpid(), "start": process_start(os.getpid())}), encoding="utf-8")
    return ""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.on_kafka.deposed", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--led", action="append", default=[], choices=LOGS, help="the log that broker 1 leads; repeat")
    parser.add_argument("--member", action="append", default=[], choices=FATES, help="what happens to member A; repeat")
    parser.add_argument("--version", action="append", default=[], type=int, choices=VERSIONS,
                        help="the cluster's transaction.version; repeat")  # fmt: skip
    parser.add_argument("--runs", type=int, default=3,
                        help="of each case, in its variants in turn. Default: 3")  # fmt: skip
    parser.add_argument("--run", action="append", default=[], type=int, metavar="N",
                        help="only the N-th run of each case, and so its variant; repeat")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"for logs and results. Default: {FOLDER}")
    parser.add_argument("--list", action="store_true", help="show the chosen cases and end")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the chosen cases; the exit code."""
    asked = parse(arguments)
    cases = chosen(asked.led, asked.member, asked.version)
    if asked.list:
        say("\n".join(case.name for case in cases))
        return 0
    if reason := why_not():
        say(f"not run: {reason}")
        return 77
    if reason := claim(asked.folder):
        say(f"can't run: {reason}")
        return 2
    runs = asked.run or list(range(1, asked.runs + 1))
    matrix = Matrix(cases, runs, asked.folder)
    try:
        matrix.run()
    except KeyboardInterrupt:
        say("interrupted")
    finally:
        shutil.rmtree(asked.folder / "kafka", ignore_errors=True)
        (asked.folder / "owner.json").unlink(missing_ok=True)
    say("\n" + table(list(matrix.found.items())))
    for case, outcomes in matrix.found.items():
        for one in outcomes:
            for note in one.notes:
                say(f"- {case.name}, run {one.run}: {note}")
    is_whole = all(len(outcomes) == len(runs) for outcomes in matrix.found.values())
    return 0 if is_whole and not any(one.faults for outcomes in matrix.found.values() for one in outcomes) else 1


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM and SIGHUP end the program as Ctrl-C does: in order."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    raise SystemExit(main(sys.argv[1:]))
