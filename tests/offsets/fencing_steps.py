"""What the processes of fencing_model.py do, step by step, and the search through all their interleavings.

A step that may end in several ways yields several worlds. Steps that touch only what their process knows happen at
once: the offset of an own append bounds a later READ from below, so an early one leaves the READ every end that a late
one would.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from .fencing_model import (
    DONE,
    OPEN,
    PREPARED,
    Design,
    Entry,
    Fold,
    Grant,
    Late,
    Process,
    World,
    aborted,
    appended,
    decided,
    deposed,
    edge_of,
    evolve,
    fenced,
    has_entry,
    has_open,
    landed,
    marked,
    violations,
)
from .search import Found, search

Next = Iterator[tuple[str, World]]


def broker_steps(design: Design, world: World) -> Next:
    """What the broker does by itself: markers, time-outs, late batches, another node for the coordination."""
    for i, entry in enumerate(world.log):
        if entry.status == PREPARED:
            yield f"broker marks {design.names[entry.owner]}", marked(world, i)
    for owner, name in enumerate(design.names):
        if has_open(world, owner):
            yield f"broker times out {name}", fenced(world, owner)
    if world.late is not None:
        how, after = landed(design, world, world.late)
        yield f"late batch of {design.names[world.late.entry.owner]}{how}", after
    if design.deposes and not world.is_deposed:
        yield "broker deposes the coordinator of transactions", deposed(design, world)


# --- the steps of a coordinator --------------------------------------------------------------------------------------


def put(world: World, me: int, rest: tuple[str, ...] | None = None, **changes: Any) -> World:
    """The world after my step: my first step is done, or what is to do is ``rest``."""
    process = world.processes[me]
    todo = process.todo[1:] if rest is None else rest
    process = process._replace(todo=todo, **changes) if todo else Process()
    return world._replace(processes=(*world.processes[:me], process, *world.processes[me + 1 :]))


def told(design: Design, world: World, me: int, kind: str, about: Any) -> World:
    """The control log one event longer. Its writer's next READ comes to behind it."""
    control = evolve(world.control, world.processes[me].term, kind, about, design.terms_rule)
    if control != world.control:
        world = world._replace(folds=(*world.folds, control))
    return put(world, me, world.processes[me].todo, at=len(world.folds) - 1)


def step_elect(design: Design, world: World, me: int, _: int) -> Next:
    """Stand for the term after the highest I have seen."""
    world = put(world, me, term=world.processes[me].seen.term + 1)
    yield f"term {world.processes[me].term}", told(design, world, me, "elected", me)


def step_look(design: Design, world: World, me: int, _: int) -> Next:
    """Read the control log to an end that a broker tells; stop if somebody else was first in my term."""
    process = world.processes[me]
    for at in range(process.at, len(world.folds)):
        seen = world.folds[at]
        lost = design.first_wins and 0 < process.term == seen.term and seen.holder != me
        yield (
            _read_of(world, at) + (", lost the term" if lost else ""),
            put(world, me, () if lost else None, seen=seen, at=at),
        )


def _read_of(world: World, at: int) -> str:
    behind = len(world.folds) - 1 - at
    return f"to an old end, {behind} behind" if behind else ""


def step_look_again(design: Design, world: World, me: int, _: int) -> Next:
    """Read the control log once more, after the own JOINED; stop if that does not count."""
    process = world.processes[me]
    for at in range(process.at, len(world.folds)):
        seen = world.folds[at]
        if me not in seen.joined:
            yield "has not joined", put(world, me, ())
        else:
            term = process.term if design.own_term else seen.term
            yield _read_of(world, at), put(world, me, seen=seen, at=at, term=term)


def step_join(design: Design, world: World, me: int, _: int) -> Next:
    """Say that I take part, and under which transactional id."""
    yield "", put(told(design, world, me, "joined", me), me)


