"""What the demo asks of the group of its processes: who coordinates, who is at rest, and that ranges change hands.

The demo in many processes asks for moves now and then, as an operator might: of an eighth of a partition. Partition by
partition and eighth by eighth, in turn, so that each of them is asked for sooner or later; to the process that has
least, or to the next one by name. Nothing comes of it where a process has the range already or is paused.
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
    """The ``number``-th move; ``told``: by those that are at work, of whom there is one. Where the incarnation of its
    new owner is not known it goes to whoever is best.
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
    """The demo's broker."""
    broker = connect(address, Settings(), APP)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


class Asking:
    """Asks the group at the broker of an ``address``. Both raise BrokerError."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def group(self) -> GroupLog:
        """What the control log says now."""
        async with opened(self.address) as broker:
            return await read_group(broker, APP)

    async def move(self, number: int, places: Sequence[tuple[str, int]], told: Mapping[str, Told]) -> None:
        """Ask for a move, as any program may that is no member."""
        async with opened(self.address) as broker:
            names = sorted((await read_group(broker, APP)).names.items())
            signal = move_of(number, places, told, {name: incarnation for incarnation, name in names})
            place = signals_topic(APP), partition_of(BY, signal.request)
            appender = broker.appender()
            try:
                await appender.append([Outgoing(*place, None, encode(signal))])
            finally:
                await appender.close()
