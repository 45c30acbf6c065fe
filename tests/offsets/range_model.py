"""The world of a second small model: key ranges of members that split, merge and release them, in one or two logs.

fencing_model.py has one range, whose owner changes as a whole. Here the key space is two points or three, ``a``, ``b``
and ``c``: the least number with a border inside. A worker owns a run of them. range_broker.py says what brokers do,
range_steps.py what processes do.

What is modelled, as runtime/partition's wishes.py and cut.py, commit.py and coordinator.py do it:

- a generation is taken at once: worker edges move, splits, merges and releases change the workers, and all of it is the
  member's *pending* transaction, whose tiles come before its changes of structure. Nothing else is taken until its
  outcome is known; after a failure the same is sent again, or known to be committed;
- a transaction with points of two log partitions is appended to one after the other; once it is decided a marker is
  written to each, at any time, so that its events become visible in one log before the other. INIT and FENCE wait for
  the last of the markers;
- a released range is granted at a later epoch, from the edge that was read; a process takes up its grants when it has
  read of them;
- a READ comes to the place that its reader waits for: an own append, a RELEASED. Without such a place a broker
  that was deposed may tell any earlier end. A member that takes up its grants is told the true end here;
  fencing_model.py has members that are not.

What is not: the hold before a merge and before a release (it makes ranges level, or quiet; here members may commit in
any pattern, so they are level and quiet at times, and only what is level may merge); WORKERS_CUT and worker numbers
(they name workers; nothing depends on the name); state, outputs; generations sent in halves.

``Plane`` is the judge: it holds what was decided, visible or not, and says what is wrong at the instant when that can't
be undone any more. Processes never see it; they read logs.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

OPEN, PREPARED, DONE = "open", "prepared", "done"
POINTS = "abc"

DOUBLE = "two committed tiles over the same point and offset"
GAP = "a committed tile with nothing committed before it"
OUTSIDE = "a committed tile at or beyond the start of a later grant, or of a range that was released"
SHARED_EPOCH = "a tile at an epoch that was granted to another or to nobody"
TILING = "a split or merge of workers that are not there, not level or not of one grant"
TORN = "a transaction of which only a part was committed"
APART = "a member works on other ranges, or from other edges, than the log says"
ANYTHING = (DOUBLE, GAP, OUTSIDE, SHARED_EPOCH, TILING, TORN, APART)


class Grant(NamedTuple):
    """Points belong to ``member`` at ``epoch``, each from its own offset on; None: this point is not granted."""

    member: int
    epoch: int
    edges: tuple[int | None, ...]


class Control(NamedTuple):
    """What the control log says to whoever has read it."""

    term: int = 0
    holder: int = -1
    expelled: frozenset[int] = frozenset()
    fenced: frozenset[int] = frozenset()
    grants: tuple[Grant, ...] = ()

    def owner(self, point: int) -> Grant | None:
        """The newest grant over a point."""
        return next((grant for grant in reversed(self.grants) if grant.edges[point] is not None), None)


class Tile(NamedTuple):
    """The tile ``[offset, offset + 1)`` of one point: a worker's commit is one for each of its points."""

    point: int
    epoch: int
    offset: int


class Released(NamedTuple):
    """The owner of an epoch gave up a point."""

    point: int
    epoch: int


class Split(NamedTuple):
    """A worker became two, the second beginning at a point."""

    point: int
    epoch: int


class Merged(NamedTuple):
    """Two neighbours became one; the second began at a point."""

    point: int
    epoch: int


Event: TypeAlias = Tile | Released | Split | Merged


class Entry(NamedTuple):
    """What one transaction wrote to one partition of the offset log."""

    owner: int
    status: str
    events: tuple[Event, ...]
    is_last: bool = True
    """whether it is its owner's last transaction, of which the owner does not know yet that it was committed"""


class Log(NamedTuple):
    """A partition of the offset log: the fold of its visible beginning, and the transactions behind that."""

    edges: tuple[int, ...]
    released: frozenset[Released] = frozenset()
    landed: frozenset[int] = frozenset()
    """owners whose last transaction, as in ``Entry.is_last``, lies in the beginning"""
    tail: tuple[Entry, ...] = ()


class Worker(NamedTuple):
    """The points ``[first, end)``, done up to ``edge``, under a grant."""

    first: int
    end: int
    edge: int
    epoch: int


class Budget(NamedTuple):
    """How often a member may still do something: what bounds the search."""

    splits: int = 0
    merges: int = 0
    releases: int = 0
    inits: int = 0


class Process(NamedTuple):
    """What a process knows, and the steps it has still to do. One that has nothing to do knows nothing."""

    todo: tuple[str, ...] = ()
    term: int = 0
    """the term it was elected for"""
    seen: Control = Control()
    """the control log as it read it last"""
    at: int = 0
    """its next READ of the control log comes to this fold at least"""
    places: tuple[int | None, ...] = ()
    """by log: where its next READ comes to; None, or nothing: to whatever end it is told"""
    edges: tuple[int, ...] = ()
    """the edges that it read"""
    is_found: bool = False
    """whether it read its own last transaction"""
    workers: tuple[Worker, ...] = ()
    pending: tuple[Event, ...] = ()
    """its transaction that is not known to be committed"""
    epoch: int = 0
    """the highest epoch that it took up"""
    has_producer: bool = False
    """whether the newest producer of its id is its own"""
    is_late: bool = False
    """whether a request of its present producer to commit is still on its way"""
    budget: Budget = Budget()


class Plane(NamedTuple):
    """All that is decided: by point the edge, the borders between the workers of an epoch, and what was released."""

    edges: tuple[int, ...]
    borders: frozenset[tuple[int, int]] = frozenset()
    """(epoch, the point behind the border)"""
    released: frozenset[Released] = frozenset()
    wrong: frozenset[str] = frozenset()


