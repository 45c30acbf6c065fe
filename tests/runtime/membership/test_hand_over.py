"""Ranges change hands between two members at work: how, in which steps, and that nobody else notices."""

import asyncio
import contextlib
import itertools
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from keylanes import App, State
from keylanes.brokers.protocol import Outgoing
from keylanes.brokers.simulated.broker import Latency
from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.offsets.codec import decode
from keylanes.offsets.events import Event, RangesReleased, WorkersCut
from keylanes.runtime.partition.worker import Worker
from keylanes.runtime.watch.steps import Step

from ...stage.cluster import Cluster
from ...stage.engine import OUT, SOURCE, Engine, application
from ...stage.virtual import Decorator, virtual, virtual_in
from .group import held, until

QUARTER = SPACE_END // 4
PLACE = (SOURCE, 0)
REQUEST_S = 0.001
"""One way, each; a marker takes none."""
ROUND_TRIP_S = 2 * REQUEST_S


class Pair:
    """Two members on one partition: ``owner`` has all of it at first, and coordinates. ``handled``: by key, what was
    begun of it, in order: (value, by whom). ``takes_s``: for how long a record runs.
    """

    takes_s: Callable[[], float] = staticmethod(lambda: 0.0)

    def __init__(self, wrap: Callable[[Any], Any] = Cluster.wrap, **settings: Any) -> None:
        self.cluster = Cluster(1, Latency(request_ms=(REQUEST_S * 1e3,) * 2, marker_ms=(0.0, 0.0)))
        self.cluster.wrap = wrap
        self.options = {"commit_interval_ms": 100, "split_hot_ranges": False, **settings}
        self.gates: dict[int, asyncio.Event] = {}
        self.steps: list[tuple[float, str, Step]] = []
        self.begun: list[tuple[float, str, int]] = []
        self.handled: dict[int, list[tuple[int, str]]] = defaultdict(list)
        self.running: set[int] = set()
        self.sent = 0
        self.sending: asyncio.Task[None] | None = None

    async def start(self, *, is_stateful: bool = False) -> None:
        """Both; the one that starts first has the partition."""
        make = self.counting if is_stateful else self.passing_on
        self.owner, self.other = (
            Engine(make(name), partitions=1, cluster=self.cluster, name=name) for name in ("owner", "other")
        )
        for engine in (self.owner, self.other):
            await engine.start()
            self._listen(engine)
        await until(lambda: held(self.owner) == {0})

    def _listen(self, engine: Engine) -> None:
        loop = asyncio.get_running_loop()

        def hears(step: Step) -> None:
            self.steps.append((loop.time(), engine.name, step))

        engine.hears = hears

    def passing_on(self, name: str) -> App:
        """Without state."""
        app = application(**self.options)

        @app.handler(SOURCE, to=OUT, parallelising_factor=4)
        async def pass_on(value: bytes) -> bytes:
            await self._handle(name, value)
            return value

        return app

    def counting(self, name: str) -> App:
        """With the number of the records of a key."""
        app = application(**self.options)

        @app.handler(SOURCE, to=OUT, parallelising_factor=4)
        async def count(value: bytes, seen: State[int]) -> bytes:
            seen.put((seen.get() or 0) + 1)
            await self._handle(name, value)
            return b"%d %d" % (int(value), seen.get() or 0)

        return app

    async def _handle(self, name: str, value: bytes) -> None:
        number = int(value)
        key = number % KEYS
        assert key not in self.running, "two records of one key run at once"
        self.running.add(key)
        self.begun.append((asyncio.get_running_loop().time(), name, number))
        self.handled[key].append((number, name))
        try:
            if number in self.gates:
                await self.gates[number].wait()
            if seconds := self.takes_s():
                await asyncio.sleep(seconds)
        finally:
            self.running.discard(key)

    def hold(self, number: int) -> asyncio.Event:
        """A record runs until this is set."""
        return self.gates.setdefault(number, asyncio.Event())

    def send(self, count: int = 1) -> None:
        """So many records, of one key after the other."""
        for n in range(self.sent, self.sent + count):
            self.cluster.write([Outgoing(SOURCE, 0, b"k%d" % (n % KEYS), b"%d" % n)], ())
        self.sent += count

    def keep_sending(self, per_ms: int = 2) -> None:
        """Until the end."""

        async def sending() -> None:
            while True:
                self.send(per_ms)
                await asyncio.sleep(0.001)

        self.sending = asyncio.ensure_future(sending())

    async def move(self, to: Engine, within: KeyRange) -> None:
        """A range goes to a member; returns when its workers run."""
        await to.member.work.requests.grant(PLACE, within)

    async def end(self) -> None:
        """All is handled once, in the order of its key; and it ends."""
        if self.sending is not None:
            self.sending.cancel()
        await until(lambda: len(self.cluster.committed_records(OUT)) >= self.sent)
        values = [int((record.value or b"").split()[0]) for record in self.cluster.committed_records(OUT)]
        assert sorted(values) == list(range(self.sent))
        for numbers in self.handled.values():
            assert [number for number, _ in numbers] == sorted(number for number, _ in numbers)
        for engine in (self.other, self.owner):
            if not engine.is_over:
                await engine.stop()

    def workers(self, engine: Engine, within: KeyRange = WHOLE) -> list[Worker]:
        """Of a member, in a range."""
        found = [worker for run in engine.member.runs for worker in run.dispatch.workers]
        return [worker for worker in found if within.first < worker.end and worker.first < within.end]

    def points(self, engine: Engine, within: KeyRange) -> int:
        """How many points of a range a member has."""
        workers = self.workers(engine, within)
        return sum(min(worker.end, within.end) - max(worker.first, within.first) for worker in workers)

    async def first_by(self, engine: Engine, since_s: float) -> float:
        """When a member began its first record from then on."""
        await until(lambda: any(at >= since_s and name == engine.name for at, name, _ in self.begun))
        return next(at for at, name, _ in self.begun if at >= since_s and name == engine.name)

    def events(self, topic: str = "app.offsets") -> list[Event]:
        """What stands in a log."""
        return [decode(record.value or b"") for record in self.cluster.committed_records(topic)]

    def at(self, step: Step, engine: Engine, since_s: float) -> float:
        """When a step was first taken by a member."""
        return next(at for at, name, seen in self.steps if (name, seen) == (engine.name, step) and at >= since_s)


