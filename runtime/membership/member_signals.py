"""The signals of a member: requests to join, beats, and requests to leave. Only the control log says what a process may
do.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from ...brokers.patience import rest
from ...errors import FencedError, LogError, SettingsError
from ...group.features import CONTRADICTS, LEVEL_TOO_LOW, kind_of
from ...group.member import NotJoined, Rejected, Works, state_of
from ...group.rates import RateFold
from ...group.signals_fold import Heard, partition_of
from ...offsets.control import Member
from ...offsets.decide import StoreSpec
from ...offsets.event_values import LEVEL
from ...offsets.signals import Copies, Copy, JoinAsked, LeaveAsked, Load, MoveAsked, ReleaseTold, StoreAsked
from ..logs.own_ledger import Identity, OwnLedger
from .offer import Offer
from .signals import Signals

logger = logging.getLogger("keylanes")

LEAVES_AGAIN_MS = 200
"""The time between two requests to leave, until the answer."""
PRODUCERS = 1
"""How many transactional ids a process needs."""


class MemberSignals:
    """The signals that a process sends as a member. ``on_release_told`` is called after this process has told of a
    release; the ledger shows the release already.
    """

    def __init__(
        self,
        own_ledger: OwnLedger,
        heard: Heard,
        obeyed: RateFold,
        signals: Signals,
        stores: Sequence[StoreSpec],
        on_release_told: Callable[[], None],
        *,
        is_alone: bool,
    ) -> None:
        self.own_ledger = own_ledger
        self.identity = own_ledger.identity
        self.heard = heard
        self.signals = signals
        self.obeyed = obeyed
        self.stores = stores
        self.is_alone = is_alone
        self._on_release_told = on_release_told
        self._changed = asyncio.Event()
        self._term = 0
        """The term in which the request to join was sent last."""
        self._join_signal: JoinAsked | None = None
        """The request to join; None before ``join``."""
        self.leaves = False
        """Whether this process has asked to leave."""
        self._is_done = False
        """Whether this process commits nothing more."""
        self._is_wait_logged = False
        self._late_ms = 0
        """How late the event loop came to the last beat; the next beat tells the coordinator."""

    def wake(self) -> None:
        """Look at the control log, which was read on."""
        self._changed.set()

    @property
    def partition(self) -> int:
        """The partition of the signals for this process."""
        return partition_of(self.identity.instance, self.identity.birth)

    @property
    def returns_in_ms(self) -> int:
        """How soon this process is back under its name, at the latest; 0: without a name, or without a return."""
        return self.identity.settings.return_ms if self.identity.instance else 0

    async def join(self, offer: Offer) -> Member:
        """Ask to join until the control log has the answer; a refusal raises FencedError, LogError, SettingsError."""
        self._join_signal = _join_request(self.identity, offer, self.stores)
        await self.signals.is_listening.wait()
        began_s = asyncio.get_running_loop().time()
        while True:
            self._changed.clear()
            control = self.own_ledger.ledger.control
            match state_of(control, self.identity.birth, self.identity.incarnation):
                case Rejected(reason):
                    raise _refusal_error(reason)
                case Works(incarnation=incarnation):
                    member = control.members[incarnation]
                    if all(store.name in control.stores for store in self.stores):
                        return member
                case NotJoined():
                    self._log_wait(asyncio.get_running_loop().time() - began_s)
            if control.term != self._term:  # a coordinator elected since has not heard the request
                self._term = control.term
                self.signals.send(self.partition, self._join_signal)
            await rest(self.identity.settings.heartbeat_interval_ms / 1000, self._changed)

    async def run(self) -> None:
        """Beat until cancelled."""
        loop, interval_s = asyncio.get_running_loop(), self.identity.settings.heartbeat_interval_ms / 1000
        while True:
            self.beat()
            due_s = loop.time() + interval_s
            await rest(interval_s)
            self._late_ms = max(0, int((loop.time() - due_s) * 1000))

    def beat(self) -> None:
        """Send a beat; before the joining, a request to join instead; during a stop, a request to leave, too."""
        identity = self.identity
        if self.leaves:
            self.leave()
        if identity.incarnation is None:
            if self._join_signal is not None:
                self.signals.send(self.partition, self._join_signal)
        elif not self.is_alone and not self._is_done:
            position = identity.logs.positions[identity.logs.control]
            beat = self.obeyed.beat(identity.incarnation, identity.birth, position, self._late_ms)
            self.signals.send(self.partition, beat)

    def leave(self) -> None:
        """Tell the coordinator of an orderly stop: a leaving process gets no more grants."""
        self.leaves = True
        self.signals.send(self.partition, self._leave_request())

    async def tell_end(self, partition: int) -> None:
        """Say in a partition that this process commits nothing more; returns when the signal is acknowledged, or the
        append has failed.
        """
        self.leaves = self._is_done = True
        await self.signals.send_and_wait(partition, self._leave_request())

    def _leave_request(self) -> LeaveAsked:
        incarnation, birth = self.own_ledger.incarnation, self.identity.birth
        return LeaveAsked(incarnation, birth, self.returns_in_ms, is_done=self._is_done)

    async def wait_until_left(self, limit_s: float) -> bool:
        """Wait, after the last commit, until the control log says that this process has left. False: ``limit_s`` was
        over before.
        """
        self._is_done = True
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while not self.own_ledger.ledger.control.is_expelled(self.own_ledger.incarnation):
            if loop.time() >= until:
                return False
            self._changed.clear()
            self.leave()
            await rest(min(LEAVES_AGAIN_MS / 1000, until - loop.time()), self._changed)
        return True

    def ask_move(self, asked: MoveAsked) -> None:
        """Ask the coordinator to move points to a member."""
        self.signals.send(self.partition, asked)

    def tell_release(self, told: ReleaseTold) -> None:
        """Say that a range was released, so that the coordinator looks for the release in the log at once."""
        if not self.is_alone:
            self.signals.send(self.partition, told)
        self._on_release_told()

    def tell_load(self, load: Load) -> None:
        """Say what the ranges of this process cost."""
        self.signals.send(self.partition, load)

    def tell_copies(self, copies: tuple[Copy, ...]) -> None:
        """Say how far the requested copies of state have come."""
        if not self.is_alone:
            self.signals.send(self.partition, Copies(self.own_ledger.incarnation, copies))

    def _log_wait(self, waited_s: float) -> None:
        """Log once, in a long wait to join, for which silent members the process waits, and how to avoid the wait."""
        settings = self.identity.settings
        control = self.own_ledger.ledger.control
        others = [m for m in control.unfenced_members() if m.birth != self.identity.birth]
        gone = [m for m in others if m.expelled or not self.heard.lives(m.joined.instance, m.birth)]
        if self._is_wait_logged or waited_s * 1000 < settings.heartbeat_interval_ms or not gone:
            return
        self._is_wait_logged = True
        who = ", ".join(f"incarnation {m.incarnation} ({m.joined.host or m.birth})" for m in gone)
        logger.info(
            "%s: waiting to join, for about session_timeout_ms=%d, at most twice as long: %s did not leave in order "
            "and may still be at work. A process that is started again under its own group_instance_id waits for two "
            "heartbeats only",
            self.identity.app,
            settings.session_timeout_ms,
            who,
        )


def _join_request(identity: Identity, offer: Offer, stores: Sequence[StoreSpec]) -> JoinAsked:
    return JoinAsked(
        instance=identity.instance,
        birth=identity.birth,
        producers=PRODUCERS,
        host=offer.host,
        endpoint=offer.endpoint,
        capacity=offer.capacity,
        level=LEVEL,
        topics=offer.topics,
        writes=offer.writes,
        until_level=offer.until_level,
        stores=tuple(StoreAsked(*store) for store in stores),
        expected=offer.expected,
    )


def _refusal_error(reason: str) -> FencedError | LogError | SettingsError:
    """The error for a refusal: LogError asks for a newer version, SettingsError for other settings."""
    kind = kind_of(reason)
    text = f"this process may not take part: {reason}"
    if kind == LEVEL_TOO_LOW:
        return LogError(text)
    return SettingsError(text) if kind == CONTRADICTS else FencedError(text)
