"""PURE. Figures of a group: members, moves with causes and durations, and the share of each member.

Times are the timestamps of the records of both logs, written by several clocks. Times prove nothing, and may be wrong
by the difference between two clocks. A *reign* is the time for which a member owned points: from the grant until the
member released the points or was expelled, or until the points were granted anew. A range is *taken up* when its owner
has cut the range into workers.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..keyrange.hashing import SPACE_END
from ..keyrange.steps import Steps
from ..offsets.control_events import CoordinatorElected, MemberJoined, PlanMade
from ..offsets.event_values import NO_MOVE
from .copy_checks import ENDED, LEARNER, OWNED, STANDBY, Copying
from .group_report import CopyFigures, Durations, GroupFigures, MemberFigures, Reign, TermFigures, Unowned
from .history import Grants, Source
from .ownership import NOBODY, Claim, Edges, Epoch, OffsetLog, Ownership, cuts_of, releases_of

LEFT = "left"
"""The cause of an expulsion: the member stopped in order."""
UNPLANNED = "unplanned"
"""The cause of a move without a plan. No coordinator writes a move of this kind."""


class Times(NamedTuple):
    """When events were written: of the control log by position, of the offset log by log partition and position."""

    control: Mapping[int, int]
    offsets: Mapping[tuple[int, int], int]
    until_ms: int
    """The latest timestamp among the last events of the offset log."""


def group_figures(
    grants: Grants, ownership: Ownership, copying: Copying, log: OffsetLog, edges: Edges, times: Times
) -> GroupFigures:
    """Compute the figures of the group from the folds of both logs."""
    until_ms = max([times.until_ms, *times.control.values(), *times.offsets.values()], default=0)
    ends = _ReignEnds(ownership, log, edges, times)
    reigns = _reigns(ownership, ends, until_ms)
    moves = _moves(grants, ownership, copying, ends)
    presence = _Presence(ownership, log, times, until_ms)
    idle = [presence.clip(unowned) for unowned in (*ends.waits(until_ms), *ends.left_alone(until_ms))]
    from_ms = min((reign.from_ms for reign in reigns), default=0)
    return GroupFigures(
        members=_members(grants, ownership, times, reigns, until_ms),
        terms=tuple(
            TermFigures(event.term, event.instance, event.birth, times.control.get(position, 0))
            for position, event in grants.counted
            if isinstance(event, CoordinatorElected)
        ),
        expulsions=_count_causes(cause or "superseded" for cause in ownership.members.causes.values()),
        moves=_count_causes(move.cause for move in moves),
        released=_distribution(move.ms for move in moves if not move.was_expelled),
        expelled=_distribution(move.ms for move in moves if move.was_expelled),
        copies=_copies(ownership, copying, moves, times),
        unowned_longest=max((one for one in idle if one.ms), key=lambda one: one.ms, default=None),
        from_ms=from_ms,
        until_ms=until_ms,
        reigns=reigns,
    )


class _ReignEnds:
    """When and why the reigns of owners ended, and when the next owners took the points up."""

    def __init__(self, ownership: Ownership, log: OffsetLog, edges: Edges, times: Times) -> None:
        self.ownership = ownership
        self.edges = edges
        self.times = times
        self._cuts: dict[Epoch, list[tuple[int, int, int]]] = defaultdict(list)
        """The cuts of each epoch: first point, end of points, time in ms."""
        for epoch, found in cuts_of(log).items():
            for number, position, cut in found:
                at_ms = times.offsets.get((number, position))
                if at_ms is not None:
                    self._cuts[epoch].append((cut.bounds[0], cut.bounds[-1], at_ms))
        self._logs: dict[Source, int] = {}
        """The log partition of each source partition."""
        for number, events in log.rare.items():
            for _, event in events:
                if (topic := getattr(event, "topic", None)) is not None:
                    self._logs[topic, getattr(event, "partition", 0)] = number

    def expelled_ms(self, incarnation: int) -> int | None:
        """When a member was expelled; None: never, or at an unknown time."""
        position = self.ownership.members.expelled.get(incarnation)
        return None if position is None else self.times.control.get(position)

    def pieces(
        self, source: Source, epoch: int, incarnation: int, first: int, end: int
    ) -> Iterable[tuple[int, int, int | None, bool]]:
        """``(first, end, ms, was_expelled)``: when and how the reign of an epoch's owner ended, by piece.

        ``ms`` None: the reign has not ended, or the time is unknown.
        """
        released = self.edges.released_points(source, epoch, incarnation)
        for a, b, release in released.all_pieces(first, end):
            if release is None:
                at_ms = self.expelled_ms(incarnation)
                yield a, b, at_ms, at_ms is not None
            else:
                yield a, b, self.times.offsets.get((self._logs.get(source, 0), release.position)), False

    def taken_up_ms(self, claim: Claim) -> int | None:
        """When the owner had taken up all points of a claim; None: no cut is known."""
        cuts = [cut for cut in self._cuts.get((claim.source, claim.epoch), ()) if _meet(cut, claim)]
        return max((at_ms for _, _, at_ms in cuts), default=None)

    def cause(self, incarnation: int, *, was_expelled: bool) -> str:
        """Why an owner's reign ended."""
        return (self.ownership.members.causes.get(incarnation) or "superseded") if was_expelled else "released"

    def waits(self, until_ms: int) -> Iterable[Unowned]:
        """Points between two owners: from the end of a reign until the next owner took the points up."""
        for claim in self.ownership.claims:
            if claim.epoch_before == NOBODY:
                continue
            of = (claim.source, claim.epoch_before, claim.incarnation_before)
            taken_ms = self.taken_up_ms(claim)
            for first, end, at_ms, was_expelled in self.pieces(*of, claim.first, claim.end):
                if at_ms is not None:
                    cause = self.cause(claim.incarnation_before, was_expelled=was_expelled)
                    ms = (until_ms if taken_ms is None else taken_ms) - at_ms
                    yield Unowned(
                        topic=claim.source[0],
                        partition=claim.source[1],
                        first=first,
                        end=end,
                        from_ms=at_ms,
                        ms=ms,
                        cause=cause,
                        is_over=taken_ms is not None,
                    )

    def left_alone(self, until_ms: int) -> Iterable[Unowned]:
        """Points without an owner at the end of the logs."""
        for source, owners in self.ownership.owners.items():
            for first, end, claim in owners.pieces():
                for a, b, at_ms, was_expelled in self.pieces(source, claim.epoch, claim.incarnation, first, end):
                    if at_ms is not None:
                        cause = self.cause(claim.incarnation, was_expelled=was_expelled)
                        yield Unowned(
                            topic=source[0],
                            partition=source[1],
                            first=a,
                            end=b,
                            from_ms=at_ms,
                            ms=until_ms - at_ms,
                            cause=cause,
                            is_over=False,
                        )


