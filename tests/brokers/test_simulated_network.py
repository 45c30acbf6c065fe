"""The simulated cluster's faults of the network: each of them happens, is counted, and ends as it would with Kafka."""

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest

from keylanes.brokers.producer import TransactionalProducer
from keylanes.brokers.protocol import (
    BrokerError,
    BrokerTimeout,
    Outgoing,
    ProducerFenced,
    TopicPartition,
    TransactionAborted,
    TransactionRefused,
    TransactionUnknown,
)
from keylanes.brokers.simulated.broker import (
    Fault,
    Faults,
    Latency,
    RequestKind,
    SimulatedBroker,
    SimulatedConnection,
)
from keylanes.brokers.simulated.cluster import Cluster
from keylanes.brokers.simulated.requests import Numbered, SimulatedRequests
from keylanes.brokers.simulated.virtual_loop import run_virtual

from ..stage.appending import append
from ..stage.fencing import fence
from ..stage.virtual import virtual
from ..tiers.marks import tier
from .clusters import OTHER, SOURCE, both, cluster_of, committed, of, producer_of

pytestmark = tier("check")

T = TypeVar("T")


NOISE = random.Random(3).randbytes(5_000)
LOST = [Fault.LOSE_REQUEST, Fault.LOSE_REPLY]


def same_epoch(
    connection: SimulatedConnection, producer: TransactionalProducer[Numbered]
) -> TransactionalProducer[Numbered]:
    """What must never be done: another producer at the same epoch, over a new connection."""
    assert isinstance(producer.requests, SimulatedRequests)
    requests = SimulatedRequests(connection._new_link(), connection._limits, "id", producer.requests.initialised)
    twin = TransactionalProducer(requests, "id", 30_000)
    twin.session.sequences = dict(producer.session.sequences)
    return twin


@pytest.mark.parametrize("fault", LOST)
@virtual
async def test_a_lost_commit_is_unknown(fault: Fault) -> None:
    """Without its request nothing is committed, without its reply everything; the producer learns neither."""
    cluster = cluster_of()
    producer = await producer_of(cluster.connect("one"))
    cluster.network.arm(RequestKind.END_TXN, fault)
    with pytest.raises(TransactionUnknown):
        await producer.transact(both(1))
    await cluster.network.caught()
    with pytest.raises(BrokerError):
        await producer.transact(both(2))
    assert committed(cluster) == committed(cluster, "b")
    assert committed(cluster) == ([1] if fault is Fault.LOSE_REPLY else [])


@pytest.mark.parametrize("kind", [RequestKind.ADD_PARTITIONS, RequestKind.END_TXN])
@virtual
async def test_a_coordinator_that_can_not_be_reached_ends_the_transaction(kind: RequestKind) -> None:
    """Another one may coordinate by now, of which this epoch has no proof: the transaction is aborted, at once."""
    cluster = cluster_of()
    producer = await producer_of(cluster.connect("one"))
    cluster.network.arm(kind, Fault.NOT_SENT)
    with pytest.raises(TransactionAborted):
        await producer.transact(both(1))
    await (await producer_of(cluster.connect("one"))).transact(both(2))
    assert committed(cluster) == committed(cluster, "b") == [2]


@virtual
async def test_a_batch_that_did_not_leave_is_sent_again() -> None:
    """Without a connection nothing of it can arrive late: the transaction goes on, and its producer is good."""
    cluster = cluster_of()
    producer = await producer_of(cluster.connect("one"))
    cluster.network.arm(RequestKind.PRODUCE, Fault.NOT_SENT)
    assert await producer.transact(both(1)) == {SOURCE: 1, OTHER: 1}
    await cluster.network.caught()
    await producer.transact(both(2))
    assert committed(cluster) == committed(cluster, "b") == [1, 2]


def test_a_commit_that_never_left_is_aborted() -> None:
    """Its producer knows that it was not asked for, unless the last try was still connecting when the time was over."""

    async def main(seed: int) -> str:
        cluster = cluster_of(seed)
        producer = await producer_of(cluster.connect("one"))
        writing = asyncio.create_task(producer.transact(both(1)))
        while not cluster.all_entries(SOURCE):  # noqa: ASYNC110  # nothing but virtual time passes
            await asyncio.sleep(0.0001)
        cluster.faults.not_sent = 1.0
        with pytest.raises((TransactionAborted, TransactionUnknown)) as caught:
            await writing
        cluster.faults.heal()
        await (await producer_of(cluster.connect("one"))).transact(both(2))
        assert committed(cluster) == committed(cluster, "b") == [2]
        return caught.typename

    found = Counter(run_virtual(main(seed), seed=seed) for seed in range(16))
    assert found["TransactionAborted"] > found["TransactionUnknown"]


