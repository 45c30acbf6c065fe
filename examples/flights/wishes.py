"""The demo's questions to the group of its processes, and its requests for moves.

With many members the demo asks for moves in intervals, as an operator might. Each request is for an eighth of a
partition. Partitions and eighths come in turn: each eighth is asked for sooner or later. The new owner is in turn the
process with the fewest workers, and the next process by name. Nothing moves where the new owner has the range already
or is paused.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from application import APP
from course import Told
from keylanes.brokers.protocol import Broker, Outgoing
from keylanes.group.signals_fold import partition_of
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.codec import encode
from keylanes.offsets.signals import MoveAsked
from keylanes.runtime.connect import connect
from keylanes.runtime.logs.reader import signals_topic
from keylanes.runtime.settings import Settings
from logbook import read_group
from owners import GroupLog

ASKED_EVERY_S: Final = 2.5
PARTS: Final = 8
BY: Final = "demo"


def move_of(
    number: int, places: Sequence[tuple[str, int]], told: Mapping[str, Told], incarnations: Mapping[str, int]
) -> MoveAsked:
    """The request of the move with this number. ``told``: the reports of the processes at work, at least one.

    ``incarnations``: by name. Where the incarnation of the new owner is not known, the request is for a move to any
    member.
    """
    bounds = even_bounds(PARTS)
    topic, partition = places[number % len(places)]
    part = (3 * (number // len(places)) + partition) % PARTS
    names = sorted(told)
    least = min(names, key=lambda name: (told[name].workers, name))
    target = incarnations.get(least if number % 2 else names[number // 2 % len(names)], 0)
    return MoveAsked(f"{BY} {number}", BY, topic, partition, bounds[part], bounds[part + 1], target, 0)


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[Broker]:
    """The demo's broker, open within this context."""
    broker = connect(address, Settings(), APP)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


class Asking:
    """Reads the group at the broker of an ``address``, and asks for moves. Both methods raise BrokerError."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def group(self) -> GroupLog:
        """The group, by the control log as of now."""
        async with opened(self.address) as broker:
            return await read_group(broker, APP)

    async def move(self, number: int, places: Sequence[tuple[str, int]], told: Mapping[str, Told]) -> None:
        """Send the request of a move. A program need not be a member to send a request."""
        async with opened(self.address) as broker:
            names = sorted((await read_group(broker, APP)).names.items())
            signal = move_of(number, places, told, {name: incarnation for incarnation, name in names})
            place = signals_topic(APP), partition_of(BY, signal.request)
            appender = broker.appender()
            try:
                await appender.append([Outgoing(*place, None, encode(signal))])
            finally:
                await appender.close()
