"""PURE. The owners of ranges and the members over time, by the history that ``keylanes group history`` prints.

*Time of work* is the time in which at least one incarnation worked: pauses between the starts of a demo do not count.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import TypeAlias

from keylanes.group.history import History
from keylanes.group.history_entries import Change, MoveEntry
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.steps import Steps
from keylanes.offsets.control import LEARNER, Control, Owner
from keylanes.offsets.control_events import ControlEvent, PlanMade
from keylanes.spark.group_report import Reign, TimeMark
from keylanes.spark.plane_tiles import PlanePoint, PlaneTile

Commit: TypeAlias = tuple[int, int]
"""Incarnation, transaction."""


@dataclass(slots=True)
class GroupLog:
    """The fold of both logs of a group. ``times``: when each commit was made, in ms.

    The fields from ``moves`` on are set by ``close``, behind the last event.
    """

    history: History = field(default_factory=History)
    at_rest: frozenset[str] = frozenset()
    """The names of the group's members; empty while the group is not at rest."""
    rests: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    """Each moment at which a group came to rest, in ms, with the names of its members."""
    state_bytes: dict[int, int] = field(default_factory=dict)
    """The planned size of the state of each move, by the move's number."""
    times: dict[Commit, int] = field(default_factory=dict)
    moves: list[MoveEntry] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    """The name of each incarnation."""
    last_ms: dict[int, int] = field(default_factory=dict)
    """When each incarnation made its last commit."""
    running: "RunningTime" = field(default_factory=lambda: RunningTime(()))
    """The time of work. An incarnation works from the first cut of its workers to its last commit."""

    @property
    def coordinator(self) -> str:
        """The name of the process that was elected last; "" without an election."""
        return next((name_of_party(each) for each in reversed(self.changes) if each.what == "elected"), "")

    def hear_control(self, position: int, ms: int, event: ControlEvent) -> None:
        """Take the next event of the control log."""
        self.history.hear_control(position, ms, event)
        if isinstance(event, PlanMade):
            self.state_bytes |= {move.move: move.state_bytes for move in event.moves}
        before, self.at_rest = self.at_rest, names_at_rest(self.history.control)
        if self.at_rest and self.at_rest != before:
            self.rests.append((ms, self.at_rest))

    def close(self) -> "GroupLog":
        """Compute the fields from ``moves`` on, behind the last event of both logs; returns this log."""
        entries = self.history.entries()
        self.moves = [entry for entry in entries if isinstance(entry, MoveEntry)]
        self.changes = [entry for entry in entries if isinstance(entry, Change)]
        joined = [change.party for change in self.changes if change.what == "joined" and change.party is not None]
        self.names = {party.incarnation: party.instance for party in joined}
        for (incarnation, _), made_ms in self.times.items():
            self.last_ms[incarnation] = max(made_ms, self.last_ms.get(incarnation, made_ms))
        begun: dict[int, int] = {}
        for move in self.moves:
            if move.target is not None and (ms := move.taken_up_ms) is not None:
                begun[move.target.incarnation] = min(ms, begun.get(move.target.incarnation, ms))
        self.running = RunningTime((ms, self.last_ms.get(incarnation, ms)) for incarnation, ms in begun.items())
        return self

    def changes_of(self, name: str, what: str, from_ms: float = 0) -> list[Change]:
        """The changes of a process from a moment on, in order. ``what``: elected, joined, left or expelled."""
        found = [each for each in self.changes if (name_of_party(each), each.what) == (name, what)]
        return [each for each in found if each.at_ms >= from_ms]

    def lost_by(self, incarnation: int) -> list[MoveEntry]:
        """The ranges that were taken from a process that did not release them."""
        fenced = [move for move in self.moves if move.released is not None and move.released.what == "fenced"]
        return [move for move in fenced if move.origin is not None and move.origin.incarnation == incarnation]

    def changed_hands(self) -> list[MoveEntry]:
        """The ranges that went from one process to another."""
        taken = [move for move in self.moves if move.taken_up_ms is not None and move.origin is not None]
        return [move for move in taken if move.target is not None and move.origin != move.target]