def test_a_coordinator_that_can_not_confirm_a_commit_leaves_it_unknown() -> None:
    """It may have written the decision, or not: the producer does not know, and asks nobody else."""

    async def main(seed: int) -> str:
        cluster = cluster_of(seed)
        producer = await producer_of(cluster.connect("one"), timeout_ms=2_000)
        cluster.faults.coordinator_away = 1.0
        with pytest.raises(TransactionUnknown):
            await producer.transact(both(1))
        cluster.faults.heal()
        await fence(cluster.connect("two"), "id")
        assert committed(cluster) == committed(cluster, "b")
        return "landed" if committed(cluster) else "not there"

    assert {run_virtual(main(seed), seed=seed) for seed in range(30)} == {"landed", "not there"}


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("kind", [RequestKind.ADD_PARTITIONS, RequestKind.PRODUCE])
@virtual
async def test_a_transaction_that_lost_an_answer_before_its_commit_is_aborted(kind: RequestKind, fault: Fault) -> None:
    """No commit was asked for, so the outcome is known; with the next producer readers go on."""
    cluster = cluster_of()
    producer = await producer_of(cluster.connect("one"))
    cluster.network.arm(kind, fault)
    with pytest.raises(TransactionAborted):
        await producer.transact(both(1))
    await fence(cluster.connect("one"), "id")
    assert cluster.stable(SOURCE) == cluster.watermarks(SOURCE).high
    assert committed(cluster) == []


@pytest.mark.parametrize(
    "kind",
    [
        RequestKind.METADATA,
        RequestKind.OFFSETS,
        RequestKind.INIT,
        RequestKind.CREATE,
        RequestKind.TRIM,
        RequestKind.FETCH,
    ],
)
@pytest.mark.parametrize("fault", LOST)
@virtual
async def test_what_may_be_asked_twice_is_asked_again(kind: RequestKind, fault: Fault) -> None:
    """Single losses of questions, initialisations and the like are not noticed."""
    cluster = cluster_of()
    connection = cluster.connect("one")
    await append(connection, of(1, 2))
    cluster.network.arm(kind, fault)
    await connection.open()
    await connection.describe(["a"])
    await connection.watermarks([SOURCE])
    await producer_of(connection)
    await connection.create([])
    await connection.trim({SOURCE: 1})
    reader = await connection.reader({SOURCE: 1})
    assert [len(batch.records) for batch in await reader.fetch([SOURCE], records_max=9, wait_ms=1000)] == [1]
    await cluster.network.caught()


async def with_a_late_end() -> tuple[SimulatedBroker, SimulatedConnection, TransactionalProducer[Any]]:
    """A cluster that holds back the end of a transaction of 1, a connection, and the producer that waited for it."""
    cluster = cluster_of(latency=Latency(timeout_ms=500))
    connection = cluster.connect("one")
    producer = await producer_of(connection)
    cluster.network.arm(RequestKind.END_TXN, Fault.HOLD_REQUEST)
    with pytest.raises(TransactionUnknown):
        await producer.transact(of(1))
    return cluster, connection, producer


@virtual
async def test_a_late_end_ends_the_next_transaction_of_its_epoch() -> None:
    """EndTxn names an id and an epoch only: held back, it ends what a producer of that epoch has open by then."""
    cluster, connection, producer = await with_a_late_end()
    wrong = same_epoch(connection, producer)
    cluster.network.arm(RequestKind.END_TXN, Fault.HOLD_REQUEST)
    running = asyncio.create_task(wrong.transact(of(2, topic="b")))
    await cluster.network.caught()
    assert committed(cluster) == []
    cluster.network.release()  # the first end and the second: one of them ends both
    await asyncio.sleep(1)
    assert (committed(cluster), committed(cluster, "b")) == ([1], [2])
    await running


@virtual
async def test_a_late_end_changes_nothing_of_a_newer_producer() -> None:
    """A new epoch keeps it out: it is fenced, whatever is open then."""
    cluster, connection, _ = await with_a_late_end()
    newer = await producer_of(connection)
    cluster.network.release()
    await newer.transact(of(2))
    await asyncio.sleep(1)
    assert committed(cluster) == [2]
    assert (cluster.met["arrived_late"], cluster.met["fenced"]) == (1, 1)


