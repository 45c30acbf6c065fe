"""When the Kafka adapter takes a topic for gone or for another one: against a fake of aiokafka's answers."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from keylanes.brokers.kafka.identities import TopicIdentities
from keylanes.brokers.kafka.link import UNKNOWN_TOPIC_TRIES, Code, KafkaLink, LinkSettings
from keylanes.brokers.protocol import TopicPartition, UnknownTopic
from keylanes.brokers.security import Security
from keylanes.brokers.simulated.virtual_loop import run_virtual

from ..stage.virtual import virtual
from ..tiers.marks import tier

pytestmark = tier("check")

PLACE = TopicPartition("src", 1)
GONE: tuple[Any, ...] = (Code.UNKNOWN_TOPIC_OR_PARTITION, "src", bytes(16), False, [], 0, {})


def topic(identity: int, partitions: int = 2) -> tuple[Any, ...]:
    """What a broker says of the topic; identity 0: it tells none."""
    rows: list[Any] = [(0, index, 7, 0, [7], [7], [], {}) for index in range(partitions)]
    return Code.NONE, "src", identity.to_bytes(16), False, rows, 0, {}


class Client:
    """As aiokafka's: gives these answers, one after the other, and then the last one again and again."""

    def __init__(self, *answers: tuple[Any, ...]) -> None:
        self._answers = list(answers)
        self.asked = 0

    def nodes(self) -> list[int]:
        """The only one."""
        return [7]

    async def send(self, node: int, request: Any, *, group: Any, is_handed_on: bool, limit: Any) -> Any:
        """The next answer."""
        self.asked += 1
        topics = [self._answers[min(self.asked, len(self._answers)) - 1]]
        return SimpleNamespace(API_VERSION=12, brokers=[], topics=topics)


def told(client: Client) -> TopicIdentities:
    """The identities that this client is told."""
    link = KafkaLink(LinkSettings("127.0.0.1:1", "test", Security(), 4_000, 30_000, 1_000))
    link._client = client
    return TopicIdentities(link)


def check(*answers: tuple[Any, ...], times: int = 1) -> Client:
    """Look at the partition so many times while the brokers answer so."""
    client = Client(*answers)
    identities = told(client)

    async def run() -> None:
        for _ in range(times):
            await identities.check([PLACE])

    run_virtual(run())
    return client


@pytest.mark.parametrize("stale", [GONE, topic(1, partitions=1), topic(2)], ids=["gone", "smaller", "another"])
def test_one_stale_answer_ends_nothing(stale: tuple[Any, ...]) -> None:
    """A broker that lags behind once is asked again."""
    assert check(topic(1), stale, topic(1), times=2).asked == 3


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (GONE, "topic 'src' has no partition 1"),
        (topic(1, partitions=1), "topic 'src' has no partition 1"),
        (topic(2), f"was deleted and created anew while it was read (it was {1:032x}, it is {2:032x})"),
    ],
    ids=["gone", "smaller", "another"],
)
def test_what_all_answers_say_is_believed(answer: tuple[Any, ...], says: str) -> None:
    """When every try says the same it is so."""
    with pytest.raises(UnknownTopic) as caught:
        check(topic(1), answer, times=2)
    assert says in str(caught.value)


def test_a_topic_that_never_was_is_asked_for_as_often_as_any() -> None:
    """At the first look, too, one answer is not enough; the last try counts."""
    assert check(*[GONE] * (UNKNOWN_TOPIC_TRIES - 1), topic(1)).asked == UNKNOWN_TOPIC_TRIES
    with pytest.raises(UnknownTopic):
        check(*[GONE] * UNKNOWN_TOPIC_TRIES, topic(1))


@pytest.mark.parametrize("answers", [(0, 1, 0, 1), (1, 0, 1), (0, 0)], ids=str)
def test_an_identity_that_is_not_told_is_no_other_one(answers: tuple[int, ...]) -> None:
    """Brokers that tell identities and some that do not, as during an upgrade: the topic is the same."""
    assert check(*map(topic, answers), times=len(answers)).asked == len(answers)


def test_an_identity_is_known_although_one_was_not_told_in_between() -> None:
    """What a broker does not tell makes nothing forgotten."""
    with pytest.raises(UnknownTopic, match="created anew"):
        check(topic(1), topic(0), topic(2), times=3)


@pytest.mark.parametrize(("pause_s", "was_seen"), [(0.9, True), (1.1, False)])
@virtual
async def test_it_is_known_what_was_there_a_moment_ago(pause_s: float, was_seen: bool) -> None:
    """Of another partition nothing is known."""
    identities = told(Client(topic(1)))
    assert not identities.were_seen([PLACE], 1.0)
    await identities.check([PLACE])
    await asyncio.sleep(pause_s)
    assert identities.were_seen([PLACE], 1.0) is was_seen
    assert not identities.were_seen([PLACE, TopicPartition("src", 0)], 1.0)
