"""What a coordinator does in the model: the production's ``decide``, ``needs`` and ``stands`` on what it has read.

The environment chooses what it believes: who is silent, who asks, what is asked for, whether time is up. Each of these
that leads to another batch is another step. So does what it reads: any prefix, but where it has a proof.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from keylanes.group import coordinator as production
from keylanes.group.coordinator import Needs
from keylanes.group.election import Candidate, is_coordinator
from keylanes.group.view import CoordinatorMemory, DecisionBatch, Rules, SourceFound, View
from keylanes.keyrange.ranges import WHOLE
from keylanes.offsets.control_events import ControlEvent, CoordinatorElected, Decision, MemberExpelled
from keylanes.offsets.decide import Turn
from keylanes.offsets.ledger import SourcePartition
from keylanes.offsets.signals import MoveAsked

from .model_heard import (
    ALONE,
    AWAY,
    BEATS,
    BESIDE,
    FRESH,
    INTERVAL_MS,
    QUIET,
    SESSION_MS,
    Said,
    Voice,
    heard_of,
    is_to_stand,
)
from .model_judge import appended
from .model_member import Step, birth_of
from .model_world import (
    APP,
    NOWHERE,
    OUTAGE,
    PREPARED,
    TOPIC,
    CoordinatorProcess,
    Folds,
    Line,
    World,
    appended_plainly,
    at,
    fenced,
    has_entry,
    log_end,
    old_ends,
    put_coordinator,
    range_of,
    readable,
    spent,
)

RULES = Rules(SESSION_MS, INTERVAL_MS, 0, 0, 30_000, 5_000, measure_ms=0)
NOW_MS = 1_000_000
CRASHED: dict[str, object] = {"is_alive": False, "is_out": False, "unknown": None, "own_end": NOWHERE}


@dataclass(frozen=True)
class Belief:
    """What a coordinator believes when it decides. ``costs``: of the budget; ``tired``: a move whose time is over."""

    said: Said
    tired: int = 0
    costs: str = ""


@dataclass
class Office:
    """The production's answers, each worked out once."""

    folds: Folds
    batches: dict[object, DecisionBatch] = field(default_factory=dict)
    wanted: dict[object, Needs] = field(default_factory=dict)
    standing: dict[object, bool] = field(default_factory=dict)

    def view(self, k: int, seat: CoordinatorProcess, said: Said, tired: int = 0) -> View:
        """What it sees."""
        ledger = self.folds.begun(seat.control, seat.offsets)
        asked_ms = dict.fromkeys(ledger.control.moves.release_requests, NOW_MS)
        if tired:
            asked_ms[tired] = 0
        found = {TOPIC: SourceFound("id", len(ledger.control.started))}
        fenced, read = {*seat.fenced}, {*seat.read}
        known = CoordinatorMemory(
            APP, birth_of_coordinator(k), 0, fenced=fenced, read=read, sources=found, log_partitions=1
        )
        known.release_request_ms = asked_ms
        return View(ledger, heard_of(said), known, RULES, seat.control.length, NOW_MS)

    def batch(self, k: int, seat: CoordinatorProcess, belief: Belief) -> DecisionBatch:
        """What it decides."""
        key = (k, seat.control, seat.offsets, seat.term, seat.fenced, seat.read, belief.said, belief.tired)
        found = self.batches.get(key)
        if found is None:
            view = self.view(k, seat, belief.said, belief.tired)
            control = view.control
            turn = Turn(seat.term, control.number) if control.term == seat.term else Turn(seat.term)
            found = self.batches[key] = production.decide(view, turn)
        return found

    def needs(self, k: int, seat: CoordinatorProcess) -> Needs:
        """What is to be done outside of the logs."""
        key = (k, seat.control, seat.offsets, seat.fenced, seat.read)
        found = self.wanted.get(key)
        if found is None:
            view = self.view(k, seat, Said(voices(self.folds, seat.control)))
            found = self.wanted[key] = production.needs(view)
        return found

    def stands(self, k: int, seat: CoordinatorProcess, how: str) -> bool:
        """Whether it stands for the next term."""
        key = (k, seat.control, seat.term, how)
        if key not in self.standing:
            who = Candidate("", birth_of_coordinator(k))
            self.standing[key] = is_to_stand(self.folds.control(seat.control), who, seat.term, how)
        return self.standing[key]

    def decides(self, k: int, seat: CoordinatorProcess) -> bool:
        """Whether it coordinates, as far as it knows."""
        return is_coordinator(self.folds.control(seat.control), birth_of_coordinator(k), seat.term)


