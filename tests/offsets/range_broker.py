"""What brokers do in the model of key ranges: transactions, markers, what a reader finds; what a world may forget."""

from functools import cache

from .range_model import (
    DONE,
    OPEN,
    POINTS,
    PREPARED,
    TORN,
    Control,
    Design,
    Entry,
    Event,
    Log,
    Process,
    Released,
    Tile,
    World,
    judged,
)


def has_entry(world: World, owner: int, status: str) -> bool:
    """Whether a log holds an entry of that status of the owner's."""
    return any(entry.owner == owner and entry.status == status for log in world.logs for entry in log.tail)


def with_log(world: World, i: int, log: Log) -> World:
    """The world with another log ``i``."""
    return World(world.folds, world.plane, (*world.logs[:i], log, *world.logs[i + 1 :]), world.processes)


def with_process(world: World, me: int, process: Process) -> World:
    """The world with another process ``me``; one that has nothing more to do is blank, and asks for nothing."""
    if not process.todo:
        world, process = known(world, me), _BLANK
    return World(world.folds, world.plane, world.logs, (*world.processes[:me], process, *world.processes[me + 1 :]))


_BLANK = Process()


def appended(world: World, i: int, entry: Entry) -> World:
    """Log ``i`` one entry longer."""
    return with_log(world, i, world.logs[i]._replace(tail=(*world.logs[i].tail, entry)))


def fenced(world: World, owner: int) -> World:
    """The owner's producer is not the newest any more, its open transaction is aborted, its late requests refused."""
    for i in range(len(world.logs)):
        world = aborted(world, i, owner)
    return with_process(world, owner, world.processes[owner]._replace(has_producer=False, is_late=False))


def aborted(world: World, i: int, owner: int) -> World:
    """The marker of an abort is written: the owner has nothing open in log ``i``. Readers' places move along."""
    log = world.logs[i]
    gone = [k for k, entry in enumerate(log.tail) if entry.owner == owner and entry.status == OPEN]
    if not gone:
        return world
    world = with_log(world, i, log._replace(tail=tuple(e for k, e in enumerate(log.tail) if k not in gone)))
    for me, process in enumerate(world.processes):
        if (place := place_in(process, i)) is not None:
            world = with_process(world, me, with_place(process, i, place - sum(k < place for k in gone)))
    return world


def place_in(process: Process, i: int) -> int | None:
    """Where the next READ of log ``i`` comes to."""
    return process.places[i] if process.places else None


def with_place(process: Process, i: int, place: int | None) -> Process:
    """The process with another place that its next READ of log ``i`` comes to."""
    places = [*(process.places or (None, None))]
    places[i] = place
    return process._replace(places=() if places == [None, None] else tuple(places))


def decided(world: World, owner: int) -> World:
    """The owner's open transaction is committed: not visible yet, but for good."""
    plane = world.plane
    written: list[Event] = []
    for i, log in enumerate(world.logs):
        tail = list(log.tail)
        for k, entry in enumerate(tail):
            if entry.owner == owner and entry.status == OPEN:
                tail[k] = entry._replace(status=PREPARED)
                written += entry.events
                for event in entry.events:
                    plane = judged(world.control, plane, owner, event)
        world = with_log(world, i, log._replace(tail=tuple(tail)))
    if len(written) < len(world.processes[owner].pending):
        plane = plane._replace(wrong=plane.wrong | {TORN})
    return world._replace(plane=plane)


def marked(world: World, i: int, k: int) -> World:
    """Entry ``k`` of log ``i`` is visible."""
    tail = world.logs[i].tail
    return with_log(world, i, world.logs[i]._replace(tail=(*tail[:k], tail[k]._replace(status=DONE), *tail[k + 1 :])))


def known(world: World, owner: int) -> World:
    """The owner does not ask any more what became of its last transaction."""
    for i, log in enumerate(world.logs):
        if owner in log.landed or any(entry.owner == owner and entry.is_last for entry in log.tail):
            tail = tuple(e._replace(is_last=False) if e.owner == owner else e for e in log.tail)
            world = with_log(world, i, log._replace(landed=log.landed - {owner}, tail=tail))
    return world


