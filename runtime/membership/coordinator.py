"""Taking office: how a process comes to own ranges. With one member, the member is its own coordinator.

The order of the steps is the whole point; a breadth-first model of it found no violation, and a double commit in every
other order tried (tests/offsets/test_fencing_model.py):

    INIT own producer (an id nobody had before) → ELECTED(term + 1) → read the control log to its end; somebody else
    holds the term: stop → (LEVEL) → JOINED → for every member not fenced: EXPELLED, FENCE, FENCED → read the offset log
    to its end → (open empty log partitions) → IDENTIFIED, STARTED, STORES, GRANT from the edges → read the control log
    to its end; own grant not in force: stop → work

How a decision gets into the control log, and why it carries a term and a number: decisions.py.

Stores are declared after all partitions of their topics were started: whoever finds a store and a partition that was
not started knows that the partition is new.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ...brokers.protocol import (
    BrokerError,
    BrokerTimeout,
    Outgoing,
    Producer,
    ProducerFenced,
    TopicPartition,
    TransactionAborted,
    TransactionUnknown,
    Watermarks,
)
from ...brokers.waiting import Patience, bounded, closed_within, until_answered
from ...errors import FencedError, LogError, SettingsError, SourceError
from ...group.view import Begun
from ...keyrange.hashing import HASH_NAME
from ...keyrange.ranges import WHOLE, KeyRange
from ...offsets.codec import encode
from ...offsets.control_events import (
    AppCreated,
    CoordinatorElected,
    Decision,
    LevelRaised,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
    SourceIdentified,
    StoreDeclared,
)
from ...offsets.decide import StoreSpec, Turn, decide_grant, decide_opening, decide_stores
from ...offsets.event_values import LEVEL
from ...offsets.ledger import Ledger, Place
from ...offsets.starts import ADDED
from ..handlers.start import Start
from ..logs.office import Identity, Office
from ..logs.reader import offsets_topic
from .decisions import Decisions
from .offer import Offer
from .patience import StartPatience
from .starts import Starts, tell

logger = logging.getLogger("keylanes")

NO_IDENTITIES: Final[Mapping[str, str]] = MappingProxyType({})
NO_STARTS: Final[Mapping[str, Start]] = MappingProxyType({})
NO_OFFER: Final = Offer()
SUPERSEDED: Final = "superseded"
"""Why a start expels who was there before."""


class Coordinator:
    """Takes office for one process of an application, and decides for it from then on.

    ``starts``: where a source topic is begun, by name; one that is not named: from its first record.
    """

    def __init__(self, identity: Identity, starts: Mapping[str, Start] = NO_STARTS) -> None:
        self.identity, self.app, self.instance = identity, identity.app, identity.instance
        self.broker, self.logs, self.settings = identity.broker, identity.logs, identity.settings
        self.starts = Starts(self.broker, self.settings, starts)
        self.patience = StartPatience(self.settings.start_timeout_ms)
        self.decisions = Decisions(self.broker, self.logs.control, self.settings)
        self._begun: Mapping[TopicPartition, Begun] = {}
        """Where the partitions are started that were not, as it was decided before the election."""
        self._producer: Producer

    async def take_office(
        self,
        sources: Mapping[TopicPartition, Watermarks],
        stores: Sequence[StoreSpec] = (),
        identities: Mapping[str, str] = NO_IDENTITIES,
        offer: Offer = NO_OFFER,
    ) -> Office:
        """The steps above, for all points of these source partitions (with their watermarks now) and these stores.

        ``identities``: what the broker calls the source topics, by name; those that it does not tell are "" or missing.
        ``offer``: what is said of this process when it joins.
        Raises FencedError when another process takes office at the same time, LogError, SourceError, SettingsError
        when a store is not what it was.
        """
        self._producer = await self.patience.ask(self.identity.make_producer)
        try:
            ledger = await self._elect(sources, stores, identities)
            ledger = await self._join(ledger, offer)
            ledger = await self._fence_others(ledger)
            incarnation = self.identity.own(ledger).incarnation
            control_read = ledger
            ledger = await self.patience.ask(lambda: self.logs.begin_offsets(control_read))
            ledger = await self.identity.checked(ledger, incarnation)
            ledger, transaction = await self._open_logs(ledger, incarnation)
            ledger = await self._read_all(ledger, incarnation)
            missing_stores(ledger, Turn(0), sources, stores)  # before anything is written for them
            ledger = await self._identify_sources(ledger, identities)
            ledger = await self._start_partitions(ledger, sources)
            ledger = await self._decide(ledger, missing_stores(ledger, self.decisions.turn, sources, stores))
            await self._check_sources(ledger, sources)
            before = ledger.copy()
            turn = self.decisions.turn
            ledger = await self._decide(
                ledger, [e for place in sorted(sources) for e in decide_grant(ledger, turn, place, incarnation)]
            )
            self.identity.check_in_office(ledger, incarnation)
        except BaseException:
            await asyncio.shield(self._close_producer())
            raise
        return Office(incarnation, self._producer, ledger, before, transaction)

    async def _close_producer(self) -> None:
        # An error of the close would stand for what is raised, a cancellation too.
        limit = self.settings.close_timeout_ms
        await closed_within(limit, self._producer.close(), "closing a producer", excused=BrokerError)

    async def grant(self, ledger: Ledger, place: Place, incarnation: int, within: KeyRange) -> int:
        """Grant points of a partition that nobody holds; the new epoch. ``ledger``: with all that was committed."""
        async with self.decisions.deciding:
            grants = decide_grant(ledger, self.decisions.turn, place, incarnation, within)
            await self._settle(grants, f"granting {within} of {place[0]}[{place[1]}]")
        return grants[0].epoch

    async def _settle(self, decided: Sequence[Decision], what: str) -> None:
        """Write what is decided while this process works; who acts on it reads it first."""
        self.decisions.add(decided)
        await until_answered(self.decisions.settle, Patience(self.settings.broker_retry_ms, what))

    async def _elect(
        self,
        sources: Mapping[TopicPartition, Watermarks],
        stores: Sequence[StoreSpec],
        identities: Mapping[str, str],
    ) -> Ledger:
        # The offset log first: another process that starts just now writes to the control log before it writes there.
        had_offsets = await self.patience.ask(self._has_offsets)
        ledger = await self._read_on(Ledger())
        check_identities(ledger.control.identities, identities)  # a start that is refused disturbs nobody
        self.starts.check(ledger.control)
        missing_stores(ledger, Turn(0), sources, stores)
        control = ledger.control
        self._begun = await self.patience.ask(lambda: self.starts.decide(control, sources))
        if ledger.control.created is None:
            if had_offsets:
                raise LogError(
                    f"{self.logs.control.topic} is empty, but {offsets_topic(self.app)} is not: the control log of "
                    f"{self.app!r} is lost. Restore it from a copy, or start under a new application name."
                )
            created = AppCreated(self.app, HASH_NAME, self.logs.log_partitions)
            await self.patience.ask(lambda: self.decisions.append([created]))
        term = control.term + 1
        stands = CoordinatorElected(term, "", self.instance, control.app_birth or self.instance)
        self.decisions.stand(term)
        await self.patience.ask(lambda: self.decisions.append([stands]))
        return await self._read_control(ledger)

    async def _has_offsets(self) -> bool:
        topic = offsets_topic(self.app)
        places = [TopicPartition(topic, p) for p in range(self.logs.log_partitions)]
        marks = await bounded(self.broker.watermarks(places), self.settings.call_limit_ms, "watermarks")
        return any(m.high > 0 for m in marks.values())

    async def _join(self, ledger: Ledger, offer: Offer) -> Ledger:
        control, turn = ledger.control, self.decisions.turn
        raised = [LevelRaised(*turn.next(), LEVEL)] if control.level < LEVEL else []
        joined = MemberJoined(
            *turn.next(),
            control.incarnation_next,
            "",
            self.instance,
            (self.identity.transactional_id,),
            offer.host,
            offer.endpoint,
            offer.capacity,
            LEVEL,
            offer.topics,
            offer.writes,
            until_level=offer.until_level,
        )
        return await self._decide(ledger, [*raised, joined])

    async def _fence_others(self, ledger: Ledger) -> Ledger:
        """EXPELLED read back → FENCE → FENCED, for all that are not fenced, side by side."""
        others = [m for m in ledger.control.unfenced() if m.birth != self.instance]
        if not others:
            return ledger
        turn = self.decisions.turn
        ledger = await self._decide(
            ledger, [MemberExpelled(*turn.next(), m.incarnation, SUPERSEDED, 0) for m in others if not m.expelled]
        )
        logger.info(
            "%s: making sure that no run before this one can commit any more (%s), which each start does, also after a "
            "clean stop",
            self.app,
            ", ".join(f"incarnation {member.incarnation}" for member in others),
        )
        try:
            async with asyncio.TaskGroup() as group:  # none is left behind when one fails
                for transactional_id in (each for member in others for each in member.transactional_ids):
                    group.create_task(self._fence(transactional_id))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return await self._decide(ledger, [MemberFenced(*turn.next(), m.incarnation) for m in others])

    async def _fence(self, transactional_id: str) -> None:
        """Fence, and fence again where that was not done in time: its last transaction's markers may take longer."""
        limit = self.settings.call_limit_ms + self.settings.transaction_timeout_ms
        what = f"fencing {transactional_id}"
        patience = Patience(self.settings.broker_retry_ms, what)
        await until_answered(lambda: bounded(self.broker.fence(transactional_id), limit, what), patience)

    async def _open_logs(self, ledger: Ledger, incarnation: int) -> tuple[Ledger, int]:
        """The first event of each empty partition of the offset log; the number of the last transaction used."""
        topic, transaction = offsets_topic(self.app), 0
        while missing := sorted(set(range(self.logs.log_partitions)) - ledger.opened):
            transaction += 1
            events = [decide_opening(self.app, self.logs.log_partitions, p, incarnation, transaction) for p in missing]
            records = [Outgoing(topic, e.log_partition, None, encode(e)) for e in events]
            limit = self.settings.transaction_limit_ms
            try:
                await bounded(self._producer.transact(records), limit, f"opening {topic}")
                break
            except ProducerFenced as error:
                self.identity.check_in_office(await self._read_on(ledger), incarnation)
                raise BrokerTimeout(f"opening {topic} took longer than a transaction may: {error}") from error
            except (TransactionAborted, TransactionUnknown, BrokerTimeout) as error:
                await self.patience.wait(BrokerTimeout(f"opening {topic}: {error}"))
                await self._close_producer()
                self._producer = await self.patience.ask(self.identity.make_producer)
                ledger = await self._read_all(ledger, incarnation)
        return ledger, transaction

    async def _read_all(self, ledger: Ledger, incarnation: int) -> Ledger:
        read = await self._read_on(ledger)
        ledger = await self.patience.ask(lambda: self.logs.read_offsets(read))
        return await self.identity.checked(ledger, incarnation)

    async def _read_on(self, ledger: Ledger) -> Ledger:
        return await self.patience.ask(lambda: self.logs.read_control(ledger))

    async def _check_sources(self, ledger: Ledger, sources: Collection[TopicPartition]) -> None:
        """With watermarks taken now: until it was fenced, another process may have read far beyond older ones."""
        limit = self.settings.call_limit_ms
        marks = await self.patience.ask(
            lambda: bounded(self.broker.watermarks([*sources]), limit, "watermarks of sources")
        )
        for source in sources:
            check_source(ledger, source, marks[source], ledger.control.started[source])

    async def _identify_sources(self, ledger: Ledger, identities: Mapping[str, str]) -> Ledger:
        """Before partitions are started: an offset in the logs is then one of the topic that is named there."""
        known = ledger.control.identities
        check_identities(known, identities)
        turn, new = self.decisions.turn, sorted((name, told) for name, told in identities.items() if told)
        return await self._decide(
            ledger, [SourceIdentified(*turn.next(), name, told) for name, told in new if name not in known]
        )

    async def start_partition(
        self, ledger: Ledger, place: Place, incarnation: int, marks: Watermarks, partitions: int
    ) -> int:
        """Start a source partition that was added while this process works, and grant it; the epoch.

        ``ledger``: with all that was committed there, which is nothing unless a process before knew of it.
        ``partitions``: how many its topic has now.
        """
        started, turn = ledger.control.started.get(place), self.decisions.turn
        offset = marks.start if started is None else started
        check_source(ledger, place, marks, offset)
        async with self.decisions.deciding:
            begun = [PartitionStarted(*turn.next(), *place, offset, ADDED, partitions)] if started is None else []
            grants = decide_grant(ledger, turn, place, incarnation, WHOLE, started=offset)
            await self._settle([*begun, *grants], f"starting {place[0]}[{place[1]}]")
        return grants[0].epoch

    async def _start_partitions(self, ledger: Ledger, sources: Mapping[TopicPartition, Watermarks]) -> Ledger:
        new = [place for place in sorted(sources) if place not in ledger.control.started]
        if new:
            begun = {place: self._begun[place] for place in new}  # none that was started can have come undone
            turn = self.decisions.turn
            ledger = await self._decide(
                ledger,
                [
                    PartitionStarted(*turn.next(), *place, one.offset, one.start, one.partitions)
                    for place, one in begun.items()
                ],
            )
            tell(begun)
        return ledger

    async def _read_control(self, ledger: Ledger) -> Ledger:
        """Read the control log to its end; raises FencedError as soon as somebody else holds a term."""
        ledger = await self._read_on(ledger)
        if ledger.control.coordinator != self.instance:
            raise FencedError(
                f"another process of {self.app!r} took office (term {ledger.control.term}); this one stops"
            )
        return ledger

    async def _decide(self, ledger: Ledger, events: Sequence[Decision]) -> Ledger:
        """Write decisions while this process starts, and read them back; raises FencedError when they do not count."""
        if not events:
            return ledger
        self.decisions.add(events)
        await self.patience.ask(self.decisions.settle)
        ledger = await self._read_control(ledger)
        if ledger.control.number < events[-1].number:
            raise LogError(
                f"{self.logs.control.topic}: decision {events[-1].number} of term {events[-1].term} was acknowledged "
                f"and does not count: the log has {ledger.control.number} of them. Something else writes to this "
                "topic, or records of it are lost. Restore it from a copy, or start under a new application name"
            )
        return ledger


