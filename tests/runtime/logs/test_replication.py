"""What is said of the copies of topics, and where a warning is due."""

import pytest

from keylanes.brokers.protocol import Replication, TopicDescription
from keylanes.runtime.logs.replication import replication_text, warnings

from ...tiers.marks import tier

pytestmark = tier("check")


def topic(name: str, replicas: int, brokers: int = 3, in_sync: int = 2, *, unclean: bool = False) -> TopicDescription:
    """A topic on a cluster."""
    config = {"min.insync.replicas": str(in_sync), "unclean.leader.election.enable": str(unclean).lower()}
    return TopicDescription(name, 1, config, "", Replication(replicas, brokers))


def test_all_is_told_in_one_line() -> None:
    """Topics with the same values together."""
    line = replication_text([topic("a", 3), topic("b", 1, in_sync=1), topic("c", 3)])
    assert line == (
        "replication: a, c: 3 replicas, min.insync.replicas 2, unclean election off; "
        "b: 1 replica, min.insync.replicas 1, unclean election off"
    )


def test_a_broker_that_does_not_tell_is_not_judged() -> None:
    """As an embedded one."""
    silent = [TopicDescription("a", 1, {})]
    assert (replication_text(silent), warnings(silent)) == ("", [])


@pytest.mark.parametrize("good", [topic("a", 3), topic("a", 1, brokers=1, in_sync=1), topic("a", 1, 1, unclean=True)])
def test_what_can_not_be_better_is_not_warned_about(good: TopicDescription) -> None:
    """A single broker keeps what it can."""
    assert warnings([good]) == []


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (topic("b", 1), "b on a cluster of 3 brokers: kept by one of them alone"),
        (topic("b", 1, brokers=2), "b on a cluster of 2 brokers: kept by one of them alone"),
        (topic("b", 3, in_sync=1), "b: min.insync.replicas is 1"),
        (topic("b", 3, unclean=True), "b: unclean.leader.election.enable is true"),
    ],
)
def test_where_commits_can_be_lost_there_is_a_warning(bad: TopicDescription, says: str) -> None:
    """It names the topics that are concerned, and what to set."""
    assert bad.replication is not None
    (line,) = warnings([topic("a", 2, bad.replication.brokers), bad])
    assert says in line