# --- reading ---------------------------------------------------------------------------------------------------------


def folded(log: Log, high: int) -> Log:
    """The log with its first ``high`` entries in its visible beginning. They are all DONE."""
    edges, released, landed = list(log.edges), set(log.released), set(log.landed)
    for entry in log.tail[:high]:
        assert entry.status == DONE
        for event in entry.events:
            if isinstance(event, Tile):
                edges[event.point] = max(edges[event.point], event.offset + 1)
            elif isinstance(event, Released):
                released.add(event)
        if entry.is_last:
            landed.add(entry.owner)
    return Log(tuple(edges), frozenset(released), frozenset(landed), log.tail[high:])


def stable(log: Log) -> int:
    """The last stable offset: how many entries lie before the first that is not DONE."""
    return next((k for k, entry in enumerate(log.tail) if entry.status != DONE), len(log.tail))


def tidied(design: Design, world: World) -> World:
    """The same world with less in it: what is visible to all goes into the fold, and what nobody asks for goes."""
    for i, log in enumerate(world.logs):
        if not log.tail or any(reads_old_ends(design, process, i) for process in world.processes):
            continue
        reading = [place for p in world.processes if (place := place_in(p, i)) is not None]
        count = min([stable(log), *reading])
        if count:
            world = with_log(world, i, folded(log, count))
            for me, process in enumerate(world.processes):
                if (place := place_in(process, i)) is not None:
                    world = with_process(world, me, with_place(process, i, place - count))
    for me, process in enumerate(world.processes):
        if process.todo and (todo := _that_matters(world.control, process)) != process.todo:
            world = with_process(world, me, process._replace(todo=todo, places=()))
    return trimmed(design, world)


def reads_old_ends(design: Design, process: Process, i: int) -> bool:
    """Whether the process will read log ``i`` to an end that it is told."""
    is_bound = place_in(process, i) is not None
    programs = (process.todo if not is_bound else (), design.recover if process.budget.inits else ())
    return not design.by_own_offset and any(_reads(program, i, design.log_of) for program in programs)


@cache
def _reads(program: tuple[str, ...], i: int, log_of: tuple[int, ...]) -> bool:
    """Whether a READ of log ``i`` comes before every step that says where to."""
    for step in program:
        name, _, about = step.partition(" ")
        match name:
            case "read" if about == str(i):
                return True
            case "end" if about == str(i):
                return False
            case "until_released" if any(log_of[POINTS.index(letter)] == i for letter in about):
                return False
    return False


@cache
def _looks(program: tuple[str, ...]) -> bool:
    """Whether a READ of the control log comes before the next own append there."""
    first = (step.partition(" ")[0] for step in program)
    return next((name == "look" for name in first if name == "look" or name in CONTROL_APPENDS), False)


CONTROL_APPENDS = frozenset({"declare", "elect", "expel", "fenced", "grant"})


def trimmed(design: Design, world: World) -> World:
    """The world without the folds that nobody can be told any more."""
    places: dict[int, int] = {}
    for me, p in enumerate(world.processes):
        if p.todo and (_looks(p.todo) or (p.budget.inits and _looks(design.recover))):
            places[me] = p.at
    count = min(places.values(), default=len(world.folds) - 1)
    for me, p in enumerate(world.processes):
        at = places.get(me, count) - count
        if at != p.at:
            world = with_process(world, me, p._replace(at=at))
    return world._replace(folds=world.folds[count:]) if count else world


def _that_matters(control: Control, process: Process) -> tuple[str, ...]:
    """What a process has to do, without what nobody will ever notice."""
    is_spent = not process.has_producer and not process.budget.inits
    if is_spent and process.todo[0] in ("work", "send", "send 1", "commit"):
        return ()  # it will be refused, and stop
    if 0 < process.term < control.term:
        return tuple(step for step in process.todo if step.startswith("fence "))  # what it appends does not count
    return process.todo
