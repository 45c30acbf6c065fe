"""What is worth having been in: the group model must reach each of these, or it proves little."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from keylanes.group.members import LEFT, STUCK, SUPERSEDED
from keylanes.offsets.control_events import (
    CoordinatorElected,
    MemberExpelled,
    MemberJoined,
    MemberRefused,
    RangesGranted,
    ReleaseWithdrawn,
)
from keylanes.offsets.events import RangesReleased

from .model import Model
from .model_member import birth_of
from .model_world import OPEN, Entry, GiveUp, Line, Snap, World, has_entry, place_of, range_of, within


class Seen(NamedTuple):
    """One step."""

    model: Model
    before: World
    label: str
    after: World

    @property
    def counted(self) -> list[Line]:
        """What it added to the control log that counts."""
        new = self.after.control.back_to(self.before.control)
        return [line for line in new if self.model.folds.counts(line)]

    def has_cause(self, cause: str) -> bool:
        """Whether somebody was expelled so."""
        events = [line.event for line in self.counted]
        return any(isinstance(event, MemberExpelled) and event.cause == cause for event in events)


Probe: TypeAlias = Callable[[Seen], bool]


def _fenced_at_work(seen: Seen) -> bool:
    """Its transaction is open when it is fenced."""
    words = seen.label.split()
    return words[1] == "fences" and has_entry(seen.before, int(words[2][1:]), OPEN)


def _two_coordinate(seen: Seen) -> bool:
    office = seen.model.office
    return sum(one.is_alive and office.decides(k, one) for k, one in enumerate(seen.after.coordinators)) > 1


def _is_found(seen: Seen) -> bool:
    """A lost answer: READ says that it is committed."""
    pairs = zip(seen.before.members, seen.after.members, strict=True)
    waits = [(was, now) for was, now in pairs if was.producer in ("append", "wait") and was.pending]
    return any(now.producer == "ready" and not now.pending and now.life == was.life for was, now in waits)


def _out_at_first_look(seen: Seen) -> bool:
    """It made its first producer, and hears only then that it is out."""
    if not seen.label.endswith(" looks"):
        return False
    i = int(seen.label.split()[0][1:])
    was, now = seen.before.members[i], seen.after.members[i]
    return was.transactions == 0 and (now.life > was.life or now.has_ended)


def _stranger_at_work(seen: Seen) -> bool:
    """Somebody who is not the group fences a member whose transaction is open."""
    return seen.label.startswith("somebody fences") and has_entry(seen.before, int(seen.label.split()[2][1:]), OPEN)


def _reads_anew(seen: Seen) -> bool:
    """A coordinator begins to READ what somebody had whom an earlier one has fenced."""
    if not (seen.label[0] == "c" and seen.label.endswith("begins to READ")):
        return False
    seat = seen.before.coordinators[int(seen.label[1])]
    control = seen.model.folds.control(seat.control)
    owners = [seen.model.folds.owner(seat.control, point)[1] for point in range(len(seen.before.edges))]
    return any(owner and control.is_fenced(owner) and owner not in seat.fenced for owner in owners)


def _fenced_in_doubt(seen: Seen) -> bool:
    """A member is fenced that does not know what became of its transaction, and has a new producer."""
    pairs = zip(seen.before.members, seen.after.members, strict=True)
    return any(was.producer in ("append", "wait") and was.is_newest and not now.is_newest for was, now in pairs)


def _own_append_is_behind(seen: Seen) -> bool:
    """A coordinator reads an old end, below what it has appended."""
    if not (seen.label.endswith("an old end") and seen.label[0] == "c"):
        return False
    now = seen.after.coordinators[int(seen.label.split()[0][1:])]
    return now.is_out and now.unknown is None


def _granted(seen: Seen, *, from_expelled: bool) -> bool:
    for line in seen.counted:
        if isinstance(line.event, RangesGranted) and line.before is not None:
            owners = {seen.model.folds.owner(line.before, p)[1] for p, _ in within(line.event, seen.after.parts)}
            control = seen.model.folds.control(line.before)
            if any(owner and control.is_expelled(owner) is from_expelled for owner in owners):
                return True
    return False


def _expelled_is_decided(seen: Seen) -> bool:
    """A transaction that was prepared when its owner was expelled becomes visible."""
    if not seen.label.endswith("is marked"):
        return False
    owner = int(seen.label.split("'")[0][1:])
    return seen.model.folds.control(seen.before.control).is_expelled(owner)


def _withdrawn_too_late(seen: Seen) -> bool:
    """What is withdrawn was released just now."""
    is_withdrawn = any(isinstance(line.event, ReleaseWithdrawn) for line in seen.counted)
    return is_withdrawn and any(isinstance(one, GiveUp) for entry in seen.before.tail for one in entry.changes)


def _share(seen: Seen) -> bool:
    parts = seen.after.parts
    held = [{p // parts for p, one in enumerate(process.held) if one is not None} for process in seen.after.members]
    return parts > 1 and any(a & b for i, a in enumerate(held) for b in held[:i])


def _given_up(entries: Iterable[Entry]) -> Iterator[tuple[int, frozenset[int]]]:
    """By transaction: the move, and the points that it releases for it."""
    for entry in entries:
        moves = {one.move for one in entry.changes if isinstance(one, GiveUp) and one.move}
        for move in moves:
            yield move, frozenset(c.point for c in entry.changes if isinstance(c, GiveUp) and c.move == move)


def _asked_points(seen: Seen, move: int) -> int:
    """Of how many points a release is asked for; 0: of none, any more."""
    asked = seen.model.folds.control(seen.after.control).moves.release_requests.get(move)
    parts, count = seen.after.parts, 0
    if asked is None:
        return 0
    for point in range(len(seen.after.edges)):
        is_there = place_of(point, parts) == (asked.topic, asked.partition)
        count += is_there and asked.first <= range_of(point, parts).first < asked.end
    return count


def _released(seen: Seen, *, partly: bool) -> bool:
    """A transaction that releases is begun, of several points that are asked for."""
    if len(seen.after.tail) <= len(seen.before.tail):
        return False
    for move, points in _given_up(seen.after.tail[-1:]):
        asked = _asked_points(seen, move)
        if asked > 1 and (len(points) < asked) is partly:
            return True
    return False


def _granted_again(seen: Seen) -> bool:
    """To who had it before, and was not expelled."""
    for line in seen.counted:
        if isinstance(line.event, RangesGranted) and line.before is not None:
            owners = [seen.model.folds.owner(line.before, p)[1] for p, _ in within(line.event, seen.after.parts)]
            if line.event.incarnation in owners:
                return True
    return False


def _rest_withdrawn(seen: Seen) -> bool:
    """A release is withdrawn of which a part was released in what all can read."""
    control = seen.model.folds.control(seen.before.control)
    for line in seen.counted:
        asked = (
            control.moves.release_requests.get(line.event.move) if isinstance(line.event, ReleaseWithdrawn) else None
        )
        if asked is None:
            continue
        for one in seen.before.offsets.back_to(seen.model.folds.root):
            if isinstance(one.event, RangesReleased) and one.event.epoch == asked.epoch:
                return (one.event.topic, one.event.partition) == (asked.topic, asked.partition)
    return False


def _old_life_joins(seen: Seen) -> bool:
    births = {birth_of(i, process.life) for i, process in enumerate(seen.before.members)}
    events = [line.event for line in seen.counted]
    return any(isinstance(event, MemberJoined) and event.birth not in births for event in events)


def _counts(seen: Seen, kind: type) -> bool:
    return any(isinstance(line.event, kind) for line in seen.counted)


PROBES: dict[str, Probe] = {
    "a member is fenced at work": _fenced_at_work,
    "a transaction of an expelled member is decided": _expelled_is_decided,
    "READ waits for somebody": lambda seen: (
        seen.label[0] == "c"
        and seen.label.endswith("begins to READ")
        and bool(seen.after.coordinators[int(seen.label[1])].reading)
    ),
    "a member waits for somebody": lambda seen: (
        seen.label[0] == "m"
        and seen.label.endswith("begins to READ")
        and seen.after.members[int(seen.label[1])].producer == "wait"
    ),
    "somebody else fences a member at work": _stranger_at_work,
    "a member is fenced that does not know what became of its transaction": _fenced_in_doubt,
    "who takes over READs anew": _reads_anew,
    "a coordinator reads an old end": lambda seen: seen.label[0] == "c" and seen.label.endswith("an old end"),
    "a member reads an old end": lambda seen: seen.label[0] == "m" and seen.label.endswith("an old end"),
    "a coordinator does not find what it has appended": _own_append_is_behind,
    "what an expelled member had is granted": lambda seen: _granted(seen, from_expelled=True),
    "what was released is granted": lambda seen: _granted(seen, from_expelled=False),
    "two coordinate, as far as they know": _two_coordinate,
    "a coordinator at work is succeeded": lambda seen: (
        _counts(seen, CoordinatorElected) and seen.after.budget.elect < seen.before.budget.elect
    ),
    "a late append counts": lambda seen: seen.label.endswith("lands late") and bool(seen.counted),
    "a late append counts for nothing": lambda seen: seen.label.endswith("lands late") and not seen.counted,
    "a decision is sent again": lambda seen: seen.label[0] == "c" and seen.label.endswith("sends again"),
    "a transaction is sent again": lambda seen: seen.label[0] == "m" and seen.label.endswith("sends again"),
    "a lost answer is found": _is_found,
    "a process comes back": lambda seen: any(
        isinstance(line.event, MemberJoined) and not line.event.birth.endswith(".1") for line in seen.counted
    ),
    "a request of a life that is over is heard": _old_life_joins,
    "one is refused": lambda seen: _counts(seen, MemberRefused),
    "one is superseded": lambda seen: seen.has_cause(SUPERSEDED),
    "one has left": lambda seen: seen.has_cause(LEFT),
    "one leaves for too long": lambda seen: seen.has_cause(STUCK),
    "one is out at its first look": _out_at_first_look,
    "a release is withdrawn that was given": _withdrawn_too_late,
    "two members have a part of one partition each": _share,
    "a part of what is asked for is released": lambda seen: _released(seen, partly=True),
    "all of what is asked for is released at once": lambda seen: _released(seen, partly=False),
    "one is granted again what it has released": _granted_again,
    "what is left of a release is withdrawn": _rest_withdrawn,
    "a snapshot is written": lambda seen: any(
        isinstance(one, Snap) for entry in seen.after.tail for one in entry.changes
    ),
}


def watch(model: Model, before: World, label: str, after: World) -> Iterator[str]:
    """The names of what a step reached."""
    seen = Seen(model, before, label, after)
    return (name for name, is_there in PROBES.items() if is_there(seen))
