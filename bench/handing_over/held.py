"""So many moves beside one range that is held throughout: whether what is kept of them, or a start, grows.

The logs are written by the decisions of the product, in this process, without a broker: two members share a partition
of 16 ranges. The first one stays with its owner at its first epoch and gets no further, as beside a record that does
not end; the others go to the other member one after the other, and all of them go on after each move. A start is one
of a fresh process on the embedded broker, whose folder holds the logs.
"""

import shutil
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from handing_over.sizes import Size
from handing_over.stage import said
from keylanes import App
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import TopicSpec
from keylanes.keyrange.hashing import HASH_NAME
from keylanes.keyrange.ranges import KeyRange, even_bounds
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import (
    AppCreated,
    CoordinatorElected,
    LevelRaised,
    MemberJoined,
    PartitionStarted,
    PlanMade,
    ReleaseAsked,
)
from keylanes.offsets.decide import CommitKey, Move, Turn, decide_commits, decide_grant, decide_opening
from keylanes.offsets.event_values import LEVEL, Edge, PlannedMove
from keylanes.offsets.events import Event, RangesReleased, WorkersCut
from keylanes.offsets.ledger import Ledger, evolve_all
from keylanes.offsets.snapshots import take_snapshot
from keylanes.offsets.starts import EARLIEST
from keylanes.runtime.logs.reader import control_topic, offsets_topic
from keylanes.runtime.logs.topics import log_specs
from keylanes.state.topics import NewRecord, TopicStore
from rig.child import in_child, resident_bytes, run_coroutine
from rig.ground import Ground
from rig.places import FOLDER

NAME, SOURCE = "handover-held", "handover-held-source"
PLACE = (SOURCE, 0)
RANGES, MEMBERS = 16, (1, 2)
SNAPSHOT_EVERY, STARTS = 100, 5
DEADLINE_MS = 30_000


class Held:
    """What one range is worked on by: its owner, its epoch, the number of its worker, and how far it has come."""

    def __init__(self, within: KeyRange) -> None:
        self.within = within
        self.owner = self.epoch = self.worker = self.edge = 0


