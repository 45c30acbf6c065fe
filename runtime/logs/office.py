"""What a process is by the logs of its application: who it is there, whether it may work, and what they say."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ...brokers.protocol import Broker, Producer
from ...brokers.waiting import bounded
from ...errors import FencedError, LogError
from ...offsets.control import Member
from ...offsets.events import OffsetEvent
from ...offsets.ledger import Ledger, evolve_all
from ...offsets.provenance import app_id_of
from ..settings import Settings
from .reader import HistoryTrimmed, LogReader

logger = logging.getLogger("keylanes")


@dataclass(slots=True)
class Office:
    """What a process holds when it may work."""

    incarnation: int
    producer: Producer
    ledger: Ledger
    before: Ledger
    """The ledger without the own grant: how the ranges were cut until then. An epoch that is complete is forgotten."""
    transaction: int
    """The number of the last transaction that was used."""

    @property
    def app_id(self) -> bytes:
        """What the application calls itself in the headers of its outputs."""
        return app_id_of(self.ledger.control.app_birth)


class Identity:
    """One process in the logs of an application. ``instance`` is text that no other process ever had."""

    def __init__(self, app: str, instance: str, broker: Broker, logs: LogReader, settings: Settings) -> None:
        self.app, self.instance = app, instance
        self.broker, self.logs, self.settings = broker, logs, settings
        self.transactional_id = f"{app}.{instance}"
        self.incarnation: int | None = None
        """What this process is in the control log, once it has joined: a member that is over is forgotten there."""

    async def make_producer(self) -> Producer:
        """INIT: every older producer of the own id is fenced. What it left behind has to be read before it is used."""
        return await bounded(
            self.broker.producer(self.transactional_id, transaction_timeout_ms=self.settings.transaction_timeout_ms),
            self.settings.call_limit_ms,
            f"making a producer of {self.transactional_id}",
        )

    def own(self, ledger: Ledger) -> Member:
        """The own entry in the control log; raises FencedError when it does not count."""
        member = ledger.control.member_of(self.instance)
        if member is not None:
            self.incarnation = member.incarnation
            return member
        raise FencedError(f"another process of {self.app!r} took office before this one had joined")

    def check_in_office(self, ledger: Ledger, incarnation: int) -> None:
        """Raises FencedError unless this process may work by what was read of the control log."""
        control = ledger.control
        if control.is_expelled(incarnation):
            raise FencedError(
                f"this process of {self.app!r} (incarnation {incarnation}) was expelled: another process took over"
            )
        if control.coordinator != self.instance:
            raise FencedError(f"another process of {self.app!r} took office (term {control.term}); this one stops")

    async def checked(self, ledger: Ledger, incarnation: int) -> Ledger:
        """The ledger of both logs, read to their ends, control log first; raises LogError, FencedError.

        Another process may have been granted these ranges, and have committed, after the control log was read and
        before the offset log was: then its commits wait for its grant, and this process is no longer in office.
        """
        if ledger.waiting():
            ledger = await self.logs.read_control(ledger)
            self.check_in_office(ledger, incarnation)
        check_ledger(ledger)
        return ledger


class Standing:
    """What a process that took office is by its logs, as far as they are known here.

    ``ledger``: of both logs; ``transaction``: the number of the last transaction that was used.
    """

    def __init__(self, office: Office, identity: Identity) -> None:
        self.identity, self.logs = identity, identity.logs
        self.incarnation, self.ledger, self.transaction = office.incarnation, office.ledger, office.transaction
        self._folded = 0

    def next_transaction(self) -> int:
        """A number that no transaction of this process had yet."""
        self.transaction += 1
        return self.transaction

    def fold(self, transaction: int, events: Sequence[OffsetEvent]) -> None:
        """The own transaction was committed, with these events: they are passed over when the log is read on.

        It is read on from where it was read last, not from behind this transaction: what others committed in front of
        it belongs in the ledger, too.
        """
        self.ledger = evolve_all(self.ledger, events)
        self._folded = transaction

    def has_committed(self, transaction: int) -> bool:
        """Whether the offset log, as it was read, has a transaction of this process."""
        return self.ledger.transactions.get(self.incarnation, 0) >= transaction

    async def read(self) -> None:
        """Read both logs to their ends, the control log first; raises FencedError, LogError.

        Snapshots are taken, and the log is trimmed below them, wherever the others stand who read it. One that stands
        below its start begins with the newest snapshot.
        """
        await self._read_control()
        try:
            self.ledger = await self.logs.read_offsets(self.ledger, (self.incarnation, self._folded))
        except HistoryTrimmed as trimmed:
            await self._read_control()
            logger.info("%s; read from its newest snapshot on", trimmed)
            self.ledger = await self.logs.begin_offsets(self.ledger)
        except LogError:
            await self._read_control()  # one that took over may have made the log anew: that is no damage here
            raise
        self.ledger = await self.identity.checked(self.ledger, self.incarnation)

    async def _read_control(self) -> None:
        self.ledger = await self.logs.read_control(self.ledger)
        self.identity.check_in_office(self.ledger, self.incarnation)


def check_ledger(ledger: Ledger) -> None:
    """Raises LogError when the logs contradict the rules: then something else wrote to them, or we are wrong."""
    for (topic, partition), epoch in ledger.violations():
        raise LogError(
            f"{topic}[{partition}]: a commit of epoch {epoch} lies outside what was granted, and its outputs are "
            "visible. Run the audit to see which records are concerned."
        )
    for (topic, partition), epoch in ledger.waiting():
        raise LogError(f"{topic}[{partition}]: commits of epoch {epoch}, which the control log does not know")