def birth_of_coordinator(k: int) -> str:
    """Of a process that may be elected."""
    return f"c{k}"


def voices(folds: Folds, line: Line) -> tuple[Voice, ...]:
    """The members that are in the control log."""
    found = sorted(folds.control(line).members.items())
    return tuple(Voice(i, m.joined.instance, m.birth) for i, m in found if not m.expelled)


def is_there(world: World, voice: Voice) -> bool:
    """Whether a member is at work."""
    process = world.members[process_of(voice)]
    return process.is_alive and voice.birth == birth_of(process_of(voice), process.life)


def asking(folds: Folds, world: World) -> tuple[Voice, ...]:
    """Processes that have not joined, as far as they know."""
    control = folds.control(world.control)
    return tuple(
        Voice(0, process.instance, birth)
        for i, process in enumerate(world.members)
        if process.is_alive and not process.incarnation and not process.has_ended
        for birth in (birth_of(i, process.life),)
        if control.member_of(birth) is None and birth not in control.refusals
    )


def truth(folds: Folds, world: World, k: int) -> Belief:
    """What it believes in quiet times."""
    seat = world.coordinators[k]
    there = voices(folds, seat.control)
    silent = frozenset(voice.incarnation for voice in there if not is_there(world, voice))
    asks = asking(folds, world)
    names = {voice.instance for voice in asks if voice.instance}
    has_namesake = any(voice.instance in names and is_there(world, voice) for voice in there)
    return Belief(Said(there, silent, asks, BESIDE if has_namesake else ALONE, _leaving(world, there)))


def beliefs(folds: Folds, world: World, k: int) -> Iterator[Belief]:
    """What else it may believe, while there are faults: one thing at a time."""
    seat, may = world.coordinators[k], world.budget
    there = voices(folds, seat.control)
    leaving = _leaving(world, there)
    said = Said(there, leaving=leaving)
    yield Belief(said)
    for voice in there:
        if may.expel and is_there(world, voice):
            yield Belief(said._replace(silent=frozenset({voice.incarnation})), costs="expel")
    for voice in asking(folds, world):
        yield Belief(said._replace(asks=(voice,), how=FRESH))
        same = [one for one in there if one.instance and one.instance == voice.instance]
        if may.expel and any(is_there(world, one) for one in same):
            yield Belief(said._replace(asks=(voice,), how=ALONE), costs="expel")
    for i, process in enumerate(world.members) if may.echo else ():
        for life in range(1, process.life):
            asks = (Voice(0, process.instance, birth_of(i, life)),)
            yield Belief(said._replace(asks=asks), costs="echo")
    for asked in _requests(len(world.edges), world.parts) if may.move else ():
        yield Belief(said._replace(moves=(asked,)), costs="move")
    for move in folds.control(seat.control).moves.release_requests if may.tired else ():
        yield Belief(said, tired=move, costs="tired")
    if leaving and may.tired:
        yield Belief(said._replace(leaves_long=True), costs="tired")
    if leaving and may.deaf:
        yield Belief(said._replace(leaving=()), costs="deaf")
    if may.outage:
        yield Belief(said._replace(has_outage=True), costs="outage")