KEYS = 40


def paired(*, is_stateful: bool = False, **options: Any) -> Decorator:
    """Run a test in virtual time, with both members at work."""

    @contextlib.asynccontextmanager
    async def at_work() -> AsyncIterator[Pair]:
        pair = Pair(**options)
        await pair.start(is_stateful=is_stateful)
        yield pair
        await pair.end()

    return virtual_in(at_work)


# --- how fast ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_stateful", "most"), [(False, 12), (True, 22)], ids=["plain", "stateful"])
@virtual
async def test_a_hand_over_takes_few_round_trips(*, is_stateful: bool, most: int) -> None:
    """From when the owner reads what it is asked to when the next one begins a record of it: one transaction of three
    requests, the word that it is released, the reading of that, the grant; and with state what it takes to restore it.
    """
    pair = Pair()
    await pair.start(is_stateful=is_stateful)
    pair.keep_sending()
    await pair.move(pair.other, KeyRange(0, QUARTER))
    took: list[float] = []
    for giver, taker in [(pair.owner, pair.other), (pair.other, pair.owner)] * 3:
        since_s = asyncio.get_running_loop().time()
        in_flight = giver.member.work.cycle.is_sending
        await pair.move(taker, KeyRange(QUARTER, 2 * QUARTER))
        asked = pair.at("asked", giver, since_s)
        there = pair.at("taken up", taker, asked)
        first = await pair.first_by(taker, there)
        transacts = [s for s, name, step in pair.steps if (name, step) == (giver.name, "take") and s >= asked]
        if not in_flight and transacts[0] == asked:  # else it waits for what is on its way already
            took.append((first - asked) / ROUND_TRIP_S)
    assert took, "most begin at once"
    assert max(took) <= most
    await pair.end()


