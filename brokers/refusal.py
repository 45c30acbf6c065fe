"""The records that a broker refuses, and the deciding settings: one rule for the embedded and simulated brokers.

Kafka bounds a *batch* by ``max.message.bytes``. The rule here refuses a record that would be too large in a batch of
its own. So each record that passes here passes in Kafka.
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
RECORD_OVERHEAD: Final = 21  # bytes: the most for length, attributes, deltas and counts of a record
HEADER_OVERHEAD: Final = 10  # bytes: two lengths


_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def complete_spec(spec: TopicSpec) -> TopicSpec:
    """Complete the settings of a topic by defaults; raises BrokerError where Kafka would create no topic."""
    if not _NAME.fullmatch(spec.name) or spec.name in (".", ".."):
        raise BrokerError(f"{spec.name!r} can't be a topic's name: 1 to 249 of A-Z a-z 0-9 . _ - are allowed")
    if spec.partitions < 1:
        raise BrokerError(f"topic {spec.name!r} can't have {spec.partitions} partitions; at least 1")
    return spec._replace(config={**TOPIC_DEFAULTS, **spec.config})


def batch_bytes(record: Outgoing) -> int:
    """The most bytes that a record takes in a batch of its own."""
    headers = sum(len(name.encode()) + len(value or b"") + HEADER_OVERHEAD for name, value in record.headers)
    return BATCH_OVERHEAD + RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"") + headers


def refusals(records: Sequence[Outgoing], topics: Mapping[str, TopicDescription]) -> dict[int, str]:
    """The indexes of records refused for good by topics, with the reasons; empty: all records are fine."""
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
    """A sentence with the first reason and the number of further refusals."""
    first = min(refused)
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    return f"record {first}: {refused[first]}{more}"
