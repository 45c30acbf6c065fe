"""PURE. Who worked on what, and when it changed: folded from the two logs, for several processes.

A process *holds* a range from the cut of its workers to its release. Who was killed releases nothing: it held its
ranges up to its last commit.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple, TypeAlias

from ..group.members import LEFT
from ..keyrange.hashing import SPACE_END
from ..offsets.control import Control, evolve_control
from ..offsets.control_events import ControlEvent, CoordinatorElected, MemberExpelled, MemberJoined
from ..offsets.events import Committed, Event, RangesReleased, WorkersCut
from .tiles import Place, PlaneTile

Colour: TypeAlias = tuple[float, float, float]
"""Red, green and blue, from 0 to 1."""
COLOURS: Sequence[Colour] = (
    (0.34, 0.61, 0.84), (0.95, 0.64, 0.28), (0.44, 0.73, 0.45), (0.83, 0.48, 0.71),
    (0.90, 0.82, 0.34), (0.33, 0.74, 0.73), (0.85, 0.39, 0.36), (0.58, 0.50, 0.80),
)  # fmt: skip
"""Of processes, by their number."""
PALE_SHARE = (0.0, 0.22, 0.5)
"""How much white is in the shades of a colour."""
DARKER = 0.72
"""The second eight processes have the same colours, darker."""
Commit: TypeAlias = tuple[int, int]
"""Incarnation, transaction."""


class Hold(NamedTuple):
    """A range that an incarnation worked on in ``[from_ms, to_ms)``. ``is_released``: it gave it up itself."""

    topic: str
    partition: int
    first: int
    end: int
    incarnation: int
    from_ms: int
    to_ms: int
    is_released: bool


class Copied(NamedTuple):
    """A range of which an incarnation had a copy of the state, before it owned it, in ``[from_ms, to_ms)``."""

    topic: str
    partition: int
    first: int
    end: int
    incarnation: int
    from_ms: int
    to_ms: int


class Happening(NamedTuple):
    """``kind``: joined, expelled or elected. ``cause`` of an expulsion. Times are the broker's."""

    ms: int
    kind: str
    name: str
    cause: str = ""


class Holding:
    """Folds the offset log into who held what. Events of one source partition come in their order."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], list[Hold]] = {}
        self._closed: list[Hold] = []
        self._cut_ms: dict[int, int] = {}
        self.times: dict[Commit, int] = {}
        """When each commit was made."""

    def take(self, event: Event, ms: int) -> None:
        """The next event, and when it was written."""
        match event:
            case WorkersCut():
                place, first, end = (event.topic, event.partition), event.bounds[0], event.bounds[-1]
                self._cut_ms[event.incarnation] = min(ms, self._cut_ms.get(event.incarnation, ms))
                self._open.setdefault(place, []).append(
                    Hold(*place, first, end, event.incarnation, ms, ms, is_released=False)
                )
            case RangesReleased():
                for band in event.bands:
                    self._close(event, band.first, band.end, ms)
            case Committed():
                self.times[event.incarnation, event.transaction] = ms

    def holds(self) -> list[Hold]:
        """All of them, by the time at which they began."""
        last = self._last()
        left = [hold for held in self._open.values() for hold in held]
        ended = [hold._replace(to_ms=max(hold.from_ms, last.get(hold.incarnation, 0))) for hold in left]
        return sorted([*self._closed, *ended], key=lambda hold: (hold.from_ms, hold[:5]))

    def running(self) -> "RunningTime":
        """When some incarnation worked: each from the cut of its workers to its last commit."""
        return RunningTime((self._cut_ms[i], ms) for i, ms in self._last().items() if i in self._cut_ms)

    def _last(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for (incarnation, _), ms in self.times.items():
            last[incarnation] = max(ms, last.get(incarnation, ms))
        return last

    def _close(self, event: RangesReleased, first: int, end: int, ms: int) -> None:
        place = event.topic, event.partition
        kept: list[Hold] = []
        for hold in self._open.get(place, ()):
            inner, outer = max(first, hold.first), min(end, hold.end)
            if hold.incarnation != event.incarnation or inner >= outer:
                kept.append(hold)
                continue
            self._closed.append(hold._replace(first=inner, end=outer, to_ms=ms, is_released=True))
            kept += [
                hold._replace(first=a, end=b) for a, b in ((hold.first, inner), (outer, hold.end)) if a < b
            ]  # fmt: skip
        self._open[place] = kept


class Span(NamedTuple):
    """A range that a process worked on, in seconds of the run's work."""

    topic: str
    partition: int
    first: int
    end: int
    name: str
    from_s: float
    to_s: float


