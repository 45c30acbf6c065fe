"""PURE. The history of a group: changes of owners and members, from the two logs alone, even of a stopped application.

A *move* is a change of the owner of some points. Each move has four times:

    asked      the coordinator asked the owner to release the points, or expelled the owner
    released   the owner released the points (the record is in the offset log), or was fenced
    granted    the points were granted to the new owner
    taken up   the new owner cut the points into workers (the record is in the offset log)

A move with state has an earlier time, too: the request to the target for a copy.

*asked* and *granted* come from the control log, *released* and *taken up* from the offset log. The logs have no common
order, and may be heard in any order: matching records are found by place, epoch and points. Of the control log the
history has the events that count (offsets/control.py). Of the offset log the history has only releases and cuts, so the
fold grows with moves and members, not with records.

Times are timestamps of records. The timestamps may come from several clocks, so a later event may have the lower time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ..keyrange.ranges import join_neighbours
from ..keyrange.steps import Steps
from ..offsets.control import Control, Owner, apply_event, event_counts
from ..offsets.control_events import (
    ControlEvent,
    CoordinatorElected,
    CopyAsked,
    LevelRaised,
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
from ..offsets.event_values import NO_MOVE
from ..offsets.events import Event, RangesReleased, WorkersCut
from ..offsets.ledger import SourcePartition, is_span
from .history_entries import Change, Entry, EventTime, MoveEntry, MoveState, Party
from .history_notes import (
    ExpulsionNote,
    GrantNote,
    OwnerKey,
    RequestNote,
    WithdrawalNote,
    join_grants,
    note_time,
    times_of,
)
from .members import LEFT
from .overview import NO_REASONS, NOTHING_TOLD, copies_shown, name_of_hold, why_not_asked
from .plans import CHANGE

JOIN: Final = "join"
START: Final = "start"
LEVEL: Final = "level"
"""Causes of a move, beside the causes of plans and of expulsions: a join, the start of a partition, a newer level."""


@dataclass(slots=True)
class History:
    """The fold: ``hear_control`` and ``hear_offsets`` add to the fold, ``entries`` returns the history. ``control``:
    the fold of the control log as heard so far; ``begins_ms``: the time of the first event in each trimmed partition of
    the offset log.
    """

    control: Control = field(default_factory=Control)
    begins_ms: dict[int, int] = field(default_factory=dict)
    first_ms: int | None = None
    """The time of the first event of the control log."""
    _parties: dict[int, Party] = field(default_factory=dict)
    _births: dict[str, int] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)
    _gone: dict[int, ExpulsionNote] = field(default_factory=dict)
    """``_parties`` and ``_gone`` are by incarnation, ``_births`` has incarnations by birth."""
    _grants: list[GrantNote] = field(default_factory=list)
    _moves_by_epoch: dict[tuple[SourcePartition, int], int] = field(default_factory=dict)
    """By place and epoch: the move of the grant."""
    _requests: list[RequestNote] = field(default_factory=list)
    _requests_by_owner: dict[OwnerKey, Steps[RequestNote]] = field(default_factory=dict)
    """By owner: the last request for each point."""
    _withdrawals: dict[int, WithdrawalNote] = field(default_factory=dict)
    _plans: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By move: the plan, and the cause of the plan."""
    _targets: dict[int, int] = field(default_factory=dict)
    """By move: the planned target's incarnation."""
    _plan_times: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By move: the position and the time of the plan."""
    _copy_asked_ms: dict[int, int] = field(default_factory=dict)
    """By move: the time when the target was asked for a copy."""
    _causes: list[str] = field(default_factory=list)
    """Causes that no plan has answered."""
    _cause: str = CHANGE
    """The cause of the newest plan."""
    _releases: dict[OwnerKey, Steps[int]] = field(default_factory=dict)
    """By owner: the time when each point was released."""
    _cuts: dict[OwnerKey, Steps[int]] = field(default_factory=dict)
    """By owner: the time when each point was cut into a worker."""
    _begun: set[int] = field(default_factory=set)
    """The partitions of the offset log with an event heard."""

    # --- hearing -----------------------------------------------------------------------------------------------------

    def hear_control(self, position: int, timestamp_ms: int, event: ControlEvent) -> None:
        """Take the next event of the control log."""
        self.first_ms = timestamp_ms if self.first_ms is None else self.first_ms
        if not event_counts(self.control, event):
            return
        match event:
            case RangesGranted():
                self._grant(position, timestamp_ms, event)
            case ReleaseAsked():
                asked = RequestNote(timestamp_ms, position, event.term, event)
                self._requests.append(asked)
                if is_span(event.first, event.end):
                    ownership = (event.topic_partition, event.epoch, event.incarnation)
                    self._requests_by_owner.setdefault(ownership, Steps()).put(event.first, event.end, asked)
            case ReleaseWithdrawn():
                if event.move in self.control.moves.release_requests:
                    self._withdrawals[event.move] = WithdrawalNote(timestamp_ms, position, event.reason)
            case PlanMade():
                self._plan(position, timestamp_ms, event)
            case CopyAsked():
                self._copy_asked_ms[event.move] = timestamp_ms
            case PartitionStarted():
                self._causes.append(START)
            case LevelRaised():
                self._causes.append(LEVEL)
            case MemberJoined() | MemberExpelled() | MemberFenced() | MemberRefused() | CoordinatorElected():
                self._change(position, timestamp_ms, event)
        apply_event(self.control, event)

    def hear_offsets(self, log_partition: int, position: int, timestamp_ms: int, event: Event) -> None:
        """Take the next event of a partition of the offset log. After the first event of a partition the caller may
        leave out commits.
        """
        if log_partition not in self._begun:
            self._begun.add(log_partition)
            if position > 0:  # the log was trimmed: nothing older can be told
                self.begins_ms[log_partition] = timestamp_ms
        match event:
            case RangesReleased():
                for band in event.bands:
                    note_time(self._releases, event, band.first, band.end, timestamp_ms)
            case WorkersCut() if event.bounds:
                note_time(self._cuts, event, event.bounds[0], event.bounds[-1], timestamp_ms)

    def _grant(self, position: int, timestamp_ms: int, event: RangesGranted) -> None:
        """Note a grant, before the fold of the control log takes the grant and forgets the old owners."""
        place = event.topic_partition
        self._moves_by_epoch[place, event.epoch] = event.move
        known: Steps[Owner] | None = self.control.owners.get(place)
        owners: Steps[Owner] = Steps() if known is None else known.copy()
        for band in event.bands:
            for first, end, before in owners.all_pieces(band.first, band.end) if is_span(band.first, band.end) else ():
                if before is not None and before.epoch >= event.epoch:
                    continue
                owners.put(first, end, Owner(event.epoch, event.incarnation))
                for a, b, asked in self._requests_to(place, before).all_pieces(first, end):
                    self._grants.append(
                        GrantNote(
                            ms=timestamp_ms,
                            position=position,
                            term=event.term,
                            move=event.move,
                            place=place,
                            epoch=event.epoch,
                            incarnation=event.incarnation,
                            first=a,
                            end=b,
                            before=before,
                            asked=asked,
                        )
                    )

    def _requests_to(self, place: SourcePartition, owner: Owner | None) -> Steps[RequestNote]:
        """The last request to an owner, by point."""
        return Steps() if owner is None else self._requests_by_owner.get((place, *owner)) or Steps()

    def _plan(self, position: int, ms: int, event: PlanMade) -> None:
        if event.part == 0:
            self._cause = event.cause if event.cause != CHANGE else _first_of(self._causes)
        self._plans.update((move.move, (event.plan, self._cause)) for move in event.moves)
        self._targets.update((move.move, move.target) for move in event.moves)
        self._plan_times.update((move.move, (position, ms)) for move in event.moves)
        if event.part + 1 == event.parts and event.group_epoch > self.control.moves.group_epoch:
            self._causes.clear()  # the plan is whole, and answers all causes so far

    def _change(
        self,
        position: int,
        ms: int,
        event: MemberJoined | MemberExpelled | MemberFenced | MemberRefused | CoordinatorElected,
    ) -> None:
        change = partial(Change, position=position, at_ms=ms, term=event.term)
        match event:
            case CoordinatorElected(instance=instance, birth=birth):
                known = self._births.get(birth, 0)
                party = self._parties.get(known) or Party(0, instance, "")
                self._changes.append(change(what="elected", party=party, birth=birth, cause=""))
            case MemberRefused(birth=birth, reason=reason):
                self._changes.append(change(what="refused", party=None, birth=birth, cause=reason))
            case MemberJoined(incarnation=new, birth=birth):
                if new > self.control.incarnation_max and self.control.member_of(birth) is None:
                    self._parties[new], self._births[birth] = Party(new, event.instance, event.host), new
                    self._causes.append(JOIN)
                    self._changes.append(change(what="joined", party=self._parties[new], birth=birth, cause=""))
            case MemberExpelled(incarnation=old):
                member, cause = self.control.members.get(old), event.cause
                if member is not None and not member.expelled:
                    self._gone[old] = ExpulsionNote(EventTime(ms, "expelled"), position, cause)
                    self._causes.append(cause)
                    what, why = ("left", "") if cause == LEFT else ("expelled", cause)
                    self._changes.append(change(what=what, party=self._party(old), birth=member.birth, cause=why))
            case MemberFenced(incarnation=old):
                member, gone = self.control.members.get(old), self._gone.get(old)
                if member is not None and not member.fenced:
                    if gone is not None:
                        self._gone[old] = gone._replace(fenced_ms=ms)
                    self._changes.append(change(what="fenced", party=self._party(old), birth=member.birth, cause=""))

    # --- entries -----------------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """All entries, in the order of the control log. Entries under way stand at the end."""
        found: list[Entry] = [self._name_elected(change) for change in self._changes]
        for granted in join_neighbours(self._grants, join_grants):
            found += self._entries_of_grant(granted)
        for asked in self._requests:
            if (withdrawn := self._withdrawals.get(asked.event.move)) is not None:
                found += self._entries_of_withdrawal(asked, withdrawn)
        for place, owners in sorted(self.control.owners.items()):
            for first, end, owner in owners.pieces():
                found += self._open_entries(place, first, end, owner)
        return sorted(found, key=lambda entry: (entry.is_open, entry.position))

    def _name_elected(self, change: Change) -> Change:
        """An election with the incarnation of the coordinator. A coordinator may join after its election."""
        if change.what != "elected" or change.birth not in self._births:
            return change
        return change._replace(party=self._party(self._births[change.birth]))

    def _party(self, incarnation: int) -> Party | None:
        """The party of an incarnation; None for nobody."""
        return self._parties.get(incarnation) or (Party(incarnation, "", "") if incarnation else None)

    def _entries_of_grant(self, granted: GrantNote) -> Iterator[MoveEntry]:
        """Yield the entries of a grant: parted where the release times differ, or where the outcomes differ."""
        before, place = granted.before, granted.place
        ownership = None if before is None else (place, before.epoch, before.incarnation)
        origin = None if before is None else self._party(before.incarnation)
        for first, end, released_ms in times_of(self._releases, ownership, granted.first, granted.end):
            asked, released = self._release_of(granted, released_ms)
            plan, cause = self._plan_of_grant(granted, asked)
            for a, b, state, taken_up_ms in self._outcomes(granted, first, end):
                yield MoveEntry(
                    position=granted.position,
                    state=state,
                    topic=place[0],
                    partition=place[1],
                    first=a,
                    end=b,
                    origin=origin,
                    target=self._party(granted.incarnation),
                    cause=cause,
                    plan=plan,
                    move=granted.move,
                    term=granted.term,
                    epoch=granted.epoch,
                    asked=asked,
                    released=released,
                    granted_ms=granted.ms,
                    taken_up_ms=taken_up_ms,
                    copy_asked_ms=self._copy_asked_ms.get(granted.move),
                )

    def _plan_of_grant(self, granted: GrantNote, asked: EventTime | None) -> tuple[int, str]:
        """The plan that explains a grant, and the cause. After a request to release this is the plan of the request. If
        the old owner is gone, the cause is the cause of its expulsion. 0: no plan.
        """
        before, (plan, cause) = granted.before, self._plans.get(granted.move, (0, ""))
        if asked is not None and asked.what == "asked" and granted.asked is not None:
            return self._plans.get(granted.asked.event.move, (plan, cause))
        if before is None:
            return plan, START
        if before.incarnation == granted.incarnation:
            return plan, cause
        gone = self._gone.get(before.incarnation)
        return plan, LEFT if gone is None else gone.cause

    def _outcomes(self, granted: GrantNote, first: int, end: int) -> list[tuple[int, int, MoveState, int | None]]:
        """What became of granted points, as (first, end, state, time of taking up). A single item if all points were
        taken up, or if the log no longer tells.
        """
        taken_up_ms = self._taken_up_ms(granted, first, end)
        if taken_up_ms is not None or self._is_trimmed(granted):
            return [(first, end, MoveState.MOVED, taken_up_ms)]
        found: list[tuple[int, int, MoveState, int | None]] = []
        for a, b, owner in self.control.owners[granted.place].pieces(first, end):
            is_there = owner.epoch == granted.epoch and granted.incarnation not in self._gone
            state = MoveState.GRANTED if is_there else MoveState.NOT_TAKEN_UP
            if not is_there and (ms := self._taken_up_ms(granted, a, b)) is not None:
                found.append((a, b, MoveState.MOVED, ms))
            elif found and found[-1][1:3] == (a, state):
                found[-1] = found[-1][0], b, state, None
            else:
                found.append((a, b, state, None))
        return found

    def _release_of(self, granted: GrantNote, released_ms: int | None) -> tuple[EventTime | None, EventTime | None]:
        """The times when the old owner was asked or expelled, and when the points were released or the owner fenced.
        ``released_ms``: by the offset log, if told. A withdrawn request to an owner that is gone does not count.
        """
        before, asked = granted.before, granted.asked
        gone = None if before is None else self._gone.get(before.incarnation)
        is_withdrawn = asked is not None and asked.event.move in self._withdrawals
        was_asked = None if asked is None or (is_withdrawn and gone) else EventTime(asked.ms, "asked")
        if released_ms is not None:
            return was_asked, EventTime(released_ms, "released")
        is_trimmed = self._is_trimmed(granted) and (was_asked is not None or (gone is not None and gone.cause == LEFT))
        if gone is None or gone.fenced_ms is None or is_trimmed:
            return was_asked, None
        return gone.expelled, EventTime(gone.fenced_ms, "fenced")

    def _taken_up_ms(self, granted: GrantNote, first: int, end: int) -> int | None:
        """The time when the last of the points was cut into workers; None: some points were not cut."""
        ownership = (granted.place, granted.epoch, granted.incarnation)
        times = [ms for _, _, ms in times_of(self._cuts, ownership, first, end)]
        return max((ms for ms in times if ms is not None), default=None) if None not in times else None

    def _is_trimmed(self, granted: GrantNote) -> bool:
        """Whether trimming removed the events of the offset log from the time of a grant."""
        created = self.control.created
        log_partition = granted.place[1] % created.log_partitions if created is not None else 0
        return granted.ms < self.begins_ms.get(log_partition, 0)

    def _entries_of_withdrawal(self, asked: RequestNote, withdrawn: WithdrawalNote) -> Iterator[MoveEntry]:
        """Yield an entry for the points that the owner of a withdrawn request did not release before the withdrawal."""
        event = asked.event
        ownership = (event.topic_partition, event.epoch, event.incarnation)
        plan, cause = self._plans.get(event.move, (0, ""))
        move = MoveEntry(
            position=withdrawn.position,
            state=MoveState.WITHDRAWN,
            topic=event.topic,
            partition=event.partition,
            first=event.first,
            end=event.end,
            origin=self._party(event.incarnation),
            target=self._party(self._targets.get(event.move, 0)),
            cause=cause,
            plan=plan,
            move=event.move,
            term=event.term,
            asked=EventTime(asked.ms, "asked"),
            withdrawn_ms=withdrawn.ms,
            reason=withdrawn.reason,
            copy_asked_ms=self._copy_asked_ms.get(event.move),
        )
        stayed = (
            move._replace(first=first, end=end)
            for first, end, released_ms in times_of(self._releases, ownership, event.first, event.end)
            if released_ms is None or released_ms > withdrawn.ms
        )
        yield from join_neighbours(stayed, lambda left, right: left._replace(end=right.end))

    def _open_entries(self, place: SourcePartition, first: int, end: int, owner: Owner) -> Iterator[MoveEntry]:
        """Yield the entries under way for points of the last grant to an owner: no newer grant has the points."""
        gone, ownership = self._gone.get(owner.incarnation), (place, owner.epoch, owner.incarnation)
        released: EventTime | None = None
        for a, b, released_ms in times_of(self._releases, ownership, first, end):
            for c, d, asked in self._requests_to(place, owner).all_pieces(a, b):
                is_asked = asked is not None and asked.event.move in self.control.moves.release_requests
                was_asked = EventTime(asked.ms, "asked") if asked is not None and is_asked else None
                position = asked.position if asked is not None and is_asked else 0
                if released_ms is not None:
                    state, released = MoveState.RELEASED, EventTime(released_ms, "released")
                elif gone is not None:
                    is_fenced = gone.fenced_ms is not None
                    state = MoveState.FENCED if is_fenced else MoveState.EXPELLED
                    released = None if gone.fenced_ms is None else EventTime(gone.fenced_ms, "fenced")
                    was_asked, position = gone.expelled, gone.position
                elif is_asked:
                    state, released = MoveState.ASKED, None
                else:  # the owner still owns the points
                    yield from self._planned_entries(place, c, d, owner)
                    continue
                move = self._open_entry(place, c, d, owner, asked if is_asked else None)
                is_free = state in (MoveState.RELEASED, MoveState.FENCED) and move.target is None
                reason = name_of_hold(self.control, place, owner.incarnation) if is_free else ""
                yield move._replace(state=state, asked=was_asked, released=released, position=position, reason=reason)

    def _planned_entries(self, place: SourcePartition, first: int, end: int, owner: Owner) -> Iterator[MoveEntry]:
        """Yield the entries of planned moves whose owner was not asked yet."""
        control, done = self.control, self._moves_by_epoch.get((place, owner.epoch), NO_MOVE)
        copies = tuple(copies_shown(control, NOTHING_TOLD))
        for number, planned in sorted(control.moves.planned.items()):
            a, b = max(first, planned.first), min(end, planned.end)
            is_over = planned.topic_partition != place or a >= b or number <= done
            if is_over or planned.target == owner.incarnation or planned.target in self._gone:
                continue
            (position, planned_ms), (plan, cause) = self._plan_times[number], self._plans[number]
            yield MoveEntry(
                position=position,
                state=MoveState.PLANNED,
                topic=place[0],
                partition=place[1],
                first=a,
                end=b,
                origin=self._party(owner.incarnation),
                target=self._party(planned.target),
                cause=cause,
                plan=plan,
                move=number,
                term=control.term,
                reason=why_not_asked(control, owner.incarnation, planned, copies, NO_REASONS),
                copy_asked_ms=self._copy_asked_ms.get(number),
                planned_ms=planned_ms,
            )

    def _open_entry(
        self, place: SourcePartition, first: int, end: int, owner: Owner, asked: RequestNote | None
    ) -> MoveEntry:
        """An entry under way, with the newest move of the points. ``asked``: the open request to the owner."""
        planned, done = self.control.moves.planned.values(), self._moves_by_epoch.get((place, owner.epoch), NO_MOVE)
        over = [m for m in planned if m.topic_partition == place and m.first < end and first < m.end]
        open_moves = [m for m in over if m.move > done and m.target not in self._gone]
        newest = max(open_moves, key=lambda move: move.move, default=None)
        number = newest.move if newest is not None else asked.event.move if asked is not None else NO_MOVE
        plan, cause = self._plans.get(number if asked is None else asked.event.move, (0, ""))
        if asked is None and (gone := self._gone.get(owner.incarnation)) is not None:
            cause = gone.cause
        elif asked is None:
            cause = cause or LEFT
        origin, target = self._party(owner.incarnation), None if newest is None else self._party(newest.target)
        term = self.control.term if asked is None else asked.term
        copy_ms = self._copy_asked_ms.get(number)
        move = MoveEntry(
            position=0,
            state=MoveState.ASKED,
            topic=place[0],
            partition=place[1],
            first=first,
            end=end,
            origin=origin,
            target=target,
            cause=cause,
            plan=plan,
            move=number,
            term=term,
        )
        return move._replace(copy_asked_ms=copy_ms)


def _first_of(causes: Sequence[str]) -> str:
    """Of causes without an answer, the cause that explains a move between two members: joins, then departures."""
    if JOIN in causes:
        return JOIN
    gone = [cause for cause in causes if cause not in (START, LEVEL)]
    return gone[0] if gone else START if START in causes else LEVEL if LEVEL in causes else CHANGE
