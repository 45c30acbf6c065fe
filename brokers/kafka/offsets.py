"""The offsets of partitions by the answers of brokers, and whether the true leader answers.

A deposed leader without a link to the others answers with an old end. So other replicas are asked beside the leader, at
the leader epoch of the question: a follower that knows no newer leader epoch says NOT_LEADER, a follower that does says
FENCED_LEADER_EPOCH.

R - min.insync.replicas + 1 of the R replicas have to agree; the leader is one of them. So many replicas share a member
with any set of min.insync.replicas, so no record can be missing that was acknowledged at a newer leader epoch before
the question.

With min.insync.replicas of 1, or where the setting is not told, all replicas would have to answer. Then a leader is
*believed* without the others, unless one of them knows a newer leader epoch.

aiokafka encodes the leader epoch of ListOffsets with the wrong width; the request is written here.

Source of the layout: https://kafka.apache.org/protocol#The_Messages_ListOffsets, version 4.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct
from aiokafka.protocol.offset import OffsetResponse_v4
from aiokafka.protocol.types import Array, Int8, Int32, Int64, Schema, String

from ..deadline import Deadline, NotSent, ReplyLost
from ..delivery import TopicNumbers
from ..protocol import BrokerError, TopicPartition, UnknownTopic, Watermarks
from ..rights import Operation, Right
from .link import TRY_AGAIN, Code, KafkaLink, describe_code
from .topics import Node

LATEST, EARLIEST = -1, -2
CLIENT, READ_UNCOMMITTED = -1, 0

logger = logging.getLogger("keylanes")

Row = tuple[int, ...]
"""The row of one partition in a request: the number, and the question."""


class OffsetsRequest4(RequestStruct):  # type: ignore[misc]  # of a library without types
    """A request of an uncommitted reader: for a committed reader LATEST would be the last stable offset."""

    API_KEY = 2
    API_VERSION = 4
    RESPONSE_TYPE = OffsetResponse_v4
    SCHEMA = Schema(
        ("replica_id", Int32),
        ("isolation_level", Int8),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("timestamp", Int64))),
            ),
        ),
    )


class ListOffsetsRequest(Request[OffsetsRequest4]):  # type: ignore[misc]  # of a library without types
    """Rows are (partition, leader epoch, timestamp)."""

    API_KEY = 2

    def __init__(self, rows: Sequence[tuple[str, Sequence[Row]]]) -> None:
        self._rows = rows

    def build(self, request_struct_class: Any) -> Any:
        """The request in the only version."""
        return request_struct_class(CLIENT, READ_UNCOMMITTED, self._rows)


async def ask_leaders(
    link: KafkaLink,
    rows: Mapping[TopicPartition, Callable[[], Row]],
    request: Callable[[list[tuple[str, list[Row]]]], Any],
    code_at: int,
    purpose: Operation,
    deadline: Deadline,
) -> dict[TopicPartition, Sequence[int]]:
    """Ask the leader of each partition for a row; ask again where another try may help. A row is made at the time of
    asking.

    Returns the answers by partition: the values behind the partition, with the error code at ``code_at``. ``purpose``:
    the right that is missing where a topic is not seen.
    """
    found: dict[TopicPartition, Sequence[int]] = {}
    while len(found) < len(rows):
        open_ = [partition for partition in rows if partition not in found]
        missing = await link.missing_partitions(open_, deadline, purpose)
        if missing:
            raise UnknownTopic(f"topic {missing[0].topic!r} has no partition {missing[0].partition}")
        by_leader: dict[Node, dict[str, list[Row]]] = {}
        for partition in open_:
            leader = link.leaders.leader(partition)
            by_topic = by_leader.setdefault(-1 if leader is None else leader, {})
            by_topic.setdefault(partition.topic, []).append(rows[partition]())
        problem: object = "no answer"
        # Side by side: a silent node does not hold up the answers of the others.
        replies = await asyncio.gather(
            *(
                _answer_or_loss(link, leader, request(list(topics.items())), deadline)
                for leader, topics in by_leader.items()
            )
        )
        for reply in replies:
            if isinstance(reply, NotSent | ReplyLost):
                problem = reply
                continue
            for partition, row in _rows_by_partition(reply):
                if row[code_at] not in TRY_AGAIN:
                    found[partition] = row
                else:
                    problem = describe_code(row[code_at])
        if len(found) < len(rows):
            link.leaders.forget(partition for partition in rows if partition not in found)
            await deadline.pause(problem)
    return found


async def offsets_of(
    link: KafkaLink, which: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """The offset of each partition at a time in ms, or LATEST, or EARLIEST, from the leader; below 0: none."""

    def row_of(partition: TopicPartition) -> Row:
        return partition.partition, link.leaders.epoch(partition), which[partition]

    rows = {partition: (lambda one=partition: row_of(one)) for partition in which}
    answers = await ask_leaders(link, rows, ListOffsetsRequest, 0, "READ", deadline)
    for partition, (code, *_) in answers.items():
        if code == Code.TOPIC_NOT_AUTHORIZED:
            raise link.settings.rights_error(Right("topic", partition.topic, "READ"))
        if code != Code.NONE:
            raise BrokerError(f"{partition.topic}[{partition.partition}]: {describe_code(code)}")
    return {partition: row[2] for partition, row in answers.items()}


class ConfirmedWatermarks:
    """The watermarks of partitions from confirmed leaders. ``in_sync_min``: min.insync.replicas by topic."""

    def __init__(self, link: KafkaLink, in_sync_min: TopicNumbers) -> None:
        self._link = link
        self._in_sync_min = in_sync_min
        self._doubted: set[str] = set()
        """Topics with leaders that are believed, as the log says already."""

    async def of(self, partitions: Collection[TopicPartition], deadline: Deadline) -> dict[TopicPartition, Watermarks]:
        """The watermarks of partitions. Raises UnknownTopic, BrokerTimeout, NotAuthorized."""
        found: dict[TopicPartition, Watermarks] = {}
        leaders = self._link.leaders
        while open_ := [partition for partition in partitions if partition not in found]:
            if missing := await self._link.missing_partitions(open_, deadline, "READ"):
                raise UnknownTopic(f"topic {missing[0].topic!r} has no partition {missing[0].partition}")
            epochs = {partition: leaders.epoch(partition) for partition in open_}
            starts, highs, confirmed = await asyncio.gather(
                offsets_of(self._link, dict.fromkeys(open_, EARLIEST), deadline),
                offsets_of(self._link, dict.fromkeys(open_, LATEST), deadline),
                self._confirmed_partitions(epochs, deadline),
            )
            for partition in open_:
                # At the same leader epoch before and after: an older epoch never replaces a newer epoch.
                if partition in confirmed and leaders.epoch(partition) == epochs[partition]:
                    found[partition] = Watermarks(starts[partition], highs[partition])
            if len(found) < len(partitions):
                place = next(partition for partition in open_ if partition not in found)
                leaders.forget([place for place in open_ if place not in found])
                await deadline.pause(
                    f"who leads {place.topic}[{place.partition}] is not confirmed: too few of its replicas answer"
                )
        return found

    async def _confirmed_partitions(
        self, epochs: Mapping[TopicPartition, int], deadline: Deadline
    ) -> set[TopicPartition]:
        """The partitions with a confirmed leader (enough replicas know no newer epoch), or with a believed leader."""
        needed, in_sync = await self._replicas_needed(epochs)
        rows_by_node: dict[Node, dict[str, list[Row]]] = {}
        for partition in needed:
            if (known := self._link.leaders.of(partition)) is not None:
                for node in {*known.replicas} - {known.leader}:
                    rows = rows_by_node.setdefault(node, {}).setdefault(partition.topic, [])
                    rows.append((partition.partition, epochs[partition], LATEST))
        agree, deposed = Counter[TopicPartition](), set[TopicPartition]()
        answers = {
            asyncio.ensure_future(_answer_or_loss(self._link, node, ListOffsetsRequest(list(topics.items())), deadline))
            for node, topics in rows_by_node.items()
        }
        try:
            waiting = set(answers)
            while waiting and any(agree[p] < count and p not in deposed for p, count in needed.items()):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for answer in done:
                    reply = answer.result()
                    for partition, row in () if isinstance(reply, NotSent | ReplyLost) else _rows_by_partition(reply):
                        agree[partition] += row[0] == Code.NOT_LEADER
                        deposed |= {partition} if row[0] == Code.FENCED_LEADER_EPOCH else set()
        finally:
            for answer in answers:
                answer.cancel()
        doubted = {p for p, count in needed.items() if agree[p] < count and p not in deposed}
        believed = {p for p in doubted if in_sync.get(p.topic, 1) == 1}
        self._warn({partition.topic for partition in believed})
        return epochs.keys() - deposed - (doubted - believed)

    async def _replicas_needed(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[str, int]]:
        """How many replicas beside the leader have to agree, for partitions with several; and min.insync.replicas."""
        replicas = {
            partition: len(known.replicas)
            for partition in partitions
            if (known := self._link.leaders.of(partition)) is not None and len(known.replicas) > 1
        }
        in_sync = await self._in_sync_min.of({partition.topic for partition in replicas}) if replicas else {}
        return {partition: count - in_sync.get(partition.topic, 1) for partition, count in replicas.items()}, in_sync

    def _warn(self, topics: Collection[str]) -> None:
        """Say once for each topic that an unconfirmed leader is believed."""
        if new := sorted({*topics} - self._doubted):
            self._doubted.update(new)
            logger.warning(
                "%s: min.insync.replicas is 1, or is not told, and not all brokers that keep these topics answer: "
                "whoever says that it leads them is believed",
                ", ".join(new),
            )


def _rows_by_partition(reply: Any) -> list[tuple[TopicPartition, Sequence[int]]]:
    """The row of each partition in an answer."""
    return [(TopicPartition(topic, index), row) for topic, rows, *_ in reply.topics for index, *row in rows]


async def _answer_or_loss(link: KafkaLink, node: Node, request: Any, deadline: Deadline) -> Any:
    """An answer, or the reason for the lack of an answer."""
    try:
        return await link.ask(node, request, deadline)
    except (NotSent, ReplyLost) as error:
        return error
