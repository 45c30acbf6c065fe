"""What only the simulated cluster has: crashes, markers, the last stable offset, faults, and seeds that repeat."""

import asyncio
import random
from collections.abc import Iterable

import pytest

from keylanes.brokers.protocol import (
    BrokerError,
    BrokerTimeout,
    OffsetOutOfRange,
    Outgoing,
    TopicPartition,
    TransactionAborted,
    TransactionUnknown,
)
from keylanes.brokers.simulated.broker import (
    ConnectionSevered,
    Fault,
    Faults,
    Latency,
    RequestKind,
    SimulatedBroker,
    SimulatedConnection,
)
from keylanes.brokers.simulated.virtual_loop import run_virtual

from ..stage.appending import append
from ..stage.fencing import fence
from ..stage.virtual import virtual
from ..tiers.marks import tier
from .clusters import SOURCE, both, cluster_of, committed, producer_of

pytestmark = tier("check")


SLOW_MARKERS = Latency(marker_ms=(1000.0, 1000.0))


async def seen_now(connection: SimulatedConnection, source: TopicPartition = SOURCE) -> tuple[list[bytes | None], int]:
    """What a new reader sees without waiting, and its position then."""
    reader = await connection.reader({source: 0})
    values: list[bytes | None] = []
    while batches := await reader.fetch([source], records_max=100, wait_ms=0):
        values += [record.value for batch in batches for record in batch.records]
    return values, reader.position(source)


@virtual
async def test_commit_returns_before_its_markers_are_written() -> None:
    """Between the reply and the marker a committed transaction is not visible yet; the marker takes one offset."""
    cluster = cluster_of(latency=SLOW_MARKERS)
    connection = cluster.connect("one")
    await (await producer_of(connection)).transact(both(1))
    assert await seen_now(connection) == ([], 0)
    assert [record.value for record in cluster.committed_records("a")] == [b"1"]
    await asyncio.sleep(2)
    assert await seen_now(connection) == ([b"1"], 2)
    assert [entry.record is None for entry in cluster.all_entries(SOURCE)] == [False, True]


@virtual
async def test_an_open_transaction_hides_what_comes_after_it() -> None:
    """Records behind a dead process's open transaction are hidden until its time-out aborts it; then it is a hole."""
    cluster = cluster_of()
    victim, other = cluster.connect("victim"), cluster.connect("other")
    producer = await producer_of(victim, timeout_ms=60_000)
    running = asyncio.create_task(producer.transact(both(1)))
    while not cluster.all_entries(SOURCE):  # noqa: ASYNC110  # nothing but virtual time passes
        await asyncio.sleep(0.0001)
    victim.sever()
    with pytest.raises((TransactionAborted, TransactionUnknown)):
        await running
    await append(other, [Outgoing("a", 0, b"k", b"2")])
    await asyncio.sleep(50)
    assert await seen_now(other) == ([], 0)
    await asyncio.sleep(15)
    values, position = await seen_now(other)
    assert values == [b"2"]
    assert position == cluster.watermarks(SOURCE).high == 3


@virtual
async def test_a_transaction_that_timed_out_was_aborted_not_fenced() -> None:
    """The cluster aborts what is open for too long and bumps the epoch; the producer finds that nobody fenced it."""
    cluster = cluster_of()
    producer = await producer_of(cluster.connect("slow"), timeout_ms=1_000)
    cluster.network.arm(RequestKind.END_TXN, Fault.HOLD_REQUEST)
    running = asyncio.create_task(producer.transact(both(1)))
    await asyncio.sleep(2)
    cluster.network.release()
    with pytest.raises(TransactionAborted, match="took longer"):
        await running
    assert cluster.committed_records("a") == []
    assert cluster.network.met["transaction_timed_out"] == 1


@virtual
async def test_a_severed_connection_has_no_further_effect() -> None:
    """After ``sever`` every call raises, running ones at once, and the cluster does not change any more."""
    cluster = cluster_of()
    connection = cluster.connect("victim")
    reader = await connection.reader({SOURCE: 0})
    waiting = asyncio.create_task(reader.fetch([SOURCE], records_max=1, wait_ms=60_000))
    await asyncio.sleep(1)
    connection.sever()
    with pytest.raises(ConnectionSevered):
        await waiting
    assert asyncio.get_running_loop().time() < 1_002
    for call in (connection.watermarks([SOURCE]), append(connection, both(1)), producer_of(connection)):
        with pytest.raises(ConnectionSevered):
            await call
    await asyncio.sleep(10)
    assert cluster.watermarks(SOURCE).high == 0