@pytest.mark.parametrize("seed", range(5))
@virtual
async def test_requests_are_late_by_the_seed(seed: int) -> None:
    """Who sent a late request hears nothing for its whole time-out; the request takes effect all the same."""
    faults = Faults(request_late=1.0, request_late_ms=30_000)
    cluster = cluster_of(seed, latency=Latency(timeout_ms=2_000))
    appender = cluster.connect("one").appender()
    await appender.append(of(0))
    cluster.faults.request_late, cluster.faults.request_late_ms = faults.request_late, faults.request_late_ms
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(BrokerTimeout):
        await appender.append(of(1))
    assert loop.time() - began == pytest.approx(2.0, abs=0.1)
    cluster.faults.heal()
    await appender.append(of(2))
    await asyncio.sleep(40)
    assert sorted(committed(cluster)) == [0, 1, 2]
    assert cluster.met["request_late"] == cluster.met["arrived_late"] == 1


@virtual
async def test_late_markers_keep_the_id_busy() -> None:
    """Until they are written no transaction can begin, no producer be made: CONCURRENT_TRANSACTIONS."""
    cluster = cluster_of(faults=Faults(marker_late=1.0, marker_late_ms=20_000), latency=Latency(timeout_ms=1_000))
    connection = cluster.connect("one")
    producer = await producer_of(connection)
    await producer.transact(both(1))
    assert not cluster.is_settled
    with pytest.raises(BrokerTimeout):
        await fence(connection, "id")
    assert await producer.transact(both(2)) == {SOURCE: 3, OTHER: 3}
    await asyncio.sleep(60)
    assert cluster.is_settled
    assert cluster.met["marker_late"] == 4
    assert cluster.met["concurrent_transactions"] > 10


@virtual
async def test_a_client_that_is_cut_off_reaches_nobody() -> None:
    """Its calls end when their time is over, its transaction by the cluster's time limit; the others go on."""
    cluster = cluster_of(latency=Latency(timeout_ms=1_000))
    one, two = cluster.connect("one"), cluster.connect("two")
    producer = await producer_of(one, timeout_ms=2_000)
    reader = await one.reader({SOURCE: 0})
    running = asyncio.create_task(producer.transact(both(1)))
    while not cluster.all_entries(SOURCE):  # noqa: ASYNC110  # nothing but virtual time passes
        await asyncio.sleep(0.0001)
    cluster.faults.cut.add("one")
    with pytest.raises((TransactionUnknown, TransactionAborted)):
        await running
    with pytest.raises(BrokerTimeout):
        await one.watermarks([SOURCE])
    assert (await two.watermarks([SOURCE]))[SOURCE].high >= 1
    await asyncio.sleep(3)
    assert cluster.stable(SOURCE) == cluster.watermarks(SOURCE).high
    cluster.faults.cut.clear()
    await (await producer_of(one)).transact(both(2))
    assert committed(cluster)[-1] == 2
    assert await reader.fetch([SOURCE], records_max=9, wait_ms=1_000)
    assert cluster.met["cut"] > 0


@virtual
async def test_a_reader_of_a_silent_cluster_hears_nothing_and_then_an_error() -> None:
    """Each fetch ends when its own time is over; when nothing was heard for the time-out, it raises."""
    cluster = cluster_of(latency=Latency(timeout_ms=1_000))
    reader = await cluster.connect("one").reader({SOURCE: 0})
    assert await reader.fetch([SOURCE], records_max=1, wait_ms=0) == []
    cluster.faults.away = True
    loop = asyncio.get_running_loop()
    began, quiet = loop.time(), 0
    try:
        while True:
            assert await reader.fetch([SOURCE], records_max=1, wait_ms=100) == []
            quiet += 1
    except BrokerTimeout:
        pass
    assert 5 <= quiet <= 10
    assert loop.time() - began == pytest.approx(1.0, abs=0.2)
    cluster.faults.away = False
    await append(cluster.connect("two"), of(1))
    assert await reader.fetch([SOURCE], records_max=1, wait_ms=100)


