"""PURE. The text about the replicas of an application's topics, with warnings where a cluster may lose records: too few
replicas, acknowledgements too early, or an election of a lagging replica.

keylanes makes topics with the cluster's default, and waits for all replicas in sync (``acks=all``).
"""

from collections.abc import Callable, Iterable, Sequence

from ...brokers.protocol import TopicDescription

MIN_IN_SYNC, UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"


def replication_text(topics: Sequence[TopicDescription]) -> str:
    """A single line for all topics; empty when the broker does not tell the replication."""
    groups: dict[str, list[str]] = {}
    for topic in topics:
        if topic.replication is not None:
            groups.setdefault(_in_words(topic), []).append(topic.name)
    if not groups:
        return ""
    return "replication: " + "; ".join(f"{', '.join(names)}: {words}" for words, names in groups.items())


def warnings(topics: Sequence[TopicDescription]) -> list[str]:
    """A line for each way in which committed records can be lost."""
    found = []
    if one := _names_of(topics, lambda topic: _replicas(topic) == 1 and _brokers(topic) > 1):
        found.append(
            f"{one} on a cluster of {max(map(_brokers, topics))} brokers: kept by one of them alone (replication "
            "factor 1). While it is away nothing is committed, and what it loses is lost. Have topics made with a "
            "replication factor of 3 (default.replication.factor, or keylanes topics --replication-factor)"
        )
    if early := _names_of(topics, lambda topic: _replicas(topic) > 1 and _min_in_sync(topic) == 1):
        found.append(
            f"{early}: min.insync.replicas is 1, so a commit may be acknowledged by one broker alone, and is lost with "
            "it. Set min.insync.replicas=2"
        )
    if unclean := _names_of(topics, lambda topic: _replicas(topic) > 1 and topic.config.get(UNCLEAN) == "true"):
        found.append(
            f"{unclean}: unclean.leader.election.enable is true, so a replica that lags behind may come to lead, and "
            "what it lacks is lost. Set unclean.leader.election.enable=false"
        )
    return found


def _in_words(topic: TopicDescription) -> str:
    replicas = _replicas(topic)
    unclean = "on" if topic.config.get(UNCLEAN) == "true" else "off"
    return (
        f"{replicas} replica{'s' * (replicas != 1)}, {MIN_IN_SYNC} {topic.config.get(MIN_IN_SYNC, '?')}, unclean "
        f"election {unclean}"
    )


def _names_of(topics: Iterable[TopicDescription], is_concerned: Callable[[TopicDescription], bool]) -> str:
    return ", ".join(topic.name for topic in topics if topic.replication is not None and is_concerned(topic))


def _replicas(topic: TopicDescription) -> int:
    return 0 if topic.replication is None else topic.replication.replicas


def _brokers(topic: TopicDescription) -> int:
    return 0 if topic.replication is None else topic.replication.brokers


def _min_in_sync(topic: TopicDescription) -> int:
    return int(topic.config.get(MIN_IN_SYNC, "0"))
