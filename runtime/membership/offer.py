"""What a process brings into its application: what stands in the event of its joining."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...offsets.decide import StoreSpec, stores_hash
from ...offsets.event_values import Sourced
from ..handlers.handler import Handler

CAPACITY: Final = 1.0
"""All processes are taken for equally strong."""


class Offer(NamedTuple):
    """See ``member_joined``; ``endpoint``: none is asked for yet."""

    host: str = ""
    endpoint: str = ""
    capacity: float = CAPACITY
    topics: tuple[Sourced, ...] = ()
    writes: tuple[str, ...] = ()
    until_level: bool = False


def offer_of(
    handlers: Sequence[Handler], stores: Sequence[StoreSpec], writes: Sequence[str], host: str, *, until_level: bool
) -> Offer:
    """What a process with these handlers offers. ``writes``: the topics that they declare to write to."""
    topics = tuple(
        Sourced(
            handler.topic,
            handler.parallelising_factor,
            handler.start.text,
            stores_hash(store for store in stores if store.topic == handler.topic),
        )
        for handler in handlers
    )
    return Offer(host=host, topics=topics, writes=tuple(writes), until_level=until_level)
