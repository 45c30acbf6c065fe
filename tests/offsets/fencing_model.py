"""The world of a small model of brokers, members and coordinators; fencing_steps.py searches every interleaving.

One key range of one partition; range_model.py has several, which split, merge and move. The world is a value: the
control log as its readers fold it, the offset log, and the processes. A process is a list of steps that are still to
do. Any process may be paused before any step for any time, so a crash needs no step of its own: a crash is a pause
that never ends.

What the broker does (read in Kafka's source and tried on a real cluster):

- an append that is acknowledged went to the true log, and is visible at once when it is plain;
- a READ may be answered by a leader that was deposed, with any earlier end. Only one bound holds: the READ does not end
  below the place the reader waits for, which is the offset of an own append that was acknowledged;
- a transaction is OPEN from its append on, PREPARED once its commit is decided, and visible (DONE) when its marker is
  written some time later; INIT and FENCE abort an open transaction of the id and wait for the marker of a prepared one;
  the broker's time-out aborts an open transaction and fences its producer;
- whoever holds an older producer than the newest of its id is refused;
- committed records are read up to a place as soon as all transactions below it are decided and marked;
- the node that coordinates transactions may be deposed (``Design.deposes``). It acknowledges nothing more, but answers
  EndTxn(commit) from its cache when the last transaction that it knows of this producer was committed;
- a batch may land after its sender gave up (``Design.late_batches``). ``Late`` says where it is refused;
- an own append is a plain record, in no transaction. It ends nothing that is undecided.

What can make no difference any more is left out of the world, so that worlds which behave alike are one: aborted
transactions, events that do not count, and what a process knows but will not use again. So an own append leaves nothing
but the place that its writer's READ has to come to. The real coordinator reads its EXPELLED and its FENCED back before
it goes on. Here most coordinators do not, because they need not (``fencing_programs.READS_BACK``).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

OPEN, PREPARED, DONE = "open", "prepared", "done"
HANGING = "hanging"
"""a late batch in the log outside any transaction that the coordinator of transactions knows"""

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


class Late(NamedTuple):
    """A batch that is still on its way. The leader of the partition refuses it once it knows a newer epoch of the id.

    A newer epoch gets there by the marker of an abort that INIT or the time limit began, or by a newer producer's
    append. The marker of EndTxn(abort) has the old epoch below version 2 of transactions.
    """

    entry: Entry
    in_transaction: bool = True
    """whether the transaction that the batch belongs to is still open"""


class Process(NamedTuple):
    """What a process knows, and the steps it has still to do. A process that has nothing to do knows nothing."""

    todo: tuple[str, ...] = ()
    term: int = 0
    """the term it was elected for; 0: it is no coordinator"""
    seen: Fold = Fold()
    """the control log as it read it last"""
    at: int = 0
    """its next READ of the control log comes to this fold at least"""
    high: int = 0
    """its next READ of the offset log comes to this place at least"""
    edge: int = 0
    """all below is committed, as far as it knows"""
    epoch: int = 0
    """the epoch it works under; 0: none yet"""
    has_producer: bool = False
    """whether the newest producer of its id is its own"""
    inits: int = 0
    """how many more times it may make a new producer"""
    has_committed: bool = False
    """whether its producer committed a transaction"""
    in_cache: bool = False
    """whether the deposed coordinator of transactions takes the last transaction of its producer for committed"""


class World(NamedTuple):
    """All there is at one instant."""

    folds: tuple[Fold, ...]
    """the control log after each event that counts; those that nobody can be told any more are left out"""
    log: tuple[Entry, ...]
    processes: tuple[Process, ...]
    late: Late | None = None
    is_deposed: bool = False
    """whether the node that coordinated transactions at the start was deposed"""

    @property
    def control(self) -> Fold:
        """The whole control log."""
        return self.folds[-1]


@dataclass(frozen=True)
class Design:
    """The rules of one run of the model: names, orders and bounds. The defaults are the chosen rules."""

    names: str
    start: World
    grantee: tuple[int, ...] = ()
    """whom process i grants the range to; itself when empty"""
    per_victim: tuple[str, ...] = ("expel", "fence", "fenced")
    """the steps for each member that must go"""
    recover: tuple[str, ...] = ("init", "declare", "look", "end", "read", "check", "append")
    """what a member does after a failure of its producer that leaves the outcome of a transaction unknown"""
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
    by_own_offset: bool = False
    """whether a member reads to behind the offset at which its Produce was acknowledged, in place of an own append"""
    deposes: bool = False
    """whether the node that coordinates transactions is deposed at some time"""
    one_node: bool = True
    """whether a producer speaks to no other node than the one that answered its INIT"""
    late_batches: bool = False
    """whether a batch may land after its sender gave up"""
    verifies: bool = True
    """whether brokers refuse a batch outside an open transaction (from Kafka 3.6 on)"""
    version: int = 1
    """of transactions: with 2 each EndTxn raises the epoch, so that its marker and its answer tell repeats apart"""
    in_order: bool = False
    """whether process i starts after process i - 1 only: nothing is lost by that when all start alike"""


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


def has_entry(world: World, owner: int, status: str) -> bool:
    """Whether the log holds an entry of that status of the owner's."""
    return any(entry.owner == owner and entry.status == status for entry in world.log)


