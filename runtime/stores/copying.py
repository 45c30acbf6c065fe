"""Passes over changelogs: what is read of them goes into the copies, in threads, with its markers.

A pass has the points of one source partition that are read together. A reading has passes of different partitions over
one reader: one pass that is not ready, or all that are. Which there are is decided in ``learner.py``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from ...brokers.patience import within_limit
from ...brokers.protocol import Batch, Broker, BrokerError, CorruptRecord
from ...keyrange.steps import Steps
from ...offsets.ledger import SourcePartition
from ...state.copy_readiness import CopySpeed, Nearness, bytes_by_role, points_of, ranges_of, together, without
from ...state.restore import Cleared, Plan, Writers, plan_restore
from ...state.tables import LocalCopy
from ..settings import Settings
from .changelogs import CopyThreads, Fetches, ask_changelogs, errors_of, labels_of, unreadable
from .follower import OwnCopy, StateThreads
from .restore import CopyToRestore, check_beacons_of, say_cleared

T = TypeVar("T")

logger = logging.getLogger("keylanes")

FETCH_RECORDS_MAX: Final = 2_000
LOOK_MS: Final = 100
"""Between two looks at where the changelog of a copy ends that is not ready."""
AWAY_WAIT_MS: Final = 500
"""After a broker did not answer for long."""
MARKS_EVERY_S: Final = 600.0
"""The marker of a copy that nothing changes is renewed so often: an old one means reading from the start."""
THREADS: Final = 2


class ClockReading(NamedTuple):
    """When something was asked for, by the loop's time and by the wall clock: one stands still with the machine, the
    other can be set back.
    """

    at_s: float
    at_ms: int


class CopyPass:
    """Points of one source partition that are read together. ``plan``: None until it is made, or made anew.

    ``position``: all below it is in the copy; ``high``: where the changelog ended at the last look.
    """

    def __init__(self, place: SourcePartition, follower: OwnCopy, points: Steps[bool], position: int) -> None:
        self.place, self.source, self.copy = place, follower.changelog, follower.copy
        self.points, self.position, self.high = points, position, position
        self.plan: Plan | None = None
        self.pace, self.nearness = CopySpeed(), Nearness()
        self.fetches = self.bytes = 0
        self.asked = self.level = ClockReading(0.0, 0)
        """When the watermark that it reads to was asked for, and the last one to which it has read."""
        self.marked_s = 0.0

    def join(self, points: Steps[bool]) -> None:
        """More points, whose markers it has not gone by."""
        self.points, self.plan = together([self.points, points]), None

    def drop(self, points: Steps[bool]) -> None:
        """These are not written from now on, but for a write that is under way."""
        left = without(self.points, points)
        if left == self.points:  # a plan that is being made stays right
            return
        self.points = left
        if self.plan is not None:
            self.plan = self.plan.without(points)


class CopyWrites:
    """What is being written to copies, by place."""

    def __init__(self, settings: Settings, threads: StateThreads) -> None:
        self.settings = settings
        self._state_threads = threads
        self._threads: CopyThreads | None = None
        self._writing: dict[SourcePartition, set[asyncio.Future[Any]]] = {}

    async def is_through(self, place: SourcePartition) -> None:
        """Wait for the writes of a partition that are under way."""
        if writing := self._writing.get(place):
            await asyncio.wait(set(writing))

    async def run(self, place: SourcePartition, function: Callable[..., T], *arguments: object) -> T:
        """Have a thread write to the copy of a partition."""
        if self._threads is None:
            self._threads = CopyThreads(THREADS, "keylanes-learner", self.settings)
        writing = self._threads.begin(function, *arguments)
        under_way = self._writing.setdefault(place, set())
        under_way.add(writing)
        self._state_threads.large_writes += 1
        writing.add_done_callback(partial(self._has_written, under_way))
        return await self._threads.wait_for_thread(writing)

    def _has_written(self, under_way: "set[asyncio.Future[Any]]", writing: "asyncio.Future[Any]") -> None:
        self._state_threads.large_writes -= 1
        under_way.discard(writing)

    def shutdown(self) -> None:
        """Let the threads end; a second call does nothing."""
        if self._threads is not None:
            self._threads.shutdown()


class Host(Protocol):
    """Who has the passes."""

    @property
    def broker(self) -> Broker: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def wall_ms(self) -> Callable[[], int]: ...
    @property
    def writers(self) -> Callable[[SourcePartition], Awaitable[Writers | None]]:
        """Who changed the state of a place, by the logs as they are now."""

    @property
    def writes(self) -> CopyWrites: ...

    def roles(self, place: SourcePartition) -> dict[str, Steps[bool]]:
        """What the points of a place are copied for."""

    def has_read(self, one: CopyPass, read: int, written: Mapping[str, int]) -> None:
        """A pass has read so much, and written so much by role."""

    def wait_s(self, passes: Sequence[CopyPass]) -> float:
        """For so many seconds passes shall read nothing more, at the pace that is allowed."""

    def is_level(self, one: CopyPass) -> None:
        """A pass has read to the watermark that was asked for at ``asked``."""

    def has_lost(self, one: CopyPass, points: Steps[bool]) -> None:
        """What a pass had of these points is thrown away."""

    def has_looked(self, one: CopyPass) -> None:
        """A pass knows better how far it is."""

    def has_ended(self, one: CopyPass, reading: "Reading") -> bool:
        """Whether a pass is not for this reading any more: it has no points, or is ready and goes on with others."""


class Reading:
    """Passes over one reader, of different partitions: all those that are ready, or one that is not."""

    def __init__(self, host: Host, what: str, passes: Iterable[CopyPass]) -> None:
        self.host, self.what, self.passes = host, what, list(passes)
        self._looked_s = -1.0

    async def run(self) -> None:
        """Until it has no passes. Raises StateError, StoreError."""
        while self.passes:
            try:
                await self._read()
            except BrokerError as error:
                logger.warning("%s goes on as soon as it can: %s", self.what, error)
                for one in self.passes:
                    one.plan = None
                await asyncio.sleep(AWAY_WAIT_MS / 1000)

    async def _read(self) -> None:
        host = self.host
        sources = labels_of(one.source for one in self.passes)
        fetches = Fetches(host.broker, host.settings, {}, f"{self.what}, {sources}")
        try:
            while await self._has_planned():
                fetches.assign({one.source: one.position for one in self.passes if one.plan is not None})
                wait_s = host.wait_s(self.passes) if fetches.positions else LOOK_MS / 1000
                if wait_s > 0:
                    await asyncio.sleep(min(wait_s, LOOK_MS / 1000))
                else:
                    await self._take(fetches)
                await self._look_when_due()
        finally:
            await fetches.close()

    async def _has_planned(self) -> bool:
        """Make the plans that lack; False: there is nothing left to be read here."""
        lacking = [one for one in self.passes if one.plan is None and ranges_of(one.points)]
        if lacking:
            await self._plan(lacking)
        self.passes = [one for one in self.passes if not self.host.has_ended(one, self)]
        return bool(self.passes)

    # --- plans -------------------------------------------------------------------------------------------------------

    async def _plan(self, passes: Sequence[CopyPass]) -> None:
        """As a restore does. One whose points change meanwhile has its plan the next time. The clock is read before the
        watermarks: what is above them is younger.
        """
        host = self.host
        now_ms, now_s = host.wall_ms(), asyncio.get_running_loop().time()
        asked = [(one, one.points) for one in passes]
        marks, retention_ms = await ask_changelogs(host.broker, host.settings, [one.source for one in passes])
        for one, points in asked:
            await host.writes.is_through(one.place)
            if one.points is not points:  # what has joined may be farther than the watermark that was asked for before
                continue
            start, high = marks[one.source]
            with errors_of(one.source):
                markers = await host.writes.run(one.place, one.copy.markers)
                plan = plan_restore(ranges_of(points), markers, start, high, now_ms, retention_ms[one.source.topic])
                if any(cleared.reason for cleared in plan.cleared):
                    await self._check(one, plan)
                if one.points is not points:
                    continue
                if plan.cleared:
                    if lost := [cleared.within for cleared in plan.cleared if cleared.reason]:
                        one.nearness = Nearness()
                        host.has_lost(one, points_of(lost))
                    say_cleared(one.source, plan)
                    await host.writes.run(one.place, _clear, one.copy, plan.cleared)
            if one.points is points:
                one.plan, one.position, one.high, one.asked = plan, plan.position, high, ClockReading(now_s, now_ms)
                self._judge(one)

    async def _check(self, one: CopyPass, plan: Plan) -> None:
        """What is thrown away was held: it may be all that is left of the state. Others write on meanwhile, so the
        beacons are looked for up to where the changelog ends when its writers are known.
        """
        host = self.host
        writers = await host.writers(one.place)
        marks, _ = await ask_changelogs(host.broker, host.settings, [one.source])
        source = CopyToRestore(one.source, one.copy, (), writers, lambda: None)
        until = plan.further(plan.position, marks[one.source].high, plan.time_ms)
        await check_beacons_of(host.broker, host.settings, [(source, until)])

    async def _look_when_due(self) -> None:
        """Where the changelogs end now: soon where that is to show whether a copy is ready, else in each interval."""
        host, now_s = self.host, asyncio.get_running_loop().time()
        is_wanted = any(not one.nearness.is_ready and one.position >= one.high for one in self.passes)
        wait_ms = LOOK_MS if is_wanted else host.settings.heartbeat_interval_ms
        passes = [one for one in self.passes if one.plan is not None]
        if not passes or (now_s - self._looked_s) * 1000 < wait_ms:
            return
        self._looked_s = now_s
        now_ms, limit_ms = host.wall_ms(), host.settings.call_limit_ms
        asked = host.broker.watermarks([one.source for one in passes])
        marks = await within_limit(asked, limit_ms, "watermarks of changelogs")
        for one in passes:
            high = marks[one.source].high
            if one.plan is None:
                continue
            if high < one.position:  # it was truncated, or made anew
                one.plan = None
                continue
            one.high = high
            if one.position >= one.plan.high:
                one.plan, one.asked = one.plan.further(one.position, high, now_ms), ClockReading(now_s, now_ms)
            self._judge(one)
            await self._renew(one, now_s)

    def _judge(self, one: CopyPass) -> None:
        """It was looked where the changelog ends."""
        assert one.plan is not None, "it has one"
        if one.position >= one.plan.high:
            self.host.is_level(one)
        one.nearness.look(one.high - one.position, one.pace.offsets_per_s, one.fetches)
        self.host.has_looked(one)

    async def _renew(self, one: CopyPass, now_s: float) -> None:
        """The marker of what nothing changes gets old, too."""
        if one.plan is not None and one.position >= one.plan.high and now_s - one.marked_s > MARKS_EVERY_S:
            one.marked_s = now_s
            with errors_of(one.source):
                await self.host.writes.run(one.place, one.copy.write, (), one.plan.marks(one.position))

    # --- records -----------------------------------------------------------------------------------------------------

    async def _take(self, fetches: Fetches) -> None:
        """What comes next goes into the copies. How fast that was counts with the wait behind it."""
        loop = asyncio.get_running_loop()
        by_source = {one.source: one for one in self.passes}
        began_s = loop.time()
        with unreadable(CorruptRecord):  # what else is not there is looked at by the next plan
            batches = await fetches.fetch(FETCH_RECORDS_MAX)
        for batch in batches:
            one = by_source[batch.source]
            if one.plan is None:  # more points have joined it: it is read again from their markers
                continue
            if one.plan.is_outlived(one.position, self.host.wall_ms()):  # it, or this machine, stood still for days
                one.plan = None
                continue
            is_behind, before = one.position < one.high, one.position
            size = await self._write(one, one.plan, batch)
            ended_s = max(began_s, loop.time() + self.host.wait_s((one,)))
            if is_behind:
                one.pace.add(batch.offset_next - before, size, ended_s - began_s)
            began_s = ended_s
        for one in self.passes:
            one.fetches += 1

    async def _write(self, one: CopyPass, plan: Plan, batch: Batch) -> int:
        """Write what a batch changes, with its markers; how much was read."""
        host = self.host
        with errors_of(one.source):
            read, written = await host.writes.run(one.place, _write, one.copy, plan, batch, host.roles(one.place))
        one.position, one.marked_s = batch.offset_next, asyncio.get_running_loop().time()
        one.high = max(one.high, one.position)
        if one.plan is not None and plan.high <= one.position and one.level != one.asked:
            host.is_level(one)
            host.has_looked(one)
        host.has_read(one, read, written)
        return read


def _write(copy: LocalCopy, plan: Plan, batch: Batch, roles: Mapping[str, Steps[bool]]) -> tuple[int, dict[str, int]]:
    changes = plan.apply(batch.records)
    copy.write(changes, plan.marks(batch.offset_next))
    read = sum([len(record.key or b"") + len(record.value or b"") for record in batch.records])
    return read, bytes_by_role(changes, roles)


def _clear(copy: LocalCopy, cleared: Iterable[Cleared]) -> None:
    for within, _ in cleared:
        copy.clear(within)
