"""Questions for state: who answers, what they are told who ask another one, and that nobody answers with what was."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from keylanes import App, Elsewhere, State, StateNotReady
from keylanes.brokers.partitioner import partition_of_key
from keylanes.brokers.protocol import BrokerError, BrokerProducer, Outgoing
from keylanes.brokers.simulated.broker import Latency
from keylanes.keyrange.hashing import SPACE_END, point_of_key
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.offsets.codec import encode
from keylanes.offsets.ledger import SourcePartition
from keylanes.runtime.stores.view import DeclaredStore, StoreView
from keylanes.state.changelog import decode_stored, encode_stored
from keylanes.state.keys import parse_key, state_key
from keylanes.state.memory import MemoryCopies, MemoryCopy

from ...stage.engine import OUT, SOURCE, Engine, application
from ...stage.log_events import member_fenced
from ...stage.passing import Passing
from .group import BEAT_S, SESSION_S, Group, held, in_group, share, start, until
from .test_hand_over import KEYS, QUARTER, REQUEST_S, Pair, key_in, paired
from .test_members import Deaf

LOWER = KeyRange(0, 2 * QUARTER)


def counting(**settings: Any) -> App:
    """Counts the records of each key."""
    app = application(**{"commit_interval_ms": 100, **settings})

    @app.handler(SOURCE, to=OUT, parallelising_factor=4)
    async def count(value: bytes, seen: State[int]) -> bytes:
        seen.put((seen.get() or 0) + 1)
        return value

    return app


async def two(group: Group, **settings: Any) -> tuple[Engine, Engine]:
    """Two members that share the partitions, each with an endpoint."""
    first, second = (group.process(n, counting(endpoint=f"http://{n}:80", **settings)) for n in "ab")
    await start(first, second)
    return first, second


# --- where it is ------------------------------------------------------------------------------------------------------


@in_group(partitions=2)
async def test_who_does_not_have_a_key_says_who_has_it(group: Group) -> None:
    """By its incarnation and its endpoint; of a partition that is named, of a key, of a scan."""
    first, second = await two(group)
    group.send(2)  # k0 in partition 0, k1 in 1
    await group.done()
    (own,), (foreign,) = held(first), held(second)
    seen, key = first.view("seen"), b"k%d" % foreign
    assert seen.get(b"k%d" % own) == 1
    for ask in (
        lambda: seen.get(key, partition=foreign),
        lambda: list(seen.scan(partition=foreign)),
        lambda: list(seen.scan()),
    ):
        with pytest.raises(Elsewhere, match=r"incarnation 2 \(b\) on .* has it, ask it at http://b:80") as told:
            ask()
        assert (told.value.member, told.value.endpoint) == (second.member.own_ledger.incarnation, "http://b:80")
        assert told.value.partition == foreign
    assert seen.held() == [(own, WHOLE)]
    assert [entry.key for n, within in seen.held() for entry in seen.scan(partition=n, within=within)] == [b"k%d" % own]
    await second.crash()
    with pytest.raises(Elsewhere, match="http://b:80"):  # it was not expelled yet
        seen.get(key, partition=foreign)
    second.member.settings, second.app = counting().settings, counting()
    await second.start()
    await until(share(first, second))
    (foreign,) = held(second)
    with pytest.raises(Elsewhere, match=r"incarnation 3 \(b\) .* ask it; it has no Settings.endpoint") as told:
        seen.get(b"k%d" % foreign, partition=foreign)
    assert (told.value.member, told.value.endpoint) == (3, "")


@in_group(partitions=2)
async def test_a_key_whose_partition_is_not_named_leads_to_where_the_partitioner_puts_it(group: Group) -> None:
    """What is found answers, wherever it lies. Of a key that nobody here has the member is named that has the partition
    of it; who has that partition does not say that there is none, but when the partition is named.
    """
    first, second = await two(group)
    (own,), (foreign,) = held(first), held(second)
    keys = {partition_of_key(key, 2): key for key in (b"x%d" % i for i in range(20))}
    seen = first.view("seen")
    assert (seen.partition_of(keys[own]), seen.partition_of(keys[foreign].decode())) == (own, foreign)
    with pytest.raises(Elsewhere, match="http://b:80"):
        seen.get(keys[foreign])
    with pytest.raises(StateNotReady, match=f"ask with partition={own}") as told:
        seen.get(keys[own])
    assert not isinstance(told.value, Elsewhere)
    assert seen.get(keys[own], partition=own) is None
    first.send(keys[foreign], b"0", partition=own)  # by hand
    group.sent += 1
    await group.done()
    assert seen.get(keys[foreign]) == 1


class Asked(MemoryCopies):
    """Calls ``ask`` each time when it opens the copy of a partition."""

    ask: Callable[[], object]

    def copy(self, topic: str, partition: int) -> MemoryCopy:
        self.ask()
        return super().copy(topic, partition)


@in_group(partitions=2)
async def test_who_is_asked_while_it_opens_its_copies_is_not_ready(group: Group) -> None:
    """It knows a part of the partitions then: the partitioner would give each key another one."""
    first, copies, told = group.process("a", counting()), Asked(), []

    def ask() -> None:
        with pytest.raises(StateNotReady, match="the application is starting") as error:
            first.view("seen").partition_of(b"k0")
        told.append(error.value)

    first.copies, copies.ask = copies, ask
    await first.start()
    assert len(told) == 2


@in_group(partitions=2)
async def test_nobody_is_named_who_was_expelled(group: Group) -> None:
    """What nobody has is not ready; with its next owner it is answered, or that one is named."""
    first, second = await two(group, return_ms=0)
    group.send(2)
    await group.done()
    (foreign,) = held(second)
    incarnation, seen = second.member.own_ledger.incarnation, first.view("seen")
    told: list[tuple[bool, bool]] = []
    await second.crash()

    def is_answered() -> bool:
        try:
            assert seen.get(b"k%d" % foreign, partition=foreign) == 1
        except StateNotReady as error:
            told.append((isinstance(error, Elsewhere), first.member.own_ledger.ledger.control.is_expelled(incarnation)))
            return False
        return True

    async with asyncio.timeout(3 * SESSION_S):
        while not is_answered():  # noqa: ASYNC110  # it is looked at all the time
            await asyncio.sleep(0.001)
    assert set(told) == {(True, False), (False, True)}, "named, and expelled"


# --- while it moves ---------------------------------------------------------------------------------------------------


class Late(Deaf):
    """A connection that can't read the control log, and whose commits are told late, when that is asked of it."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.is_late, self.goes_on = False, asyncio.Event()
        self.aborts = 0
        """So many transactions more are aborted."""

    async def producer(self, *given: Any, **options: Any) -> Any:
        """A producer of it."""
        return LateProducer(self, await self.real.producer(*given, **options))


