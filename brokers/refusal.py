"""What a broker refuses, and the settings of a topic that decide it: one rule for the embedded and simulated brokers.

Kafka bounds a *batch* by ``max.message.bytes``; a record is refused here when it would be too large in a batch of its
own, so that a record that passes here passes there too.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from ..state.tables import TABLE_CONFIG
from .protocol import BrokerError, Outgoing, TopicDescription, TopicSpec

TOPIC_DEFAULTS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "max.message.bytes": "1048588",
}
BATCH_OVERHEAD: Final = 61  # bytes: the header of a record batch, format 2
RECORD_OVERHEAD: Final = 21  # bytes: the most that length, attributes, deltas and counts of one record take
HEADER_OVERHEAD: Final = 10  # bytes: two lengths


_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def complete_spec(spec: TopicSpec) -> TopicSpec:
    """The topic as it will be, settings completed by defaults; raises BrokerError for what Kafka would not create."""
    if not _NAME.fullmatch(spec.name) or spec.name in (".", ".."):
        raise BrokerError(f"{spec.name!r} can't be a topic's name: 1 to 249 of A-Z a-z 0-9 . _ - are allowed")
    if spec.partitions < 1:
        raise BrokerError(f"topic {spec.name!r} can't have {spec.partitions} partitions; at least 1")
    return spec._replace(config={**TOPIC_DEFAULTS, **spec.config})


def batch_bytes(record: Outgoing) -> int:
    """The most that this record takes in a batch of its own, in bytes."""
    headers = sum(len(name.encode()) + len(value or b"") + HEADER_OVERHEAD for name, value in record.headers)
    return BATCH_OVERHEAD + RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"") + headers


def refusals(records: Sequence[Outgoing], topics: Mapping[str, TopicDescription]) -> dict[int, str]:
    """Why which records (by index) are refused for good by these topics; empty when all are fine."""
    refused: dict[int, str] = {}
    limits = {name: int(topic.config["max.message.bytes"]) for name, topic in topics.items()}
    compacted = {name for name, topic in topics.items() if "compact" in topic.config["cleanup.policy"]}
    by_key = {name for name, topic in topics.items() if TABLE_CONFIG.items() <= topic.config.items()}
    for index, record in enumerate(records):
        topic = topics.get(record.topic)
        if topic is None:
            refused[index] = f"topic {record.topic!r} does not exist"
        elif not 0 <= record.partition < topic.partitions:
            refused[index] = f"{record.topic!r} has {topic.partitions} partitions, not a partition {record.partition}"
        elif record.key is None and record.topic in by_key:
            refused[index] = f"{record.topic!r} is kept by key and the record has no key"
        elif record.key is None and record.topic in compacted:
            refused[index] = f"{record.topic!r} is compacted and the record has no key"
        elif batch_bytes(record) > limits[record.topic]:
            refused[index] = (
                f"the record takes {batch_bytes(record)} bytes and {record.topic!r} allows {limits[record.topic]} "
                "(max.message.bytes)"
            )
    return refused


def describe_refusals(refused: Mapping[int, str]) -> str:
    """One sentence: the first reason and how many more."""
    first = min(refused)
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    return f"record {first}: {refused[first]}{more}"