@paired(commit_interval_ms=1_000)
async def test_a_release_is_committed_at_once_and_waits_for_a_record_that_soon_ends(pair: Pair) -> None:
    """Without the lead and the interval; for a moment it waits for what runs, and then it is one transaction."""
    pair.takes_s = lambda: 0.004
    pair.keep_sending(1)
    await asyncio.sleep(0.5)
    since_s = asyncio.get_running_loop().time()
    await pair.move(pair.other, KeyRange(0, QUARTER))
    took = pair.at("released", pair.owner, since_s) - pair.at("asked", pair.owner, since_s)
    assert took <= 0.02 + 0.02, "a transaction in flight, 4 ms for the record, three requests"
    released = [event for event in pair.events() if isinstance(event, RangesReleased)]
    assert len(released) == 1


# --- in parts ---------------------------------------------------------------------------------------------------------


def key_in(within: KeyRange) -> int:
    """A key in a range."""
    return next(key for key in range(KEYS) if within.contains(point_of_key(b"k%d" % key)))


@paired()
async def test_a_record_that_runs_for_long_holds_back_only_its_own_worker(pair: Pair) -> None:
    """The rest is handed over at once; what it holds back follows as soon as it ends."""
    lower, stuck = KeyRange(0, 2 * QUARTER), key_in(KeyRange(0, QUARTER))
    gate = pair.hold(stuck)
    pair.send(KEYS)
    await until(lambda: stuck in pair.running)
    moving = asyncio.ensure_future(pair.move(pair.other, lower))
    await until(lambda: len(pair.workers(pair.other)) == 1, 1.0)
    (worker,) = pair.workers(pair.other)
    assert (worker.first, worker.end) == (QUARTER, 2 * QUARTER)
    assert [w.first for w in pair.workers(pair.owner)] == [0, 2 * QUARTER, 3 * QUARTER]
    pair.send(KEYS)
    await until(lambda: any(name == "other" for _, name, _ in pair.begun), 1.0)
    assert len(pair.handled[stuck]) == 1, "its next record waits, whoever will have it"
    since_s = asyncio.get_running_loop().time()
    gate.set()
    await moving
    assert asyncio.get_running_loop().time() - since_s < 0.1
    assert pair.workers(pair.owner, lower) == []