def name_of_party(change: Change) -> str:
    """The name of the process that a change is about."""
    return "" if change.party is None else change.party.instance


def names_at_rest(control: Control) -> frozenset[str]:
    """The names of the members of a group at rest; empty where the group is not at rest.

    A group is at rest when every point has an owner that takes part, when each member owns some points, and when no
    range is on its way: no plan is due, all moves of the newest plan are done, and no copy of state is made for a move.
    """
    moves = control.moves
    there = {member.incarnation: member.joined.instance for member in control.members.values() if not member.expelled}
    is_begun = bool(moves.release_requests) or any(copy.role == LEARNER for copy in moves.copies.values())
    if is_begun or control.group_epoch != moves.group_epoch or there.keys() != control.points_owned.keys():
        return frozenset()
    if control.owners.keys() != control.started.keys():
        return frozenset()
    for move in moves.planned.values():
        steps: Steps[Owner] = control.owners.get((move.topic, move.partition), Steps())
        left = any(owner.incarnation == move.origin for _, _, owner in steps.pieces(move.first, move.end))
        if left and move.origin != move.target:
            return frozenset()
    owners = [owner for steps in control.owners.values() for _, _, owner in steps.all_pieces()]
    return frozenset() if None in owners else frozenset(there.values())


def reigns_of(log: GroupLog) -> list[Reign]:
    """The reigns of all processes, in ms of work. A reign lasts from the cut of the range into workers to the release
    of the range. The reigns of a killed process last to the last commit of the process.
    """
    working: dict[tuple[str, int], Steps[tuple[int, int]]] = {}
    found: list[Reign] = []

    def end(place: tuple[str, int], first: int, end: int, released_ms: int | None) -> None:
        steps = working.setdefault(place, Steps())
        for a, b, (incarnation, from_ms) in steps.pieces(first, end):
            to_ms = max(from_ms, log.last_ms.get(incarnation, 0) if released_ms is None else released_ms)
            found.append(Reign(*place, a, b, incarnation, log.running.ms(from_ms), log.running.ms(to_ms)))
        steps.put(first, end, None)

    for move in log.moves:
        place = (move.topic, move.partition)
        if move.released is not None:
            is_released = move.released.what == "released"
            end(place, move.first, move.end, move.released.ms if is_released else None)
        if move.target is not None and move.taken_up_ms is not None:
            taken = (move.target.incarnation, move.taken_up_ms)
            working.setdefault(place, Steps()).put(move.first, move.end, taken)
    for place in working:
        end(place, 0, SPACE_END, None)
    return found


def copies_of(log: GroupLog) -> list[Reign]:
    """Each copy of a range's state by the next owner of the range, in ms of work: from the request to the grant."""
    return [
        Reign(*move[2:6], move.target.incarnation, log.running.ms(move.copy_asked_ms), log.running.ms(move.granted_ms))
        for move in log.moves
        if move.target is not None and move.copy_asked_ms is not None and move.granted_ms is not None
    ]


def count_grants(moves: Iterable[MoveEntry]) -> int:
    """The number of moved ranges. Parts of a range in one grant, from one owner, count once."""
    return len({(move.position, move.topic, move.partition, move.origin) for move in moves})


def first_commits(log: GroupLog, tiles: Iterable[PlaneTile], moves: list[MoveEntry]) -> list[tuple[MoveEntry, int]]:
    """Each move with the first commit of the new owner in the range, in ms. A range without any record left has no such
    commit, and is left out.
    """
    by_place: dict[tuple[str, int, int], list[tuple[int, MoveEntry, int]]] = {}
    for number, move in enumerate(moves):
        if move.target is not None and move.released is not None:
            key = (move.topic, move.partition, move.target.incarnation)
            by_place.setdefault(key, []).append((number, move, move.released.ms))
    found: dict[int, int] = {}
    for tile in tiles:
        for number, move, released_ms in by_place.get((tile.topic, tile.partition, tile.incarnation), ()):
            ms = log.times[tile.incarnation, tile.transaction]
            if tile.first < move.end and move.first < tile.end and released_ms < ms < found.get(number, ms + 1):
                found[number] = ms
    return [(moves[number], ms) for number, ms in found.items()]


