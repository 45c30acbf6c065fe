"""A group in small, as a value: what the broker holds, and what each process knows.

Points that move are source partitions, or parts of one: all of one topic, in one partition of the offset log. What is
decided is decided by the production (see model_coordinator.py, model_member.py); the folds of the logs are the
production's, too. Here is what it can't know: the brokers, which append late, double, mark and abort; and what was
committed, visible or not. What is wrong is told in model_judge.py.

The logs are ``Line``s: equal ones are one object, so whatever is worked out of one is worked out once. The offset log
is a line of what all can read, and behind it the transactions of which at least the first is undecided. A position in
it counts events that are committed or may still be: those of an aborted transaction are taken out of it.

**No end that is told is trusted.** A leader that was deposed and still answers tells an old end. A reader with a proof
(the position behind an own append that was acknowledged) reads up to that position, and at worst no further. A reader
without a proof may read up to any position behind its own. An own append to the offset log stands there for good, and
counts nowhere. The one to the control log behind an INIT is in no log here, only its position counts.

What is not modelled: clocks (the environment says who is silent), several partitions of the offset log and workers that
split (see ../offsets/range_model.py), coordinators of transactions that were deposed (see ../offsets/fencing_model.py),
state and its changelog.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from keylanes.keyrange.ranges import KeyRange, even_bounds
from keylanes.offsets import control, ledger
from keylanes.offsets.control_events import ControlEvent, RangesGranted, ReleaseWithdrawn
from keylanes.offsets.decide import decide_opening
from keylanes.offsets.event_values import Edge, Tile
from keylanes.offsets.events import Committed, Event, OffsetEvent, RangesReleased, SnapshotTaken
from keylanes.offsets.ledger import Ledger, SourcePartition
from keylanes.offsets.snapshots import newest_snapshot, restore_snapshot

APP = "app"
TOPIC = "orders"
OPEN, PREPARED, DONE = "open", "prepared", "done"

DOUBLE = "two committed tiles over the same offset"
GAP = "a committed tile with nothing committed before it"
EPOCH = "a transaction at an epoch that was granted to another or to nobody"
OUTSIDE = "a committed tile at or beyond the start of a later grant, or behind a release"
BLIND = "a decision counts that was made without one that counts before it"
REVIVED = "who was expelled is so no more"
NAMESAKES = "two of one name, of whom neither is fenced"
OUTAGE = "who beat all along was expelled by an outage of the signals"
KNOWN = "a release is begun that was withdrawn, as its owner had read"
ANYTHING = (DOUBLE, GAP, EPOCH, OUTSIDE, BLIND, REVIVED, NAMESAKES, OUTAGE, KNOWN)
NOWHERE = -1
"""No position in a log."""
STUCK = "nothing can happen any more, and not all is as it should be"
NO_END = "no rest, long after all faults ended"


class Line:
    """A log; ``then`` makes a longer one. Two that hold the same are one object."""

    __slots__ = ("_next", "before", "event", "length")

    def __init__(self, before: "Line | None" = None, event: Event | None = None) -> None:
        self.before, self.event = before, event
        self.length: int = 0 if before is None else before.length + 1
        self._next: dict[Event, Line] = {}

    def then(self, *events: Event) -> "Line":
        """The same and more."""
        line = self
        for event in events:
            longer = line._next.get(event)
            if longer is None:
                longer = line._next[event] = Line(line, event)
            line = longer
        return line

    def back_to(self, start: "Line") -> Iterator["Line"]:
        """From here back to one that it goes on from, without that one."""
        line: Line | None = self
        while line is not start:
            assert line is not None, "it does not go on from there"
            yield line
            line = line.before

    def upto(self, length: int) -> "Line":
        """Its prefix of a length; itself, where it is not longer."""
        line = self
        while line.length > length:
            assert line.before is not None
            line = line.before
        return line

    def prefixes(self, own: "Line", end: int) -> Iterator["Line"]:
        """The prefixes that a reader may find. It stands at ``own`` and has a proof of all below ``end``. Longest
        first.
        """
        line, least = self, max(own.length, end)
        while line.length > least:
            assert line.before is not None
            yield line
            line = line.before
        yield line


class Advance(NamedTuple):
    """One record of a point, at ``offset``."""

    point: int
    epoch: int
    offset: int


class GiveUp(NamedTuple):
    """A point is released, at an edge, for a move."""

    point: int
    epoch: int
    edge: int
    move: int


class Snap(NamedTuple):
    """The fold of the offset log as somebody knows it."""

    parts: tuple[SnapshotTaken, ...]


Change: TypeAlias = Advance | GiveUp | Snap


PLAIN = 0
"""The number of an own append, which is in no transaction."""


class Entry(NamedTuple):
    """A transaction that not everybody can read yet; or an own append behind one, DONE and without changes."""

    owner: int
    number: int
    status: str
    changes: tuple[Change, ...]

    @property
    def size(self) -> int:
        """The number of its events."""
        if self.number == PLAIN:
            return 1
        return sum(len(one.parts) if isinstance(one, Snap) else 1 for one in self.changes)


class Held(NamedTuple):
    """A point that a member works on: all below ``edge`` is done, as far as it knows."""

    epoch: int
    edge: int


class MemberProcess(NamedTuple):
    """A process with handlers. ``life``: how often it was started, or came back; each is another birth."""

    control: Line
    """as far as it has read"""
    instance: str = ""
    is_alive: bool = True
    has_ended: bool = False
    """for good: it was refused, another one has its place, or it left"""
    leaves: bool = False
    life: int = 1
    incarnation: int = 0
    """0: it has not joined, as far as it knows"""
    held: tuple[Held | None, ...] = ()
    taken: frozenset[tuple[int, int]] = frozenset()
    """(point, epoch) that it took up, of those that it owns as far as it has read: a grant may be read in pieces"""
    producer: str = "none"
    """none; look: the control log is to be read; append, wait: the offset log, to behind an own append; ready"""
    is_newest: bool = False
    """whether no other producer of its id was made since"""
    end: int = NOWHERE
    """the position behind its own append: all that it has committed lies below"""
    pending: tuple[Change, ...] = ()
    is_sent: bool = False
    """whether ``pending`` was begun, and is not known to be aborted"""
    transactions: int = 0


class CoordinatorProcess(NamedTuple):
    """A process that may be elected. What it read is a prefix of both logs."""

    control: Line
    offsets: Line
    is_alive: bool = True
    term: int = 0
    """that it stood for last"""
    is_out: bool = False
    """whether it has written what it has not read back"""
    unknown: "tuple[Line, tuple[ControlEvent, ...]] | None" = None
    """that, with what it had read then, if it was not acknowledged"""
    own_end: int = NOWHERE
    """the position behind its last append, until it has read so far"""
    fenced: frozenset[int] = frozenset()
    """the incarnations that it has fenced in this term"""
    read: frozenset[tuple[SourcePartition, int]] = frozenset()
    reading: tuple[tuple[SourcePartition, int], ...] = ()
    end: int = NOWHERE
    """the position behind its own append, up to which it reads the offset log for ``reading``"""


class Budget(NamedTuple):
    """How often something may still go wrong, or be wanted."""

    expel: int = 0
    """somebody is believed silent who is not"""
    crash: int = 0
    late: int = 0
    """an append is under way for long; or comes, and comes once more"""
    elect: int = 0
    """a coordinator is believed silent that is not"""
    move: int = 0
    fail: int = 0
    """an answer is lost, a request is lost, a transaction times out"""
    tired: int = 0
    """a release or a leave takes too long"""
    leave: int = 0
    deaf: int = 0
    """that somebody leaves was not heard yet"""
    twin: int = 0
    echo: int = 0
    """a request to join is heard once more, of a life that is over"""
    outage: int = 0
    """the signals can't be appended to for a while"""
    stale: int = 0
    """a reader without a proof is told an old end"""
    stranger: int = 0
    """somebody who is not the group fences a member"""


