"""What a member does in the model: it acts on what the production says of the control log that it has read.

A generation moves any of its points by one record, and releases any that it was asked for; that is one transaction. A
producer that fails is made anew: INIT, then the control log is read to behind an own append. If it is unknown what has
become of a transaction, the offset log is read to behind an own append, too.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, combinations
from typing import TypeAlias, TypeVar

from keylanes.group.held_ranges import HeldRanges
from keylanes.group.member import (
    HearGrants,
    Out,
    OwnProcess,
    Rejected,
    State,
    WindDown,
    Works,
    next_steps,
    state_of,
)
from keylanes.group.member import Step as MemberStep
from keylanes.group.members import comes_back
from keylanes.keyrange.ranges import KeyRange
from keylanes.keyrange.steps import Steps
from keylanes.offsets.ledger import SourcePartition
from keylanes.offsets.snapshots import take_snapshot

from .model_judge import decided, first_wanted
from .model_world import (
    APP,
    KNOWN,
    NOWHERE,
    OPEN,
    PREPARED,
    TOPIC,
    Advance,
    Change,
    Entry,
    Folds,
    GiveUp,
    Held,
    Line,
    MemberProcess,
    Snap,
    World,
    appended_plainly,
    at,
    fenced,
    has_entry,
    log_end,
    old_ends,
    place_of,
    put_member,
    range_of,
    readable,
    spent,
)

T = TypeVar("T")
Step: TypeAlias = tuple[str, Callable[[], World]]


class Work:
    """What is to be done. ``records``: of each point; ``comes_back``: a process that is out asks again;
    ``has_snapshots``: a transaction may hold one.
    """

    def __init__(self, folds: Folds, records: int, *, comes_back: bool, has_snapshots: bool) -> None:
        self.folds, self.records, self.comes_back, self.has_snapshots = folds, records, comes_back, has_snapshots
        self.states: dict[object, State] = {}
        self.member_steps: dict[object, list[MemberStep]] = {}


def subsets(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """All of them."""
    known = tuple(items)
    return chain.from_iterable(combinations(known, n) for n in range(len(known) + 1))


def birth_of(i: int, life: int) -> str:
    """Of a process in one of its lives."""
    return f"m{i}.{life}"


def state(work: Work, world: World, i: int) -> State:
    """How it stands with a process, by what it has read; worked out once."""
    process = world.members[i]
    key = (i, process.life, process.control, process.incarnation)
    found = work.states.get(key)
    if found is None:
        known = process.incarnation or None
        found = state_of(work.folds.control(process.control), birth_of(i, process.life), known)
        work.states[key] = found
    return found


def member_steps(work: Work, world: World, i: int) -> list[MemberStep]:
    """What the production has a process begin, by what it has read and holds; worked out once."""
    process = world.members[i]
    epochs = tuple(one and one.epoch for one in process.held)
    key = (i, process.life, process.control, process.incarnation, process.taken, epochs)
    found = work.member_steps.get(key)
    if found is None:
        held = HeldRanges()
        own = OwnProcess(birth_of(i, process.life), process.incarnation or None, frozenset([TOPIC]), frozenset())
        for points, known in ((held.taken, process.taken), (held.working, enumerate(epochs))):
            for point, epoch in known:
                if epoch is not None:
                    within = range_of(point, work.folds.parts)
                    steps = points.setdefault(place_of(point, work.folds.parts), Steps())
                    steps.put(within.first, within.end, epoch)
        ledger = work.folds.ledger(process.control, work.folds.root)
        # The model's members do not remember when they heard a request: it means the epoch that it names.
        requests = ledger.control.moves.release_requests
        held.epoch_bounds = {move: asked.epoch for move, asked in requests.items()}
        found = next_steps(ledger, own, held)
        work.member_steps[key] = found
    return found


def points_in(work: Work, place: SourcePartition, within: KeyRange, points: int) -> Iterator[int]:
    """The points that make up a range."""
    parts = work.folds.parts
    return (p for p in range(points) if place_of(p, parts) == place and within.covers(range_of(p, parts)))


def blank(control: Line, instance: str, life: int, points: int) -> MemberProcess:
    """A process that knows nothing yet."""
    return MemberProcess(control, instance, life=life, held=(None,) * points)


def anew(world: World, i: int) -> World:
    """Its next life begins: of what it knew nothing is left."""
    process = world.members[i]
    fresh = blank(process.control, process.instance, process.life + 1, len(world.edges))
    return world._replace(members=at(world.members, i, fresh))


def gone(work: Work, world: World, i: int, *, for_good: bool) -> World:
    """It is there no more."""
    process = world.members[i]
    nothing = blank(work.folds.root, process.instance, process.life, len(world.edges))
    return world._replace(members=at(world.members, i, nothing._replace(is_alive=False, has_ended=for_good)))


def has_read(work: Work, world: World, i: int, line: Line) -> World:
    """The control log, so much of it; what it says of the process itself holds at once."""
    world = put_member(world, i, control=line)
    found = state(work, world, i)
    if isinstance(found, Rejected):
        return gone(work, world, i, for_good=True)
    if isinstance(found, Out):
        is_back = work.comes_back and comes_back(found.cause) and not world.members[i].leaves
        return anew(world, i) if is_back else gone(work, world, i, for_good=True)
    if isinstance(found, Works):
        process = world.members[i]
        owned = {(point, epoch) for point, _, epoch in _owned(work, process, found.incarnation)}
        return put_member(world, i, incarnation=found.incarnation, taken=process.taken & owned)
    return world


def _owned(work: Work, process: MemberProcess, incarnation: int) -> Iterator[tuple[int, SourcePartition, int]]:
    """The points that are a process's own, as far as it has read, with their places and epochs."""
    for point in range(len(process.held)):
        epoch, owner = work.folds.owner(process.control, point)
        if owner == incarnation:
            yield point, place_of(point, work.folds.parts), epoch