def test_what_was_under_way_at_a_crash_may_land_or_not() -> None:
    """Over many seeds an append cut off by a crash is sometimes written whole and sometimes not at all."""

    async def main(seed: int) -> int:
        cluster = cluster_of(seed)
        connection = cluster.connect("victim")
        running = asyncio.create_task(append(connection, [Outgoing("a", 0, b"k", b"v")] * 3))
        await asyncio.sleep(0.005)
        connection.sever()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(1)
        return cluster.watermarks(SOURCE).high

    assert {run_virtual(main(seed), seed=seed) for seed in range(30)} == {0, 3}


@pytest.mark.parametrize("seed", range(10))
@virtual
async def test_faults_and_crashes_never_tear_a_transaction(seed: int) -> None:
    """Under aborts, lost replies and a crash both topics hold the same, all that was acknowledged among it."""
    cluster = cluster_of(seed, faults=Faults(transact_aborted=0.1, transact_unknown=0.1, reply_slow=0.1))
    acknowledged = 0

    async def write(name: str) -> None:
        nonlocal acknowledged
        connection = cluster.connect(name)
        if name == "one":
            asyncio.get_running_loop().call_later(0.3, connection.sever)
        producer = await producer_of(connection, name)
        for number in range(15):
            try:
                await producer.transact(both(number))
                acknowledged += 1
            except (TransactionAborted, TransactionUnknown):
                producer = await producer_of(connection, name)

    await asyncio.gather(*(write(name) for name in ("one", "two", "three")), return_exceptions=True)
    await fence(cluster.connect("heir"), "one")
    await asyncio.sleep(1)
    assert sorted(committed(cluster)) == sorted(committed(cluster, "b"))
    assert len(committed(cluster)) >= acknowledged
    values = [record.value for record in cluster.committed_records("a")]
    assert await seen_now(cluster.connect("reader")) == (values, cluster.watermarks(SOURCE).high)


def test_unknown_outcomes_are_of_both_kinds() -> None:
    """TransactionUnknown is raised for committed transactions and for ones that a fence then aborts."""

    async def main(seed: int) -> int:
        cluster = cluster_of(seed, faults=Faults(transact_unknown=1.0))
        connection = cluster.connect("one")
        with pytest.raises(TransactionUnknown):
            await (await producer_of(connection)).transact(both(1))
        await fence(connection, "id")
        values, position = await seen_now(connection)
        assert len(cluster.committed_records("a")) == len(values)
        assert position == cluster.watermarks(SOURCE).high
        return len(values)

    assert {run_virtual(main(seed), seed=seed) for seed in range(20)} == {0, 1}


@virtual
async def test_holes_are_passed() -> None:
    """Compacted records are skipped, in the middle and at the end; the reader's position passes them."""
    cluster = cluster_of()
    connection = cluster.connect("one")
    await append(connection, [Outgoing("a", 0, b"k", b"%d" % number) for number in range(6)])
    cluster.make_hole(SOURCE, [0, 2, 5])
    assert await seen_now(connection) == ([b"1", b"3", b"4"], 6)


def keyed(*pairs: tuple[bytes, bytes | None]) -> list[Outgoing]:
    """Records of the compacted topic c."""
    return [Outgoing("c", 0, key, value) for key, value in pairs]


def compacted(seed: int = 0, faults: Faults | None = None) -> SimulatedBroker:
    """A cluster with a compacted topic c."""
    cluster = cluster_of(seed, faults)
    cluster.create_topic("c", 1, {"cleanup.policy": "compact"})
    return cluster


COMPACTED = TopicPartition("c", 0)


