"""The coordinator's loop, in each process: a process stands when there is no coordinator, and decides while elected.

The host of group/election.py and group/coordinator.py. Decisions are appended, and read back before the next decisions.
Work outside of the control log is done beside the decisions (errands.py). A failed step is tried again: a change that
has not come about is decided, or needed, again.
"""

import asyncio
import logging
from typing import Final

from ...brokers.patience import Patience, fatal_of, rest, within_limit
from ...brokers.protocol import (
    AuthenticationRefused,
    BrokerError,
    NotAuthorized,
    TopicPartition,
    TransactionRefused,
)
from ...errors import LogError
from ...group.coordinator import decide
from ...group.declarations import Declared
from ...group.election import Candidate, is_coordinator, stands
from ...group.members import LEFT
from ...group.rates import RateFold
from ...group.signals_fold import Heard
from ...group.unowned_points import Unowned, points_unowned, waits_for_names
from ...group.view import CoordinatorMemory, DecisionBatch, View
from ...keyrange.hashing import HASH_NAME
from ...offsets.control_events import AppCreated, CoordinatorElected, MemberExpelled
from ..logs.own_ledger import OwnLedger
from ..logs.reader import offsets_topic
from .catch_up_check import CatchUpCheck
from .control_tail import ControlTail
from .coordinator_beats import PROBES, CoordinatorBeats
from .decisions import Decisions
from .errands import Errands
from .rules import rules_of
from .signals import Signals
from .sources import Sources

logger = logging.getLogger("keylanes")

READ_BACK_S: Final = 0.1
"""How long a decision is awaited in the tail of the control log, before the log is read to its end."""


