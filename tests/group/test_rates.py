"""The shares of a limited rate: together never above it, whatever is late, lost, doubled or believed; all of it, in the
end.

What is said here goes through two kinds of logs, as it does in truth: everybody reads them in order, each as far as it
has come, and a beat may be lost or be appended late.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import pytest

from keylanes.group.rates import LEAST, RateFold, RateShares, _Known, limits_of, parts_of
from keylanes.group.signals_fold import COORDINATORS, Heard, partition_of
from keylanes.group.view import CoordinatorMemory, Rules, View
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control_events import (
    AppCreated,
    CoordinatorElected,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
    RangesGranted,
)
from keylanes.offsets.decide import Turn
from keylanes.offsets.event_values import LEVEL, Band, Sourced
from keylanes.offsets.events import Event
from keylanes.offsets.ledger import Ledger, evolve
from keylanes.offsets.signals import BandLoad, Beat, CoordinatorBeat, Load, MemberRates, Rate

from ..stage.planting import Planting, Put, changed
from ..tiers.marks import tier

pytestmark = tier("check")

T = TypeVar("T")

TOPIC, RATE = "orders", 100.0
PARTITIONS = 4
MEMBERS_MAX = 4
EVENTS = (
    *("join", "elect", "expel", "fence", "grant"),
    *("goes on", "tells", "obeys", "says") * 4,
    *("all goes well",) * 2,
)
SEEDS = 300
SEEDS_PLANTED = SEEDS
ROUNDING = 1e-6


@dataclass(slots=True)
class Party:
    """A member: what it obeys, and how far it has read the coordinators' beats."""

    incarnation: int
    at: int
    obeyed: RateFold = field(default_factory=RateFold)
    said: list[Beat] = field(default_factory=list)
    late: list[Beat] = field(default_factory=list)


@dataclass(slots=True)
class Office:
    """A coordinator, or one that was replaced and does not know it yet."""

    term: int
    shares: RateShares
    ledger: Ledger = field(default_factory=Ledger)
    heard: Heard = field(default_factory=lambda: Heard(10_000, 1_000))
    at: int = 0
    number: int = 0
    heard_to: dict[int, int] = field(default_factory=dict)
    """How many beats of each member it has heard."""