def step_expel_members(design: Design, world: World, me: int, _: int) -> Next:
    """At a start: whoever joined and is not FENCED must go. Local: what to do next."""
    seen = world.processes[me].seen
    victims = seen.joined - seen.fenced - {me}
    steps = tuple(f"{name} {victim}" for victim in sorted(victims) for name in design.per_victim)
    yield "", put(world, me, steps + world.processes[me].todo[1:], seen=Fold(grants=seen.grants))


def step_take_over(design: Design, world: World, me: int, _: int) -> Next:
    """As the second coordinator: finish with the expelled, then take the range from its owner. Local.

    Where FENCED stands nobody is fenced anew.
    """
    seen = world.processes[me].seen
    owner = seen.grants[-1].member
    again = seen.expelled - seen.fenced if design.successor_fences else frozenset()
    steps: tuple[str, ...] = ()
    for victim in sorted(again):
        steps += tuple(f"{name} {victim}" for name in design.per_victim if name != "expel")
    if owner not in seen.expelled:
        steps += tuple(f"{name} {owner}" for name in design.per_victim)
    yield "", put(world, me, steps + world.processes[me].todo[1:], seen=Fold(grants=seen.grants))


def step_expel(design: Design, world: World, me: int, about: int) -> Next:
    """Append EXPELLED."""
    yield "", put(told(design, world, me, "expelled", about), me)


def step_fence(design: Design, world: World, me: int, about: int) -> Next:
    """Make a producer of the victim's id; done only when its last transaction is decided and marked."""
    if not has_entry(world, about, PREPARED):
        yield "", put(fenced(world, about), me)


def step_fenced(design: Design, world: World, me: int, about: int) -> Next:
    """Append FENCED."""
    yield "", put(told(design, world, me, "fenced", about), me)


def step_grant(design: Design, world: World, me: int, _: int) -> Next:
    """Append GRANTED at the next epoch, from the edge I found."""
    process = world.processes[me]
    epoch = max((grant.epoch for grant in process.seen.grants), default=0) + 1
    to = design.grantee[me] if design.grantee else me
    world = told(design, world, me, "grants", Grant(to, epoch, process.edge))
    mine = epoch if to == me else 0
    yield f"epoch {epoch} from {process.edge} to {design.names[to]}", put(world, me, seen=Fold(), epoch=mine)


# --- reading the offset log ------------------------------------------------------------------------------------------


def step_end(design: Design, world: World, me: int, _: int) -> Next:
    """Append to the offset log what counts nowhere: my next READ comes to behind it. Local, as nobody sees it."""
    yield "", put(world, me, high=len(world.log))


def step_read(design: Design, world: World, me: int, _: int) -> Next:
    """Read committed transactions to an end that a broker tells; possible where none below it is undecided."""
    process = world.processes[me]
    edges = []
    for end in range(process.high, len(world.log) + 1):
        if any(entry.status != DONE for entry in world.log[process.high : end]):
            break
        edges.append(max(process.edge, edge_of(world.log[:end])))
    if all(entry.status == DONE for entry in world.log[: process.high]):
        for edge in sorted(set(edges)):
            yield f"edge {edge}", put(world, me, edge=edge, high=0)


# --- the steps of a member -------------------------------------------------------------------------------------------


def step_init(design: Design, world: World, me: int, _: int) -> Next:
    """Make my own producer."""
    if not has_entry(world, me, PREPARED):
        yield "", put(fenced(world, me), me, has_producer=True, has_committed=False, in_cache=False)


def step_abort(design: Design, world: World, me: int, _: int) -> Next:
    """Ask to abort my transaction, in front of the INIT. The request may be lost."""
    yield "lost", put(world, me)
    if world.processes[me].has_producer and has_open(world, me):
        if design.version > 1:
            after = fenced(world, me)
        else:
            after = aborted(world, me)
            if after.late is not None and after.late.entry.owner == me:
                after = after._replace(late=after.late._replace(in_transaction=False))
        yield "", put(after, me)


def step_declare(design: Design, world: World, me: int, _: int) -> Next:
    """Append to the control log what counts nowhere: my next READ comes to behind it. Local, as nobody sees it."""
    yield "", put(world, me, at=len(world.folds) - 1)


