"""A generation that the broker refuses is taken apart until what is refused stands alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.brokers.protocol import Outgoing, TransactionRefused
from keylanes.brokers.simulated.broker import SimulatedRecord
from keylanes.keyrange.hashing import point_of_key
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.event_values import Edge
from keylanes.offsets.provenance import ERROR_HEADER, TIMESTAMP_HEADER, place_seed
from keylanes.runtime.handlers.handler import DeadLetter, Stop
from keylanes.runtime.handlers.outputs import Destination, result_of
from keylanes.runtime.handlers.record_result import RecordResult
from keylanes.runtime.partition.cut import Cut, Released
from keylanes.runtime.partition.dispatch import PartitionDispatch
from keylanes.runtime.partition.generation import Generation, take_generation
from keylanes.runtime.partition.taking_apart import Apart, Failed, Replaced, Unblamed, take_apart
from keylanes.runtime.partition.worker import WorkerNumbers
from keylanes.state.keys import state_key
from keylanes.state.overlay import Layer, Overlay

from ...tiers.marks import tier

pytestmark = tier("check")

WORKERS = 4
KEYS = [next(k for i in range(1_000) if point_of_key(k := b"k%d" % i) >> 30 == w) for w in range(WORKERS)]
"""A key for each of four workers."""
KNOWN = {"dead": Destination(3, 1 << 20, False)}
POLICIES: dict[str, DeadLetter | Stop] = {"a": DeadLetter("dead"), "b": Stop()}
RELEASED = Released(PartitionDispatch("a", 0, 0, 1, WorkerNumbers()), 2, (Edge(0, 1, 0),))
ADDED = Cut(RELEASED.dispatch, 2, 9, (0, 1))

Step: TypeAlias = tuple[int, str, int]
"""(worker, what its next record does, how many outputs it has)."""
Part: TypeAlias = list[tuple[str, int, int, int, list[int]]]
"""(topic, worker, offset_from, offset_to, offsets of producing records) of each share."""

STEPS = st.lists(
    st.tuples(
        st.integers(0, WORKERS - 1),
        st.sampled_from(("straight", "straight", "laid", "kept", "kept", "dead", "change", "nothing")),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=10,
)


@dataclass
class Lane:
    """The dumb twin of a worker's share: what its records produced, and how far it is done."""

    topic: str
    number: int
    end: int
    produced: list[tuple[int, str, list[bytes]]] = field(default_factory=list)
    """(offset, what it did, the values that it sent) of each record that is kept by itself."""
    changed: set[bytes] = field(default_factory=set)
    """The values that its records wrote into the state."""

    def share(self, start: int, end: int, offsets: list[int]) -> Part:
        """A share as ``shares`` tells it."""
        return [(self.topic, self.number, start, end, offsets)]

    def whole(self) -> Part:
        """The share in one piece."""
        return self.share(0, self.end, [offset for offset, *_ in self.produced])

    def one_by_one(self) -> list[Part]:
        """Each record alone: up to the next one's offset, the last one to the end."""
        offsets = [offset for offset, *_ in self.produced]
        edges = [0, *offsets[1:], self.end]
        return [self.share(edges[i], edges[i + 1], [offset]) for i, offset in enumerate(offsets)]


def shares(generation: Generation) -> Part:
    """The shares of a generation, as the twin knows them."""
    return [
        (s.dispatch.topic, s.number, s.offset_from, s.offset_to, [d.record.offset for d in s.done])
        for s in generation.shares
    ]


def sent(generations: Iterable[Generation]) -> dict[tuple[bytes, bytes | None], list[bytes]]:
    """The values that each worker's records send, in order."""
    found: dict[tuple[bytes, bytes | None], list[bytes]] = {}
    for output in (output for generation in generations for output in generation.outputs()):
        value = output.value or b""
        found.setdefault((value[:1], output.key), []).append(value)
    return found


def changed(generations: Iterable[Generation]) -> list[bytes]:
    """The values that are written into the state."""
    found = [change.last.values() for generation in generations for change in generation.changes()]
    return sorted(value for values in found for value in values if value is not None)


def refused(culprits: Iterable[int]) -> TransactionRefused:
    """What an adapter raises."""
    return TransactionRefused("too old", sorted(culprits))