class World:
    """A group in which all goes wrong that can."""

    def __init__(self, rates: Iterable[float] = (RATE,)) -> None:
        self.log: list[Event] = []
        self.truth = Ledger()
        self.beats: list[CoordinatorBeat] = []
        self.late: list[CoordinatorBeat] = []
        self.members: dict[int, Party] = {}
        self.offices: list[Office] = []
        self.now_ms = self.epoch = 0
        self.rates = list(rates)
        self.turn = Turn(0)
        self.write(AppCreated("app", "hash", 1))
        self.elect()
        for partition in range(PARTITIONS):
            self.write(PartitionStarted(*self.turn.next(), TOPIC, partition, 0, "earliest", PARTITIONS))

    # --- what happens ----------------------------------------------------------------------------------------------

    def write(self, event: Event) -> None:
        self.log.append(event)
        evolve(self.truth, event)

    def elect(self) -> None:
        term = len(self.offices) + 1
        self.turn = Turn(term)
        self.write(CoordinatorElected(term, "", f"office {term}", "app"))
        self.offices.append(Office(term, RateShares(term)))

    def join(self, rate: float | None = None) -> Party:
        number = max(self.members, default=0) + 1
        topics = (Sourced(TOPIC, 8, "earliest", 0, self.rates[number % len(self.rates)] if rate is None else rate),)
        term, turn = self.turn.next()
        birth, ids = f"member {number}", (f"id {number}",)
        joined = MemberJoined(term, turn, number, "", birth, ids, "", "", 1.0, LEVEL, topics, (), until_level=False)
        self.write(joined)
        self.members[number] = Party(number, len(self.beats))
        return self.members[number]

    def expel(self, incarnation: int) -> None:
        self.write(MemberExpelled(*self.turn.next(), incarnation, "silent", 0))

    def fence(self, incarnation: int) -> None:
        self.write(MemberFenced(*self.turn.next(), incarnation))

    def grant(self, partition: int, incarnation: int) -> None:
        self.epoch += 1
        band = Band(0, SPACE_END, 0)
        self.write(RangesGranted(*self.turn.next(), 0, incarnation, self.epoch, TOPIC, partition, (band,), (), ()))

    def reads(self, office: Office, count: int) -> None:
        """A coordinator reads on in the control log."""
        for event in self.log[office.at : office.at + count]:
            evolve(office.ledger, event)
        office.at = min(len(self.log), office.at + count)

    def hears(self, office: Office, member: Party, count: int) -> None:
        """It hears what a member said."""
        at = office.heard_to.get(member.incarnation, 0)
        for beat in member.said[at : at + count]:
            office.heard.hear(partition_of("", beat.birth), self.now_ms, beat)
        office.heard_to[member.incarnation] = min(len(member.said), at + count)

    def view(self, office: Office) -> View:
        seat = CoordinatorMemory("app", f"office {office.term}", 0)
        return View(office.ledger, office.heard, seat, Rules(load_interval_ms=2_000), office.at, self.now_ms)

    def tells(self, office: Office) -> CoordinatorBeat:
        """It beats: what it says, which was not appended yet."""
        office.number += 1
        rates = office.shares.tell(office.number, office.shares.next_shares(self.view(office)))
        return CoordinatorBeat(office.term, office.number, False, 1_000, False, (), rates, ())

    def obeys(self, member: Party, count: int) -> None:
        """A member reads on in the coordinators' partition."""
        for beat in self.beats[member.at : member.at + count]:
            member.obeyed.hear(beat, member.incarnation)
        member.at = min(len(self.beats), member.at + count)

    def says(self, member: Party) -> None:
        member.said.append(member.obeyed.beat(member.incarnation, f"member {member.incarnation}", 0, 0))

    # --- what is true ----------------------------------------------------------------------------------------------

    def unfenced(self) -> list[Party]:
        return [self.members[member.incarnation] for member in self.truth.control.unfenced_members()]

    def living(self) -> list[Party]:
        return [self.members[m.incarnation] for m in self.truth.control.unfenced_members() if not m.expelled]

    def in_use(self) -> float:
        return sum(member.obeyed.shares.get(TOPIC, 0.0) for member in self.unfenced())

    def happens(self, chance: Random) -> None:
        """Something, by chance."""
        office = chance.choice(self.offices[-2:])
        living, unfenced = self.living(), self.unfenced()
        member = chance.choice([*self.members.values()]) if self.members else None
        count = chance.choice((1, 2, 100))
        match chance.choice(EVENTS):
            case "join" if len(unfenced) < MEMBERS_MAX:
                self.join()
            case "elect" if chance.random() < 0.5:
                self.elect()
            case "expel" if living:
                self.expel(chance.choice(living).incarnation)
            case "fence" if gone := [one for one in unfenced if one not in living]:
                self.fence(chance.choice(gone).incarnation)
            case "grant" if living:
                self.grant(chance.randrange(PARTITIONS), chance.choice(living).incarnation)
            case "all goes well":
                self.goes_well()
            case "goes on":
                self.reads(office, count)
                for one in self.members.values():
                    self.hears(office, one, chance.choice((0, 1, 100)))
            case "tells" if office.ledger.control.term == office.term:  # it has read of its election, and of no other
                append(chance, self.beats, self.late, self.tells(office))
            case "obeys" if member is not None:
                self.obeys(member, count)
            case "says" if member is not None:
                self.says(member)
                append(chance, member.said, member.late, member.said.pop())
        self.now_ms += chance.choice((0, 10, 1_000))

    def heals(self) -> int:
        """All is read and heard, again and again, until nothing more is told; in how many rounds."""
        for rounds in range(20):
            if not self.goes_well():
                return rounds
        raise AssertionError("shares never come to rest")

    def goes_well(self) -> bool:
        """All is read and heard once; whether there was anything to be told."""
        office = self.offices[-1]
        self.now_ms += 10
        self.reads(office, len(self.log))
        for member in self.members.values():
            self.hears(office, member, len(member.said))
        is_due = office.shares.is_due(office.shares.next_shares(self.view(office)))
        if not is_due and not office.shares.is_awaiting:
            return False
        self.beats.append(self.tells(office))
        for member in self.living():
            self.obeys(member, len(self.beats))
            self.says(member)
        self.see_in_use()
        return True

    def see_in_use(self) -> None:
        assert self.in_use() <= RATE, f"{self.in_use()} of {RATE} may begin in a second"


def append(chance: Random, log: list[T], late: list[T], said: T) -> None:
    """To a log; sometimes late, behind what is said later, or never."""
    chance.choice((log, log, log, late, list[T]())).append(said)
    if late and chance.random() < 0.3:
        log.append(late.pop(chance.randrange(len(late))))


def plays(seed: int) -> None:
    """A history, then the end of all faults."""
    chance, world = Random(seed), World()
    for _ in range(chance.randint(10, 300)):
        world.happens(chance)
        world.see_in_use()
    for member in world.unfenced():
        if member not in world.living():
            world.fence(member.incarnation)
    world.join()
    world.heals()
    shares = [member.obeyed.shares[TOPIC] for member in world.living()]
    assert sum(shares) == pytest.approx(RATE), "all of it is used in the end"
    assert min(shares) >= LEAST * RATE / len(shares) * (1 - ROUNDING), "each has what it needs to begin"


def plays_all(seeds: Iterable[int]) -> None:
    """One after the other."""
    for seed in seeds:
        plays(seed)


def test_shares_are_never_above_the_rate_and_at_last_all_of_it() -> None:
    """Members come, are expelled and fenced, coordinators are replaced and do not know it, beats are lost and late."""
    plays_all(range(SEEDS))