def left(cluster: SimulatedBroker) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of what is committed in c."""
    return [(record.offset, record.key, record.value) for record in cluster.committed_records("c")]


@virtual
async def test_compaction_keeps_the_newest_of_each_key() -> None:
    """Older records become holes that readers pass, tombstones stay unless told otherwise, the high stays as it is."""
    cluster = compacted()
    connection = cluster.connect("one")
    await append(connection, keyed((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", None)))
    cluster.compact(COMPACTED)
    assert left(cluster) == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", None)]
    assert await seen_now(connection, COMPACTED) == ([b"2", b"1", None], 5)
    cluster.compact(COMPACTED, keep_tombstones=False)
    assert left(cluster) == [(2, b"a", b"2"), (3, b"c", b"1")]
    assert await seen_now(connection, COMPACTED) == ([b"2", b"1"], 5)
    with pytest.raises(BrokerError, match="not compacted"):
        cluster.compact(SOURCE)


@virtual
async def test_compaction_heeds_transactions() -> None:
    """Neither aborted records nor what lies behind an open transaction supersede a committed one."""
    cluster = compacted(faults=Faults(transact_aborted=1.0))
    connection = cluster.connect("one")
    await append(connection, keyed((b"a", b"1"), (b"b", b"1")))
    with pytest.raises(TransactionAborted):
        await (await producer_of(connection)).transact(keyed((b"a", b"2"), (b"b", b"2")))
    await fence(connection, "id")
    cluster.compact(COMPACTED)
    assert left(cluster) == [(0, b"a", b"1"), (1, b"b", b"1")]
    assert [entry.record is None for entry in cluster.all_entries(COMPACTED)] == [False, False, True, True, True]
    cluster.faults.transact_aborted, cluster.latency = 0.0, SLOW_MARKERS
    await (await producer_of(connection)).transact(keyed((b"a", b"3")))
    await append(connection, keyed((b"b", b"3")))
    cluster.compact(COMPACTED)
    assert len(left(cluster)) == 4
    await asyncio.sleep(2)
    cluster.compact(COMPACTED)
    assert [value for _, _, value in left(cluster)] == [b"3", b"3"]


def replay(records: Iterable[tuple[int, bytes | None, bytes | None]]) -> dict[bytes | None, bytes]:
    """What a table holds that has followed these records."""
    table: dict[bytes | None, bytes] = {}
    for _, key, value in records:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_partial_compaction_never_changes_what_a_table_holds(seed: int) -> None:
    """However often a log is compacted in part, with or without its tombstones, whoever reads it all ends the same."""
    cluster, drawn = compacted(seed), random.Random(seed)
    connection = cluster.connect("one")
    written: list[tuple[int, bytes | None, bytes | None]] = []
    for _ in range(12):
        pairs = [(b"%d" % drawn.randrange(5), drawn.choice((None, b"%d" % drawn.randrange(99)))) for _ in range(9)]
        await append(connection, keyed(*pairs))
        written += [(0, *pair) for pair in pairs]
        cluster.compact(COMPACTED, keep_tombstones=drawn.random() < 0.5, partly=drawn.random() < 0.8)
        assert replay(left(cluster)) == replay(written)
        assert (await seen_now(connection, COMPACTED))[1] == cluster.watermarks(COMPACTED).high
    assert len(left(cluster)) < len(written)


@virtual
async def test_a_log_that_lost_its_end_is_out_of_range() -> None:
    """After a truncation, or when a topic was made anew, a reader that was farther on gets OffsetOutOfRange."""
    cluster = cluster_of()
    connection = cluster.connect("one")
    await append(connection, [Outgoing("a", 0, b"k", b"%d" % number) for number in range(6)])
    cluster.truncate(SOURCE, 2)
    assert await seen_now(connection) == ([b"0", b"1"], 2)
    with pytest.raises(OffsetOutOfRange):
        cluster.truncate(SOURCE, 3)
    reader = await connection.reader({SOURCE: 2})
    waiting = asyncio.create_task(reader.fetch([SOURCE], records_max=1, wait_ms=60_000))
    await asyncio.sleep(1)
    cluster.recreate_topic("a")
    with pytest.raises(OffsetOutOfRange):
        await waiting
    assert await seen_now(connection) == ([], 0)
    assert cluster.topics()["a"].partitions == 1


@virtual
async def test_offsets_are_left_out_on_demand() -> None:
    """``transact`` does not tell the offsets of some partitions when the faults say so; the rest are right."""
    cluster = cluster_of(faults=Faults(offsets_unknown=0.5))
    producer = await producer_of(cluster.connect("one"))
    told: set[int] = set()
    for number in range(30):
        ends = await producer.transact(both(number))
        assert all(end == 2 * number + 1 for end in ends.values())
        told.add(len(ends))
    assert told == {0, 1, 2}


@virtual
async def test_a_cluster_that_is_away_answers_nobody() -> None:
    """Calls end with BrokerTimeout, transactions as aborted; when it is back everything is as it was."""
    cluster = cluster_of()
    connection = cluster.connect("one")
    producer = await producer_of(connection)
    cluster.faults.away = True
    with pytest.raises(BrokerTimeout):
        await connection.watermarks([SOURCE])
    with pytest.raises(TransactionAborted):
        await producer.transact(both(1))
    cluster.faults.away = False
    await (await producer_of(connection)).transact(both(2))
    await asyncio.sleep(1)
    assert (await seen_now(connection))[0] == [b"2"]


@virtual
async def test_auto_create_makes_topics_on_write() -> None:
    """With ``auto_create`` a write to an unknown topic creates it with the default number of partitions."""
    cluster = SimulatedBroker(auto_create=True, partitions_default=3)
    connection = cluster.connect("one")
    await append(connection, [Outgoing("new", 2, None, b"1")])
    await (await producer_of(connection)).transact([Outgoing("newer", 0, None, b"1")])
    assert [topic.partitions for topic in cluster.topics().values()] == [3, 3]
