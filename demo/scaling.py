"""PURE. What it costs to scale a group up and down: when it was at rest again, and what had moved until then.

A group is *at rest* when every point has an owner that takes part, all who take part own something, and nothing is on
its way: no plan is due, and no move of the newest one is left, nor a copy of state that is made for one.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ..group.happened import MoveEntry, MoveState
from ..keyrange.steps import Steps
from ..offsets.control import LEARNER, Control, Owner, evolve_control
from ..offsets.control_events import ControlEvent, CopyAsked, PlanMade
from ..offsets.event_values import PlannedMove
from .course import Course, Scaled
from .owners import Commit, Copied, Hold, Mark, RunningTime, place_of_the_end
from .tiles import Place, PlaneTile


class Rest(NamedTuple):
    """The group of these ``names`` came to rest at ``ms``."""

    ms: int
    names: frozenset[str]


class Motion:
    """Folds the control log, its events with their times in ms."""

    def __init__(self) -> None:
        self.rests: list[Rest] = []
        self.state_bytes: dict[int, int] = {}
        """How much state a move was planned with, by its number."""
        self._control = Control()
        self._copying: dict[int, tuple[CopyAsked, int]] = {}
        self._copied: list[Copied] = []
        self._resting: frozenset[str] = frozenset()
        self._last_ms = 0

    @property
    def at_rest(self) -> frozenset[str]:
        """The names of the group, while it is at rest."""
        return self._resting

    def take(self, ms: int, event: ControlEvent) -> None:
        """The next event."""
        self._last_ms = ms
        if isinstance(event, PlanMade):
            self.state_bytes |= {move.move: move.state_bytes for move in event.moves}
        evolve_control(self._control, event)
        copies = {move: copy for move, copy in self._control.moves.copies.items() if copy.role == LEARNER}
        for move in self._copying.keys() - copies.keys():
            self._copied += _spans(*self._copying.pop(move), ms)
        self._copying |= {move: (copy, ms) for move, copy in copies.items() if move not in self._copying}
        before, self._resting = self._resting, names_at_rest(self._control)
        if self._resting and self._resting != before:
            self.rests.append(Rest(ms, self._resting))

    def copied(self) -> list[Copied]:
        """All copies that were made for moves, by the time at which they were asked for."""
        open_ones = [span for copy, ms in self._copying.values() for span in _spans(copy, ms, self._last_ms)]
        return sorted([*self._copied, *open_ones], key=lambda one: (one.from_ms, one[:5]))


def _spans(asked: CopyAsked, from_ms: int, to_ms: int) -> list[Copied]:
    return [
        Copied(asked.topic, asked.partition, band.first, band.end, asked.incarnation, from_ms, to_ms)
        for band in asked.bands
    ]


def names_at_rest(control: Control) -> frozenset[str]:
    """The names of a group that is at rest; empty: it is not."""
    moves = control.moves
    there = {member.incarnation: member.joined.instance for member in control.members.values() if not member.expelled}
    is_begun = bool(moves.asked) or any(copy.role == LEARNER for copy in moves.copies.values())
    is_left = any(_is_left(control, move) for move in moves.planned.values())
    if is_begun or is_left or control.group_epoch != moves.group_epoch or there.keys() != control.held.keys():
        return frozenset()
    if control.owners.keys() != control.started.keys():
        return frozenset()
    owners = [owner for steps in control.owners.values() for _, _, owner in steps.all_pieces()]
    return frozenset() if None in owners else frozenset(there.values())


def _is_left(control: Control, move: PlannedMove) -> bool:
    """Whether something of a move is still where it was."""
    owners: Steps[Owner] = control.owners.get((move.topic, move.partition), Steps())
    pieces = owners.pieces(move.first, move.end)
    return move.origin != move.target and any(owner.incarnation == move.origin for _, _, owner in pieces)


class ScalingFigures(msgspec.Struct, frozen=True):
    """A step up or down, at ``at_s`` seconds of the run's work, to ``processes``. ``settled_s``: so long after it the
    group was at rest, and all that had moved was taken up; None: it was not.

    ``moves``: ranges that were granted from one process to another until then, with ``state_bytes`` of state by the
    plan; ``copies``: so many were copied before they were owned, each within ``copied_s``. ``unowned_s``, ``still_s``:
    of each part that moved, from its release until it was taken up, and to the first commit of its successor; the most
    of each.
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
        """How many more, or fewer."""
        return f"{'+' if self.is_up else '−'}{len(self.names)}"


class Log(NamedTuple):
    """What the two logs say of a run: ``moves`` of its ranges, ``tiles`` with the ``times`` of their commits."""

    motion: Motion
    moves: Sequence[MoveEntry]
    tiles: Sequence[PlaneTile]
    times: Mapping[Commit, int]
    running: RunningTime