def test_a_broker_that_is_started_anew_breaks_what_is_under_way() -> None:
    """Transactions under way end as aborted or unknown, carried out or not; nothing that was written is lost."""

    async def main(seed: int) -> str:
        cluster = cluster_of(seed)
        connection = cluster.connect("one")
        producer = await producer_of(connection)
        await producer.transact(both(0))
        await asyncio.sleep(1)
        running = asyncio.create_task(producer.transact(both(1)))
        waiting = asyncio.create_task((await connection.reader({OTHER: 2})).fetch([OTHER], records_max=9, wait_ms=900))
        await asyncio.sleep(0.0005 * (seed % 20))
        cluster.break_connections()
        try:
            await running
            ended = "committed"
        except (TransactionAborted, TransactionUnknown) as error:
            ended = type(error).__name__
        await waiting
        await fence(connection, "id")
        assert committed(cluster) == committed(cluster, "b")
        assert committed(cluster)[0] == 0
        return ended if len(committed(cluster)) == 1 else f"{ended}, landed"

    found = Counter(run_virtual(main(seed), seed=seed) for seed in range(200))
    assert set(found) == {"committed, landed", "TransactionAborted", "TransactionUnknown", "TransactionUnknown, landed"}


@virtual
async def test_a_refused_batch_leaves_the_others_of_its_round() -> None:
    """As with Kafka: each partition's batches go one by one, a refused one ends all, and markers take their offsets."""
    cluster = cluster_of()
    cluster.create_topic("small", 1, {"max.message.bytes": "2000"})
    connection, small = cluster.connect("one"), TopicPartition("small", 0)
    fine = [Outgoing("small", 0, b"k", NOISE[:900]) for _ in range(3)]
    producer = await producer_of(connection)
    with pytest.raises(TransactionRefused) as caught:
        await producer.transact([*fine, Outgoing("small", 0, b"k", NOISE), *of(7)])
    assert caught.value.culprits == (3,)
    producer = await producer_of(connection)
    assert (cluster.watermarks(small).high, cluster.watermarks(SOURCE).high) == (4, 2)
    assert (committed(cluster), cluster.committed_records("small")) == ([], [])
    assert await producer.transact(fine) == {small: 7}


@virtual
async def test_a_refused_batch_keeps_its_place() -> None:
    """Its partition remembers the sequence number: what follows at the same epoch is out of order there."""
    cluster = cluster_of()
    connection = cluster.connect("one")
    producer = await producer_of(connection)
    with pytest.raises(TransactionRefused):
        await producer.transact([Outgoing("a", 0, b"k", bytes(2_000_000))])
    with pytest.raises(TransactionAborted, match="expected to go on at 0"):
        await same_epoch(connection, producer).transact(of(1))
    await (await producer_of(connection)).transact(of(2))
    assert committed(cluster) == [2]


@virtual
async def test_a_limit_lowered_meanwhile_refuses_a_batch_once() -> None:
    """Batches are cut to the limit as it was known: all of the batch are culprits, and the next one is cut anew."""
    cluster = cluster_of()
    connection = cluster.connect("one")
    records = [Outgoing("a", 0, b"k", NOISE[:900]) for _ in range(4)]
    await (await producer_of(connection)).transact(records)
    cluster.configure_topic("a", {"max.message.bytes": "2000"})
    with pytest.raises(TransactionRefused) as caught:
        await (await producer_of(connection)).transact(records)
    assert caught.value.culprits == (0, 1, 2, 3)
    await (await producer_of(connection)).transact(records)
    assert len(cluster.committed_records("a")) == 8


def test_a_producer_that_was_fenced_writes_nothing() -> None:
    """At each of its steps an older producer is told that it is fenced, and its transaction is aborted."""

    async def main(seed: int) -> str:
        cluster = cluster_of(seed)
        one, two = cluster.connect("one"), cluster.connect("two")
        running = asyncio.create_task((await producer_of(one)).transact(both(1)))
        await asyncio.sleep(0.0005 * (seed % 40))
        newer = await producer_of(two)
        try:
            await running
        except ProducerFenced:
            assert committed(cluster) == []
            await newer.transact(both(2))
            assert committed(cluster) == committed(cluster, "b") == [2]
            return "fenced"
        assert committed(cluster) == committed(cluster, "b") == [1]
        return "committed"

    assert {run_virtual(main(seed), seed=seed) for seed in range(80)} == {"fenced", "committed"}


