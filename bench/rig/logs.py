"""The logs of an application, read on while it runs; and requests to its coordinator, as an operator makes them."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from keylanes.brokers.protocol import Appender, Outgoing, Reader, TopicPartition
from keylanes.group.cells import CellState, cells
from keylanes.group.history import History
from keylanes.group.history_entries import Change, MoveEntry
from keylanes.group.signals_fold import MEMBERS
from keylanes.keyrange.steps import Steps
from keylanes.offsets.codec import decode, encode
from keylanes.offsets.control_events import ControlEvent
from keylanes.offsets.events import Committed, Event
from keylanes.offsets.ledger import Ledger, evolve
from keylanes.offsets.signals import MoveAsked
from keylanes.runtime.logs.reader import control_topic, offsets_topic, signals_topic
from rig.broker import connected
from rig.errors import WrongRun
from rig.notes import Points

READ_MS, RECORDS_MAX = 20, 2_000
OPEN_S_MAX = 90.0
LOOK_S = 0.1
AGAIN_S = 10.0
"""A request that came to nothing is made again."""
BY = "a benchmark"
UNCUT: Final[Steps[int]] = Steps()


class Commit(NamedTuple):
    """Points of a source partition of which something was committed at ``at_ms``."""

    at_ms: int
    incarnation: int
    partition: int
    spans: tuple[tuple[int, int], ...]


@dataclass
class Logs:
    """Both logs of ``app``, as far as they were read."""

    app: str
    topic: str
    reader: Reader
    appender: Appender
    sources: list[TopicPartition]
    ledger: Ledger = field(default_factory=Ledger)
    history: History = field(default_factory=History)
    commits: list[Commit] = field(default_factory=list)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def read(self, wait_ms: int = READ_MS) -> None:
        """What is there, or comes within the time."""
        for batch in await self.reader.fetch(self.sources, records_max=RECORDS_MAX, wait_ms=wait_ms):
            for record in batch.records:
                event = decode(record.value or b"")
                evolve(self.ledger, event)
                self._take(batch.source, record.offset, record.timestamp, event)

    def _take(self, source: TopicPartition, position: int, at_ms: int, event: Event) -> None:
        if isinstance(event, ControlEvent):
            self.history.hear_control(position, at_ms, event)
        else:
            self.history.hear_offsets(source.partition, position, at_ms, event)
        if isinstance(event, Committed):
            spans = tuple((tile.first, tile.end) for tile in event.tiles)
            self.commits.append(Commit(at_ms, event.incarnation, event.partition, spans))

    async def watch(self, seconds: float) -> tuple[float, float]:
        """Read for some time; the begin and the end of this time by the monotonic clock."""
        since_s = time.monotonic()
        while time.monotonic() < since_s + seconds:
            await self.read()
        return since_s, time.monotonic()

    # --- how it stands -----------------------------------------------------------------------------------------------

    def names(self) -> dict[int, str]:
        """Of the members that may commit, by incarnation."""
        members = self.ledger.control.members.items()
        return {incarnation: member.joined.instance for incarnation, member in members if not member.expelled}

    def holders(self, partition: int) -> list[tuple[int, int, str]]:
        """Who works on which points of a source partition; "" where nobody does. Who had them before and has not taken
        them up again does not, either.
        """
        place, names = (self.topic, partition), self.names()
        parts, found = self.ledger.partition(place).parts, list[tuple[int, int, str]]()
        for cell in cells(self.ledger.control, self.ledger.partitions, place, ()):
            is_held = cell.state is CellState.HELD and cell.epoch in parts
            cut = parts[cell.epoch].workers if is_held else UNCUT
            for first, end, worker in cut.all_pieces(cell.first, cell.end):
                name = "" if worker is None else names.get(cell.owner, "")
                if found and found[-1][2] == name:
                    found[-1] = found[-1][0], end, name
                else:
                    found.append((first, end, name))
        return found

    def owner(self, points: Points) -> str:
        """Who works on all of these points; "" where nobody does, or several do."""
        over = self.holders(points.partition)
        names = {name for first, end, name in over if first < points.end and points.first < end}
        return names.pop() if len(names) == 1 else ""

    def moves(self) -> list[MoveEntry]:
        """All moves so far, in order."""
        return [entry for entry in self.history.entries() if isinstance(entry, MoveEntry)]

    def expelled(self) -> list[Change]:
        """Who was expelled, and why."""
        changes = [entry for entry in self.history.entries() if isinstance(entry, Change)]
        return [change for change in changes if change.what == "expelled"]

    def granted(self, partition: int) -> list[tuple[int, int, str]]:
        """Whom points of a source partition were granted to last, by the control log alone; touching ones as one."""
        owners, found = self.ledger.control.owners.get((self.topic, partition)), list[tuple[int, int, str]]()
        names = self.names()
        for first, end, owner in owners.pieces() if owners is not None else ():
            name = names.get(owner.incarnation, "")
            if found and found[-1][1:] == (first, name):
                found[-1] = found[-1][0], end, name
            else:
                found.append((first, end, name))
        return found

    # --- asking ------------------------------------------------------------------------------------------------------

    async def ask(self, points: Points, name: str) -> None:
        """Ask that points go to a member."""
        target = next(incarnation for incarnation, known in self.names().items() if known == name)
        place = (self.topic, points.partition)
        asked = MoveAsked(os.urandom(8).hex(), BY, *place, points.first, points.end, target, 0)
        await self.appender.append([Outgoing(signals_topic(self.app), MEMBERS, None, encode(asked))])

    async def moved(self, points: Points, name: str, seconds_max: float) -> bool:
        """Ask, and wait until the member works on the points; whether it does within the time."""
        until_s, again_s = time.monotonic() + seconds_max, 0.0
        while self.owner(points) != name:
            if time.monotonic() >= until_s:
                return False
            if time.monotonic() >= again_s:
                await self.ask(points, name)
                again_s = time.monotonic() + AGAIN_S
            await self.read()
        return True

    async def share(self, layout: Mapping[Points, str], seconds_max: float) -> None:
        """Have each of these points worked on by its member. Raises WrongRun."""
        until_s, again_s = time.monotonic() + seconds_max, 0.0
        while wrong := [points for points, name in layout.items() if self.owner(points) != name]:
            if time.monotonic() >= until_s:
                raise WrongRun(f"within {seconds_max:g} s these did not go where they were asked to: {wrong}")
            if time.monotonic() >= again_s:
                for points in wrong:
                    await self.ask(points, layout[points])
                again_s = time.monotonic() + AGAIN_S
            await self.watch(LOOK_S)


@contextlib.asynccontextmanager
async def opened(bootstrap: str, app: str, topic: str, *, is_control_alone: bool = False) -> AsyncIterator[Logs]:
    """The logs of an application that is being started; ``is_control_alone``: without the offset log, which is large.
    Raises TimeoutError.
    """
    names = [control_topic(app), offsets_topic(app), signals_topic(app)]
    async with connected(bootstrap) as broker:
        async with asyncio.timeout(OPEN_S_MAX):
            while len(found := await broker.describe(names)) < len(names):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(LOOK_S)
        read = names[:1] if is_control_alone else names[:2]
        sources = [TopicPartition(name, p) for name in read for p in range(found[name].partitions)]
        reader = await broker.reader(dict.fromkeys(sources, 0))
        appender = broker.appender()
        try:
            yield Logs(app, topic, reader, appender, sources)
        finally:
            await reader.close()
            await appender.close()


async def whole(bootstrap: str, app: str, topic: str) -> Logs:
    """Both logs of an application, from their beginnings to their ends as they are now."""
    async with connected(bootstrap) as broker, opened(bootstrap, app, topic) as logs:
        ends = await broker.watermarks(logs.sources)
        while any(logs.reader.position(source) < mark.high for source, mark in ends.items()):
            await logs.read()
        return logs


def ahead_s() -> float:
    """By how much the clock of the logs is ahead of the monotonic one; both are this machine's."""
    return time.time() - time.monotonic()
