"""PURE. Records to be written, sorted by partition and put into a batch: the work for each record."""

from collections.abc import Callable, Sequence
from typing import Any

from ..offsets.provenance import HEADER
from .protocol import Outgoing, TopicPartition


def by_partition(records: Sequence[Outgoing]) -> dict[TopicPartition, list[int]]:
    """The places of the records in their sequence, by partition."""
    places: dict[tuple[str, int], list[int]] = {}
    topic: str | None = None
    partition = -1
    found: list[int] = []
    for index, record in enumerate(records):
        if record.partition != partition or record.topic != topic:  # often the same as of the record before
            topic, partition = record.topic, record.partition
            found = places.setdefault((topic, partition), [])
        found.append(index)
    return {TopicPartition(*place): found for place, found in places.items()}


def fill(append: Callable[..., Any], records: Sequence[Outgoing], indexes: Sequence[int], first: int) -> int:
    """Give ``append`` of a batch the indexed records from ``first`` on, as many as fit. Returns the number of records.

    ``append`` takes the record's number in the batch, timestamp, key, value and headers as a list, and returns None for
    a record that has no place any more.
    """
    count = 0
    for at in range(first, len(indexes)):
        record = records[indexes[at]]
        given, origin = record.given_headers, record.origin  # as in Outgoing.headers, without a call
        headers = [*given, (HEADER, origin)] if origin else [*given]
        if append(count, record.timestamp, record.key, record.value, headers) is None:
            break
        count += 1
    return count
