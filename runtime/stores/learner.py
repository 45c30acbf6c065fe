"""Copies of state that a process follows beside its work: of ranges that it shall own, or is to have at hand.

What is asked stands in the control log (COPY_ASKED). All points that are asked for of one source partition go in one
*pass* over its changelog, whatever for. One that comes later joins a pass that has not gone by its marker, else there
is one more. A pass that is *ready* (state/learning.py) goes on with all ready ones, over one reader: some connections
for all that is followed. What is planned, and what becomes of a record, is as in a restore (state/restore.py).

Rules:

- *Nobody writes a point that another one writes*: an older value would come to lie over a newer one. Points are the
  learner's from when they were released here to ``let_go``, which returns when its last write of them is through. It
  plans anew only when no write of the partition is under way.
- A marker is where the pass has read to, for the points that the pass has written: never more.
- What is not asked for any more stays on the disk with its marker.
- A copy that was held is thrown away only for the changelog that the logs know: the beacons are compared first.
- A broker that is away is waited for, without an end. What else a restore ends with ends the run, too.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from ...brokers.protocol import Batch, Broker, BrokerError
from ...brokers.waiting import bounded
from ...keyrange.ranges import KeyRange
from ...keyrange.steps import Steps
from ...offsets.control import LEARNER, STANDBY
from ...offsets.control_events import CopyAsked
from ...offsets.ledger import Place
from ...offsets.signals import Copy as CopyTold
from ...state.learning import (
    Budget,
    Nearness,
    Pace,
    Wanted,
    bytes_by_role,
    least_position,
    points_of,
    ranges_of,
    together,
    without,
)
from ...state.restore import Cleared, Plan, Writers, plan_restore
from ...state.tables import Copy
from ..settings import Settings
from ..watch.statistics import Copying
from .changelogs import CopyThreads, Fetches, ask_changelogs, errors_of, labels_of, unreadable
from .follower import Follower, StateThreads, Storage
from .restore import Restoring, check_beacons_of, say_cleared

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


class _Pass:
    """Points of one source partition that are read together. ``plan``: None until it is made, or made anew.

    ``position``: all below it is in the copy; ``high``: where the changelog ended at the last look.
    """

    def __init__(self, place: Place, follower: Follower, points: Steps[bool], position: int) -> None:
        self.place, self.source, self.copy = place, follower.changelog, follower.copy
        self.points, self.position, self.high = points, position, position
        self.plan: Plan | None = None
        self.pace, self.nearness = Pace(), Nearness()
        self.fetches = self.bytes = 0
        self.asked_s = 0.0
        """When the watermark that it reads to was asked for, by the loop's time."""
        self.level_s = self.marked_s = 0.0

    def join(self, points: Steps[bool]) -> None:
        """More points, whose markers it has not gone by."""
        self.points, self.plan = together([self.points, points]), None

    def drop(self, points: Steps[bool]) -> None:
        """These are not written from now on, but for a write that is under way."""
        self.points = without(self.points, points)
        if self.plan is not None:
            self.plan = self.plan.without(points)


class _Asked:
    """A copy that was asked for. ``bytes``: what its passes had written when it was."""

    def __init__(self, asked: CopyAsked, now_s: float) -> None:
        self.place: Place = (asked.topic, asked.partition)
        bands = [KeyRange(band.first, band.end) for band in asked.bands]
        self.wanted = Wanted(asked.move, points_of(bands), asked.role, asked.bytes_per_s)
        self.label = f"{asked.topic}[{asked.partition}] {', '.join(map(str, bands))} (move {asked.move}, {asked.role})"
        self.began_s, self.is_ready, self.bytes = now_s, False, 0


