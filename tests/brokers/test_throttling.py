"""What may go at once, against a broker that counts as Kafka does."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from keylanes.brokers.throttling import BYTES_FIRST, LIMIT_MS, QUIET_S, WINDOW_S, Allowance, Throttling

LASTS_S, STEP_S = 120.0, 0.1


class Quota:
    """Bytes a second over a window, for all who share it."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._moved: deque[tuple[float, int]] = deque()

    def throttle_s(self, size: int, now_s: float) -> float:
        """So many bytes come: for how long the broker throttles."""
        self._moved.append((now_s, size))
        while self._moved[0][0] <= now_s - WINDOW_S:
            self._moved.popleft()
        return max(0.0, sum(moved for _, moved in self._moved) / self._rate - WINDOW_S)


@given(
    quota=st.floats(BYTES_FIRST, 1e8),
    members=st.integers(1, 3),
    record=st.integers(10, 10_000),
)
def test_a_quota_is_used_and_no_answer_throttles_for_long(quota: float, members: int, record: int) -> None:
    """Who has always more to send than may go, in steps of a record, moves most of the quota; no answer throttles for
    much longer than the limit, from the first byte on.
    """
    broker, allowances = Quota(quota), [Allowance(LIMIT_MS) for _ in range(members)]
    muted_s, moved, now_s = [0.0] * members, 0, 0.0
    while now_s < LASTS_S:
        for member, allowance in enumerate(allowances):
            if now_s < muted_s[member] or (allowed := allowance.bytes_max(now_s)) == 0:
                continue
            size = (allowed // record + 1) * record
            throttle_s = broker.throttle_s(size, now_s)
            assert throttle_s <= LIMIT_MS / 1000 * 4 / 3
            allowance.moved(size, throttle_s, now_s)
            muted_s[member] = now_s + throttle_s
            moved += size
        now_s += STEP_S
    assert moved >= 0.8 * quota * LASTS_S


def test_without_a_quota_what_may_go_grows() -> None:
    """Hundreds of megabytes a second are allowed within seconds."""
    allowance, now_s = Allowance(LIMIT_MS), 0.0
    while (allowed := allowance.bytes_max(now_s)) < 10_000_000:
        allowance.moved(allowed, 0.0, now_s)
        now_s += STEP_S
        assert now_s < 5.0


def test_throttling_is_told_when_it_begins_and_when_it_is_over() -> None:
    """Once each, however many answers say so."""
    throttling = Throttling()
    times_ms = [(0, 0.0), (5, 1.0), (7, 2.0), (0, 3.0), (0, 2.0 + QUIET_S), (0, 3.0 + QUIET_S), (1, 99.0)]
    said = [throttling.heard(ms, now_s, of_write=True) for ms, now_s in times_ms]
    assert said == [None, True, None, None, False, None, True]
    assert throttling.total_ms == 13
    assert (throttling.take_longest_ms(), throttling.take_longest_ms()) == (7, 0)