class World(NamedTuple):
    """All there is at one instant."""

    folds: tuple[Control, ...]
    """the control log after each event that counts; those that nobody can be told any more are left out"""
    plane: Plane
    logs: tuple[Log, ...]
    processes: tuple[Process, ...]

    @property
    def control(self) -> Control:
        """The whole control log."""
        return self.folds[-1]


@dataclass(frozen=True)
class Design:
    """The rules of one run of the model: names, orders and bounds. The defaults are the chosen rules."""

    names: str
    start: World
    log_of: tuple[int, ...] = (0, 0)
    """the log partition of each point; only points of one log are neighbours"""
    leaves: str = "b"
    """the points that are released together"""
    edge_max: int = 1
    """the work there is"""
    recover: tuple[str, ...] = ("init", "declare", "look", "end 0", "read 0", "check")
    """what a member does after any failure of its producer"""
    by_own_offset: bool = False
    """whether a member reads to behind the offsets at which its Produces were acknowledged, not to own appends"""
    when_tired: tuple[str, ...] = ()
    """what a coordinator does when a release takes too long; nothing: it waits"""
    merges_level: bool = True
    """whether only level neighbours merge"""
    merges_one_grant: bool = True
    """whether only neighbours of one grant merge"""
    unknown_is_done: bool = False
    """whether a member takes a transaction of unknown outcome for committed"""
    has_late_commits: bool = False
    """whether a request to commit that its sender gave up may still arrive"""


def named(first: int, end: int) -> str:
    """A range, for people."""
    return POINTS[first:end]


def points_of(text: str) -> list[int]:
    """The points of a range as people write it."""
    return [POINTS.index(letter) for letter in text]


# --- the judge -------------------------------------------------------------------------------------------------------


def judged(control: Control, plane: Plane, owner: int, event: Event) -> Plane:
    """The plane with one more event of a transaction that was decided just now."""
    wrong: set[str] = set()
    if not any(
        g.epoch == event.epoch and g.member == owner and g.edges[event.point] is not None for g in control.grants
    ):
        wrong.add(SHARED_EPOCH)
    match event:
        case Tile(point, epoch, offset):
            edge = plane.edges[point]
            if offset != edge:
                wrong.add(DOUBLE if offset < edge else GAP)
            starts = (g.edges[point] for g in control.grants if g.epoch > epoch)
            if Released(point, epoch) in plane.released or any(at is not None and offset >= at for at in starts):
                wrong.add(OUTSIDE)
            edges = (*plane.edges[:point], max(edge, offset + 1), *plane.edges[point + 1 :])
            plane = plane._replace(edges=edges)
        case Released(point, epoch):
            plane = plane._replace(released=plane.released | {event})
        case Split(point, epoch) | Merged(point, epoch):
            border = frozenset({(epoch, point)})
            if (border <= plane.borders) is not isinstance(event, Merged):
                wrong.add(TILING)
            if isinstance(event, Merged) and plane.edges[point - 1] != plane.edges[point]:
                wrong.add(TILING)
            plane = plane._replace(borders=plane.borders ^ border)
    return plane._replace(wrong=plane.wrong | wrong)


def regranted(log_of: tuple[int, ...], control: Control, plane: Plane, grant: Grant) -> Plane:
    """The plane under a new grant; wrong when something was committed beyond its start, or its epoch is not new."""
    granted = {point for point, edge in enumerate(grant.edges) if edge is not None}
    wrong = {OUTSIDE for point in granted if plane.edges[point] > (grant.edges[point] or 0)}
    wrong |= {SHARED_EPOCH for older in control.grants if older.epoch == grant.epoch}
    released = frozenset(r for r in plane.released if r.point not in granted)
    borders = {(epoch, at) for epoch, at in plane.borders if not {at - 1, at} & granted}
    borders |= {(grant.epoch, worker.first) for worker in cut(log_of, grant)[1:]}
    return plane._replace(borders=frozenset(borders), released=released, wrong=plane.wrong | wrong)


def cut(log_of: tuple[int, ...], grant: Grant) -> list[Worker]:
    """The workers that a grant begins with: neighbours with one edge are one."""
    workers: list[Worker] = []
    for point, edge in enumerate(grant.edges):
        if edge is None:
            continue
        last = workers[-1] if workers else None
        if last and (last.end, last.edge) == (point, edge) and log_of[point - 1] == log_of[point]:
            workers[-1] = last._replace(end=point + 1)
        else:
            workers.append(Worker(point, point + 1, edge, grant.epoch))
    return workers


def is_apart(world: World, process: Process) -> bool:
    """Whether a member with nothing unknown works on something else than what was decided. Lost ranges don't count."""
    workers = [w for w in process.workers if world.control.owner(w.first) == _grant_of(world.control, w)]
    edges, borders = world.plane.edges, world.plane.borders
    inside = [(w.epoch, at) for w in workers for at in range(w.first + 1, w.end)]
    between = [(b.epoch, b.first) for a, b in pairwise(workers) if (a.end, a.epoch) == (b.first, b.epoch)]
    return (
        any(edges[point] != w.edge for w in workers for point in range(w.first, w.end))
        or any(Released(point, w.epoch) in world.plane.released for w in workers for point in range(w.first, w.end))
        or not borders.isdisjoint(inside)
        or not borders.issuperset(between)
    )


def _grant_of(control: Control, worker: Worker) -> Grant | None:
    return next((g for g in control.grants if g.epoch == worker.epoch and g.edges[worker.first] is not None), None)