class World(NamedTuple):
    """All there is at one instant. ``late``: appends that are under way, with what their writers had read."""

    control: Line
    late: tuple[tuple[Line, tuple[ControlEvent, ...]], ...]
    offsets: Line
    tail: tuple[Entry, ...]
    members: tuple[MemberProcess, ...]
    coordinators: tuple[CoordinatorProcess, ...]
    edges: tuple[int, ...]
    """what is committed, visible or not"""
    released: frozenset[tuple[int, int]]
    budget: Budget
    wrong: str = ""
    parts: int = 1
    """so many points make up a source partition"""


def place_of(point: int, parts: int) -> SourcePartition:
    """The source partition that a point is, or is a part of."""
    return TOPIC, point // parts


def range_of(point: int, parts: int) -> KeyRange:
    """What it is of its partition."""
    bounds = even_bounds(parts)
    return KeyRange(bounds[point % parts], bounds[point % parts + 1])


def within(event: RangesGranted, parts: int) -> Iterator[tuple[int, int]]:
    """The points that are granted, and from which offset on."""
    for point in range(event.partition * parts, (event.partition + 1) * parts):
        first = range_of(point, parts).first
        for band in event.bands:
            if band.first <= first < band.end:
                yield point, band.offset_from


class Folds:
    """What the production makes of lines, worked out once. ``wanted``: what the judge looks for."""

    def __init__(self, wanted: tuple[str, ...] = ANYTHING, parts: int = 1) -> None:
        self.root, self.wanted, self.parts = Line(), wanted, parts
        self._ledgers: dict[tuple[Line, Line], Ledger] = {(self.root, self.root): Ledger(opened={0})}
        self._begun: dict[tuple[Line, Line], Ledger] = {}
        self._granted: dict[Line, frozenset[tuple[int, int, int]]] = {self.root: frozenset()}
        self._withdrawn: dict[Line, frozenset[int]] = {self.root: frozenset()}

    def ledger(self, line: Line, offsets: Line) -> Ledger:
        """Of what somebody has read."""
        found = self._ledgers.get((line, offsets))
        if found is None:
            shorter, last = self._shorter(line, offsets)
            found = ledger.evolve(self.ledger(*shorter).copy(), last)
            self._ledgers[line, offsets] = found
        return found

    def _shorter(self, line: Line, offsets: Line) -> tuple[tuple[Line, Line], Event]:
        one = line if offsets.before is None else offsets
        assert one.before is not None
        assert one.event is not None
        return ((one.before, offsets) if one is line else (line, one.before)), one.event

    def begun(self, line: Line, offsets: Line) -> Ledger:
        """The same as somebody finds it who begins to read now: from the newest snapshot on."""
        found = self._begun.get((line, offsets))
        if found is None:
            found = self._begun[line, offsets] = self._from_snapshot(line, offsets)
        return found

    def _from_snapshot(self, line: Line, offsets: Line) -> Ledger:
        events = [one.event for one in offsets.back_to(self.root)][::-1]
        parts = newest_snapshot(event for event in events if isinstance(event, SnapshotTaken))
        if parts is None:
            return self.ledger(line, offsets)
        found = Ledger(self.control(line).copy(), restore_snapshot(parts), {0})
        for one in [*line.back_to(self.root)][::-1]:
            if isinstance(one.event, RangesGranted) and self.counts(one):
                ledger.fold_grant(found, one.event)
        return ledger.evolve_all(found, [event for event in events[parts[0].position :] if event is not None])

    def control(self, line: Line) -> control.Control:
        """Of the control log alone."""
        return self.ledger(line, self.root).control

    def counts(self, line: Line) -> bool:
        """Whether the last event of a control log counts."""
        assert line.before is not None
        assert line.event is not None
        return control.event_counts(self.control(line.before), line.event)  # type: ignore[arg-type]  # of the control log

    def granted(self, line: Line) -> frozenset[tuple[int, int, int]]:
        """All (point, epoch, incarnation) that were ever granted and count."""
        found = self._granted.get(line)
        if found is None:
            assert line.before is not None
            found, event = self.granted(line.before), line.event
            if isinstance(event, RangesGranted) and self.counts(line):
                new = (event.epoch, event.incarnation)
                found |= {(point, *new) for point, _ in within(event, self.parts) if self.owner(line, point) == new}
            self._granted[line] = found
        return found

    def withdrawn(self, line: Line) -> frozenset[int]:
        """The moves whose release was withdrawn: their numbers never come back."""
        found = self._withdrawn.get(line)
        if found is None:
            assert line.before is not None
            found = self.withdrawn(line.before)
            if isinstance(line.event, ReleaseWithdrawn) and self.counts(line):
                found |= {line.event.move}
            self._withdrawn[line] = found
        return found

    def owner(self, line: Line, point: int) -> tuple[int, int]:
        """(epoch, incarnation) of the newest grant; zeros: none."""
        owners = self.control(line).owners.get(place_of(point, self.parts))
        first = range_of(point, self.parts).first
        return (0, 0) if owners is None else tuple(owners.at(first) or (0, 0))  # type: ignore[return-value]  # two numbers


