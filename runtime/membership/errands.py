"""The errands of a coordinator: work outside of the control log, in tasks beside the decisions.

An errand runs once at a time. A broker that does not answer is asked again, and an errand that was given up is begun
again while it is needed. Any other error of an errand ends the run.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from ...brokers.patience import Patience, ask_until_answered, close_within, fatal_of, within_limit
from ...brokers.protocol import BrokerError, BrokerTimeout, TopicPartition
from ...group.coordinator import needs
from ...group.plan_moves import PlanQuestion
from ...group.plans import answer_of
from ...group.signals_fold import Heard
from ...group.view import CoordinatorMemory, Rules, View
from ...offsets.control import Member
from ...offsets.event_values import PinnedEnd
from ...offsets.ledger import SourcePartition
from ..logs.own_ledger import OwnLedger
from .catch_up_check import CatchUpCheck
from .sources import Sources, StateTopicGrown, log_found_starts, stateful_in

logger = logging.getLogger("keylanes")

LOOK_AGAIN_MS = 30_000
"""The time between two looks for new partitions of a source, or for another topic of its name."""
LEVEL_LOOK_MS: Final = 100
"""The time between two checks whether a group that runs until it has caught up has done so."""
READ_ON_MS: Final = 500
"""The time between two reads of the offset log while a release is expected, and its signal may be lost."""
READ_ALONG_MS: Final = 10_000
"""The same time else: the coordinator knows when a snapshot is due, and is never far behind."""


class ErrandKind(Enum):
    """What an errand does, with the text for the log."""

    FENCE = "fence {}"
    READ = "read"
    LOOK = "look"
    OPEN = "open"
    PLAN = "plan"
    ENDS = "ends"
    LEVEL = "level"
    READ_ON = "read each {} ms"
    LOOK_AGAIN = "look again"
    READ_RELEASED = "read what was released"


class Errand(NamedTuple):
    """An errand. Errands of one kind with different numbers run side by side."""

    kind: ErrandKind
    number: int = 0

    def __str__(self) -> str:
        return self.kind.value.format(self.number)


class Errands:
    """The errands of a coordinator in one term, and their results in ``memory``. ``view``: the coordinator's view now;
    ``on_end`` is called at the end of each errand, ``on_level`` when the group has caught up.
    """

    def __init__(
        self,
        own_ledger: OwnLedger,
        heard: Heard,
        memory: CoordinatorMemory,
        rules: Rules,
        sources: Sources,
        catch_up_check: CatchUpCheck,
        view: Callable[[], View],
        on_end: Callable[[], None],
        on_level: Callable[[], None],
    ) -> None:
        self.own_ledger = own_ledger
        self.identity = own_ledger.identity
        self.broker = own_ledger.identity.broker
        self.settings = own_ledger.identity.settings
        self.heard = heard
        self.memory = memory
        self.rules = rules
        self.sources = sources
        self.catch_up_check = catch_up_check
        self.error: BaseException | None = None
        """The error that ends the run."""
        self._view = view
        self._on_end = on_end
        self._on_level = on_level
        self._tasks: dict[Errand, asyncio.Task[None]] = {}
        self._looked_s = 0.0
        """The time of the last look at all sources."""

    def begin_needed(self, view: View) -> None:
        """Begin the needed errands that do not run."""
        wanted = needs(view)
        self.read_released()
        for member in wanted.fence:
            self._begin(Errand(ErrandKind.FENCE, member.incarnation), partial(self._fence, member))
        if wanted.read:
            self._begin(Errand(ErrandKind.READ), partial(self._read, wanted.read))
        if wanted.look:
            self._begin(Errand(ErrandKind.LOOK), partial(self._look, wanted.look))
        if wanted.open:
            self._begin(Errand(ErrandKind.OPEN), partial(self.own_ledger.confirm_offsets, wanted.open))
        if wanted.solve is not None:
            self._begin(Errand(ErrandKind.PLAN), partial(self._solve, wanted.solve))
        if wanted.ends:
            self._begin(Errand(ErrandKind.ENDS), self._find_ends)
        if self.catch_up_check.is_wanted:
            self._begin(Errand(ErrandKind.LEVEL), self._look_level)
        elif len(self.own_ledger.ledger.control.members) > 1:
            pause_ms = READ_ON_MS if self._expects_release() else READ_ALONG_MS
            self._begin(Errand(ErrandKind.READ_ON, pause_ms), partial(self._read_on, pause_ms))
        now_s = asyncio.get_running_loop().time()
        if self.memory.sources and now_s - self._looked_s >= LOOK_AGAIN_MS / 1000:
            self._looked_s = now_s
            self._begin(Errand(ErrandKind.LOOK_AGAIN), self._look_again)

    def read_released(self) -> None:
        """Read the partitions of the offset log for which a release was heard, at once."""
        if self.heard.release_partitions:
            self._begin(Errand(ErrandKind.READ_RELEASED), self._read_released)

    def cancel(self) -> None:
        """Cancel all errands: the term or the run is over."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks = {}

    def _begin(self, errand: Errand, work: Callable[[], Awaitable[None]]) -> None:
        if errand in self._tasks:
            return
        patience = Patience(self.settings.broker_retry_ms, str(errand))
        task = asyncio.ensure_future(ask_until_answered(work, patience))
        self._tasks[errand] = task
        task.add_done_callback(partial(self._end, errand))

    def _end(self, errand: Errand, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(errand) is task:
            del self._tasks[errand]
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, BrokerTimeout):  # perhaps of a single broker of many; other errands may go on
                logger.warning("%s: %s can't be done, until it can: %s", self.identity.app, errand, error)
            else:
                self.error = fatal_of(error) if isinstance(error, BrokerError) else error
        self._on_end()

    # --- members and the offset log ----------------------------------------------------------------------------------

    async def _fence(self, member: Member) -> None:
        """Fence all ids of a member whose expulsion was read back. The markers of its transaction may take longer."""
        settings = self.settings
        limit_ms = settings.call_limit_ms + settings.transaction_timeout_ms
        for one in member.transactional_ids:
            making = self.broker.producer(one, transaction_timeout_ms=settings.transaction_timeout_ms)
            producer = await within_limit(making, limit_ms, f"fencing {one}")
            await close_within(settings.close_timeout_ms, producer.close(), "closing a producer", excused=BrokerError)
        self.memory.fenced.add(member.incarnation)

    async def _read(self, wanted: list[tuple[SourcePartition, int]]) -> None:
        """Read to behind appends that begin now: the owners are fenced, and all their commits lie below."""
        logs = self.identity.logs
        await self.own_ledger.confirm_offsets({logs.log_partition_of(place[1]) for place, _ in wanted})
        self.memory.read |= set(wanted)

    def _expects_release(self) -> bool:
        """Whether a member is to release a range, or leaves."""
        control = self.own_ledger.ledger.control
        is_leaving = any(i in self.heard.leaving and not m.expelled for i, m in control.members.items())
        return bool(control.moves.release_requests) or is_leaving

    async def _read_released(self) -> None:
        while self.heard.release_partitions:
            partitions, self.heard.release_partitions = self.heard.release_partitions, set()
            logs = self.identity.logs
            for log_partition in sorted({logs.log_partition_of(partition) for partition in partitions}):
                await self.own_ledger.read_partition(log_partition)
                self._on_end()

    async def _read_on(self, pause_ms: int) -> None:
        # The pause comes first: a read to all ends would hold up the read of a fresh release.
        await asyncio.sleep(pause_ms / 1000)
        await self.own_ledger.read()

    # --- plans and sources -------------------------------------------------------------------------------------------

    async def _solve(self, question: PlanQuestion) -> None:
        """Solve a large plan beside the event loop."""
        self.memory.answer = await asyncio.to_thread(answer_of, question)

    async def _look(self, topics: list[str]) -> None:
        """Look source topics up. Raises SourceError, BrokerError."""
        try:
            found = await self.sources.look(self.own_ledger.ledger.control, topics)
        except StateTopicGrown:
            if self._is_heard_with_state(topics):
                raise
            await asyncio.sleep(self.rules.interval_ms / 1000)  # a member with this state is heard soon, or expelled
            return
        self.memory.sources |= found
        self.memory.missing_topics |= set(topics) - found.keys()
        log_found_starts(found)
        self._looked_s = asyncio.get_running_loop().time()

    def _is_heard_with_state(self, topics: Sequence[str]) -> bool:
        """Whether a member at work keeps state of one of the topics."""
        own, members = self.identity.birth, self.own_ledger.ledger.control.members.values()
        living = [m for m in members if not m.expelled and stateful_in([m]).intersection(topics)]
        return any(
            m.birth == own or self.heard.silence_of(m.joined.instance, m.birth).was_heard(m.birth) for m in living
        )

    async def _look_again(self) -> None:
        """Look for new partitions of known sources. Raises SourceError, BrokerError."""
        grown = await self.sources.look_again(self.own_ledger.ledger.control, self.memory.sources)
        self.memory.sources |= grown
        log_found_starts(grown)

    async def _find_ends(self) -> None:
        """Ask for the ends of all sources, before a run until the group has caught up."""
        handled = self._view().present.handled
        started = sorted(self.own_ledger.ledger.control.started)
        places = [TopicPartition(*place) for place in started if place[0] in handled]
        marks = await within_limit(self.broker.watermarks(places), self.settings.call_limit_ms, "ends of the sources")
        self.memory.ends = tuple(PinnedEnd(*place, marks[place].high) for place in places)

    async def _look_level(self) -> None:
        was_level = self.catch_up_check.has_caught_up
        await self.catch_up_check.look()
        if self.catch_up_check.has_caught_up and not was_level:
            self._on_level()
        await asyncio.sleep(LEVEL_LOOK_MS / 1000)
