"""What a process brings into its application: what stands in the event of its joining."""

from collections.abc import Sequence
from typing import NamedTuple

from ...offsets.decide import StoreSpec, stores_hash
from ...offsets.event_values import Sourced
from ..handlers.handler import Handler
from ..logs.topics import destinations_of


class Offer(NamedTuple):
    """See ``member_joined``; ``endpoint``: none is asked for yet."""

    host: str = ""
    endpoint: str = ""
    capacity: float = 1.0
    topics: tuple[Sourced, ...] = ()
    writes: tuple[str, ...] = ()
    until_level: bool = False


def offer_of(
    handlers: Sequence[Handler], stores: Sequence[StoreSpec], host: str, capacity: float, *, until_level: bool
) -> Offer:
    """What a process with these handlers offers."""
    topics = tuple(
        Sourced(
            handler.topic,
            handler.parallelising_factor,
            handler.start.text,
            stores_hash(store for store in stores if store.topic == handler.topic),
        )
        for handler in handlers
    )
    writes = tuple(destinations_of(handlers))
    return Offer(host=host, capacity=capacity, topics=topics, writes=writes, until_level=until_level)
