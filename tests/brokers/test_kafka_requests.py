"""What Kafka's answers mean for a request of a producer."""

import pytest

from keylanes.brokers.delivery import Verdict
from keylanes.brokers.kafka.link import TRY_AGAIN, Code
from keylanes.brokers.kafka.requests import verdict_of

from ..tiers.marks import tier

pytestmark = tier("check")

AFTER_WRITING = {
    Code.COORDINATOR_NOT_AVAILABLE: "the decision was written, and not enough replicas had it in time",
    Code.REQUEST_TIMED_OUT: "the same, of a leader of a partition",
    Code.NOT_COORDINATOR: "the decision was written, and replicated, while the coordinator moved to another broker",
    Code.COORDINATOR_LOADING: "the same, and it has come back meanwhile",
}


@pytest.mark.parametrize("code", sorted(AFTER_WRITING))
def test_what_kafka_says_after_it_has_written_something_is_doubtful(code: Code) -> None:
    """Who takes it for "not carried out" calls a committed transaction aborted when no better answer comes in time."""
    assert verdict_of(code) is Verdict.DOUBTFUL, AFTER_WRITING[code]


def test_all_that_may_be_asked_again_is() -> None:
    """And nothing else is."""
    again = {code for code in Code if verdict_of(code) in (Verdict.AGAIN, Verdict.DOUBTFUL)}
    assert again == TRY_AGAIN
