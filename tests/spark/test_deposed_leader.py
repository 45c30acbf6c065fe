"""The witness where a leader was deposed, is cut off from the other brokers, and still answers."""

import time

import pytest

from keylanes.spark import kafka_spans
from keylanes.spark.access import Access
from keylanes.spark.brokers import AuditError, Span, WitnessBroker

from ..stage.brokers import DESCRIBE_CONFIGS, LIST_OFFSETS, TOPIC, Belief, Brokers
from ..tiers.marks import tier

pytestmark = tier("check")

PLACE = (TOPIC, 0)
OLD, NEW = Belief(1, 6, 100, 90), Belief(2, 7, 200)
WAIT_S_MAX = 20.0


def cut_off(in_sync_min: int | None = 2, silent: tuple[int, ...] = ()) -> Brokers:
    """Broker 1 led and does not know that broker 2 leads now; broker 3 knows."""
    return Brokers({1: OLD, 2: NEW, 3: NEW}, in_sync_min, silent={*silent})


def witness(brokers: Brokers, *nodes: int, limit_ms: int = 30_000) -> WitnessBroker:
    """A witness that begins with these brokers."""
    return Access(f"kafka://{','.join(map(brokers.server, nodes))}", {}, limit_ms).open()


@pytest.mark.parametrize("nodes", [(1,), (2,), (3,), (1, 2, 3)])
@pytest.mark.parametrize("in_sync_min", [1, 2, 3, None])
def test_the_end_is_that_of_the_newest_leader(nodes: tuple[int, ...], in_sync_min: int | None) -> None:
    """Whoever is asked first, and where min.insync.replicas is not shown, too: then all replicas are asked.

    With 3 of 3 the new leader acknowledges nothing that broker 1 has not: any replica is enough.
    """
    with cut_off(in_sync_min) as brokers:
        asked = witness(brokers, *nodes)
        seen = asked.spans([PLACE])[PLACE]
        assert seen == Span(0, 200) or (in_sync_min == 3 and seen == Span(0, 100))
        assert asked.doubts() == []


def test_what_is_decided_is_what_the_newest_leader_says() -> None:
    """The deposed leader sees a transaction as open for ever whose end it did not hear of."""
    with cut_off() as brokers:
        began = time.monotonic()
        witness(brokers, 1).wait_decided({PLACE: Span(0, 200)})
        assert time.monotonic() - began < WAIT_S_MAX


def test_too_few_replicas_are_an_error_and_no_end() -> None:
    """Only the deposed leader answers: its end is no pin."""
    with cut_off(silent=(2, 3)) as brokers, pytest.raises(AuditError) as caught:
        witness(brokers, 1, limit_ms=2_000).spans([PLACE])
    assert (
        "who leads late[0] is not confirmed: too few of its replicas answer; these do not: 2, 3: "
        "is a broker down, or not reached from here?" in str(caught.value)
    )


@pytest.mark.parametrize("in_sync_min", [1, None])
def test_a_leader_that_can_only_be_believed_is_a_warning(
    in_sync_min: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """min.insync.replicas is 1, or hidden: a broker that is down leaves no proof, and the audit says so."""
    monkeypatch.setattr(kafka_spans, "ATTEMPT_S", 1.0)
    with cut_off(in_sync_min, silent=(1,)) as brokers:
        asked = witness(brokers, 2)
        for _ in range(2):
            assert asked.spans([PLACE]) == {PLACE: Span(0, 200)}
            (doubt,) = asked.doubts()
            assert doubt.startswith("WARNING: late: min.insync.replicas is 1, or is not told, and not all brokers")


def test_a_partition_with_one_replica_costs_nothing_more() -> None:
    """Its first offset and its end are asked for once, and nobody asks for its configuration."""
    with Brokers({1: Belief(1, 3, 100)}) as brokers:
        assert witness(brokers, 1).spans([PLACE]) == {PLACE: Span(0, 100)}
        assert brokers.seen[LIST_OFFSETS] == 2
        assert brokers.seen[DESCRIBE_CONFIGS] == 0
