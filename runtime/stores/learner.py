"""Copies of state that a process follows beside its work: learners of ranges to be owned soon, and standbys.

The control log has the requests (COPY_ASKED). All requested points of one source partition, of learners and standbys,
go in one pass over the changelog (copy_pass.py). Later points join a pass that has not gone by their markers; else they
get a pass of their own. *Ready* passes (state/copy_readiness.py) share one reader: a process needs few connections for
all followed copies.

Rules:

- *No two writers of a point*: an older value would come to lie over a newer one. The points are the learner's from
  their release here to ``owns``. The next owner waits for the write that is under way (copy_writes.py).
- A copy that is requested no more stays on the disk with its marker.
- Learners and standbys have a byte budget, together; a request may be exempt.
- A broker that is away is waited for, without an end. Other errors of a pass end the run.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...brokers.patience import rest
from ...brokers.protocol import BrokerError
from ...keyrange.ranges import KeyRange
from ...keyrange.steps import Steps
from ...offsets.control import LEARNER, STANDBY
from ...offsets.control_events import CopyAsked
from ...offsets.ledger import SourcePartition
from ...offsets.signals import Copy as CopyTold
from ...state.copy_readiness import (
    ByteRateLimit,
    least_position,
    overlap,
    points_of,
    ranges_of,
    together,
    without,
)
from ...state.restore import Writers
from ..watch.statistics import Copying
from ..watch.story import REPORT_INTERVAL_MS
from .changelogs import errors_of
from .copy_pass import NEVER, ClockReading, CopyMeans, CopyPass, CopyReading, PassHost
from .storage import OwnCopy, Storage

logger = logging.getLogger("keylanes")

AWAY_WAIT_MS: Final = 500
"""The wait after a broker did not answer for long."""


class _CopyWanted:
    """A request for a copy. ``bytes``: the bytes that the passes had written by then."""

    def __init__(self, asked: CopyAsked, now_s: float) -> None:
        bands = [KeyRange(band.first, band.end) for band in asked.bands]
        self.place: SourcePartition = asked.topic_partition
        self.move = asked.move
        self.points = points_of(bands)
        self.role = asked.role
        self.bytes_per_s = asked.bytes_per_s
        self.label = f"{asked.topic}[{asked.partition}] {', '.join(map(str, bands))} (move {asked.move}, {asked.role})"
        self.began_s = now_s
        self.is_ready = False
        self.bytes = 0


@dataclass
class _Followed:
    """What is known of the points of one source partition.

    ``owned``: points that another part of this process writes: their restore, and then their workers. ``levels``: the
    last time at which the copy of a point had all that was committed.
    """

    asked: list[_CopyWanted] = field(default_factory=list)
    passes: list[CopyPass] = field(default_factory=list)
    owned: Steps[bool] = field(default_factory=Steps)
    levels: Steps[ClockReading] = field(default_factory=Steps)

    def drop(self, points: Steps[bool]) -> None:
        """Follow these points no more."""
        for one in self.passes:
            one.drop(points)
        self.passes = [one for one in self.passes if ranges_of(one.points)]
        self.forget(points)

    def forget(self, points: Steps[bool]) -> None:
        """Forget the ages of the copies of these points."""
        self.levels = self.levels.replace((first, end, None) for first, end, _ in points.pieces())

    def passes_of(self, asked: _CopyWanted) -> list[CopyPass]:
        """The passes with points of a request."""
        return [one for one in self.passes if overlap(one.points, asked.points)]

    def is_limited(self, one: CopyPass) -> bool:
        """Whether all requests for points of a pass are within the budget."""
        limits = [asked.bytes_per_s for asked in self.asked if overlap(asked.points, one.points)]
        return bool(limits) and 0 not in limits

    def progress_of(self, asked: _CopyWanted) -> CopyTold | None:
        """The progress of a copy; None: all of its points are owned."""
        if not (passes := self.passes_of(asked)):
            return None
        missing = self.levels.replace((first, end, NEVER) for first, end, _ in self.owned.pieces())
        pieces = [piece for first, end, _ in asked.points.pieces() for piece in missing.all_pieces(first, end)]
        return CopyTold(
            move=asked.move,
            position=min(one.position for one in passes),
            high=max(one.high for one in passes),
            bytes_per_s=min(one.pace.bytes_per_s for one in passes),
            is_ready=all(one.nearness.is_ready for one in passes) and all(level is not None for _, _, level in pieces),
        )


class Learner(PassHost):
    """The followed copies of one process; the host of their passes.

    ``storages``: the storage of each source partition, once they are open. ``tell`` is called with the progress of the
    copies. ``ask_writers`` reads the logs, for the writers of a partition's state. ``compare`` is called with a place
    whose copy answers from now on. The holder of ranges calls ``follow``, ``owns`` and ``release``.
    """

    fetch_share = 2  # a range waits for a restore; the writes of a worker wait for those of a learner

    def __init__(
        self,
        means: CopyMeans,
        storages: Mapping[SourcePartition, Storage],
        tell: Callable[[tuple[CopyTold, ...]], None],
        ask_writers: Callable[[SourcePartition], Awaitable[Writers]],
        compare: Callable[[SourcePartition], None],
    ) -> None:
        self.means = means
        self.storages = storages
        self.tell = tell
        self.compare = compare
        self._ask_writers = ask_writers
        self._budget = ByteRateLimit()
        self._bytes = {LEARNER: 0, STANDBY: 0}
        self._asked: dict[int, _CopyWanted] = {}
        self._places = defaultdict[SourcePartition, _Followed](_Followed)
        self._unmatched: set[SourcePartition] = set()
        """Partitions with requests or owned points that have changed since the last ``follow``."""
        self._behind: list[CopyPass] = []
        """The passes that are not ready. The pass that has come furthest is the next: it is soon ready."""
        self._following = CopyReading(means, self, "following changelogs", ())
        self._readings: list[CopyReading] = []
        """The readings that are going on."""
        self._changed = asyncio.Event()
        self._news = asyncio.Event()

    # --- requests --------------------------------------------------------------------------------------------------

    def follow(self, copies: Iterable[CopyAsked]) -> None:
        """Follow these copies, and no others. Raises StoreError."""
        now_s = asyncio.get_running_loop().time()
        known = {one.move: one for one in copies if isinstance(self.storages.get(one.topic_partition), OwnCopy)}
        for move in self._asked.keys() - known.keys():
            ended = self._asked.pop(move)
            self._places[ended.place].asked.remove(ended)
            self._unmatched.add(ended.place)
            logger.info("the copy of %s is not followed any more", ended.label)
        new = [_CopyWanted(one, now_s) for move, one in sorted(known.items()) if move not in self._asked]
        for one in new:
            self._asked[one.move] = one
            self._places[one.place].asked.append(one)
            self._unmatched.add(one.place)
        for place in sorted(self._unmatched):
            self._match(place, self._places[place])
        self._unmatched.clear()
        for one in new:
            self._log_begin(one)
            self._news.set()

    def _match(self, place: SourcePartition, followed: _Followed) -> None:
        """Read all requested points of a partition, except owned points."""
        wanted = without(together(one.points for one in followed.asked), followed.owned)
        there = together(one.points for one in followed.passes)
        followed.drop(without(there, wanted))
        if ranges_of(new := without(wanted, there)):
            self._begin(place, followed, new)
        found = {role: [one.points for one in followed.asked if one.role == role] for role in (LEARNER, STANDBY)}
        for one in followed.passes:
            one.roles = {role: together(points) for role, points in found.items() if points}

    def _begin(self, place: SourcePartition, followed: _Followed, points: Steps[bool]) -> None:
        storage = self.storages[place]
        assert isinstance(storage, OwnCopy), "what is asked for has a copy"
        with errors_of(storage.changelog):
            position = least_position(points, storage.copy.markers())
        for one in followed.passes:
            if one.position <= position:
                one.join(points)
                break
        else:
            new = CopyPass(place, storage.changelog, storage.copy, points, has_end=False)
            new.position = new.high = position
            followed.passes.append(new)
            self._behind.append(new)
        self._changed.set()

    # --- owned points ----------------------------------------------------------------------------------------------

    def owns(self, place: SourcePartition, ranges: Iterable[KeyRange]) -> None:
        """Leave these ranges to another writer in this process, except for a write that is under way."""
        points, followed = points_of(ranges), self._places[place]
        followed.owned = together([followed.owned, points])
        followed.drop(points)

    def release(self, place: SourcePartition, within: KeyRange) -> None:
        """Take a range back from its writer: requested points of it are followed from the next ``follow`` on."""
        followed = self._places[place]
        followed.owned = without(followed.owned, points_of([within]))
        self._unmatched.add(place)

    # --- progress --------------------------------------------------------------------------------------------------

    def stale_ms(self, place: SourcePartition, point: int) -> int | None:
        """The greatest possible age of a point's copy, in ms; None: no whole copy is here, or the point is owned."""
        level = self._places[place].levels.at(point)
        if level is None:
            return None
        return max(int((asyncio.get_running_loop().time() - level.at_s) * 1000), self.means.wall_ms() - level.at_ms)

    def copied_ranges(self, place: SourcePartition) -> list[KeyRange]:
        """The ranges with whole copies; each range has one age."""
        return [KeyRange(first, end) for first, end, _ in self._places[place].levels.pieces()]

    def note_look(self, one: CopyPass, *, is_level: bool) -> None:
        """See ``PassHost``: a copy that becomes ready is told at once."""
        followed = self._places[one.place]
        if is_level:
            followed.levels = followed.levels.replace((first, end, one.asked) for first, end, _ in one.points.pieces())
            self.compare(one.place)
        for asked in followed.asked:
            if (told := followed.progress_of(asked)) is not None:
                if told.is_ready and not asked.is_ready:
                    self._log_ready(asked)
                    self._news.set()
                asked.is_ready = told.is_ready

    def note_lost(self, one: CopyPass, points: Steps[bool]) -> None:
        """See ``PassHost``: the copy answers no query from now on, and is not ready; told at once."""
        followed = self._places[one.place]
        followed.forget(points)
        for asked in followed.asked:
            asked.is_ready = False
        self._news.set()

    def copies(self) -> tuple[CopyTold, ...]:
        """The progress of each requested copy, by move, without copies of points that are owned by now."""
        told = (self._places[asked.place].progress_of(asked) for _, asked in sorted(self._asked.items()))
        return tuple(one for one in told if one is not None)

    def statistics(self) -> Copying:
        """The numbers of the copies and of the ready ones, and the bytes that were copied so far."""
        copies = self.copies()
        ready, sizes = sum(copy.is_ready for copy in copies), self._bytes
        return Copying(len(copies), ready, sizes[LEARNER], sizes[STANDBY])

    async def ask_writers(self, place: SourcePartition) -> Writers:
        """See ``PassHost``. Raises LogError, BrokerError."""
        return await self._ask_writers(place)

    def note_written(self, one: CopyPass, read: int, written: Mapping[str, int]) -> None:
        """See ``PassHost``."""
        for role, size in written.items():
            self._bytes[role] += size
        if self._places[one.place].is_limited(one):
            limits = [asked.bytes_per_s for asked in self._asked.values() if asked.bytes_per_s]
            self._budget.spend(read, min(limits), asyncio.get_running_loop().time())

    def wait_s(self, passes: Sequence[CopyPass]) -> float:
        """See ``PassHost``. The limits of passes are looked up only when the budget is used up."""
        wait_s = self._budget.wait_s(asyncio.get_running_loop().time())
        return wait_s if wait_s > 0 and any(self._places[one.place].is_limited(one) for one in passes) else 0.0

    def _log_begin(self, asked: _CopyWanted) -> None:
        passes = self._places[asked.place].passes_of(asked)
        asked.bytes = sum(one.bytes for one in passes)
        position = min((one.position for one in passes), default=0)
        logger.info("copying the state of %s, from position %d of its changelog", asked.label, position)

    def _log_ready(self, asked: _CopyWanted) -> None:
        seconds = asyncio.get_running_loop().time() - asked.began_s
        written = sum(one.bytes for one in self._places[asked.place].passes_of(asked))
        size = max(0, written - asked.bytes) / 1e6
        logger.info("the copy of %s is ready: %.1f MB in %.1f s", asked.label, size, seconds)

    def _log_progress(self, copies: Sequence[CopyTold]) -> None:
        """Log the copies that are not ready; copies that are followed need no line."""
        if left := [copy for copy in copies if not copy.is_ready]:
            offsets, size = sum(copy.high - copy.position for copy in left), sum(self._bytes.values()) / 1e6
            left_over = f"{offsets:,} offsets are left, {size:.1f} MB were copied so far"
            logger.info("copying state: %d of %d copies are not ready, %s", len(left), len(copies), left_over)

    # --- the loops -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Copy and follow until cancelled. Raises StateError, StoreError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tell_on())
                while True:
                    self._changed.clear()
                    for reading in self._readings_to_begin():
                        self._readings.append(reading)
                        tasks.create_task(self._read(reading))
                    await self._changed.wait()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def _readings_to_begin(self) -> list[CopyReading]:
        """Readings of the passes that have come furthest, as many as may go on, and of those that are ready."""
        going_on = [one for reading in self._readings for one in reading.passes]
        self._behind = [one for one in self._behind if one in going_on or ranges_of(one.points)]
        free = self.means.settings.limits.restore_partitions_max - sum(one in self._behind for one in going_on)
        next_ones = sorted((one for one in self._behind if one not in going_on), key=lambda one: -one.position)
        new = [CopyReading(self.means, self, "copying state", (one,)) for one in next_ones[: max(0, free)]]
        is_idle = self._following not in self._readings and self._following.passes
        return [*new, self._following] if is_idle else new

    async def _read(self, reading: CopyReading) -> None:
        """Read until all passes have left. Raises StateError, StoreError."""
        while reading.passes:
            try:
                await reading.run()
            except BrokerError as error:
                logger.warning("%s goes on as soon as it can: %s", reading.what, error)
                for one in reading.passes:
                    one.lose_plan()
                await asyncio.sleep(AWAY_WAIT_MS / 1000)
        self._readings.remove(reading)
        self._changed.set()

    def has_ended(self, one: CopyPass, reading: CopyReading) -> bool:
        """See ``PassHost``. Passes of one partition that are ready become one."""
        if not ranges_of(one.points):
            pass
        elif reading is self._following or not one.nearness.is_ready or not one.is_begun:
            return False
        else:
            self._goes_on(one)
        if reading is not self._following:
            self._behind.remove(one)
            self._changed.set()
        return True

    def _goes_on(self, one: CopyPass) -> None:
        passes = self._places[one.place].passes
        other = next((other for other in passes if other in self._following.passes), None)
        if other is None:
            self._following.passes.append(one)
        else:
            passes.remove(one)
            other.bytes += one.bytes
            other.join(one.points)
            other.roles = one.roles

    async def _tell_on(self) -> None:
        """Tell the progress in each interval while there are copies, and at once when a copy begins or is ready."""
        loop = asyncio.get_running_loop()
        logged_s = loop.time()
        while True:
            if copies := self.copies():
                self.tell(copies)
                if (loop.time() - logged_s) * 1000 >= REPORT_INTERVAL_MS:
                    logged_s = loop.time()
                    self._log_progress(copies)
            self._news.clear()
            await rest(self.means.settings.heartbeat_interval_ms / 1000, self._news)
