"""What do 10,000 restarts cost the next start? On the embedded broker, which is the fastest to answer.

The logs are written by the decisions of the product: each life is elected, joins, expels and fences the one before it,
is granted all partitions, cuts them and commits some records of each; every so many commits a snapshot is taken. Beside
it stands a start on empty logs. Each start runs in a fresh process on a copy of the folder, the arms in turn. Required:
the start takes at most 2 s longer than on empty logs, and at most 10 MiB more memory. Memory is counted behind a plain
read of the same logs: the embedded broker lives in the process, and its cache is none of the application's.
"""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from keylanes import App, Settings
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import TopicPartition, TopicSpec
from keylanes.keyrange.hashing import HASH_NAME
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import (
    AppCreated,
    CoordinatorElected,
    Decision,
    LevelRaised,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
)
from keylanes.offsets.decide import CommitKey, Move, Turn, decide_commits, decide_grant, decide_opening
from keylanes.offsets.event_values import LEVEL
from keylanes.offsets.events import Event, OffsetEvent, WorkersCut
from keylanes.offsets.ledger import Ledger, evolve_all
from keylanes.offsets.snapshots import take_snapshot
from keylanes.offsets.starts import EARLIEST
from keylanes.runtime.logs.reader import FETCH_RECORDS_MAX, control_topic, offsets_topic
from keylanes.runtime.logs.topics import log_specs
from keylanes.state.topics import NewRecord, TopicStore
from rig.child import in_child, resident_bytes, run_coroutine
from rig.machine import surroundings
from rig.places import FOLDER
from rig.results import print_table, spread, verdict, write_result
from rig.rounds import arguments, run_rounds
from rig.witness import WrongRun

NAME, SOURCE = "restarts", "restarts-source"
PARTITIONS, WORKERS, LIVES = 8, 4, 10_000
ARMS = ("empty", "restarted")
SECONDS_MORE_MAX, MIB_MORE_MAX = 2.0, 10.0
MIB = 1 << 20
WRITTEN_TOGETHER = 5_000


