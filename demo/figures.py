"""The demo's figures, counted from the topics and the offset log, and what they must be."""

import msgspec

from ..brokers.protocol import Broker, TopicPartition
from ..keyrange.hashing import SPACE_END, point_of
from .application import APP, ARRIVALS, DEAD_TOPIC, LATE_TOPIC
from .flights import CANCELLED, FLIGHTS, LATE, LATE_MINUTES, WITHOUT_ARRIVAL, Flight, source_rows
from .loader import SOURCE
from .logbook import Logbook, read_logbook, read_topic
from .tiles import CHANGES, Stretch, choose_stretch


class Counts(msgspec.Struct, frozen=True):
    """``records`` of the source, of them ``cancelled``; ``late`` ones published, ``dead_letters``.

    ``arrivals`` went on by destination.
    """

    records: int
    late: int
    dead_letters: int
    cancelled: int
    arrivals: int


class Figures(msgspec.Struct, frozen=True):
    """What a run did. ``is_level``: the tiles cover all of both sources. ``seconds``: of processing, without restarts.

    ``workers``: of the flights. ``changes``: how often ranges were split, merged, released and granted again meanwhile.
    """

    counts: Counts
    is_level: bool
    workers: int
    tiles: int
    commits: int
    log_bytes: int
    seconds: float
    changes: dict[str, int]

    @property
    def records_per_s(self) -> float:
        """The throughput of the processing, in flights."""
        return self.counts.records / self.seconds if self.seconds else 0.0

    @property
    def log_bytes_per_record(self) -> float:
        """What progress costs in the offset log."""
        handled = self.counts.records + self.counts.arrivals
        return self.log_bytes / handled if handled else 0.0


class Collected(msgspec.Struct, frozen=True):
    """The figures, and what the picture shows: tiles, a stretch, and the (offset, point) of the records in it."""

    figures: Figures
    book: Logbook
    stretch: Stretch | None
    records: list[tuple[int, int]]


def counts_expected(rows: int) -> Counts:
    """What the first ``rows`` flights must give; for all of them it is known."""
    if rows == FLIGHTS:
        return Counts(FLIGHTS, LATE, WITHOUT_ARRIVAL, CANCELLED, FLIGHTS - WITHOUT_ARRIVAL - CANCELLED)
    decode = msgspec.json.Decoder(Flight).decode
    flights = [decode(row.value) for row in source_rows(0, rows)]
    delays = [flight.arr_delay for flight in flights if flight.arr_delay is not None]
    cancelled = sum(flight.dep_time is None for flight in flights)
    late = sum(delay > LATE_MINUTES for delay in delays)
    return Counts(len(flights), late, len(flights) - len(delays) - cancelled, cancelled, len(delays))


async def collect(broker: Broker) -> Collected:
    """Read everything back from an open broker."""
    book = await read_logbook(broker, APP)
    stretch = choose_stretch(book.tiles)
    is_cancelled = msgspec.json.Decoder(Flight).decode
    ends: dict[TopicPartition, int] = {}
    records = cancelled = 0
    near: list[tuple[int, int]] = []
    async for batch in read_topic(broker, SOURCE):
        ends[batch.source] = batch.offset_next
        records += len(batch.records)
        cancelled += sum(is_cancelled(record.value or b"").dep_time is None for record in batch.records)
        if stretch is not None and stretch.is_in(batch.source):
            for record in batch.records:
                point = point_of(record.key, batch.source.partition, record.offset)
                if stretch.holds(record.offset, point):
                    near.append((record.offset, point))
    late, dead, arrivals = [await _count(broker, topic, ends) for topic in (LATE_TOPIC, DEAD_TOPIC, ARRIVALS)]
    areas = book.areas()
    sources = [source for source in ends if source.topic in (SOURCE, ARRIVALS)]
    figures = Figures(
        counts=Counts(records, late, dead, cancelled, arrivals),
        is_level=all(areas.get(source, 0) == ends[source] * SPACE_END for source in sources),
        workers=book.workers.get(SOURCE, 0),
        tiles=len(book.tiles),
        commits=book.commits,
        log_bytes=book.log_bytes,
        seconds=book.running_s,
        changes={kind: sum(change.kind == kind for change, _ in book.changes) for kind in CHANGES},
    )
    return Collected(figures, book, stretch, near)


async def _count(broker: Broker, topic: str, ends: dict[TopicPartition, int]) -> int:
    if topic not in await broker.describe([topic]):
        return 0
    count = 0
    async for batch in read_topic(broker, topic):
        ends[batch.source] = batch.offset_next
        count += len(batch.records)
    return count
