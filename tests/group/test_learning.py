"""Ranges with state in a group in which all goes wrong that can: what is never decided, and where it comes to rest.

What is checked is worked out here anew, point by point, from the events alone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

import msgspec
import pytest

from keylanes.group import copies, learning, moves, plans
from keylanes.group.books import Books
from keylanes.group.cells import Standing
from keylanes.group.members import dismissed
from keylanes.group.view import Batch, Rules, Seat
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control import LEARNER, LOAD, STANDBY
from keylanes.offsets.control_events import (
    CopyAsked,
    CopyEnded,
    Decision,
    MemberExpelled,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
)
from keylanes.offsets.event_values import Span
from keylanes.offsets.ledger import Place
from keylanes.offsets.signals import Copies, LeaveAsked

from ..stage.planting import Planting, Put, changed
from ..tiers.marks import tier
from .finding import row
from .stage import Group

pytestmark = tier("check")

NAMES = "abcd"
NAMED = "ab"
"""Those that go by a name."""
REST = "acd"
"""Who is there when nothing goes wrong any more."""
PARTITIONS = 3
CELLS = 16
RULES = Rules(measure_ms=0, return_ms=20_000, leave_ms=8_000)
STEPS = 50
SEEDS = 40
SEEDS_PLANTED = 120
EVENTS = (
    *("ask", "ask", "dies", "silent", "leave", "back", "elect", "move", "expel"),
    *("pass", "copies", "gives", "takes", "late", "half") * 3,
    *("all copies", "all give", "all take") * 2,
    "apart",
)


def points(spans: Iterable[Span]) -> set[int]:
    """The cells that begin in these spans."""
    return {n for n in range(CELLS) for span in spans if span.first <= n * (SPACE_END // CELLS) < span.end}


class World(Group):
    """A group whose coordinator is no member. ``judge`` looks at each decision before it counts."""

    def __init__(self, standbys: int, copies_max: int) -> None:
        self.leaving: dict[str, bool] = {}
        self.heard_once: list[tuple[str, Copies]] = []
        self.gone_ms: dict[int, int] = {}
        self.demoted: list[tuple[Place, int, set[int]]] = []
        super().__init__(replace(RULES, standbys=standbys, copies_max=copies_max))
        self.run("coordinator is z")
        self.run(f"topic orders {PARTITIONS} stateful")
        self.run("topic bills 1")

    # --- what is true ----------------------------------------------------------------------------------------------

    def alive(self) -> list[str]:
        """The processes that run, and have joined."""
        found = [name for name in NAMES if name in self.beating]
        return [name for name in found if self.ledger.control.member_of(self.asks[name].birth) is not None]

    def staying(self) -> set[int]:
        """The members that are not known to leave."""
        there = self.ledger.control.members.items()
        return {i for i, member in there if not member.expelled and i not in self.heard.leaving}

    def at(self, place: Place) -> Iterator[tuple[int, int, Standing]]:
        """Of each cell: its number, who had it last, how it stands."""
        for n in range(CELLS):
            point = n * (SPACE_END // CELLS)
            cell = next(cell for cell in self.view().cells(place) if cell.first <= point < cell.end)
            yield n, cell.owner, cell.standing

    def kept(self, place: Place, *, but: int = 0, is_ready: bool = False) -> Iterator[tuple[CopyAsked, set[int]]]:
        """The copies of a place."""
        for number, copy in self.ledger.control.moves.copies.items():
            is_wanted = not is_ready or self.heard.is_ready(copy.incarnation, number)
            if (copy.topic, copy.partition) == place and number != but and is_wanted:
                yield copy, points(copy.bands)

    def positions(self, place: Place, n: int) -> dict[int, int]:
        """How far the copies of a cell have come, by incarnation; -1: that was not heard."""
        told = self.heard.copies
        own = [(copy, told.get(copy.incarnation, {}).get(copy.move)) for copy, has in self.kept(place) if n in has]
        return {copy.incarnation: -1 if heard is None else heard.position for copy, heard in own}

    # --- what is never decided ---------------------------------------------------------------------------------------

    def judge(self, decision: Decision) -> None:
        match decision:
            case ReleaseAsked():
                self._judge_release(decision)
            case CopyAsked():
                self._judge_copy(decision)
            case CopyEnded():
                self._judge_end(decision)
            case RangesGranted() if decision.topic == "orders":
                self._judge_grant(decision)
            case MemberExpelled(incarnation=incarnation):
                self.gone_ms[incarnation] = self.now_ms

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
        for copy, has in self.kept(place):
            both = has & bands
            assert not both or copy.incarnation != asked.incarnation, f"two copies of one point: {copy}, {asked}"
            move = planned.get(copy.move)
            if copy.role == asked.role == LEARNER and copy.incarnation in staying and move is not None:
                goes = {n for n in both if standing[n] == (move.origin, Standing.HELD)}
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
        orphans = {n for n, _, how in self.at(place) if how is not Standing.HELD}
        assert not (points(copy.bands) & orphans).difference(*others), f"the last ready copy is ended: {copy}"

    def _judge_grant(self, grant: RangesGranted) -> None:
        control, place = self.ledger.control, (grant.topic, grant.partition)
        granted = points(Span(band.first, band.end) for band in grant.bands)
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
                is_held = self.now_ms - self.gone_ms.get(owner, 0) < member.hold_ms
                assert not is_held or is_back, f"it waits for a name: {grant}"
            far = {i: at for i, at in self.positions(place, n).items() if i in staying}
            is_farthest = not far or far.get(grant.incarnation) == max(far.values())
            assert near or is_back or is_farthest, f"the copy of another one has come farther: {grant}"

    def run(self, command: str) -> list[str]:
        said = super().run(command)
        assert not any(left for *_, left in self.demoted), f"who had it keeps no copy: {self.demoted}"
        self.demoted = []
        return said

    # --- what happens ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        super()._beat()
        for name in [name for name in self.leaving if name in self.alive()]:
            own = self.member(name)
            self._say(name, LeaveAsked(own, self.asks[name].birth, 1_000 * self.leaving[name], is_done=False))
            if own in dismissed(self.view()):
                self.releases_all(name)
                self.stops(name)

    def stops(self, name: str) -> None:
        """It beats no more."""
        self.beating.discard(name)
        self.leaving.pop(name, None)

    def releases_all(self, name: str) -> None:
        """What it has, unasked."""
        for topic, partition in list(self.ledger.partitions):
            self._releases(self.member(name), topic, partition, 0, SPACE_END)

    def tells_copies(self, name: str, position: int, *, is_ready: bool) -> None:
        super().tells_copies(name, position, is_ready=is_ready)
        own = self.heard.copies[self.member(name)].values()
        self.heard_once.append((name, Copies(self.member(name), tuple(own))))

    def happens(self, chance: Random) -> None:
        """Something, by chance."""
        alive, what = self.alive(), chance.choice(EVENTS)
        name = chance.choice(alive) if alive else ""
        absent = [one for one in NAMES if one not in self.beating]
        match what:
            case "ask" if absent:
                one = chance.choice(absent)
                self.asks_anew(one, chance.choice(("h1", "h2", "h3")))
            case "pass":
                self.run(f"pass {chance.choice((1, 3, 12))}s")
            case "elect":
                self.run("coordinator is z")
            case "late" if self.heard_once:
                one, signal = chance.choice(self.heard_once)
                self._say(one, signal)
                self.run("pass 1s")
            case "all copies":
                for one in alive:
                    self.run(f"copies {one} 100 ready")
            case "apart":
                for one in alive:
                    self.run(f"copies {one} {chance.randrange(100)}")
            case "all give":
                for one in alive:
                    self.run(f"gives {one}")
            case "all take":
                for one in alive:
                    self.run(f"takes {one}")
            case _ if name:
                self.happens_to(name, what, chance)

    def happens_to(self, name: str, what: str, chance: Random) -> None:
        """The same, to one that lives."""
        match what:
            case "dies" | "silent":
                self.stops(name)
                self.run(f"{what} {name}")
            case "expel":
                self.run(f"expel {name}")
                self.stops(name)
            case "leave" | "back":
                self.leaving[name] = what == "back" and name in NAMED
                self.run("pass 1s")
            case "copies":
                self.run(f"copies {name} {chance.choice((50, 99))} {chance.choice(('', 'ready'))}")
            case "gives" | "takes":
                self.run(f"{what} {name}")
            case "move" | "half":
                half = " half" if what == "half" else ""
                self.run(f"move orders {chance.randrange(PARTITIONS)} to {chance.choice((name, '-'))}{half}")

    def asks_anew(self, name: str, host: str) -> None:
        """A process of that name begins."""
        called = f" as {name}" if name in NAMED else ""
        self.run(f"ask {name} orders{',bills' if name in 'ac' else ''} on {host}{called}")

    def heals(self) -> None:
        """Nothing goes wrong any more."""
        self.leaving.clear()
        for name in [name for name in self.beating if self.member(name) in self.heard.leaving]:
            self.run(f"dies {name}")
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
        assert not self.run("pass 10s"), "it does not come to rest"
        control, staying = self.ledger.control, self.staying()
        wanted = min(self.rules.standbys, len(staying) - 1)
        for place in control.started:
            for n, owner, how in self.at(place):
                assert how is Standing.HELD, f"nobody works on {place} {n}"
                assert owner in staying, f"{owner} has {place} {n}, and is gone"
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
        assert not control.moves.asked
        assert all(copy.role == STANDBY for copy in control.moves.copies.values())


def plays(seed: int, *, heals: bool = True) -> None:
    """A history, and how it ends."""
    chance = Random(seed)
    world = World(chance.choice((0, 0, 1, 2)), chance.choice((1, 2)))
    world.asks_anew(chance.choice("ac"), "h1")
    world.run("pass 3s")
    for _ in range(STEPS):
        world.happens(chance)
    if heals:
        world.heals()
        world.is_at_rest()


def plays_all(seeds: Iterable[int], *, heals: bool) -> None:
    """One after the other."""
    for seed in seeds:
        plays(seed, heals=heals)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_ranges_with_state_move_when_there_is_a_copy(seed: int) -> None:
    """Members die at each step, signals are lost, late and doubled, coordinators are replaced and know nothing."""
    plays(seed)


def test_after_two_plans_for_load_within_a_minute_half_as_many_moves_may_begin() -> None:
    """For ten minutes; a plan that comes later, or for another cause, halves nothing."""
    plan = PlanMade(1, 1, 1, 1, LOAD, 0, 0, 1, ())
    for gap_ms, cause, left in ((59_999, LOAD, 5), (60_000, LOAD, 9), (59_999, "change", 9)):
        seat = Seat("app", "z1", 0)
        seat.note(Batch([plan]), 1_000)
        seat.note(Batch([msgspec.structs.replace(plan, cause=cause)]), 1_000 + gap_ms)
        assert seat.left_of_budget(9, 1_000 + gap_ms) == left
        assert seat.left_of_budget(9, 1_000 + gap_ms + 599_999) == left
        assert seat.left_of_budget(9, 1_000 + gap_ms + 600_000) == 9


PLANTED: dict[str, tuple[str, Put]] = {
    "a release is asked for without a copy": (
        "without a ready copy",
        changed(moves, "_askable", ("if not has_state or is_near", "if not None or is_near")),
    ),
    "a copy that was begun counts as one that is near": (
        "without a ready copy",
        changed(moves, "is_near", (" and kept.is_ready", "")),
    ),
    "what a learner is to have is not fixed": (
        "has lost its destination",
        changed(learning, "_target", ("favoured if is_begun else NOBODY", "NOBODY")),
    ),
    "a request counts for what a learner is to have": (
        "has lost its destination",
        changed(plans, "_moves", ("None if share.is_fixed else ", "")),
    ),
    "what is fixed may be given away": (
        "has lost its destination",
        changed(Books, "_count", ("[] if piece.is_fixed else ", "")),
    ),
    "a member is asked for what it has": (
        "two copies of one point",
        changed(learning, "wanting", ("if kept.incarnation == move.target", "if False")),
    ),
    "slots are not counted": (
        "more passes",
        changed(learning._Slots, "is_free", ("len(own) < self.view.rules.copies_max", "True")),
    ),
    "copies of what nobody works on are ended": (
        "the last ready copy",
        row(learning, "ended", ("if cell.standing is not Standing.HELD:", "if False:")),
    ),
    "copies do not say who is to have what has no owner": (
        "somebody has a ready copy",
        changed(copies, "heir", ("if best is not None and best.is_ready:", "if False:")),
    ),
    "a move goes through whatever copies say": (
        "it waits for a name",
        changed(copies, "may_have", ("in (NOBODY, target)", "!= -1")),
    ),
    "no name is waited for": (
        "it waits for a name",
        changed(copies, "held_for", ("view.now_ms - since_ms < member.hold_ms", "False")),
    ),
    "who had it keeps no copy": (
        "keeps no copy",
        row(moves, "granted", ("demoted.append", "str")),
    ),
    "copies are kept for ever": (
        "copies of",
        changed(learning, "_is_used", ("kept.incarnation in keepers", "True")),
    ),
    "standbys are not asked for": (
        "copies of",
        row(learning, "asked", ("[] if decisions else _standbys_wanted(view, slots)", "[]")),
    ),
    "a standby stays on the host of its owner": (
        "on the host of their owner",
        changed(learning, "_standbys_wanted", ("if lacking <= 0:", "if False:")),
    ),
    "a hold has no end": (
        "nobody works on",
        changed(copies, "held_for", ("view.now_ms - since_ms < member.hold_ms", "True")),
    ),
}
AT_REST = ("copies of", "on the host of their owner", "nobody works on")


@pytest.mark.parametrize(("says", "put"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_defect_is_found(says: str, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of so many histories fails with it, as it should."""
    put(Planting(monkeypatch))
    with pytest.raises(AssertionError, match=says):
        plays_all(range(SEEDS_PLANTED), heals=says in AT_REST)
