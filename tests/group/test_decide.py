"""A coordinator through whatever may happen to a group: each decision is safe, and in the end all have what they can.

The group is that of stage.py. Its judge keeps its own books, half by half of each partition.
"""

from collections.abc import Iterable, Iterator
from random import Random

import pytest

from keylanes.group import cells, features, members, moves, plans
from keylanes.group.cells import Cell, Standing
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets import control
from keylanes.offsets.control_events import Decision, MemberExpelled, MemberFenced, MemberJoined, RangesGranted

from ..stage.planting import Planting, Put, changed
from .finding import row
from .stage import HALF, ROUNDS_MAX, SECOND_MS, Group, bare

NAMES = ("a", "b", "c", "d")
TOPICS = {"orders": 2, "bills": 1}
HALVES = ((0, HALF), (HALF, SPACE_END))
QUIET_S = 45
"""All that a group may wait for is over by then: a session, a release, a leave."""
SEEDS = 150
SEEDS_LONG = 600
SEEDS_PLANTED = 400


class Judged(Group):
    """A group whose every decision is held against books of another kind."""

    factor = 2

    def __init__(self) -> None:
        self.had: dict[tuple[str, int, int], tuple[int, int]] = {}
        """The epoch and owner of each half."""
        self.given: set[tuple[str, int, int, int]] = set()
        """Halves that were released, by epoch."""
        self.expelled: set[int] = set()
        self.fenced: set[int] = set()
        self.names: dict[int, str] = {}
        self.done: dict[tuple[str, int, int], int] = {}
        self.decided: list[Decision] = []
        super().__init__()
        for topic, count in TOPICS.items():
            self.run(f"topic {topic} {count}")

    def judge(self, decision: Decision) -> None:
        self.decided.append(decision)
        match decision:
            case MemberJoined(incarnation=new, instance=instance):
                assert new not in self.names
                others = [i for i, name in self.names.items() if name == instance != "" and i not in self.fenced]
                assert not others, f"{instance} is the name of {others}"
                self.names[new] = instance
            case MemberExpelled(incarnation=incarnation):
                assert incarnation in self.names
                self.expelled.add(incarnation)
            case MemberFenced(incarnation=incarnation):
                assert incarnation in self.expelled & self.seat.fenced, "it was not fenced in this term"
                self.fenced.add(incarnation)
            case RangesGranted():
                self._judge_grant(decision)

    def _judge_grant(self, grant: RangesGranted) -> None:
        assert grant.incarnation in self.names.keys() - self.expelled
        assert grant.incarnation not in self.heard.leaving, "who leaves is given more"
        for band in grant.bands:
            for n, (first, end) in enumerate(HALVES):
                if not (band.first < end and first < band.end):
                    continue
                assert band.first <= first < end <= band.end, "nobody asked for a part of a half"
                half = (grant.topic, grant.partition, n)
                epoch, owner = self.had.get(half, (0, 0))
                is_read = owner in self.fenced and (half[:2], epoch) in self.seat.read
                assert not epoch or (*half, epoch) in self.given or is_read, f"{half} is not free"
                assert grant.epoch > epoch
                assert band.offset_from == self.done.get(half, 0), "it is not where the last owner ended"
                self.had[half] = grant.epoch, grant.incarnation

    def _halves_of(self, name: str) -> Iterator[tuple[str, int, int]]:
        """What a member holds and did not release."""
        for half, (epoch, owner) in self.had.items():
            if owner == self.member(name) and (*half, epoch) not in self.given:
                yield half

    def _do_works(self, name: str) -> None:
        for half in self._halves_of(name) if self.member(name) not in self.stopped else ():
            self.done[half] = self.done.get(half, 0) + 1
        super()._do_works(name)
        assert not self.ledger.violations()

    def _releases(self, incarnation: int, topic: str, partition: int, first: int, end: int) -> None:
        if incarnation in self.stopped:
            return
        super()._releases(incarnation, topic, partition, first, end)
        for half, (epoch, owner) in self.had.items():
            a, b = HALVES[half[2]]
            if owner == incarnation and half[:2] == (topic, partition) and first <= a < b <= end:
                self.given.add((*half, epoch))

    # --- what may happen, where it can ------------------------------------------------------------------------------

    def happens(self, command: str) -> None:
        """Do it, unless it makes no sense now."""
        verb, *words = command.split()
        about = {
            "ask": words[1:2] if words[0] == "again" else words[:1],
            "coordinator": words[1:],
            "move": words[3:4],
        }.get(verb, words)
        names = [word for word in about if word in NAMES]
        if (verb != "ask" or words[0] == "again") and not all(name in self.asks for name in names):
            return
        if verb in ("leave", "release", "gives", "works", "move", "expel") and not all(map(self.member, names)):
            return
        if verb == "move" and (words[0], int(words[1])) not in self.ledger.control.started:
            return
        if verb == "release" and (words[1], int(words[2])) not in self.ledger.partitions:
            return
        if verb in ("ask", "silent") and words[0] != "again" and bare(self.seat.birth) in names:
            others = [name for name in sorted(self.beating) if name not in names]
            if others:  # with the process its office ends
                self.run(f"coordinator is {others[0]}")
            elif verb == "silent":
                return
        self.run(command)
        if verb == "ask" and words[0] != "again" and bare(self.seat.birth) in names:
            self.run(f"coordinator is {names[0]}")

    def recovers(self) -> None:
        """All faults end. Who leaves does it; all others are there, and do what they are asked for."""
        leaving = {bare(self.ledger.control.members[i].birth) for i in self.heard.leaving if i in self._living()}
        here = [name for name in self.asks if name not in leaving] or ["d"]
        if here == ["d"] and "d" not in self.asks:
            self.run("ask d orders,bills")
        self.run("done fences reads decisions")
        for name in leaving:
            for topic, count in TOPICS.items():
                for partition in range(count):
                    self.happens(f"release {name} {topic} {partition}")
            self.beating.discard(name)
        self.run("beats " + " ".join(here))
        self.run(f"coordinator is {here[0]}")
        if here == ["d"]:
            self.run("ask again d")
        begun_ms = self.now_ms
        quiet_s = 0
        while quiet_s < QUIET_S:
            decided = len(self.decided)
            self.run("pass 1s")
            for name in self.asks:
                self.happens(f"gives {name}")
            quiet_s = quiet_s + 1 if len(self.decided) == decided else 0
            assert self.now_ms - begun_ms < ROUNDS_MAX * SECOND_MS, "it does not come to rest"

    def _living(self) -> set[int]:
        return {i for i, member in self.ledger.control.members.items() if not member.expelled}

    def cells(self) -> list[tuple[str, Cell]]:
        """All points, with their topic."""
        return [(place[0], cell) for place in self.ledger.control.started for cell in self.view().cells(place)]


