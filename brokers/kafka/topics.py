"""Topics, the leaders of partitions with leader epochs, and the identity that Kafka gives each topic: a topic created
anew under an old name has another identity.

aiokafka asks in a version that tells neither epochs nor identities. A broker older than 2.8 does not know identities:
the identity is "" then. Source of the layouts: https://kafka.apache.org/protocol#The_Messages_Metadata, versions 7 and
12.
"""

from collections.abc import Collection, Iterator, Mapping
from io import BytesIO
from typing import Any, Final, NamedTuple

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    String,
    TaggedFields,
)

from ..leaders import Leadership
from ..protocol import TopicPartition

Node = int | str
"""The number of a broker, or the address of a server to be asked before the brokers are known."""

UUID_BYTES: Final = 16
NO_IDENTITY: Final = bytes(UUID_BYTES)
NOT_TOLD: Final = -(1 << 31)


class Uuid(AbstractType):  # type: ignore[misc]  # of a library without types
    """An identity of 16 bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """The bytes, unchanged."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """The bytes, unchanged."""
        return data.read(UUID_BYTES)


class TopicsReply7(Response):  # type: ignore[misc]  # of a library without types
    """The answer of a broker of version 2.1 or newer."""

    API_KEY = 3
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(("node_id", Int32), ("host", String("utf-8")), ("port", Int32), ("rack", String("utf-8"))),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("name", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline", Array(Int32)),
                    ),
                ),
            ),
        ),
    )


class TopicsRequest7(RequestStruct):  # type: ignore[misc]  # of a library without types
    """A request for topics by name; creates none."""

    API_KEY = 3
    API_VERSION = 7
    RESPONSE_TYPE = TopicsReply7
    SCHEMA = Schema(("topics", Array(String("utf-8"))), ("allow_auto_topic_creation", Boolean))


class TopicsReply12(Response):  # type: ignore[misc]  # of a library without types
    """The answer of a broker that knows identities."""

    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class TopicsRequest12(RequestStruct):  # type: ignore[misc]  # of a library without types
    """A request for topics by name; creates none."""

    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = TopicsReply12
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicsRequest(Request[TopicsRequest7 | TopicsRequest12]):  # type: ignore[misc]  # of a library without types
    """A request for topics, in the newest of two versions that the broker knows."""

    API_KEY = 3

    def __init__(self, names: Collection[str], *, with_operations: bool = False) -> None:
        self._names = sorted(names)
        self._with_operations = with_operations

    def build(self, request_struct_class: Any) -> Any:
        """The request in one version."""
        if request_struct_class is TopicsRequest12:
            return TopicsRequest12([(NO_IDENTITY, name, {}) for name in self._names], False, self._with_operations, {})
        return request_struct_class(self._names, False)


class AnsweredTopic(NamedTuple):
    """A topic in an answer: an error code, the identity ("": not told), and the leadership of each partition.

    ``brokers``: the number of all brokers. ``operations``: the allowed operations of the client, a bit for each, or
    NOT_TOLD.
    """

    code: int
    name: str
    identity: str
    partitions: Mapping[int, Leadership[Node]]
    operations: int
    brokers: int

    @property
    def replicas(self) -> int:
        """The least number of replicas of a partition."""
        return min((len(one.replicas) for one in self.partitions.values()), default=0)

    def leaderships(self) -> Iterator[tuple[TopicPartition, Leadership[Node]]]:
        """Each partition with the leadership."""
        for partition, leadership in self.partitions.items():
            yield TopicPartition(self.name, partition), leadership


def answered_topics(reply: Any) -> Iterator[AnsweredTopic]:
    """The topics in an answer to a ``TopicsRequest``."""
    for topic in reply.topics:
        identity, operations = NO_IDENTITY, NOT_TOLD
        if reply.API_VERSION == TopicsReply12.API_VERSION:
            code, name, identity, _internal, rows, operations, _tags = topic
        else:
            code, name, _internal, rows = topic
        told = "" if identity == NO_IDENTITY else identity.hex()
        partitions = {
            partition: Leadership(None if leader < 0 else leader, epoch, tuple(replicas), told)
            for _code, partition, leader, epoch, replicas, *_ in rows
        }
        yield AnsweredTopic(
            code=code,
            name=name,
            identity=told,
            partitions=partitions,
            operations=operations,
            brokers=len(reply.brokers),
        )
