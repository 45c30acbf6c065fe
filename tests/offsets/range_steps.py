"""What the processes of range_model.py do, step by step, and the search through all their interleavings.

As in fencing_model.py a process is a list of steps, any process may pause before any step for any time, and a step that
may end in several ways yields several worlds. Three things are taken together because nobody can notice what lies
between: a generation is taken when its first record is appended; a reader that waits for a place has read up to it as
soon as that is possible; and steps that touch only the process's own knowledge happen at once.
"""

from collections.abc import Callable, Iterator
from typing import Any

from .range_broker import (
    appended,
    decided,
    fenced,
    folded,
    has_entry,
    known,
    marked,
    place_in,
    stable,
    tidied,
    with_place,
    with_process,
)
from .range_generations import generations
from .range_model import (
    APART,
    DONE,
    OPEN,
    POINTS,
    PREPARED,
    Control,
    Design,
    Entry,
    Event,
    Grant,
    Released,
    World,
    cut,
    is_apart,
    points_of,
    regranted,
)
from .search import Found, search

Next = Iterator[tuple[str, World]]


def put(world: World, me: int, rest: tuple[str, ...] | None = None, **changes: Any) -> World:
    """The world after my step: my first step is done, or what is to do is ``rest``."""
    process = world.processes[me]
    changes["todo"] = process.todo[1:] if rest is None else rest
    return with_process(world, me, process._replace(**changes))


# --- what the broker does by itself ----------------------------------------------------------------------------------


def broker_steps(design: Design, world: World) -> Next:
    """It writes markers, aborts transactions that are open for too long, and carries out late requests."""
    for i, log in enumerate(world.logs):
        at = f" in log {i}" if len(world.logs) > 1 else ""
        for k, entry in enumerate(log.tail):
            if entry.status == PREPARED:
                yield f"broker marks {design.names[entry.owner]}{at}", marked(world, i, k)
    for me, process in enumerate(world.processes):
        if has_entry(world, me, OPEN):
            yield f"broker times out {design.names[me]}", fenced(world, me)
            if process.is_late:
                late = decided(with_process(world, me, process._replace(is_late=False)), me)
                yield f"broker carries out a late commit of {design.names[me]}", late


# --- the steps of a coordinator --------------------------------------------------------------------------------------


def told(world: World, me: int, kind: str, about: Any) -> World:
    """The control log one event longer: it counts unless a higher term came before it. My next READ comes to it."""
    control, term = world.control, world.processes[me].term
    if kind == "elected":
        after = control._replace(term=term, holder=me) if term > control.term else control
    elif term < control.term:
        after = control
    elif kind == "grants":
        after = control._replace(grants=(*control.grants, about))
    else:
        after = control._replace(**{kind: getattr(control, kind) | {about}})
    if after != control:
        world = world._replace(folds=(*world.folds, after))
    return with_process(world, me, world.processes[me]._replace(at=len(world.folds) - 1))


def step_elect(design: Design, world: World, me: int, _: str) -> Next:
    """Stand for the term after the highest I have seen."""
    world = put(world, me, term=world.processes[me].seen.term + 1)
    yield f"term {world.processes[me].term}", told(world, me, "elected", me)


def step_look(design: Design, world: World, me: int, _: str) -> Next:
    """Read the control log to an end that a broker tells; stop if somebody else was first in my term."""
    process = world.processes[me]
    for at in range(process.at, len(world.folds)):
        seen = world.folds[at]
        lost = 0 < process.term == seen.term and seen.holder != me
        behind = len(world.folds) - 1 - at
        note = "lost the term" if lost else f"to an old end, {behind} behind" if behind else ""
        yield note, put(world, me, () if lost else None, seen=seen, at=at)


def step_declare(design: Design, world: World, me: int, _: str) -> Next:
    """Append to the control log what counts nowhere: my next READ comes to behind it. Local, as nobody sees it."""
    yield "", put(world, me, at=len(world.folds) - 1)