def worked(topic: str, steps: Sequence[Step], numbers: WorkerNumbers) -> tuple[PartitionDispatch, list[Lane]]:
    """A partition whose records are through, and what the twin knows of them."""
    dispatch, overlay = PartitionDispatch(topic, 0, 0, 1 << 20, numbers), Overlay(1_000)
    dispatch.incarnation, dispatch.epoch, dispatch.app_id = 5, 2, b"test app"
    dispatch.add_workers(even_bounds(WORKERS), lambda first: 0)
    lanes = [Lane(topic, worker.number, len(steps)) for worker in dispatch.workers]
    for offset, (w, kind, outputs) in enumerate(steps):
        worker, lane, key, name = dispatch.workers[w], lanes[w], KEYS[w], f"{topic}.{offset}"
        record = SimulatedRecord(offset, 0, key, b"", ())
        worker.done_to = offset + 1
        changes = Layer()
        if kind in ("laid", "change"):
            changes.append(overlay.entry_of(state_key(point_of_key(key), 0, name.encode())), name.encode())
            lane.changed.add(name.encode())
        stretch = dispatch.open_stretch(worker) if kind in ("straight", "laid") else None
        built = [Outgoing("out", 0, key, f"{name}.{i}".encode()) for i in range(1 if kind == "straight" else outputs)]
        if kind == "nothing" or (kind == "kept" and not outputs):
            continue
        if stretch is not None and kind == "laid":
            stretch.changes.append(changes.entries[0], changes.values[0])
            stretch.size += 7
            continue
        lane.produced.append((offset, kind, [output.value or b"" for output in built]))
        if stretch is not None:
            done = result_of(record, built[0], place_seed(topic, 0))
            stretch.size += done.size
            stretch.send(worker, record, built[0], done.digest)
        else:
            done = RecordResult(record, built, kind == "dead", 1 << offset, 10)
            done.changes = changes if kind in ("laid", "change") else None
            worker.keep(done)
    dispatch.front = len(steps)
    return dispatch, lanes


def taken(*plans: Sequence[Step]) -> tuple[Generation, list[Lane]]:
    """All that is done in partitions of the topics a, b, …, with a change of structure before and one behind it."""
    numbers = WorkerNumbers()
    found = [worked(topic, steps, numbers) for topic, steps in zip("ab", plans, strict=False)]
    generation = take_generation([(d, d.draw_line()) for d, _ in found], records_max=1_000, bytes_max=1 << 30)
    generation.structure.append(RELEASED)
    generation.opening.append(ADDED)
    return generation, [lane for _, lanes in found for lane in lanes]


def expected(lanes: Sequence[Lane], culprits: Iterable[int]) -> list[Part]:
    """The dumb twin: the innocent go first together, with the opening, then each guilty lane record by record."""
    owners = [lane.number for lane in lanes for *_, values in lane.produced for _ in values]
    guilty = {owners[i] for i in culprits}
    together = [share for lane in lanes if lane.number not in guilty for share in lane.whole()]
    alone = [part for lane in lanes if lane.number in guilty for part in lane.one_by_one()]
    return [together, *alone]


@given(st.tuples(STEPS, STEPS), st.data())
def test_parts_are_those_of_a_dumb_twin(plans: tuple[list[Step], list[Step]], data: st.DataObject) -> None:
    """The innocent first, then the guilty record by record: each output and change once. What was cut before comes with
    the first part, other structure with the last.
    """
    generation, lanes = taken(*plans)
    values, size, has_stretches = sent([generation]), generation.size, bool(generation.stretches)
    count = len(generation.outputs())
    culprits = data.draw(st.sets(st.integers(0, count - 1))) if count else set()
    beyond = data.draw(st.sets(st.integers(count, count + 3)))
    verdict = take_apart(generation, refused(culprits | beyond), POLICIES, KNOWN)
    if not culprits:
        assert isinstance(verdict, Unblamed)
        return
    if has_stretches:  # what is in them is told record by record first
        assert verdict == Apart([generation])
        assert not generation.stretches
        assert sent([generation]) == values
        verdict = take_apart(generation, refused(culprits), POLICIES, KNOWN)
    if sum(len(lane.produced) for lane in lanes) == 1:
        assert not isinstance(verdict, Apart | Unblamed)
        return
    assert isinstance(verdict, Apart)
    parts = verdict.parts
    assert [shares(part) for part in parts] == expected(lanes, culprits)
    assert sent(parts) == values
    assert changed(parts) == sorted(value for lane in lanes for value in lane.changed)
    assert sum(part.size for part in parts) == size
    assert [part.structure for part in parts] == [[]] * (len(parts) - 1) + [[RELEASED]]
    assert [part.opening for part in parts] == [[ADDED]] + [[]] * (len(parts) - 1)


@dataclass
class Log:
    """A broker that refuses some values for good, and dead letters or not."""

    bad: set[bytes]
    refuses_letters: bool
    committed: list[Generation] = field(default_factory=list)

    def refuses(self, output: Outgoing) -> bool:
        """Whether it would take it."""
        if output.topic != "dead":
            return output.value in self.bad
        return self.refuses_letters


