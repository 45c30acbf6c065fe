"""A small model of brokers, members and coordinators, searched breadth-first through every interleaving.

One key range of one partition; range_model.py has several, which split, merge and move. The world is a value: the
control log as its readers fold it, the offset log, and the processes. A process is a list of steps that are still to
do; ``STEPS`` says what each step does, and a step that may end in several ways yields several worlds. Any process may
be paused before any step for any time, so a crash needs no step of its own: it is a pause that never ends.

What the broker does (read in Kafka's source and tried on a real one):

- an append to the control log is visible at once;
- a transaction is OPEN from its append on, PREPARED once its commit is decided, and visible (DONE) when its marker is
  written some time later; INIT and FENCE abort an open transaction of the id and wait for the marker of a prepared one;
  the broker's time-out aborts an open transaction and fences its producer;
- whoever holds an older producer than the newest of its id is refused;
- to read the offset log to its end is to take the high watermark and, later, to have read committed records up to it:
  not before all transactions below it are decided and marked.

What can make no difference any more is left out of the world, so that worlds which behave alike are one: aborted
transactions, events that do not count, and what a process knows but will not use again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .search import Found, search

OPEN, PREPARED, DONE = "open", "prepared", "done"

DOUBLE = "two committed tiles over the same offset"
GAP = "a committed tile with nothing committed before it"
SHARED_EPOCH = "a transaction at an epoch that was granted to another or to nobody"
OUTSIDE = "a committed tile at or beyond the start of a later grant"
ANYTHING = (DOUBLE, GAP, SHARED_EPOCH, OUTSIDE)


class Grant(NamedTuple):
    """The range belongs to ``member`` at ``epoch``, from the offset ``edge`` on."""

    member: int
    epoch: int
    edge: int


class Fold(NamedTuple):
    """What the control log says to whoever has read it."""

    term: int = 0
    holder: int = -1
    joined: frozenset[int] = frozenset()
    expelled: frozenset[int] = frozenset()
    fenced: frozenset[int] = frozenset()
    grants: tuple[Grant, ...] = ()


class Entry(NamedTuple):
    """A transaction in the offset log with the tile ``[offset, offset + 1)``."""

    owner: int
    epoch: int
    offset: int
    status: str


class Process(NamedTuple):
    """What a process knows, and the steps it has still to do. One that has nothing to do knows nothing."""

    todo: tuple[str, ...] = ()
    term: int = 0
    """the term it was elected for; 0: it is no coordinator"""
    seen: Fold = Fold()
    """the control log as it read it last"""
    high: int = 0
    """the high watermark of the offset log that it took"""
    edge: int = 0
    """all below is committed, as far as it knows"""
    epoch: int = 0
    """the epoch it works under; 0: none yet"""
    has_producer: bool = False
    """whether its producer is the newest of its transactional id"""
    inits: int = 0
    """how many more times it may make a new producer"""


class World(NamedTuple):
    """All there is at one instant."""

    control: Fold
    log: tuple[Entry, ...]
    processes: tuple[Process, ...]


@dataclass(frozen=True)
class Design:
    """The rules of one run of the model: names, orders and bounds. The defaults are the chosen rules."""

    names: str
    start: World
    grantee: tuple[int, ...] = ()
    """whom process i grants the range to; itself when empty"""
    per_victim: tuple[str, ...] = ("expel", "fence", "fenced")
    """the steps for each member that must go"""
    recover: tuple[str, ...] = ("init", "look", "high", "read", "check", "append")
    """what a member does after any failure of its producer"""
    edge_max: int = 2
    """the work there is"""
    terms_rule: bool = True
    """whether a fold ignores events of a lower term than the highest before them"""
    first_wins: bool = True
    """whether a process that finds somebody else first in its term stops"""
    own_term: bool = True
    """whether a process writes at the term it was elected for, not at the highest it has read of since"""
    expulsion_stops: bool = True
    """whether a member that reads of its own expulsion stops"""
    successor_fences: bool = True
    """whether a second coordinator fences those who were expelled by the first and not fenced"""
    unknown_is_done: bool = False
    """whether a member takes a transaction of unknown outcome for committed"""
    in_order: bool = False
    """whether process i starts after process i - 1 only: nothing is lost by that when all start alike"""


Next = Iterator[tuple[str, World]]


def evolve(control: Fold, term: int, kind: str, about: Any, terms_rule: bool) -> Fold:
    """The control log one event longer: an event counts unless a higher term came before it."""
    if kind == "elected":
        return control._replace(term=term, holder=about) if term > control.term else control
    if term < control.term and terms_rule:
        return control
    if kind == "grants":
        return control._replace(grants=(*control.grants, about))
    return control._replace(**{kind: getattr(control, kind) | {about}})


def edge_of(log: tuple[Entry, ...]) -> int:
    """The edge that a reader of committed transactions finds."""
    return max((entry.offset + 1 for entry in log if entry.status == DONE), default=0)


# --- the broker ------------------------------------------------------------------------------------------------------


def place_of(world: World, owner: int, status: str) -> int | None:
    """Where in the log the owner's transaction of that status lies; it has one that is not DONE at most."""
    for i, entry in enumerate(world.log):
        if entry.owner == owner and entry.status == status:
            return i
    return None


