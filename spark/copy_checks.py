"""PURE. Copies of state and the statements on copies, derived anew from the control log.

The coordinator asks a member for a copy of bands of a source partition. The member is a *learner*, with the task to own
the bands, or a *standby*. A copy is over when its member owns all bands of the copy, when the member was expelled, or
when the coordinator ended the copy. Only signals tell whether a copy was ready when a release was asked for, and
signals are no facts. Therefore the statements judge the order of the decisions.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ..keyrange.hashing import SPACE_END
from ..keyrange.steps import Steps
from ..offsets.control_events import (
    CopyAsked,
    CopyEnded,
    MemberExpelled,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
    ReleaseWithdrawn,
    StoreDeclared,
)
from ..offsets.event_values import PlannedMove
from ..offsets.events import Event
from .history import Source
from .ownership import Claim, Ownership
from .ownership_checks import Verdict
from .report import Example

LEARNER: Final = "learner"
STANDBY: Final = "standby"
OWNED: Final = "owned"
EXPELLED: Final = "expelled"
ENDED: Final = "ended"
"""The three causes of the end of a copy."""

STATEMENTS: Final = {
    "copy-asked": "a copy is asked of a member that takes part, of what it does not own, under a number of its own",
    "copy-first": "in a topic with stores a release for another member is asked for behind a copy that this one has",
    "copy-once": "while a move takes a range to who learns it, no other one learns it, nor is it released for another",
    "copy-ended": "a copy that is ended was asked for, and is not over",
}


@dataclass(slots=True)
class CopyLife:
    """A copy of state, from the request to the end of the copy.

    ``position``: of the request; ``over_at``: the position at which the copy was over, None: not over at the end of the
    log; ``how``: OWNED, EXPELLED or ENDED; ``reason``: why the coordinator ended the copy.
    """

    asked: CopyAsked
    position: int
    over_at: int | None = None
    how: str = ""
    reason: str = ""

    @property
    def source(self) -> Source:
        """The source partition of the copied state."""
        return self.asked.topic, self.asked.partition

    def pieces(self, first: int = 0, end: int = SPACE_END) -> Iterator[tuple[int, int]]:
        """The copy's bands inside ``[first, end)``."""
        for band in self.asked.bands:
            if (low := max(first, band.first)) < (high := min(end, band.end)):
                yield low, high

    def is_there(self, position: int) -> bool:
        """Whether the copy was asked for in front of a position, and not over in front of the position."""
        return self.position < position and (self.over_at is None or position <= self.over_at)


@dataclass(slots=True)
class Copying:
    """All copies, in the order of the requests.

    ``planned``: the moves of complete plans, by number; ``released``: the position of the first request of a release,
    by move; ``stateful``: the topics with stores.
    """

    copies: list[CopyLife] = field(default_factory=list)
    planned: dict[int, PlannedMove] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)
    stateful: set[str] = field(default_factory=set)
    checked: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[Example]] = field(default_factory=lambda: defaultdict(list))
    """The contradictions, by name of the statement."""

    def covers(self, claim: Claim) -> bool:
        """Whether the new owner had copies of all points of a claim."""
        copied: Steps[bool] = Steps()
        for copy in self.copies:
            is_its = (copy.source, copy.asked.incarnation) == (claim.source, claim.incarnation)
            for first, end in copy.pieces() if is_its and copy.is_there(claim.position) else ():
                copied.put(first, end, True)
        return copied.is_constant(claim.first, claim.end, True)


def judge_copying(copying: Copying) -> list[Verdict]:
    """The verdicts on all statements on copies; empty where no topic has stores and no copy was asked for."""
    if not copying.stateful and not copying.copies:
        return []
    return [
        Verdict(name, statement, copying.checked[name], copying.problems[name])
        for name, statement in STATEMENTS.items()
    ]


def fold_copying(counted: Iterable[tuple[int, Event]], ownership: Ownership) -> Copying:
    """Fold the copies from the ``(position, event)`` of the control log that count, in order, and from the owners."""
    fold = _Fold(ownership)
    for position, event in counted:
        match event:
            case StoreDeclared():
                fold.found.stateful.add(event.topic)
            case PlanMade():
                fold.plan(position, event)
            case CopyAsked():
                fold.ask(position, event)
            case CopyEnded():
                fold.end(position, event)
            case ReleaseAsked():
                fold.release(position, event)
            case ReleaseWithdrawn():
                fold.planned.pop(event.move, None)
            case RangesGranted():
                fold.grant(position, event)
            case MemberExpelled():
                fold.expel(position, event)
    return fold.found