def sent_through(generation: Generation, log: Log, data: st.DataObject) -> tuple[Failed | None, int]:
    """Send as the transactions do; what ended it, and by how many bytes what is sent has grown."""
    waiting, grown = [generation], 0
    while waiting:
        part = waiting.pop(0)
        outputs = part.outputs()
        guilty = [i for i, output in enumerate(outputs) if log.refuses(output)]
        if not guilty:
            log.committed.append(part)
            continue
        blamed = {data.draw(st.sampled_from(guilty)), *data.draw(st.sets(st.integers(0, len(outputs) - 1), max_size=3))}
        match take_apart(part, refused(blamed), POLICIES, KNOWN):
            case Apart(parts):
                waiting = [*parts, *waiting]
            case Replaced(again, _, grown_bytes):
                waiting, grown = [again, *waiting], grown + grown_bytes
            case Failed() as failed:
                return failed, grown
            case Unblamed(why):
                pytest.fail(why)
    return None, grown


@given(st.tuples(STEPS, STEPS), st.booleans(), st.data())
def test_all_that_is_not_refused_is_sent_once_and_in_order(
    plans: tuple[list[Step], list[Step]], refuses_letters: bool, data: st.DataObject
) -> None:
    """A refused record is a dead letter in its place, or ends the application with less of each worker sent."""
    generation, lanes = taken(*plans)
    every = [output.value or b"" for output in generation.outputs()]
    bad = data.draw(st.sets(st.sampled_from(every), min_size=1, max_size=3)) if every else set()
    size, log = generation.size, Log(bad, refuses_letters)
    failed, grown = sent_through(generation, log, data)
    wanted: dict[int, list[list[bytes]]] = {lane.number: [] for lane in lanes}
    stops = False
    for lane in lanes:
        for _, kind, values in lane.produced:
            is_bad = not bad.isdisjoint(values)
            stops = stops or (is_bad and (lane.topic == "b" or kind in ("change", "laid", "dead") or refuses_letters))
            wanted[lane.number].append([b"letter"] if is_bad else values)
    got: dict[int, list[list[bytes]]] = {lane.number: [] for lane in lanes}
    for part in log.committed:
        part.spread()
        for share in part.shares:
            for done in share.done:
                told = [b"letter" if output.topic == "dead" else output.value or b"" for output in done.outputs]
                got[share.number].append(told)
                assert all(has_letter_headers(output) for output in done.outputs if output.topic == "dead")
    structure = [event for part in log.committed for event in part.structure]
    if stops:
        assert failed is not None
        assert all(more == wanted[number][: len(more)] for number, more in got.items())
        assert structure == []
    else:
        assert failed is None
        assert got == wanted
        assert structure == log.committed[-1].structure == [RELEASED]
        assert sum(part.size for part in log.committed) == size + grown


def has_letter_headers(letter: Outgoing) -> bool:
    """The cause, and the time of the record."""
    return {ERROR_HEADER, TIMESTAMP_HEADER} <= dict(letter.given_headers).keys()


def alone(topic: str, kind: str) -> Generation:
    """One record of a topic."""
    plans: tuple[list[Step], ...] = ([(0, kind, 1)],) if topic == "a" else ([(0, "nothing", 0)], [(0, kind, 1)])
    return taken(*plans)[0]


WHERE = "[0] offset 0: the broker refuses its output: too old"


@pytest.mark.parametrize(
    ("topic", "kind", "known", "why"),
    [
        ("b", "kept", KNOWN, f"b{WHERE}"),
        ("a", "dead", KNOWN, f"a{WHERE}"),
        ("a", "kept", {}, f"a{WHERE}"),
        ("a", "change", KNOWN, f"a{WHERE}; it changed state, so it can't become a dead letter any more"),
    ],
    ids=["policy", "dead letter without a time", "unknown topic", "changed state"],
)
def test_a_record_that_can_be_no_dead_letter_stops_the_application(
    topic: str, kind: str, known: dict[str, Destination], why: str
) -> None:
    """By its policy, or because nothing can be sent in its place."""
    assert take_apart(alone(topic, kind), refused([0]), POLICIES, known) == Failed(why)


def test_a_record_that_stands_alone_becomes_a_dead_letter() -> None:
    """Refused once more, it ends the application."""
    generation = alone("a", "kept")
    first = take_apart(generation, refused([0]), POLICIES, KNOWN)
    (letter,) = generation.outputs()
    assert first == Replaced(generation, f"a{WHERE}; it goes to dead", generation.size - 10, "a")
    assert (letter.topic, letter.timestamp) == ("dead", None)
    assert take_apart(generation, refused([0]), POLICIES, KNOWN) == Failed(f"a{WHERE}")


def test_what_is_refused_beyond_the_outputs_is_ours() -> None:
    """There is no record to blame for it."""
    why = "the broker refuses to take the offset log's events or changes of state: too old"
    assert take_apart(alone("a", "kept"), refused([1, 2]), POLICIES, KNOWN) == Unblamed(why)