def step_take_over(design: Design, world: World, me: int, _: str) -> Next:
    """As the second coordinator: fence who was expelled and not fenced, expel and fence all other owners. Local.

    Where FENCED stands nobody is fenced anew.
    """
    seen = world.processes[me].seen
    owners = {grant.member for point in range(len(design.log_of)) if (grant := seen.owner(point))}
    steps: list[str] = []
    for name in (design.names[member] for member in sorted(seen.expelled - seen.fenced)):
        steps += [f"fence {name}", f"fenced {name}"]
    for name in (design.names[member] for member in sorted(owners - seen.expelled)):
        steps += [f"expel {name}", f"fence {name}", f"fenced {name}"]
    yield "", put(world, me, (*steps, *world.processes[me].todo[1:]), seen=Control(grants=seen.grants))


def step_go_on(design: Design, world: World, me: int, about: str) -> Next:
    """As the second coordinator: go on with the move of points that are still granted as at the start. Local."""
    seen = world.processes[me].seen
    is_left = all(seen.owner(point) == design.start.control.owner(point) for point in points_of(about))
    yield "", put(world, me, None if is_left else (), seen=Control(grants=seen.grants))


def step_expel(design: Design, world: World, me: int, about: str) -> Next:
    """Append EXPELLED."""
    yield "", put(told(world, me, "expelled", design.names.index(about)), me)


def step_fence(design: Design, world: World, me: int, about: str) -> Next:
    """Make a producer of the victim's id; done only when its last transaction is decided and marked in every log."""
    victim = design.names.index(about)
    if not has_entry(world, victim, PREPARED):
        yield "", put(fenced(world, victim), me)


def step_fenced(design: Design, world: World, me: int, about: str) -> Next:
    """Append FENCED."""
    yield "", put(told(world, me, "fenced", design.names.index(about)), me)


def step_until_released(design: Design, world: World, me: int, about: str) -> Next:
    """Follow the offset log, as far as it is stable, until points are released by who had them, or until I am tired.

    My next READ of a log comes to the RELEASED that I saw there: its writer committed no such point behind it.
    """
    if design.when_tired:
        yield "is tired of it", put(world, me, design.when_tired)
    if all(_is_released(design, world, me, point, visible=True) for point in points_of(about)):
        after = put(world, me)
        for point in points_of(about):
            i = design.log_of[point]
            tail = world.logs[i].tail
            here = [k + 1 for k, entry in enumerate(tail) if _releases(entry, world.processes[me].seen, point)]
            place = max([0, *here, place_in(after.processes[me], i) or 0])
            after = with_process(after, me, with_place(after.processes[me], i, place))
        yield "", after


def _releases(entry: Entry, seen: Control, point: int) -> bool:
    owner = seen.owner(point)
    if owner is None:
        return False
    released = (event for event in entry.events if isinstance(event, Released))  # a split may hold the same values
    return Released(point, owner.epoch) in released


def step_until_announced(design: Design, world: World, me: int, about: str) -> Next:
    """Go on as soon as a transaction that releases the points is begun, as its writer would say so. Never chosen."""
    if all(_is_released(design, world, me, point, visible=False) for point in points_of(about)):
        yield "", put(world, me)


def _is_released(design: Design, world: World, me: int, point: int, *, visible: bool) -> bool:
    owner = world.processes[me].seen.owner(point)
    if owner is None:
        return False
    log = world.logs[design.log_of[point]]
    tail = log.tail[: stable(log)] if visible else log.tail
    is_known = Released(point, owner.epoch) in log.released
    seen = world.processes[me].seen
    return is_known or any(_releases(entry, seen, point) for entry in tail)


def step_grant(design: Design, world: World, me: int, about: str) -> Next:
    """Append GRANTED for points to a member at the next epoch, from the edges I read: "b N"."""
    process = world.processes[me]
    letters, to = about.split()
    epoch = max((grant.epoch for grant in process.seen.grants), default=0) + 1
    points = points_of(letters)
    known_edges = process.edges or design.start.plane.edges
    edges = tuple(edge if point in points else None for point, edge in enumerate(known_edges))
    grant = Grant(design.names.index(to), epoch, edges)
    after = told(world, me, "grants", grant)
    if after.control is not world.control:
        after = after._replace(plane=regranted(design.log_of, world.control, world.plane, grant))
    seen = process.seen._replace(grants=(*process.seen.grants, grant))
    starts = ", ".join(f"{POINTS[point]} from {known_edges[point]}" for point in points)
    yield f"epoch {epoch}, {starts}", put(after, me, seen=seen)


# --- reading the offset log ------------------------------------------------------------------------------------------


