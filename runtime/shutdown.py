"""How a process stops, in order and in time.

1. *Leaves.* The process says that it stops, and works on, while others copy its state and are granted its ranges. The
   step ends when the process holds nothing, when the coordinator dismisses the process, after ``leave_ms``, or at a
   second order to stop. A process without state, without others to copy the state, or soon back under its name begins
   with the next step.
2. *Drains.* The process reads no more, and lets running handlers come to their end, for ``drain_timeout_ms``.
3. *Commits* all done records, and releases all ranges still held; then waits until the group goes on without the
   process.
4. *Closes.*

The stop ends within ``leave_ms`` + ``drain_timeout_ms`` + ``close_timeout_ms``, also when the broker does not answer.
Each step has a time at which the step is over; unused time goes to the next steps.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from ..brokers.patience import Patience, ask_until_answered, close_within, fatal_of, within_limit
from ..brokers.protocol import BrokerError
from ..errors import BrokerUnavailable, FatalError, LogError
from .engine.commit import CommitCycle
from .engine.slots import Slots
from .holding import Holding
from .logs.own_ledger import Expelled
from .membership.group import Group
from .run_log import RunLog
from .settings import Settings
from .work import Work

logger = logging.getLogger("keylanes")

TICK_MS: Final = 10
SETTLE_SHARE: Final = 0.2
"""In this last part of the drain no record is begun: the running records shall come to their end."""

# The time at which each step behind the drain is over, as a part of ``close_timeout_ms``.
CANCELLED: Final = 0.2  # running handlers
COMMITTED: Final = 0.6  # the last transactions
LEFT: Final = 0.7  # the producer is closed, and the group goes on without the process
TASKS_ENDED: Final = 0.7  # all tasks of the run, and its handlers
TOLD: Final = 0.75  # the group knows that the process is gone, in case the process did not leave in order
CONNECTIONS_CLOSED: Final = 0.8  # of the logs, the signals and the readers
COPIES_CLOSED: Final = 0.9  # of the state
BROKER_CLOSED: Final = 0.95
ENDED: Final = 1.0


class StopBudget:
    """The time limits of a stop, by the loop's time. Before the stop begins, each step has its full time."""

    def __init__(self, settings: Settings) -> None:
        self.drain_s = settings.drain_timeout_ms / 1000
        self.close_s = settings.close_timeout_ms / 1000
        self._drained_by_s: float | None = None
        """The end of the drain. None: the process neither drains nor closes."""

    @property
    def has_begun(self) -> bool:
        """Whether the stop has begun to drain or to close, and its end is fixed."""
        return self._drained_by_s is not None

    def begin_drain(self, now_s: float) -> None:
        """Begin the drain: running handlers have ``drain_s`` from now on."""
        self._drained_by(now_s + self.drain_s)

    def begin_close(self, now_s: float) -> None:
        """Begin the closing: from now on nobody waits for running handlers."""
        self._drained_by(now_s)

    def left_s(self, part: float, now_s: float) -> float:
        """The seconds left to a step that is over after ``part`` of ``close_timeout_ms``, 0.0 or more. Part 0.0 is the
        end of the drain.
        """
        by_s = now_s if self._drained_by_s is None else self._drained_by_s
        return max(0.0, by_s + part * self.close_s - now_s)

    def _drained_by(self, at_s: float) -> None:
        """Set the end of the drain; a further call may set an earlier end, and never a later end."""
        self._drained_by_s = at_s if self._drained_by_s is None else min(self._drained_by_s, at_s)


