"""The demo's figures, counted from the topics and the logs, and what they must be."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from ..brokers.protocol import Broker, TopicPartition
from ..keyrange.hashing import SPACE_END, point_of
from .application import APP, ARRIVALS, DEAD_TOPIC, LATE_TOPIC
from .course import Course, Killed, Paused
from .flights import CANCELLED, FLIGHTS, LATE, LATE_MINUTES, WITHOUT_ARRIVAL, Flight, source_rows
from .loader import SOURCE
from .logbook import Logbook, read_logbook, read_topic
from .owners import Ownership, marks_of, moves, place_of_the_kill, shares, spans_of, still_s, unowned_s
from .scaling import Log, ScalingFigures, place_of_a_move, scaling_figures, scaling_marks
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
    """What a run did. ``is_level``: the tiles cover all of both sources. ``seconds``: of processing, without restarts,
    of all processes together.

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


class MemberFigures(msgspec.Struct, frozen=True):
    """``records`` of both sources, about (by its share of the plane, for in the logs a record has no owner)."""

    name: str
    records: int
    share: float


class KillFigures(msgspec.Struct, frozen=True):
    """A kill: when the process had made its last commit, when it was expelled, and when one of its name joined again,
    in seconds of the run's work. From that commit on its ranges had no owner for ``unowned_s`` seconds, and stood
    still for ``still_s``, to the first tile of a successor: the least and the most. None: that did not come.
    """

    name: str
    role: str
    share: float
    last_commit_s: float
    expelled_s: float | None
    unowned_s: tuple[float, float] | None
    still_s: tuple[float, float] | None
    again_s: float | None


class PauseFigures(msgspec.Struct, frozen=True):
    """A pause of so many ``seconds``. ``expelled_s``: when it was expelled meanwhile, None: it was not; ``again_s``:
    when it had joined again.
    """

    name: str
    role: str
    share: float
    seconds: float
    expelled_s: float | None
    again_s: float | None


class JoinFigures(msgspec.Struct, frozen=True):
    """Who was added, and when it had joined, in seconds of the run's work; None: there was nothing to join any more."""

    name: str
    share: float
    joined_s: float | None


class GroupFigures(msgspec.Struct, frozen=True):
    """What several processes did, and what became of them. ``moves``: how often a range went from one to another;
    ``expelled``: how often, by cause ("left": in order); ``missed``: what was to happen, and was not reached.
    """

    members: list[MemberFigures]
    moves: int
    elections: int
    killed: list[KillFigures]
    paused: list[PauseFigures]
    joined: list[JoinFigures]
    scaled: list[ScalingFigures]
    expelled: dict[str, int]
    missed: list[str]


class Collected(msgspec.Struct, frozen=True):
    """The figures, and what the picture shows: tiles, a stretch, and the (offset, point) of the records in it.

    ``group``, ``ownership``: of several processes; None for one.
    """

    figures: Figures
    group: GroupFigures | None
    ownership: Ownership | None
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


async def collect(broker: Broker, course: Course) -> Collected:
    """Read everything back from an open broker."""
    book = await read_logbook(broker, APP)
    killed = _incarnation_of(book, course.killed[0]) if course.killed else None
    near = None if killed is None else place_of_the_kill(killed, SOURCE, book.holds, book.tiles)
    if course.is_scaled:
        near = place_of_a_move(SOURCE, _log_of(book))
    stretch = choose_stretch(book.tiles, near)
    is_cancelled = msgspec.json.Decoder(Flight).decode
    ends: dict[TopicPartition, int] = {}
    records = cancelled = 0
    inside: list[tuple[int, int]] = []
    async for batch in read_topic(broker, SOURCE):
        ends[batch.source] = batch.offset_next
        records += len(batch.records)
        cancelled += sum(is_cancelled(record.value or b"").dep_time is None for record in batch.records)
        if stretch is not None and stretch.is_in(batch.source):
            for record in batch.records:
                point = point_of(record.key, batch.source.partition, record.offset)
                if stretch.holds(record.offset, point):
                    inside.append((record.offset, point))
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
        seconds=book.running.total_s,
        changes={kind: sum(change.kind == kind for change, _ in book.changes) for kind in CHANGES},
    )
    group = None if course.members == 1 else group_figures(book, course, records + arrivals)
    ownership = None if course.members == 1 else ownership_of(book, course)
    return Collected(figures, group, ownership, book, stretch, inside)


