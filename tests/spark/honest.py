"""An honest run, written down by a plain program: sources, outputs and logs of an application without the runtime.

A run is planned as values first, so that a test can plant one fault in it, and then stored in an embedded broker's
folder. Everything follows from the seed.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path

import msgspec

from keylanes.brokers.protocol import Headers
from keylanes.keyrange.hashing import HASH_NAME, point_of
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import AppCreated, ControlEvent
from keylanes.offsets.event_values import Band, EpochFold, Piece, Tile
from keylanes.offsets.events import Committed, Event, LogOpened, SnapshotTaken, WorkersCut
from keylanes.offsets.provenance import (
    ATTEMPTS_HEADER,
    DIGEST_MASK,
    ERROR_HEADER,
    HEADER,
    app_id_of,
    encode_provenance,
    output_digest,
    place_seed,
)
from keylanes.state.tables import TABLE_CONFIG
from keylanes.state.topics import NewRecord, TopicStore

from ..stage.log_events import (
    coordinator_elected,
    in_turn,
    member_expelled,
    member_fenced,
    member_joined,
    partition_started,
    ranges_granted,
)

TABLE = "other.changelog.flights.in"
APP, SOURCE, LATE, AUDITED, DEAD = "flights", "flights.in", "late", "audit", "flights.dead"
PROCESS = "process"
APP_ID = app_id_of(f"{PROCESS} 0")
OF_LETTER: Headers = ((ERROR_HEADER, b"ValueError: no"), (ATTEMPTS_HEADER, b"3"))


@dataclass
class Output:
    """A visible output: where it went and which record it is of."""

    destination: str
    key: bytes | None
    value: bytes
    partition: int
    offset: int
    i: int
    n: int
    app_id: bytes = APP_ID
    source: str = SOURCE
    headers: Headers = ()
    """More of them, in front of ours."""

    def record(self, partitions: int) -> NewRecord:
        place = point_of(self.key, self.partition, self.offset) % partitions
        header = encode_provenance(self.app_id, self.source, self.partition, self.offset, self.i, self.n)
        return NewRecord(self.destination, place, self.key, self.value, (*self.headers, (HEADER, header)), 1)


@dataclass
class Run:
    """The plan of a run. Fields are edited by tests to plant faults."""

    partitions: int
    log_partitions: int
    records: list[list[tuple[bytes | None, bytes]]]
    control: list[ControlEvent] = field(default_factory=list)
    """Without numbers: ``control_log`` has them."""
    birth: str = f"{PROCESS} 0"
    events: list[list[Event]] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    trims: dict[tuple[str, int], int] = field(default_factory=dict)
    transactions: list[tuple[list[tuple[int, Event]], list[Output]]] = field(default_factory=list)
    app: str = APP
    control_ms: list[int] = field(default_factory=list)
    events_ms: list[list[int]] = field(default_factory=list)
    """When they are written; 1 where it is not said."""

    def control_log(self) -> list[ControlEvent]:
        """The control log as it is written: each decision has its number."""
        return in_turn(self.control, self.birth)

    def commits(self, log_partition: int = 0) -> list[int]:
        """Where the commit events of a log partition stand."""
        return [i for i, event in enumerate(self.events[log_partition]) if isinstance(event, Committed)]

    def edit_commit(
        self, change: Callable[[Committed], Committed], *, log_partition: int = 0, nth: int = 3
    ) -> Committed:
        """Replace the nth commit event by what ``change`` makes of it; returns what it was."""
        place = self.commits(log_partition)[nth]
        event = self.events[log_partition][place]
        assert isinstance(event, Committed)
        self.events[log_partition][place] = change(event)
        return event

    def store(self, folder: Path) -> str:
        """Write everything to a folder; returns the broker's URL."""
        store = TopicStore.open(folder)
        store.create(SOURCE, self.partitions, {})
        for name in (LATE, AUDITED, DEAD):
            store.create(name, 2, {})
        store.create(TABLE, self.partitions, TABLE_CONFIG)  # in every audit's way: it can't be read as a log
        store.append([NewRecord(TABLE, p, b"key", b"value") for p in range(self.partitions)])
        store.append(
            [NewRecord(SOURCE, p, key, value, (), 1) for p, own in enumerate(self.records) for key, value in own]
        )
        self.write(store)
        for (topic, partition), before in self.trims.items():
            store.trim(topic, partition, before)
        store.close()
        return f"embedded:{folder}"

    def write(self, store: TopicStore) -> None:
        """Its logs and outputs; sources and output topics are there."""
        store.create(f"{self.app}.control", 1, {})
        store.create(f"{self.app}.offsets", self.log_partitions, {})
        logs: list[tuple[str, int, list[Event], list[int]]] = []
        logs.append((f"{self.app}.control", 0, [*self.control_log()], self.control_ms))
        logs += [
            (f"{self.app}.offsets", p, list[Event](own), self.events_ms[p] if self.events_ms else [])
            for p, own in enumerate(self.events)
        ]
        store.append(
            [
                NewRecord(log, p, None, encode(event), (), at_ms)
                for log, p, own, times in logs
                for event, at_ms in zip(own, chain(times, repeat(1)), strict=False)
            ]
        )
        store.append([output.record(2) for output in self.outputs])