def written(entry: Entry, parts: int) -> list[OffsetEvent]:
    """The events of a transaction, progress first; or of an own append."""
    if entry.number == PLAIN:
        return [decide_opening(APP, 1, 0, entry.owner, PLAIN)]
    ranges = {one.point: range_of(one.point, parts) for one in entry.changes if not isinstance(one, Snap)}
    tiles = [change for change in entry.changes if isinstance(change, Advance)]
    events: list[OffsetEvent] = [
        Committed(
            *(entry.owner, entry.number, part, len(tiles), one.epoch, *place_of(one.point, parts)),
            tiles=(Tile(0, 1, ranges[one.point].first, ranges[one.point].end, one.offset, one.offset + 1),),
            outputs=0,
            dead_letters=0,
            digest=0,
        )
        for part, one in enumerate(tiles)
    ]
    for one in entry.changes:
        if isinstance(one, GiveUp):
            bands = (Edge(ranges[one.point].first, ranges[one.point].end, one.edge),)
            place = place_of(one.point, parts)
            events.append(RangesReleased(entry.owner, entry.number, one.epoch, *place, one.move, bands, ()))
        elif isinstance(one, Snap):
            events += one.parts
    return events


# --- the broker -------------------------------------------------------------------------------------------------------


def at(items: tuple, i: int, new: object) -> tuple:  # type: ignore[type-arg]  # of any kind
    """The same with another one at a place."""
    return (*items[:i], new, *items[i + 1 :])