COMMANDS = (
    "ask {who} {topics}{more}",
    "silent {who}",
    "beats {who}",
    "leave {who}",
    "release {who} {place}{half}",
    "gives {who}",
    "works {who}",
    "works {who}",
    "move {place} to {to}{half}",
    "expel {who}",
    "pass {seconds}s",
    "pass {seconds}s",
    "load {place} {busy} 1000",
    "ask again {who}",
    "outage 20s",
    "coordinator is {who}",
    "{holds} {what}",
    "{holds} decisions",
)


def history(seed: int) -> Iterator[str]:
    """What happens, by chance."""
    chance = Random(seed)
    yield "ask a orders"
    for _ in range(chance.randint(3, 40)):
        yield chance.choice(COMMANDS).format(
            who=chance.choice(NAMES),
            to=chance.choice((*NAMES, "-")),
            topics=chance.choice(("orders", "bills", "orders,bills")),
            more=chance.choice(("", "", "", " as blue", " as blue", " factor 1", " level 0")),
            place=chance.choice(("orders 0", "orders 1", "bills 0")),
            half=chance.choice(("", " half")),
            seconds=chance.choice((1, 2, 3, 9, 12, 31)),
            busy=chance.choice((20, 400, 3000)),
            holds=chance.choice(("hold", "done", "done")),
            what=chance.choice(("fences", "reads")),
        )


def plays(seed: int) -> None:
    """A history, then the end of all faults."""
    group = Judged()
    for command in history(seed):
        group.happens(command)
    group.recovers()
    topics_of = {one.incarnation: {source.topic for source in one.joined.topics} for one in group.view().living}
    for topic, cell in group.cells():
        if any(topic in topics for topics in topics_of.values()):
            assert cell.standing is Standing.HELD, f"{topic}: {cell}"
            assert topic in topics_of[cell.owner]


def plays_all(seeds: Iterable[int]) -> None:
    """One after the other."""
    for seed in seeds:
        plays(seed)


def test_each_decision_is_safe_and_at_the_end_all_have_what_they_can() -> None:
    """What is granted is free and begins where the last owner ended; when faults end, whatever somebody who is there
    can handle has an owner who is there and can, and nothing more is decided, however long that lasts.
    """
    plays_all(range(SEEDS))


def test_each_decision_is_safe_in_many_more_histories() -> None:
    """The same for longer."""
    plays_all(range(SEEDS, SEEDS_LONG))


PLANTED: dict[str, Put] = {
    "who is expelled is taken for fenced": changed(
        cells, "_standing", ("if not control.is_fenced(owner):", "if control.is_fenced(owner) and not is_read:")
    ),
    "what was never read is taken for read": changed(cells, "_standing", ("if is_read", "if True")),
    "what is held is granted": row(moves, "granted", ("is Standing.FREE", "in (Standing.FREE, Standing.HELD)")),
    "FENCED for a fence that never was": row(members, "fenced", ("in view.seat.fenced", "not in {0}")),
    "a move that is done is asked for again": changed(
        control, "_grant", ("control.moves.planned.pop(move, None)", "pass")
    ),
    "what was released behind its withdrawal is nobody's": changed(
        plans, "_has_orphans", ("return any(", "return False and any(")
    ),
    "who leaves is given more": row(moves, "granted", ("view.staying", "view.living")),
    "two of one name": changed(
        features,
        "_in_the_way",
        ("if _is_namesake(member, asked):", "if member.expelled and _is_namesake(member, asked):"),
    ),
}


@pytest.mark.interpreted
@pytest.mark.parametrize("put", PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_defect_is_found(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of so many histories fails with it."""
    put(Planting(monkeypatch))
    with pytest.raises(AssertionError):
        plays_all(range(SEEDS_PLANTED))
