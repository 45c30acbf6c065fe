"""When an application is level: chains, circles, destinations found late."""

import asyncio
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.brokers.protocol import TopicPartition
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE
from keylanes.runtime.engine.ends import Ends

from ...stage.engine import OUT, SOURCE, Engine, application
from ...stage.virtual import virtual

A, B, C = (TopicPartition(name, 0) for name in "abc")


def test_sources_of_others_end_where_they_ended_at_the_start() -> None:
    """Without a handler that writes to a source nothing is pinned anew."""
    level = Ends({A: 5, B: 7}, [("a", "out")])
    assert not level.is_caught_up({A: 5, B: 6})
    assert not level.is_caught_up({A: 5})
    assert level.is_caught_up({A: 5, B: 9})
    assert level.to_pin({A: 5, B: 7}) == []


def test_who_goes_on_sending_keeps_nobody_from_an_end() -> None:
    """Records beyond the ends go through the chain too, and its ends stay."""
    level = Ends({A: 5, B: 0}, [("a", "b")])
    level.pin(dict.fromkeys(level.to_pin({A: 9, B: 4}), 5))
    assert level.ends == {A: 5, B: 5}
    assert level.is_caught_up({A: 30, B: 5})


def test_all_partitions_count() -> None:
    """A topic is level when all its partitions are; they are pinned together."""
    other = TopicPartition("b", 1)
    level = Ends({A: 1, B: 0, other: 0}, [("a", "b")])
    assert level.to_pin({A: 1, B: 0, other: 0}) == [B, other]
    level.pin({B: 1, other: 2})
    assert not level.is_caught_up({A: 1, B: 1, other: 1})
    assert level.is_caught_up({A: 1, B: 1, other: 2})


def test_a_circle_ends_where_it_ended_at_the_start() -> None:
    """What a handler that writes to its own source makes of its own records never ends, so it is not waited for."""
    level = Ends({A: 2}, [("a", "a")])
    assert level.to_pin({A: 2}) == []
    assert not level.is_caught_up({A: 1})
    assert level.is_caught_up({A: 2})


def test_a_circle_waits_for_what_comes_into_it() -> None:
    """Its ends are taken when all upstream of it is level."""
    level = Ends({A: 2, B: 1, C: 1}, [("a", "b"), ("b", "c"), ("c", "b")])
    assert level.to_pin({A: 1, B: 1, C: 1}) == []
    assert level.to_pin({A: 2, B: 1, C: 1}) == [B, C]
    level.pin({B: 3, C: 2})
    assert not level.is_caught_up({A: 2, B: 3, C: 1})
    assert level.is_caught_up({A: 2, B: 3, C: 2})


def test_a_destination_that_is_found_late_counts() -> None:
    """A source that was level is pinned anew when it turns out that somebody upstream of it writes to it."""
    level = Ends({A: 2, B: 1}, [])
    assert level.is_caught_up({A: 2, B: 1})
    assert not level.discover("a", "out")
    assert level.discover("a", "b")
    assert not level.discover("a", "b")
    assert not level.is_caught_up({A: 2, B: 1})
    assert level.to_pin({A: 2, B: 1}) == [B]
    level.pin({B: 2})
    assert level.discover("b", "a"), "now it is a circle"
    assert level.is_caught_up({A: 2, B: 2})


