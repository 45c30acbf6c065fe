"""First offsets and ends of partitions of a Kafka cluster, from confirmed leaders.

Several replicas of a partition name its leader, see replicas.py. Each replica has a new client. librdkafka asks the
leader that this replica named, at the leader epoch of this replica, and a leader refuses any other epoch. A used client
would mix the answers of several replicas. A partition with one replica needs no confirmation.

librdkafka gives the offset -1001 and no error when one broker of several does not answer. Taken for an end, -1001 would
leave a partition out of the audit unseen.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final

from .brokers import Place, Span
from .kafka_clients import ATTEMPT_S, KafkaClients
from .replicas import BELIEVED_IN_SYNC, Poll, ReplicaAnswer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, ClusterMetadata

ASKED_AT_ONCE: Final = 16
"""Replicas; each replica takes one thread."""
UNKNOWN_EPOCH: Final = -1
_IN_SYNC_MIN: Final = "min.insync.replicas"
_BOOTSTRAP: Final = -1
"""The number of the bootstrap broker of a client, before the client learns the real number."""
_HIDING: Final = frozenset(
    ("CLUSTER_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE")
)
"""Errors of a cluster that hides its configuration."""


class KafkaSpans:
    """Asks for spans. ``believed_topics``: topics with a leader that was believed without proof."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._in_sync_min: dict[str, int] = {}
        self._silent: set[int] = set()
        """Nodes without an answer in an attempt of full length: a leader is believed without them."""
        self.believed_topics: set[str] = set()

    def of(self, places: Iterable[Place], *, committed: bool) -> dict[Place, Span]:
        """The first offset of each partition and its high watermark, or its last stable offset where ``committed``.

        Raises AuditError, also when too few replicas answer.
        """
        wanted = list(places)
        poll = Poll(wanted, self._in_sync_min)

        def question(admin: "AdminClient", limit_s: float) -> None:
            """Ask for the open partitions. Earlier answers are kept: leaders may move all the time."""
            listed = admin.list_topics(timeout=limit_s)
            keepers = {place: _replicas(listed, place) for place in poll.open_places()}
            poll.expect(keepers)
            if alone := [place for place, nodes in keepers.items() if len(nodes) < 2]:
                for place, told in _ask_leaders(admin, listed, alone, limit_s, committed=committed).items():
                    poll.hear(min(told.replicas, default=_BOOTSTRAP), {place: told})
            self._learn_in_sync_min(admin, {topic for topic, _ in keepers.keys() - alone}, limit_s)
            problem = self._ask_replicas(poll, _servers(listed), limit_s, committed=committed)
            if open_ := poll.open_places():
                raise _unconfirmed_error(poll, open_[0], problem)

        if wanted:
            self._clients.ask(f"offsets of {wanted[0][0]} and others", question)
        return poll.spans()

    def _ask_replicas(
        self, poll: Poll, servers: Mapping[int, str], limit_s: float, *, committed: bool
    ) -> "KafkaError | None":
        """Ask replicas side by side until enough have answered. Returns the last error of a replica."""
        from confluent_kafka import KafkaException

        problem, until = None, time.monotonic() + limit_s
        waiting: dict[Future[tuple[int, dict[Place, ReplicaAnswer]]], int] = {}
        with _Threads() as threads:

            def ask(nodes: Collection[int]) -> None:
                for node, places in poll.places_to_ask().items():
                    if node in servers and node in nodes:
                        answer = threads.submit(self._ask_replica, node, servers[node], places, limit_s, committed)
                        waiting[answer] = node

            ask(servers)
            while waiting and {*poll.open_places()} - {*poll.places_to_believe(self._silent)}:
                for answer in wait(waiting, return_when=FIRST_COMPLETED).done:
                    node = waiting.pop(answer)
                    try:
                        teller, told = answer.result()
                    except KafkaException as error:
                        problem = error.args[0]
                        continue
                    poll.hear(teller, told)
                    self._silent.discard(teller)
                    if teller != node and time.monotonic() < until:
                        ask((node,))
        if limit_s >= ATTEMPT_S:
            self._silent.update(node for place in poll.open_places() for node in poll.missing_replicas(place))
        believed = poll.places_to_believe(self._silent)
        self.believed_topics |= {topic for topic, _ in believed}
        poll.accept(believed)
        return problem

    def _ask_replica(
        self, node: int, server: str, places: list[Place], limit_s: float, committed: bool
    ) -> tuple[int, dict[Place, ReplicaAnswer]]:
        """The number of the replica that answered, with its answers. Raises KafkaException.

        Another replica than ``node`` may answer: librdkafka learns all brokers from the first and asks any of them.
        """
        admin = self._clients.admin_of(server)
        try:
            listed = admin.list_topics(timeout=limit_s)
            teller = node if listed.orig_broker_id == _BOOTSTRAP else listed.orig_broker_id
            return teller, _ask_leaders(admin, listed, places, limit_s, committed=committed)
        finally:
            admin.poll(0)  # hear the cause of a failure

    def _learn_in_sync_min(self, admin: "AdminClient", topics: Collection[str], limit_s: float) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource

        new = [
            ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in sorted({*topics} - self._in_sync_min.keys())
        ]
        if not new:
            return
        for resource, answer in admin.describe_configs(new, request_timeout=limit_s).items():
            try:
                told = answer.result().get(_IN_SYNC_MIN)
            except KafkaException as error:
                if error.args[0].name() not in _HIDING:
                    raise
                told = None
            self._in_sync_min[resource.name] = int(told.value) if told and told.value else BELIEVED_IN_SYNC