def records_of(transaction: tuple[list[tuple[int, Event]], list[Output]]) -> list[NewRecord]:
    """What one transaction writes."""
    events, outputs = transaction
    return [
        *(NewRecord(f"{APP}.offsets", log, None, encode(event), (), 1) for log, event in events),
        *(output.record(2) for output in outputs),
    ]


def outputs_of(partition: int, offset: int, key: bytes | None, value: bytes) -> list[Output]:
    """What the application makes of a record: a dead letter, nothing, or two outputs, by the number in the value."""
    number = int(value)
    if number % 17 == 0:
        return [Output(DEAD, key, value, partition, offset, 0, 1, headers=OF_LETTER)]
    if number % 3:
        return []
    return [
        Output(LATE, key, b"late %d" % number, partition, offset, 0, 2),
        Output(AUDITED, key, b"%d" % offset, partition, offset, 1, 2),
    ]


@dataclass
class Planner:
    """Plays the part of the runtime: workers that move at random, commits that cut along the front."""

    partitions: int = 2
    log_partitions: int = 2
    workers: int = 16
    records: int = 400
    keys: int = 40
    step: int = 50
    restarts: int = 1
    seed: int = 7
    lag: float = 0.2
    keys_apart: bool = False
    """Whether each key lies in one partition, as it does where a partitioner chose that."""
    app: str = APP
    process: str = "process"
    """What its processes call themselves, with a number."""

    def run(self) -> Run:
        """The plan of an honest run that processed every record."""
        run = self._begun()
        for life in range(self.restarts + 1):
            self._life(run, life, self.records * (life + 1) // (self.restarts + 1))
        return run

    def _begun(self) -> Run:
        """Records, and logs in which nobody has joined."""
        self.random = random.Random(self.seed)
        self._transactions = Counter[int]()
        records = [
            [(None if self.random.random() < 0.02 else self._key(p), b"%d" % i) for i in range(self.records)]
            for p in range(self.partitions)
        ]
        run = Run(self.partitions, self.log_partitions, records, app=self.app, birth=f"{self.process} 0")
        run.control = [AppCreated(self.app, HASH_NAME, self.log_partitions)]
        run.events = [
            [LogOpened(self.app, HASH_NAME, p, self.log_partitions, 1, 0)] for p in range(self.log_partitions)
        ]
        self.bounds = even_bounds(self.workers)
        self.edges = [[0] * self.workers for _ in range(self.partitions)]
        self.owner = [
            [self._worker_of(point_of(key, p, i)) for i, (key, _) in enumerate(own)] for p, own in enumerate(records)
        ]
        return run

    def _key(self, p: int) -> bytes:
        number = self.random.randrange(self.keys)
        return b"key %d" % (number * self.partitions + p if self.keys_apart else number)

    def _worker_of(self, point: int) -> int:
        return point * self.workers >> 32

    def _life(self, run: Run, life: int, until: int) -> None:
        incarnation, term, epoch = life + 1, life + 1, life + 1
        run.control += [
            coordinator_elected(term, f"{self.process} {life}"),
            member_joined(term, incarnation, f"{self.process} {life}", f"{self.app}-{incarnation}"),
        ]
        if life:
            run.control += [member_expelled(term, incarnation - 1), member_fenced(term, incarnation - 1)]
        for p in range(self.partitions):
            if life == 0:
                run.control.append(partition_started(term, SOURCE, p, 0, "earliest", 1))
            run.control.append(ranges_granted(term, incarnation, epoch, SOURCE, p, self._bands(p)))
        transaction = 1
        for p in range(self.partitions):
            cut = WorkersCut(incarnation, transaction, epoch, SOURCE, p, 0, self.bounds)
            run.events[p % self.log_partitions].append(cut)
        front = min(min(edges) for edges in self.edges)
        while front < until or (life == self.restarts and any(min(edges) < until for edges in self.edges)):
            front = min(front + self.step, until)
            transaction += 1
            self._commit(run, incarnation, transaction, dict.fromkeys(range(self.partitions), epoch), front)

    def _bands(self, p: int) -> tuple[Band, ...]:
        """What is granted of a partition, from where its workers stand."""
        return tuple(Band(*level) for level in self._levels(p))

    def _levels(self, p: int, over: Iterable[int] | None = None) -> list[tuple[int, int, int]]:
        """(first, end, edge) of neighbours at the same edge, among all workers or these."""
        levels: list[tuple[int, int, int]] = []
        for w in range(self.workers) if over is None else over:
            first, end, edge = self.bounds[w], self.bounds[w + 1], self.edges[p][w]
            if levels and levels[-1][1:] == (first, edge):
                first = levels.pop()[0]
            levels.append((first, end, edge))
        return levels

    def _next(self, incarnation: int) -> int:
        """The number of the next transaction of a member."""
        self._transactions[incarnation] += 1
        return self._transactions[incarnation]

    def _commit(self, run: Run, incarnation: int, transaction: int, epochs: dict[int, int], front: int) -> None:
        """One transaction, of the partitions that have an epoch."""
        commits: list[Committed] = []
        written: list[tuple[int, Event]] = []
        made: list[Output] = []
        for p, epoch in epochs.items():
            moved: list[tuple[int, int, int]] = []
            for w, edge in enumerate(self.edges[p]):
                to = front
                if edge < front and self.random.random() < self.lag:
                    to = self.random.randint(edge, front)
                if to > edge:
                    moved.append((w, edge, to))
            if not moved:
                continue
            outputs = self._outputs(run, p, moved)
            made += outputs
            commits.append(self._committed(incarnation, transaction, epoch, p, self._tiles(moved), outputs))
            for w, _, to in moved:
                self.edges[p][w] = to
        for part, commit in enumerate(commits):
            numbered = msgspec.structs.replace(commit, part=part, parts=len(commits))
            written.append((commit.partition % self.log_partitions, numbered))
            run.events[commit.partition % self.log_partitions].append(numbered)
        run.outputs += made
        run.transactions.append((written, made))

    def _outputs(self, run: Run, p: int, moved: list[tuple[int, int, int]]) -> list[Output]:
        reach = {w: (edge, to) for w, edge, to in moved}
        found: list[Output] = []
        for offset in range(min(edge for _, edge, _ in moved), max(to for _, _, to in moved)):
            span = reach.get(self.owner[p][offset])
            if span and span[0] <= offset < span[1]:
                found += outputs_of(p, offset, *run.records[p][offset])
        app_id = app_id_of(f"{self.process} 0")
        return [replace(output, app_id=app_id) for output in found]

    def _tiles(self, moved: list[tuple[int, int, int]]) -> tuple[Tile, ...]:
        tiles: list[Tile] = []
        for w, edge, to in moved:
            last = tiles[-1] if tiles else None
            if last and last.worker + last.count == w and (last.offset_from, last.offset_to) == (edge, to):
                tiles[-1] = Tile(last.worker, last.count + 1, last.first, self.bounds[w + 1], edge, to)
            else:
                tiles.append(Tile(w, 1, self.bounds[w], self.bounds[w + 1], edge, to))
        return tuple(tiles)

    def _committed(
        self, incarnation: int, transaction: int, epoch: int, p: int, tiles: tuple[Tile, ...], outputs: list[Output]
    ) -> Committed:
        dead = sum(output.destination == DEAD for output in outputs)
        total = digest_of(outputs)
        return Committed(incarnation, transaction, 0, 1, epoch, SOURCE, p, tiles, len(outputs) - dead, dead, total)

    def snapshot(self, run: Run, log_partition: int, position: int) -> tuple[SnapshotTaken, ...]:
        """The snapshots of a log partition as it was at ``position``, from a fold of the plan itself."""
        owned = [p for p in range(self.partitions) if p % self.log_partitions == log_partition]
        taken: list[SnapshotTaken] = []
        for part, p in enumerate(owned):
            edges, starts = [0] * self.workers, [0] * self.workers
            epoch = incarnation = 1
            for event in run.events[log_partition][:position]:
                if isinstance(event, WorkersCut) and event.partition == p:
                    epoch, incarnation, starts = event.epoch, event.incarnation, list(edges)
                if isinstance(event, Committed) and event.partition == p:
                    for tile in event.tiles:
                        for w in range(tile.worker, tile.worker + tile.count):
                            edges[w] = tile.offset_to
            pieces = tuple(
                Piece(self.bounds[w], self.bounds[w + 1], starts[w], edges[w], None, w, False)
                for w in range(self.workers)
            )
            fold = EpochFold(epoch, incarnation, pieces, ())
            taken.append(
                SnapshotTaken(incarnation, 10_000, part, len(owned), APP, position, SOURCE, p, (fold,), (), (), (), ())
            )
        return tuple(taken)


def digest_of(outputs: list[Output]) -> int:
    """The sum of the outputs' digests mod 2**64."""
    total = 0
    for o in outputs:
        total += output_digest(place_seed(SOURCE, o.partition), o.offset, o.i, o.destination)
    return total & DIGEST_MASK
