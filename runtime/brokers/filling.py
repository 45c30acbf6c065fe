"""PURE. Records to be written, sorted by partition and put into a batch: what is done for each of them."""

from collections.abc import Callable, Sequence
from typing import Any

from .protocol import Outgoing, TopicPartition


def by_partition(records: Sequence[Outgoing]) -> dict[TopicPartition, list[int]]:
    """The places of the records in their sequence, by partition."""
    places: dict[tuple[str, int], list[int]] = {}
    for index, record in enumerate(records):
        place = record.topic, record.partition
        found = places.get(place)
        if found is None:
            places[place] = [index]
        else:
            found.append(index)
    return {TopicPartition(*place): found for place, found in places.items()}


def fill(append: Callable[..., Any], records: Sequence[Outgoing], indexes: Sequence[int], first: int) -> int:
    """Give a batch's ``append`` as many of the indexed records from ``first`` on as it takes: how many these are.

    It is called with the record's number in the batch, timestamp, key, value and headers as a list, and returns None
    for one that has no place any more.
    """
    count = 0
    for at in range(first, len(indexes)):
        record = records[indexes[at]]
        headers = record.headers if type(record.headers) is list else [*record.headers]
        if append(count, record.timestamp, record.key, record.value, headers) is None:
            break
        count += 1
    return count