def moved(world: World, owner: int, status_from: str, status_to: str) -> World:
    """The owner's transaction of one status moved to another."""
    i = place_of(world, owner, status_from)
    assert i is not None
    return world._replace(log=(*world.log[:i], world.log[i]._replace(status=status_to), *world.log[i + 1 :]))


def fenced(world: World, owner: int) -> World:
    """The owner's producer is not the newest any more and its open transaction is aborted."""
    i = place_of(world, owner, OPEN)
    processes = [p._replace(has_producer=False) if me == owner else p for me, p in enumerate(world.processes)]
    if i is not None:
        world = world._replace(log=world.log[:i] + world.log[i + 1 :])
        processes = [p._replace(high=p.high - 1) if p.high > i else p for p in processes]
    return world._replace(processes=tuple(processes))


def broker_steps(design: Design, world: World) -> Next:
    """What the broker does by itself: it writes markers, and aborts transactions that are open for too long."""
    for entry in world.log:
        if entry.status == PREPARED:
            yield f"broker marks {design.names[entry.owner]}", moved(world, entry.owner, PREPARED, DONE)
        elif entry.status == OPEN:
            yield f"broker times out {design.names[entry.owner]}", fenced(world, entry.owner)


# --- the steps -------------------------------------------------------------------------------------------------------


def put(world: World, me: int, rest: tuple[str, ...] | None = None, **changes: Any) -> World:
    """The world after my step: my first step is done, or what is to do is ``rest``."""
    process = world.processes[me]
    todo = process.todo[1:] if rest is None else rest
    process = process._replace(todo=todo, **changes) if todo else Process()
    return world._replace(processes=(*world.processes[:me], process, *world.processes[me + 1 :]))


def told(design: Design, world: World, me: int, kind: str, about: Any) -> World:
    """The control log one event longer."""
    control = evolve(world.control, world.processes[me].term, kind, about, design.terms_rule)
    return world._replace(control=control)


def step_init(design: Design, world: World, me: int, _: int) -> Next:
    """Make my own producer."""
    if place_of(world, me, PREPARED) is None:
        yield "", put(fenced(world, me), me, has_producer=True)


def step_elect(design: Design, world: World, me: int, _: int) -> Next:
    """Stand for the term after the highest I have seen."""
    world = put(world, me, term=world.processes[me].seen.term + 1)
    yield f"term {world.processes[me].term}", told(design, world, me, "elected", me)


def step_look(design: Design, world: World, me: int, _: int) -> Next:
    """Read the control log to its end; stop if somebody else was first in my term."""
    lost = design.first_wins and 0 < world.processes[me].term == world.control.term and world.control.holder != me
    yield ("lost the term" if lost else ""), put(world, me, () if lost else None, seen=world.control)