class LateProducer(Passing):
    """A producer of such a connection."""

    def __init__(self, connection: Late, producer: BrokerProducer) -> None:
        super().__init__(producer)
        self.connection = connection

    async def transact(self, records: Any, *, in_parts: bool = False) -> Any:
        """See the protocol."""
        if self.connection.aborts:
            self.connection.aborts -= 1
            raise BrokerError("aborted on demand")
        done = await self.real.transact(records, in_parts=in_parts)
        if self.connection.is_late:
            await self.connection.goes_on.wait()
        return done


class Judge:
    """Compares answers with what is committed at that moment: a key's count is that of the records in it."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.answers = 0
        self.refused: dict[str, set[str]] = {"owner": set(), "other": set()}

    def committed(self) -> dict[int, int]:
        """By key."""
        found = self.pair.owner.folded().get(0, {})
        read = ((parse_key(at), decode_stored(value).payload) for at, value in found.items())
        return {int(place.key[1:]): int(payload) for place, payload in read}

    def ask(self, keys: Iterable[int] = range(KEYS)) -> None:
        """Both are asked. An answer is what is committed, but for what who is asked commits in this moment himself."""
        committed = self.committed()
        for engine in (self.pair.owner, self.pair.other):
            for key in keys:
                try:
                    answer = engine.view("seen").get(b"k%d" % key) or 0
                except StateNotReady as error:
                    self.refused[engine.name].add(type(error).__name__)
                    continue
                self.answers += 1
                by = list(dict(self.pair.handled[key]).values())  # of a record that was run again the last one counts
                of_others = [who for who in by[answer : committed.get(key, 0)] if who != engine.name]
                assert answer <= committed.get(key, 0), f"{engine.name} says {answer} of k{key}, which is not committed"
                assert not of_others, f"{engine.name} says {answer} of k{key}; {committed[key]} is what another made it"

    async def keep_asking(self) -> None:
        """Until it is cancelled."""
        while True:
            self.ask()
            await asyncio.sleep(2 * REQUEST_S)


@paired(is_stateful=True)
async def test_an_answer_is_never_older_than_what_another_member_has_committed(pair: Pair) -> None:
    """Ranges go to and fro under load, and both members are asked all the time."""
    pair.takes_s = lambda: 0.002
    pair.keep_sending(1)
    judge = Judge(pair)
    asking = asyncio.ensure_future(judge.keep_asking())
    for taker in [pair.other, pair.owner] * 3:
        await pair.move(taker, LOWER)
        await asyncio.sleep(0.1)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await pair.end()
    assert judge.answers > 10_000
    assert judge.refused["owner"] == judge.refused["other"] == {"Elsewhere", "StateNotReady"}


@paired(is_stateful=True, wrap=Late)
async def test_the_owner_answers_until_it_releases_and_nobody_answers_with_what_was(pair: Pair) -> None:
    """A record holds a range back for long: its owner goes on answering. Then the release is committed, and the owner
    hears neither of that nor of the grant; the next one changes the state, and the owner answers nothing of it.
    """
    stuck = key_in(LOWER)
    gate = pair.hold(stuck + KEYS)
    giver, taker = pair.other, pair.owner  # the one that coordinates has to hear
    judge, key = Judge(pair), b"k%d" % stuck
    pair.send(KEYS)
    await until(lambda: judge.committed().get(stuck) == 1)
    await pair.move(giver, LOWER)
    pair.send(KEYS)
    await until(lambda: stuck in pair.running)
    moving = asyncio.ensure_future(pair.move(taker, LOWER))
    await until(lambda: any((name, step) == (giver.name, "winding") for _, name, step in pair.steps))
    for _ in range(100):
        assert giver.view("seen").get(key) == 1
        with pytest.raises(Elsewhere):
            taker.view("seen").get(key, partition=0)
        judge.ask()
        await asyncio.sleep(0.01)
    late: Any = giver.connection
    late.is_deaf = late.is_late = True
    gate.set()
    pair.send(KEYS)
    await until(lambda: judge.committed().get(stuck) == 3, SESSION_S / 2)
    assert pair.handled[stuck][-1][1] == taker.name
    judge.ask()
    with pytest.raises(StateNotReady, match="or not held here any more"):
        giver.view("seen").get(key)
    assert taker.view("seen").get(key) == 3
    late.is_deaf = late.is_late = False
    late.goes_on.set()
    await moving
    await asyncio.sleep(3 * BEAT_S)
    with pytest.raises(Elsewhere) as told:
        giver.view("seen").get(key)
    assert told.value.member == taker.member.own_ledger.incarnation


@paired(is_stateful=True, wrap=Late)
async def test_what_is_not_released_after_all_is_answered_meanwhile(pair: Pair) -> None:
    """The broker aborts the transaction that releases, several times: between two of them the owner answers."""
    pair.send(KEYS)
    await until(lambda: len(pair.cluster.committed_records(OUT)) == KEYS)
    seen, key = pair.owner.view("seen"), b"k%d" % key_in(LOWER)
    late: Any = pair.owner.connection
    late.aborts = 5
    moving = asyncio.ensure_future(pair.move(pair.other, LOWER))
    answers = []
    while not moving.done():
        with contextlib.suppress(StateNotReady):
            answers.append(seen.get(key))
        await asyncio.sleep(0.01)
    assert late.aborts == 0
    assert answers == [1] * len(answers)
    assert len(answers) >= 5 * 8, "it waits for 100 ms each time"


# --- how old what is known may be -------------------------------------------------------------------------------------


@in_group(partitions=1, wrap=Late)
async def test_who_has_not_read_the_control_log_for_long_answers_nothing(group: Group) -> None:
    """For ``query_view_ms_max``, which is shorter than the session here: records go on."""
    engine = group.process("a", counting(query_view_ms_max=3_000))
    await engine.start()
    group.send(10)
    await group.done()
    connection: Any = engine.connection
    connection.is_deaf = True
    await asyncio.sleep(1.5)
    assert engine.view("seen").get(b"k0") == 1
    await asyncio.sleep(3)
    group.send(10)
    await group.done()
    with pytest.raises(StateNotReady, match=r"it read the control log \d+ ms ago, and query_view_ms_max is 3000"):
        engine.view("seen").get(b"k0")
    connection.is_deaf = False
    await asyncio.sleep(3)
    assert engine.view("seen").get(b"k0") == 1
    await asyncio.sleep(60)
    assert engine.view("seen").get(b"k0") == 1, "where nothing happens what is known does not get old"


@in_group(partitions=2, latency=Latency(timeout_ms=6 * SESSION_S * 1000))
async def test_a_broker_that_says_nothing_does_not_say_that_nothing_has_changed(group: Group) -> None:
    """Who is cut off from it reads nothing for as long as a call may take: longer than others wait to have its ranges.
    It answers nothing after ``query_view_ms_max``, and begins no record after a session.
    """
    first, second = await two(group, return_ms=0)
    group.send(8)
    await group.done()
    (foreign,) = held(second)
    key = next(b"k%d" % i for i in range(100) if partition_of_key(b"k%d" % i, 2) == foreign)
    seen, following = second.view("seen"), second.member.group.control_tail
    group.cluster.network.faults.cut.add("b-0")
    limit_s = second.member.settings.query_view_ms_max / 1_000
    await asyncio.sleep(limit_s + 0.1)
    with pytest.raises(StateNotReady, match="it read the control log"):
        seen.get(key, partition=foreign)
    await asyncio.sleep(max(0.0, SESSION_S - limit_s) + 0.1)
    assert following.is_lost()
    await until(lambda: foreign in held(first))
    await second.crash()


@in_group(partitions=1)
async def test_a_log_that_is_never_read_to_its_end_is_known_all_the_same(group: Group) -> None:
    """There is always something new in it, which counts for nothing here."""
    engine = group.process("a", counting(query_view_ms_max=3_000))
    await engine.start()
    group.send(10)
    await group.done()
    late = encode(member_fenced(0, 99))
    await until(lambda: engine.view("seen").get(b"k0") == 1)  # its outputs are there before it knows of the commit
    for _ in range(100):
        group.cluster.write([Outgoing("app.control", 0, None, late)], ())
        assert engine.view("seen").get(b"k0") == 1
        await asyncio.sleep(0.1)


@in_group(partitions=1, wrap=Late)
async def test_the_older_of_two_clocks_counts(group: Group) -> None:
    """A machine that slept shows it by the time of the day, until the log is read; one whose clock is set back by the
    other one.
    """
    engine = group.process("a", counting(query_view_ms_max=3_000))
    await engine.start()
    group.send(10)
    await group.done()
    seen = engine.view("seen")
    connection: Any = engine.connection
    engine.clock_ms = 60_000
    with pytest.raises(StateNotReady, match=r"read the control log 6\d{4} ms ago"):
        seen.get(b"k0")
    await asyncio.sleep(3)
    assert seen.get(b"k0") == 1
    engine.clock_ms = 0
    connection.is_deaf = True
    await asyncio.sleep(5)
    with pytest.raises(StateNotReady, match="read the control log"):
        seen.get(b"k0")
    connection.is_deaf = False


# --- copies -----------------------------------------------------------------------------------------------------------


class Fed:
    """Copies that a test feeds. ``ages``: how old they are, in ms, by range."""

    def __init__(self, engine: Engine) -> None:
        self.ages: dict[KeyRange, int] = {}
        self.copies = engine.copies
        self.queries = engine.member.keeper.queries

    def view(self, name: str) -> StoreView[Any]:
        """A store as readers beside the application see it, with these copies."""
        return StoreView(name, lambda: self._feed(self.queries.find(name)))

    def _feed(self, store: DeclaredStore) -> DeclaredStore:
        partitions = {number: answers._replace(copies=self) for number, answers in store.partitions.items()}
        return store._replace(partitions=partitions)

    def feed(self, partition: int, key: bytes, count: int) -> None:
        """A value of the first store."""
        assert isinstance(self.copies, MemoryCopies)
        at = state_key(point_of_key(key), 0, key)
        self.copies.copy(SOURCE, partition).write([(at, encode_stored(b"%d" % count))])

    def stale_ms(self, place: SourcePartition, point: int) -> int | None:
        """See ``Followed``."""
        return next((age for within, age in self.ages.items() if within.contains(point)), None)

    def copied_ranges(self, place: SourcePartition) -> Iterable[KeyRange]:
        """See ``Followed``."""
        return list(self.ages)


@in_group(partitions=2)
async def test_a_copy_answers_if_it_is_no_older_than_it_may_be(group: Group) -> None:
    """And only where that is asked for; a scan needs all of its range."""
    first, second = await two(group)
    group.send(2)
    await group.done()
    (own,), (foreign,) = held(first), held(second)
    key, copy = b"k%d" % foreign, Fed(first)
    seen = copy.view("seen")
    with pytest.raises(Elsewhere, match="there is no copy of it here: incarnation 2"):
        seen.get(key, stale_ms_max=1_000, partition=foreign)
    half = KeyRange(0, SPACE_END // 2) if point_of_key(key) < SPACE_END // 2 else KeyRange(SPACE_END // 2, SPACE_END)
    copy.feed(foreign, key, 7)
    copy.ages = {half: 500}
    assert seen.get(key, stale_ms_max=500) == seen.get(key, stale_ms_max=500, partition=foreign) == 7
    assert seen.get(b"k%d" % own, stale_ms_max=500) == 1, "its own"
    with pytest.raises(Elsewhere, match="the copy here is 500 ms old, and 499 are allowed"):
        seen.get(key, stale_ms_max=499, partition=foreign)
    with pytest.raises(Elsewhere):
        seen.get(key, partition=foreign)
    found = seen.scan(partition=foreign, within=half, stale_ms_max=500)
    assert [(entry.key, entry.value) for entry in found] == [(key, 7)]
    with pytest.raises(Elsewhere):
        list(seen.scan(partition=foreign, stale_ms_max=500))
    assert sorted(seen.held(stale_ms_max=500)) == sorted([(own, WHOLE), (foreign, half)])
    assert seen.held(stale_ms_max=499) == seen.held() == [(own, WHOLE)]
    for wrong in (-1, "5"):
        with pytest.raises(ValueError, match="stale_ms_max is a whole number of ms, 0 or more"):
            seen.get(key, stale_ms_max=wrong)  # type: ignore[arg-type]  # of a user


@paired(is_stateful=True)
async def test_a_copy_answers_with_what_follows_and_not_with_what_was_in_memory(pair: Pair) -> None:
    """Who had the range before has values of it in memory: they are older than the copy. And who has it answers for
    itself, with nothing that is not committed, whatever its copy is said to be.
    """
    gate = pair.hold(2 * KEYS + key_in(LOWER))
    pair.send(KEYS)
    await until(lambda: len(pair.cluster.committed_records(OUT)) == KEYS)
    await pair.move(pair.other, LOWER)
    key = b"k%d" % key_in(LOWER)
    copy = Fed(pair.owner)
    copy.ages = {WHOLE: 10}
    state = pair.owner.member.keeper.storages[SOURCE, 0].state
    assert len(state.overlay.committed_changes()) == 0
    copy.feed(0, key, 5)
    seen = copy.view("seen")
    assert seen.get(key, stale_ms_max=10) == 5
    assert {entry.value for entry in seen.scan(within=LOWER, stale_ms_max=10)} == {1, 5}
    with pytest.raises(Elsewhere):
        seen.get(key)
    pair.send(2 * KEYS)
    await until(lambda: key_in(LOWER) in pair.running and len(pair.cluster.committed_records(OUT)) >= 2 * KEYS)
    theirs = pair.other.view("seen")
    assert theirs.get(key, stale_ms_max=10) == 2, "one of its records runs, and has written 3"
    gate.set()