def step_check(design: Design, world: World, me: int, _: int) -> Next:
    """Go on only if what I read says that I hold the range, at the epoch I worked under if I did. Local."""
    process = world.processes[me]
    seen = process.seen
    held = bool(seen.grants) and seen.grants[-1].member == me and process.epoch in (0, seen.grants[-1].epoch)
    if held and not (design.expulsion_stops and me in seen.expelled):
        yield "", put(world, me, epoch=seen.grants[-1].epoch, seen=Fold(), term=0)
    else:
        yield "", put(world, me, ())


def step_wait_grant(design: Design, world: World, me: int, _: int) -> Next:
    """Follow the control log until the range is granted to me; my edge is the grant's."""
    for at in range(world.processes[me].at, len(world.folds)):
        seen = world.folds[at]
        grants = [grant for grant in seen.grants if grant.member == me]
        if grants:
            yield _read_of(world, at), put(world, me, seen=seen, at=at, edge=grants[-1].edge)


def step_append(design: Design, world: World, me: int, _: int) -> Next:
    """Begin a transaction and append the tile from my edge on."""
    process = world.processes[me]
    if process.edge >= design.edge_max:
        yield "no work is left", put(world, me, ())
    elif not process.has_producer:
        yield from failed(design, world, me, "is fenced")
    elif not has_entry(world, me, PREPARED):
        entry = Entry(me, process.epoch, process.edge, OPEN)
        begun = appended(world, entry)
        note = f"[{entry.offset}, {entry.offset + 1}) epoch {entry.epoch}"
        high = len(begun.log) if design.by_own_offset else 0
        yield note, put(begun, me, ("commit",), high=high)
        yield from failed(design, begun, me, f"{note}, answer lost")
        yield from failed(design, world, me, "fails")
        if design.late_batches and world.late is None:
            yield from failed(design, world._replace(late=Late(entry)), me, f"{note}, late")


def step_commit(design: Design, world: World, me: int, _: int) -> Next:
    """Ask for the commit. The request or the answer may be lost: then the outcome is unknown to me."""
    process = world.processes[me]
    edge = process.edge + 1
    if process.in_cache:
        yield "told 'committed' by the deposed node", put(world, me, ("append",), edge=edge, high=0)
    if not process.has_producer:
        yield from failed(design, world, me, "is fenced", is_unknown=True)
        return
    after = decided(world, me)
    has_committed = design.deposes and not world.is_deposed
    yield "", put(after, me, ("append",), edge=edge, high=0, has_committed=has_committed)
    yield from failed(design, after, me, "done, answer lost", is_unknown=True)
    believed = put(world, me, process.todo, edge=edge) if design.unknown_is_done else world
    yield from failed(design, believed, me, "request lost", is_unknown=True)


def failed(design: Design, world: World, me: int, how: str, *, is_unknown: bool = False) -> Next:
    """My producer is of no use any more: make a new one by the rules for it, or stop."""
    process = world.processes[me]
    if not process.inits:
        yield how + ", stops", put(world, me, ())
        return
    recover = design.recover if is_unknown else tuple(step for step in design.recover if step not in _OUTCOME)
    high = process.high if is_unknown and design.by_own_offset else 0
    yield how, put(world, me, recover, inits=process.inits - 1, high=high)


_OUTCOME = frozenset({"end", "read"})
"""Steps that find out what became of an own transaction."""

STEPS: dict[str, Callable[[Design, World, int, Any], Next]] = {
    "init": step_init,
    "abort": step_abort,
    "declare": step_declare,
    "elect": step_elect,
    "look": step_look,
    "look_again": step_look_again,
    "join": step_join,
    "expel_members": step_expel_members,
    "take_over": step_take_over,
    "expel": step_expel,
    "fence": step_fence,
    "fenced": step_fenced,
    "end": step_end,
    "read": step_read,
    "grant": step_grant,
    "check": step_check,
    "wait_grant": step_wait_grant,
    "append": step_append,
    "commit": step_commit,
}
LOCAL = {"check", "expel_members", "take_over", "declare", "end"}
"""Steps that touch nothing but the process's own knowledge."""
APPENDS = {"join", "expel", "fenced", "grant"}
"""Steps that do nothing but append to the control log. Once a higher term is there the event will never count."""
LOOKS = {"look", "look_again", "wait_grant"}
OWN_APPENDS = APPENDS | {"elect", "declare"}


