"""A group in small, told by a script: what a coordinator is told in, what it decides out. No broker, no loop.

The process ``a`` coordinates first; it beats when it has asked to join, as all do.

A script is text: paragraphs of commands, a line ``----``, and what came of them. Commands:

    topic orders 4 [stateful]        a source topic with so many partitions; the broker says so from here on
    ask a orders [as NAME] [on HOST] [level 0] [factor 2] [until level] [of 3] [store NAME]    a process asks to join,
                                     and beats from here on; one of three that are started together
    ask again a                      the same request once more
    silent a ...                     they beat no more; ``beats a``: again
    leave a [back|done]              it says that it leaves, and that its name will be back, or that it commits no more
    dismissed                        who leaves and need not wait for others
    unowned                          what has no owner, and what of it waits for names
    copies a 60 [ready]              it says that all its copies have come to 60 of 100, and that they are ready
    quick a ...                      they say at once, and second by second, that all their copies are ready
    rule standbys 1                  a rule of the group is another one from here on
    release a orders 0 [half]        it has released this partition, or its lower half: that was committed
    gives a                          it releases all that it is asked for, in time: that was committed
    eager a ...                      they release what they are asked for, second by second
    load orders 0 800 1000 [50]      the records of a partition (or of all) take 800 ms of handlers a second, 1000 a
                                     second, evenly, and keep 50 MB of state; who holds some of it says so every two
                                     seconds, from here on
    works a                          it commits one more record of all that it holds, if it still can
    move orders 0 to a               somebody asks that a partition goes to a member (to -: to whom is best)
    expel a                          an operator asks for it
    dies a                           it does, and whoever started its process says so at once
    pass 3s                          time passes, second by second; all who beat do
    coordinator is b                 that process is elected: it knows only the logs and what is said from now on
    takes a                          it has cut all that it was granted into workers: that was committed
    show                             how the group stands, for people
    history                          what is new in the history: who owned what when; times in seconds
    outage 20s                       the signals can't be appended to for so long
    anew                             another group from here on, of which nothing is known

After each command the coordinator decides until it has nothing more to say; each fence and read that it asks for is
done at once, unless ``hold fences`` or ``hold reads`` was said. After ``hold decisions`` it decides nothing, and after
``hold offsets`` it has not read the offset log; ``done`` ends that.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from keylanes.group.cells import CellState
from keylanes.group.coordinator import decide, needs
from keylanes.group.copy_requests import parked_moves
from keylanes.group.history import History
from keylanes.group.history_entries import Change, Entry, Party
from keylanes.group.members import members_dismissed
from keylanes.group.overview import show_group
from keylanes.group.piece_table import PieceTable
from keylanes.group.plans import CHANGE, answer_of
from keylanes.group.signals_fold import PARTITIONS, Heard, partition_of
from keylanes.group.unowned_points import points_unowned, waits_for_names
from keylanes.group.view import Begun, CoordinatorMemory, DecisionBatch, Rules, SourceFound, View
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
    CoordinatorElected,
    CopyAsked,
    CopyEnded,
    Decision,
    EndsPinned,
    LevelRaised,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    MemberRefused,
    PartitionStarted,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
    ReleaseWithdrawn,
    SourceIdentified,
    StoreDeclared,
)
from keylanes.offsets.decide import StoreSpec, Turn, stores_hash
from keylanes.offsets.event_values import LEVEL, Edge, PinnedEnd, Sourced, Tile
from keylanes.offsets.events import Committed, Event, RangesReleased, WorkersCut
from keylanes.offsets.ledger import Ledger, SourcePartition, evolve
from keylanes.offsets.signals import (
    BandLoad,
    Beat,
    CoordinatorBeat,
    Copies,
    Copy,
    ExpelAsked,
    JoinAsked,
    LeaveAsked,
    Load,
    MoveAsked,
    StoreAsked,
)

SECOND_MS = 1_000
LOAD_MS = 2_000
ROUNDS_MAX = 200
"""So many batches in a row at most: a coordinator that never comes to rest is wrong."""
HALF = SPACE_END // 2


class Group:
    """The logs, the signals, and whoever coordinates."""

    factor = 8
    """Into how many parts a partition may be cut, unless a process says otherwise."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.ledger, self.rules = Ledger(opened={0}), rules or Rules(measure_ms=0)
        self.now_ms = self.position = self.requests = self.transactions = 0
        self.topics: dict[str, tuple[int, bool]] = {}
        self.asks: dict[str, JoinAsked] = {}
        self.beating: set[str] = set()
        self.eager: list[str] = []
        self.quick: list[str] = []
        self.busy: dict[SourcePartition, tuple[int, int, int]] = {}
        self.said: list[str] = []
        self.holds: set[str] = set()
        self.births: list[str] = []
        self.stopped: set[int] = set()
        """Who was fenced: it commits no more."""
        self.history, self._events, self._told = History(), 0, list[str]()
        self.write(AppCreated("app", "hash", 1))
        self._seats(1, "a")

    def _seats(self, term: int, name: str) -> None:
        birth = self.asks[name].birth if name in self.asks else f"{name}1"
        self.write(CoordinatorElected(term, "", birth, "app"))
        self.turn, self.seat = Turn(term), CoordinatorMemory("app", birth, self.now_ms, log_partitions=1)
        self.heard = Heard(self.rules.session_ms, self.rules.interval_ms)
        self._beat()

    def write(self, event: Event) -> None:
        """An event is written to its log, and read by all."""
        evolve(self.ledger, event)
        self._events += 1
        if isinstance(event, ControlEvent):
            self.history.hear_control(self._events, self.now_ms, event)
        else:
            self.history.hear_offsets(0, 0, self.now_ms, event)

    def view(self) -> View:
        """What the coordinator sees."""
        ledger = Ledger(self.ledger.control) if "offsets" in self.holds else self.ledger
        return View(ledger, self.heard, self.seat, self.rules, self.position, self.now_ms)

    def run(self, command: str) -> list[str]:
        """Do what a command says; what was decided, a line each."""
        self.said = []
        words = command.split()
        getattr(self, "_do_" + words[0])(*words[1:])
        self.settle()
        self._copy()
        return self.said

    def settle(self) -> None:
        """The coordinator decides, and is read back, until it is at rest."""
        for _ in range(0 if "decisions" in self.holds else ROUNDS_MAX):
            batch = self._next()
            if not (batch.decisions or batch.answered) and not self._do_needs():
                return
        if "decisions" in self.holds:
            return
        raise AssertionError(f"no rest after {ROUNDS_MAX} batches: {self.said[-9:]}")

    def _next(self) -> DecisionBatch:
        batch = decide(self.view(), self.turn)
        for decision in batch.decisions:
            before = self.ledger.control.number
            self.judge(decision)
            self.write(decision)
            assert self.ledger.control.number == before + 1, f"it does not count: {decision}"
            self.position += 1
            self.said += list(self.told(decision))
        self.seat.note(batch, self.now_ms)
        for request in batch.answered:
            self.heard.drop_request(request)
        return batch

    def judge(self, decision: Decision) -> None:
        """A decision is about to count; nothing is wrong with it here."""

    def _do_needs(self) -> bool:
        wanted = needs(self.view())
        found = {topic: self._found(topic) for topic in wanted.look if topic in self.topics}
        self.seat.sources |= found
        fences = [] if "fences" in self.holds else wanted.fence
        reads = [] if "reads" in self.holds else wanted.read
        for member in fences:
            self.said.append(f"fences {self.name_of(member.incarnation)}")
            self.seat.fenced.add(member.incarnation)
            self.stopped.add(member.incarnation)
        for place, epoch in reads:
            self.said.append(f"reads {place[0]}[{place[1]}] at epoch {epoch}")
            self.seat.read.add((place, epoch))
        if wanted.solve is not None:
            self.seat.answer = answer_of(wanted.solve)
        if wanted.ends:
            self.seat.ends = tuple(PinnedEnd(*place, 9) for place in self.ledger.control.started)
        return bool(found or fences or reads or wanted.solve or wanted.ends)

    def _found(self, topic: str) -> SourceFound:
        count = self.topics[topic][0]
        new = tuple(
            (p, Begun(0, "earliest", count)) for p in range(count) if (topic, p) not in self.ledger.control.started
        )
        return SourceFound(f"id of {topic}", count, new)

    # --- names -----------------------------------------------------------------------------------------------------

    def member(self, name: str) -> int:
        """The newest incarnation of a process of the script."""
        found = [i for i, m in self.ledger.control.members.items() if bare(m.birth) == name]
        return max(found, default=0)

    def name_of(self, incarnation: int) -> str:
        """An incarnation, with the process that it is."""
        if incarnation == 0:
            return "nobody"
        member = self.ledger.control.members.get(incarnation)
        birth = "gone" if member is None else bare(member.birth)
        return f"{birth}#{incarnation}"

    def told(self, decision: ControlEvent) -> Iterator[str]:
        """A decision in a line, a plan in one for each move, too."""
        name = self.name_of
        match decision:
            case MemberJoined():
                yield f"JOINED {name(decision.incarnation)}"
            case MemberRefused():
                yield f"REFUSED {bare(decision.birth)}: {decision.reason}"
            case MemberExpelled():
                yield f"EXPELLED {name(decision.incarnation)}: {decision.cause}"
            case MemberFenced():
                yield f"FENCED #{decision.incarnation}"
            case PlanMade() | RangesGranted() | ReleaseAsked() | ReleaseWithdrawn():
                yield from self._told_of_moves(decision)
            case CopyAsked(move=move, incarnation=of, topic=topic, partition=partition, bands=bands, role=role):
                what = ", ".join(f"{topic}[{partition}]{share(band.first, band.end)}" for band in bands)
                yield f"COPY ASKED {what} at {name(of)}, {role}, move {move}"
            case CopyEnded(move=move, reason=reason):
                yield f"COPY ENDED move {move}: {reason}"
            case PartitionStarted():
                yield f"STARTED {decision.topic}[{decision.partition}]"
            case StoreDeclared():
                yield f"STORE {decision.name} is number {decision.store}"
            case EndsPinned():
                yield "ENDS pinned"
            case LevelRaised() | SourceIdentified():
                pass
            case _:
                yield str(decision)

    def _told_of_moves(self, decision: PlanMade | RangesGranted | ReleaseAsked | ReleaseWithdrawn) -> Iterator[str]:
        name = self.name_of
        match decision:
            case PlanMade(plan=plan, group_epoch=epoch, cause=cause, moves=moves):
                yield f"PLAN {plan} for group epoch {epoch}" + ("" if cause == CHANGE else f" by {cause}")
                for m in moves:
                    what = f"{m.topic}[{m.partition}]{share(m.first, m.end)}"
                    yield f"  {m.move}: {what} {name(m.origin)} -> {name(m.target)}"
            case RangesGranted(incarnation=to, epoch=epoch, topic=topic, partition=partition, bands=bands):
                for band in bands:
                    what = f"{topic}[{partition}]{share(band.first, band.end)}"
                    yield f"GRANT {what} to {name(to)} at epoch {epoch} from {band.offset_from}"
            case ReleaseAsked(move=move, incarnation=of, topic=topic, partition=partition, first=first, end=end):
                yield f"RELEASE ASKED {topic}[{partition}]{share(first, end)} of {name(of)}, move {move}"
            case ReleaseWithdrawn(move=move, reason=reason):
                yield f"WITHDRAWN move {move}: {reason}"

    # --- commands --------------------------------------------------------------------------------------------------

    def _do_topic(self, name: str, partitions: str, *more: str) -> None:
        self.topics[name] = int(partitions), "stateful" in more
        self.seat.sources.pop(name, None)

    def _do_ask(self, name: str, *words: str) -> None:
        if name == "again":
            self._say(words[0], self.asks[words[0]])
            return
        given = dict(zip(words[1::2], words[2::2], strict=False))
        topics = words[0].split(",")
        host = given.get("on", f"host-{name}")
        stateful = [topic for topic in topics if self.topics[topic][1]]
        stores = tuple(StoreAsked(given.get("store", f"s-{t}"), t, "value", "", "int", "json") for t in stateful)
        sourced = tuple(
            Sourced(
                topic,
                int(given.get("factor", self.factor)),
                given.get("start", "earliest"),
                stores_hash(StoreSpec(s.name, s.topic, s.kind, s.key_type, s.value_type, s.codec) for s in stores),
                0.0,
            )
            for topic in topics
        )
        birth = f"{name}{sum(bare(b) == name for b in self.births) + 1}"
        self.births.append(birth)
        level, instance = int(given.get("level", LEVEL)), given.get("as", "")
        ends, expected = given.get("until") == "level", int(given.get("of", 0))
        asked = JoinAsked(instance, birth, 1, host, "", 1.0, level, sourced, (), ends, stores, expected)
        self.asks[name] = asked
        self.beating.add(name)
        self._say(name, asked)

    def _do_silent(self, *names: str) -> None:
        self.beating -= {*names}

    def _do_beats(self, *names: str) -> None:
        self.beating |= {*names}

    def _do_leave(self, name: str, how: str = "") -> None:
        back_ms = SECOND_MS if how == "back" else 0
        self._say(name, LeaveAsked(self.member(name), self.asks[name].birth, back_ms, is_done=how == "done"))

    def _do_unowned(self) -> None:
        view = self.view()
        self.said += [f"{one.place[0]}[{one.place[1]}] {one.share:.0%} from {one.edge}" for one in points_unowned(view)]
        self.said += [one.line() for one in waits_for_names(view).values()]

    def _do_dismissed(self) -> None:
        self.said.append(" ".join(map(self.name_of, members_dismissed(self.view()))) or "nobody")

    def _do_copies(self, name: str, position: str, ready: str = "") -> None:
        self.tells_copies(name, int(position), is_ready=bool(ready))

    def _do_quick(self, *names: str) -> None:
        self.quick += names

    def _do_rule(self, name: str, value: str) -> None:
        self.rules = replace(self.rules, **{name: int(value)})

    def tells_copies(self, name: str, position: int, *, is_ready: bool) -> None:
        """A member says how far its copies have come."""
        own = [copy for copy in self.ledger.control.moves.copies.values() if copy.incarnation == self.member(name)]
        told = tuple(Copy(copy.move, position, 100, 0, is_ready) for copy in own)
        self._say(name, Copies(self.member(name), told))

    def _copy(self) -> None:
        """Those who are quick have made their copies, and the coordinator hears it."""
        for name in sorted({*self.quick} & self.beating):
            unheard = [
                copy
                for copy in self.ledger.control.moves.copies.values()
                if copy.incarnation == self.member(name) and not self.heard.is_ready(copy.incarnation, copy.move)
            ]
            if unheard:
                self.tells_copies(name, 100, is_ready=True)
                self.settle()

    def _do_release(self, name: str, topic: str, partition: str, half: str = "") -> None:
        self._releases(self.member(name), topic, int(partition), 0, HALF if half else SPACE_END)

    def _do_gives(self, name: str) -> None:
        for asked in list(self.ledger.control.moves.release_requests.values()):
            if asked.incarnation == self.member(name):
                self._releases(asked.incarnation, asked.topic, asked.partition, asked.first, asked.end)

    def _releases(self, incarnation: int, topic: str, partition: int, first: int, end: int) -> None:
        fold = self.ledger.partitions[topic, partition]
        for a, b, epoch in fold.newest.pieces(first, end):
            if fold.parts[epoch].incarnation == incarnation:
                self.transactions += 1
                edges = tuple(Edge(x, y, edge) for x, y, edge in fold.parts[epoch].edges.pieces(a, b))
                self.write(RangesReleased(incarnation, self.transactions, epoch, topic, partition, 0, edges, ()))

    def _do_works(self, name: str) -> None:
        incarnation = self.member(name)
        for (topic, partition), fold in self.ledger.partitions.items() if incarnation not in self.stopped else ():
            for a, b, epoch in fold.owners().pieces():
                part = fold.parts[epoch]
                if part.incarnation == incarnation:
                    self.transactions += 1
                    at = [(x, y, edge) for x, y, edge in part.edges.pieces(a, b)]
                    tiles = tuple(Tile(n, 1, x, y, edge, edge + 1) for n, (x, y, edge) in enumerate(at))
                    self.write(Committed(incarnation, self.transactions, 0, 1, epoch, topic, partition, tiles, 0, 0, 0))

    def _do_move(self, topic: str, partition: str, _to: str, name: str, half: str = "") -> None:
        self.requests += 1
        target = 0 if name == "-" else self.member(name)
        end = HALF if half else SPACE_END
        asked = MoveAsked(f"r{self.requests}", "an operator", topic, int(partition), 0, end, target, 0)
        self.heard.hear(1, self.now_ms, asked)

    def _do_expel(self, name: str, cause: str = "operator") -> None:
        self.requests += 1
        self.heard.hear(1, self.now_ms, ExpelAsked(f"r{self.requests}", "somebody", self.member(name), cause))

    def _do_dies(self, name: str) -> None:
        self.beating.discard(name)
        self._do_expel(name, "died")

    def _do_show(self) -> None:
        group = show_group(PieceTable(), self.ledger, self.heard.copies, parked_moves(self.view()))
        self.said.append(
            f"{group.state.value}, group epoch {group.group_epoch}, assignment epoch {group.assignment_epoch}"
        )
        for member in group.members:
            held = ", ".join(held.label for held in member.held) or "nothing"
            self.said.append(f"  {self.name_of(member.incarnation)}: {member.standing}, {held}, {member.share:.0%}")
        self.said += [f"  {line}" for line in group.waits]
        if {store.topic for store in self.ledger.control.stores.values()}:
            self.said += [
                f"  move {move.move}: {move.moving_range.label} waits for {move.waits_for}" for move in group.moves
            ]
            self.said += [f"  {self.name_of(copy.incarnation)} has a copy of {copy.label}" for copy in group.copies]

    def _do_history(self) -> None:
        now = [told_of(entry) for entry in self.history.entries()]
        self.said += [line for line in now if line not in self._told]
        self._told = now

    def _do_eager(self, *names: str) -> None:
        self.eager += names

    def _do_load(self, topic: str, partition: str, ms_per_s: str, records_per_s: str, megabytes: str = "0") -> None:
        for number in range(self.topics[topic][0]) if partition == "all" else (int(partition),):
            self.busy[topic, number] = int(ms_per_s) * 1_000, int(records_per_s), int(megabytes) * 1_000_000

    def tell_loads(self, name: str, incarnation: int) -> None:
        """A member says what its ranges cost."""
        bands: list[BandLoad] = []
        seconds = LOAD_MS // SECOND_MS
        for place, (us_per_s, records_per_s, state_bytes) in self.busy.items():
            for cell in self.view().cells(place):
                if cell.owner == incarnation and cell.state is CellState.HELD:
                    inside = [at for at in even_bounds(self.factor) if cell.first < at < cell.end]
                    bounds = [cell.first, *inside, cell.end]
                    points = tuple((a, us_per_s * seconds * (b - a) // SPACE_END) for a, b in pairwise(bounds))
                    records = records_per_s * seconds * (cell.end - cell.first) // SPACE_END
                    kept = state_bytes * (cell.end - cell.first) // SPACE_END
                    about = (cell.first, cell.end, cell.epoch, sum(busy for _, busy in points), records, 0, kept)
                    bands.append(BandLoad(*place, *about, points))
        if bands:
            self._say(name, Load(incarnation, LOAD_MS, tuple(bands)))

    def _do_takes(self, name: str) -> None:
        for place, fold in self.ledger.partitions.items():
            for epoch, part in list(fold.parts.items()):
                for a, b, _ in part.froms.pieces() if part.incarnation == self.member(name) else ():
                    self.transactions += 1
                    self.write(WorkersCut(self.member(name), self.transactions, epoch, *place, 1, (a, b)))

    def _do_hold(self, *what: str) -> None:
        self.holds |= {*what}

    def _do_done(self, *what: str) -> None:
        self.holds -= {*what}

    def _do_pass(self, how_long: str) -> None:
        for _ in range(int(how_long.removesuffix("s"))):
            self.now_ms += SECOND_MS
            self._beat()
            self.settle()
            self._copy()
            for name in self.eager:
                self._do_gives(name)
                self.settle()

    def _do_outage(self, how_long: str) -> None:
        self.now_ms += SECOND_MS * int(how_long.removesuffix("s"))

    def _do_coordinator(self, _is: str, name: str) -> None:
        self._seats(self.ledger.control.term + 1, name)

    def _say(self, name: str, signal: JoinAsked | LeaveAsked | Beat | Load | Copies) -> None:
        asked = self.asks[name]
        self.heard.hear(partition_of(asked.instance, asked.birth), self.now_ms, signal)

    def _beat(self) -> None:
        beat = CoordinatorBeat(self.ledger.control.term, 1, False, self.rules.interval_ms, False, (), (), ())
        for partition in range(PARTITIONS):
            self.heard.hear(partition, self.now_ms, beat)
        for name in sorted(self.beating):
            member = self.ledger.control.member_of(self.asks[name].birth)
            if member is None:
                self._say(name, self.asks[name])
            else:
                self._say(name, Beat(member.incarnation, member.birth, self.position, 0, 0, 0, ()))
                if self.now_ms % LOAD_MS == 0:
                    self.tell_loads(name, member.incarnation)


def told_of(entry: Entry) -> str:
    """An entry of the history in a line."""

    def party(one: Party | None) -> str:
        return "nobody" if one is None else f"{one.host.removeprefix('host-')}#{one.incarnation}"

    def at(name: str, ms: int | None) -> str:
        return "" if ms is None else f" {name} {ms // SECOND_MS}"

    if isinstance(entry, Change):
        who = party(entry.party) if entry.party and entry.party.incarnation else bare(entry.birth)
        return f"{entry.at_ms // SECOND_MS}: {who} {entry.what}" + (f": {entry.cause}" if entry.cause else "")
    times = at("copy asked", entry.copy_asked_ms)
    times += "".join(at(one.what, one.ms) for one in (entry.asked, entry.released) if one is not None)
    times += at("granted", entry.granted_ms) + at("taken up", entry.taken_up_ms) + at("withdrawn", entry.withdrawn_ms)
    still = "" if entry.stood_still_ms is None else f", stood still {entry.stood_still_ms // SECOND_MS}"
    what = f"{entry.topic}[{entry.partition}]{share(entry.first, entry.end)}"
    numbers = f"{entry.cause}, plan {entry.plan} move {entry.move} term {entry.term}"
    reason = f": {entry.reason}" if entry.reason else ""
    return (
        f"{what} {party(entry.origin)} -> {party(entry.target)} ({numbers}){times}{still}; {entry.state.value}{reason}"
    )


def share(first: int, end: int) -> str:
    """Part of a partition in percents; nothing for the whole."""
    return "" if end - first == SPACE_END else f" {first * 100 // SPACE_END}-{end * 100 // SPACE_END} %"


def bare(birth: str) -> str:
    """The process of the script that was born so."""
    return re.sub(r"\d+$", "", birth)


def scripts(folder: Path) -> list[Path]:
    """All scripts."""
    return sorted(folder.glob("*.txt"))


class Performer(Protocol):
    """Does what a script's commands say."""

    def run(self, command: str) -> list[str]:
        """Do what a command says; what came of it, a line each."""


def played(text: str, rules: Rules | None = None, of: type[Group] = Group) -> str:
    """The script of a group, with what comes of it now in place of what it says. ``of``: the groups that play it."""
    return play(text, lambda: of(rules))


def play(text: str, make: Callable[[], Performer]) -> str:
    """A script, with what comes of it now in place of what it says. ``make``: a performer that knows nothing."""
    group, lines = make(), []
    for paragraph in re.split(r"\n{2,}", text.strip()):
        if paragraph.startswith("#"):
            lines.append(paragraph)
            continue
        commands = paragraph.split("\n----")[0].splitlines()
        if commands[0] == "anew":
            group = make()
        said = [line for command in commands if command != "anew" for line in group.run(command)]
        lines.append("\n".join([*commands, "----", *(said or ["(nothing)"])]))
    return "\n\n".join(lines) + "\n"
