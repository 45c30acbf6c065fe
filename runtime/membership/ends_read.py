"""Records from both ends of partitions that were never started, to be checked before the start."""

import asyncio
from collections.abc import Mapping
from typing import Final

from ...brokers.patience import close_within, within_limit
from ...brokers.protocol import (
    Broker,
    BrokerError,
    ConsumerRecord,
    CorruptRecord,
    OffsetOutOfRange,
    Reader,
    TopicPartition,
    Watermarks,
)
from ...state.sampling import PARTITIONS_LOOKED_AT_MAX, SAMPLE_KEYS
from ..settings import Settings

LOOK_S_MAX: Final = 5.0
"""How long a start reads records for the check, at most; records not read by then are not checked."""
WAIT_MS: Final = 100

Found = dict[TopicPartition, list[ConsumerRecord]]


def lowest(unread: Mapping[TopicPartition, Watermarks]) -> dict[TopicPartition, Watermarks]:
    """Of each topic the lowest ``PARTITIONS_LOOKED_AT_MAX`` partitions, less the empty partitions among these."""
    chosen: dict[TopicPartition, Watermarks] = {}
    for topic in sorted({place.topic for place in unread}):
        own = sorted(place for place in unread if place.topic == topic)[:PARTITIONS_LOOKED_AT_MAX]
        chosen |= {place: unread[place] for place in own if unread[place].start < unread[place].high}
    return chosen


async def both_ends(broker: Broker, settings: Settings, spans: Mapping[TopicPartition, Watermarks]) -> Found:
    """The first and the last ``SAMPLE_KEYS`` records of each span, as far as read in time. Raises BrokerError."""
    found: Found = {place: [] for place in spans}
    reader = await within_limit(broker.reader({}), settings.call_limit_ms, "a reader of the ends of sources")
    heads = {place: span.start for place, span in spans.items()}
    tails = {place: max(span.start, span.high - SAMPLE_KEYS) for place, span in spans.items()}
    try:
        async with asyncio.timeout(LOOK_S_MAX):
            for positions in (heads, tails):
                await _read(reader, positions, spans, found)
    except (TimeoutError, OffsetOutOfRange, CorruptRecord):  # the main reader of the partition raises such errors
        pass
    finally:
        closing = close_within(settings.close_timeout_ms, reader.close(), "closing a reader", excused=BrokerError)
        await asyncio.shield(closing)
    return found


async def _read(
    reader: Reader, positions: Mapping[TopicPartition, int], spans: Mapping[TopicPartition, Watermarks], found: Found
) -> None:
    reader.assign(positions)
    left = dict.fromkeys(positions, SAMPLE_KEYS)
    while left:
        for place, records, offset_next in await reader.fetch(
            list(left), records_max=SAMPLE_KEYS * len(left), wait_ms=WAIT_MS
        ):
            if place not in left:
                continue
            taken = [record for record in records if record.offset < spans[place].high][: left[place]]
            found[place] += taken
            left[place] -= len(taken)
            if left[place] == 0 or offset_next >= spans[place].high:
                del left[place]