def place_of_a_move(log: GroupLog, tiles: Iterable[PlaneTile], moves: list[MoveEntry], topic: str) -> PlanePoint | None:
    """The point of the plane at which the largest of these moves in a topic took place; None without such a move.

    The point is the middle of the moved range. The offset is the median of the edges that the range had at the release.
    """
    found = [move for move in moves if move.topic == topic and move.origin is not None and move.released is not None]
    move = max(found, key=lambda move: (move.end - move.first, -move.partition, -move.position), default=None)
    if move is None or move.origin is None or move.released is None:
        return None
    ends: dict[int, int] = {}
    for tile in tiles:
        is_there = tile[:2] == move[2:4] and move.first <= tile.first < move.end
        is_its = tile.incarnation == move.origin.incarnation
        if is_there and is_its and log.times[tile.incarnation, tile.transaction] <= move.released.ms:
            ends[tile.first] = max(tile.offset_to, ends.get(tile.first, 0))
    if not ends:
        return None
    return PlanePoint(move.topic, move.partition, (move.first + move.end) // 2, median_low(ends.values()))


def areas_by_name(tiles: Iterable[PlaneTile], names: Mapping[int, str]) -> dict[str, int]:
    """The area of the plane that each process has committed, by name, in offsets times points."""
    areas: Counter[str] = Counter()
    for tile in tiles:
        areas[names.get(tile.incarnation, "?")] += (tile.end - tile.first) * (tile.offset_to - tile.offset_from)
    return dict(sorted(areas.items()))


def marks_of(
    log: GroupLog, killed: Mapping[str, int], joined: Sequence[str], paused: Sequence[tuple[str, int]]
) -> list[TimeMark]:
    """The marks of a picture, in order of time.

    ``killed``: by name, the time of the last commit. The marks of a killed process are its kill, its expulsion, the
    election of the next coordinator, and its return. ``paused``: name and time of each pause. The marks are the pause,
    the expulsion and the return. ``joined``: the names of added processes, each with one mark.
    """
    found: list[tuple[int, str, bool]] = []
    for name, ms in killed.items():
        found.append((ms, f"{name} is killed", True))
        found += [(back.at_ms, f"{name} is back", False) for back in log.changes_of(name, "joined", ms + 1)[:1]]
        for expelled in log.changes_of(name, "expelled", ms + 1)[:1]:
            found.append((expelled.at_ms, f"{name} is expelled", True))
            elected = [each for each in log.changes if each.what == "elected" and ms < each.at_ms <= expelled.at_ms]
            found += [(each.at_ms, f"{name_of_party(each)} coordinates", False) for each in elected[:1]]
    for name, ms in paused:
        until_ms = killed.get(name, None)
        found.append((ms, f"{name} is paused", True))
        for what, text in (("expelled", "is expelled"), ("joined", "is back")):
            behind = [each for each in log.changes_of(name, what, ms + 1) if until_ms is None or each.at_ms < until_ms]
            found += [(each.at_ms, f"{name} {text}", what == "expelled") for each in behind[:1]]
    for name in joined:
        found += [(each.at_ms, f"{name} joins", False) for each in log.changes_of(name, "joined")[:1]]
    return [TimeMark(log.running.ms(ms) / 1000, text, is_loss) for ms, text, is_loss in sorted(found)]


class RunningTime:
    """The time of work. ``spans``: from and to ms, of each incarnation at work."""

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
        """The whole time of work, in seconds."""
        return sum(end - start for start, end in zip(self._starts, self._ends, strict=True)) / 1000

    def ms(self, at_ms: int) -> int:
        """The time of work in front of a moment, in ms."""
        begun = bisect_right(self._starts, at_ms)
        if not begun:
            return 0
        before = sum(self._ends[i] - self._starts[i] for i in range(begun - 1))
        return before + min(at_ms, self._ends[begun - 1]) - self._starts[begun - 1]

    def between_s(self, from_ms: int, to_ms: int) -> float:
        """The time of work between two moments, in seconds."""
        return round((self.ms(to_ms) - self.ms(from_ms)) / 1000, 3)
