"""The demo's figures, counted from the topics and the logs, and the expected counts.

Moments of ``ActFigures`` and ``ScalingFigures`` are in seconds of work, see owners.py.
"""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

import owners
from application import APP, ARRIVALS, DEAD_TOPIC, LATE_TOPIC, PARALLELISING_FACTOR
from course import Act, Course
from flights import CANCELLED, FLIGHTS, LATE, LATE_MINUTES, PARTITIONS, WITHOUT_ARRIVAL, Flight, source_rows
from keylanes.brokers.protocol import Broker, TopicPartition
from keylanes.group.history_entries import MoveEntry
from keylanes.keyrange.hashing import SPACE_END, point_of
from keylanes.spark.group_report import OwnershipPicture, TimeMark
from keylanes.spark.plane_tiles import NearStretch, PlaneTile, choose_stretch
from loader import SOURCE
from logbook import Logbook, read_logbook, read_topic


class Counts(msgspec.Struct, frozen=True):
    """Numbers of records: ``records`` of the source and the ``cancelled`` flights among them, published ``late``
    flights, ``dead_letters``, and ``arrivals`` by destination.
    """

    records: int
    late: int
    dead_letters: int
    cancelled: int
    arrivals: int


class Figures(msgspec.Struct, frozen=True):
    """The figures of a run. ``is_level``: the tiles cover all records of both sources. ``seconds``: the time of work.

    ``workers``: of the topic of flights. ``changes``: the numbers of splits, merges, releases and grants in this time.
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
        """The cost of progress in the offset log."""
        handled = self.counts.records + self.counts.arrivals
        return self.log_bytes / handled if handled else 0.0


class MemberFigures(msgspec.Struct, frozen=True):
    """A process with its share of the plane. ``records``: about the number of records of both sources that the process
    has done, computed from the share: in the logs a record has no owner.
    """

    name: str
    records: int
    share: float


class ActFigures(msgspec.Struct, frozen=True):
    """A kill, a pause of ``seconds`` or an added process, with the consequences.

    ``expelled_s``: when the process was expelled; ``joined_s``: when it joined, or joined again. None: never.

    Of a kill alone: ``last_commit_s``: the last commit of the process. ``unowned_s``: from the last commit until other
    processes had taken the ranges up, the least and the most. ``still_s``: from the last commit until the first commit
    of a successor in the ranges, the least and the most. None: the process left nothing to do.
    """

    name: str
    role: str
    share: float
    seconds: float
    expelled_s: float | None
    joined_s: float | None
    last_commit_s: float | None = None
    unowned_s: tuple[float, float] | None = None
    still_s: tuple[float, float] | None = None


class ScalingFigures(msgspec.Struct, frozen=True):
    """A scaling at ``at_s`` to a number of ``processes``. ``settled_s``: the time until the group was at rest and all
    moved ranges were taken up; None: not before the next scaling, or the end.

    ``moves``: the number of ranges that were granted from one process to another in this time; ``state_bytes``: the
    planned size of their state. ``copies``: the number of ranges with a copy of state before the grant; ``copied_s``:
    the longest time from the request of a copy to the grant. ``unowned_s``: the longest time from the release of a
    range until the range was taken up. ``still_s``: the longest time from a release to the first commit of the
    successor.
    """

    names: list[str]
    processes: int
    is_up: bool
    share: float
    at_s: float
    settled_s: float | None
    moves: int
    state_bytes: int
    copies: int
    copied_s: float | None
    unowned_s: float | None
    still_s: float | None

    @property
    def sign(self) -> str:
        """The number of processes more or fewer, with its sign."""
        return f"{'+' if self.is_up else '−'}{len(self.names)}"


class GroupFigures(msgspec.Struct, frozen=True):
    """The figures of several processes. ``moves``: the number of ranges that went from one process to another;
    ``expelled``: the number of incarnations that are gone, by cause ("left": stopped in order); ``missed``: the steps
    that were not taken.
    """

    members: list[MemberFigures]
    moves: int
    elections: int
    killed: list[ActFigures]
    paused: list[ActFigures]
    joined: list[ActFigures]
    scaled: list[ScalingFigures]
    expelled: dict[str, int]
    missed: list[str]


class Collected(msgspec.Struct, frozen=True):
    """The figures, and the content of the picture: the logs, a stretch, and the (offset, point) of its records.

    ``group``, ``ownership``: of several processes; None for one process.
    """

    figures: Figures
    group: GroupFigures | None
    ownership: OwnershipPicture | None
    book: Logbook
    stretch: NearStretch | None
    records: list[tuple[int, int]]


def counts_expected(rows: int) -> Counts:
    """The counts that the first ``rows`` flights must give. The counts of all flights are constants."""
    if rows == FLIGHTS:
        return Counts(FLIGHTS, LATE, WITHOUT_ARRIVAL, CANCELLED, FLIGHTS - WITHOUT_ARRIVAL - CANCELLED)
    decode = msgspec.json.Decoder(Flight).decode
    flights = [decode(row.value) for row in source_rows(0, rows)]
    delays = [flight.arr_delay for flight in flights if flight.arr_delay is not None]
    late, cancelled = sum(each > LATE_MINUTES for each in delays), sum(flight.dep_time is None for flight in flights)
    return Counts(len(flights), late, len(flights) - len(delays) - cancelled, cancelled, len(delays))


async def collect(broker: Broker, course: Course) -> Collected:
    """Read logs, sources and outputs from an open broker, and count."""
    book = await read_logbook(broker, APP)
    log = book.group
    near = owners.place_of_a_move(log, book.plane.tiles, _moves_to_show(book, course), SOURCE)
    stretch = choose_stretch(book.plane.tiles, near)
    decode = msgspec.json.Decoder(Flight).decode
    ends: dict[TopicPartition, int] = {}
    counts: Counter[str] = Counter()
    inside: list[tuple[int, int]] = []
    for topic in (SOURCE, LATE_TOPIC, DEAD_TOPIC, ARRIVALS):
        async for batch in read_topic(broker, topic):
            ends[batch.source] = batch.offset_next
            counts[topic] += len(batch.records)
            if topic == SOURCE:
                counts["cancelled"] += sum(decode(record.value or b"").dep_time is None for record in batch.records)
            if stretch is not None and batch.source == stretch[:2]:
                points = [(r.offset, point_of(r.key, batch.source.partition, r.offset)) for r in batch.records]
                inside += [(offset, point) for offset, point in points if stretch.holds(offset, point)]
    areas, kinds = book.areas(), Counter(change.kind for change, _ in book.plane.changes)
    figures = Figures(
        counts=Counts(*(counts[name] for name in (SOURCE, LATE_TOPIC, DEAD_TOPIC, "cancelled", ARRIVALS))),
        is_level=all(areas[of] == end * SPACE_END for of, end in ends.items() if of.topic in (SOURCE, ARRIVALS)),
        workers=PARALLELISING_FACTOR * PARTITIONS,
        tiles=len(book.plane.tiles),
        commits=len(log.times),
        log_bytes=book.log_bytes,
        seconds=log.running.total_s,
        changes={kind: kinds[kind] for kind in ("split", "merge", "release", "grant")},
    )
    if course.members == 1:
        return Collected(figures, None, None, book, stretch, inside)
    group = group_figures(book, course, counts[SOURCE] + counts[ARRIVALS])
    return Collected(figures, group, ownership_of(book, course, group), book, stretch, inside)


def _moves_to_show(book: Logbook, course: Course) -> list[MoveEntry]:
    """The moves of which the picture shows the largest from near: of a scaling all, else those of the first kill."""
    if course.is_scaled:
        return book.group.changed_hands()
    killed = course.acts_of("kill")
    return book.group.lost_by(_incarnation_of(book, killed[0])) if killed else []


def ownership_of(book: Logbook, course: Course, group: GroupFigures) -> OwnershipPicture:
    """The part of the picture on several processes."""
    log = book.group
    killed = {act.name: log.last_ms.get(_incarnation_of(book, act), 0) for act in course.acts_of("kill")}
    paused = [(act.name, act.at_ms) for act in course.acts_of("pause")]
    joined = [act.name for act in course.acts_of("join")]
    steps = [
        TimeMark(
            one.at_s,
            f"{one.sign}: {', '.join(one.names)}",
            is_loss=not one.is_up,
            is_step=True,
            until_s=None if one.settled_s is None else round(one.at_s + one.settled_s, 2),
        )
        for one in group.scaled
    ]
    return OwnershipPicture(
        names=dict(sorted(log.names.items(), key=lambda named: (len(named[1]), named[1]))),
        shares={member.name: member.share for member in group.members},
        shares_of="the plane",
        reigns=owners.reigns_of(log),
        clock="seconds of work",
        copies=owners.copies_of(log),
        marks=[*owners.marks_of(log, killed, joined, paused), *steps],
    )


def group_figures(book: Logbook, course: Course, records: int) -> GroupFigures:
    """The figures of several processes. ``records``: the number of records of both sources."""
    log = book.group
    areas = owners.areas_by_name(book.plane.tiles, log.names)
    whole = sum(areas.values()) or 1
    gone = [each for each in log.changes if each.what in ("left", "expelled")]
    return GroupFigures(
        members=[
            MemberFigures(name, round(area / whole * records), round(area / whole, 4)) for name, area in areas.items()
        ],
        moves=owners.count_grants(log.changed_hands()),
        elections=sum(each.what == "elected" for each in log.changes),
        killed=[_kill_figures(book, act) for act in course.acts_of("kill") if _incarnation_of(book, act)],
        # An expulsion or a joining after twice the pause has another cause.
        paused=[_act_figures(book, act, act.at_ms + 2_000 * act.seconds) for act in course.acts_of("pause")],
        joined=[_act_figures(book, act) for act in course.acts_of("join")],
        scaled=scaling_figures(course, log, book.plane.tiles),
        expelled=dict(Counter(each.cause or each.what for each in gone)),
        missed=[step.label for step in course.missed],
    )


def _act_figures(book: Logbook, act: Act, until_ms: float = math.inf) -> ActFigures:
    def moment(what: str) -> float | None:
        found = [each.at_ms for each in book.group.changes_of(act.name, what, act.at_ms) if each.at_ms <= until_ms]
        return round(book.group.running.ms(found[0]) / 1000, 2) if found else None

    return ActFigures(act.name, act.role, round(act.share, 4), act.seconds, moment("expelled"), moment("joined"))


def _kill_figures(book: Logbook, killed: Act) -> ActFigures:
    log, incarnation = book.group, _incarnation_of(book, killed)
    last_ms, lost = log.last_ms[incarnation], log.lost_by(incarnation)
    return msgspec.structs.replace(
        _act_figures(book, killed),
        last_commit_s=round(log.running.ms(last_ms) / 1000, 2),
        unowned_s=_bounds(book, last_ms, [move.taken_up_ms for move in lost if move.taken_up_ms is not None]),
        still_s=_bounds(book, last_ms, [ms for _, ms in owners.first_commits(log, book.plane.tiles, lost)]),
    )


def _bounds(book: Logbook, from_ms: int, found_ms: list[int]) -> tuple[float, float] | None:
    """The least and the most time of work from one moment to others, in seconds; None without others."""
    between_s = book.group.running.between_s
    return (between_s(from_ms, min(found_ms)), between_s(from_ms, max(found_ms))) if found_ms else None


def _incarnation_of(book: Logbook, killed: Act) -> int:
    """The killed incarnation: the last incarnation of the name with a commit before the kill; 0: no incarnation."""
    names, times = book.group.names, book.group.times
    return max((of for (of, _), ms in times.items() if names.get(of) == killed.name and ms <= killed.at_ms), default=0)


def scaling_figures(course: Course, log: owners.GroupLog, tiles: Sequence[PlaneTile]) -> list[ScalingFigures]:
    """The figures of each scaling of a course, in order."""
    acts = course.acts_of("scale")
    ends = [*(act.at_ms for act in acts), None][1:]
    return [
        _scaling_figures(act, frozenset(course.names_after(number)), end_ms, log, tiles)
        for number, (act, end_ms) in enumerate(zip(acts, ends, strict=True), 1)
    ]


def _scaling_figures(
    act: Act, names: frozenset[str], end_ms: int | None, log: owners.GroupLog, tiles: Sequence[PlaneTile]
) -> ScalingFigures:
    seconds = log.running.between_s

    def lies_in(ms: int | None, until_ms: int | None) -> bool:
        return ms is not None and act.at_ms <= ms and (until_ms is None or ms < until_ms)

    rest_ms = next((ms for ms, group in log.rests if lies_in(ms, end_ms) and group == names), None)
    until_ms = end_ms if rest_ms is None else rest_ms + 1  # the event that brings rest counts
    moves = [move for move in log.changed_hands() if lies_in(move.granted_ms, until_ms)]
    copied = [move for move in log.moves if move.granted_ms and lies_in(move.copy_asked_ms, until_ms)]
    settled_ms = None if rest_ms is None else max([rest_ms, *(move.taken_up_ms or 0 for move in moves)])
    stops = [move.stood_still_ms for move in moves if move.stood_still_ms is not None]
    still = [seconds(move.released.ms, ms) for move, ms in owners.first_commits(log, tiles, moves) if move.released]
    return ScalingFigures(
        names=list(act.names),
        processes=len(names),
        is_up=act.is_up,
        share=round(act.share, 4),
        at_s=round(log.running.ms(act.at_ms) / 1000, 2),
        settled_s=None if settled_ms is None else round(seconds(act.at_ms, settled_ms), 2),
        moves=owners.count_grants(moves),
        state_bytes=sum(log.state_bytes.get(number, 0) for number in {move.move for move in moves}),
        copies=owners.count_grants(copied),
        copied_s=max((seconds(move.copy_asked_ms or 0, move.granted_ms or 0) for move in copied), default=None),
        unowned_s=max((round(ms / 1000, 3) for ms in stops), default=None),
        still_s=max(still, default=None),
    )