def local(work: Work, world: World, i: int) -> World | None:
    """What it does by itself, and nobody notices when; None: nothing."""
    process = world.members[i]
    if not process.is_alive or not process.incarnation:
        return None
    if process.producer == "wait" and readable(world).length >= process.end:
        return found_out(work, put_member(world, i, end=NOWHERE, producer="ready"), i, process.end)
    if process.producer == "ready" and process.is_sent and not process.is_newest:
        return put_member(world, i, producer="none", is_sent=False)
    if process.pending:
        return None
    held, taken = list(process.held), set(process.taken)
    heard = (step for step in member_steps(work, world, i) if isinstance(step, HearGrants))
    for place, epoch, within in (grant for step in heard for grant in step.grants):
        part = work.folds.ledger(process.control, work.folds.root).partition(place).parts[epoch]
        for point in points_in(work, place, within, len(held)):
            held[point] = Held(epoch, taken_up_at(part.froms.at(range_of(point, work.folds.parts).first)))
            taken.add((point, epoch))
    return None if taken == process.taken else put_member(world, i, held=tuple(held), taken=frozenset(taken))


def taken_up_at(offset_from: int | None) -> int:
    """From which offset on a member works on what it was granted."""
    assert offset_from is not None, "it was granted"
    return offset_from


def made(world: World, i: int) -> World:
    """A producer, after INIT: first the control log is read."""
    return put_member(fenced(world, world.members[i].incarnation), i, is_newest=True, producer="look")


def end_of_own_append(world: World, i: int) -> int:
    """The position behind an append of the member to the control log that is begun now."""
    return world.control.length


def read_behind_init(work: Work, world: World, i: int, line: Line) -> World:
    """Read the control log behind an INIT. Then the offset log, if a transaction is not known to be aborted."""
    if world.members[i].is_sent:
        return has_read(work, put_member(world, i, producer="append"), i, line)
    world = has_read(work, put_member(world, i, producer="ready"), i, line)
    return keep_own(work, world, i) if world.members[i].producer == "ready" else world