class Mark(NamedTuple):
    """A moment to be marked, in seconds of the run's work. ``is_loss``: of a process, not of one that came.
    ``is_step``: of a course that scales, with a sign in its text; ``until_s``: when all was balanced then.
    """

    at_s: float
    text: str
    is_loss: bool
    is_step: bool = False
    until_s: float | None = None


class Ownership(NamedTuple):
    """What a picture shows of several processes. ``names`` by incarnation; ``shares`` of the plane by name; ``copies``
    of state that a process had before it owned them.
    """

    names: Mapping[int, str]
    shares: Mapping[str, float]
    spans: Sequence[Span]
    marks: Sequence[Mark]
    copies: Sequence[Span] = ()


class History(NamedTuple):
    """``names`` by incarnation, and what happened to whom, in order."""

    names: dict[int, str]
    happened: list[Happening]


def history_of(events: Iterable[tuple[int, ControlEvent]]) -> History:
    """Folds the control log, its events with their times in ms."""
    control = Control()
    names: dict[int, str] = {}
    happened: list[Happening] = []
    for ms, event in events:
        number, term = control.number, control.term
        known = control.incarnation_max
        evolve_control(control, event)
        if (control.number, control.term) == (number, term):
            continue  # it does not count
        match event:
            case MemberJoined() if control.incarnation_max > known:
                names[event.incarnation] = event.instance
                happened.append(Happening(ms, "joined", event.instance))
            case MemberExpelled():
                happened.append(Happening(ms, "expelled", names.get(event.incarnation, "?"), event.cause))
            case CoordinatorElected():
                happened.append(Happening(ms, "elected", event.instance))
    return History(names, happened)


class _Taken(NamedTuple):
    """A range that an incarnation took up, or moved on in, at ``ms``."""

    place: tuple[str, int]
    first: int
    end: int
    incarnation: int
    ms: int


def unowned_s(incarnation: int, holds: Sequence[Hold], running: "RunningTime") -> list[float]:
    """Of each range that a killed incarnation held at its end: the seconds of work from its last commit, of whatever,
    until a successor held a part of it. A range that nobody took up has none.
    """
    taken = (_Taken(hold[:2], hold.first, hold.end, hold.incarnation, hold.from_ms) for hold in holds)
    return _waits(incarnation, holds, taken, running)


def still_s(
    incarnation: int,
    holds: Sequence[Hold],
    tiles: Iterable[PlaneTile],
    times: Mapping[Commit, int],
    running: "RunningTime",
) -> list[float]:
    """The same, to the first tile of a successor. A range that was done to its end has none."""
    moved = (
        _Taken(tile[:2], tile.first, tile.end, tile.incarnation, times[tile.incarnation, tile.transaction])
        for tile in tiles
    )
    return _waits(incarnation, holds, moved, running)


def _waits(incarnation: int, holds: Sequence[Hold], taken: Iterable[_Taken], running: "RunningTime") -> list[float]:
    found: dict[Hold, int] = {}
    lost: dict[tuple[str, int], list[Hold]] = {}
    for hold in holds:
        if hold.incarnation == incarnation and not hold.is_released:
            lost.setdefault(hold[:2], []).append(hold)
    for one in taken:
        for hold in lost.get(one.place, ()):
            meets = one.first < hold.end and hold.first < one.end
            if meets and one.incarnation != incarnation and hold.to_ms < one.ms < found.get(hold, one.ms + 1):
                found[hold] = one.ms
    return sorted(round(running.at(ms) - running.at(hold.to_ms), 3) for hold, ms in found.items())


def moves(holds: Sequence[Hold], names: Mapping[int, str]) -> int:
    """How often a range went from one process to another. ``holds`` by the time at which they began."""
    before: dict[tuple[str, int], list[Hold]] = {}
    count = 0
    for hold in holds:
        middle = (hold.first + hold.end) // 2
        earlier = before.setdefault(hold[:2], [])
        last = next((other for other in reversed(earlier) if other.first <= middle < other.end), None)
        count += last is not None and names.get(last.incarnation) != names.get(hold.incarnation)
        earlier.append(hold)
    return count


def shares(tiles: Iterable[PlaneTile], names: Mapping[int, str]) -> dict[str, float]:
    """How much of the plane is whose, by name, in offsets of whole partitions."""
    areas: dict[str, int] = {}
    for tile in tiles:
        name = names.get(tile.incarnation, "?")
        areas[name] = areas.get(name, 0) + (tile.end - tile.first) * (tile.offset_to - tile.offset_from)
    return {name: area / SPACE_END for name, area in areas.items()}


