"""What may go at once, against a broker that counts as Kafka does."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.brokers.protocol import Outgoing, TransactionThrottled
from keylanes.brokers.simulated.quota import Quota
from keylanes.brokers.throttling import (
    BYTES_FIRST,
    LIMIT_MS,
    QUIET_S,
    WINDOW_S,
    Allowance,
    Throttling,
)

from ..stage.virtual import virtual
from .clusters import cluster_of, producer_of

LASTS_S, STEP_S = 120.0, 0.1
RATE = 20_000


@given(
    quota=st.floats(BYTES_FIRST, 1e8),
    members=st.integers(1, 3),
    record=st.integers(10, 10_000),
)
def test_a_quota_is_used_and_no_answer_throttles_for_long(quota: float, members: int, record: int) -> None:
    """Who has always more to send than may go, in steps of a record, moves most of the quota; no answer throttles for
    much longer than the limit, from the first byte on. As long as no quota is known, each request is bounded.
    """
    broker, allowances = Quota(quota), [Allowance(LIMIT_MS) for _ in range(members)]
    muted_s, moved, now_s = [0.0] * members, 0, 0.0
    while now_s < LASTS_S:
        for member, allowance in enumerate(allowances):
            allowed = min(allowance.request_max(now_s), allowance.bytes_max(now_s))
            if now_s < muted_s[member] or allowed == 0:
                continue
            size = (allowed // record + 1) * record
            throttle_s = broker.throttled_s(size, now_s)
            assert throttle_s <= LIMIT_MS / 1000 * 4 / 3
            allowance.note_bytes(size, throttle_s, now_s)
            muted_s[member] = now_s + throttle_s
            moved += size
        now_s += STEP_S
    assert moved >= 0.8 * quota * LASTS_S


@given(quota=st.floats(BYTES_FIRST, 1e8), others=st.integers(1, 3))
def test_who_moved_little_beside_others_is_not_kept_waiting(quota: float, others: int) -> None:
    """They use up the quota of their user: of what it is, a member that moved little knows nothing."""
    broker, allowances = Quota(quota), [Allowance(LIMIT_MS) for _ in range(1 + others)]
    muted_s, now_s = [0.0] * len(allowances), 0.0
    while now_s < LASTS_S:
        for member, allowance in enumerate(allowances):
            allowed = min(allowance.request_max(now_s), allowance.bytes_max(now_s)) if member else 10
            if now_s >= muted_s[member] and allowed > 0:
                throttle_s = broker.throttled_s(allowed, now_s)
                allowance.note_bytes(allowed, throttle_s, now_s)
                muted_s[member] = now_s + throttle_s
        now_s += STEP_S
    assert allowances[0].rate is not None
    assert allowances[0].wait_s(1_000, now_s) == 0
    assert not allowances[0].is_too_much(1_000)


def test_without_a_quota_what_may_go_grows() -> None:
    """Hundreds of megabytes a second are allowed within seconds."""
    allowance, now_s = Allowance(LIMIT_MS), 0.0
    while (allowed := allowance.request_max(now_s)) < 10_000_000:
        assert allowance.bytes_max(now_s) > 2 * allowed
        allowance.note_bytes(allowed, 0.0, now_s)
        now_s += STEP_S
        assert now_s < 5.0


def test_throttling_is_told_when_it_begins_and_when_it_is_over() -> None:
    """Once each, however many answers say so."""
    throttling = Throttling()
    times_ms = [(0, 0.0), (5, 1.0), (7, 2.0), (0, 3.0), (0, 2.0 + QUIET_S), (0, 3.0 + QUIET_S), (1, 99.0)]
    said = [throttling.note_answer(ms, now_s) for ms, now_s in times_ms]
    assert said == [None, True, None, None, False, None, True]
    assert throttling.total_ms == 13


@pytest.mark.parametrize("size", [50_000, 290_000, 320_000, 350_000, 390_000])
@virtual
async def test_a_transaction_that_meets_a_quota_is_not_open_for_long(size: int) -> None:
    """What is left goes in one request, or nothing of it goes."""
    rate = 5 * RATE
    cluster = cluster_of()
    connection, loop = cluster.connect("one"), asyncio.get_running_loop()
    cluster.network.quota = Quota(rate)
    producer = await producer_of(connection)
    for _ in range(10):  # up to the quota
        await producer.transact([Outgoing("a", 0, None, bytes(1_000)) for _ in range(rate // 10_000 * 11)])
    began_s = loop.time()
    with contextlib.suppress(TransactionThrottled):
        await producer.transact([Outgoing("a", 0, None, bytes(1_000)) for _ in range(size // 1_000)], in_parts=True)
    assert loop.time() < began_s + LIMIT_MS / 1000 * 4 / 3


@virtual
async def test_a_transaction_ends_early_where_a_quota_is_met() -> None:
    """What may be sent in parts is given up when its request is throttled; what may not goes on. Requests are small at
    first.
    """
    cluster = cluster_of()
    connection, loop = cluster.connect("one"), asyncio.get_running_loop()
    cluster.network.quota = Quota(RATE)
    records = [Outgoing("a", 0, None, bytes(1_000)) for _ in range(600)]
    producer, began_s = await producer_of(connection), loop.time()
    with pytest.raises(TransactionThrottled):
        await producer.transact(records, in_parts=True)
    written = cluster.network.quota.moved
    assert RATE * WINDOW_S <= written <= RATE * WINDOW_S + BYTES_FIRST
    assert loop.time() < began_s + 1.0
    await (await producer_of(connection, timeout_ms=60_000)).transact(records)
    assert len(cluster.committed_records("a")) == 600
    assert loop.time() >= began_s + (written + 600_000) / RATE - WINDOW_S - LIMIT_MS / 1000