PLANTED: dict[str, Put] = {
    "a share is raised before another one is known to be lowered": changed(
        _Known,
        "most",
        ("max([self.shares.get(topic, 0.0), *(", "sum([0.0, *("),
        ("in self.told)", "in self.told[-1:])"),
    ),
    "a share is free when its member is expelled": changed(
        RateShares,
        "next_shares",
        ("for m in view.control.unfenced_members() if any", "for m in view.living_members if any"),
    ),
    "a new coordinator takes shares that it does not know for none": changed(
        RateShares, "_of_topic", ("for i in self._unheard)", "for i in ())")
    ),
    "a beat of a coordinator that was replaced is obeyed": changed(
        RateFold, "hear", ("(beat.term, beat.number) <= (self.term, self.number)", "False")
    ),
    "what a member said before counts again": changed(
        RateShares, "hear", ("or (known is not None and beat.number < known.number)", "")
    ),
}


@tier("test")
@pytest.mark.parametrize("put", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_defect_is_found(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of so many histories fails with it."""
    put(Planting(monkeypatch))
    with pytest.raises(AssertionError, match="may begin in a second"):
        plays_all(range(SEEDS_PLANTED))


def test_a_beat_without_a_share_changes_none() -> None:
    """Nor does one that is older, or one that speaks of another incarnation."""
    obeyed = RateFold()
    beats = [
        (CoordinatorBeat(2, 5, False, 1_000, False, (), (MemberRates(1, (Rate("a", 4.0), Rate("b", 2.0))),), ()), True),
        (CoordinatorBeat(2, 4, False, 1_000, False, (), (MemberRates(1, (Rate("a", 9.0),)),), ()), False),
        (CoordinatorBeat(2, 6, False, 1_000, False, (), (MemberRates(2, (Rate("a", 9.0),)),), ()), False),
        (CoordinatorBeat(3, 1, True, 1_000, False, (), (), ()), True),
        (CoordinatorBeat(2, 7, False, 1_000, False, (), (MemberRates(1, (Rate("a", 9.0),)),), ()), False),
    ]
    for beat, is_news in beats:
        assert obeyed.hear(beat, 1) is is_news
        assert obeyed.shares == {"a": 4.0, "b": 2.0}
    assert obeyed.beat(1, "m", 7, 3) == Beat(1, "m", 7, 3, 3, 1, (Rate("a", 4.0), Rate("b", 2.0)))


def test_a_rate_is_parted_by_load() -> None:
    """By records and backlog; before all was measured, by how much each owns; and nobody has less than the least."""
    world = World()
    one, other, idle = (world.join() for _ in range(3))
    for partition in range(PARTITIONS):
        world.grant(partition, one.incarnation if partition < 3 else other.incarnation)
    office = world.offices[0]
    world.reads(office, len(world.log))
    least = LEAST / 3
    assert parts_of(world.view(office), TOPIC) == pytest.approx(
        {1: least + (1 - LEAST) * 3 / 4, 2: least + (1 - LEAST) / 4, 3: least}
    )
    bands = [
        BandLoad(
            TOPIC, partition, 0, SPACE_END, 9, 1_000, 10 if partition < 3 else 60, 100 if partition < 3 else 600, 0, ()
        )
        for partition in range(PARTITIONS)
    ]
    for band in bands:
        office.heard.hear(1, 0, Load(1, 1_000, (band,)))
    assert parts_of(world.view(office), TOPIC) == pytest.approx(
        {1: least + (1 - LEAST) / 3, 2: least + (1 - LEAST) * 2 / 3, idle.incarnation: least}
    )


def test_a_change_of_load_moves_shares_once_it_is_large() -> None:
    """By less than a tenth of an even part none is told anew."""
    world = World()
    for member in (world.join(), world.join()):
        world.grant(member.incarnation, member.incarnation)
    office = world.offices[0]
    for records, changes in ((100, False), (104, False), (300, True), (310, False), (100, True)):
        band = BandLoad(TOPIC, 1, 0, SPACE_END, 9, 1_000, records, 0, 0, ())
        other = BandLoad(TOPIC, 2, 0, SPACE_END, 9, 1_000, 100, 0, 0, ())
        world.now_ms += 10_000
        office.heard.hear(1, world.now_ms, Load(1, 1_000, (band, other)))
        before = dict(world.members[1].obeyed.shares)
        world.heals()
        assert not before or (world.members[1].obeyed.shares != before) is changes
    assert COORDINATORS not in office.heard.beats


def test_members_that_differ_have_the_lowest_rate() -> None:
    """While a rollout raises or lowers it; who has none of its own is not counted."""
    world = World()
    for rate in (RATE, 60.0, 0.0):
        world.join(rate)
    assert limits_of(world.truth.control.members.values()) == {TOPIC: 60.0}
    world.heals()
    assert [sum(m.obeyed.shares.values()) for m in world.living()] == pytest.approx([30.0, 30.0, 0.0])
    world.expel(2)
    world.fence(2)
    world.heals()
    assert [sum(m.obeyed.shares.values()) for m in world.living()] == pytest.approx([RATE, 0.0])