class Twin:
    """Topics of one partition whose records say how many records they make, where; played in any order."""

    def __init__(self, chance: random.Random, topics: int, *, circles: bool, declared: float) -> None:
        self.chance = chance
        names = "abcdefgh"[:topics]
        self.writes = [
            (one, other)
            for i, one in enumerate(names)
            for j, other in enumerate(names)
            if (circles or i < j) and chance.random() < 0.4
        ]
        self.declared = [pair for pair in self.writes if chance.random() < declared]
        self.records: dict[str, list[int]] = {
            name: [chance.randrange(4) for _ in range(chance.randrange(6))] for name in names
        }
        self.originals = {name: len(own) for name, own in self.records.items()}
        self.edges = dict.fromkeys(names, 0)
        self.descends: dict[str, list[bool]] = {name: [True] * len(own) for name, own in self.records.items()}
        self.level = Ends(self.marks(), self.declared)

    def marks(self) -> Mapping[TopicPartition, int]:
        return {TopicPartition(name, 0): len(own) for name, own in self.records.items()}

    def handle_one(self) -> bool:
        """The next record of some topic; False when all are done."""
        waiting = [name for name, own in self.records.items() if self.edges[name] < len(own)]
        if not waiting:
            return False
        name = self.chance.choice(waiting)
        life = self.records[name][self.edges[name]]
        for source, destination in self.writes:
            if source == name and life and self.chance.random() < 0.7:
                self.level.discover(source, destination)
                self.records[destination].append(life - 1)
                self.descends[destination].append(self.descends[name][self.edges[name]])
        self.edges[name] += 1
        return True

    def send_one(self) -> None:
        """Somebody else goes on sending."""
        name = self.chance.choice(list(self.records))
        self.records[name].append(0)
        self.descends[name].append(False)

    def look(self) -> bool:
        """What a member does now and then; whether it may end."""
        edges = {TopicPartition(name, 0): edge for name, edge in self.edges.items()}
        wanted = self.level.to_pin(edges)
        if wanted and self.chance.random() < 0.3:
            self.handle_one()  # between the look and the answer of the broker
        self.level.pin({source: mark for source, mark in self.marks().items() if source in wanted})
        return self.level.is_caught_up(edges)

    def lost(self) -> list[tuple[str, int]]:
        """What was there at the start, or came of it, and is not done."""
        return [
            (name, i)
            for name, own in self.descends.items()
            for i, is_ours in enumerate(own)
            if is_ours and i >= self.edges[name]
        ]


@given(st.integers(0, 1 << 32), st.integers(1, 6), st.booleans(), st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_level_means_done_and_is_reached(seed: int, topics: int, circles: bool, declared: float, is_fed: bool) -> None:
    """Some time it says level, and then all that came of the first records is done, but for what goes round."""
    chance = random.Random(seed)
    twin = Twin(chance, topics, circles=circles, declared=declared)
    for _ in range(20_000):
        if chance.random() < 0.3:
            if twin.look():
                assert circles or not twin.lost()
                break
        elif is_fed and chance.random() < 0.1:
            twin.send_one()
        else:
            twin.handle_one()
    else:
        pytest.fail("never level")


@given(st.integers(0, 1 << 32))
def test_without_circles_each_topic_is_pinned_once(seed: int) -> None:
    """Where all is declared and nothing goes round, the broker is asked at most once for each topic."""
    chance = random.Random(seed)
    twin = Twin(chance, 6, circles=False, declared=1.0)
    asked: list[str] = []
    while True:
        edges = {TopicPartition(name, 0): edge for name, edge in twin.edges.items()}
        wanted = twin.level.to_pin(edges)
        asked += {source.topic for source in wanted}
        twin.level.pin({source: twin.marks()[source] for source in wanted})
        if twin.level.is_caught_up(edges):
            break
        twin.handle_one()
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize("part", [True, False], ids=["a-part", "all"])
@virtual
async def test_a_range_that_is_given_up_before_the_level_comes_back_and_is_done(*, part: bool) -> None:
    """Where there is nobody else to have it; the run ends when it is level, too."""
    gate = asyncio.Event()
    app = application(commit_interval_ms=20, commit_lead_ms=5)

    @app.handler(SOURCE, to=OUT, parallelising_factor=2)
    async def look(value: bytes) -> bytes:
        await gate.wait()
        return value

    engine = Engine(app)
    for n in range(20):
        engine.send(b"%d" % n, b"%d" % n)
    member = await engine.start(until_level=True)
    await asyncio.sleep(1)
    lower, _ = WHOLE.split(SPACE_END // 2)
    back = engine.hold_back()
    leaving = asyncio.create_task(member.work.requests.release((SOURCE, 0), lower if part else WHOLE))
    await asyncio.sleep(10)
    assert not leaving.done()
    gate.set()
    await leaving
    await asyncio.sleep(60)
    assert not engine.task.done(), "what nobody works on is not level"
    back.set()
    await engine.task
    assert sorted(int(record.value or b"") for record in engine.cluster.committed_records(OUT)) == list(range(20))