def put_member(world: World, i: int, **changes: object) -> World:
    """The world with a changed member."""
    return world._replace(members=at(world.members, i, world.members[i]._replace(**changes)))  # type: ignore[arg-type]  # by name


def put_coordinator(world: World, i: int, **changes: object) -> World:
    """The world with a changed coordinator."""
    changed = world.coordinators[i]._replace(**changes)  # type: ignore[arg-type]  # by name
    return world._replace(coordinators=at(world.coordinators, i, changed))


def spent(world: World, name: str) -> World:
    """Once less."""
    left = getattr(world.budget, name) - 1
    assert left >= 0
    return world._replace(budget=world.budget._replace(**{name: left}))


def has_entry(world: World, owner: int, status: str) -> bool:
    """Whether a transaction of a member has that status."""
    return any(entry.owner == owner and entry.status == status for entry in world.tail)


def log_end(world: World) -> int:
    """The end of the offset log: the position behind what was appended just now."""
    return world.offsets.length + sum(entry.size for entry in world.tail)


def old_ends(own: Line, log: Line) -> Iterator[Line]:
    """Prefixes of a log that are longer than ``own`` and not all of the log."""
    return (line for line in log.prefixes(own, 0) if line not in (own, log))


def readable(world: World) -> Line:
    """What a reader of committed transactions finds."""
    return world.offsets


def abort(world: World, place: int) -> World:
    """Take a transaction out of the log: positions behind it become less."""
    size, tail = world.tail[place].size, world.tail[:place] + world.tail[place + 1 :]
    begins = log_end(world._replace(tail=world.tail[:place]))

    members = tuple(p if p.end <= begins else p._replace(end=p.end - size) for p in world.members)
    coordinators = tuple(p if p.end <= begins else p._replace(end=p.end - size) for p in world.coordinators)
    return world._replace(tail=tail, members=members, coordinators=coordinators)


def visible(world: World) -> World:
    """What is decided and marked, and has nothing undecided before it, can be read."""
    while world.tail and world.tail[0].status == DONE:
        offsets = world.offsets.then(*written(world.tail[0], world.parts))
        world = world._replace(offsets=offsets, tail=world.tail[1:])
    return world


def appended_plainly(world: World, incarnation: int) -> World:
    """The offset log with an own append of somebody, whom nobody can fence."""
    return visible(world._replace(tail=(*world.tail, Entry(incarnation, PLAIN, DONE, ()))))


def marked(world: World, place: int) -> World:
    """A marker is written."""
    return visible(world._replace(tail=at(world.tail, place, world.tail[place]._replace(status=DONE))))


def fenced(world: World, incarnation: int) -> World:
    """A producer of a member's id is made: what is open is aborted, and whoever has one has an old one."""
    places = [k for k, entry in enumerate(world.tail) if entry.owner == incarnation and entry.status == OPEN]
    for place in places:
        world = abort(world, place)
    members = tuple(
        p._replace(is_newest=False) if p.incarnation == incarnation and p.is_newest else p for p in world.members
    )
    return visible(world._replace(members=members))
