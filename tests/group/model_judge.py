"""What is wrong in the group model: told when a transaction is decided, and when the control log becomes longer."""

from collections.abc import Iterable, Iterator

from keylanes.offsets.control_events import ControlEvent, MemberJoined, RangesGranted
from keylanes.offsets.events import Event

from .model_world import (
    BLIND,
    DOUBLE,
    EPOCH,
    GAP,
    NAMESAKES,
    OPEN,
    OUTSIDE,
    PREPARED,
    REVIVED,
    Advance,
    Folds,
    Line,
    Snap,
    World,
    at,
    within,
)


def decided(folds: Folds, world: World, owner: int) -> World:
    """The open transaction of a member is committed, for good: whether that is right is told now."""
    (place,) = (k for k, entry in enumerate(world.tail) if entry.owner == owner and entry.status == OPEN)
    entry, edges, released, wrong = world.tail[place], list(world.edges), set(world.released), list[str]()
    granted = folds.granted(world.control)
    for change in entry.changes:
        if isinstance(change, Snap):
            continue
        point, epoch = change.point, change.epoch
        if (point, epoch, owner) not in granted:
            wrong.append(EPOCH)
        if isinstance(change, Advance):
            if change.offset != edges[point]:
                wrong.append(DOUBLE if change.offset < edges[point] else GAP)
            if (point, epoch) in released or folds.owner(world.control, point)[0] > epoch:
                wrong.append(OUTSIDE)
            edges[point] = max(edges[point], change.offset + 1)
        else:
            released.add((point, epoch))
    tail = at(world.tail, place, entry._replace(status=PREPARED))
    after = world._replace(tail=tail, edges=tuple(edges), released=frozenset(released))
    return after._replace(wrong=world.wrong or first_wanted(folds, wrong))


def first_wanted(folds: Folds, wrong: Iterable[str]) -> str:
    """The first of what is wrong that is looked for; "": nothing."""
    return next((name for name in wrong if name in folds.wanted), "")


def appended(folds: Folds, world: World, basis: Line, events: Iterable[ControlEvent]) -> World:
    """The control log longer by what somebody wrote who had read ``basis`` of it."""
    behind = world.control
    for event in events:
        before, world = world.control, world._replace(control=world.control.then(event))
        if not world.wrong and folds.counts(world.control):
            unread = behind.back_to(basis)  # what it wrote before it in the same append it knows
            wrong = _wrong_with(folds, world, before, unread, event)
            world = world._replace(wrong=first_wanted(folds, wrong))
    return world


def _wrong_with(folds: Folds, world: World, before: Line, unread: Iterable[Line], event: ControlEvent) -> Iterator[str]:
    """What is wrong with an event of the control log that counts."""
    was, now = folds.control(before), folds.control(world.control)
    if isinstance(event, RangesGranted):
        for point, offset in within(event, world.parts):
            is_new = folds.owner(world.control, point) != folds.owner(before, point)
            if is_new and offset < world.edges[point]:
                yield OUTSIDE
    if isinstance(event, MemberJoined) and event.instance:
        others = [member for member in was.unfenced_members() if member.incarnation != event.incarnation]
        if any(member.joined.instance == event.instance for member in others):
            yield NAMESAKES
    if any(was.is_expelled(i) and not now.is_expelled(i) for i in range(1, was.incarnation_max + 1)):
        yield REVIVED
    if _is_decision(event) and any(_is_decision(one.event) and folds.counts(one) for one in unread):
        yield BLIND


def _is_decision(event: Event | None) -> bool:
    return hasattr(event, "number")