# --- the search ------------------------------------------------------------------------------------------------------


@cache
def _looks(todo: tuple[str, ...]) -> bool:
    """Whether a READ of the control log comes before the next own append there."""
    for step in todo:
        name = step.partition(" ")[0]
        if name in OWN_APPENDS:
            return False
        if name in LOOKS:
            return True
    return False


def trimmed(design: Design, world: World) -> World:
    """The world without the folds that nobody can be told any more."""
    places: dict[int, int] = {}
    for me, process in enumerate(world.processes):
        if process.todo and (_looks(process.todo) or (process.inits and _looks(design.recover))):
            places[me] = process.at
    count = min(places.values(), default=len(world.folds) - 1)
    processes = []
    for me, process in enumerate(world.processes):
        at = places.get(me, count) - count
        processes.append(process if at == process.at else process._replace(at=at))
    return world._replace(folds=world.folds[count:], processes=tuple(processes))


def _that_matters(design: Design, control: Fold, me: int, process: Process) -> tuple[str, ...]:
    """What a process has to do, without what nobody will ever notice."""
    if process.todo[-1] == "grant" and 0 < process.term < control.term and design.terms_rule:
        return tuple(step for step in process.todo if step.startswith("fence "))  # its grant will not count
    if process.todo[0] in ("append", "commit") and not (process.inits or process.has_producer or process.in_cache):
        return ()  # it will be refused, and stop
    return process.todo


def settled(design: Design, world: World) -> World:
    """The world after all steps that nobody but their process can notice, now or later: their time makes no odds."""
    for me, process in enumerate(world.processes):
        if process.todo and (todo := _that_matters(design, world.control, me, process)) != process.todo:
            world = put(world, me, todo)
            process = world.processes[me]
        while process.todo:
            name, _, about = process.todo[0].partition(" ")
            too_late = design.terms_rule and name in APPENDS and process.term < world.control.term
            if name not in LOCAL and not too_late:
                break
            ((_, world),) = STEPS[name](design, world, me, int(about) if about else None)
            process = world.processes[me]
    return trimmed(design, world)


def process_steps(design: Design, world: World, me: int) -> Next:
    """Everything that process ``me`` may do next."""
    name, _, about = world.processes[me].todo[0].partition(" ")
    for note, after in STEPS[name](design, world, me, int(about) if about else None):
        target = f" {design.names[int(about)]}" if about else ""
        yield f"{design.names[me]} {name}{target}" + (f": {note}" if note else ""), settled(design, after)


def successors(design: Design, world: World) -> Next:
    """Every step that may come next."""
    for label, after in broker_steps(design, world):
        yield label, settled(design, after)
    for me, process in enumerate(world.processes):
        if not process.todo:
            continue
        if design.in_order and me and world.processes[me - 1] == design.start.processes[me - 1]:
            break
        yield from process_steps(design, world, me)


def explore(design: Design, wanted: tuple[str, ...]) -> Found[World]:
    """Search breadth-first until a wanted violation is found or every reachable world was seen."""
    return search(settled(design, design.start), lambda world: successors(design, world), violations, wanted)


def is_at_rest(world: World) -> bool:
    """Whether all is done: nothing is undecided, and nobody waits but for a grant that went to another."""
    owner = world.control.grants[-1].member if world.control.grants else -1
    waiting = {me for me, process in enumerate(world.processes) if process.todo}
    is_idle = all(world.processes[me].todo[0] == "wait_grant" and me != owner for me in waiting)
    return is_idle and world.late is None and all(entry.status == DONE for entry in world.log)