def has_open(world: World, owner: int) -> bool:
    """Whether the owner has a transaction that the coordinator of transactions knows as open."""
    late = world.late
    return has_entry(world, owner, OPEN) or (late is not None and late.in_transaction and late.entry.owner == owner)


def aborted(world: World, owner: int) -> World:
    """The marker of an abort is written: the owner has nothing undecided in the log. Readers' places move along."""
    gone = [i for i, entry in enumerate(world.log) if entry.owner == owner and entry.status in (OPEN, HANGING)]
    if not gone:
        return world
    log = tuple(entry for i, entry in enumerate(world.log) if i not in gone)
    processes = tuple(p._replace(high=p.high - sum(i < p.high for i in gone)) for p in world.processes)
    return world._replace(log=log, processes=processes)


def fenced(world: World, owner: int) -> World:
    """The owner's producer is not the newest any more and its open transaction is aborted, under a newer epoch."""
    if has_open(world, owner):
        world = reached(aborted(world, owner), owner)
    process = world.processes[owner]._replace(has_producer=False)
    return world._replace(processes=(*world.processes[:owner], process, *world.processes[owner + 1 :]))


def decided(world: World, owner: int) -> World:
    """All that the owner has in the log undecided is committed: not visible yet, but for good."""
    log = tuple(
        entry._replace(status=PREPARED) if entry.owner == owner and entry.status in (OPEN, HANGING) else entry
        for entry in world.log
    )
    return world._replace(log=log)


def marked(world: World, i: int) -> World:
    """Entry ``i`` is visible."""
    return world._replace(log=(*world.log[:i], world.log[i]._replace(status=DONE), *world.log[i + 1 :]))


def appended(world: World, entry: Entry) -> World:
    """The offset log one entry longer."""
    return reached(world._replace(log=(*world.log, entry)), entry.owner)


def reached(world: World, owner: int) -> World:
    """The leader of the partition knows the owner's newest epoch: it refuses a late batch."""
    return world._replace(late=None) if world.late is not None and world.late.entry.owner == owner else world


def deposed(design: Design, world: World) -> World:
    """Another node coordinates transactions from now on, and the one of before still answers.

    With the rule of one node the producers of before are spent: they get no answer that counts any more.
    """
    processes: list[Process] = []
    for me, process in enumerate(world.processes):
        if design.one_node:
            process = process._replace(has_producer=False)
        else:
            is_idle = not has_open(world, me) and not has_entry(world, me, PREPARED)
            process = process._replace(in_cache=process.has_committed and is_idle and design.version < 2)
        processes.append(process._replace(has_committed=False))
    return world._replace(processes=tuple(processes), is_deposed=True)


def landed(design: Design, world: World, late: Late) -> tuple[str, World]:
    """The late batch comes to the leader of its partition, which does not know of a newer producer of the id."""
    world = world._replace(late=None)
    if late.in_transaction:
        return "", world._replace(log=(*world.log, late.entry))
    if design.verifies:
        return ", refused", world
    return ", hanging", world._replace(log=(*world.log, late.entry._replace(status=HANGING)))


# --- the judge -------------------------------------------------------------------------------------------------------


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
