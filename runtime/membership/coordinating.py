"""The coordinator's work, in each process: it stands when there is none, and decides as long as it is the one.

The host of group/election.py and group/coordinator.py. What they decide is appended, and read back before anything else
is decided; what they need is done beside that: members are fenced, logs read, topics looked at. A step that fails is
tried again: what has not come about is decided, or needed, again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from ...brokers.patience import Patience, ask_until_answered, close_within, fatal_of, rest, within_limit
from ...brokers.protocol import (
    AuthenticationRefused,
    BrokerError,
    BrokerTimeout,
    NotAuthorized,
    TopicPartition,
    TransactionRefused,
)
from ...errors import LogError
from ...group.coordinator import decide, needs
from ...group.copy_requests import parked_moves
from ...group.declarations import Declared
from ...group.election import Candidate, is_coordinator, probes, stands
from ...group.members import LEFT, members_dismissed
from ...group.plan_moves import PlanQuestion
from ...group.plans import answer_of
from ...group.rates import RateFold, RateShares
from ...group.signals_fold import COORDINATORS, PARTITIONS, Heard
from ...group.unowned_points import Unowned, points_unowned, waits_for_names
from ...group.view import CoordinatorMemory, DecisionBatch, View
from ...keyrange.hashing import HASH_NAME
from ...offsets.control import Member
from ...offsets.control_events import AppCreated, CoordinatorElected, MemberExpelled
from ...offsets.event_values import PinnedEnd
from ...offsets.ledger import SourcePartition
from ...offsets.signals import WAITS_MAX, CoordinatorBeat, Wait
from ..logs.own_ledger import OwnLedger
from ..logs.reader import offsets_topic
from .catch_up_check import CatchUpCheck
from .control_tail import ControlTail
from .decisions import Decisions
from .rules import rules_of
from .signals import Signals
from .sources import Sources, StateTopicGrown, log_found_starts, stateful_in

logger = logging.getLogger("keylanes")

LOOK_AGAIN_MS = 30_000
"""How often it is looked whether a source has got more partitions, or is another topic."""
PROBES: Final = 4
"""In an interval: silence is told to that part of one."""
LEVEL_LOOK_MS = 100
"""Between two looks whether a group that runs to its level is there."""
READ_ON_MS = 500
"""Between two reads of the offset log while a member is to release something, and does not say that it has."""
READ_BACK_S: Final = 0.1
"""So long a decision is waited for where the control log is followed, before that is read to its end."""
READ_ALONG_MS = 10_000
"""The same else: so the coordinator knows when a snapshot is due, and is never far behind, whoever commits."""


class CoordinatorLoop:
    """Of one process, from its start to its end; ``run`` is its task."""

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
        self.own_ledger, self.identity, self.heard, self.obeyed = own_ledger, identity, heard, obeyed
        self.signals, self.control_tail = signals, control_tail
        self.broker, self.settings = identity.broker, identity.settings
        self.rules = rules_of(self.settings)
        self._is_alone = is_alone
        self.decisions = Decisions(self.broker, identity.logs.control, identity.true_ends, self.settings)
        self.sources = Sources(self.broker, self.settings)
        self.catch_up_check = CatchUpCheck(own_ledger, heard)
        self.declared = Declared()
        self.resigns = False
        self.dismissed: tuple[int, ...] = ()
        """Who leaves and need not wait for others, as it was told last."""
        self._term = self._seated = self._beats = 0
        self._memory, self._shares = CoordinatorMemory(identity.app, identity.birth, 0), RateShares(0)
        self.unowned: list[Unowned] = []
        """What no member owned when this process decided last."""
        self._told_waiting: set[int] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._looked_s = self._stands_s = 0.0
        self._error: BaseException | None = None

    @property
    def is_coordinator(self) -> bool:
        """Whether this process decides, by what it has read."""
        return is_coordinator(self.own_ledger.ledger.control, self.identity.birth, self._term)

    @property
    def candidate(self) -> Candidate:
        """The own process, as one that may stand."""
        identity = self.identity
        return Candidate(identity.instance, identity.birth, identity.incarnation or 0, is_alone=self._is_alone)

    def wake(self) -> None:
        """Look again: something was heard or read."""
        self._wake.set()

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Raises LogError, SourceError, SettingsError, AccessRefused, TransactionRefused."""
        refused, told = Patience(self.settings.broker_retry_ms, "coordinating"), ""
        try:
            while True:
                if self._error is not None:
                    raise self._error
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
            for task in self._tasks.values():
                task.cancel()

    async def beat_on(self) -> None:
        """Beat until cancelled, beside ``run``: a coordinator whose decisions take long is no silent one."""
        interval_s = self.settings.heartbeat_interval_ms / 1000
        while True:
            is_probing = self._beat_or_probe()
            await rest(interval_s / PROBES if is_probing else interval_s)

    async def _step(self) -> None:
        control = self.own_ledger.ledger.control
        if self.is_coordinator:
            if self._seated != self._term:
                self._take_seat()
            await self._coordinate()
        elif not self.resigns and stands(control, self.heard, self.candidate, self._term):
            await self._stand()

    def _beat_or_probe(self) -> bool:
        """The coordinator says that it lives; whoever does not hear it, that the partitions are there, which is True.

        Those of the members, too: who coordinates next knows at once who of them is as silent as the coordinator was.
        """
        now_s = asyncio.get_running_loop().time()
        control = self.own_ledger.ledger.control
        self.heard.keep({incarnation: member.birth for incarnation, member in control.members.items()})
        self.heard.loads.keep(control.started)
        if self._is_alone:  # nobody hears it
            return False
        if self.is_coordinator:
            if not self.control_tail.is_lost():  # or others would go on waiting for who can decide nothing
                self.beat()
            return False
        quiet_ms = int((now_s - self.signals.read_s[COORDINATORS]) * 1000)
        is_probing = probes(control, self.heard, self.candidate, self._term, quiet_ms=quiet_ms)
        self.signals.listen(to_all=self.identity.incarnation is None or is_probing)
        if is_probing:
            position = self.identity.logs.positions[self.identity.logs.control]
            probe = self.obeyed.beat(self.identity.incarnation or 0, self.identity.birth, position, 0)
            for partition in range(PARTITIONS):
                self.signals.send(partition, probe)
        return is_probing

    def beat(self) -> None:
        """Say that it lives, in each partition: so the silence of others can be told there."""
        self.signals.listen(to_all=True)
        view = self._view()
        self.dismissed = members_dismissed(view)
        beat = self._next_beat()
        rates = self._shares.tell(beat.number, self._shares.next_shares(view))
        waits = tuple(Wait(*one) for one in islice(parked_moves(view).items(), WAITS_MAX))
        self.signals.send(COORDINATORS, msgspec.structs.replace(beat, rates=rates, waits=waits))
        for partition in range(COORDINATORS + 1, PARTITIONS):
            self.signals.send(partition, beat)

    def _next_beat(self) -> CoordinatorBeat:
        self._beats += 1
        interval_ms, is_level = self.rules.interval_ms, self.catch_up_check.has_caught_up
        return CoordinatorBeat(self._term, self._beats, self.resigns, interval_ms, is_level, self.dismissed, (), ())

    def hears_rates(self) -> None:
        """Look again when somebody may have said which share it has, as that is waited for."""
        if self._shares.is_awaiting:
            self.wake()

    async def resign(self, limit_s: float) -> None:
        """Say that it decides nothing more: the next may stand at once."""
        self.resigns = True
        try:
            async with asyncio.timeout(limit_s):
                await self.signals.send_and_wait(COORDINATORS, self._next_beat())
        except TimeoutError:
            return

    # --- candidacy ---------------------------------------------------------------------------------------------------

    async def _stand(self) -> None:
        """Read the control log to its end; stand, unless somebody else was elected meanwhile. The log says who was
        elected when it is read to behind the own election: an end that a broker tells may be an old one.

        An election that fails is not repeated before an interval is over: each election stays in the log for ever.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._stands_s:
            return
        await self.following_read()
        control = self.own_ledger.ledger.control
        if not stands(control, self.heard, self.candidate, self._term):
            return
        self._stands_s = now_s + self.settings.heartbeat_interval_ms / 1000
        identity = self.identity
        if control.created is None:
            await self._check_lost()
            await self.decisions.append([AppCreated(identity.app, HASH_NAME, identity.logs.log_partitions)])
        self._term = control.term + 1
        app_birth = control.app_birth or identity.birth
        self.decisions.begin_term(self._term)
        await self.decisions.append([CoordinatorElected(self._term, identity.instance, identity.birth, app_birth)])
        await self.own_ledger.read_control_to(self.decisions.end)
        self.wake()

    def _take_seat(self) -> None:
        """It was elected, by what it has read: the answer to its asking may never have come."""
        identity = self.identity
        logger.info("%s: this process coordinates (term %d)", identity.app, self._term)
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        self._memory = CoordinatorMemory(identity.app, identity.birth, now_ms, self.candidate.is_alone)
        self._memory.log_partitions = identity.logs.log_partitions
        self._shares, self.dismissed = RateShares(self._term), ()
        self._seated = self._term
        for task in self._tasks.values():
            task.cancel()
        self._tasks = {}
        self.beat()

    async def _check_lost(self) -> None:
        """Raises LogError when the control log of an application that has run is empty."""
        topic = offsets_topic(self.identity.app)
        places = [TopicPartition(topic, p) for p in range(self.identity.logs.log_partitions)]
        marks = await within_limit(self.broker.watermarks(places), self.settings.call_limit_ms, "watermarks")
        await self.following_read()
        if self.own_ledger.ledger.control.created is None and any(m.high > 0 for m in marks.values()):
            raise LogError(
                f"{self.identity.logs.control.topic} is empty, but {topic} is not: the control log of "
                f"{self.identity.app!r} is lost. Restore it from a copy, or start under a new application name."
            )

    async def following_read(self) -> None:
        """Read the control log to its end, for all who follow it."""
        asked = self.control_tail.moment()
        await self.own_ledger.read_control()
        self.control_tail.has_read(asked)

    # --- coordinating ------------------------------------------------------------------------------------------------

    def _view(self) -> View:
        position = self.identity.logs.positions[self.identity.logs.control]
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        return View(self.own_ledger.ledger, self.heard, self._memory, self.rules, position, now_ms)

    async def _coordinate(self) -> None:
        """Decide until there is nothing more to say, or it is coordinator no more; begin what is needed."""
        while self.is_coordinator and self._error is None:
            await self.decisions.settle()  # what an earlier step did not bring through
            await self._read_back()
            if not self.is_coordinator:
                return
            control = self.own_ledger.ledger.control
            if control.pinned is not None or not control.has_member_until_caught_up:
                self._memory.ends = None  # who runs to its level later has ends of its own
            batch = decide(self._view(), self.decisions.turn)
            self._note(batch)
            if not batch.decisions and not batch.answered:
                break
            self.decisions.add(batch.decisions)
        view = self._view()
        self._begin_needs(view)
        self._look_at_unowned(view)
        is_heard = not self._is_alone and not self.control_tail.is_lost()
        if is_heard and (
            self._shares.is_due(self._shares.next_shares(view)) or members_dismissed(view) != self.dismissed
        ):
            self.beat()
        for difference in self.declared.differences(view):
            logger.warning("%s: %s", self.identity.app, difference)

    def _look_at_unowned(self, view: View) -> None:
        """Say once of each member that is gone that keys wait for its name."""
        self.unowned, found = (points_unowned(view), waits_for_names(view)) if view.places.unheld else ([], {})
        for incarnation, one in found.items():
            if incarnation not in self._told_waiting:
                logger.warning("%s: %s", self.identity.app, one.line())
        self._told_waiting = {*found}

    async def _read_back(self) -> None:
        """Read to behind what was appended last. Raises LogError when what was acknowledged does not count."""
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
        """What the seat keeps of what is decided."""
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        self._memory.note(batch, now_ms)
        for request in batch.answered:
            self.heard.drop_request(request)
        for decision in batch.decisions:
            match decision:
                case MemberExpelled(incarnation=incarnation, cause=cause) if incarnation != self.identity.incarnation:
                    how = "has left" if cause == LEFT else f"is expelled: {cause}"
                    logger.info("%s: incarnation %d %s", self.identity.app, incarnation, how)

    def _begin_needs(self, view: View) -> None:
        wanted = needs(view)
        self.hears_releases()
        for member in wanted.fence:
            self._begin(f"fence {member.incarnation}", partial(self._fence, member))
        if wanted.read:
            self._begin("read", partial(self._read, wanted.read))
        if wanted.look:
            self._begin("look", lambda: self._look(wanted.look))
        if wanted.open:
            self._begin("open", lambda: self._open(wanted.open))
        if wanted.solve is not None:
            self._begin("plan", partial(self._solve, wanted.solve))
        if wanted.ends:
            self._begin("ends", self._find_ends)
        if self.catch_up_check.is_wanted:
            self._begin("level", self._look_level)
        elif len(self.own_ledger.ledger.control.members) > 1:
            pause_ms = READ_ON_MS if self._expects() else READ_ALONG_MS
            self._begin(f"read each {pause_ms} ms", partial(self._read_on, pause_ms))
        now_s = asyncio.get_running_loop().time()
        if self._memory.sources and now_s - self._looked_s >= LOOK_AGAIN_MS / 1000:
            self._looked_s = now_s
            self._begin("look again", self._look_again)

    def _begin(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do it beside the rest, once at a time, and again until it is answered."""
        if what in self._tasks:
            return
        patience = Patience(self.settings.broker_retry_ms, what)
        task = asyncio.ensure_future(ask_until_answered(work, patience))
        self._tasks[what] = task

        def ended(task: asyncio.Task[None]) -> None:
            if self._tasks.get(what) is task:
                del self._tasks[what]
            if not task.cancelled() and (error := task.exception()) is not None:
                if isinstance(error, BrokerTimeout):  # it may be one broker of many: needed again, until it can
                    logger.warning("%s: %s can't be done, until it can: %s", self.identity.app, what, error)
                else:
                    self._error = fatal_of(error) if isinstance(error, BrokerError) else error
            self.wake()

        task.add_done_callback(ended)

    async def _fence(self, member: Member) -> None:
        """Fence all ids of a member whose expulsion was read back. The markers of its transaction may take longer."""
        seat, settings = self._memory, self.settings
        limit_ms = settings.call_limit_ms + settings.transaction_timeout_ms
        for one in member.transactional_ids:
            making = self.broker.producer(one, transaction_timeout_ms=settings.transaction_timeout_ms)
            producer = await within_limit(making, limit_ms, f"fencing {one}")
            await close_within(settings.close_timeout_ms, producer.close(), "closing a producer", excused=BrokerError)
        seat.fenced.add(member.incarnation)

    async def _read(self, wanted: list[tuple[SourcePartition, int]]) -> None:
        """The owners of these are known to be fenced: all that they committed lies below appends that begin now."""
        seat = self._memory
        await self.own_ledger.confirm_offsets({self.identity.logs.log_partition_of(place[1]) for place, _ in wanted})
        seat.read |= set(wanted)

    async def _solve(self, question: PlanQuestion) -> None:
        """Work a large plan out beside the event loop."""
        seat = self._memory
        seat.answer = await asyncio.to_thread(answer_of, question)

    async def _look(self, topics: list[str]) -> None:
        seat = self._memory
        try:
            found = await self.sources.look(self.own_ledger.ledger.control, topics)
        except StateTopicGrown:
            if self._is_heard_with_state(topics):
                raise
            await asyncio.sleep(self.rules.interval_ms / 1000)  # whoever kept it may be gone: it is expelled, or heard
            return
        seat.sources |= found
        seat.missing_topics |= set(topics) - found.keys()
        log_found_starts(found)
        self._looked_s = asyncio.get_running_loop().time()

    def _is_heard_with_state(self, topics: Sequence[str]) -> bool:
        """Whether somebody who is at work keeps state of one of these topics."""
        own, members = self.identity.birth, self.own_ledger.ledger.control.members.values()
        living = [m for m in members if not m.expelled and stateful_in([m]).intersection(topics)]
        return any(
            m.birth == own or self.heard.silence_of(m.joined.instance, m.birth).was_heard(m.birth) for m in living
        )

    async def _look_again(self) -> None:
        seat = self._memory
        grown = await self.sources.look_again(self.own_ledger.ledger.control, seat.sources)
        seat.sources |= grown
        log_found_starts(grown)

    async def _find_ends(self) -> None:
        seat, handled = self._memory, self._view().present.handled
        started = sorted(self.own_ledger.ledger.control.started)
        places = [TopicPartition(*place) for place in started if place[0] in handled]
        marks = await within_limit(self.broker.watermarks(places), self.settings.call_limit_ms, "ends of the sources")
        seat.ends = tuple(PinnedEnd(*place, marks[place].high) for place in places)

    async def _look_level(self) -> None:
        was_level = self.catch_up_check.has_caught_up
        await self.catch_up_check.look()
        if self.catch_up_check.has_caught_up and not was_level:
            self.beat()
        await asyncio.sleep(LEVEL_LOOK_MS / 1000)

    def _expects(self) -> bool:
        """Whether something is about to be released."""
        control = self.own_ledger.ledger.control
        is_leaving = any(i in self.heard.leaving and not m.expelled for i, m in control.members.items())
        return bool(control.moves.release_requests) or is_leaving

    def hears_releases(self) -> None:
        """Something was heard, perhaps that something was released: that part of the offset log is read on at once."""
        if self.heard.release_partitions and self.is_coordinator:
            self._begin("read what was released", self._read_released)

    async def _read_released(self) -> None:
        while self.heard.release_partitions:
            partitions, self.heard.release_partitions = self.heard.release_partitions, set()
            logs = self.identity.logs
            for log_partition in sorted({logs.log_partition_of(partition) for partition in partitions}):
                await self.own_ledger.read_partition(log_partition)
                self.wake()

    async def _read_on(self, pause_ms: int) -> None:
        await asyncio.sleep(pause_ms / 1000)  # first: a read to all ends would hold up that of what is just released
        await self.own_ledger.read()

    async def _open(self, log_partitions: list[int]) -> None:
        """Write the first event of partitions of the offset log, before anything is granted of what goes there."""
        await self.own_ledger.confirm_offsets(log_partitions)

    async def close(self) -> None:
        """Let go of the connections; bounded in time."""
        await self.decisions.close()
