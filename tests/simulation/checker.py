"""What must be true of the logs in the end, judged from their bytes alone: nothing of the runtime's ledger is used.

Tiles are checked on a grid: every bound that occurs cuts the space into cells; in each cell the tiles, in order of
their offsets, must follow one another from where the partition started to its end, each inside its own grant.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from keylanes.keyrange.hashing import SPACE_END, point_of
from keylanes.offsets.codec import decode
from keylanes.offsets.events import (
    Committed,
    CoordinatorElected,
    Event,
    PartitionStarted,
    RangeReleased,
    RangesGranted,
    SnapshotTaken,
    StateChanged,
    Tile,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)
from keylanes.offsets.provenance import DIGEST_MASK, HEADER, decode_provenance, output_digest, place_seed
from keylanes.runtime.brokers.protocol import TopicPartition

from .cluster import Cluster, Row
from .state_checker import Wrote, check_changelog, numbers_of
from .twin import Twin
from .workload import AUDIT, DEAD, OUT, expected


class Placed(NamedTuple):
    """An event with the transaction it was written in and its position in its log."""

    event: Event
    transaction: int | None
    position: int


class Produced(NamedTuple):
    """An output, as it was found."""

    topic: str
    row: Row
    source: tuple[str, int]
    offset: int
    i: int
    n: int


@dataclass
class Logs:
    """All that the checker reads."""

    control: list[Event]
    offsets: list[Placed]
    sources: dict[TopicPartition, list[Row]]
    ends: dict[TopicPartition, int]
    outputs: list[Produced]
    grants: dict[tuple[str, int], list[RangesGranted]] = field(default_factory=lambda: defaultdict(list))
    started: dict[tuple[str, int], int] = field(default_factory=dict)
    stateful: bool = False
    wrote: dict[TopicPartition, Wrote] = field(default_factory=dict)
    """What the checker's own twin of the state says that records wrote."""


def read_logs(cluster: Cluster, app: str, sources: Iterable[str], *, stateful: bool = False) -> Logs:
    """Read and decode everything."""
    control = [decode(row.value or b"") for row in cluster.rows(TopicPartition(f"{app}.control", 0))]
    placed = [
        Placed(decode(row.value or b""), row.transaction, row.offset)
        for place in cluster.places(f"{app}.offsets")
        for row in cluster.rows(place)
    ]
    places = [place for topic in sources for place in cluster.places(topic)]
    outputs = []
    for topic in (OUT, AUDIT, DEAD):
        for place in cluster.places(topic):
            for row in cluster.rows(place):
                kl = decode_provenance(dict(row.headers)[HEADER])
                outputs.append(Produced(topic, row, (kl.topic, kl.partition), kl.offset, kl.i, kl.n))
    logs = Logs(
        control,
        placed,
        {place: cluster.rows(place) for place in places},
        {place: cluster.watermarks(place).high for place in places},
        outputs,
        stateful=stateful,
    )
    term = 0
    for event in control:
        if isinstance(event, CoordinatorElected):
            term = max(term, event.term)
        elif isinstance(event, PartitionStarted) and event.term == term:
            logs.started[event.topic, event.partition] = event.offset
        elif isinstance(event, RangesGranted) and event.term == term:
            logs.grants[event.topic, event.partition].append(event)
    return logs


def check(logs: Logs) -> None:
    """Raises AssertionError that says what is wrong."""
    check_transactions(logs)
    for place, end in logs.ends.items():
        check_tiles(logs, place, end)
        check_workers(logs, place)
    check_outputs(logs)
    check_counts(logs)
    check_order(logs)


def commits_of(logs: Logs, place: tuple[str, int]) -> Iterator[tuple[Placed, Committed, Tile]]:
    """Every tile of a partition, in log order."""
    for placed in logs.offsets:
        event = placed.event
        if isinstance(event, Committed) and (event.topic, event.partition) == place:
            for tile in event.tiles:
                yield placed, event, tile


def check_transactions(logs: Logs) -> None:
    """A transaction number of an incarnation names one transaction, whose commit events are complete and numbered."""
    named: dict[tuple[int, int], set[int | None]] = defaultdict(set)
    parts: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for placed in logs.offsets:
        event = placed.event
        key = (event.incarnation, event.transaction)  # type: ignore[union-attr]  # all events of this log have both
        named[key].add(placed.transaction)
        assert placed.transaction is not None, f"{event} was written outside a transaction"
        if isinstance(event, Committed):
            parts[key].append((event.part, event.parts))
    for key, transactions in named.items():
        assert len(transactions) == 1, f"transaction {key} was committed {len(transactions)} times"
    for key, numbers in parts.items():
        total = numbers[0][1]
        assert sorted(numbers) == [(i, total) for i in range(total)], f"transaction {key} has parts {numbers}"


