"""Copies of state that a process follows beside its work: of ranges that it shall own, or is to have at hand.

What is asked stands in the control log (COPY_ASKED). All points that are asked for of one source partition go in one
*pass* over its changelog, whatever for. One that comes later joins a pass that has not gone by its marker, else there
is one more. A pass that is *ready* (state/copy_readiness.py) goes on with all ready ones, over one reader: some
connections for all that is followed. What is planned, and what becomes of a record, is as in a restore
(state/restore.py).

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
from typing import Final

from ...brokers.patience import rest
from ...brokers.protocol import Broker
from ...keyrange.ranges import KeyRange
from ...keyrange.steps import Steps
from ...offsets.control import LEARNER, STANDBY
from ...offsets.control_events import CopyAsked
from ...offsets.ledger import SourcePartition
from ...offsets.signals import Copy as CopyTold
from ...state.copy_readiness import (
    ByteRateLimit,
    CopyRequest,
    least_position,
    points_of,
    ranges_of,
    together,
    without,
)
from ...state.restore import Writers
from ..settings import Settings
from ..watch.statistics import Copying
from ..watch.story import REPORT_INTERVAL_MS
from .changelogs import errors_of
from .copying import ClockReading, CopyPass, CopyWrites, Reading
from .follower import OwnCopy, StateThreads, Storage

logger = logging.getLogger("keylanes")


class _CopyWanted:
    """A copy that was asked for. ``bytes``: what its passes had written when it was."""

    def __init__(self, asked: CopyAsked, now_s: float) -> None:
        self.place: SourcePartition = asked.topic_partition
        bands = [KeyRange(band.first, band.end) for band in asked.bands]
        self.wanted = CopyRequest(asked.move, points_of(bands), asked.role, asked.bytes_per_s)
        self.label = f"{asked.topic}[{asked.partition}] {', '.join(map(str, bands))} (move {asked.move}, {asked.role})"
        self.began_s, self.is_ready, self.bytes = now_s, False, 0


class Learner:
    """Of one process. ``storages``: where the state of its source partitions is kept, once they are open.

    ``tell`` is called with how far the copies have come, ``writers`` with a place whose copy is to be thrown away: who
    changed its state, by the logs as they are now. ``compare`` is called with a place whose copy answers from now on.
    ``follow``, ``let_go``, ``release`` are called by who holds ranges.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        storages: Mapping[SourcePartition, Storage],
        wall_ms: Callable[[], int],
        threads: StateThreads,
        compare: Callable[[SourcePartition], None],
    ) -> None:
        self.broker, self.settings, self.storages, self.wall_ms = broker, settings, storages, wall_ms
        self.compare = compare
        self.tell: Callable[[tuple[CopyTold, ...]], None] = lambda _: None
        self.writers: Callable[[SourcePartition], Awaitable[Writers | None]] = _unknown
        self._budget = ByteRateLimit()
        self._bytes = {LEARNER: 0, STANDBY: 0}
        self.writes = CopyWrites(settings, threads)
        self._asked: dict[int, _CopyWanted] = {}
        self._owned: dict[SourcePartition, Steps[bool]] = {}
        """What somebody else writes here: who restores it, and then whoever works on it."""
        self._touched: dict[SourcePartition, Steps[bool]] = {}
        """What was followed since it was released: not all of its newest values may be there."""
        self._levels: dict[SourcePartition, Steps[ClockReading]] = {}
        """When the copy of points had all that was committed last."""
        self._behind: list[CopyPass] = []
        """Those that are not ready. What has come furthest is the next: it is soon ready."""
        self._following = Reading(self, "following changelogs", ())
        self._changed, self._news = asyncio.Event(), asyncio.Event()

    # --- what is asked -----------------------------------------------------------------------------------------------

    def follow(self, copies: Iterable[CopyAsked]) -> None:
        """Have these copies, and no others. Raises StoreError."""
        now_s = asyncio.get_running_loop().time()
        known = {one.move: one for one in copies if isinstance(self._storage(one), OwnCopy)}
        for move in self._asked.keys() - known.keys():
            ended = self._asked.pop(move)
            logger.info("the copy of %s is not followed any more", ended.label)
        new = [_CopyWanted(one, now_s) for move, one in sorted(known.items()) if move not in self._asked]
        self._asked.update((one.wanted.move, one) for one in new)
        places = {one.place for one in self._asked.values()} | {one.place for one in self._passes()}
        for place in sorted(places):
            self._match(place)
        for one in new:
            self._say_begun(one)
            self._news.set()

    def _storage(self, asked: CopyAsked) -> Storage | None:
        return self.storages.get(asked.topic_partition)

    def _match(self, place: SourcePartition) -> None:
        """What is read of a partition is what is asked for and not owned."""
        asked = together(one.wanted.points for one in self._asked.values() if one.place == place)
        wanted = without(asked, self._owned.get(place, Steps()))
        passes = self._passes(place)
        there = together(one.points for one in passes)
        self._drop(place, without(there, wanted))
        if ranges_of(new := without(wanted, there)):
            self._begin(place, new, passes)

    def _begin(self, place: SourcePartition, points: Steps[bool], passes: Sequence[CopyPass]) -> None:
        follower = self.storages[place]
        assert isinstance(follower, OwnCopy), "what is asked for has a copy"
        self._touched[place] = together([self._touched.get(place, Steps()), points])
        with errors_of(follower.changelog):
            position = least_position(points, follower.copy.markers())
        for one in passes:
            if one.position <= position:
                one.join(points)
                break
        else:
            self._behind.append(CopyPass(place, follower, points, position))
        self._changed.set()

    def _drop(self, place: SourcePartition, points: Steps[bool]) -> None:
        for one in self._passes(place):
            one.drop(points)
        self._forget(place, points)

    def _forget(self, place: SourcePartition, points: Steps[bool]) -> None:
        """How far these points were copied."""
        if place in self._levels:
            self._levels[place] = self._levels[place].replace((first, end, None) for first, end, _ in points.pieces())

    def _passes(self, place: SourcePartition | None = None) -> list[CopyPass]:
        """Those that have points, of a place or all."""
        passes = (*self._following.passes, *self._behind)
        return [one for one in passes if place in (None, one.place) and ranges_of(one.points)]

    # --- what is owned -----------------------------------------------------------------------------------------------

    def has_touched(self, place: SourcePartition, within: KeyRange) -> bool:
        """Whether anything of a range was followed since it was released: its copy has to be restored."""
        return bool(self._touched.get(place, Steps()).pieces(within.first, within.end))

    def owns(self, place: SourcePartition, ranges: Iterable[KeyRange]) -> None:
        """Others write these ranges here. What is begun from now on leaves them out."""
        points = points_of(ranges)
        self._owned[place] = together([self._owned.get(place, Steps()), points])
        self._touched[place] = without(self._touched.get(place, Steps()), points)
        self._drop(place, points)

    async def let_go(self, place: SourcePartition, ranges: Iterable[KeyRange]) -> None:
        """The same; returns when nothing is being written to them."""
        self.owns(place, ranges)
        await self.writes.is_through(place)

    def release(self, place: SourcePartition, within: KeyRange) -> None:
        """Nobody here writes a range any more: what is asked for of it is followed from the next ``follow`` on."""
        self._owned[place] = without(self._owned.get(place, Steps()), points_of([within]))

    # --- how far it is -----------------------------------------------------------------------------------------------

    def stale_ms(self, place: SourcePartition, point: int) -> int | None:
        """How old the copy of a point is, at most; None: there is none here that is whole, or it is owned."""
        level = self._levels.get(place, _NEVER).at(point)
        if level is None:
            return None
        return max(int((asyncio.get_running_loop().time() - level.at_s) * 1000), self.wall_ms() - level.at_ms)

    def copied_ranges(self, place: SourcePartition) -> list[KeyRange]:
        """The ranges of which there are copies that are whole. One of them is of one age."""
        return [KeyRange(first, end) for first, end, _ in self._levels.get(place, _NEVER).pieces()]

    def is_level(self, one: CopyPass) -> None:
        """A pass has read to the watermark that was asked for at ``asked``."""
        one.level = one.asked
        levels = self._levels.get(one.place, _NEVER)
        self._levels[one.place] = levels.replace((first, end, one.asked) for first, end, _ in one.points.pieces())
        self.compare(one.place)

    def has_lost(self, one: CopyPass, points: Steps[bool]) -> None:
        """See ``Host``: it answers no question from now on, and is not ready any more, which is told at once."""
        self._forget(one.place, points)
        for asked in self._of(one.place):
            asked.is_ready = False
        self._news.set()

    def has_looked(self, one: CopyPass) -> None:
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

    def _told(self, asked: _CopyWanted) -> CopyTold | None:
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
        ready, sizes = sum(copy.is_ready for copy in copies), self._bytes
        return Copying(len(copies), ready, sizes[LEARNER], sizes[STANDBY])

    def roles(self, place: SourcePartition) -> dict[str, Steps[bool]]:
        """What the points of a partition are copied for: to be owned first of all."""
        found = {role: [a.wanted.points for a in self._of(place) if a.wanted.role == role] for role in _ROLES}
        return {role: together(points) for role, points in found.items() if points} or {STANDBY: Steps()}

    def has_read(self, one: CopyPass, read: int, written: Mapping[str, int]) -> None:
        """See ``Host``."""
        for role, size in written.items():
            self._bytes[role] += size
            one.bytes += size
        if self._is_limited(one):
            limits = [asked.wanted.bytes_per_s for asked in self._asked.values() if asked.wanted.bytes_per_s]
            self._budget.spend(read, min(limits), asyncio.get_running_loop().time())

    def wait_s(self, passes: Sequence[CopyPass]) -> float:
        """See ``Host``. Who is limited is looked at only where there is something to wait for."""
        wait_s = self._budget.wait_s(asyncio.get_running_loop().time())
        return wait_s if wait_s > 0 and any(map(self._is_limited, passes)) else 0.0

    def _is_limited(self, one: CopyPass) -> bool:
        """Unless one of its copies may be as fast as it goes."""
        own = [asked.wanted.bytes_per_s for asked in self._of(one.place) if _overlap(asked.wanted.points, one.points)]
        return bool(own) and 0 not in own

    def _of(self, place: SourcePartition) -> list[_CopyWanted]:
        return [asked for asked in self._asked.values() if asked.place == place]

    def _say_begun(self, asked: _CopyWanted) -> None:
        passes = [one for one in self._passes(asked.place) if _overlap(one.points, asked.wanted.points)]
        asked.bytes = sum(one.bytes for one in passes)
        position = min((one.position for one in passes), default=0)
        logger.info("copying the state of %s, from position %d of its changelog", asked.label, position)

    def _say_ready(self, asked: _CopyWanted) -> None:
        passes = [one for one in self._passes(asked.place) if _overlap(one.points, asked.wanted.points)]
        seconds = asyncio.get_running_loop().time() - asked.began_s
        size = max(0, sum(one.bytes for one in passes) - asked.bytes) / 1e6
        logger.info("the copy of %s is ready: %.1f MB in %.1f s", asked.label, size, seconds)

    def _say_progress(self, copies: Sequence[CopyTold]) -> None:
        """While something is copied; that it is followed needs no line."""
        if left := [copy for copy in copies if not copy.is_ready]:
            offsets, size = sum(copy.high - copy.position for copy in left), sum(self._bytes.values()) / 1e6
            logger.info(
                "copying state: %d of %d copies are not ready, %s offsets are left, %.1f MB were copied so far",
                len(left),
                len(copies),
                f"{offsets:,}",
                size,
            )

    # --- while it runs -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Copy and follow until cancelled. Raises StateError, StoreError."""
        readings: dict[asyncio.Task[None], Reading] = {}
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
            self.writes.shutdown()

    def _begin_readings(self, readings: dict[asyncio.Task[None], Reading]) -> None:
        going_on = [one for reading in readings.values() for one in reading.passes]
        self._behind = [one for one in self._behind if one in going_on or ranges_of(one.points)]
        free = self.settings.limits.restore_partitions_max - sum(one in self._behind for one in going_on)
        next_ones = sorted((one for one in self._behind if one not in going_on), key=lambda one: -one.position)
        new = [Reading(self, "copying state", (one,)) for one in next_ones[: max(0, free)]]
        if self._following.passes and self._following not in readings.values():
            new.append(self._following)
        for reading in new:
            readings[asyncio.ensure_future(reading.run())] = reading

    def has_ended(self, one: CopyPass, reading: Reading) -> bool:
        """See ``Host``. Passes of one partition that are ready become one."""
        if not ranges_of(one.points):
            pass
        elif reading is self._following or not one.nearness.is_ready or one.plan is None:
            return False
        else:
            self._goes_on(one)
        if reading is not self._following:
            self._behind.remove(one)
            self._changed.set()
        return True

    def _goes_on(self, one: CopyPass) -> None:
        other = next((other for other in self._following.passes if other.place == one.place), None)
        if other is None:
            self._following.passes.append(one)
        else:
            other.bytes += one.bytes
            other.join(one.points)

    async def _tell_on(self) -> None:
        """In each interval while there are copies, and at once when one is begun or ready."""
        loop = asyncio.get_running_loop()
        said_s = loop.time()
        while True:
            if copies := self.copies():
                self.tell(copies)
                if (loop.time() - said_s) * 1000 >= REPORT_INTERVAL_MS:
                    said_s = loop.time()
                    self._say_progress(copies)
            self._news.clear()
            await rest(self.settings.heartbeat_interval_ms / 1000, self._news)


def _overlap(points: Steps[bool], others: Steps[bool]) -> bool:
    return any(points.pieces(first, end) for first, end, _ in others.pieces())


async def _unknown(place: SourcePartition) -> Writers | None:  # noqa: ARG001  # nobody has said who they are
    return None


_NEVER: Final[Steps[ClockReading]] = Steps()
_ROLES: Final = (LEARNER, STANDBY)
