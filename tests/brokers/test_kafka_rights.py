"""What Kafka's answers say of the rights that are asked for."""

from keylanes.brokers.kafka.rights import Answers, rights_lacking
from keylanes.brokers.kafka.topics import NOT_TOLD
from keylanes.brokers.rights import Lacking, Operation, Right

from ..tiers.marks import tier

pytestmark = tier("check")

READ, WRITE, CREATE, DELETE, DESCRIBE, CONFIGS = 1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 8, 1 << 10
ALL: tuple[Operation, ...] = ("READ", "WRITE", "CREATE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS")


def missing(answers: Answers) -> list[str]:
    """Which operations on topic ``t`` are missing."""
    found = rights_lacking([Right("topic", "t", operation) for operation in ALL], answers, "User:me")
    assert found.principal == "User:me"
    return [right.operation for right in found.rights]


def refused(*operations: Operation) -> frozenset[Right]:
    """Of topic ``t``, when it was asked for them one by one."""
    return frozenset(Right("topic", "t", operation) for operation in operations)


def test_a_topic_that_is_seen_tells_what_is_allowed() -> None:
    """Bit by bit. What it takes to make it does not matter any more."""
    assert missing(Answers({"t": READ | DESCRIBE})) == ["WRITE", "DELETE", "DESCRIBE_CONFIGS"]
    assert missing(Answers({"t": WRITE | DELETE | DESCRIBE | CONFIGS})) == ["READ"]
    assert missing(Answers({"t": READ | WRITE | CREATE | DELETE | DESCRIBE | CONFIGS})) == []


def test_a_broker_that_does_not_tell_is_believed_to_allow() -> None:
    """One that is older than what is asked for; what it refuses comes out when it is done."""
    assert missing(Answers({"t": NOT_TOLD})) == []


def test_a_topic_that_is_not_seen_may_not_be_used() -> None:
    """Each right to use it would show it. Settings and creation are refused by themselves, or not."""
    unseen = frozenset({"t"})
    assert missing(Answers({}, unseen)) == ["READ", "WRITE", "DELETE", "DESCRIBE"]
    assert missing(Answers({}, unseen, refused("CREATE", "DESCRIBE_CONFIGS"))) == list(ALL)


def test_of_a_topic_that_does_not_exist_each_is_refused_by_itself() -> None:
    """Who sees it may do something with it."""
    assert missing(Answers({})) == []
    assert missing(Answers({}, refused=refused("CREATE", "READ"))) == ["READ", "CREATE"]


def test_an_id_and_a_group_are_refused_or_not() -> None:
    """By themselves."""
    both = [Right("transactional-id", "app.", "WRITE"), Right("group", "g", "DESCRIBE")]
    assert rights_lacking(both, Answers({}), None) == Lacking()
    assert rights_lacking(both, Answers({}, refused=frozenset(both)), None).rights == tuple(both)