def scaling_figures(course: Course, log: Log) -> list[ScalingFigures]:
    """Of each step of a course; none of one that does not scale."""
    if not course.scaled:
        return []
    changed = [move for move in log.moves if _changed_hands(move)]
    ends = [*(act.at_ms for act in course.scaled[1:]), None]
    return [
        _figures(act, frozenset(course.names_after(number)), end_ms, changed, log)
        for number, (act, end_ms) in enumerate(zip(course.scaled, ends, strict=True), 1)
    ]


def scaling_marks(figures: Sequence[ScalingFigures]) -> list[Mark]:
    """A mark for each step."""
    return [
        Mark(
            one.at_s,
            f"{one.sign}: {', '.join(one.names)}",
            is_loss=not one.is_up,
            is_step=True,
            until_s=None if one.settled_s is None else round(one.at_s + one.settled_s, 2),
        )
        for one in figures
    ]


def place_of_a_move(topic: str, log: Log) -> Place | None:
    """Where a range of a topic went from one process to another: where the largest was released."""
    found = [move for move in log.moves if move.topic == topic and _changed_hands(move) and move.released is not None]
    move = max(found, key=lambda move: (move.end - move.first, -move.partition, -move.position), default=None)
    if move is None or move.origin is None or move.released is None:
        return None
    hold = Hold(*move[2:6], move.origin.incarnation, 0, move.released.ms, is_released=True)
    before = [tile for tile in log.tiles if log.times[tile.incarnation, tile.transaction] <= move.released.ms]
    return place_of_the_end(hold, before)


def _changed_hands(move: MoveEntry) -> bool:
    is_there = move.state is MoveState.MOVED and move.granted_ms is not None
    is_known = move.origin is not None and move.target is not None
    return is_there and is_known and move.origin != move.target


def _figures(
    act: Scaled, names: frozenset[str], end_ms: int | None, changed: Sequence[MoveEntry], log: Log
) -> ScalingFigures:
    running = log.running

    def lies_in(ms: int, until_ms: int | None) -> bool:
        return act.at_ms <= ms and (until_ms is None or ms < until_ms)

    rest_ms = next((rest.ms for rest in log.motion.rests if lies_in(rest.ms, end_ms) and rest.names == names), None)
    until_ms = end_ms if rest_ms is None else rest_ms + 1
    moves = [move for move in changed if move.granted_ms is not None and lies_in(move.granted_ms, until_ms)]
    copies = [one for one in log.motion.copied() if lies_in(one.from_ms, until_ms)]
    taken_up = [move.taken_up_ms for move in moves if move.taken_up_ms is not None]
    settled_ms = None if rest_ms is None else max([rest_ms, *taken_up])
    stops = [move.stood_still_ms for move in moves if move.stood_still_ms is not None]
    still = [running.at(ms) - running.at(released) for released, ms in _stops(moves, log)]
    return ScalingFigures(
        names=list(act.names),
        processes=len(names),
        is_up=act.is_up,
        share=round(act.share, 4),
        at_s=round(running.at(act.at_ms), 2),
        settled_s=None if settled_ms is None else round(running.at(settled_ms) - running.at(act.at_ms), 2),
        moves=len({(move.move, *move[2:4], move.epoch) for move in moves}),
        state_bytes=sum(log.motion.state_bytes.get(number, 0) for number in {move.move for move in moves}),
        copies=len(copies),
        copied_s=max((round(running.at(one.to_ms) - running.at(one.from_ms), 3) for one in copies), default=None),
        unowned_s=max((round(ms / 1000, 3) for ms in stops), default=None),
        still_s=max((round(seconds, 3) for seconds in still), default=None),
    )


def _stops(moves: Sequence[MoveEntry], log: Log) -> list[tuple[int, int]]:
    """Of each move: when its range was released, and when its successor made the first commit in it; a range that was
    done to its end has none.
    """
    by_place: dict[tuple[str, int, int], list[tuple[int, MoveEntry]]] = {}
    for number, move in enumerate(moves):
        if move.target is not None and move.released is not None:
            key = move.topic, move.partition, move.target.incarnation
            by_place.setdefault(key, []).append((number, move))
    found: dict[int, tuple[int, int]] = {}
    for tile in log.tiles:
        for number, move in by_place.get((tile.topic, tile.partition, tile.incarnation), ()):
            assert move.released is not None, "the others are left out"
            released_ms, ms = move.released.ms, log.times[tile.incarnation, tile.transaction]
            if tile.first < move.end and move.first < tile.end and released_ms < ms < found.get(number, (0, ms + 1))[1]:
                found[number] = released_ms, ms
    return list(found.values())