def step_end(design: Design, world: World, me: int, about: str) -> Next:
    """Append to a log what counts nowhere: my next READ of it comes to behind that."""
    i = int(about)
    undecided = sum(entry.status != DONE for entry in world.logs[i].tail)
    note = f"has to wait for {undecided}" if undecided else ""
    yield note, put(_with_end(world, me, i), me)


def _with_end(world: World, me: int, i: int) -> World:
    return with_process(world, me, with_place(world.processes[me], i, len(world.logs[i].tail)))


def step_read(design: Design, world: World, me: int, about: str) -> Next:
    """Read a log to the place that I wait for, when all below is decided; without a place to an end that I am told."""
    i = int(about)
    log, place = world.logs[i], place_in(world.processes[me], i)
    if place is None:
        seen = set()
        for count in range(stable(log) + 1):
            after = _has_read(design, world, me, i, count)
            if after not in seen:
                seen.add(after)
                yield f"to an end that it is told, {count} of {len(log.tail)}", after
    elif place <= stable(log):
        yield "", _has_read(design, world, me, i, place)


def step_read_stable(design: Design, world: World, me: int, about: str) -> Next:
    """Read a log as far as it is stable now. Never chosen where nothing else says that this is far enough."""
    count = stable(world.logs[int(about)])
    yield "", _has_read(design, world, me, int(about), count)


def _has_read(design: Design, world: World, me: int, i: int, count: int) -> World:
    process, log = world.processes[me], folded(world.logs[i], count)
    known_edges = process.edges or design.start.plane.edges
    edges = tuple(log.edges[p] if i == design.log_of[p] else known_edges[p] for p in range(len(known_edges)))
    after = put(world, me, edges=edges, is_found=process.is_found or me in log.landed)
    return with_process(after, me, with_place(after.processes[me], i, None))


# --- the steps of a member -------------------------------------------------------------------------------------------


def step_init(design: Design, world: World, me: int, _: str) -> Next:
    """Make my own producer; possible when my last transaction is decided and marked in every log."""
    if not has_entry(world, me, PREPARED):
        yield "", put(fenced(world, me), me, has_producer=True)


def step_abort(design: Design, world: World, me: int, _: str) -> Next:
    """Abort my transaction and keep my producer. Never chosen: INIT does it, and refuses what is still on its way."""
    if not has_entry(world, me, PREPARED):
        process = world.processes[me]
        after = fenced(world, me)
        kept = after.processes[me]._replace(has_producer=process.has_producer, is_late=process.is_late)
        yield "", put(with_process(after, me, kept), me)


def step_check(design: Design, world: World, me: int, _: str) -> Next:
    """After a failure: stop if I am expelled; else send again what is pending, unless I found it committed. Local."""
    process = world.processes[me]
    if me in process.seen.expelled:
        yield "", put(world, me, ())
    elif process.is_found or not process.pending:
        todo, pending = ("work",), ()
        yield "", put(known(world, me), me, todo, pending=pending, is_found=False, edges=(), places=(), seen=Control())
    else:
        yield "", put(world, me, ("send",), is_found=False, edges=(), places=(), seen=Control())


def step_work(design: Design, world: World, me: int, _: str) -> Next:
    """Take up a grant, or take a generation and begin to send it."""
    process = world.processes[me]
    for grant in world.control.grants:
        if grant.member == me and grant.epoch > process.epoch and me not in world.control.expelled:
            workers = tuple(sorted((*process.workers, *cut(design.log_of, grant))))
            yield f"takes up epoch {grant.epoch}", put(world, me, ("work",), workers=workers, epoch=grant.epoch)
            break  # one after the other
    for label, taken in generations(design, process):
        for how, after in step_send(design, with_process(world, me, taken), me, ""):
            yield label + (f", {how}" if how else ""), after


def step_send(design: Design, world: World, me: int, about: str) -> Next:
    """Begin a transaction and append what is pending, one log partition after the other.

    An append that fails leaves what a lost request to commit leaves: a transaction that is open, or none.
    """
    process = world.processes[me]
    by_log: dict[int, tuple[Event, ...]] = {}
    for event in process.pending:
        i = design.log_of[event.point]
        by_log[i] = (*by_log.get(i, ()), event)
    if not process.has_producer:
        yield from failed(design, world, me, "is fenced")
    elif about or not has_entry(world, me, PREPARED):
        first, *others = sorted(by_log) if not about else [int(about)]
        rest = (*(f"send {i}" for i in others), "commit") if not about else None
        world = world if about else known(world, me)
        after = put(appended(world, first, Entry(me, OPEN, by_log[first])), me, rest)
        yield "", _with_end(after, me, first) if design.by_own_offset else after


