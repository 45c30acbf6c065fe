"""Which topics there are, with the identity that Kafka gives each: a topic created anew under its name has another one.

aiokafka asks in a version that does not tell. A broker older than 2.8 does not know identities: they are "" then.
Source of the layout: https://kafka.apache.org/protocol#The_Messages_Metadata, version 12.
"""

from collections.abc import Collection, Iterator
from io import BytesIO
from typing import Any, Final, NamedTuple

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

UUID_BYTES: Final = 16
NO_IDENTITY: Final = bytes(UUID_BYTES)
NOT_TOLD: Final = -(1 << 31)


class Uuid(AbstractType):  # type: ignore[misc]  # of a library without types
    """16 bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """As it is."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """As it is."""
        return data.read(UUID_BYTES)


class TopicsReply12(Response):  # type: ignore[misc]  # of a library without types
    """What the broker knows."""

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
    """By name; creates none."""

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


class TopicsRequest(Request[MetadataRequest_v5 | TopicsRequest12]):  # type: ignore[misc]  # of a library without types
    """In the newest of two versions that the broker knows."""

    API_KEY = 3

    def __init__(self, names: Collection[str], *, with_operations: bool = False) -> None:
        self._names, self._with_operations = sorted(names), with_operations

    def build(self, request_struct_class: Any) -> Any:
        """For one version."""
        if request_struct_class is TopicsRequest12:
            return TopicsRequest12([(NO_IDENTITY, name, {}) for name in self._names], False, self._with_operations, {})
        return request_struct_class(self._names, False)


class AnsweredTopic(NamedTuple):
    """A topic in an answer: an error code, its identity ("": not told), partition → leader (-1: none now).

    ``replicas``: as many as each of its partitions has, at least; ``brokers``: as many as there are. ``operations``:
    what the client may do with it, a bit for each, or NOT_TOLD.
    """

    code: int
    name: str
    identity: str
    leaders: dict[int, int]
    replicas: int = 0
    operations: int = NOT_TOLD
    brokers: int = 0


def answered_topics(reply: Any) -> Iterator[AnsweredTopic]:
    """The topics in an answer to a ``TopicsRequest``."""
    for topic in reply.topics:
        if reply.API_VERSION == TopicsReply12.API_VERSION:
            code, name, identity, _internal, partitions, operations, _tags = topic
            told = "" if identity == NO_IDENTITY else identity.hex()
            # (error code, partition, leader, leader epoch, replicas, …)
            replicas = min((len(row[4]) for row in partitions), default=0)
        else:
            code, name, _internal, partitions = topic
            told, operations = "", NOT_TOLD
            replicas = min((len(row[3]) for row in partitions), default=0)  # no leader epoch there
        leaders = {index: leader for _code, index, leader, *_ in partitions}
        yield AnsweredTopic(code, name, told, leaders, replicas, operations, len(reply.brokers))