def ownership_of(book: Logbook, course: Course) -> Ownership:
    """What the picture shows of several processes."""
    areas = shares(book.tiles, book.history.names)
    whole = sum(areas.values()) or 1.0
    return Ownership(
        names=book.history.names,
        shares={name: area / whole for name, area in sorted(areas.items())},
        spans=spans_of(book.holds, book.history.names, book.running),
        marks=[
            *marks_of(
                book.history,
                {act.name: _last_commit(book, _incarnation_of(book, act)) or 0 for act in course.killed},
                [act.name for act in course.joined],
                [(act.name, act.at_ms) for act in course.paused],
                book.running,
            ),
            *scaling_marks(scaling_figures(course, _log_of(book))),
        ],
        copies=spans_of(book.motion.copied(), book.history.names, book.running),
    )


def _log_of(book: Logbook) -> Log:
    return Log(book.motion, book.moves, book.tiles, book.times, book.running)


def group_figures(book: Logbook, course: Course, records: int) -> GroupFigures:
    """What several processes did with so many ``records`` of both sources."""
    names, happened = book.history
    areas = shares(book.tiles, names)
    whole = sum(areas.values()) or 1.0
    members = [
        MemberFigures(name, round(area / whole * records), round(area / whole, 4))
        for name, area in sorted(areas.items())
    ]
    killed = [_kill_figures(book, act) for act in course.killed]
    return GroupFigures(
        members=members,
        moves=moves(book.holds, names),
        elections=sum(each.kind == "elected" for each in happened),
        killed=[figures for figures in killed if figures is not None],
        paused=[_pause_figures(book, act) for act in course.paused],
        joined=[JoinFigures(act.name, round(act.share, 4), _moment(book, "joined", act.name)) for act in course.joined],
        scaled=scaling_figures(course, _log_of(book)),
        expelled=dict(Counter(each.cause for each in happened if each.kind == "expelled")),
        missed=[step.label for step in course.missed],
    )


def _kill_figures(book: Logbook, killed: Killed) -> KillFigures | None:
    incarnation = _incarnation_of(book, killed)
    if incarnation is None:
        return None
    last_ms = _last_commit(book, incarnation) or 0
    return KillFigures(
        name=killed.name,
        role=killed.role,
        share=round(killed.share, 4),
        last_commit_s=round(book.running.at(last_ms), 2),
        expelled_s=_moment(book, "expelled", killed.name, last_ms),
        unowned_s=_bounds(unowned_s(incarnation, book.holds, book.running)),
        still_s=_bounds(still_s(incarnation, book.holds, book.tiles, book.times, book.running)),
        again_s=_moment(book, "joined", killed.name, last_ms),
    )


def _bounds(ordered: Sequence[float]) -> tuple[float, float] | None:
    return (ordered[0], ordered[-1]) if ordered else None


def _pause_figures(book: Logbook, paused: Paused) -> PauseFigures:
    until_ms = paused.at_ms + 2_000 * paused.seconds  # what happens to it later has another cause
    return PauseFigures(
        name=paused.name,
        role=paused.role,
        share=round(paused.share, 4),
        seconds=paused.seconds,
        expelled_s=_moment(book, "expelled", paused.name, paused.at_ms, until_ms),
        again_s=_moment(book, "joined", paused.name, paused.at_ms, until_ms),
    )


def _moment(book: Logbook, kind: str, name: str, from_ms: float = 0, until_ms: float = math.inf) -> float | None:
    """When such a thing happened to a process first, in seconds of work."""
    found = [ms for ms, what, who, _ in book.history.happened if (what, who) == (kind, name)]
    found = [ms for ms in found if from_ms <= ms <= until_ms]
    return round(book.running.at(found[0]), 2) if found else None


def _last_commit(book: Logbook, incarnation: int | None) -> int | None:
    return max((ms for (of, _), ms in book.times.items() if of == incarnation), default=None)


def _incarnation_of(book: Logbook, killed: Killed) -> int | None:
    """The one that was killed: the last one of its name that had made a commit by then."""
    of_name = {incarnation for incarnation, name in book.history.names.items() if name == killed.name}
    committed = (of for (of, _), ms in book.times.items() if of in of_name and ms <= killed.at_ms)
    return max(committed, default=None)


async def _count(broker: Broker, topic: str, ends: dict[TopicPartition, int]) -> int:
    if topic not in await broker.describe([topic]):
        return 0
    count = 0
    async for batch in read_topic(broker, topic):
        ends[batch.source] = batch.offset_next
        count += len(batch.records)
    return count