def step_look_again(design: Design, world: World, me: int, _: int) -> Next:
    """Read the control log to its end once more, after the own JOINED; stop if that does not count."""
    if me not in world.control.joined:
        yield "has not joined", put(world, me, ())
    else:
        term = world.processes[me].term if design.own_term else world.control.term
        yield "", put(world, me, seen=world.control, term=term)


def step_join(design: Design, world: World, me: int, _: int) -> Next:
    """Say that I take part, and under which transactional id."""
    yield "", put(told(design, world, me, "joined", me), me)


def step_expel_members(design: Design, world: World, me: int, _: int) -> Next:
    """At a start: whoever joined and is not FENCED must go. Local: what to do next."""
    seen = world.processes[me].seen
    victims = sorted(seen.joined - seen.fenced - {me})
    steps = tuple(f"{name} {victim}" for victim in victims for name in design.per_victim)
    yield "", put(world, me, steps + world.processes[me].todo[1:], seen=Fold(grants=seen.grants))


def step_take_over(design: Design, world: World, me: int, _: int) -> Next:
    """As the second coordinator: finish with the expelled, then take the range from its owner. Local."""
    seen = world.processes[me].seen
    steps: tuple[str, ...] = ()
    if design.successor_fences:
        for victim in sorted(seen.expelled - seen.fenced):
            steps += tuple(f"{name} {victim}" for name in design.per_victim if name != "expel")
    owner = seen.grants[-1].member
    if owner not in seen.expelled:
        steps += tuple(f"{name} {owner}" for name in design.per_victim)
    yield "", put(world, me, steps + world.processes[me].todo[1:], seen=Fold(grants=seen.grants))


def step_expel(design: Design, world: World, me: int, about: int) -> Next:
    """Append EXPELLED."""
    yield "", put(told(design, world, me, "expelled", about), me)


def step_fence(design: Design, world: World, me: int, about: int) -> Next:
    """Make a producer of the victim's id; done only when its last transaction is decided and marked."""
    if place_of(world, about, PREPARED) is None:
        yield "", put(fenced(world, about), me)


def step_fenced(design: Design, world: World, me: int, about: int) -> Next:
    """Append FENCED."""
    yield "", put(told(design, world, me, "fenced", about), me)


def step_high(design: Design, world: World, me: int, _: int) -> Next:
    """Take the high watermark of the offset log."""
    yield f"watermark {len(world.log)}", put(world, me, high=len(world.log))


def step_read(design: Design, world: World, me: int, _: int) -> Next:
    """Read committed transactions up to the high watermark taken; possible once none below it is undecided."""
    below = world.log[: world.processes[me].high]
    if not any(entry.status in (OPEN, PREPARED) for entry in below):
        yield f"edge {edge_of(below)}", put(world, me, edge=edge_of(below), high=0)


def step_grant(design: Design, world: World, me: int, _: int) -> Next:
    """Append GRANTED at the next epoch, from the edge I found."""
    process = world.processes[me]
    epoch = max((grant.epoch for grant in process.seen.grants), default=0) + 1
    to = design.grantee[me] if design.grantee else me
    world = told(design, world, me, "grants", Grant(to, epoch, process.edge))
    mine = epoch if to == me else 0
    yield f"epoch {epoch} from {process.edge} to {design.names[to]}", put(world, me, seen=Fold(), epoch=mine)


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
    grants = [grant for grant in world.control.grants if grant.member == me]
    if grants:
        yield "", put(world, me, seen=world.control, edge=grants[-1].edge)


def step_append(design: Design, world: World, me: int, _: int) -> Next:
    """Begin a transaction and append the tile from my edge on."""
    process = world.processes[me]
    if process.edge >= design.edge_max:
        yield "no work is left", put(world, me, ())
    elif not process.has_producer:
        yield from failed(design, world, me, "is fenced")
    elif place_of(world, me, PREPARED) is None:
        entry = Entry(me, process.epoch, process.edge, OPEN)
        begun = world._replace(log=(*world.log, entry))
        yield f"[{entry.offset}, {entry.offset + 1}) epoch {entry.epoch}", put(begun, me, ("commit",))
        yield from failed(design, world, me, "fails")


