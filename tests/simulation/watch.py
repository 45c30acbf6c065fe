"""What must be true of the logs, judged from their bytes after every step: nothing that the runtime knows is asked.

A step is an event of the control log, or a transaction at the moment in which the cluster decides to commit it. What is
committed may be wrong at no time, however right it would become: a reader may look just then, or the application die.

Points are cut into cells wherever a bound occurs. Each cell has an edge, below which all is committed, and a holder,
the newest grant; a tile must begin at the edge of each of its cells, and be its holder's.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from keylanes.brokers.protocol import TopicPartition
from keylanes.keyrange.hashing import SPACE_END, point_of
from keylanes.offsets.codec import decode
from keylanes.offsets.control_events import (
    AppCreated,
    CoordinatorElected,
    CopyAsked,
    CopyEnded,
    Decision,
    EndsPinned,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    MemberRefused,
    PartitionStarted,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
    ReleaseWithdrawn,
)
from keylanes.offsets.event_values import PinnedEnd, Tile
from keylanes.offsets.events import (
    Committed,
    Event,
    LogOpened,
    RangesReleased,
    SnapshotTaken,
    StateChanged,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)
from keylanes.offsets.provenance import (
    DIGEST_MASK,
    ERROR_HEADER,
    HEADER,
    VERSION,
    app_id_of,
    decode_provenance,
    output_digest,
    place_seed,
)
from keylanes.state.changelog import changelog_topic

from ..stage.cluster import Cluster, Row
from .asks import Asks, check_whole
from .cells import NOBODY, Cells, Holder
from .copied import Copied
from .state_checker import check_changes, check_folded, numbers_of
from .twin import Twin, Writes
from .workload import AUDIT, DEAD, OUT, expected


class Produced(NamedTuple):
    """An output, as it was found."""

    topic: str
    partition: int
    row: Row
    source: TopicPartition
    offset: int
    i: int
    n: int
    app_id: bytes


@dataclass(frozen=True)
class Whereabouts:
    """What a member had read of the control log some commits ago, and whether it leaves."""

    read: int
    leaves: bool


UNKNOWN = Whereabouts(0, leaves=True)


class Watch:
    """Everything that is checked of one application. Methods raise AssertionError that says what is wrong."""

    def __init__(self, cluster: Cluster, app: str, sources: Sequence[TopicPartition], *, stateful: bool) -> None:
        self.cluster, self.app, self.sources, self.stateful = cluster, app, sources, stateful
        self.control_topic, self.offsets_topic = f"{app}.control", f"{app}.offsets"
        self.control: list[Event] = []
        self.term, self.number, self.app_birth = 0, 0, ""
        self.coordinator = ""
        """The birth of who was elected last."""
        self.coordinators: set[str] = set()
        """The births of all that were elected."""
        self.joined: dict[int, MemberJoined] = {}
        self.expelled: dict[int, str] = {}
        """Why, by incarnation."""
        self.fenced: set[int] = set()
        self.refused: dict[str, str] = {}
        """Why, by birth."""
        self.pins: list[tuple[PinnedEnd, ...]] = []
        """To which ends somebody runs, the newest last."""
        self.cells: dict[TopicPartition, Cells] = {}
        self.workers: dict[TopicPartition, dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)
        self.transactions: set[tuple[int, int]] = set()
        self.seen: Counter[int | None] = Counter()
        """The transactions that were looked at, and how many records each had."""
        self.lanes: dict[tuple[object, ...], tuple[int, int]] = {}
        self.twins: dict[TopicPartition, Twin] = {}
        self.points: dict[TopicPartition, list[int]] = defaultdict(list)
        self.wrote: dict[TopicPartition, Writes] = {}
        """What the records of the last transaction changed."""
        self.asks, self.copied = Asks(), Copied()
        self.factors: dict[str, int] = {}
        """How many workers each source has by declaration, where all say the same."""
        self.whereabouts: Callable[[int], Whereabouts] = lambda incarnation: UNKNOWN
        """Of a member, by its incarnation."""
        self.reached: Counter[str] = Counter()
        self.steps = 0

    # --- the control log -------------------------------------------------------------------------------------------

    def hear(self, values: Iterable[bytes | None]) -> None:
        """Records were appended to the control log. Those of an older term or epoch count for nothing."""
        for value in values:
            event = decode(value or b"")
            self.steps += 1
            self.control.append(event)
            if isinstance(event, AppCreated):
                continue
            if isinstance(event, CoordinatorElected):
                if event.term > self.term:
                    self.term, self.number = event.term, 0
                    self.coordinator = event.birth
                    self.coordinators.add(event.birth)
                    self.reached["CoordinatorElected"] += 1
                    self.app_birth = self.app_birth or event.app_birth
                    assert event.app_birth == self.app_birth, f"{event} is of another application"
                continue
            assert isinstance(event, Decision), f"{event} in the control log"
            if event.term != self.term or event.number != self.number + 1:
                assert event.term < self.term or event.number <= self.number, f"{event} comes before its turn"
                continue
            self.number = event.number
            self.reached[type(event).__name__] += 1
            match event:
                case MemberJoined() | MemberRefused() | MemberExpelled() | MemberFenced():
                    self._member(event)
                case PartitionStarted():
                    self.cells.setdefault(TopicPartition(event.topic, event.partition), Cells(edges=[event.offset]))
                case RangesGranted():
                    self._grant(event)
                case EndsPinned():
                    self.pins.append(event.ends)
                case PlanMade() | ReleaseAsked() | ReleaseWithdrawn():
                    self._move(event)
                case CopyAsked():
                    self.copied.ask(event, self.asks.planned, self._cells(event))
                case CopyEnded():
                    self.copied.end(event, self.cells)

    def _move(self, event: PlanMade | ReleaseAsked | ReleaseWithdrawn) -> None:
        match event:
            case PlanMade():
                self.asks.plan(event)
                self.reached[f"plan: {event.cause}"] += 1
                self.reached["plan: halves"] += event.plan == 1 and any(move.first for move in event.moves)
            case ReleaseAsked():
                self.asks.ask(event, self._cells(event))
                if self.stateful:
                    self.copied.release(event, self.asks.planned)
            case ReleaseWithdrawn():
                self.asks.withdraw(event, len(self.control))
                self.copied.withdrawn.add(event.move)
                self.reached[f"withdrawn: {event.reason}"] += 1

    def _member(self, event: MemberJoined | MemberRefused | MemberExpelled | MemberFenced) -> None:
        """Each joins once; who is fenced was expelled before, and has nothing under way."""
        match event:
            case MemberJoined():
                assert event.incarnation == max(self.joined, default=0) + 1, f"{event} is out of turn"
                known = {joined.birth for joined in self._unfenced()}  # who is over may be forgotten, and ask late
                ids = {one for joined in self.joined.values() for one in joined.transactional_ids}
                assert event.birth not in known, f"{event} joins twice"
                assert not ids & set(event.transactional_ids), f"{event} has an id of another one"
                for other in self._unfenced() if event.instance else ():
                    assert other.instance != event.instance, f"{event} has the name of {other}, which is not fenced"
                self.joined[event.incarnation] = event
            case MemberRefused():
                self.refused[event.birth] = event.reason
                assert self._unfenced(), f"{event}: by nobody"
            case MemberExpelled():
                assert event.incarnation in self.joined, f"{event} has not joined"
                self.expelled.setdefault(event.incarnation, event.cause)
                self.reached[f"expelled: {event.cause}"] += 1
                self.copied.expelled(event.incarnation)
            case MemberFenced():
                assert event.incarnation in self.expelled, f"{event} was not expelled before"
                for one in self.joined[event.incarnation].transactional_ids:
                    known_id = self.cluster.state.ids.get(one)
                    last = None if known_id is None else known_id.transaction
                    is_over = last is None or last.complete
                    assert is_over, f"{event}: a transaction of {one} is under way"
                self.fenced.add(event.incarnation)

    def has_reached(self, ends: Iterable[PinnedEnd]) -> bool:
        """Whether all is committed up to these ends."""
        return all(min(self.cells[TopicPartition(end.topic, end.partition)].edges) >= end.offset for end in ends)

    def _unfenced(self) -> list[MemberJoined]:
        return [joined for incarnation, joined in self.joined.items() if incarnation not in self.fenced]

    @property
    def app_id(self) -> bytes | None:
        """What the application calls itself, by its control log."""
        return app_id_of(self.app_birth) if self.app_birth else None

    def _grant(self, event: RangesGranted) -> None:
        """A grant begins at the edges: what its predecessor had committed when it could commit no more."""
        cells = self._cells(event)
        assert event.incarnation in self.joined, f"{event} to one that has not joined"
        assert event.incarnation not in self.expelled, f"{event} to one that was expelled"
        self.asks.grant(event)
        if self.stateful:
            self.copied.grant(event)
        for band in event.bands:
            for i in cells.within(band.first, band.end):
                if event.epoch <= cells.holders[i].epoch:
                    continue  # it stands there twice, or comes late
                assert band.offset_from == cells.edges[i], (
                    f"{event} begins at {band.offset_from} where {cells.edges[i]} is the edge of {cells.bounds[i]:08x}"
                )
                before = cells.holders[i].incarnation
                assert before == NOBODY or before in self.fenced, (
                    f"{event} of what {cells.holders[i]} neither released nor was fenced at"
                )
                cells.holders[i] = Holder(event.epoch, event.incarnation)
        if self.factors.get(event.topic) == 1:
            check_whole(cells, TopicPartition(event.topic, event.partition))

    def _cells(
        self, event: CopyAsked | RangesGranted | ReleaseAsked | RangesReleased | Committed | WorkersMerged
    ) -> Cells:
        place = TopicPartition(event.topic, event.partition)
        assert place in self.cells, f"{event} of a partition that was not started"
        return self.cells[place]

    def _release(self, event: RangesReleased) -> None:
        """From here on nobody may commit there, until it is granted again."""
        cells, owner = self._cells(event), self.whereabouts(event.incarnation)
        self.asks.release(event, owner.read, leaves=owner.leaves)
        by = Holder(event.epoch, event.incarnation)
        for band in event.bands:
            for i in cells.within(band.first, band.end):
                assert cells.holders[i] == by, f"{event} of what {cells.holders[i]} holds"
                assert cells.edges[i] == band.edge, f"{event} where {cells.edges[i]} is the edge"
                cells.holders[i] = Holder(event.epoch, NOBODY)

    # --- transactions ----------------------------------------------------------------------------------------------

    def decide(self, transaction: int, rows: Mapping[TopicPartition, Sequence[Row]]) -> list[Event]:
        """A transaction of the application is decided as committed; its rows by place. Returns its events."""
        self.steps += 1
        self.wrote = {}
        placed = [(place, row) for place, found in sorted(rows.items()) for row in found]
        self.seen[transaction] = len(placed)
        events = [decode(row.value or b"") for place, row in placed if place.topic == self.offsets_topic]
        outputs = [_output_of(place, row) for place, row in placed if place.topic in (OUT, AUDIT, DEAD)]
        self._count(events, outputs)
        assert not any(isinstance(event, LogOpened) for event in events), "a log is opened in a transaction"
        self._check_numbers(events)
        named = {output.app_id for output in outputs}
        assert named <= {self.app_id}, f"outputs name {named}, the application is {self.app_id!r}"
        for event in events:
            self._check_workers(event)
        self._check_order(outputs)
        found: dict[tuple[TopicPartition, int], list[Produced]] = defaultdict(list)
        for output in outputs:
            found[output.source, output.offset].append(output)
        tiles: dict[TopicPartition, list[Tile]] = defaultdict(list)
        for event in events:
            if isinstance(event, Committed):
                self._check_tiles(event)
                self._check_counts(event, outputs)
                tiles[TopicPartition(event.topic, event.partition)] += event.tiles
        for event in events:
            if isinstance(event, RangesReleased):
                self._release(event)
            elif isinstance(event, WorkersMerged):
                self._check_level(event)
            elif isinstance(event, SnapshotTaken):
                birth = self.joined[event.incarnation].birth
                assert birth in self.coordinators, f"{event} by {birth}, which never coordinated"
        self.wrote = wrote = {place: self._check_records(place, mine, found) for place, mine in tiles.items()}
        assert not found, f"outputs of records that are in no tile of their transaction: {sorted(found)}"
        if self.stateful:
            changed = {(e.topic, e.partition): e for e in events if isinstance(e, StateChanged)}
            for place in self.sources:
                changelog = TopicPartition(changelog_topic(self.app, place.topic), place.partition)
                check_changes(place, wrote.get(place, {}), rows.get(changelog, ()), changed.get(place))
                if place in changed:
                    self.copied.changed(place, changed[place].incarnation, rows[changelog])
        return events

    def _count(self, events: Sequence[Event], outputs: Sequence[Produced]) -> None:
        self.reached.update(type(event).__name__ for event in events)
        for output in outputs:
            self.reached[output.topic] += 1
            cause = (dict(output.row.headers).get(ERROR_HEADER) or b"").partition(b":")[0]
            self.reached[cause.decode()] += 1

    def _check_numbers(self, events: Sequence[Event]) -> None:
        """A transaction has one number of one incarnation, which nobody had before; its commit events are all there."""
        keys = {(event.incarnation, event.transaction) for event in events}  # type: ignore[union-attr]  # all have both
        assert len(keys) == 1, f"a transaction calls itself {sorted(keys)}"
        assert not keys & self.transactions, f"transaction {keys} was committed before"
        self.transactions |= keys
        parts = [(event.part, event.parts) for event in events if isinstance(event, Committed)]
        right = [(i, len(parts)) for i in range(len(parts))]
        assert sorted(parts) == right, f"transaction {keys} has parts {parts}"

    def _check_workers(self, event: Event) -> None:
        """A tile is that of consecutive workers, told of before it, whose ranges together are its points."""
        if not isinstance(event, WorkersCut | WorkerSplit | WorkersMerged | Committed | RangesReleased):
            return
        place = TopicPartition(event.topic, event.partition)
        ranges, who = self.workers[place], event.incarnation
        match event:
            case WorkersCut():
                self.reached["cut as before"] += self.asks.cut(event)
                for i, (first, end) in enumerate(pairwise(event.bounds)):
                    assert (who, event.worker + i) not in ranges, f"{place}: worker {event.worker + i} came back"
                    ranges[who, event.worker + i] = (first, end)
            case WorkerSplit():
                first, end = _worker(ranges, who, event.worker, event)
                del ranges[who, event.worker]
                assert first < event.at < end, f"{place}: {event} splits [{first}, {end})"
                ranges[who, event.left], ranges[who, event.left + 1] = (first, event.at), (event.at, end)
            case WorkersMerged():
                left, right = (_worker(ranges, who, number, event) for number in (event.left, event.right))
                del ranges[who, event.left], ranges[who, event.right]
                assert left[1] == right[0], f"{place}: {event} merges {left} and {right}"
                ranges[who, event.worker] = (left[0], right[1])
            case Committed():
                for tile in event.tiles:
                    held = [_worker(ranges, who, tile.worker + i, tile) for i in range(tile.count)]
                    bounds = [first for first, _ in held] + [held[-1][1]]
                    assert held == list(pairwise(bounds)), f"{place}: workers of {tile} are no neighbours: {held}"
                    assert (bounds[0], bounds[-1]) == (tile.first, tile.end), (
                        f"{place}: {tile} of incarnation {who} is not the range of its workers {held}"
                    )
            case RangesReleased():
                for key, (first, end) in list(ranges.items()):
                    if key[0] == who and any(band.first < end and first < band.end for band in event.bands):
                        del ranges[key]

    def _check_tiles(self, event: Committed) -> None:
        """Each tile begins at the edges of its cells and is written by their holder."""
        place, cells = TopicPartition(event.topic, event.partition), self._cells(event)
        for tile in event.tiles:
            assert 0 <= tile.first < tile.end <= SPACE_END, f"{place}: {tile} holds no points"
            assert tile.offset_from < tile.offset_to, f"{place}: {tile} holds no offsets"
            for i in cells.within(tile.first, tile.end):
                edge, holder, point = cells.edges[i], cells.holders[i], cells.bounds[i]
                by = Holder(event.epoch, event.incarnation)
                assert holder == by, f"{place}: {tile} is committed by {by}, point {point:08x} belongs to {holder}"
                start, where = tile.offset_from, f"{place}: point {point:08x}"
                assert start >= edge, f"{where} is covered twice in [{start}, {edge})"
                assert start <= edge, f"{where} is not covered in [{edge}, {start})"
                cells.edges[i] = tile.offset_to

    def _check_level(self, event: WorkersMerged) -> None:
        """Workers that become one stand at one edge, at the latest when their transaction is committed."""
        place, cells = TopicPartition(event.topic, event.partition), self._cells(event)
        first, end = self.workers[place].get((event.incarnation, event.worker), (0, 0))
        edges = {cells.edges[i] for i in cells.within(first, end)} if end else set()
        assert len(edges) <= 1, f"{place}: {event} merges workers that stand at {edges}"

    def _check_counts(self, event: Committed, outputs: Sequence[Produced]) -> None:
        """A commit's counts and digest are those of the outputs whose records lie in its tiles."""
        place = TopicPartition(event.topic, event.partition)
        inside = [
            o
            for o in outputs
            if o.source == place and any(_lies_in(self._point(place, o.offset), o.offset, tile) for tile in event.tiles)
        ]
        dead = sum(o.topic == DEAD for o in inside)
        digest = sum(output_digest(place_seed(*place), o.offset, o.i, o.topic) for o in inside) & DIGEST_MASK
        seen = (event.outputs, event.dead_letters, event.digest)
        right = (len(inside) - dead, dead, digest)
        assert seen == right, f"{event} counts wrongly: {len(inside)} outputs, {dead} of them dead letters"

    def _check_order(self, outputs: Sequence[Produced]) -> None:
        """Outputs of one key lie in the order of its records, in each partition that they went to."""
        for output in outputs:
            key = self._key_of(output.source, output.offset)
            if key is None:
                continue
            lane = (output.source, key, output.topic, output.partition)
            now, last = (output.offset, output.i), self.lanes.get(lane, (-1, -1))
            assert last < now, f"{lane}: {now} stands behind {last}"
            self.lanes[lane] = now

    def _check_records(
        self, place: TopicPartition, tiles: Sequence[Tile], found: dict[tuple[TopicPartition, int], list[Produced]]
    ) -> Writes:
        """Every record of the tiles led to exactly its outputs or its dead letter, once, i of n complete; these are
        taken out of ``found``. Returns what they wrote to the state.
        """
        wrote: Writes = {}
        twin = self._twin(place)
        for row in self._records_in(place, tiles):
            where = f"{place.topic}[{place.partition}]@{row.offset}"
            outputs = sorted(found.pop((place, row.offset), []), key=lambda o: o.i)
            numbers = [(o.i, o.n) for o in outputs]
            assert numbers == [(i, len(outputs)) for i in range(len(outputs))], f"{where} has outputs {numbers}"
            seen = [(o.topic, o.row.key, o.row.value) for o in outputs]
            allowed, writes = expected(row.key, row.value, row.timestamp, twin)
            assert seen in allowed, f"{where} {row.value!r} led to {seen}, right is {allowed}"
            if twin is not None:
                twin.apply(writes)
                wrote.update(writes)
        return wrote

    def _records_in(self, place: TopicPartition, tiles: Sequence[Tile]) -> list[Row]:
        """The committed records of tiles, in order. None may still be open: its outcome isn't known."""
        rows: list[Row] = []
        low, high = min(t.offset_from for t in tiles), max(t.offset_to for t in tiles)
        entries = self.cluster.entries(place)
        assert high <= len(entries), f"{place}: {tiles} reach beyond the end {len(entries)}"
        for record, transaction in entries[low:high]:
            if record is None:
                continue
            point = self._point(place, record.offset)
            if not any(_lies_in(point, record.offset, tile) for tile in tiles):
                continue
            is_decided = transaction is None or transaction.committed is not None
            assert is_decided, f"{place}: {tiles} pass {record}, whose transaction is open"
            if transaction is None or transaction.committed:
                rows.append(Row(*record, None))
        return rows

    def _key_of(self, place: TopicPartition, offset: int) -> bytes | None:
        entries = self.cluster.entries(place)
        record = entries[offset].record if offset < len(entries) else None
        assert record is not None, f"an output of {place}@{offset}, where no record is"
        return record.key

    def _point(self, place: TopicPartition, offset: int) -> int:
        points = self.points[place]
        if offset >= len(points):
            for at, (record, _) in enumerate(self.cluster.entries(place)[len(points) :], len(points)):
                points.append(NOBODY if record is None else point_of(record.key, place.partition, at))
        return points[offset]

    def _twin(self, place: TopicPartition) -> Twin | None:
        if not self.stateful:
            return None
        if place not in self.twins:
            self.twins[place] = Twin(place.topic, numbers_of(self.control))
        return self.twins[place]

    # --- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All is processed, and nothing is there that was not looked at."""
        for place in self.sources:
            end = self.cluster.watermarks(place).high
            for point, edge in zip(self.cells[place].bounds, self.cells[place].edges, strict=True):
                assert edge == end, f"{place}: point {point:08x} is done below {edge} and not to the end {end}"
        ours = {OUT, AUDIT, DEAD, self.offsets_topic, *(changelog_topic(self.app, s.topic) for s in self.sources)}
        left = self.seen.copy()
        for topic in ours & set(self.cluster.topics()):
            for place in self.cluster.places(topic):
                for row in self.cluster.rows(place):
                    if row.transaction is None and self._is_opening(place, row):
                        continue
                    assert row.transaction in left, f"{place}: {row} was written outside our transactions"
                    left[row.transaction] -= 1
        assert not any(left.values()), "records came into transactions after they had been decided, or left them"
        for place in self.sources:
            twin = self._twin(place)
            if twin is not None:
                check_folded(self.cluster, self.app, place, twin.state)
        self._check_trimmed()

    def _is_opening(self, place: TopicPartition, row: Row) -> bool:
        return place.topic == self.offsets_topic and isinstance(decode(row.value or b""), LogOpened)

    def _check_trimmed(self) -> None:
        """A log that was trimmed still holds a whole snapshot that covers what is gone."""
        for place in self.cluster.places(self.offsets_topic):
            start = self.cluster.watermarks(place).start
            if start == 0:
                continue
            left = [decode(row.value or b"") for row in self.cluster.rows(place) if row.offset >= start]
            taken = [event for event in left if isinstance(event, SnapshotTaken)]
            whole = any(
                [e.part for e in taken[i : i + e.parts]] == list(range(e.parts)) and e.position >= start
                for i, e in enumerate(taken)
            )
            assert whole, f"{place} starts at {start} and holds no whole snapshot"


def _worker(ranges: Mapping[tuple[int, int], tuple[int, int]], who: int, number: int, of: object) -> tuple[int, int]:
    assert (who, number) in ranges, f"{of}: nobody told of worker {number} of incarnation {who}, or it is gone"
    return ranges[who, number]


def _lies_in(point: int, offset: int, tile: Tile) -> bool:
    return tile.first <= point < tile.end and tile.offset_from <= offset < tile.offset_to


def _output_of(place: TopicPartition, row: Row) -> Produced:
    origin = dict(row.headers)[HEADER]
    assert origin is not None, f"{place}: {row} has no origin"
    kl = decode_provenance(origin)
    assert kl.version == VERSION, f"{place}: {row} names no application"
    return Produced(*place, row, TopicPartition(kl.topic, kl.partition), kl.offset, kl.i, kl.n, kl.app_id)
