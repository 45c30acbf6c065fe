"""The committed offsets of a consumer group, read from the coordinator without joining the group.

aiokafka asks in versions that tell neither the state of a group of the newer protocol (KIP-848) nor whether a
transaction is under way that commits offsets of the group. Brokers older than 2.6 know no groups of the newer protocol,
and brokers older than 2.5 don't tell of transactions. Source of the layouts: https://kafka.apache.org/protocol,
OffsetFetch version 7, ListGroups version 4.
"""

from collections.abc import Collection
from typing import Any, Final

from aiokafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest_v2
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetFetchRequest_v3
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from ..deadline import Deadline, NotSent, ReplyLost
from ..protocol import BrokerError, GroupOffsets, TopicPartition
from ..rights import Right
from .link import TRY_AGAIN, Code, KafkaLink, describe_code

GROUP_COORDINATOR: Final = 0
NO_OFFSET: Final = -1
DEAD: Final = "Dead"
EMPTY: Final = frozenset({"Empty", DEAD})
"""The states of groups without members. Dead is the state of a group that does not exist."""


class OffsetsReply7(Response):  # type: ignore[misc]  # of a library without types
    """Committed offsets."""

    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class OffsetsRequest7(RequestStruct):  # type: ignore[misc]  # of a library without types
    """A request for committed offsets. The answer is an error while a transaction may still commit others."""

    FLEXIBLE_VERSION = True
    API_KEY = 9
    API_VERSION = 7
    RESPONSE_TYPE = OffsetsReply7
    SCHEMA = Schema(
        ("group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class GroupOffsetsRequest(Request[OffsetFetchRequest_v3 | OffsetsRequest7]):  # type: ignore[misc]  # of a library without types
    """A request for committed offsets, in the newest of two versions that the broker knows."""

    API_KEY = 9

    def __init__(self, group: str, partitions: Collection[TopicPartition]) -> None:
        self._group = group
        self._topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            self._topics.setdefault(topic, []).append(partition)

    def build(self, request_struct_class: Any) -> Any:
        """The request in one version."""
        if request_struct_class is OffsetsRequest7:
            rows: list[Any] = [(topic, partitions, {}) for topic, partitions in self._topics.items()]
            return OffsetsRequest7(self._group, rows, True, {})
        return request_struct_class(self._group, list(self._topics.items()))


class GroupsReply4(Response):  # type: ignore[misc]  # of a library without types
    """The groups of a coordinator."""

    API_KEY = 16
    API_VERSION = 4
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "groups",
            CompactArray(
                ("group", CompactString("utf-8")),
                ("protocol_type", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class GroupsRequest4(RequestStruct):  # type: ignore[misc]  # of a library without types
    """A request for groups in any state."""

    FLEXIBLE_VERSION = True
    API_KEY = 16
    API_VERSION = 4
    RESPONSE_TYPE = GroupsReply4
    SCHEMA = Schema(("states", CompactArray(CompactString("utf-8"))), ("tags", TaggedFields))


class GroupsRequest(Request[ListGroupsRequest_v2 | GroupsRequest4]):  # type: ignore[misc]  # of a library without types
    """A request for groups, in the newest of two versions that the broker knows."""

    API_KEY = 16

    def build(self, request_struct_class: Any) -> Any:
        """The request in one version."""
        return GroupsRequest4([], {}) if request_struct_class is GroupsRequest4 else request_struct_class()


async def group_offsets(
    link: KafkaLink, group: str, partitions: Collection[TopicPartition], deadline: Deadline
) -> GroupOffsets:
    """See the protocol of a broker. A second look at the state behind the offsets: no member came meanwhile."""
    state = await _state(link, group, deadline)
    offsets: dict[TopicPartition, int] = {}
    if state in EMPTY:
        offsets = await _committed_offsets(link, group, partitions, deadline)
        state = await _state(link, group, deadline)
    return GroupOffsets(state, state not in EMPTY, offsets)


async def _state(link: KafkaLink, group: str, deadline: Deadline) -> str:
    while True:
        reply = await _ask(link, group, DescribeGroupsRequest([group]), deadline)
        code, _name, state, *_ = reply.groups[0]
        if code == Code.NONE and state != DEAD:
            return str(state)
        if code not in (Code.NONE, Code.GROUP_ID_NOT_FOUND):
            await _pause_or_refuse(link, group, code, deadline)
            continue
        # The group does not exist, or is of the newer protocol, which that request does not describe.
        reply = await _ask(link, group, GroupsRequest(), deadline)
        if reply.error_code != Code.NONE:
            await _pause_or_refuse(link, group, reply.error_code, deadline)
            continue
        listed = {row[0]: row[2] for row in reply.groups if len(row) > 2}  # an older reply tells no state
        return str(listed.get(group, DEAD))


async def _committed_offsets(
    link: KafkaLink, group: str, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, int]:
    while True:
        reply = await _ask(link, group, GroupOffsetsRequest(group, partitions), deadline)
        found: dict[TopicPartition, int] = {}
        codes = {reply.error_code}
        for topic, rows, *_ in reply.topics:
            for partition, offset, *rest in rows:
                codes.add(rest[-2] if isinstance(rest[-1], dict) else rest[-1])  # newer replies: tags behind
                if offset != NO_OFFSET:
                    found[TopicPartition(topic, partition)] = offset
        wrong = codes - {Code.NONE, Code.GROUP_ID_NOT_FOUND}
        if not wrong:
            return found
        await _pause_or_refuse(link, group, min(wrong), deadline)


async def _pause_or_refuse(link: KafkaLink, group: str, code: int, deadline: Deadline) -> None:
    if code == Code.GROUP_NOT_AUTHORIZED:
        raise link.settings.rights_error(Right("group", group, "DESCRIBE"))
    if code not in TRY_AGAIN and code != Code.UNSTABLE_OFFSET_COMMIT:
        raise BrokerError(f"consumer group {group!r} can't be read: {describe_code(code)}")
    await deadline.pause(describe_code(code))


async def _ask(link: KafkaLink, group: str, request: Any, deadline: Deadline) -> Any:
    """Ask the coordinator of the group. The coordinator is looked for each time."""
    while True:
        found = await link.ask_any(FindCoordinatorRequest(group, GROUP_COORDINATOR), deadline)
        if found.error_code != Code.NONE:
            await _pause_or_refuse(link, group, found.error_code, deadline)
            continue
        try:
            return await link.ask(found.coordinator_id, request, deadline, coordination=True)
        except (NotSent, ReplyLost) as error:
            await deadline.pause(error)