def begin_read(world: World, i: int) -> World:
    """Append to the offset log, which is acknowledged, and begin to read up to behind that."""
    world = appended_plainly(world, world.members[i].incarnation)
    return put_member(world, i, producer="wait", end=log_end(world))


def found_out(work: Work, world: World, i: int, end: int) -> World:
    """The offset log was read to ``end``, at worst no further: the last own transaction is there, or not committed."""
    process = world.members[i]
    ledger = work.folds.ledger(process.control, readable(world).upto(end))
    if process.pending and ledger.transactions.get(process.incarnation, 0) >= process.transactions:
        return applied(world, i)
    return keep_own(work, world, i)


def keep_own(work: Work, world: World, i: int) -> World:
    """The last own transaction is not committed: what of it is still the member's own is sent again."""
    process = world.members[i]
    own = [work.folds.owner(process.control, p) for p in range(len(world.edges))]
    progress = [one for one in process.pending if not isinstance(one, Snap)]
    pending = tuple(one for one in progress if own[one.point] == (one.epoch, process.incarnation))
    return put_member(world, i, pending=pending, is_sent=False)


def applied(world: World, i: int) -> World:
    """It knows that its transaction is committed."""
    process = world.members[i]
    held = list(process.held)
    for one in process.pending:
        if isinstance(one, Advance) and (now := held[one.point]) is not None and now.epoch == one.epoch:
            held[one.point] = Held(one.epoch, one.offset + 1)
    for one in process.pending:
        if isinstance(one, GiveUp):
            held[one.point] = None
    return put_member(world, i, held=tuple(held), pending=(), is_sent=False)


def sent(world: World, i: int) -> World:
    """Its transaction is begun; not with a producer that is not the newest."""
    process = world.members[i]
    if not process.is_newest:
        return put_member(world, i, producer="none")
    entry = Entry(process.incarnation, process.transactions, OPEN, process.pending)
    return put_member(world._replace(tail=(*world.tail, entry)), i, is_sent=True)


def steps_of(work: Work, world: World, i: int, *, is_quiet: bool) -> Iterator[Step]:
    """All that may happen to a process next."""
    process, me = world.members[i], f"m{i}"
    if process.has_ended:
        return
    if not process.is_alive:
        if process.life == 0 and world.budget.twin and not is_quiet:
            yield f"{me} starts", lambda: put_member(spent(anew(world, i), "twin"), i, control=world.control)
        elif process.life > 0:
            yield f"{me} restarts", lambda: anew(world, i)
        return
    if world.budget.crash and not is_quiet:
        yield f"{me} crashes", lambda: gone(work, spent(world, "crash"), i, for_good=False)
    if process.control is not world.control:
        yield f"{me} reads", lambda: has_read(work, world, i, world.control)
    for line in old_ends(process.control, world.control) if world.budget.stale and not is_quiet else ():
        yield f"{me} reads to {line.length}, an old end", partial(has_read, work, spent(world, "stale"), i, line)
    if not process.incarnation:
        return
    if world.budget.leave and not is_quiet and not process.leaves:
        yield f"{me} leaves", lambda: put_member(spent(world, "leave"), i, leaves=True)
    if process.leaves and not process.pending and not any(process.held) and process.producer in ("ready", "none"):
        yield f"{me} ends", lambda: gone(work, world, i, for_good=True)
    yield from _steps_of_producer(work, world, i, is_quiet=is_quiet)