class _Fold:
    """The fold of the copies. ``planned``: the moves in force, by number."""

    def __init__(self, ownership: Ownership) -> None:
        self.found = Copying()
        self.planned: dict[int, PlannedMove] = {}
        self._begun: set[int] = set()
        """The numbers of the moves with a request for a copy or a release. A later plan leaves these moves in force."""
        self._there: dict[int, CopyLife] = {}
        """The copies that are not over, by number."""
        self._parts: list[PlanMade] = []
        """The parts of the present plan so far."""
        self._numbers: set[int] = set()
        """The used numbers of moves and copies."""
        self._of_copies: dict[int, CopyLife] = {}
        """The first copy of each number, also when over."""
        self._members = ownership.members
        self._claims: dict[int, list[Claim]] = defaultdict(list)
        """The claims of each grant, by position."""
        for claim in ownership.claims:
            self._claims[claim.position].append(claim)
        self._owners: dict[Source, Steps[Claim]] = defaultdict(Steps)
        """The owners by the grants so far."""

    # --- moves and owners --------------------------------------------------------------------------------------------

    def plan(self, position: int, event: PlanMade) -> None:
        """Take a part of a plan. A plan counts when all parts of the plan are in the log, in turn."""
        for move in event.moves:
            if (copy := self._of_copies.get(move.move)) is not None:
                problem = f"a move is planned under the number of the copy at position {copy.position}"
                self._object("copy-asked", {"position": position, "move": move.move}, problem)
        self._numbers |= {move.move for move in event.moves}
        is_next = bool(self._parts) and (self._parts[0].plan, len(self._parts)) == (event.plan, event.part)
        self._parts = [*self._parts, event] if is_next else [event] if event.part == 0 else []
        if len(self._parts) != event.parts:
            return
        in_force = {number: move for number, move in self.planned.items() if number in self._begun}
        moves = {move.move: move for part in self._parts for move in part.moves}
        self.planned, self._parts = {**in_force, **moves}, []
        self.found.planned |= moves

    def grant(self, position: int, event: RangesGranted) -> None:
        """Take a grant. A copy is over when its member now owns all bands of the copy."""
        for claim in self._claims.get(position, ()):
            self._owners[claim.source].put(claim.first, claim.end, claim)
        source = event.topic_partition
        own = [c for c in self._there.values() if c.source == source and c.asked.incarnation == event.incarnation]
        for copy in own:
            if all(self._is_own(copy, first, end) for first, end in copy.pieces()):
                self._end_copy(copy, position, OWNED)

    def expel(self, position: int, event: MemberExpelled) -> None:
        """Take an expulsion: the member's copies are over."""
        for copy in [c for c in self._there.values() if c.asked.incarnation == event.incarnation]:
            self._end_copy(copy, position, EXPELLED)

    # --- statements --------------------------------------------------------------------------------------------------

    def ask(self, position: int, event: CopyAsked) -> None:
        """Judge the request of a copy."""
        copy = CopyLife(event, position)
        self.found.checked["copy-asked"] += 1
        shown = _copy_example(copy)
        for problem in self._unfit(copy):
            self._object("copy-asked", shown, problem)
        for first, end in copy.pieces():
            for a, b, owner in self._owners[copy.source].pieces(first, end):
                if owner.incarnation == event.incarnation:
                    self._object("copy-asked", {**shown, "first": a, "end": b}, "its member owns these points")
        if event.role == LEARNER:
            self.found.checked["copy-once"] += 1
            for first, end in copy.pieces():
                self._object_to_learners(copy.source, first, end, event.incarnation, shown, "a learner is asked for")
        self._numbers.add(event.move)
        self._begun.add(event.move)
        self._there[event.move] = copy
        self._of_copies.setdefault(event.move, copy)
        self.found.copies.append(copy)

    def end(self, position: int, event: CopyEnded) -> None:
        """Judge the end of a copy by the coordinator."""
        self.found.checked["copy-ended"] += 1
        copy = self._there.get(event.move)
        if copy is not None:
            self._end_copy(copy, position, ENDED, event.reason)
            return
        before = self._of_copies.get(event.move)
        problem = "no copy has this number" if before is None else f"over at position {before.over_at}: {before.how}"
        self._object("copy-ended", {"position": position, "move": event.move}, problem)

    def release(self, position: int, event: ReleaseAsked) -> None:
        """Judge the request of a release. Points that the owner does not own at the named epoch do not matter."""
        self.found.released.setdefault(event.move, position)
        self._begun.add(event.move)
        move, source = self.planned.get(event.move), event.topic_partition
        shown: Example = {"topic": event.topic, "partition": event.partition, "position": position, "move": event.move}
        if event.topic not in self.found.stateful:
            return
        if move is None:
            self.found.checked["copy-first"] += 1
            self._object("copy-first", shown, "a release is asked for, for no planned move")
            return
        if move.target == event.incarnation:
            return
        self.found.checked["copy-first"] += 1
        copied: Steps[bool] = Steps()
        for copy in self._there.values():
            if copy.source == source and copy.asked.incarnation == move.target:
                for first, end in copy.pieces():
                    copied.put(first, end, True)
        owner = (event.incarnation, event.epoch)
        for first, end, claim in self._owners[source].pieces(event.first, event.end):
            if (claim.incarnation, claim.epoch) != owner:
                continue
            what = f"a release for incarnation {move.target} is asked for"
            self._object_to_learners(source, first, end, move.target, shown, what)
            for a, b, has in copied.all_pieces(first, end):
                if has is None:
                    problem = f"a release is asked for, and incarnation {move.target} has no copy"
                    self._object("copy-first", {**shown, "first": a, "end": b}, problem)

    def _unfit(self, copy: CopyLife) -> Iterator[str]:
        """The reasons why the coordinator may not ask for a copy now."""
        asked = copy.asked
        joined = self._members.joined.get(asked.incarnation, copy.position)
        gone = self._members.expelled.get(asked.incarnation, copy.position)
        if joined >= copy.position or gone < copy.position:
            yield "its member does not take part"
        if asked.topic not in self.found.stateful:
            yield "its topic has no stores"
        if not asked.bands or any(not 0 <= band.first < band.end <= SPACE_END for band in asked.bands):
            yield "no range of points"
        # The next coordinator may not know yet that a learner is of no use any more, and asks for the learner again.
        if asked.move in (self._there if asked.role == LEARNER else self._of_copies.keys() | self._numbers):
            yield "its number was used before"
        move = self.planned.get(asked.move)
        if asked.role not in (LEARNER, STANDBY):
            yield f"no role: {asked.role!r}"
        elif asked.role == LEARNER and move is None:
            yield "a learner of no planned move"
        elif asked.role == LEARNER and move is not None:
            if move.target != asked.incarnation:
                yield f"its move is to incarnation {move.target}"
            is_within = all(move.first <= band.first and band.end <= move.end for band in asked.bands)
            if copy.source != move.topic_partition or not is_within:
                yield "its move is of other points"

    def _object_to_learners(self, source: Source, first: int, end: int, target: int, shown: Example, what: str) -> None:
        """Object where another member than ``target`` learns the points (statement ``copy-once``).

        A learner of a withdrawn move does not matter. Points that the origin of the move no longer owns do not matter.
        """
        for copy in self._there.values():
            move = self.planned.get(copy.asked.move) if copy.asked.role == LEARNER else None
            if move is None or copy.source != source or copy.asked.incarnation == target:
                continue
            for low, high in copy.pieces(first, end):
                for a, b, claim in self._owners[source].pieces(low, high):
                    if claim.incarnation == move.origin:
                        problem = f"{what}, and incarnation {copy.asked.incarnation} learns it under move {move.move}"
                        self._object("copy-once", {**shown, "first": a, "end": b}, problem)

    def _is_own(self, copy: CopyLife, first: int, end: int) -> bool:
        """Whether the copy's member owns all points of ``[first, end)``."""
        owners = self._owners[copy.source].all_pieces(first, end)
        return all(claim is not None and claim.incarnation == copy.asked.incarnation for _, _, claim in owners)

    def _end_copy(self, copy: CopyLife, position: int, how: str, reason: str = "") -> None:
        copy.over_at, copy.how, copy.reason = position, how, reason
        del self._there[copy.asked.move]

    def _object(self, name: str, shown: Example, problem: str) -> None:
        self.found.problems[name].append({**shown, "problem": problem})


def _copy_example(copy: CopyLife) -> Example:
    topic, partition = copy.source
    number = {"move": copy.asked.move, "incarnation": copy.asked.incarnation, "role": copy.asked.role}
    return {"topic": topic, "partition": partition, "position": copy.position, **number}