def check_tiles(logs: Logs, place: TopicPartition, end: int) -> None:
    """In every cell the tiles follow one another from the start to the end, each inside its own epoch's grant."""
    tiles = [(event, tile) for _, event, tile in commits_of(logs, place)]
    grants = logs.grants[place]
    bounds = {0, SPACE_END}
    for _, tile in tiles:
        assert 0 <= tile.first < tile.end <= SPACE_END, f"{place}: {tile} holds no points"
        assert tile.offset_from < tile.offset_to, f"{place}: {tile} holds no offsets"
        bounds |= {tile.first, tile.end}
    for grant in grants:
        for band in grant.bands:
            bounds |= {band.first, band.end}
    for cell in sorted(bounds)[:-1]:
        mine = sorted(
            ((tile.offset_from, tile.offset_to, event) for event, tile in tiles if tile.first <= cell < tile.end),
            key=lambda item: item[:2],
        )
        edge = logs.started[place]
        for offset_from, offset_to, event in mine:
            assert offset_from >= edge, f"{place}: point {cell:08x} is covered twice in [{offset_from}, {edge})"
            assert offset_from <= edge, f"{place}: point {cell:08x} is not covered in [{edge}, {offset_from})"
            edge = offset_to
            held_from, held_until, holder = _held(grants, event.epoch, cell)
            assert holder == event.incarnation, f"{place}: {event} is not by the holder {holder} of its epoch"
            assert held_from <= offset_from < offset_to <= held_until, (
                f"{place}: [{offset_from}, {offset_to}) at {cell:08x} is not in epoch {event.epoch}'s part "
                f"[{held_from}, {held_until})"
            )
        assert edge == end, f"{place}: point {cell:08x} is done below {edge} and not to the end {end}"


def _held(grants: list[RangesGranted], epoch: int, cell: int) -> tuple[float, float, int | None]:
    """From and until which offset an epoch holds a cell, and who holds it; nothing of it when it was not granted."""
    froms = [
        (grant.epoch, band.offset_from, grant.incarnation)
        for grant in grants
        for band in grant.bands
        if band.first <= cell < band.end
    ]
    own = [(offset, holder) for e, offset, holder in froms if e == epoch]
    later = [offset for e, offset, _ in froms if e > epoch]
    if not own:
        return math.inf, -math.inf, None
    return own[0][0], (later[0] if later else math.inf), own[0][1]


def check_workers(logs: Logs, place: TopicPartition) -> None:
    """A tile is that of consecutive workers, told of before it, whose ranges together are its points."""
    ranges: dict[tuple[int, int], tuple[int, int]] = {}
    for placed in logs.offsets:
        event = placed.event
        if (getattr(event, "topic", None), getattr(event, "partition", None)) != place:
            continue
        who = getattr(event, "incarnation", 0)
        match event:
            case WorkersCut():
                for i, (first, end) in enumerate(pairwise(event.bounds)):
                    assert (who, event.worker + i) not in ranges, f"{place}: worker {event.worker + i} came back"
                    ranges[who, event.worker + i] = (first, end)
            case WorkerSplit():
                first, end = ranges.pop((who, event.worker))
                assert first < event.at < end, f"{place}: {event} splits [{first}, {end})"
                ranges[who, event.left], ranges[who, event.left + 1] = (first, event.at), (event.at, end)
            case WorkersMerged():
                left, right = ranges.pop((who, event.left)), ranges.pop((who, event.right))
                assert left[1] == right[0], f"{place}: {event} merges {left} and {right}"
                ranges[who, event.worker] = (left[0], right[1])
            case Committed():
                for tile in event.tiles:
                    held = [ranges[who, tile.worker + i] for i in range(tile.count)]
                    bounds = [first for first, _ in held] + [held[-1][1]]
                    assert held == list(pairwise(bounds)), f"{place}: workers of {tile} are no neighbours: {held}"
                    assert (bounds[0], bounds[-1]) == (tile.first, tile.end), (
                        f"{place}: {tile} of incarnation {who} is not the range of its workers {held}"
                    )
            case RangeReleased():
                for key, (first, end) in list(ranges.items()):
                    if key[0] == who and event.first <= first and end <= event.end:
                        del ranges[key]