class CoordinatorLoop:
    """The loop of a process, from its start to its end; ``run`` and ``beat_on`` are tasks."""

    def __init__(
        self,
        own_ledger: OwnLedger,
        heard: Heard,
        obeyed: RateFold,
        signals: Signals,
        control_tail: ControlTail,
        *,
        is_alone: bool,
    ) -> None:
        identity = own_ledger.identity
        self.own_ledger = own_ledger
        self.identity = identity
        self.heard = heard
        self.control_tail = control_tail
        self.broker = identity.broker
        self.settings = identity.settings
        self.rules = rules_of(self.settings)
        self.decisions = Decisions(self.broker, identity.logs.control, identity.true_ends, self.settings)
        self.sources = Sources(self.broker, self.settings)
        self.catch_up_check = CatchUpCheck(own_ledger, heard)
        self.beats = CoordinatorBeats(
            own_ledger=own_ledger,
            heard=heard,
            obeyed=obeyed,
            signals=signals,
            catch_up_check=self.catch_up_check,
            rules=self.rules,
            view=self._view,
        )
        self.declared = Declared()
        self.unowned: list[Unowned] = []
        """The ranges without an owner when this process decided last."""
        self._is_alone = is_alone
        self._term_begun = 0
        """The last term that this process has begun as coordinator."""
        self._memory = CoordinatorMemory(identity.app, identity.birth, 0)
        self._errands = self._make_errands()
        self._waiting: set[int] = set()
        """The gone members for whose names keys wait, as logged."""
        self._wake = asyncio.Event()
        self._stands_s = 0.0
        """The earliest time of the next election."""

    @property
    def is_coordinator(self) -> bool:
        """Whether this process decides, by what it has read."""
        return is_coordinator(self.own_ledger.ledger.control, self.identity.birth, self.beats.term)

    @property
    def candidate(self) -> Candidate:
        """The own process, as one that may stand."""
        identity = self.identity
        return Candidate(identity.instance, identity.birth, identity.incarnation or 0, is_alone=self._is_alone)

    def wake(self) -> None:
        """Look again: a signal was heard, or the log was read."""
        self._wake.set()

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stand and decide until cancelled. Raises LogError, SourceError, SettingsError, AccessRefused,
        TransactionRefused.
        """
        refused, told = Patience(self.settings.broker_retry_ms, "coordinating"), ""
        try:
            while True:
                if self._errands.error is not None:
                    raise self._errands.error
                self._wake.clear()
                try:
                    await self._step()
                except NotAuthorized as error:
                    await refused.wait(error)
                except TransactionRefused:  # the same would be refused again
                    raise
                except AuthenticationRefused as error:  # one more try might lock the account
                    raise fatal_of(error) from error
                except BrokerError as error:
                    if str(error) != told:
                        logger.warning("coordinating waits: %s", error)
                    told = str(error)
                    await asyncio.sleep(0.1)
                else:
                    refused.note_answer()
                    told = ""
                await rest(self.settings.heartbeat_interval_ms / 1000, self._wake)
        finally:
            self._errands.cancel()

    async def beat_on(self) -> None:
        """Beat until cancelled, beside ``run``: a coordinator with slow decisions is not silent."""
        interval_s = self.settings.heartbeat_interval_ms / 1000
        while True:
            is_probing = self._beat_or_probe()
            await rest(interval_s / PROBES if is_probing else interval_s)

    async def _step(self) -> None:
        control = self.own_ledger.ledger.control
        if self.is_coordinator:
            if self._term_begun != self.beats.term:
                self._begin_term()
            await self._coordinate()
        elif not self.beats.resigns and stands(control, self.heard, self.candidate, self.beats.term):
            await self._stand()

    def _beat_or_probe(self) -> bool:
        """Beat as coordinator, else probe when it is time. Returns whether this process probes."""
        control = self.own_ledger.ledger.control
        self.heard.keep({incarnation: member.birth for incarnation, member in control.members.items()})
        self.heard.loads.keep(control.started)
        if self._is_alone:  # no other process hears a beat
            return False
        if self.is_coordinator:
            if not self.control_tail.is_lost():  # else others would go on waiting for a coordinator without decisions
                self.beats.beat()
            return False
        return self.beats.probe(self.candidate)

    def note_signals(self) -> None:
        """Signals were heard: read released ranges at once, and look again while shares of rates are unconfirmed."""
        if self.is_coordinator:
            self._errands.read_released()
        if self.beats.is_awaiting_rates:
            self.wake()

    async def resign(self, limit_s: float) -> None:
        """See ``CoordinatorBeats``."""
        await self.beats.resign(limit_s)

    # --- candidacy ---------------------------------------------------------------------------------------------------

    async def _stand(self) -> None:
        """Read the control log to its end; stand, unless another process was elected meanwhile. The log names the
        elected process when the log is read to behind the own election: a broker may tell an old end.

        A failed election is not repeated before an interval is over: each election stays in the log for ever.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._stands_s:
            return
        await self._read_control()
        control = self.own_ledger.ledger.control
        if not stands(control, self.heard, self.candidate, self.beats.term):
            return
        self._stands_s = now_s + self.settings.heartbeat_interval_ms / 1000
        identity = self.identity
        if control.created is None:
            await self._check_lost()
            await self.decisions.append([AppCreated(identity.app, HASH_NAME, identity.logs.log_partitions)])
        self.beats.term = term = control.term + 1
        app_birth = control.app_birth or identity.birth
        self.decisions.begin_term(term)
        await self.decisions.append([CoordinatorElected(term, identity.instance, identity.birth, app_birth)])
        await self.own_ledger.read_control_to(self.decisions.end)
        self.wake()

    def _begin_term(self) -> None:
        """Begin a term: the log names this process as elected. The answer to the append may never have come."""
        identity, term = self.identity, self.beats.term
        logger.info("%s: this process coordinates (term %d)", identity.app, term)
        self._memory = CoordinatorMemory(
            app=identity.app,
            birth=identity.birth,
            began_ms=int(asyncio.get_running_loop().time() * 1000),
            is_alone=self.candidate.is_alone,
            log_partitions=identity.logs.log_partitions,
        )
        self._errands.cancel()
        self._errands = self._make_errands()
        self._term_begun = term
        self.beats.begin_term()

    def _make_errands(self) -> Errands:
        return Errands(
            own_ledger=self.own_ledger,
            heard=self.heard,
            memory=self._memory,
            rules=self.rules,
            sources=self.sources,
            catch_up_check=self.catch_up_check,
            view=self._view,
            on_end=self.wake,
            on_level=self.beats.beat,
        )

    async def _check_lost(self) -> None:
        """Raises LogError when the control log of an application that has run is empty."""
        topic = offsets_topic(self.identity.app)
        places = [TopicPartition(topic, p) for p in range(self.identity.logs.log_partitions)]
        marks = await within_limit(self.broker.watermarks(places), self.settings.call_limit_ms, "watermarks")
        await self._read_control()
        if self.own_ledger.ledger.control.created is None and any(m.high > 0 for m in marks.values()):
            raise LogError(
                f"{self.identity.logs.control.topic} is empty, but {topic} is not: the control log of "
                f"{self.identity.app!r} is lost. Restore it from a copy, or start under a new application name."
            )

    async def _read_control(self) -> None:
        """Read the control log to its end, for all listeners of the tail."""
        asked = self.control_tail.moment()
        await self.own_ledger.read_control()
        self.control_tail.has_read(asked)

    # --- coordinating ------------------------------------------------------------------------------------------------

    def _view(self) -> View:
        return View(
            ledger=self.own_ledger.ledger,
            heard=self.heard,
            memory=self._memory,
            rules=self.rules,
            position=self.identity.logs.positions[self.identity.logs.control],
            now_ms=int(asyncio.get_running_loop().time() * 1000),
        )

    async def _coordinate(self) -> None:
        """Decide until nothing is left to decide, or another process coordinates; then begin the needed errands."""
        while self.is_coordinator and self._errands.error is None:
            await self.decisions.settle()  # decisions that an earlier step could not append
            await self._read_back()
            if not self.is_coordinator:
                return
            control = self.own_ledger.ledger.control
            if control.pinned is not None or not control.has_member_until_caught_up:
                self._memory.ends = None  # a later run until the group has caught up has its own ends
            batch = decide(self._view(), self.decisions.turn)
            self._note(batch)
            if not batch.decisions and not batch.answered:
                break
            self.decisions.add(batch.decisions)
        view = self._view()
        self._errands.begin_needed(view)
        self._look_at_unowned(view)
        if not self._is_alone and not self.control_tail.is_lost():
            self.beats.beat_when_due(view)
        for difference in self.declared.differences(view):
            logger.warning("%s: %s", self.identity.app, difference)

    def _look_at_unowned(self, view: View) -> None:
        """Find the ranges without an owner, and log once for each gone member that keys wait for its name."""
        self.unowned, found = (points_unowned(view), waits_for_names(view)) if view.places.unheld else ([], {})
        for incarnation, one in found.items():
            if incarnation not in self._waiting:
                logger.warning("%s: %s", self.identity.app, one.line())
        self._waiting = {*found}

    async def _read_back(self) -> None:
        """Read to behind the last append. Raises LogError when an acknowledged decision does not count."""
        end = self.decisions.end
        if not await self.control_tail.has_reached(end, READ_BACK_S):
            await self.own_ledger.read_control_to(end)
        control, turn = self.own_ledger.ledger.control, self.decisions.turn
        if self.is_coordinator and control.number < turn.number:
            raise LogError(
                f"{self.identity.logs.control.topic}: decision {turn.number} of term {turn.term} was acknowledged and "
                f"does not count: the log has {control.number} of them. Something else writes to this topic, or "
                "records of it are lost. Restore it from a copy, or start under a new application name"
            )

    def _note(self, batch: DecisionBatch) -> None:
        """Note a batch before the batch is written, and log expulsions."""
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        self._memory.note(batch, now_ms)
        for request in batch.answered:
            self.heard.drop_request(request)
        for decision in batch.decisions:
            match decision:
                case MemberExpelled(incarnation=incarnation, cause=cause) if incarnation != self.identity.incarnation:
                    how = "has left" if cause == LEFT else f"is expelled: {cause}"
                    logger.info("%s: incarnation %d %s", self.identity.app, incarnation, how)

    async def close(self) -> None:
        """Drop the connections; bounded in time."""
        await self.decisions.close()