def step_commit(design: Design, world: World, me: int, _: int) -> Next:
    """Ask for the commit. The request or the answer may be lost: then the outcome is unknown to me."""
    process = world.processes[me]
    if not process.has_producer:
        yield from failed(design, world, me, "is fenced")
        return
    decided = moved(world, me, OPEN, PREPARED)
    yield "", put(decided, me, ("append",), edge=process.edge + 1)
    yield from failed(design, decided, me, "done, answer lost")
    believed = put(world, me, process.todo, edge=process.edge + 1) if design.unknown_is_done else world
    yield from failed(design, believed, me, "request lost")


def failed(design: Design, world: World, me: int, how: str) -> Next:
    """My producer is of no use any more: make a new one by the rules for it, or stop."""
    inits = world.processes[me].inits
    if inits:
        yield how, put(world, me, design.recover, inits=inits - 1)
    else:
        yield how + ", stops", put(world, me, ())


STEPS: dict[str, Callable[[Design, World, int, int], Next]] = {
    "init": step_init,
    "elect": step_elect,
    "look": step_look,
    "look_again": step_look_again,
    "join": step_join,
    "expel_members": step_expel_members,
    "take_over": step_take_over,
    "expel": step_expel,
    "fence": step_fence,
    "fenced": step_fenced,
    "high": step_high,
    "read": step_read,
    "grant": step_grant,
    "check": step_check,
    "wait_grant": step_wait_grant,
    "append": step_append,
    "commit": step_commit,
}
LOCAL = {"check", "expel_members", "take_over"}
"""Steps that touch nothing but the process's own knowledge."""
APPENDS = {"join", "expel", "fenced", "grant"}
"""Steps that do nothing but append to the control log. Once a higher term is there the event will never count."""


# --- the search ------------------------------------------------------------------------------------------------------


def settled(design: Design, world: World) -> World:
    """The world after all steps that nobody but their process can notice, now or later: their time makes no odds."""
    for me, process in enumerate(world.processes):
        while process.todo:
            name, _, about = process.todo[0].partition(" ")
            too_late = design.terms_rule and name in APPENDS and process.term < world.control.term
            if name not in LOCAL and not too_late:
                break
            ((_, world),) = STEPS[name](design, world, me, int(about or 0))
            process = world.processes[me]
    return world


def process_steps(design: Design, world: World, me: int) -> Next:
    """Everything that process ``me`` may do next."""
    name, _, about = world.processes[me].todo[0].partition(" ")
    for note, after in STEPS[name](design, world, me, int(about or 0)):
        target = f" {design.names[int(about)]}" if about else ""
        yield f"{design.names[me]} {name}{target}" + (f": {note}" if note else ""), settled(design, after)


def successors(design: Design, world: World) -> Next:
    """Every step that may come next."""
    yield from broker_steps(design, world)
    for me, process in enumerate(world.processes):
        if not process.todo:
            continue
        if design.in_order and me and world.processes[me - 1] == design.start.processes[me - 1]:
            break
        yield from process_steps(design, world, me)


def violations(world: World) -> Iterator[str]:
    """What is wrong for good: decided transactions become visible whatever happens next."""
    decided = [entry for entry in world.log if entry.status in (PREPARED, DONE)]
    offsets = [entry.offset for entry in decided]
    if len(set(offsets)) < len(offsets):
        yield DOUBLE
    if offsets and len(set(offsets)) < max(offsets) + 1:
        yield GAP
    grants = world.control.grants
    owners = {grant.epoch: grant.member for grant in grants}
    if len(owners) < len(grants) or any(owners.get(entry.epoch) != entry.owner for entry in world.log):
        yield SHARED_EPOCH
    for grant in grants:
        if any(entry.epoch < grant.epoch and entry.offset >= grant.edge for entry in decided):
            yield OUTSIDE


def explore(design: Design, wanted: tuple[str, ...]) -> Found[World]:
    """Search breadth-first until a wanted violation is found or every reachable world was seen."""
    return search(design.start, lambda world: successors(design, world), violations, wanted)