def missing_stores(
    ledger: Ledger, turn: Turn, sources: Iterable[Place], stores: Sequence[StoreSpec]
) -> list[StoreDeclared]:
    """The stores that are to be declared; raises SettingsError, SourceError when state can't go on with these."""
    check_growth(ledger, sources, {store.topic for store in stores})
    try:
        return decide_stores(ledger.control, turn, stores)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def check_growth(ledger: Ledger, sources: Iterable[Place], stateful: Collection[str]) -> None:
    """Raises SourceError when a topic of ``stateful`` with a store has partitions that it did not have before."""
    started, declared = ledger.control.started, {store.topic for store in ledger.control.stores.values()}
    places = list(sources)
    for topic in sorted(declared & set(stateful)):
        if any(place not in started for place in places if place[0] == topic):
            now, before = (sum(place[0] == topic for place in of) for of in (places, started))
            raise SourceError(
                f"{topic} has {now} partitions now; its state was begun with {before}. State is kept by partition and "
                "key, and with more partitions a key's records go to another one, where its state is not. Nothing was "
                "read. Make a new topic with as many partitions as it needs and start under a new application name, "
                "or start under a new application name on this one, which works all its records again."
            )


def check_identities(known: Mapping[str, str], identities: Mapping[str, str]) -> None:
    """Raises SourceError for a topic that has another identity than it is known by."""
    for name, told in sorted(identities.items()):
        if told and known.get(name, told) != told:
            raise SourceError(
                f"{name} was deleted and created anew, or this is another cluster: it was {known[name]}, it is {told}. "
                "Offsets of the one mean nothing in the other, so nothing of it was read. Start under a new "
                "application name to process it"
            )


def check_source(ledger: Ledger, place: Place, marks: Watermarks, started: int) -> None:
    """Raises SourceError when a source partition, which was started at an offset, no longer holds what has to be read
    next.
    """
    edges = [edge for _, _, edge in ledger.partition(place).edges(started).pieces()]
    topic, partition = place
    if max(edges) > marks.high:
        raise SourceError(
            f"{topic}[{partition}] ends at offset {marks.high}, but records up to {max(edges)} were processed: the "
            "topic was truncated or created anew. Start under a new application name to process the new topic."
        )
    if min(edges) < marks.start:
        raise SourceError(
            f"{topic}[{partition}] starts at offset {marks.start}, but records from {min(edges)} on were not processed "
            "yet: retention or deletion passed them. Nothing was skipped; restore them, or start a new application."
        )