@paired(handler_timeout_ms=100_000, session_timeout_ms=100_000)
async def test_what_does_not_end_in_time_stays_and_is_named(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """The owner goes on with it; one line says which record it was. What went before has gone."""
    stuck = key_in(KeyRange(0, QUARTER))
    gate = pair.hold(stuck)
    pair.send(KEYS)
    await until(lambda: stuck in pair.running)
    moving = asyncio.ensure_future(pair.move(pair.other, KeyRange(0, 2 * QUARTER)))
    await until(lambda: "was not released in time" in caplog.text, 40.0)
    moving.cancel()
    assert len(pair.workers(pair.other)) == 1
    gate.set()
    pair.send(KEYS)
    await until(lambda: len(pair.handled[stuck]) == 2, 1.0)
    assert {name for _, name in pair.handled[stuck]} == {"owner"}
    lines = [record.getMessage() for record in caplog.records if "was not released in time" in record.getMessage()]
    assert len(lines) == 1
    assert f"in[0]: [00000000, 80000000) was not released in time, what is left of it stays: offset {stuck}" in lines[0]
    assert f"offset {stuck} has been running for 3" in lines[0]


@paired()
async def test_hot_bounds_come_along_also_in_parts(pair: Pair) -> None:
    """The next owner's workers are cut as those before were, though the halves came one after the other."""
    hot = QUARTER // 2
    stuck = key_in(KeyRange(0, hot))
    gate = pair.hold(stuck)
    await pair.owner.member.work.requests.split(PLACE, hot)
    await pair.owner.member.work.requests.split(PLACE, 3 * hot)
    pair.send(KEYS)
    await until(lambda: stuck in pair.running)
    moving = asyncio.ensure_future(pair.move(pair.other, KeyRange(0, 2 * QUARTER)))
    await until(lambda: len(pair.workers(pair.other)) == 3, 1.0)
    gate.set()
    await moving
    assert [worker.first for worker in pair.workers(pair.other)] == [0, hot, QUARTER, 3 * hot]
    await asyncio.sleep(5)  # longer than anything that is cut finer than declared would be held to be merged
    assert [worker.first for worker in pair.workers(pair.other)] == [0, hot, QUARTER, 3 * hot]
    await pair.move(pair.owner, KeyRange(0, 2 * QUARTER))
    await asyncio.sleep(5)
    assert [worker.first for worker in pair.workers(pair.owner)][:4] == [0, hot, QUARTER, 3 * hot]


# --- again and again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stateful", [False, True], ids=["plain", "stateful"])
@virtual
async def test_many_hand_overs_under_load_keep_the_order_of_keys_and_lose_nothing(*, is_stateful: bool) -> None:
    """Ranges of any size go to and fro; each value is the one that the key's records so far have made."""
    rng, pair = random.Random(7), Pair()
    pair.takes_s = lambda: rng.random() * 0.05 if rng.random() < 0.1 else 0.0
    await pair.start(is_stateful=is_stateful)
    pair.keep_sending(1)
    cells = [KeyRange(at * QUARTER // 2, (at + 1) * QUARTER // 2) for at in range(8)]
    for _ in range(30):
        first, last = sorted((rng.randrange(8), rng.randrange(8)))
        within = KeyRange(cells[first].first, cells[last].end)
        engines = [e for e in (pair.owner, pair.other) if pair.points(e, within) < within.size]
        await pair.move(rng.choice(engines), within)
    await pair.end()
    if is_stateful:
        seen: dict[int, int] = defaultdict(int)
        for record in sorted(pair.cluster.committed_records(OUT), key=lambda r: int((r.value or b"").split()[0])):
            number, count = map(int, (record.value or b"").split())
            seen[number % KEYS] += 1
            assert count == seen[number % KEYS]
    assert {name for numbers in pair.handled.values() for _, name in numbers} == {"owner", "other"}


@paired()
async def test_other_ranges_of_both_members_go_on(pair: Pair) -> None:
    """While a quarter changes hands, again and again, no other key waits for longer than it does at rest."""
    moved = KeyRange(QUARTER, 2 * QUARTER)
    others = {key for key in range(KEYS) if not moved.contains(point_of_key(b"k%d" % key))}
    await pair.move(pair.other, KeyRange(0, QUARTER))
    pair.keep_sending()
    await asyncio.sleep(0.2)
    since_s = asyncio.get_running_loop().time()
    for taker in itertools.islice(itertools.cycle((pair.other, pair.owner)), 20):
        await pair.move(taker, moved)
    until_s = asyncio.get_running_loop().time()
    times = [at for at, _, number in pair.begun if since_s <= at <= until_s and number % KEYS in others]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert max(gaps) <= 0.01


@paired(is_stateful=True)
async def test_a_range_that_comes_straight_back_is_not_restored(pair: Pair) -> None:
    """Released, and granted to who had it: the changelog is not read for it, and its state is what it was."""
    await pair.other.stop()  # there is nobody else
    pair.send(2 * KEYS)
    await until(lambda: len(pair.cluster.committed_records(OUT)) == pair.sent)
    read: list[str] = []
    connection: Any = pair.owner.connection
    reader = connection.reader

    async def noted(positions: Any) -> Any:
        read.extend(source.topic for source in positions)
        return await reader(positions)

    connection.reader = noted
    cuts = len([event for event in pair.events() if isinstance(event, WorkersCut)])
    await pair.owner.member.work.requests.release(PLACE, KeyRange(0, 3 * QUARTER))
    await until(lambda: sum(w.end - w.first for w in pair.workers(pair.owner)) == SPACE_END, 1.0)
    pair.send(KEYS)
    await until(lambda: len(pair.cluster.committed_records(OUT)) == pair.sent)
    assert len([event for event in pair.events() if isinstance(event, WorkersCut)]) > cuts
    assert not [topic for topic in read if "changelog" in topic]
    assert sorted(int((r.value or b"").split()[1]) for r in pair.cluster.committed_records(OUT)) == sorted(
        [1, 2, 3] * KEYS
    )