def _requests(points: int, parts: int) -> Iterator[MoveAsked]:
    """Of each point, and of each partition that has several."""
    ranges = [(point // parts, range_of(point, parts)) for point in range(points)]
    ranges += [(partition, WHOLE) for partition in range(points // parts) if parts > 1]
    for partition, within in ranges:
        yield MoveAsked("r", "somebody", TOPIC, partition, within.first, within.end, 0, 0)


def _leaving(world: World, there: tuple[Voice, ...]) -> tuple[Voice, ...]:
    """Those who have said that they leave, and are still there."""
    return tuple(voice for voice in there if is_there(world, voice) and world.members[process_of(voice)].leaves)


def process_of(voice: Voice) -> int:
    """Which process it is of."""
    return int(voice.birth.removeprefix("m").partition(".")[0])


def new_seat(seat: CoordinatorProcess, term: int) -> CoordinatorProcess:
    """It stands for a term, or its own is over: what it knew beside the logs it does not know any more."""
    return seat._replace(term=term, fenced=frozenset(), read=frozenset(), reading=(), end=NOWHERE)


def has_read(folds: Folds, world: World, k: int, line: Line) -> World:
    """The control log, so much of it. It is out until it has read all that it wrote, or another one's term."""
    seat = world.coordinators[k]
    is_known = seat.unknown is None or _is_over(folds, line, *seat.unknown)
    is_out = not (is_known and is_read_back(seat, line))
    if folds.control(line).term > seat.term:
        world = world._replace(coordinators=at(world.coordinators, k, new_seat(seat, seat.term)))
    if is_out:
        return put_coordinator(world, k, control=line)
    return put_coordinator(world, k, control=line, is_out=False, unknown=None, own_end=NOWHERE)


def is_read_back(seat: CoordinatorProcess, line: Line) -> bool:
    """Whether the last own append that was acknowledged is read."""
    return line.length >= seat.own_end


def _is_over(folds: Folds, line: Line, basis: Line, events: tuple[ControlEvent, ...]) -> bool:
    """Whether an append is found behind what its writer had read, all of it, or can count no more."""
    is_found = any(one.event == events[-1] for one in line.back_to(basis))
    return is_found or folds.control(line).term > getattr(events[0], "term", 0)


def local(world: World, k: int) -> World | None:
    """A READ is through when nothing below the own append is undecided. At worst it finds nothing behind that."""
    seat, log = world.coordinators[k], readable(world)
    if not seat.reading or log.length < seat.end:
        return None
    offsets = log.upto(max(seat.offsets.length, seat.end))
    return put_coordinator(world, k, offsets=offsets, read=seat.read | {*seat.reading}, reading=(), end=NOWHERE)


def steps_of(office: Office, world: World, k: int, *, is_quiet: bool) -> Iterator[Step]:
    """All that may happen to a process that may be elected."""
    seat, me = world.coordinators[k], f"c{k}"
    if not seat.is_alive:
        return
    yield from _reads(office, world, k, is_quiet=is_quiet)
    if world.budget.crash and not is_quiet and sum(one.is_alive for one in world.coordinators) > 1:
        yield (
            f"{me} crashes",
            lambda: put_coordinator(spent(world, "crash"), k, **CRASHED),
        )
    if seat.unknown is not None:
        yield f"{me} sends again", lambda: _sent_again(office, world, k)
    if not office.decides(k, seat):
        yield from _standing(office, world, k, is_quiet=is_quiet)
        return
    yield from _needed(office, world, k)
    if not is_waiting(seat):
        yield from _decisions(office, world, k, is_quiet=is_quiet)


def _reads(office: Office, world: World, k: int, *, is_quiet: bool) -> Iterator[Step]:
    """What a coordinator reads without a proof: all that there is, or up to an old end."""
    seat, me = world.coordinators[k], f"c{k}"
    is_stale = world.budget.stale > 0 and not is_quiet
    if seat.control is not world.control or seat.is_out:
        yield f"{me} reads", lambda: has_read(office.folds, world, k, world.control)
    for line in old_ends(seat.control, world.control) if is_stale else ():
        yield (
            f"{me} reads to {line.length}, an old end",
            partial(has_read, office.folds, spent(world, "stale"), k, line),
        )
    if seat.offsets is readable(world) or not office.decides(k, seat):
        return
    yield f"{me} reads offsets", lambda: put_coordinator(world, k, offsets=readable(world))
    for line in old_ends(seat.offsets, readable(world)) if is_stale else ():
        after = spent(world, "stale")
        yield f"{me} reads offsets to {line.length}, an old end", partial(put_coordinator, after, k, offsets=line)


def _needed(office: Office, world: World, k: int) -> Iterator[Step]:
    """What a coordinator does outside of the control log."""
    seat, me = world.coordinators[k], f"c{k}"
    needs = office.needs(k, seat)
    for member in needs.fence:
        if not has_entry(world, member.incarnation, PREPARED):
            yield f"{me} fences i{member.incarnation}", partial(fence_member, world, k, member.incarnation)
    if needs.read and not seat.reading:
        yield f"{me} begins to READ", lambda: begin_read(world, k, tuple(needs.read))


def fence_member(world: World, k: int, incarnation: int) -> World:
    """Make a producer of the member's id."""
    return put_coordinator(fenced(world, incarnation), k, fenced=world.coordinators[k].fenced | {incarnation})


def begin_read(world: World, k: int, reading: tuple[tuple[SourcePartition, int], ...]) -> World:
    """Append to the offset log, which is acknowledged, and begin to read up to behind that."""
    world = appended_plainly(world, 0)
    return put_coordinator(world, k, reading=reading, end=log_end(world))


def _standing(office: Office, world: World, k: int, *, is_quiet: bool) -> Iterator[Step]:
    seat = world.coordinators[k]
    if is_waiting(seat) or (is_quiet and seat.control is not world.control):
        return
    now = office.folds.control(world.control)
    holder = next((n for n in range(len(world.coordinators)) if birth_of_coordinator(n) == now.coordinator), None)
    is_heard = (
        holder is not None and world.coordinators[holder].is_alive and world.coordinators[holder].term == now.term
    )
    ways = [BEATS if is_heard else QUIET]
    if not is_quiet:
        ways += [QUIET] if is_heard and world.budget.elect else []
        ways += [AWAY] if world.budget.outage else []
    for how in ways:
        if office.stands(k, seat, how):
            after = spent(world, "elect") if how == QUIET and is_heard else world
            after = spent(after, "outage")._replace(wrong=world.wrong or OUTAGE) if how == AWAY else after
            term = office.folds.control(seat.control).term + 1
            after = after._replace(coordinators=at(after.coordinators, k, new_seat(seat, term)))
            elected = CoordinatorElected(term, "", birth_of_coordinator(k), APP)
            yield from _appends(office, after, k, (elected,), f"c{k} stands for term {term}", is_quiet=is_quiet)


def _decisions(office: Office, world: World, k: int, *, is_quiet: bool) -> Iterator[Step]:
    seat, seen = world.coordinators[k], set[tuple[Decision, ...]]()
    for belief in (truth(office.folds, world, k), *(() if is_quiet else beliefs(office.folds, world, k))):
        events = tuple(office.batch(k, seat, belief).decisions)
        if not events or events in seen:
            continue
        seen.add(events)
        after = spent(world, belief.costs) if belief.costs else world
        if belief.said.has_outage and any(isinstance(one, MemberExpelled) for one in events):
            after = after._replace(wrong=world.wrong or OUTAGE)
        label = f"c{k} decides {', '.join(map(told, events))}"
        yield from _appends(office, after, k, events, label, is_quiet=is_quiet)


def _appends(
    office: Office, world: World, k: int, events: tuple[ControlEvent, ...], label: str, *, is_quiet: bool
) -> Iterator[Step]:
    """Appended; or under way for so long that its writer takes it for lost; or appended, and once more later."""
    basis = world.coordinators[k].control

    def lands(before: World) -> World:
        after = appended(office.folds, before, basis, events)
        return put_coordinator(after, k, is_out=True, own_end=after.control.length)

    def late(before: World) -> World:
        return spent(before._replace(late=(*before.late, (basis, events))), "late")

    yield label, lambda: lands(world)
    if world.budget.late and not is_quiet:
        yield f"{label}, late", lambda: put_coordinator(late(world), k, is_out=True, unknown=(basis, events))
        yield f"{label}, twice", lambda: lands(late(world))


def _sent_again(office: Office, world: World, k: int) -> World:
    """What was not acknowledged; this time it is."""
    unknown = world.coordinators[k].unknown
    assert unknown is not None
    after = appended(office.folds, world, *unknown)
    return put_coordinator(after, k, unknown=None, own_end=after.control.length)


def is_waiting(seat: CoordinatorProcess) -> bool:
    """Whether it decides nothing: what it wrote is to be read back first, and sent again, the same, until it is."""
    return seat.is_out


def told(event: ControlEvent) -> str:
    """A decision in a few words."""
    name = type(event).__name__
    about = [
        f"{field}{getattr(event, field)}" for field in ("incarnation", "partition", "move") if hasattr(event, field)
    ]
    return " ".join([name, *about])