class Lives:
    """The logs of an application that was started so many times, event by event."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.places = [(SOURCE, partition) for partition in range(PARTITIONS)]
        self.commits, self.positions = 0, [0] * PARTITIONS
        self.snapshot_every = Settings().snapshot_every_commits

    def begin(self) -> list[Event]:
        """What stands in front of the first life."""
        return self._folded([AppCreated(NAME, HASH_NAME, PARTITIONS)])

    def control(self, life: int) -> list[Event]:
        """The decisions of a life, from its election to its grants."""
        control, birth = self.ledger.control, f"birth-{life:016d}"
        turn, events = Turn(life), self._folded([CoordinatorElected(life, "", birth, control.app_birth or birth)])
        others = control.unfenced()
        decided: list[Decision] = [LevelRaised(*turn.next(), LEVEL)] if life == 1 else []
        ids, topics = (f"{NAME}.{birth}",), ()
        decided += [
            MemberJoined(*turn.next(), life, "", birth, ids, "host", "", 1.0, LEVEL, topics, (), until_level=False)
        ]
        decided += [MemberExpelled(*turn.next(), member.incarnation, "superseded", 0) for member in others]
        decided += [MemberFenced(*turn.next(), member.incarnation) for member in others]
        if life == 1:
            decided += [PartitionStarted(*turn.next(), *at, 0, EARLIEST, PARTITIONS) for at in self.places]
        events += self._folded(decided)
        grants = [grant for at in self.places for grant in decide_grant(self.ledger, turn, at, life)]
        return [*events, *self._folded(grants)]

    def offsets(self, life: int) -> dict[int, list[OffsetEvent]]:
        """Its two transactions, by partition of the offset log: the cut, and one record of each worker committed."""
        bounds = even_bounds(WORKERS)
        written: dict[int, list[OffsetEvent]] = {partition: [] for partition in range(PARTITIONS)}
        self.commits += 1
        if self.commits % self.snapshot_every == 0:
            for p, at in enumerate(self.places):
                written[p] += take_snapshot(self.ledger, NAME, p, [at], self.positions[p], life, 1)
        moves = [Move(number, first, end, life - 1, life) for number, (first, end) in enumerate(pairwise(bounds))]
        keys = [(CommitKey(life, 2, life, *at), moves) for at in self.places]
        for p, at in enumerate(self.places):
            if life == 1:
                written[p].append(decide_opening(NAME, PARTITIONS, p, 1, 1))
            written[p].append(WorkersCut(life, 1, life, *at, 0, bounds))
        for commit in decide_commits(keys):
            written[commit.partition].append(commit)
        for p, events in written.items():
            evolve_all(self.ledger, events)
            self.positions[p] += len(events)
        return written

    def _folded(self, events: list[Any]) -> list[Event]:
        evolve_all(self.ledger, events)
        return events


def written(lives: int) -> Iterator[list[NewRecord]]:
    """The records of both logs, and of the source, in the order in which they came."""
    application, control, offsets = Lives(), control_topic(NAME), offsets_topic(NAME)
    yield [NewRecord(control, 0, None, encode(event)) for event in application.begin()]
    for life in range(1, lives + 1):
        records = [NewRecord(control, 0, None, encode(event)) for event in application.control(life)]
        for partition, events in application.offsets(life).items():
            records += [NewRecord(offsets, partition, None, encode(event)) for event in events]
            records.append(NewRecord(SOURCE, partition, b"key-%d" % life, b"value"))
        yield records


async def create(folder: Path, specs: Sequence[TopicSpec]) -> None:
    """Make topics as the broker makes them."""
    broker = EmbeddedBroker(folder)
    await broker.open()
    try:
        await broker.create(specs)
    finally:
        await broker.close()


def build(folder: Path, lives: int) -> None:
    """A folder of the embedded broker with these logs; only the source, where there was no life."""
    specs = [TopicSpec(SOURCE, PARTITIONS, {})]
    if lives:
        specs += log_specs(NAME, PARTITIONS)
    run_coroutine(create(folder, specs))
    store = TopicStore.open(folder)
    try:
        if lives:
            waiting: list[NewRecord] = []
            for records in written(lives):
                waiting += records
                if len(waiting) >= WRITTEN_TOGETHER:
                    store.append(waiting, timestamp_default=1)
                    waiting = []
            store.append(waiting, timestamp_default=1)
    finally:
        store.close()


async def read_through(folder: str) -> None:
    """Read all records of the topics, and keep none."""
    broker = EmbeddedBroker(Path(folder))
    await broker.open()
    try:
        topics = await broker.describe([SOURCE, control_topic(NAME), offsets_topic(NAME)])
        places = [TopicPartition(name, p) for name, topic in topics.items() for p in range(topic.partitions)]
        marks = await broker.watermarks(places)
        reader = await broker.reader({})
        for place, mark in marks.items():
            reader.assign({place: mark.start})
            while reader.position(place) < mark.high:
                await reader.fetch([place], records_max=FETCH_RECORDS_MAX, wait_ms=0)
        await reader.close()
    finally:
        await broker.close()


def start(folder: str) -> dict[str, float]:
    """Start an application on the folder; how long that took, and the memory it has then."""

    async def run() -> dict[str, float]:
        app = App(NAME, broker=f"embedded:{folder}")

        @app.handler(SOURCE, parallelising_factor=WORKERS)
        async def count(_: bytes) -> None:
            """Nothing."""

        await read_through(folder)
        before, began = resident_bytes(), time.perf_counter()
        async with app:
            return {"seconds": time.perf_counter() - began, "bytes": resident_bytes() - before}

    return run_coroutine(run())


def main() -> int:
    """Run, then report; 0 when the bar holds."""
    parsed = arguments(__doc__, rounds=5).parse_args()
    folder = FOLDER / NAME
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    for arm, lives in zip(ARMS, (0, LIVES), strict=True):
        build(folder / arm, lives)
    print(f"the logs of {LIVES:,} restarts were written in {time.perf_counter() - began:.0f} s", flush=True)

    def run(arm: str, suffix: str) -> dict[str, Any]:
        copy = folder / f"{arm}-{suffix}"
        shutil.copytree(folder / arm, copy)
        try:
            return in_child(start, str(copy))
        finally:
            shutil.rmtree(copy)

    rounds = run_rounds(parsed.rounds, ARMS, run, lambda f: f"{f['seconds']:.2f} s, {f['bytes'] / MIB:.1f} MiB")
    shutil.rmtree(folder)
    figures = {
        arm: {name: spread([run[name] for run in rounds if run["arm"] == arm]) for name in ("seconds", "bytes")}
        for arm in ARMS
    }
    seconds = figures["restarted"]["seconds"]["median"] - figures["empty"]["seconds"]["median"]
    mib = (figures["restarted"]["bytes"]["median"] - figures["empty"]["bytes"]["median"]) / MIB
    rows = [[arm, of["seconds"]["median"], of["bytes"]["median"] / MIB] for arm, of in figures.items()]
    print_table(f"A start after {LIVES:,} restarts", ["logs", "s", "MiB"], rows)
    holds = seconds <= SECONDS_MORE_MAX and mib <= MIB_MORE_MAX
    write_result(NAME, {"rounds": rounds, "figures": figures, "holds": holds, **surroundings()})
    found = f"{seconds:.2f} s and {mib:.1f} MiB more than on empty logs"
    return 0 if verdict(f"at most {SECONDS_MORE_MAX:g} s and {MIB_MORE_MAX:g} MiB more: {found}", holds) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WrongRun as error:
        sys.exit(f"wrong run: {error}")