def step_commit(design: Design, world: World, me: int, _: str) -> Next:
    """Ask for the commit. The request or the answer may be lost: then the outcome is unknown to me."""
    process = world.processes[me]
    if not process.has_producer:
        yield from failed(design, world, me, "is fenced")
        return
    after = decided(world, me)
    yield "", put(known(after, me), me, ("work",), pending=(), places=())
    pending = () if design.unknown_is_done else process.pending
    yield from failed(design, put(after, me, process.todo, pending=pending), me, "done, answer lost")
    yield from failed(design, put(world, me, process.todo, pending=pending), me, "request lost")
    if design.has_late_commits:
        late = put(world, me, process.todo, pending=pending, is_late=True)
        yield from failed(design, late, me, "request late")


def failed(design: Design, world: World, me: int, how: str) -> Next:
    """My producer is of no use any more: make a new one by the rules for it, or stop."""
    budget = world.processes[me].budget
    if budget.inits:
        yield how, put(world, me, design.recover, budget=budget._replace(inits=budget.inits - 1))
    else:
        yield how + ", stops", put(world, me, ())


# --- the search ------------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Design, World, int, str], Next]] = {
    "elect": step_elect,
    "look": step_look,
    "take_over": step_take_over,
    "go_on": step_go_on,
    "expel": step_expel,
    "fence": step_fence,
    "fenced": step_fenced,
    "until_released": step_until_released,
    "until_announced": step_until_announced,
    "grant": step_grant,
    "declare": step_declare,
    "end": step_end,
    "read": step_read,
    "read_stable": step_read_stable,
    "init": step_init,
    "abort": step_abort,
    "check": step_check,
    "work": step_work,
    "send": step_send,
    "commit": step_commit,
}
LOCAL = {"check", "take_over", "go_on", "until_released", "declare"}
"""Steps that touch nothing but the process's own knowledge, and whose time makes no odds once they are possible."""
APPENDS = {"expel", "fenced", "grant"}
"""Steps that do nothing but append to the control log. Once a higher term is there the event will never count."""


def settled(design: Design, world: World) -> World:
    """The world after all steps that nobody but their process can notice, now or later, and tidied."""
    world = tidied(design, world)
    for me in range(len(world.processes)):
        while (process := world.processes[me]).todo:
            name, _, about = process.todo[0].partition(" ")
            is_reading = name == "read" and place_in(process, int(about)) is not None
            is_too_late = name in APPENDS and process.term < world.control.term
            is_choice = name == "until_released" and bool(design.when_tired)
            if is_choice or not (name in LOCAL or is_reading or is_too_late):
                break
            after = next(iter(STEPS[name](design, world, me, about)), None)
            if after is None:
                break
            world = tidied(design, after[1])
    return world


def successors(design: Design, world: World) -> Next:
    """Every step that may come next."""
    for label, after in broker_steps(design, world):
        yield label, settled(design, after)
    for me, process in enumerate(world.processes):
        if not process.todo:
            continue
        name, _, about = process.todo[0].partition(" ")
        if name == "read" and place_in(process, int(about)) is not None:
            continue  # it reads as soon as it can
        for note, after in STEPS[name](design, world, me, about):
            target = f" {about}" if about else ""
            yield f"{design.names[me]} {name}{target}" + (f": {note}" if note else ""), settled(design, after)


def violations(world: World) -> Iterator[str]:
    """What is wrong for good, and members that are apart from the log while nothing of theirs is unknown."""
    yield from world.plane.wrong
    if any(p.todo[:1] == ("work",) and is_apart(world, p) for p in world.processes):
        yield APART


def explore(design: Design, wanted: tuple[str, ...]) -> Found[World]:
    """Search breadth-first until a wanted violation is found or every reachable world was seen."""
    start = settled(design, design.start)
    return search(start, lambda world: successors(design, world), violations, wanted)


def is_at_rest(world: World) -> bool:
    """Whether nothing is undecided or unmarked."""
    return all(entry.status == DONE for log in world.logs for entry in log.tail)
