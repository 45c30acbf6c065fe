"""What may go at once, against a broker that counts as Kafka does."""

import asyncio

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
            allowance.moved(size, throttle_s, now_s)
            muted_s[member] = now_s + throttle_s
            moved += size
        now_s += STEP_S
    assert moved >= 0.8 * quota * LASTS_S


def test_without_a_quota_what_may_go_grows() -> None:
    """Hundreds of megabytes a second are allowed within seconds."""
    allowance, now_s = Allowance(LIMIT_MS), 0.0
    while (allowed := allowance.request_max(now_s)) < 10_000_000:
        assert allowance.bytes_max(now_s) > 2 * allowed
        allowance.moved(allowed, 0.0, now_s)
        now_s += STEP_S
        assert now_s < 5.0


def test_throttling_is_told_when_it_begins_and_when_it_is_over() -> None:
    """Once each, however many answers say so."""
    throttling = Throttling()
    times_ms = [(0, 0.0), (5, 1.0), (7, 2.0), (0, 3.0), (0, 2.0 + QUIET_S), (0, 3.0 + QUIET_S), (1, 99.0)]
    said = [throttling.heard(ms, now_s) for ms, now_s in times_ms]
    assert said == [None, True, None, None, False, None, True]
    assert throttling.total_ms == 13


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
    assert len(cluster.committed("a")) == 600
    assert loop.time() >= began_s + (written + 600_000) / RATE - WINDOW_S - LIMIT_MS / 1000