def place_of_the_kill(incarnation: int, topic: str, holds: Sequence[Hold], tiles: Sequence[PlaneTile]) -> Place | None:
    """Where a killed incarnation came to its end in a topic: in the middle of the largest range that it lost."""
    lost = [hold for hold in holds if hold.incarnation == incarnation and not hold.is_released and hold.topic == topic]
    hold = max(lost, key=lambda hold: (hold.end - hold.first, -hold.partition), default=None)
    return None if hold is None else place_of_the_end(hold, tiles)


def place_of_the_end(hold: Hold, tiles: Sequence[PlaneTile]) -> Place | None:
    """Where an incarnation came to the end of a range: in the middle of it; None: it had committed nothing there."""
    middle = (hold.first + hold.end) // 2
    ends: dict[int, int] = {}
    for tile in tiles:
        is_there = tile[:2] == hold[:2] and hold.first <= tile.first < hold.end
        if is_there and tile.incarnation == hold.incarnation:
            ends[tile.first] = max(tile.offset_to, ends.get(tile.first, 0))
    return Place(hold.topic, hold.partition, middle, median_low(ends.values())) if ends else None


def marks_of(
    history: History,
    killed: Mapping[str, int],
    joined: Sequence[str],
    paused: Sequence[tuple[str, int]],
    running: "RunningTime",
) -> list[Mark]:
    """``killed``: when each made its last commit, with its expulsion, who coordinates then, and when it joined again;
    ``paused``: when each was, with its expulsion and when it joined again; when those who were added have ``joined``.
    """
    found: list[tuple[int, str, bool]] = []
    for name, ms in killed.items():
        found.append((ms, f"{name} is killed", True))
        again = [each.ms for each in history.happened if each[1:3] == ("joined", name) and each.ms > ms]
        found += [(back_ms, f"{name} is back", False) for back_ms in again[:1]]
        expelled = next((each for each in history.happened if each[1:3] == ("expelled", name) and each.ms > ms), None)
        if expelled is None:
            continue
        found.append((expelled.ms, f"{name} is expelled", True))
        elected = next((each for each in history.happened if each.kind == "elected" and each.ms > ms), None)
        if elected is not None and elected.ms <= expelled.ms:
            found.append((elected.ms, f"{elected.name} coordinates", False))
    for name, ms in paused:
        behind = [each for each in history.happened if each.name == name and each.ms > ms]
        behind = behind if name not in killed else [each for each in behind if each.ms < killed[name]]
        found.append((ms, f"{name} is paused", True))
        gone = [each for each in behind if each.kind == "expelled" and each.cause != LEFT]
        found += [(each.ms, f"{name} is expelled", True) for each in gone[:1]]
        found += [(each.ms, f"{name} is back", False) for each in behind if each.kind == "joined"][:1]
    for name in joined:
        found += [(each.ms, f"{name} joins", False) for each in history.happened if each[1:3] == ("joined", name)][:1]
    return [Mark(running.at(ms), text, is_loss) for ms, text, is_loss in sorted(found)]


def spans_of(holds: Iterable[Hold | Copied], names: Mapping[int, str], running: "RunningTime") -> list[Span]:
    """Holds or copies by name, and in seconds of the run's work."""
    return [
        Span(*hold[:4], names.get(hold.incarnation, "?"), running.at(hold.from_ms), running.at(hold.to_ms))
        for hold in holds
    ]


def colour_of(name: str, shade: int = 0) -> Colour:
    """Of a process, by its number, so that it keeps its colour when others come and go; ``shade``: of a commit."""
    digits = name.rpartition("-")[2]
    number = int(digits) - 1 if digits.isdecimal() else 0
    pale = PALE_SHARE[shade % len(PALE_SHARE)]
    depth = DARKER ** (number // len(COLOURS))
    red, green, blue = (channel * depth * (1 - pale) + pale for channel in COLOURS[number % len(COLOURS)])
    return red, green, blue


class RunningTime:
    """Seconds of work: the time in which some incarnation worked, without the pauses between runs."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted((start, max(start, end)) for start, end in spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    @property
    def total_s(self) -> float:
        """All of it."""
        return sum(end - start for start, end in zip(self._starts, self._ends, strict=True)) / 1000

    def at(self, ms: int) -> float:
        """So many seconds of work were over at a moment."""
        i = bisect_right(self._starts, ms)
        before = sum(self._ends[j] - self._starts[j] for j in range(i - 1))
        inside = min(ms, self._ends[i - 1]) - self._starts[i - 1] if i else 0
        return (before + inside) / 1000