def _meet(cut: tuple[int, int, int], claim: Claim) -> bool:
    return cut[0] < claim.end and claim.first < cut[1]


class _Presence:
    """The times at which at least one member could own points.

    A member is present from its joining until its expulsion. A member that left in order is present until the first
    release without a request behind its last grant.
    """

    def __init__(self, ownership: Ownership, log: OffsetLog, times: Times, until_ms: int) -> None:
        members = ownership.members
        granted: dict[int, int] = {}
        for claim in ownership.claims:
            at_ms = times.control.get(claim.position, 0)
            granted[claim.incarnation] = max(granted.get(claim.incarnation, 0), at_ms)
        leaving: dict[int, int] = {}
        for number, position, event in releases_of(log):
            at_ms = times.offsets.get((number, position), until_ms)
            if event.move == NO_MOVE and at_ms >= granted.get(event.incarnation, 0):
                leaving[event.incarnation] = min(at_ms, leaving.get(event.incarnation, at_ms))
        spans: list[tuple[int, int]] = []
        for incarnation, position in members.joined.items():
            gone = members.expelled.get(incarnation)
            to_ms = until_ms if gone is None else times.control.get(gone, until_ms)
            if members.causes.get(incarnation) == LEFT:
                to_ms = min(to_ms, leaving.get(incarnation, to_ms))
            spans.append((times.control.get(position, 0), to_ms))
        self._spans: list[tuple[int, int]] = []
        for from_ms, to_ms in sorted(spans):
            if self._spans and from_ms <= self._spans[-1][1]:
                from_ms = self._spans[-1][0]
                to_ms = max(to_ms, self._spans.pop()[1])
            self._spans.append((from_ms, to_ms))

    def clip(self, unowned: Unowned) -> Unowned:
        """``unowned`` without the time in which no member was present."""
        first, end = unowned.from_ms, unowned.from_ms + unowned.ms
        ms = sum(max(0, min(end, to_ms) - max(first, from_ms)) for from_ms, to_ms in self._spans)
        return unowned._replace(ms=ms)


class _Move(NamedTuple):
    """A move of points between members. ``has_copy``: at the grant the target had a copy of all points."""

    cause: str
    was_expelled: bool
    ms: int | None
    has_copy: bool


def _moves(grants: Grants, ownership: Ownership, copying: Copying, ends: _ReignEnds) -> list[_Move]:
    """The moves between members. Points of one grant with the same owner before are one move."""
    planned = {
        move.move: event.cause for _, event in grants.counted if isinstance(event, PlanMade) for move in event.moves
    }
    together: dict[tuple[int, Source, int], list[Claim]] = defaultdict(list)
    for claim in ownership.claims:
        if claim.epoch_before != NOBODY and claim.incarnation != claim.incarnation_before:
            together[claim.position, claim.source, claim.incarnation_before].append(claim)
    moves: list[_Move] = []
    for (position, source, before), claims in together.items():
        pieces = [
            piece
            for claim in claims
            for piece in ends.pieces(source, claim.epoch_before, before, claim.first, claim.end)
        ]
        was_expelled = any(expelled for _, _, _, expelled in pieces)
        ended_ms = [at_ms for _, _, at_ms, _ in pieces if at_ms is not None]
        taken_ms = [at_ms for claim in claims if (at_ms := ends.taken_up_ms(claim)) is not None]
        ms = max(taken_ms) - max(ended_ms) if ended_ms and taken_ms else None
        is_gone = ownership.members.expelled.get(before, position) < position
        cause = ends.cause(before, was_expelled=True) if is_gone else planned.get(claims[0].move, UNPLANNED)
        moves.append(_Move(cause, was_expelled, ms, all(copying.covers(claim) for claim in claims)))
    return moves


