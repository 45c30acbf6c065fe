"""What the logs of an application say of a process: its identity, the right to work, and the ledger."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from ...brokers.patience import within_limit
from ...brokers.protocol import Batch, Broker, BrokerProducer, TopicPartition
from ...errors import FencedError, LogError
from ...group.members import comes_back
from ...offsets.control import Member
from ...offsets.events import OffsetEvent
from ...offsets.ledger import Ledger, SourcePartition, evolve_all
from ...offsets.provenance import app_id_of
from ..settings import Settings
from .reader import HistoryTrimmed, LogReader, OwnTransactions
from .true_ends import TrueEnds

logger = logging.getLogger("keylanes")

BEHIND_MAX = 20_000
"""A process that is more events than this behind an end of the offset log begins with the newest snapshots, as a start
does.
"""


class Identity:
    """A process in the logs of an application. ``birth`` is text that no other run of a process ever had; ``instance``
    is its ``group_instance_id``, or "".
    """

    def __init__(
        self, app: str, birth: str, broker: Broker, logs: LogReader, settings: Settings, instance: str = ""
    ) -> None:
        self.app = app
        self.birth = birth
        self.instance = instance
        self.broker = broker
        self.logs = logs
        self.settings = settings
        self.true_ends = TrueEnds(broker, logs, settings)
        self.transactional_id = ""
        """The transactional id of the producer, from the event of the joining; "" before."""
        self.incarnation: int | None = None
        """The incarnation of this process; None before the joining. The control log forgets an incarnation some time
        after the expulsion.
        """

    def note_join(self, member: Member) -> None:
        """Note the incarnation and the transactional id of the member as which this process has joined."""
        self.incarnation, self.transactional_id = member.incarnation, member.transactional_ids[0]

    async def make_producer(self) -> BrokerProducer:
        """Make a producer with an INIT, which fences every older producer of the own transactional id.

        The caller confirms the membership first (``OwnLedger.confirm``): an INIT gives a good epoch even to a process
        that was expelled and fenced.
        """
        return await within_limit(
            self.broker.producer(self.transactional_id, transaction_timeout_ms=self.settings.transaction_timeout_ms),
            self.settings.call_limit_ms,
            f"making a producer of {self.transactional_id}",
        )


class Expelled(FencedError):
    """The application goes on without this process. ``expulsion``: the cause, as the control log says; "" where the log
    has forgotten the member.
    """

    def __init__(self, app: str, incarnation: int, expulsion: str) -> None:
        why = f" ({expulsion})" if expulsion else ""
        super().__init__(
            f"this process of {app!r} (incarnation {incarnation}) was expelled{why}: others have its ranges"
        )
        self.expulsion = expulsion

    @property
    def comes_back(self) -> bool:
        """Whether the process may ask to join again, as a new member."""
        return comes_back(self.expulsion)


class OwnLedger:
    """The ledger of a process, as far as the logs were read. All parts of the process share this object.

    ``ledger``: the fold of both logs; ``transaction``: the last transaction number that this process took.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.logs = identity.logs
        self.ledger = Ledger()
        self.transaction = 0
        self._own_transactions = OwnTransactions()
        self._has_begun = False
        self._control_lock = asyncio.Lock()
        self.offsets_lock = asyncio.Lock()
        """A lock for each log, taken by each read of the log: only one read at a time moves the position."""
        self.transaction_lock = asyncio.Lock()
        """Locked while the own transaction is under way, and while the offset log is begun anew. Without the lock:

        1. A member that has not read for long begins with a newer snapshot.
        2. Meanwhile the member commits, into the old folds; the new folds then replace the old folds.
        3. The snapshot does not say whether the new folds contain the transaction. The folds lack the transaction, or
           count it twice, and the next own commit looks like damage.
        """
        self._control_reads = self._last_control_read = 0
        """How many reads of the control log have begun, and the number of the last read that came to the end. A caller
        that finds a read done, begun after the call, needs no read of its own.
        """
        self._offset_reads = self._last_offset_read = 0
        """The same two numbers for the offset log."""

    @property
    def incarnation(self) -> int:
        """The incarnation of this process; raises FencedError before the process has joined."""
        if self.identity.incarnation is None:
            raise FencedError(f"this process of {self.identity.app!r} has not joined yet")
        return self.identity.incarnation

    @property
    def app_id(self) -> bytes:
        """The id of the application in the headers of its outputs."""
        return app_id_of(self.ledger.control.app_birth)

    def next_transaction(self) -> int:
        """Take the next transaction number; no earlier transaction of this process had the number."""
        self.transaction += 1
        self._own_transactions.incarnation, self._own_transactions.in_flight = self.incarnation, self.transaction
        return self.transaction

    def fold(self, transaction: int, events: Sequence[OffsetEvent]) -> None:
        """Fold the events of the own committed transaction at once. Later the reader of the log passes over the events.

        Reading goes on from the last position, not from behind the transaction: commits of other processes in front of
        the transaction belong in the ledger, too.
        """
        self.ledger = evolve_all(self.ledger, events)
        self._own_transactions.folded = transaction
        self._own_transactions.in_flight = None
        self._own_transactions.collected.clear()  # the reader has collected the same events

    def fold_unknown(self) -> None:
        """Note that the outcome of the own transaction is not known. From here on the log tells the outcome: events
        read before are folded now, further events at the time of the reading.
        """
        self._own_transactions.in_flight = None
        held = list(self._own_transactions.collected)
        self._own_transactions.collected.clear()
        self.ledger = evolve_all(self.ledger, held)

    def has_committed(self, transaction: int) -> bool:
        """Whether this process committed ``transaction``, by the offset log as far as read."""
        return self.ledger.transactions.get(self.incarnation, 0) >= transaction

    def check(self) -> None:
        """Raises Expelled when the control log, as far as read, forbids further commits of this process."""
        own, control = self.identity.incarnation, self.ledger.control
        if own is not None and control.is_expelled(own):
            member = control.members.get(own)
            raise Expelled(self.identity.app, own, "" if member is None else member.cause)

    async def read_control(self) -> int:
        """Read the control log to its end; returns the position there. Raises LogError, BrokerError.

        Callers that come during a read share the next read: a busy process would be late with a read for each caller.
        """
        begun_before = self._control_reads
        async with self._control_lock:
            if self._last_control_read <= begun_before:
                self._control_reads += 1
                number = self._control_reads
                self.ledger = await self.logs.read_control(self.ledger)
                self._last_control_read = number
            return self.logs.positions[self.logs.control]

    async def read_control_to(self, end: int) -> None:
        """Read the control log up to ``end``, unless the position is already reached. Raises LogError, BrokerError."""
        async with self._control_lock:
            if self.logs.positions.get(self.logs.control, 0) < end:
                self.ledger = await self.logs.read_control(self.ledger, end)

    async def confirm(self) -> None:
        """Append to the control log, and read to behind the append. Raises Expelled when this process may commit no
        more, LogError, BrokerError.

        The end as told by a broker is not enough: a deposed leader that still answers tells an old end. An expelled
        member would go on and commit the same records as its successor.
        """
        await self.read_control_to(await self.identity.true_ends.control())
        self.check()

    async def read(self) -> None:
        """Read both logs to their ends, the control log first. Raises LogError, BrokerError.

        The coordinator takes snapshots and trims the offset log without regard to the positions of other readers. A
        reader below the start of the log, or far behind the end, begins with the newest snapshot.
        """
        await self.read_control()
        begun_before = self._offset_reads
        async with self.offsets_lock:  # read_control has read to the end: a second read would bring newer grants
            if self._last_offset_read > begun_before:
                return
            self._offset_reads += 1
            number = self._offset_reads
            await self._read_offsets()
            await self._check_read()
            self._last_offset_read = number

    async def read_partition(self, log_partition: int) -> None:
        """Read a partition of the offset log to its end; the first read reads all partitions. Raises LogError,
        BrokerError.
        """
        if self._has_begun:
            await self.read_offsets_to(await self.logs.ends_of([self.logs.offsets(log_partition)]))
        else:
            await self.read()

    async def confirm_offsets(self, log_partitions: Collection[int]) -> None:
        """Append to partitions of the offset log, and read to behind the appends. Raises LogError, BrokerError."""
        if self._has_begun:  # first, because an append would hide the loss of a whole log
            await self.logs.ends_of([self.logs.offsets(number) for number in log_partitions])
        else:
            await self.read()
        await self.read_offsets_to(
            await self.identity.true_ends.offsets(log_partitions, self.identity.incarnation or 0)
        )

    async def read_offsets_to(self, ends: Mapping[TopicPartition, int]) -> None:
        """Read partitions of the offset log up to the positions in ``ends``. Raises LogError, BrokerError."""
        if not self._has_begun:
            await self.read()
        async with self.offsets_lock:
            try:
                self.ledger = await self.logs.read_offsets(self.ledger, self._own_transactions, ends)
            except HistoryTrimmed:  # begin with the newest snapshots, as ``_read_offsets`` does
                await self.read_control()
                await self._begin_offsets()
                self.ledger = await self.logs.read_offsets(self.ledger, self._own_transactions, ends)
            await self._check_read()

    async def read_of(self, places: Sequence[SourcePartition]) -> None:
        """Read the control log, and the partitions of the offset log with the progress of ``places``, to their ends.
        Raises LogError, BrokerError.
        """
        log_partitions = {self.logs.log_partition_of(partition) for _, partition in places}
        if len(log_partitions) > 1:
            await self.read()
            return
        await asyncio.gather(self.read_control(), *map(self.read_partition, log_partitions))

    async def _check_read(self) -> None:
        """Raises LogError when the logs, as far as read, contradict the rules."""
        if self.ledger.early_epochs():
            # A commit of a grant that is not known yet: both may have been written after the read of the control log.
            await self.read_control_to(await self.identity.true_ends.control())
        check_ledger(self.ledger)

    async def fold_control(self, begins: int, batch: Batch) -> bool:
        """Fold a batch of the control log, read over another connection from position ``begins`` on. Known events are
        passed over. False: events in front of ``begins`` were not read yet.
        """
        async with self._control_lock:
            if self.logs.positions[self.logs.control] < begins:
                return False
            self.logs.fold_control(self.ledger, batch)
            return True

    async def _read_offsets(self) -> None:
        """Read the offset log to its ends, from the last positions on, or from the newest snapshots on."""
        logs = self.logs
        ends = await logs.ends_of(logs.offset_logs()) if self._has_begun else {}
        if not ends or max(end - logs.positions[source] for source, end in ends.items()) > BEHIND_MAX:
            await self._begin_offsets()
            self._has_begun = True
            return
        try:
            self.ledger = await logs.read_offsets(self.ledger, self._own_transactions, ends)
        except HistoryTrimmed as trimmed:
            logger.info("%s; read from its newest snapshot on", trimmed)
            await self.read_control()
            await self._begin_offsets()

    async def _begin_offsets(self) -> None:
        async with self.transaction_lock:
            self.ledger = await self.logs.begin_offsets(self.ledger, self._own_transactions)


def check_ledger(ledger: Ledger) -> None:
    """Raises LogError when the logs contradict the rules: another program wrote to the logs, or keylanes is wrong."""
    check_violations(ledger)
    for (topic, partition), epoch in ledger.early_epochs():
        raise LogError(f"{topic}[{partition}]: commits of epoch {epoch}, which the control log does not know")


def check_violations(ledger: Ledger) -> None:
    """Raises LogError when a commit of any process does not count."""
    for (topic, partition), epoch in ledger.violations():
        raise LogError(
            f"{topic}[{partition}]: a commit of epoch {epoch} lies outside what was granted, and its outputs are "
            "visible. Run the audit to see which records are concerned."
        )