class _Threads(ThreadPoolExecutor):
    """Leaving does not wait for threads: a broker that hangs takes a whole attempt."""

    def __init__(self) -> None:
        super().__init__(ASKED_AT_ONCE, "replicas")

    def __exit__(self, *_: object) -> None:
        self.shutdown(wait=False, cancel_futures=True)


def _ask_leaders(
    admin: "AdminClient", listed: "ClusterMetadata", places: list[Place], limit_s: float, *, committed: bool
) -> dict[Place, ReplicaAnswer]:
    """The answers of the leaders in a client's metadata. A partition is left out when its leader does not answer.

    Raises KafkaException when no leader answers.
    """
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    asked = [TopicPartition(*place) for place in places]
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    asking: dict[str, Any] = {"isolation_level": level, "request_timeout": limit_s}
    ends = admin.list_offsets(dict.fromkeys(asked, OffsetSpec.latest()), **asking)
    starts = _by_place(admin.list_offsets(dict.fromkeys(asked, OffsetSpec.earliest()), **asking))
    told: dict[Place, ReplicaAnswer] = {}
    problem = None
    for place, answer in _by_place(ends).items():
        try:
            end, start = answer.result(), starts[place].result().offset
        except KafkaException as error:
            problem = error.args[0]  # the exception's frames would keep the client until some thread collects garbage
            continue
        if start >= 0 and end.offset >= 0:
            epoch = UNKNOWN_EPOCH if end.leader_epoch is None else end.leader_epoch
            told[place] = ReplicaAnswer(_replicas(listed, place), epoch, Span(start, end.offset))
    if problem is not None and not told:
        raise KafkaException(problem)
    return told


def _by_place(answers: Mapping[Any, Any]) -> dict[Place, Any]:
    return {(at.topic, at.partition): answer for at, answer in answers.items()}


def _replicas(listed: "ClusterMetadata", place: Place) -> tuple[int, ...]:
    """The replicas of a partition; none: the partition does not exist."""
    topic = listed.topics.get(place[0])
    partition = None if topic is None else topic.partitions.get(place[1])
    return () if partition is None else tuple(partition.replicas)


def _servers(listed: "ClusterMetadata") -> dict[int, str]:
    """The address of each listed node. An IPv6 address stands in brackets."""
    return {
        node: f"[{broker.host}]:{broker.port}" if ":" in broker.host else f"{broker.host}:{broker.port}"
        for node, broker in listed.brokers.items()
    }


def _unconfirmed_error(poll: Poll, place: Place, problem: "KafkaError | None") -> "KafkaException":
    """The error for an open partition: too few answers, or without any answer the error of a broker."""
    from confluent_kafka import KafkaError, KafkaException

    if problem is not None and poll.newest_answer(place) is None:
        return KafkaException(problem)
    missing = ", ".join(map(str, sorted(poll.missing_replicas(place)))) or "none"
    said = (
        f"who leads {place[0]}[{place[1]}] is not confirmed: too few of its replicas answer; these do not: {missing}: "
        "is a broker down, or not reached from here?"
    )
    return KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, said))