def check_outputs(logs: Logs) -> None:
    """Every source record led to exactly its outputs or its dead letter, once, i of n complete; nothing else is there.

    They became visible in the very transaction that committed the tile with their record.
    """
    found: dict[tuple[str, int, int], list[Produced]] = defaultdict(list)
    for output in logs.outputs:
        found[(*output.source, output.offset)].append(output)
    stores = numbers_of(logs.control)
    for place, rows in logs.sources.items():
        tiles = [(placed.transaction, tile) for placed, _, tile in commits_of(logs, place)]
        twin = Twin(place.topic, stores) if logs.stateful else None
        wrote = logs.wrote[place] = Wrote()
        for row in rows:
            where = f"{place.topic}[{place.partition}]@{row.offset}"
            outputs = sorted(found.pop((*place, row.offset), []), key=lambda o: o.i)
            numbers = [(o.i, o.n) for o in outputs]
            assert numbers == [(i, len(outputs)) for i in range(len(outputs))], f"{where} has outputs {numbers}"
            seen = [(o.topic, o.row.key, o.row.value) for o in outputs]
            allowed, writes = expected(row.key, row.value, row.timestamp, twin)
            assert seen in allowed, f"{where} {row.value!r} led to {seen}, right is {allowed}"
            point = point_of(row.key, place.partition, row.offset)
            homes = [
                transaction
                for transaction, tile in tiles
                if tile.first <= point < tile.end and tile.offset_from <= row.offset < tile.offset_to
            ]
            assert len(homes) == 1, f"{where} lies in {len(homes)} tiles"
            assert all(o.row.transaction == homes[0] for o in outputs), f"{where}: outputs outside their transaction"
            if twin is not None:
                twin.apply(writes)
                wrote.by_transaction[homes[0]].update(writes)
                wrote.state = twin.state
    assert not found, f"outputs of records that do not exist: {sorted(found)}"


def check_state(logs: Logs, cluster: Cluster, app: str) -> None:
    """After ``check``: the changelogs are what the records wrote, transaction by transaction."""
    for place in logs.sources:
        changed = {
            placed.transaction: placed.event
            for placed in logs.offsets
            if isinstance(placed.event, StateChanged) and (placed.event.topic, placed.event.partition) == place
        }
        check_changelog(cluster, app, place, logs.wrote[place], changed)


def check_counts(logs: Logs) -> None:
    """Each commit's counts and digest are those of the outputs whose records lie in its tiles."""
    keys = {(*place, row.offset): row.key for place, rows in logs.sources.items() for row in rows}
    points = [(point_of(keys[(*o.source, o.offset)], o.source[1], o.offset), o) for o in logs.outputs]
    for placed in logs.offsets:
        event = placed.event
        if not isinstance(event, Committed):
            continue
        place = (event.topic, event.partition)
        inside = [
            o
            for point, o in points
            if o.source == place
            and any(t.first <= point < t.end and t.offset_from <= o.offset < t.offset_to for t in event.tiles)
        ]
        dead = sum(o.topic == DEAD for o in inside)
        digest = sum(output_digest(place_seed(*place), o.offset, o.i, o.topic) for o in inside) & DIGEST_MASK
        seen = (event.outputs, event.dead_letters, event.digest)
        assert seen == (len(inside) - dead, dead, digest), f"{event} counts wrongly: {len(inside)} outputs, {dead} dead"


def check_order(logs: Logs) -> None:
    """Outputs of one key lie in the order of its records, in each partition that they went to."""
    last: dict[tuple[object, ...], tuple[int, int]] = {}
    keys = {(*place, row.offset): row.key for place, rows in logs.sources.items() for row in rows}
    for output in logs.outputs:
        key = keys[(*output.source, output.offset)]
        if key is None:
            continue
        lane = (output.source, key, output.topic)
        now = (output.offset, output.i)
        assert last.get(lane, (-1, -1)) < now, f"{lane}: {now} stands behind {last[lane]}"
        last[lane] = now


def check_trimmed(cluster: Cluster, app: str) -> None:
    """A log that was trimmed still holds a whole snapshot that covers what is gone."""
    for place in cluster.places(f"{app}.offsets"):
        start = cluster.watermarks(place).start
        if start == 0:
            continue
        left = [decode(row.value or b"") for row in cluster.rows(place) if row.offset >= start]
        taken = [event for event in left if isinstance(event, SnapshotTaken)]
        whole = any(
            [e.part for e in taken[i : i + e.parts]] == list(range(e.parts)) and e.position >= start
            for i, e in enumerate(taken)
        )
        assert whole, f"{place} starts at {start} and holds no whole snapshot"
