"""The offer of a joining process to its application: the fields of the event of its joining."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...offsets.decide import StoreSpec, stores_hash
from ...offsets.event_values import Sourced
from ..handlers.handler import Handler
from ..logs.topics import destinations_of
from ..settings import Settings


class Origin(NamedTuple):
    """The host of a process, and how many processes are started together, itself included; 0: unknown."""

    host: str = ""
    expected: int = 0


SOMEWHERE: Final = Origin()
"""The origin of a process whose host does not matter."""


class Offer(NamedTuple):
    """See ``member_joined``. ``expected``: see Origin."""

    host: str
    endpoint: str
    capacity: float
    topics: tuple[Sourced, ...]
    writes: tuple[str, ...]
    until_level: bool
    expected: int


def offer_of(
    handlers: Sequence[Handler], stores: Sequence[StoreSpec], origin: Origin, settings: Settings, *, until_level: bool
) -> Offer:
    """The offer of a process with ``handlers``."""
    topics = tuple(
        Sourced(
            topic=handler.topic,
            factor=handler.parallelising_factor,
            start=handler.start.text,
            stores_hash=stores_hash(store for store in stores if store.topic == handler.topic),
            rate_per_s=handler.rate_per_s or 0.0,
        )
        for handler in handlers
    )
    writes = tuple(destinations_of(handlers))
    return Offer(
        host=origin.host,
        endpoint=settings.endpoint,
        capacity=settings.capacity,
        topics=topics,
        writes=writes,
        until_level=until_level,
        expected=origin.expected,
    )