class Shutdown:
    """The stop of a run. ``is_over``: whether the run ends anyway; ``has_failed``: whether an error ends the run, and
    nothing waits.
    """

    def __init__(
        self,
        group: Group,
        holding: Holding,
        slots: Slots,
        run_log: RunLog,
        is_over: Callable[[], bool],
        has_failed: Callable[[], bool],
    ) -> None:
        self.group = group
        self.holding = holding
        self.slots = slots
        self.run_log = run_log
        self.settings = group.settings
        self.is_over = is_over
        self.has_failed = has_failed
        self.budget = StopBudget(self.settings)
        self.unclosed = 0
        """The number of parts that had no time left to close."""
        self.stop_ordered = asyncio.Event()
        """Set by the first order to stop."""
        self.is_at_once = False
        """A second order to stop: the process waits neither for other processes nor for handlers."""

    def order_stop(self, now_s: float, *, at_once: bool = False) -> None:
        """Order the stop; ``at_once``: the process neither works on nor drains."""
        self.stop_ordered.set()
        if at_once:
            self.is_at_once = True
            self.budget.begin_close(now_s)

    def left_s(self, part: float) -> float:
        """See ``StopBudget.left_s``."""
        return self.budget.left_s(part, asyncio.get_running_loop().time())

    def left_ms(self, part: float) -> int:
        """``left_s`` in milliseconds."""
        return int(self.left_s(part) * 1000)

    def begin_close(self) -> None:
        """See ``StopBudget.begin_close``."""
        self.budget.begin_close(asyncio.get_running_loop().time())

    async def raise_if_out(self, error: Exception) -> None:
        """Raises Expelled when the application goes on without this process, which found damage.

        1. This process stands still, or waits for its disk.
        2. This process is expelled. Another process is granted the ranges, processes and commits.
        3. Retention takes the processed records, the offset log is trimmed, or the changelog goes on.
        4. This process goes on, misses records of its ranges, or finds state newer than its own. Nothing is damaged.
        """
        limit_ms = self.left_ms(COMMITTED) if self.budget.has_begun else self.settings.call_limit_ms
        patience = Patience(limit_ms, "asking whether this process takes part")
        try:
            await within_limit(ask_until_answered(self.group.own_ledger.confirm, patience), limit_ms, patience.what)
        except Expelled as out:
            raise out from error
        except (BrokerError, LogError) as unread:
            logger.warning("whether this process still takes part can't be read: %s", unread)

    # --- 1: leaving --------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Say that this process stops, and work on until others have copied its state and taken its ranges."""
        self.group.member_signals.leave()
        if not self._is_needed() or self._may_go():
            return
        leave_ms, loop = self.settings.leave_ms, asyncio.get_running_loop()
        self.run_log.log_leaving(leave_ms)
        until_s = loop.time() + leave_ms / 1000
        await _until(lambda: self.is_over() or self.is_at_once or self._may_go(), lambda: until_s - loop.time())
        if not (self.is_over() or self.is_at_once or self._may_go()):
            self.run_log.log_early_leave(leave_ms)

    def _is_needed(self) -> bool:
        """Whether this process has, or may have, state for other members to copy."""
        member_signals, own_ledger = self.group.member_signals, self.group.own_ledger
        if (
            not (self.group.stores and self.settings.leave_ms)
            or member_signals.is_alone
            or member_signals.returns_in_ms
        ):
            return False
        return any(
            m.incarnation != own_ledger.incarnation and not m.expelled
            for m in own_ledger.ledger.control.unfenced_members()
        )

    def _may_go(self) -> bool:
        """Whether the leaving of this process is over."""
        return self.holding.holds_nothing() or self.holding.has_left() or self.group.is_dismissed()

    # --- 2 and 3: the end of the work --------------------------------------------------------------------------------

    async def drain(self, work: Work, committing: "asyncio.Task[None]") -> None:
        """Stop reading, let workers finish their records until the deadline, and commit the done records."""
        self.group.member_signals.leave()
        work.stop_reading()
        slots, budget, loop = self.slots, self.budget, asyncio.get_running_loop()
        budget.begin_drain(loop.time())
        settle_s = SETTLE_SHARE * budget.drain_s
        transactions = work.cycle.transactions

        def has_enough() -> bool:
            return transactions.is_throttled or (slots.is_idle() and not slots.has_paused)

        await self._until_or_failed(has_enough, lambda: self.left_s(0.0) - settle_s)
        # Queued records are left for the next start. Workers that went on would always have more to commit, and under a
        # quota the commit of the done records takes long already.
        slots.stop()
        await self._until_or_failed(slots.is_idle, lambda: self.left_s(0.0))
        # Before the last commit: a handler that ended behind the commit would run again, although its work was done.
        running, done_before = slots.count_running(), slots.records_done
        await slots.close(self.left_s(CANCELLED))
        done_meanwhile = slots.records_done - done_before
        self.run_log.log_dropped(running - done_meanwhile, at_once=self.is_at_once)
        for run in work.runs:
            run.dispatch.cut_off()
        await self._commit(work, committing)
        if not self.has_failed():
            self.begin_close()
            await self.group.leave(self.left_s(LEFT))

    async def _commit(self, work: Work, committing: "asyncio.Task[None]") -> None:
        """Commit the last transactions, which release all ranges. Raises a FatalError."""
        cycle = work.cycle
        await self._until_or_failed(lambda: not cycle.is_sending, lambda: self.left_s(COMMITTED))
        committing.cancel()
        _, pending = await asyncio.wait([committing], timeout=self.left_s(COMMITTED))
        if self.has_failed():
            return
        if cycle.is_sending or pending:
            raise BrokerUnavailable("stopped without the last commit: the broker did not take it in time")
        limit_ms = self.left_ms(COMMITTED)
        try:
            await within_limit(_commit_rest(cycle, work.holding.leave()), limit_ms, "the last commit")
        except BrokerError as error:
            if not limit_ms:
                raise BrokerUnavailable(
                    "stopped without the last commit: no time was left (close_timeout_ms)"
                ) from error
            raise fatal_of(error) from error
        # Close the producer before leaving: else the fence of the own incarnation would refuse the open producer.
        await close_within(self.left_ms(LEFT), cycle.transactions.close(), "closing a producer", excused=BrokerError)

    async def _until_or_failed(self, is_reached: Callable[[], bool], left_s: Callable[[], float]) -> None:
        await _until(lambda: is_reached() or self.has_failed(), left_s)

    # --- 4: closing --------------------------------------------------------------------------------------------------

    async def close_part(self, close: Callable[[], Coroutine[Any, Any, None]], by: float) -> None:
        """Close a part of the run within the limit of step ``by``. An error is only logged: the error that ended the
        run must come out.
        """
        limit, known = self.left_ms(by), (BrokerError, FatalError)
        self.unclosed += limit == 0
        await close_within(limit, close(), "closing", excused=known, level=logging.WARNING if limit else logging.DEBUG)


async def _until(is_reached: Callable[[], bool], left_s: Callable[[], float]) -> None:
    """Wait for a condition as long as time is left."""
    while not is_reached() and left_s() > 0:  # noqa: ASYNC110  # only at the end
        await asyncio.sleep(TICK_MS / 1000)


async def _commit_rest(cycle: CommitCycle, released: Sequence["asyncio.Future[None]"]) -> None:
    """Commit the done records and the release of all ranges."""
    while (has_more := await cycle.commit()) or not all(one.done() for one in released):  # noqa: ASYNC110  # commits
        await asyncio.sleep(0 if has_more else TICK_MS / 1000)
