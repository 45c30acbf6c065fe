"""Members of one application that change the state of one source partition, and nothing else of a member.

Their logs are written by hand, so that their transactions may come between each other as a test wants it. What a
transaction carries of the state, and what a start makes of it, is the runtime's own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from keylanes import App, Settings, State
from keylanes.brokers.protocol import Broker, ConsumerRecord, Outgoing, TopicPartition, TopicSpec
from keylanes.keyrange.hashing import HASH_NAME, SPACE_END, point_of_key
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.codec import encode
from keylanes.offsets.control import Control
from keylanes.offsets.control_events import AppCreated, ControlEvent
from keylanes.offsets.event_values import Band
from keylanes.offsets.events import Event, StateChanged
from keylanes.offsets.ledger import Ledger, SourcePartition, evolve_all
from keylanes.runtime.stores.answers import GroupView
from keylanes.runtime.stores.keeper import Keeper
from keylanes.state.changelog import CHANGELOG_CONFIG, changelog_topic, encode_stored
from keylanes.state.changes import StateChanges
from keylanes.state.keys import state_key
from keylanes.state.memory import MemoryCopies
from keylanes.state.overlay import OverlayEntry
from keylanes.state.tables import TABLE_CONFIG

from .log_events import (
    coordinator_elected,
    in_turn,
    member_fenced,
    member_joined,
    partition_started,
    ranges_granted,
    store_declared,
)

Carried: TypeAlias = tuple[list[Outgoing], list[Outgoing]]
"""What a transaction writes to the changelog, and to the offset log."""

KEYS: Final = 40
READ_SECONDS_MAX: Final = 60


class NoLogs:
    """Logs that nobody reads: nothing is thrown away here."""

    ledger = Ledger()
    incarnation = 0

    async def read_of(self, places: Sequence[SourcePartition]) -> None: ...


class Member:
    """A member with the lower or the upper half of the points. ``keeper``: its state."""

    def __init__(self, incarnation: int, within: KeyRange, keeper: Keeper, broker: Broker) -> None:
        self.incarnation, self.within, self.keeper, self.broker = incarnation, within, keeper, broker
        self.transaction = 0
        self.sent: list[StateChanges] = []


class Group:
    """The application's logs as they are written and read, and its members. ``read``: the committed offset log."""

    def __init__(
        self, name: str, source: str, connect: Callable[[], Broker], read: Callable[[], Awaitable[list[Event]]]
    ) -> None:
        self.name, self.source, self.connect, self.read = name, source, connect, read
        self.changelog, self.offsets = changelog_topic(name, source), f"{name}.offsets"
        self.members: dict[int, Member] = {}
        self.truth: dict[bytes, bytes] = {}
        app = App(name, broker="embedded:never-opened")

        @app.handler(source)
        async def count(value: int, seen: State[int]) -> None: ...

        self.handlers = list(app.handlers.values())
        self.control: list[ControlEvent] = [
            AppCreated(name, HASH_NAME, 1),
            coordinator_elected(1, "first"),
            store_declared(1, 0, "seen", source, "value", "", "int", "json"),
            partition_started(1, source, 0, 0, "earliest", 1),
        ]

    async def create(self) -> None:
        """The topics."""
        broker = self.connect()
        await broker.open()
        await broker.create([TopicSpec(self.source, 1, {}), TopicSpec(self.offsets, 1, {})])
        await broker.create([TopicSpec(self.changelog, 1, {**CHANGELOG_CONFIG, **TABLE_CONFIG})])
        await broker.close()

    async def ledger(self) -> Ledger:
        """The fold of both logs as they are now, control log first."""
        control = in_turn(self.control)
        return evolve_all(Ledger(), [*control, *await self.read()])

    async def join(self, within: KeyRange, *, reads: bool = True) -> Member:
        """One more member with a range of its own; with ``reads`` it makes the state whole, as at a start."""
        incarnation = len(self.members) + 1
        self.control += [
            member_joined(1, incarnation, f"birth {incarnation}", f"{self.name}.{incarnation}"),
            ranges_granted(1, incarnation, incarnation, self.source, 0, (Band(within.first, within.end, 0),)),
        ]
        broker = self.connect()
        await broker.open()
        copies = MemoryCopies()
        keeper = Keeper(
            app=self.name,
            broker=broker,
            settings=Settings(),
            handlers=self.handlers,
            wall_ms=lambda: 1_000,
            open_copies=lambda _: copies,
            partitioners={},
            group=GroupView(Control, lambda: incarnation, lambda: 0, 0),
            tell_copies=lambda _: None,
            logs=NoLogs(),
        )
        member = self.members[incarnation] = Member(incarnation, within, keeper, broker)
        ledger = await self.ledger()
        await keeper.open(ledger, await broker.describe([self.changelog]))
        if reads:
            await self.take_up(member, within, ledger)
        return member

    async def take_up(self, member: Member, within: KeyRange, ledger: Ledger) -> None:
        """Make the state of a range whole, as whoever was granted it does."""

        async def logs() -> Ledger:
            return ledger

        await member.keeper.take_up({(self.source, 0): [within]}, logs, member.incarnation, lambda _: None)

    def fence(self, *members: Member) -> None:
        """They write no more."""
        self.control += [member_fenced(1, member.incarnation) for member in members]

    def carry(self, member: Member) -> Carried:
        """The next transaction of a member, over some keys of its range: what it writes to each log."""
        member.transaction += 1
        keys = [key for key in (b"k%d" % i for i in range(KEYS)) if member.within.contains(point_of_key(key))]
        changes = StateChanges((self.source, 0))
        for key in keys[member.transaction % 2 :]:
            value = encode_stored(b"%d%d" % (member.incarnation, member.transaction))
            changes.last[OverlayEntry(state_key(point_of_key(key), 0, key))] = value
        records, events = member.keeper.records([changes], member.incarnation, member.transaction)
        member.sent = [changes]
        return records, [Outgoing(self.offsets, 0, None, encode(event)) for event in events]

    async def committed(self, member: Member) -> StateChanges:
        """The last transaction that was carried is visible."""
        await member.keeper.note_commit(member.sent, {}, is_last=False)
        (changes,) = member.sent
        self.truth.update((cell.key, value) for cell, value in changes.last.items() if value is not None)
        return changes

    def kept(self, member: Member) -> dict[bytes, bytes]:
        """All that a member's state holds."""
        state = member.keeper.storages[self.source, 0].state
        return dict(state.scan_committed(KeyRange(0, SPACE_END)))

    async def close(self) -> None:
        """Let go of all."""
        for member in self.members.values():
            await member.keeper.close()
            await member.broker.close()


async def read_all(broker: Broker, topic: str) -> list[ConsumerRecord]:
    """What a committed reader sees of the only partition of a topic."""
    place = TopicPartition(topic, 0)
    found: list[ConsumerRecord] = []
    marks = (await broker.watermarks([place]))[place]
    reader = await broker.reader({place: marks.start})
    async with asyncio.timeout(READ_SECONDS_MAX):
        while reader.position(place) < marks.high:
            for batch in await reader.fetch([place], records_max=1_000, wait_ms=100):
                found += batch.records
    await reader.close()
    return found


def halves() -> Sequence[KeyRange]:
    """The lower and the upper half of the points."""
    return KeyRange(0, SPACE_END).split(SPACE_END // 2)


def changed_by(event: Event) -> tuple[int, tuple[int, ...]]:
    """Who changed the state, and whom it succeeded."""
    assert isinstance(event, StateChanged)
    return event.incarnation, event.succeeded
