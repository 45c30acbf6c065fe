"""What a process is by the logs of its application: who it is there, whether it may work, and what they say."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from ...brokers.protocol import Batch, Broker, BrokerProducer, TopicPartition
from ...brokers.waiting import within_limit
from ...errors import FencedError, LogError
from ...group.members import comes_back
from ...offsets.control import Member
from ...offsets.events import OffsetEvent
from ...offsets.ledger import Ledger, Place, evolve_all
from ...offsets.provenance import app_id_of
from ..settings import Settings
from .reader import HistoryTrimmed, LogReader, Own
from .true_ends import TrueEnds

logger = logging.getLogger("keylanes")

BEHIND_MAX = 20_000
"""Who is so many events behind the ends of the offset log begins with its newest snapshots, as a start does."""


class Identity:
    """One process in the logs of an application. ``birth`` is text that no other run of a process ever had;
    ``instance`` the name that it goes by, "" for none.
    """

    def __init__(
        self, app: str, birth: str, broker: Broker, logs: LogReader, settings: Settings, instance: str = ""
    ) -> None:
        self.app, self.birth, self.instance = app, birth, instance
        self.broker, self.logs, self.settings = broker, logs, settings
        self.ends = TrueEnds(broker, logs, settings)
        self.transactional_id = ""
        """Of its producer; it stands in the event of its joining."""
        self.incarnation: int | None = None
        """What this process is in the control log, once it has joined: a member that is over is forgotten there."""

    def joined(self, member: Member) -> None:
        """It takes part from here on."""
        self.incarnation, self.transactional_id = member.incarnation, member.transactional_ids[0]

    async def make_producer(self) -> BrokerProducer:
        """INIT: every older producer of the own id is fenced. It is of use behind ``OwnLedger.confirm`` alone: who was
        expelled and fenced has a good epoch again by an INIT.
        """
        return await within_limit(
            self.broker.producer(self.transactional_id, transaction_timeout_ms=self.settings.transaction_timeout_ms),
            self.settings.call_limit_ms,
            f"making a producer of {self.transactional_id}",
        )


class Expelled(FencedError):
    """The application goes on without this process. ``expulsion``: why, as the control log says; "" where it is
    forgotten there already.
    """

    def __init__(self, app: str, incarnation: int, expulsion: str) -> None:
        why = f" ({expulsion})" if expulsion else ""
        super().__init__(
            f"this process of {app!r} (incarnation {incarnation}) was expelled{why}: others have its ranges"
        )
        self.expulsion = expulsion

    @property
    def comes_back(self) -> bool:
        """Whether it may ask to take part again, as somebody new."""
        return comes_back(self.expulsion)


class OwnLedger:
    """What a process is by its logs, as far as they are known here: one ledger for all that goes on in it.

    ``ledger``: of both logs; ``transaction``: the number of the last transaction that was used.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity, self.logs = identity, identity.logs
        self.ledger = Ledger()
        self.transaction = 0
        self._own = Own()
        self._has_begun = False
        self._reading_control, self.reading_offsets = asyncio.Lock(), asyncio.Lock()
        """Held by who reads a log."""
        self.sending = asyncio.Lock()
        """Held while the own transaction is under way, and while the offset log is begun anew.

        1. A member that has not read for long begins with a newer snapshot. 2. It commits meanwhile: into the folds of
        before, which are given up then. 3. What the new ones have of this transaction the snapshot does not say. They
        lack it, or have it twice, and the next own commit seems to be damage.
        """
        self._begun = self._through = 0
        """So many reads of the control log were begun; the number of the last one that came to the end."""
        self._offsets_begun = self._offsets_through = 0
        """The same of the offset log."""

    @property
    def incarnation(self) -> int:
        """Under which it has joined; raises FencedError before that."""
        if self.identity.incarnation is None:
            raise FencedError(f"this process of {self.identity.app!r} has not joined yet")
        return self.identity.incarnation

    @property
    def app_id(self) -> bytes:
        """What the application calls itself in the headers of its outputs."""
        return app_id_of(self.ledger.control.app_birth)

    def next_transaction(self) -> int:
        """A number that no transaction of this process had yet."""
        self.transaction += 1
        self._own.incarnation, self._own.in_flight = self.incarnation, self.transaction
        return self.transaction

    def fold(self, transaction: int, events: Sequence[OffsetEvent]) -> None:
        """The own transaction was committed, with these events: they are passed over when the log is read on.

        It is read on from where it was read last, not from behind this transaction: what others committed in front of
        it belongs in the ledger, too.
        """
        self.ledger = evolve_all(self.ledger, events)
        self._own.folded = transaction
        self._own.in_flight = None
        self._own.held.clear()  # the same

    def unknown(self) -> None:
        """What became of the own transaction is not known: from here on the log says it."""
        self._own.in_flight = None
        held = list(self._own.held)
        self._own.held.clear()
        self.ledger = evolve_all(self.ledger, held)

    def has_committed(self, transaction: int) -> bool:
        """Whether the offset log, as it was read, has a transaction of this process."""
        return self.ledger.transactions.get(self.incarnation, 0) >= transaction

    def check(self) -> None:
        """Raises Expelled when the control log, as it was read, says that this process may commit no more."""
        own, control = self.identity.incarnation, self.ledger.control
        if own is not None and control.is_expelled(own):
            member = control.members.get(own)
            raise Expelled(self.identity.app, own, "" if member is None else member.cause)

    async def read_control(self) -> int:
        """Read the control log to its end; the position there. Raises LogError, BrokerError.

        Who asks while it is read gets what the next read finds, and shares that with all who asked meanwhile: a process
        that has much to do would be late with every one of them.
        """
        asked = self._begun
        async with self._reading_control:
            if self._through <= asked:
                self._begun += 1
                number = self._begun
                self.ledger = await self.logs.read_control(self.ledger)
                self._through = number
            return self.logs.positions[self.logs.control]

    async def read_control_to(self, end: int) -> None:
        """Read the control log up to a position, unless it was read so far. Raises LogError, BrokerError."""
        async with self._reading_control:
            if self.logs.positions.get(self.logs.control, 0) < end:
                self.ledger = await self.logs.read_control(self.ledger, end)

    async def confirm(self) -> None:
        """Read the control log to behind an own append that is begun now. Raises Expelled when this process may commit
        no more, LogError, BrokerError.

        An end that some broker tells is not enough: a leader that was deposed and still answers tells an old one. A
        member that was expelled would go on, and commit what its successor commits too.
        """
        await self.read_control_to(await self.identity.ends.control())
        self.check()

    async def read(self) -> None:
        """Read both logs to their ends, the control log first. Raises LogError, BrokerError.

        Snapshots are taken, and the log is trimmed below them, wherever the others stand who read it. One that stands
        below its start, or far behind its end, begins with the newest snapshot.
        """
        await self.read_control()
        asked = self._offsets_begun
        async with self.reading_offsets:  # to its end: another read would bring what was granted since
            if self._offsets_through > asked:
                return
            self._offsets_begun += 1
            number = self._offsets_begun
            await self._read_offsets()
            await self._check_read()
            self._offsets_through = number

    async def read_partition(self, log_partition: int) -> None:
        """Read one partition of the offset log to its end, as soon as it can be. Raises LogError, BrokerError."""
        if self._has_begun:
            await self.read_offsets_to(await self.logs.ends_of([self.logs.offsets(log_partition)]))
        else:
            await self.read()

    async def confirm_offsets(self, log_partitions: Collection[int]) -> None:
        """Read partitions of the offset log to behind own appends that are begun now. Raises LogError, BrokerError."""
        if self._has_begun:  # first, because an append would hide that a log has lost everything
            await self.logs.ends_of([self.logs.offsets(number) for number in log_partitions])
        else:
            await self.read()
        await self.read_offsets_to(await self.identity.ends.offsets(log_partitions, self.identity.incarnation or 0))

    async def read_offsets_to(self, ends: Mapping[TopicPartition, int]) -> None:
        """Read partitions of the offset log up to these positions. Raises LogError, BrokerError."""
        if not self._has_begun:
            await self.read()
        async with self.reading_offsets:
            try:
                self.ledger = await self.logs.read_offsets(self.ledger, self._own, ends)
            except HistoryTrimmed:  # as in ``_read_offsets``
                await self.read_control()
                await self._begin_offsets()
                self.ledger = await self.logs.read_offsets(self.ledger, self._own, ends)
            await self._check_read()

    async def read_of(self, places: Sequence[Place]) -> None:
        """Read the control log, and of the offset log what is about these source partitions, to their ends. Raises
        LogError, BrokerError.
        """
        log_partitions = {self.logs.log_partition_of(partition) for _, partition in places}
        if len(log_partitions) > 1:
            await self.read()
            return
        await asyncio.gather(self.read_control(), *map(self.read_partition, log_partitions))

    async def _check_read(self) -> None:
        if self.ledger.waiting():
            # A grant may have been written, and committed under, after the control log was read.
            await self.read_control_to(await self.identity.ends.control())
        check_ledger(self.ledger)

    async def fold_control(self, begins: int, batch: Batch) -> bool:
        """What was read of the control log over another connection, from a position on; False: something in front of
        that was not read. What is known of it is passed over.
        """
        async with self._reading_control:
            if self.logs.positions[self.logs.control] < begins:
                return False
            self.logs.fold_control(self.ledger, batch)
            return True

    async def _read_offsets(self) -> None:
        logs = self.logs
        ends = await logs.ends_of(logs.offset_logs()) if self._has_begun else {}
        if not ends or max(end - logs.positions[source] for source, end in ends.items()) > BEHIND_MAX:
            await self._begin_offsets()
            self._has_begun = True
            return
        try:
            self.ledger = await logs.read_offsets(self.ledger, self._own, ends)
        except HistoryTrimmed as trimmed:
            logger.info("%s; read from its newest snapshot on", trimmed)
            await self.read_control()
            await self._begin_offsets()

    async def _begin_offsets(self) -> None:
        async with self.sending:
            self.ledger = await self.logs.begin_offsets(self.ledger, self._own)


def check_ledger(ledger: Ledger) -> None:
    """Raises LogError when the logs contradict the rules: then something else wrote to them, or we are wrong."""
    check_violations(ledger)
    for (topic, partition), epoch in ledger.waiting():
        raise LogError(f"{topic}[{partition}]: commits of epoch {epoch}, which the control log does not know")


def check_violations(ledger: Ledger) -> None:
    """Raises LogError when a commit does not count, whosever it is."""
    for (topic, partition), epoch in ledger.violations():
        raise LogError(
            f"{topic}[{partition}]: a commit of epoch {epoch} lies outside what was granted, and its outputs are "
            "visible. Run the audit to see which records are concerned."
        )