class Learner:
    """Of one process. ``storages``: where the state of its source partitions is kept, once they are open.

    ``tell`` is called with how far the copies have come, ``writers`` with a place whose copy is to be thrown away: who
    changed its state, by the logs as they are now. ``follow``, ``let_go``, ``release`` are called by who holds ranges.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        storages: Mapping[Place, Storage],
        wall_ms: Callable[[], int],
        threads: StateThreads,
    ) -> None:
        self.broker, self.settings, self.storages, self.wall_ms = broker, settings, storages, wall_ms
        self.tell: Callable[[tuple[CopyTold, ...]], None] = lambda _: None
        self.writers: Callable[[Place], Awaitable[Writers | None]] = _unknown
        self.budget = Budget()
        self.bytes_by_role = {LEARNER: 0, STANDBY: 0}
        self._state_threads = threads
        self._threads: CopyThreads | None = None
        self._asked: dict[int, _Asked] = {}
        self._owned: dict[Place, Steps[bool]] = {}
        """What somebody else writes here: who restores it, and then whoever works on it."""
        self._touched: dict[Place, Steps[bool]] = {}
        """What was followed since it was released: not all of its newest values may be there."""
        self._levels: dict[Place, Steps[float]] = {}
        """When the copy of points had all that was committed last, by the loop's time."""
        self._behind: list[_Pass] = []
        """Those that are not ready, in the order in which they have their turn."""
        self._following = _Reading(self, "following changelogs", ())
        self._writing: dict[Place, set[asyncio.Future[object]]] = {}
        self._changed, self._news = asyncio.Event(), asyncio.Event()

    # --- what is asked -----------------------------------------------------------------------------------------------

    def follow(self, copies: Iterable[CopyAsked]) -> None:
        """Have these copies, and no others. Raises StoreError."""
        now_s = asyncio.get_running_loop().time()
        known = {one.move: one for one in copies if isinstance(self._storage(one), Follower)}
        for move in self._asked.keys() - known.keys():
            ended = self._asked.pop(move)
            logger.info("the copy of %s is not followed any more", ended.label)
        new = [_Asked(one, now_s) for move, one in sorted(known.items()) if move not in self._asked]
        self._asked.update((one.wanted.move, one) for one in new)
        places = {one.place for one in self._asked.values()} | {one.place for one in self._passes()}
        for place in places:
            self._match(place)
        for one in new:
            self._say_begun(one)

    def _storage(self, asked: CopyAsked) -> Storage | None:
        return self.storages.get((asked.topic, asked.partition))

    def _match(self, place: Place) -> None:
        """What is read of a partition is what is asked for and not owned."""
        asked = together(one.wanted.points for one in self._asked.values() if one.place == place)
        wanted = without(asked, self._owned.get(place, Steps()))
        passes = self._passes(place)
        there = together(one.points for one in passes)
        self._drop(place, without(there, wanted))
        if ranges_of(new := without(wanted, there)):
            self._begin(place, new, passes)

    def _begin(self, place: Place, points: Steps[bool], passes: Sequence[_Pass]) -> None:
        follower = self.storages[place]
        assert isinstance(follower, Follower), "what is asked for has a copy"
        self._touched[place] = together([self._touched.get(place, Steps()), points])
        with errors_of(follower.changelog):
            position = least_position(points, follower.copy.markers())
        for one in passes:
            if one.position <= position:
                one.join(points)
                break
        else:
            self._behind.append(_Pass(place, follower, points, position))
        self._changed.set()

    def _drop(self, place: Place, points: Steps[bool]) -> None:
        for one in self._passes(place):
            one.drop(points)
        pieces = [(first, end, None) for first, end, _ in points.pieces()]
        if place in self._levels:
            self._levels[place] = self._levels[place].replace(pieces)

    def _passes(self, place: Place | None = None) -> list[_Pass]:
        """Those that have points, of a place or all."""
        passes = (*self._following.passes, *self._behind)
        return [one for one in passes if place in (None, one.place) and ranges_of(one.points)]

    # --- what is owned -----------------------------------------------------------------------------------------------

    def has_touched(self, place: Place, within: KeyRange) -> bool:
        """Whether anything of a range was followed since it was released: its copy has to be restored."""
        return bool(self._touched.get(place, Steps()).pieces(within.first, within.end))

    def owns(self, place: Place, ranges: Iterable[KeyRange]) -> None:
        """Others write these ranges here. What is begun from now on leaves them out."""
        points = points_of(ranges)
        self._owned[place] = together([self._owned.get(place, Steps()), points])
        self._touched[place] = without(self._touched.get(place, Steps()), points)
        self._drop(place, points)

    async def let_go(self, place: Place, ranges: Iterable[KeyRange]) -> None:
        """The same; returns when nothing is being written to them."""
        self.owns(place, ranges)
        await self._is_through(place)

    def release(self, place: Place, within: KeyRange) -> None:
        """Nobody here writes a range any more: what is asked for of it is followed from the next ``follow`` on."""
        self._owned[place] = without(self._owned.get(place, Steps()), points_of([within]))

    async def _is_through(self, place: Place) -> None:
        """Wait for the writes of a partition that are under way."""
        if writing := self._writing.get(place):
            await asyncio.wait(set(writing))

    async def write(self, place: Place, function: Callable[..., T], *arguments: object) -> T:
        """Have a thread write to the copy of a partition."""
        if self._threads is None:
            self._threads = CopyThreads(THREADS, "keylanes-learner", self.settings)
        writing = self._threads.begin(function, *arguments)
        under_way = self._writing.setdefault(place, set())
        under_way.add(writing)  # type: ignore[arg-type]  # nobody asks for its result here
        self._state_threads.large_writes += 1
        writing.add_done_callback(partial(self._has_written, under_way))
        return await self._threads.settled(writing)

    def _has_written(self, under_way: "set[asyncio.Future[object]]", writing: "asyncio.Future[object]") -> None:
        self._state_threads.large_writes -= 1
        under_way.discard(writing)

    # --- how far it is -----------------------------------------------------------------------------------------------

    def stale_ms(self, place: Place, point: int) -> int | None:
        """How old the copy of a point is, at most; None: there is none here that is whole, or it is owned."""
        level_s = self._levels.get(place, _NEVER).at(point)
        return None if level_s is None else int((asyncio.get_running_loop().time() - level_s) * 1000)

    def is_level(self, one: _Pass) -> None:
        """A pass has read to the watermark that was asked for at ``asked_s``."""
        one.level_s = one.asked_s
        levels = self._levels.get(one.place, _NEVER)
        self._levels[one.place] = levels.replace((first, end, one.asked_s) for first, end, _ in one.points.pieces())

    def has_looked(self, one: _Pass) -> None:
        """A pass knows better how far it is; whoever turns ready by that is told at once."""
        for asked in self._asked.values():
            if asked.place == one.place and (told := self._told(asked)) is not None:
                if told.is_ready and not asked.is_ready:
                    self._say_ready(asked)
                    self._news.set()
                asked.is_ready = told.is_ready

    def copies(self) -> tuple[CopyTold, ...]:
        """How far each copy is that was asked for, by move; one that is owned meanwhile is none."""
        told = (self._told(asked) for _, asked in sorted(self._asked.items()))
        return tuple(one for one in told if one is not None)

    def _told(self, asked: _Asked) -> CopyTold | None:
        points = without(asked.wanted.points, self._owned.get(asked.place, Steps()))
        passes = [one for one in self._passes(asked.place) if _overlap(one.points, points)]
        if not passes:
            return None
        levels = self._levels.get(asked.place, _NEVER)
        is_whole = all(
            level is not None for first, end, _ in points.pieces() for _, _, level in levels.all_pieces(first, end)
        )
        return CopyTold(
            asked.wanted.move,
            min(one.position for one in passes),
            max(one.high for one in passes),
            min(one.pace.bytes_per_s for one in passes),
            is_whole and all(one.nearness.is_ready for one in passes),
        )

    def statistics(self) -> Copying:
        """How many copies there are, how many of them are ready, and what was copied so far."""
        copies = self.copies()
        ready, sizes = sum(copy.is_ready for copy in copies), self.bytes_by_role
        return Copying(len(copies), ready, sizes[LEARNER], sizes[STANDBY])

    def roles(self, place: Place) -> dict[str, Steps[bool]]:
        """What the points of a partition are copied for: to be owned first of all."""
        found = {role: [a.wanted.points for a in self._of(place) if a.wanted.role == role] for role in _ROLES}
        return {role: together(points) for role, points in found.items() if points} or {STANDBY: Steps()}

    def bytes_per_s(self, one: _Pass) -> int:
        """How fast a pass may read; 0: as fast as it goes, which one of its copies may."""
        own = [asked.wanted.bytes_per_s for asked in self._of(one.place) if _overlap(asked.wanted.points, one.points)]
        limits = [asked.wanted.bytes_per_s for asked in self._asked.values() if asked.wanted.bytes_per_s]
        return 0 if 0 in own else min(limits, default=0)

    def _of(self, place: Place) -> list[_Asked]:
        return [asked for asked in self._asked.values() if asked.place == place]

    def _say_begun(self, asked: _Asked) -> None:
        passes = [one for one in self._passes(asked.place) if _overlap(one.points, asked.wanted.points)]
        asked.bytes = sum(one.bytes for one in passes)
        position = min((one.position for one in passes), default=0)
        logger.info("copying the state of %s, from position %d of its changelog", asked.label, position)

    def _say_ready(self, asked: _Asked) -> None:
        passes = [one for one in self._passes(asked.place) if _overlap(one.points, asked.wanted.points)]
        seconds = asyncio.get_running_loop().time() - asked.began_s
        size = max(0, sum(one.bytes for one in passes) - asked.bytes) / 1e6
        logger.info("the copy of %s is ready: %.1f MB in %.1f s", asked.label, size, seconds)

    # --- while it runs -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Copy and follow until cancelled. Raises StateError, StoreError."""
        readings: dict[asyncio.Task[None], _Reading] = {}
        telling = asyncio.ensure_future(self._tell_on())
        try:
            while True:
                self._changed.clear()
                self._begin_readings(readings)
                changed = asyncio.ensure_future(self._changed.wait())
                try:
                    await asyncio.wait([telling, changed, *readings], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                for task in [task for task in (telling, *readings) if task.done()]:
                    readings.pop(task, None)
                    task.result()
        finally:
            tasks = [telling, *readings]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._threads is not None:
                self._threads.shutdown()

    def _begin_readings(self, readings: "dict[asyncio.Task[None], _Reading]") -> None:
        going_on = [one for reading in readings.values() for one in reading.passes]
        self._behind = [one for one in self._behind if one in going_on or ranges_of(one.points)]
        free = self.settings.restore_partitions_max - sum(one in self._behind for one in going_on)
        new = [_Reading(self, "copying state", (one,)) for one in self._behind if one not in going_on][: max(0, free)]
        if self._following.passes and self._following not in readings.values():
            new.append(self._following)
        for reading in new:
            readings[asyncio.ensure_future(reading.run())] = reading

    def is_near(self, one: _Pass) -> None:
        """A pass is ready: it goes on with the others that are; with that of its partition it becomes one."""
        self._behind.remove(one)
        other = next((other for other in self._following.passes if other.place == one.place), None)
        if other is None:
            self._following.passes.append(one)
        else:
            other.bytes += one.bytes
            other.join(one.points)
            one.points = Steps()
        self._changed.set()

    async def _tell_on(self) -> None:
        """In each interval while there are copies, and at once when one is ready."""
        while True:
            if copies := self.copies():
                self.tell(copies)
            self._news.clear()
            try:
                async with asyncio.timeout(self.settings.heartbeat_interval_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                continue


class _Reading:
    """Passes over one reader, of different partitions: all those that are ready, or one that is not."""

    def __init__(self, learner: Learner, what: str, passes: Iterable[_Pass]) -> None:
        self.learner, self.what, self.passes = learner, what, list(passes)
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
        learner = self.learner
        sources = labels_of(one.source for one in self.passes)
        fetches = Fetches(learner.broker, learner.settings, {}, f"{self.what}, {sources}")
        try:
            while await self._has_planned():
                fetches.assign({one.source: one.position for one in self.passes if one.plan is not None})
                if fetches.positions:
                    await self._take(fetches)
                else:
                    await asyncio.sleep(LOOK_MS / 1000)
                await self._look_when_due()
        finally:
            await fetches.close()

    async def _has_planned(self) -> bool:
        """Make the plans that lack; False: there is nothing left to be read here."""
        lacking = [one for one in self.passes if one.plan is None and ranges_of(one.points)]
        if lacking:
            await self._plan(lacking)
        is_behind = self is not self.learner._following
        for one in list(self.passes):
            if not ranges_of(one.points):
                self.passes.remove(one)
                if is_behind:
                    self.learner._behind.remove(one)
                    self.learner._changed.set()
            elif is_behind and one.nearness.is_ready and one.plan is not None:
                self.passes.remove(one)
                self.learner.is_near(one)
        return bool(self.passes)

    # --- plans -------------------------------------------------------------------------------------------------------

    async def _plan(self, passes: Sequence[_Pass]) -> None:
        """As a restore does. One whose points change meanwhile has its plan the next time. The clock is read before the
        watermarks: what is above them is younger.
        """
        learner = self.learner
        now_ms, asked_s = learner.wall_ms(), asyncio.get_running_loop().time()
        marks, retention_ms = await ask_changelogs(learner.broker, learner.settings, [one.source for one in passes])
        for one in passes:
            await learner._is_through(one.place)
            points = one.points
            start, high = marks[one.source]
            with errors_of(one.source):
                markers = await learner.write(one.place, one.copy.markers)
                plan = plan_restore(ranges_of(points), markers, start, high, now_ms, retention_ms[one.source.topic])
                if any(cleared.reason for cleared in plan.cleared):
                    await self._check(one, plan)
                if one.points is not points:
                    continue
                if plan.cleared:
                    say_cleared(one.source, plan)
                    await learner.write(one.place, _clear, one.copy, plan.cleared)
            if one.points is points:
                one.plan, one.position, one.high, one.asked_s = plan, plan.position, high, asked_s
                self._judge(one)

    async def _check(self, one: _Pass, plan: Plan) -> None:
        """What is thrown away was held: it may be all that is left of the state."""
        writers = await self.learner.writers(one.place)
        source = Restoring(one.source, one.copy, (), writers, lambda: None)
        await check_beacons_of(self.learner.broker, self.learner.settings, [(source, plan)])

    async def _look_when_due(self) -> None:
        """Where the changelogs end now: soon where that is to show whether a copy is ready, else in each interval."""
        learner, now_s = self.learner, asyncio.get_running_loop().time()
        is_wanted = any(not one.nearness.is_ready and one.position >= one.high for one in self.passes)
        wait_ms = LOOK_MS if is_wanted else learner.settings.heartbeat_interval_ms
        passes = [one for one in self.passes if one.plan is not None]
        if not passes or (now_s - self._looked_s) * 1000 < wait_ms:
            return
        self._looked_s = now_s
        now_ms, limit_ms = learner.wall_ms(), learner.settings.call_limit_ms
        asked = learner.broker.watermarks([one.source for one in passes])
        marks = await bounded(asked, limit_ms, "watermarks of changelogs")
        for one in passes:
            high = marks[one.source].high
            if one.plan is None:
                continue
            if high < one.position:  # it was truncated, or made anew
                one.plan = None
                continue
            one.high = high
            if one.position >= one.plan.high:
                one.plan, one.asked_s = one.plan.further(one.position, high, now_ms), now_s
            self._judge(one)
            await self._renew(one, now_s)

    def _judge(self, one: _Pass) -> None:
        """It was looked where the changelog ends."""
        assert one.plan is not None, "it has one"
        if one.position >= one.plan.high:
            self.learner.is_level(one)
        one.nearness.look(one.high - one.position, one.pace.offsets_per_s, one.fetches)
        self.learner.has_looked(one)

    async def _renew(self, one: _Pass, now_s: float) -> None:
        """The marker of what nothing changes gets old, too."""
        if one.plan is not None and one.position >= one.plan.high and now_s - one.marked_s > MARKS_EVERY_S:
            one.marked_s = now_s
            with errors_of(one.source):
                await self.learner.write(one.place, one.copy.write, (), one.plan.marks(one.position))

    # --- records -----------------------------------------------------------------------------------------------------

    async def _take(self, fetches: Fetches) -> None:
        """What comes next goes into the copies. At the pace that is allowed, which is waited for behind each batch."""
        learner, loop = self.learner, asyncio.get_running_loop()
        by_source = {one.source: one for one in self.passes}
        began_s = loop.time()
        with unreadable():
            batches = await fetches.fetch(FETCH_RECORDS_MAX)
        for batch in batches:
            one = by_source[batch.source]
            if one.plan is None:  # more points have joined it: it is read again from their markers
                continue
            is_behind, before = one.position < one.high, one.position
            size = await self._write(one, one.plan, batch)
            if limit := learner.bytes_per_s(one):
                await asyncio.sleep(learner.budget.spend(size, limit, loop.time()))
            if is_behind:
                one.pace.add(batch.offset_next - before, size, loop.time() - began_s)
            began_s = loop.time()
        for one in self.passes:
            one.fetches += 1

    async def _write(self, one: _Pass, plan: Plan, batch: Batch) -> int:
        """Write what a batch changes, with its markers; how much was read."""
        learner = self.learner
        with errors_of(one.source):
            read, written = await learner.write(one.place, _write, one.copy, plan, batch, learner.roles(one.place))
        one.position, one.marked_s = batch.offset_next, asyncio.get_running_loop().time()
        one.high = max(one.high, one.position)
        for role, size in written.items():
            learner.bytes_by_role[role] += size
            one.bytes += size
        if one.plan is not None and plan.high <= one.position and one.level_s != one.asked_s:
            learner.is_level(one)
            learner.has_looked(one)
        return read


def _write(copy: Copy, plan: Plan, batch: Batch, roles: Mapping[str, Steps[bool]]) -> tuple[int, dict[str, int]]:
    changes = plan.apply(batch.records)
    copy.write(changes, plan.marks(batch.offset_next))
    read = sum([len(record.key or b"") + len(record.value or b"") for record in batch.records])
    return read, bytes_by_role(changes, roles)


def _clear(copy: Copy, cleared: Iterable[Cleared]) -> None:
    for within, _ in cleared:
        copy.clear(within)


def _overlap(points: Steps[bool], others: Steps[bool]) -> bool:
    return any(points.pieces(first, end) for first, end, _ in others.pieces())


async def _unknown(place: Place) -> Writers | None:  # noqa: ARG001  # nobody has said who they are
    return None


_NEVER: Final[Steps[float]] = Steps()
_ROLES: Final = (LEARNER, STANDBY)
