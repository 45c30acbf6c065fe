"""A group in which all goes wrong that can, with judges of whatever is decided in it.

What they check is worked out anew here, cell by cell, from the events alone. A cell is a sixteenth of a partition.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias

from keylanes.group.cells import CellState
from keylanes.group.members import members_dismissed
from keylanes.group.view import DecisionBatch, Rules
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control import LEARNER, STANDBY, Member
from keylanes.offsets.control_events import (
    CopyAsked,
    CopyEnded,
    Decision,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    RangesGranted,
    ReleaseAsked,
)
from keylanes.offsets.event_values import Span
from keylanes.offsets.ledger import SourcePartition
from keylanes.offsets.signals import Copies, LeaveAsked

from .stage import Group

NAMES = "abcd"
NAMED = "ab"
"""Those that go by a name."""
REST = "acd"
"""Who is there when nothing goes wrong any more."""
PARTITIONS = 3
CELLS = 16
CELL = SPACE_END // CELLS
QUIET_S = 45
"""All that a group may wait for is over by then: a session, a release, a leave."""
RULES = Rules(measure_ms=0, return_ms=20_000, leave_ms=8_000)
EVENTS = (
    *("ask", "ask", "ask", "dies", "silent", "leave", "back", "elect", "move", "expel"),
    *("pass", "copies", "gives", "takes", "late", "half") * 3,
    *("all copies", "all give", "all take") * 2,
    "apart",
)
MORE = (
    *("pause", "again", "outage", "load", "unasked", "hold"),
    *("works", "all work", "wake", "done") * 2,
)
"""What happens beside it in half of the histories."""
OF_ALL = {
    "all copies": "copies {} 100 ready",
    "apart": "copies {} {}",
    "all give": "gives {}",
    "all take": "takes {}",
    "all work": "works {}",
}
OF_NOBODY = {
    "pass": ("1s", "2s", "3s", "9s", "12s", "31s"),
    "outage": ("20s",),
    "hold": ("fences", "reads", "decisions"),
    "done": ("fences", "reads", "decisions"),
}
OF_ZOMBIES = ("gives", "takes", "works", "unasked", "again")
"""What one that was expelled may do, too, until it is fenced."""
At: TypeAlias = tuple[SourcePartition, int]
"""A cell of a partition."""


def points(spans: Sequence[Span]) -> set[int]:
    """The cells that begin in these spans."""
    return {n for n in range(CELLS) for span in spans if span.first <= n * CELL < span.end}


class World(Group):
    """The group. ``judge`` looks at each decision before it counts."""

    def __init__(self, chance: Random) -> None:
        has_more = chance.choice((False, True))
        self.events: tuple[str, ...] = EVENTS + MORE if has_more else EVENTS
        self.asked: tuple[str, ...] = ("", "", "", " level 0", " factor 2") if has_more else ("",)
        self.factor = chance.choice((1, 8, 8, 8))
        self.leaving: dict[str, bool] = {}
        self.paused: set[str] = set()
        self.heard_once: list[tuple[str, Copies]] = []
        self.gone_ms: dict[int, int] = {}
        self.renamed: set[int] = set()
        """Who is gone, and whose name nothing need wait for."""
        self.demoted: list[tuple[SourcePartition, int, set[int]]] = []
        self.had: dict[At, tuple[int, int]] = {}
        """The epoch and owner of each cell."""
        self.given: set[tuple[At, int]] = set()
        """Cells that were released, by epoch."""
        self.done: dict[At, int] = {}
        self.fenced: set[int] = set()
        self.names: dict[int, str] = {}
        super().__init__(replace(RULES, standbys=chance.choice((0, 0, 1, 2)), copies_max=chance.choice((1, 2))))
        self.run("coordinator is z")
        self.run(f"topic orders {PARTITIONS} stateful")
        self.run("topic bills 1")

    # --- what is true ----------------------------------------------------------------------------------------------

    def alive(self) -> list[str]:
        """The processes that run, and take part."""
        found = [(name, self.ledger.control.member_of(self.asks[name].birth)) for name in NAMES if name in self.beating]
        return [name for name, member in found if member is not None and not member.expelled]

    def staying(self) -> set[int]:
        """The members that are not known to leave."""
        there = self.ledger.control.members.items()
        return {i for i, member in there if not member.expelled and i not in self.heard.leaving}

    def at(self, place: SourcePartition) -> Iterator[tuple[int, int, CellState]]:
        """Of each cell: its number, who had it last, how it stands."""
        found = iter(self.view().cells(place))
        cell = next(found)
        for n in range(CELLS):
            while cell.end <= n * CELL:
                cell = next(found)
            yield n, cell.owner, cell.state

    def kept(
        self, place: SourcePartition, *, but: int = 0, is_ready: bool = False
    ) -> Iterator[tuple[CopyAsked, set[int]]]:
        """The copies of a place."""
        for number, copy in self.ledger.control.moves.copies.items():
            is_wanted = not is_ready or self.heard.is_ready(copy.incarnation, number)
            if (copy.topic, copy.partition) == place and number != but and is_wanted:
                yield copy, points(copy.bands)

    def positions(self, place: SourcePartition, n: int) -> dict[int, int]:
        """How far the copies of a cell have come, by incarnation; -1: that was not heard."""
        told = self.heard.copies
        own = [(copy, told.get(copy.incarnation, {}).get(copy.move)) for copy, has in self.kept(place) if n in has]
        return {copy.incarnation: -1 if heard is None else heard.position for copy, heard in own}

    # --- what is never decided ---------------------------------------------------------------------------------------

    def judge(self, decision: Decision) -> None:
        match decision:
            case MemberJoined(incarnation=new, instance=instance):
                assert new not in self.names
                others = [i for i, name in self.names.items() if name == instance != "" and i not in self.fenced]
                assert not others, f"{instance} is the name of {others}"
                self.names[new] = instance
            case MemberExpelled(incarnation=incarnation):
                assert incarnation in self.names
                self.gone_ms[incarnation] = self.now_ms
            case MemberFenced(incarnation=incarnation):
                assert incarnation in self.gone_ms.keys() & self.seat.fenced, "it was not fenced in this term"
                self.fenced.add(incarnation)
            case ReleaseAsked():
                self._judge_release(decision)
            case CopyAsked():
                self._judge_copy(decision)
            case CopyEnded():
                self._judge_end(decision)
            case RangesGranted():
                if decision.topic == "orders":
                    self._judge_copies_at_grant(decision)
                self._judge_grant(decision)

    def _judge_grant(self, grant: RangesGranted) -> None:
        assert grant.incarnation in self.names.keys() - self.gone_ms.keys()
        assert grant.incarnation not in self.heard.leaving, "who leaves is given more"
        for band in grant.bands:
            assert band.first % CELL == band.end % CELL == 0, "nobody asked for a part of a cell"
            for n in points([Span(band.first, band.end)]):
                at = (grant.topic, grant.partition), n
                epoch, owner = self.had.get(at, (0, 0))
                is_read = owner in self.fenced and (at[0], epoch) in self.seat.read
                assert not epoch or (at, epoch) in self.given or is_read, f"{at} is not free"
                assert grant.epoch > epoch
                assert band.offset_from == self.done.get(at, 0), "it is not where the last owner ended"
                self.had[at] = grant.epoch, grant.incarnation

    def _judge_release(self, asked: ReleaseAsked) -> None:
        move = self.ledger.control.moves.planned[asked.move]
        if asked.topic != "orders" or move.target == move.origin:
            return
        near = self.kept((asked.topic, asked.partition), is_ready=True)
        own = [has for copy, has in near if copy.incarnation == move.target]
        missing = points([Span(asked.first, asked.end)]).difference(*own)
        assert not missing, f"it is to be released without a ready copy: {asked}"

    def _judge_copy(self, asked: CopyAsked) -> None:
        place, bands = (asked.topic, asked.partition), points(asked.bands)
        staying, planned = self.staying(), self.ledger.control.moves.planned
        standing = {n: (owner, how) for n, owner, how in self.at(place)}
        owned = {n for where, owner, left in self.demoted if (where, owner) == (place, asked.incarnation) for n in left}
        for copy, has in self.kept(place):
            both = has & bands
            # An older copy that is wider is none of what its member owned until now.
            is_first = copy.incarnation != asked.incarnation or both <= owned
            assert is_first, f"two copies of one point: {copy}, {asked}"
            move = planned.get(copy.move)
            if copy.role == asked.role == LEARNER and copy.incarnation in staying and move is not None:
                goes = {n for n in both if standing[n] == (move.origin, CellState.HELD)}
                assert not goes, f"a learner has lost its destination: {copy}, {asked}"
        if asked.role == LEARNER:
            own = {
                (copy.topic, copy.partition)
                for number, copy in self.ledger.control.moves.copies.items()
                if copy.incarnation == asked.incarnation and not self.heard.is_ready(copy.incarnation, number)
            }
            is_urgent = asked.move in planned and planned[asked.move].origin in self.heard.leaving
            is_allowed = is_urgent or place in own or len(own) < self.rules.copies_max
            assert is_allowed, f"more passes than there may be: {asked}"
        self.demoted = [
            (where, owner, left - bands if (where, owner) == (place, asked.incarnation) else left)
            for where, owner, left in self.demoted
        ]

    def _judge_end(self, ended: CopyEnded) -> None:
        copy = self.ledger.control.moves.copies[ended.move]
        if not self.heard.is_ready(copy.incarnation, ended.move):
            return
        place = copy.topic, copy.partition
        others = [has for _, has in self.kept(place, but=ended.move, is_ready=True)]
        orphans = {n for n, _, how in self.at(place) if how is not CellState.HELD}
        assert not (points(copy.bands) & orphans).difference(*others), f"the last ready copy is ended: {copy}"

    def _judge_copies_at_grant(self, grant: RangesGranted) -> None:
        control, place = self.ledger.control, (grant.topic, grant.partition)
        granted = points([Span(band.first, band.end) for band in grant.bands])
        name = control.members[grant.incarnation].joined.instance
        staying = self.staying()
        ready = [(copy.incarnation, has) for copy, has in self.kept(place, is_ready=True)]
        for n, owner, _ in self.at(place):
            if n not in granted or owner == 0:
                continue
            near = {incarnation for incarnation, has in ready if n in has and incarnation in staying}
            member = control.members.get(owner)
            if owner in staying:
                if owner != grant.incarnation:
                    self.demoted.append((place, owner, {n}))
                continue
            assert not near or grant.incarnation in near, f"somebody has a ready copy of it: {grant}"
            is_back = member is not None and bool(name) and name == member.joined.instance
            if member is not None and member.expelled and member.joined.instance and not near:
                is_held = owner not in self.renamed and self.is_held(member)
                assert not is_held or is_back, f"it waits for a name: {grant}"
            far = {i: at for i, at in self.positions(place, n).items() if i in staying}
            is_farthest = not far or far.get(grant.incarnation) == max(far.values())
            assert near or is_back or is_farthest, f"the copy of another one has come farther: {grant}"

    def is_held(self, member: Member) -> bool:
        """Whether what a member had, that is gone, may wait for its name."""
        return self.now_ms - self.gone_ms.get(member.incarnation, 0) < member.hold_ms

    def _next(self) -> DecisionBatch:
        """Nobody who has state is left, and there are as many other names: those of the past won't be back."""
        control = self.ledger.control
        named = [m for i, m in control.members.items() if m.joined.instance and i not in self.renamed]
        gone = [member for member in named if member.expelled and self.is_held(member)]
        names = {member.joined.instance for member in gone}
        there = {control.members[incarnation].joined.instance for incarnation in self.staying()}
        stateful = {store.topic for store in control.stores.values()}
        at_work = [how for place in control.started if place[0] in stateful for *_, how in self.at(place)]
        if len(there - {""}) >= len(names) and not names & there and CellState.HELD not in at_work:
            self.renamed |= {member.incarnation for member in gone}
        return super()._next()

    def run(self, command: str) -> list[str]:
        said = super().run(command)
        assert not any(left for *_, left in self.demoted), f"who had it keeps no copy: {self.demoted}"
        self.demoted = []
        assert not self.ledger.violations()
        for place in self.ledger.control.started:
            assert [*self.at(place)] == [*self._by_the_books(place)], f"{place} stands otherwise"
        return said

    def _by_the_books(self, place: SourcePartition) -> Iterator[tuple[int, int, CellState]]:
        """How each cell stands as its own events say."""
        for n in range(CELLS):
            epoch, owner = self.had.get((place, n), (0, 0))
            if not epoch or ((place, n), epoch) in self.given:
                yield n, owner, CellState.FREE
            elif owner not in self.gone_ms:
                yield n, owner, CellState.HELD
            elif owner not in self.fenced:
                yield n, owner, CellState.LEAVING
            else:
                yield n, owner, CellState.FREE if (place, epoch) in self.seat.read else CellState.UNREAD

    # --- what happens ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        super()._beat()
        for name in [name for name in self.leaving if name in self.alive()]:
            own = self.member(name)
            self._say(name, LeaveAsked(own, self.asks[name].birth, 1_000 * self.leaving[name], is_done=False))
            if own in members_dismissed(self.view()):
                self.releases_all(name)
                self.stops(name)

    def stops(self, name: str) -> None:
        """It beats no more."""
        self.beating.discard(name)
        self.leaving.pop(name, None)
        self.paused.discard(name)

    def releases_all(self, name: str) -> None:
        """What it has, unasked."""
        for topic, partition in list(self.ledger.partitions):
            self._releases(self.member(name), topic, partition, 0, SPACE_END)

    def _releases(self, incarnation: int, topic: str, partition: int, first: int, end: int) -> None:
        if incarnation in self.stopped:
            return
        super()._releases(incarnation, topic, partition, first, end)
        for n in points([Span(first, end)]):
            epoch, owner = self.had.get(((topic, partition), n), (0, 0))
            if owner == incarnation:
                self.given.add((((topic, partition), n), epoch))

    def _do_works(self, name: str) -> None:
        own = self.member(name)
        for at, (epoch, owner) in self.had.items() if own not in self.stopped else ():
            if owner == own and (at, epoch) not in self.given:
                self.done[at] = self.done.get(at, 0) + 1
        super()._do_works(name)

    def tells_copies(self, name: str, position: int, *, is_ready: bool) -> None:
        super().tells_copies(name, position, is_ready=is_ready)
        own = self.heard.copies[self.member(name)].values()
        self.heard_once.append((name, Copies(self.member(name), tuple(own))))

    def happens(self, chance: Random) -> None:
        """Something, by chance."""
        alive, what = self.alive(), chance.choice(self.events)
        joined = [name for name in self.asks if self.member(name)] if what in OF_ZOMBIES else alive
        name = chance.choice(joined) if joined else ""
        absent = [one for one in NAMES if one not in self.beating]
        match what:
            case "ask" if absent:
                one, host = chance.choice(absent), chance.choice(("h1", "h2", "h3"))
                self.asks_anew(one, host, chance.choice(self.asked))
            case _ if what in OF_NOBODY:
                self.run(f"{what} {chance.choice(OF_NOBODY[what])}")
            case "elect":
                self.run(f"coordinator is {chance.choice(['z', *alive])}")
            case "load":
                place = chance.choice(("orders 0", "orders 1", "bills 0"))
                self.run(f"load {place} {chance.choice((20, 400, 3000))} 1000")
            case "wake" if self.paused:
                self.run(f"beats {' '.join(sorted(self.paused))}")
                self.paused.clear()
            case "late" if self.heard_once:
                one, signal = chance.choice(self.heard_once)
                self._say(one, signal)
                self.run("pass 1s")
            case _ if what in OF_ALL:
                for one in alive:
                    self.run(OF_ALL[what].format(one, chance.randrange(100)))
            case _ if name:
                self.happens_to(name, what, chance)

    def happens_to(self, name: str, what: str, chance: Random) -> None:
        """The same, to one that lives, or does not know that it is out."""
        match what:
            case "dies" | "silent" | "expel":
                self.stops(name)
                self.run(f"{what} {name}")
            case "pause":
                self.paused.add(name)
                self.run(f"silent {name}")
            case "leave" | "back":
                self.leaving[name] = what == "back" and name in NAMED
                self.run("pass 1s")
            case "copies":
                self.run(f"copies {name} {chance.choice((50, 99))} {chance.choice(('', 'ready'))}")
            case "gives" | "takes" | "works":
                self.run(f"{what} {name}")
            case "again":
                self.run(f"ask again {name}")
            case "unasked" if self.ledger.partitions:
                topic, partition = chance.choice([*self.ledger.partitions])
                self.run(f"release {name} {topic} {partition}{chance.choice(('', ' half'))}")
            case "move" | "half":
                half = " half" if what == "half" else ""
                self.run(f"move orders {chance.randrange(PARTITIONS)} to {chance.choice((name, '-'))}{half}")

    def asks_anew(self, name: str, host: str, more: str = "") -> None:
        """A process of that name begins."""
        called = f" as {name}" if name in NAMED else ""
        self.paused.discard(name)
        self.run(f"ask {name} orders{',bills' if name in 'ac' else ''} on {host}{called}{more}")

    def heals(self) -> None:
        """Nothing goes wrong any more."""
        self.run("done fences reads decisions")
        self.run("coordinator is z")
        self.leaving.clear()
        contradict = {name for name in self.beating if self.asks[name].topics[0].factor != self.factor}
        for name in sorted({name for name in self.beating if self.member(name) in self.heard.leaving} | contradict):
            self.run(f"dies {name}" if self.member(name) else f"silent {name}")
        self.run("pass 30s")
        for name in REST:
            if name not in self.alive():
                self.asks_anew(name, "h1")
        self.run(f"eager {' '.join(NAMES)}")
        self.run(f"quick {' '.join(NAMES)}")
        for _ in range(5):
            self.run("pass 10s")
            for name in self.alive():
                self.run(f"takes {name}")

    def is_at_rest(self) -> None:
        """Everything is owned by somebody who stays, and has as many copies as are wanted."""
        assert not self.run(f"pass {QUIET_S}s"), "it does not come to rest"
        control, staying = self.ledger.control, self.staying()
        wanted = min(self.rules.standbys, len(staying) - 1)
        for place in control.started:
            for n, owner, how in self.at(place):
                assert how is CellState.HELD, f"nobody works on {place} {n}"
                assert owner in staying, f"{owner} has {place} {n}, and is gone"
                can = {source.topic for source in control.members[owner].joined.topics}
                assert place[0] in can, f"{owner} has {place} {n}, and can't handle it"
                if place[0] == "orders":
                    owners = {m: who for m, who, _ in self.at(place)}
                    over = [(copy.incarnation, {owners[m] for m in has}) for copy, has in self.kept(place) if n in has]
                    having = {incarnation for incarnation, _ in over} - {owner}
                    # A copy of several ranges stays as long as one of them needs it.
                    alone = {incarnation for incarnation, of in over if of == {owner}}
                    is_right = len(having) >= wanted >= len(alone)
                    assert is_right, f"copies of {place} {n}: {having}, wanted are {wanted}"
                    away = {i for i in staying if control.members[i].joined.host != control.members[owner].joined.host}
                    least = min(wanted, len(away))
                    assert len(having & away) >= least, f"copies of {place} {n} on the host of their owner: {having}"
        assert not control.moves.release_requests
        assert all(copy.role == STANDBY for copy in control.moves.copies.values())