def _steps_of_producer(work: Work, world: World, i: int, *, is_quiet: bool) -> Iterator[Step]:
    process, me = world.members[i], f"m{i}"
    has_undecided = has_entry(world, process.incarnation, PREPARED)
    if process.producer == "none" and not has_undecided:
        yield f"{me} inits", lambda: made(world, i)
    elif process.producer == "look":
        for line in world.control.prefixes(process.control, end_of_own_append(world, i)):
            old = "" if line is world.control else f" to {line.length}, an old end"
            yield f"{me} looks{old}", partial(read_behind_init, work, world, i, line)
    elif process.producer == "append":
        yield f"{me} begins to READ", lambda: begin_read(world, i)
    elif process.producer == "ready" and process.is_sent:
        yield f"{me} commits", lambda: applied(decided(work.folds, world, process.incarnation), i)
        if world.budget.fail and not is_quiet:
            yield f"{me} commits, unheard", lambda: _unheard(work, world, i)
            yield f"{me} commits in vain", lambda: spent(put_member(world, i, producer="none"), "fail")
    elif process.producer == "ready" and not has_undecided:
        if process.pending:
            yield f"{me} sends again", lambda: sent(world, i)
        else:
            yield from _generations(work, world, i, is_quiet=is_quiet)


def _unheard(work: Work, world: World, i: int) -> World:
    """The commit is decided, and the answer is lost."""
    after = decided(work.folds, world, world.members[i].incarnation)
    return put_member(spent(after, "fail"), i, producer="none")


def _generations(work: Work, world: World, i: int, *, is_quiet: bool) -> Iterator[Step]:
    process = world.members[i]
    asked = {
        point: step.move
        for step in member_steps(work, world, i)
        if isinstance(step, WindDown)
        for within in step.ranges
        for point in points_in(work, step.place, within, len(process.held))
    }
    working = [p for p, held in enumerate(process.held) if held is not None and held.edge < work.records]
    leaving = [p for p, held in enumerate(process.held) if held is not None and (process.leaves or p in asked)]
    for ahead in subsets(working):
        for given in subsets(leaving):
            changes: list[Change] = [Advance(p, *_held(process, p)) for p in ahead]
            for p in given:
                epoch, edge = _held(process, p)
                changes.append(GiveUp(p, epoch, edge + (p in ahead), asked.get(p, 0)))
            if not changes:
                continue
            label = f"m{i} takes {ahead}" + (f" and gives up {given}" if given else "")
            withdrawn = work.folds.withdrawn(process.control)
            wrong = [KNOWN for one in changes if isinstance(one, GiveUp) and one.move in withdrawn]
            judged = world._replace(wrong=world.wrong or first_wanted(work.folds, wrong))
            yield label, partial(_begun, judged, i, tuple(changes))
            for line in _ends_of_snapshots(work, world, is_quiet=is_quiet):
                if (snap := _snap(work, world, i, line)) is not None:
                    after = world if line is readable(world) else spent(world, "stale")
                    yield f"{label} and a snapshot to {line.length}", partial(_begun, after, i, (*changes, snap))


def _ends_of_snapshots(work: Work, world: World, *, is_quiet: bool) -> Iterator[Line]:
    """What a member may have read of the offset log when it takes a snapshot."""
    if not work.has_snapshots:
        return
    yield readable(world)
    if world.budget.stale and not is_quiet:
        yield from old_ends(work.folds.root, readable(world))


def _snap(work: Work, world: World, i: int, offsets: Line) -> Snap | None:
    """A snapshot of what it has read; None: there can be none yet."""
    process = world.members[i]
    places = sorted({place_of(p, world.parts) for p in range(len(world.edges))})
    ledger, number = work.folds.ledger(process.control, offsets), process.transactions + 1
    if offsets is work.folds.root:
        return None
    try:
        parts = take_snapshot(ledger, APP, 0, places, offsets.length, process.incarnation, number)
    except ValueError:
        return None
    return Snap(tuple(parts))


def _begun(world: World, i: int, pending: tuple[Change, ...]) -> World:
    number = world.members[i].transactions + 1
    return sent(put_member(world, i, pending=pending, transactions=number), i)


def _held(process: MemberProcess, point: int) -> Held:
    held = process.held[point]
    assert held is not None
    return held