class Group:
    """The logs of the two members, event by event. ``records``: what is to be written of them."""

    def __init__(self) -> None:
        self.ledger, self.records, self.turn = Ledger(), list[NewRecord](), Turn(1)
        bounds = even_bounds(RANGES)
        self.ranges = [Held(KeyRange(a, b)) for a, b in pairwise(bounds)]
        self.transactions = dict.fromkeys(MEMBERS, 0)
        self.position = self.workers = self.moves = self.commits = self.snapshot_bytes = 0
        self._begin()

    def _control(self, *events: Event) -> None:
        evolve_all(self.ledger, events)
        self.records += [NewRecord(control_topic(NAME), 0, None, encode(event)) for event in events]

    def _offsets(self, *events: Event) -> None:
        evolve_all(self.ledger, events)
        self.records += [NewRecord(offsets_topic(NAME), 0, None, encode(event)) for event in events]
        self.position += len(events)

    def _begin(self) -> None:
        births, next_ = [f"birth-{number:016d}" for number in MEMBERS], self.turn.next
        self._control(AppCreated(NAME, HASH_NAME, 1), CoordinatorElected(1, "", births[0], births[0]))
        self._control(LevelRaised(*next_(), LEVEL))
        for number, birth in zip(MEMBERS, births, strict=True):
            ids = (f"{NAME}.{birth}",)
            joined = MemberJoined(*next_(), number, "", birth, ids, "host", "", 1.0, LEVEL, (), (), until_level=False)
            self._control(joined)
        self._control(PartitionStarted(*next_(), *PLACE, 0, EARLIEST, 1))
        self._offsets(decide_opening(NAME, 1, 0, MEMBERS[0], self._transaction(MEMBERS[0])))
        for number, one in enumerate(self.ranges):
            self._grant(one, MEMBERS[number * len(MEMBERS) // RANGES], 0)

    def _transaction(self, incarnation: int) -> int:
        self.transactions[incarnation] += 1
        return self.transactions[incarnation]

    def _grant(self, one: Held, owner: int, move: int) -> None:
        granted = decide_grant(self.ledger, self.turn, PLACE, owner, one.within, move=move)
        self._control(*granted)
        one.owner, one.epoch, one.worker = owner, granted[0].epoch, self.workers
        self.workers += 1
        bounds = (one.within.first, one.within.end)
        self._offsets(WorkersCut(owner, self._transaction(owner), one.epoch, *PLACE, one.worker, bounds))

    def move(self) -> None:
        """The next range goes to the other member, and all but the first one come further."""
        self.moves += 1
        number, one = self.moves, self.ranges[1 + self.moves % (RANGES - 1)]
        target, points = MEMBERS[one.owner == MEMBERS[0]], (one.within.first, one.within.end)
        planned = PlannedMove(number, *PLACE, *points, one.owner, target, 0, 0.0, 0)
        epoch = self.ledger.control.group_epoch
        self._control(PlanMade(*self.turn.next(), number, epoch, "request", 0, 0, 1, (planned,)))
        self._control(ReleaseAsked(*self.turn.next(), number, one.owner, one.epoch, *PLACE, *points, DEADLINE_MS))
        edges = (Edge(*points, one.edge),)
        released = RangesReleased(one.owner, self._transaction(one.owner), one.epoch, *PLACE, number, edges, ())
        self._offsets(released)
        self._grant(one, target, number)
        self._commit()

    def _commit(self) -> None:
        for member in MEMBERS:
            own = [one for one in self.ranges[1:] if one.owner == member]
            transaction = self._transaction(member)
            moves = {
                one.epoch: [Move(one.worker, one.within.first, one.within.end, one.edge, self.moves)] for one in own
            }
            keys = [(CommitKey(member, transaction, epoch, *PLACE), of) for epoch, of in sorted(moves.items())]
            self._offsets(*decide_commits(keys))
            for one in own:
                one.edge = self.moves
        self.commits += len(MEMBERS)
        if self.commits % SNAPSHOT_EVERY == 0:
            self.snapshot()

    def snapshot(self) -> None:
        """Take one, into the log."""
        writer = MEMBERS[0]
        parts = take_snapshot(self.ledger, NAME, 0, [PLACE], self.position, writer, self._transaction(writer))
        self.snapshot_bytes = sum(len(encode(part)) for part in parts)
        self._offsets(*parts)


def run(_ground: Ground, _arm: str, suffix: str, size: Size) -> dict[str, Any]:
    """What is kept, and a start, after some numbers of moves. Raises WrongRun."""
    folder = FOLDER / f"{NAME}-{suffix}"
    shutil.rmtree(folder, ignore_errors=True)
    points = [written(folder / str(moves), moves) for moves in size.held_moves]
    starts: dict[int, list[dict[str, float]]] = {moves: [] for moves in size.held_moves}
    for number in range(STARTS):  # in turn: the machine changes for all of them
        for moves, of in starts.items():
            copy = folder / f"copy-{moves}-{number}"
            shutil.copytree(folder / str(moves), copy)
            of.append(in_child(start, str(copy)))
            shutil.rmtree(copy)
    shutil.rmtree(folder)
    for point in points:
        for name in ("seconds", "bytes"):
            point[f"start_{name}"] = median(one[name] for one in starts[point["moves"]])
        said(
            f"{point['moves']:,} moves: a snapshot of {point['snapshot_bytes']:,} bytes, {point['start_seconds']:.2f} s"
        )
    return {"points": points}


def written(folder: Path, moves: int) -> dict[str, Any]:
    """A folder of the embedded broker with the logs of so many moves; what is kept of them."""
    group = Group()
    for _ in range(moves):
        group.move()
    group.snapshot()
    run_coroutine(_create(folder))
    store = TopicStore.open(folder)
    try:
        source = [NewRecord(SOURCE, 0, b"key-%d" % number, b"value") for number in range(moves + 1)]
        store.append([*group.records, *source], timestamp_default=1)
    finally:
        store.close()
    fold = group.ledger.partition(PLACE)
    control = sum(len(one.value or b"") for one in group.records if one.topic == control_topic(NAME))
    return {
        "moves": moves,
        "snapshot_bytes": group.snapshot_bytes,
        "epochs_kept": len(fold.parts),
        "control_bytes": control,
    }


async def _create(folder: Path) -> None:
    """Make the topics as the broker makes them."""
    broker = EmbeddedBroker(folder)
    await broker.open()
    try:
        await broker.create([TopicSpec(SOURCE, 1, {}), *log_specs(NAME, 1)])
    finally:
        await broker.close()


def start(folder: str) -> dict[str, float]:
    """Start an application on the folder; how long that took, and the memory it has taken then."""

    async def work() -> dict[str, float]:
        app = App(NAME, broker=f"embedded:{folder}")

        @app.handler(SOURCE, parallelising_factor=RANGES)
        async def count(_: bytes) -> None:
            """Nothing."""

        before, began = resident_bytes(), time.perf_counter()
        async with app:
            return {"seconds": time.perf_counter() - began, "bytes": resident_bytes() - before}

    return run_coroutine(work())