def _copies(ownership: Ownership, copying: Copying, moves: Sequence[_Move], times: Times) -> CopyFigures:
    learned: list[int | None] = []
    for copy in copying.copies:
        asked_ms, position = times.control.get(copy.position), copying.released.get(copy.asked.move)
        released_ms = None if position is None else times.control.get(position)
        if copy.asked.role == LEARNER and asked_ms is not None and released_ms is not None:
            learned.append(released_ms - asked_ms)
    moved = {
        claim.move
        for claim in ownership.claims
        if claim.incarnation_before != claim.incarnation
        and (planned := copying.planned.get(claim.move)) is not None
        and planned.target == claim.incarnation
    }
    released = [move for move in moves if not move.was_expelled]
    return CopyFigures(
        asked=_count_causes(copy.asked.role for copy in copying.copies),
        ended=_count_causes(copy.reason for copy in copying.copies if copy.how == ENDED),
        promoted=_count_causes(copy.asked.role for copy in copying.copies if copy.how == OWNED),
        standbys=sum(copy.asked.role == STANDBY and copy.over_at is None for copy in copying.copies),
        state_bytes=sum(copying.planned[number].state_bytes for number in moved),
        learned=_distribution(learned),
        with_copy=_distribution(move.ms for move in released if move.has_copy),
        without_copy=_distribution(move.ms for move in released if not move.has_copy),
    )


def _reigns(ownership: Ownership, ends: _ReignEnds, until_ms: int) -> tuple[Reign, ...]:
    """All reigns, in order of partitions and points. A reign without a known end lasts until the next grant."""
    at: dict[Source, Steps[Claim]] = {}
    reigns: list[Reign] = []

    def close(claim: Claim, first: int, end: int, next_ms: int) -> None:
        from_ms = ends.times.control.get(claim.position, next_ms)
        for a, b, at_ms, _ in ends.pieces(claim.source, claim.epoch, claim.incarnation, first, end):
            last_ms = max(from_ms, next_ms if at_ms is None else min(at_ms, next_ms))
            reigns.append(
                Reign(
                    topic=claim.source[0],
                    partition=claim.source[1],
                    first=a,
                    end=b,
                    incarnation=claim.incarnation,
                    from_ms=from_ms,
                    until_ms=last_ms,
                )
            )

    for claim in ownership.claims:
        owners = at.setdefault(claim.source, Steps())
        for first, end, before in owners.pieces(claim.first, claim.end):
            close(before, first, end, ends.times.control.get(claim.position, until_ms))
        owners.put(claim.first, claim.end, claim)
    for owners in at.values():
        for first, end, claim in owners.pieces():
            close(claim, first, end, until_ms)
    return tuple(sorted(reigns))


def _members(
    grants: Grants, ownership: Ownership, times: Times, reigns: Sequence[Reign], until_ms: int
) -> tuple[MemberFigures, ...]:
    owned: Counter[int] = Counter()
    begun: dict[Source, int] = {}
    for reign in reigns:
        owned[reign.incarnation] += (reign.end - reign.first) * (reign.until_ms - reign.from_ms)
        source = (reign.topic, reign.partition)
        begun[source] = min(begun.get(source, reign.from_ms), reign.from_ms)
    total = sum(until_ms - from_ms for from_ms in begun.values()) * SPACE_END
    joined = {
        event.incarnation: (event, position)
        for position, event in reversed(grants.counted)
        if isinstance(event, MemberJoined) and event.incarnation in grants.births
    }
    causes = ownership.members.causes
    return tuple(
        MemberFigures(
            incarnation=incarnation,
            instance=event.instance,
            host=event.host,
            joined_ms=times.control.get(position, 0),
            share=owned[incarnation] / total if total else 0.0,
            ended=(causes[incarnation] or "superseded") if incarnation in causes else "",
        )
        for incarnation, (event, position) in sorted(joined.items())
    )


def _count_causes(causes: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(causes).items()))


def _distribution(found: Iterable[int | None]) -> Durations:
    """The distribution of the known durations; percentiles by the nearest rank."""
    ordered = sorted(ms for ms in found if ms is not None)
    if not ordered:
        return Durations(0, None, None, None)
    n = len(ordered)
    return Durations(n, ordered[math.ceil(n * 0.5) - 1], ordered[math.ceil(n * 0.99) - 1], ordered[-1])
