"""What Kafka's answers say of the rights that are asked for."""

from keylanes.brokers.kafka.rights import Answers, lacking
from keylanes.brokers.kafka.topics import NOT_TOLD
from keylanes.brokers.rights import Lacking, Operation, Right

from ..tiers.marks import tier

pytestmark = tier("check")

READ, WRITE, CREATE, DELETE, DESCRIBE, CONFIGS = 1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 8, 1 << 10
ALL: tuple[Operation, ...] = ("READ", "WRITE", "CREATE", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS")


def asked(answers: Answers) -> tuple[list[str], list[str]]:
    """Which operations on topic ``t`` are missing, and which can't be told."""
    found = lacking([Right("topic", "t", operation) for operation in ALL], answers, "User:me")
    assert found.principal == "User:me"
    return [right.operation for right in found.rights], [right.operation for right in found.unknown]


def test_a_topic_that_is_seen_tells_what_is_allowed() -> None:
    """Bit by bit. What it takes to make it does not matter any more."""
    assert asked(Answers({"t": READ | DESCRIBE})) == (["WRITE", "DELETE", "DESCRIBE_CONFIGS"], [])
    assert asked(Answers({"t": WRITE | DELETE | DESCRIBE | CONFIGS})) == (["READ"], [])
    assert asked(Answers({"t": READ | WRITE | CREATE | DELETE | DESCRIBE | CONFIGS})) == ([], [])


def test_a_broker_that_does_not_tell_is_believed_to_allow() -> None:
    """One that is older than what is asked for; what it refuses comes out when it is done."""
    assert asked(Answers({"t": NOT_TOLD})) == ([], [])


def test_a_topic_that_is_not_seen_may_not_be_used() -> None:
    """Each right to use it would show it. Settings and creation are refused by themselves, or not."""
    unseen = Answers({}, unseen=frozenset({"t"}))
    assert asked(unseen) == (["READ", "WRITE", "DELETE", "DESCRIBE"], [])
    refused = Answers({}, unseen=frozenset({"t"}), no_settings=frozenset({"t"}), no_creation=frozenset({"t"}))
    assert asked(refused) == (list(ALL), [])


def test_of_a_topic_that_does_not_exist_little_can_be_told() -> None:
    """Whether it may be made, and its settings be seen; the rest when it is there."""
    absent = Answers({}, absent=frozenset({"t"}), no_creation=frozenset({"t"}))
    assert asked(absent) == (["CREATE"], ["READ", "WRITE", "DELETE", "DESCRIBE"])


def test_an_id_is_refused_or_not() -> None:
    """By its coordinator. What can't be asked for is believed to be allowed."""
    right, group = Right("transactional-id", "app.", "WRITE"), Right("group", "g", "DESCRIBE")
    assert lacking([right, group], Answers({}), None) == Lacking()
    assert lacking([right, group], Answers({}, no_id=frozenset({"app."})), None).rights == (right,)