@virtual
async def test_the_cluster_runs_outside_of_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that happens in the network or the cluster runs in the context of the process that asked for it."""
    process: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="nobody")
    seen: set[str] = set()

    def watch(name: str, doing: str) -> None:
        method = getattr(Cluster, name)

        def watched(*arguments: Any) -> Any:
            seen.add(f"{process.get()} {doing}")
            return method(*arguments)

        monkeypatch.setattr(Cluster, name, watched)

    for name, doing in (("wake", "wakes"), ("_expire", "expires"), ("end", "ends")):
        watch(name, doing)

    async def work(cluster: SimulatedBroker) -> None:
        process.set("one")
        connection = cluster.connect("one")
        await append(connection, of(1))
        await (await producer_of(connection, timeout_ms=1_000)).transact(of(2))
        assert process.get() == "one"
        await asyncio.sleep(5)

    cluster = SimulatedBroker()
    cluster.create_topic("a", 1)
    await asyncio.create_task(work(cluster))
    assert seen == {"nobody wakes", "nobody expires", "nobody ends"}


STORM = Faults(
    transact_aborted=0.05,
    transact_unknown=0.05,
    offsets_unknown=0.05,
    coordinator_away=0.05,
    reply_slow=0.05,
    not_sent=0.05,
    request_lost=0.05,
    reply_lost=0.05,
    request_late=0.03,
    request_late_ms=4_000,
    marker_late=0.1,
    marker_late_ms=1_000,
)


def storm(seed: int) -> tuple[list[str], Sequence[object], Counter[str]]:
    """Two ids write to both topics under all faults at once, each value again until it is known to be there. For some
    time one of three nodes is cut off from the others, and still answers.
    """
    story: list[str] = []

    async def written(connection: SimulatedConnection, name: str, value: int) -> bool:
        producer = await again(lambda: connection.producer(name, transaction_timeout_ms=1_500))
        outcome = "committed"
        try:
            await producer.transact(both(value))
        except (TransactionAborted, TransactionUnknown, ProducerFenced) as error:
            outcome = type(error).__name__
        await producer.close()
        story.append(f"{name} {value} {outcome}")
        # Fenced by a late request of its own to make a producer: that does not tell what came before it.
        if outcome in ("TransactionUnknown", "ProducerFenced"):
            await again(lambda: fence(connection, name))
            reader = await again(lambda: connection.reader({SOURCE: 0}))
            high = (await again(lambda: connection.watermarks([SOURCE])))[SOURCE].high
            seen: set[int] = set()
            while reader.position(SOURCE) < high:
                for batch in await again(lambda: reader.fetch([SOURCE], records_max=99, wait_ms=500)):
                    seen.update(int(record.value or b"") for record in batch.records)
            return value in seen
        return outcome == "committed"

    async def again(call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except BrokerTimeout:
                continue

    async def write(cluster: SimulatedBroker, name: str, values: range) -> None:
        for value in values:
            while not await written(cluster.connect(name), name, value):
                pass

    async def main() -> tuple[Sequence[object], Counter[str]]:
        faults = Faults(**{**vars(STORM), "cut": set(), "cut_from": set(), "cut_from_node": set()})
        latency = Latency(timeout_ms=2_000, attempt_ms=1_000)
        cluster, loop = cluster_of(seed, faults=faults, latency=latency, brokers=3), asyncio.get_running_loop()
        loop.call_later(0.5, cluster.cluster.depose, seed % 3)
        loop.call_later(1, cluster.break_connections)
        loop.call_later(8, cluster.cluster.mend)
        await asyncio.gather(write(cluster, "x", range(15)), write(cluster, "y", range(100, 115)))
        cluster.faults.heal()
        await asyncio.sleep(10)
        for topic in ("a", "b"):
            assert sorted(committed(cluster, topic)) == [*range(15), *range(100, 115)]
        assert cluster.is_settled
        return cluster.committed_records("a"), cluster.met

    found, met = run_virtual(main(), seed=seed)
    return story, found, met


def test_careful_clients_lose_and_double_nothing_in_a_storm() -> None:
    """Whoever makes a new producer and reads the log after an unknown outcome has each value exactly once."""
    met: Counter[str] = Counter()
    for seed in range(16):
        met += storm(seed)[2]
    wanted = {name for name in vars(STORM) if not name.endswith("_ms")} - {
        "cut",
        "cut_from",
        "cut_from_node",
        "away",
        "denied",
    }
    assert not wanted - set(met), met
    assert {"old leader told", "no answer"} <= set(met)
    assert {"arrived_late", "concurrent_transactions", "connection_broken", "fenced", "transaction_timed_out"} <= set(
        met
    )


def test_a_seed_repeats_a_storm() -> None:
    """Every fault, its time and its outcome are the seed's."""
    assert storm(3) == storm(3)
    assert storm(3) != storm(4)
