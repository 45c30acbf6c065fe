"""One pass over a changelog partition: from the markers of a copy to an end, all changes on the way go into the copy.

Restores, learners and standbys are passes. The pass of a restore has an end: the watermark that was asked for after the
grant was read, and the beacons of all writers found. The pass of a learner or standby has none: at each watermark it
looks for the next one. A pass goes through these states:

| state | left by | to |
|---|---|---|
| lacking | a plan (``plan_passes``; the rules: state/restore.py) | planned |
| planned | the beacons agree, lost ranges are cleared | begun |
| begun | ``has_end``: the position reaches the plan's watermark | over |
| begun | no end: the position reaches the watermark, the next one is taken | begun |
| planned, begun | it is outlived, more points join, a restore takes the copy | lacking |

Rules:

- A marker is the position up to which the pass has read, for the points that the pass has written: never more.
- The beacons are compared before anything is cleared. A restore compares them in any case. A learner does when a copy
  that was held is to be thrown away: the copy may be all that is left of the state. The watermark of the plan is taken
  after the logs named the writers.
- A plan is made when no write of the partition is under way.
- A near copy is restored by one reader. The reader is made while the logs are still being read, begins a little below
  the marker, where the beacons are, and goes on to the end. Up to ``TAIL_BYTES_MAX`` of what was read for the beacons
  are kept for the copy.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...brokers.patience import within_limit
from ...brokers.protocol import Batch, Broker, CorruptRecord, OffsetOutOfRange, TopicPartition, UnknownTopic
from ...errors import StateError
from ...keyrange.steps import Steps
from ...offsets.ledger import SourcePartition
from ...state.copy_readiness import CopySpeed, Nearness, bytes_by_role, points_of, ranges_of, together, without
from ...state.restore import BEACON_NEAR, BeaconSearch, ChangelogRecord, Cleared, Plan, Writers, plan_restore
from ...state.tables import LocalCopy
from ..settings import Settings
from .changelogs import Fetches, ask_changelogs, errors_of, label_of, unreadable
from .copy_writes import CopyWrites

logger = logging.getLogger("keylanes")

LOOK_MS: Final = 100
"""The time between two looks at the end of a changelog whose copy is not ready."""
MARKS_EVERY_S: Final = 600.0
"""The time after which the marker of an unchanged copy is renewed: an old marker means reading from the start."""
TAIL_BYTES_MAX: Final = 8 * 1024 * 1024
"""The limit for what is kept of the reading for beacons, of all copies that are restored at once."""
_UNMENDED: Final = (OffsetOutOfRange, UnknownTopic, CorruptRecord)


class ClockReading(NamedTuple):
    """A moment, by the loop's time and by the wall clock: the first stands still with the machine, the second can be
    set back.
    """

    at_s: float
    at_ms: int


NEVER: Final = ClockReading(0.0, 0)


class CopyMeans(NamedTuple):
    """What all passes of a process work with."""

    broker: Broker
    settings: Settings
    wall_ms: Callable[[], int]
    writes: CopyWrites


@dataclass(eq=False, slots=True)
class CopyPass:
    """The copy of points of one changelog partition on its way.

    ``position``: everything below is in the copy. ``high``: the end of the changelog at the last look. ``writers``: the
    writers by the logs, when they were read before the pass; None: to be asked for when something is thrown away.
    ``kept``: the first batches for the copy, from the reading for the beacons. ``asked``: when the plan's watermark was
    asked for. ``level``: the same of the last watermark that was reached.
    """

    place: SourcePartition
    changelog: TopicPartition
    copy: LocalCopy
    points: Steps[bool]
    has_end: bool
    position: int = 0
    high: int = 0
    writers: Writers | None = None
    plan: Plan | None = None
    """None in the state *lacking*."""
    is_begun: bool = False
    is_anew: bool = False
    """Whether an earlier plan was outlived."""
    kept: deque[Batch] = field(default_factory=deque)
    roles: Mapping[str, Steps[bool]] = field(default_factory=lambda: {"": Steps()})
    """The purposes of the points."""
    pace: CopySpeed = field(default_factory=CopySpeed)
    nearness: Nearness = field(default_factory=Nearness)
    fetches: int = 0
    records: int = 0
    offsets: int = 0
    bytes: int = 0
    asked: ClockReading = NEVER
    level: ClockReading = NEVER
    marked_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether a pass with an end has reached the end."""
        return self.has_end and self.is_begun and self.plan is not None and self.position >= self.plan.high

    def take_plan(self, plan: Plan, asked: ClockReading) -> None:
        """Take a plan whose watermark was asked for at ``asked``."""
        self.lose_plan()
        self.plan = plan
        self.position = plan.position
        self.high = plan.high
        self.asked = asked

    def lose_plan(self) -> None:
        """Go back to the state *lacking*."""
        self.plan = None
        self.is_begun = False
        self.kept.clear()

    def join(self, points: Steps[bool]) -> None:
        """Take more points, with markers at the position or above."""
        self.points = together([self.points, points])
        self.lose_plan()

    def drop(self, points: Steps[bool]) -> None:
        """Write these points no more, except for a write that is under way."""
        left = without(self.points, points)
        if left == self.points:  # a plan that is being made stays right
            return
        self.points = left
        if self.plan is not None and self.is_begun:
            self.plan = self.plan.without(points)
        else:
            self.lose_plan()  # a plan without these points would clear nothing

    def take_kept(self) -> Batch | None:
        """The next batch that was kept and that the copy lacks, from the position on."""
        while self.kept:
            batch = self.kept.popleft()
            if batch.offset_next > self.position:
                records = [record for record in batch.records if record.offset >= self.position]
                return Batch(batch.source, records, batch.offset_next)
        return None


class PassHost:
    """The owner of passes: a restore or the learner. All methods are called on the loop."""

    fetch_share = 1
    """See ``Fetches``."""

    async def ask_writers(self, place: SourcePartition) -> Writers | None:  # noqa: ARG002  # of a restore: none to ask
        """The writers of a partition's state by the logs as they are now; None: the beacons are not compared."""
        return None

    def wait_s(self, passes: Sequence[CopyPass]) -> float:  # noqa: ARG002  # a restore has no limit
        """The seconds for which passes have to read nothing more."""
        return 0.0

    def note_written(self, one: CopyPass, read: int, written: Mapping[str, int]) -> None:
        """A pass has read so many bytes, and written so many by role."""

    def note_look(self, one: CopyPass, *, is_level: bool) -> None:
        """A pass knows better how far it is. ``is_level``: it has reached the watermark asked for at ``asked``."""

    def note_lost(self, one: CopyPass, points: Steps[bool]) -> None:
        """The copy of these points is thrown away."""

    def has_ended(self, one: CopyPass, reading: "CopyReading") -> bool:  # noqa: ARG002  # a restore has one for each
        """Whether a pass leaves this reading."""
        return one.is_over


async def plan_passes(means: CopyMeans, passes: Sequence[CopyPass]) -> None:
    """Make the plans of passes. The clock is read before the watermarks: everything above them is younger. A pass with
    other points by then stays without a plan. Raises StateError, StoreError, BrokerError.
    """
    asked = ClockReading(asyncio.get_running_loop().time(), means.wall_ms())
    wanted = [(one, one.points) for one in passes]
    marks, retention_ms = await ask_changelogs(means.broker, means.settings, [one.changelog for one in passes])
    for one, points in wanted:
        await means.writes.finish(one.changelog)
        if one.points is not points:  # a point that has joined may be farther than the watermark
            continue
        start, high = marks[one.changelog]
        markers = await means.writes.run(one.changelog, one.copy.markers)
        with errors_of(one.changelog):
            held, kept_ms = ranges_of(points), retention_ms[one.changelog.topic]
            plan = plan_restore(held, markers, start, high, asked.at_ms, kept_ms)
        if one.points is points:
            one.take_plan(plan, asked)


class CopyReading:
    """Passes of different partitions over one reader."""

    def __init__(self, means: CopyMeans, host: PassHost, what: str, passes: Iterable[CopyPass]) -> None:
        self.means = means
        self.host = host
        self.what = what
        self.passes = list(passes)
        self.fetches = Fetches(means.broker, means.settings, what, host.fetch_share)
        self._looked_s = -1.0

    def open(self, position: int) -> None:
        """Have the reader of one pass made in the background, and begin to read at a position."""
        self.fetches.assign({one.changelog: position for one in self.passes})
        self.fetches.begin_fetch()

    async def run(self) -> None:
        """Read until all passes have left. Raises StateError, StoreError, BrokerError."""
        try:
            while await self._has_begun():
                if not any(one.kept for one in self.passes):
                    self.fetches.assign({one.changelog: one.position for one in self.passes if one.is_begun})
                wait_s = self.host.wait_s(self.passes) if self.fetches.positions else LOOK_MS / 1000
                if wait_s > 0:
                    await asyncio.sleep(min(wait_s, LOOK_MS / 1000))
                else:
                    await self._take()
                await self._look_when_due()
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of the reader; a second call does nothing."""
        await self.fetches.close()

    # --- from a plan to the first record -----------------------------------------------------------------------------

    async def _has_begun(self) -> bool:
        """Plan and begin passes as far as they may; False: no pass is left here."""
        lacking = [one for one in self.passes if one.plan is None and ranges_of(one.points) and self._may_write(one)]
        if lacking:
            await plan_passes(self.means, lacking)
        for one in self.passes:
            if one.plan is not None and not one.is_begun:
                await self._begin(one)
        self.passes = [one for one in self.passes if not self.host.has_ended(one, self)]
        return bool(self.passes)

    def _may_write(self, one: CopyPass) -> bool:
        return one.has_end or not self.means.writes.is_taken(one.changelog)

    async def _begin(self, one: CopyPass) -> None:
        """Compare the beacons, and clear what the plan throws away."""
        writers = one.writers
        if writers is None and _has_lost(one.plan):
            writers = await self.host.ask_writers(one.place)
            await plan_passes(self.means, [one])
        if (plan := one.plan) is None:
            return
        if writers is not None and (one.has_end or _has_lost(plan)):
            await self._check_beacons(one, plan, writers)
        if not self._goes_on(one, plan):
            return
        if lost := [cleared.within for cleared in plan.cleared if cleared.reason]:
            one.nearness = Nearness()
            self.host.note_lost(one, points_of(lost))
            log_cleared(one.changelog, plan)
        if plan.cleared:
            await self.means.writes.run(one.changelog, _clear, one.copy, plan.cleared)
        if self._goes_on(one, plan):
            one.is_begun = True
            await self._renew_marker(one, plan)
            if self._goes_on(one, plan):
                self._judge(one, plan)

    def _goes_on(self, one: CopyPass, plan: Plan) -> bool:
        """Whether a plan still counts, after a wait."""
        if not self._may_write(one):
            one.lose_plan()
        return one.plan is plan

    async def _check_beacons(self, one: CopyPass, plan: Plan, writers: Writers) -> None:
        search = BeaconSearch(writers, plan.high, plan.position)
        with errors_of(one.changelog):
            while (span := search.span()) is not None:
                await self._read_span(one, plan, search, span)
            search.check()

    async def _read_span(self, one: CopyPass, plan: Plan, search: BeaconSearch, span: tuple[int, int]) -> None:
        """Read a span of the changelog for the beacons. What the copy needs of the span is kept, as much as may be."""
        (first, end), changelog, fetches = span, one.changelog, self.fetches
        at = fetches.positions.get(changelog, end)
        if len(fetches.positions) != 1 or not first - BEACON_NEAR <= at <= first:
            fetches.assign({changelog: first})
        size, size_max = 0, TAIL_BYTES_MAX // self.means.settings.limits.restore_partitions_max
        keeps = first <= plan.position and end == plan.high
        while fetches.positions[changelog] < end:
            with unreadable(*_UNMENDED):
                batches = await fetches.fetch({changelog: end})
            for batch in batches:
                search.read(batch.records)
                size += _size_of(batch.records)
                keeps = keeps and size <= size_max and one.plan is plan  # what is kept has no gaps
                if keeps:
                    one.kept.append(batch)

    # --- records -----------------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        """Write the next batches to the copies. The pace counts with the wait behind each batch."""
        loop = asyncio.get_running_loop()
        by_changelog = {one.changelog: one for one in self.passes}
        began_s = loop.time()
        for batch in await self._next_batches():
            one = by_changelog[batch.source]
            if (plan := one.plan) is None or not self._goes_on(one, plan):
                continue
            if plan.is_outlived(one.position, self.means.wall_ms()):  # the pass, or this machine, stood still for days
                _begin_anew(one, plan)
                continue
            is_behind, before = one.position < one.high, one.position
            size = await self._write(one, plan, batch)
            ended_s = max(began_s, loop.time() + self.host.wait_s((one,)))
            if is_behind:
                one.pace.add(batch.offset_next - before, size, ended_s - began_s)
            began_s = ended_s
        for one in self.passes:
            one.fetches += 1

    async def _next_batches(self) -> Sequence[Batch]:
        """Batches that were kept, else batches from the reader; behind these the next ones are fetched meanwhile."""
        for one in self.passes:
            if one.kept:
                batch = one.take_kept()
                return [] if batch is None else [batch]
        ends = {one.changelog: one.plan.high for one in self.passes if one.plan is not None and one.is_begun}
        if not ends or not self.fetches.positions:
            return []
        kinds = _UNMENDED if any(one.has_end for one in self.passes) else (CorruptRecord,)
        with unreadable(*kinds):  # the next plan of a learner looks why the others were raised
            batches = await self.fetches.fetch(ends)
        if any(at < ends.get(changelog, 0) for changelog, at in self.fetches.positions.items()):
            self.fetches.begin_fetch()
        return batches

    async def _write(self, one: CopyPass, plan: Plan, batch: Batch) -> int:
        """Write the changes of a batch with their markers; the bytes that were read."""
        one.records += len(batch.records)
        one.offsets += min(batch.offset_next, plan.high) - one.position
        read, written = await self.means.writes.run(one.changelog, _write, one, plan, batch)
        one.bytes += sum(written.values())
        if one.plan is not None and one.is_begun:  # else the next plan reads this again
            one.position = batch.offset_next
            one.high = max(one.high, one.position)
            one.marked_s = asyncio.get_running_loop().time()
            if plan.high <= one.position and one.level != one.asked:
                self._note_look(one, plan)
        self.host.note_written(one, read, written)
        return read

    # --- the end of the changelog ------------------------------------------------------------------------------------

    async def _look_when_due(self) -> None:
        """Ask for the ends of the changelogs that have none here: soon where the answer may show that a copy is ready,
        else in each interval.
        """
        means, now_s = self.means, asyncio.get_running_loop().time()
        is_wanted = any(not one.nearness.is_ready and one.position >= one.high for one in self.passes)
        wait_ms = LOOK_MS if is_wanted else means.settings.heartbeat_interval_ms
        passes = [one for one in self.passes if one.is_begun and not one.has_end]
        if not passes or (now_s - self._looked_s) * 1000 < wait_ms:
            return
        self._looked_s = now_s
        asked = ClockReading(now_s, means.wall_ms())
        watermarks = means.broker.watermarks([one.changelog for one in passes])
        marks = await within_limit(watermarks, means.settings.call_limit_ms, "watermarks of changelogs")
        for one in passes:
            if one.plan is not None and one.is_begun:
                await self._look(one, one.plan, marks[one.changelog].high, asked)

    async def _look(self, one: CopyPass, plan: Plan, high: int, asked: ClockReading) -> None:
        """Take in where a changelog ends."""
        if high < one.position:  # it was truncated, or made anew
            one.lose_plan()
            return
        one.high = high
        if one.position >= plan.high:
            one.plan = plan = plan.further(one.position, high, asked.at_ms)
            one.asked = asked
        self._judge(one, plan)
        if asked.at_s - one.marked_s > MARKS_EVERY_S:
            await self._renew_marker(one, plan)

    def _judge(self, one: CopyPass, plan: Plan) -> None:
        """Tell how far a copy is from the end of its changelog."""
        one.nearness.look(one.high - one.position, one.pace.offsets_per_s, one.fetches)
        self._note_look(one, plan)

    def _note_look(self, one: CopyPass, plan: Plan) -> None:
        if is_level := one.position >= plan.high:
            one.level = one.asked
        self.host.note_look(one, is_level=is_level)

    async def _renew_marker(self, one: CopyPass, plan: Plan) -> None:
        """Mark a copy that lacks nothing with the time of its watermark."""
        if one.position >= plan.high and self._goes_on(one, plan):
            one.marked_s = asyncio.get_running_loop().time()
            await self.means.writes.run(one.changelog, one.copy.write, (), plan.marks(one.position))


def _begin_anew(one: CopyPass, plan: Plan) -> None:
    """Plan an outlived pass anew; raises StateError when a pass with an end was outlived before."""
    if one.has_end and one.is_anew:
        raise StateError(
            f"the changelog {label_of(one.changelog)} keeps its deletes for "
            f"delete.retention.ms={plan.delete_retention_ms}, and its copy was not whole within half of that, twice: "
            f"{plan.high - one.position:,} offsets are left of {plan.offsets:,}. Let delete.retention.ms of this topic "
            "be more than twice as long as it takes to restore a partition"
        )
    one.is_anew = True
    one.lose_plan()


def _has_lost(plan: Plan | None) -> bool:
    """Whether a plan throws something away that was held."""
    return plan is not None and any(cleared.reason for cleared in plan.cleared)


def log_cleared(changelog: TopicPartition, plan: Plan) -> None:
    """Log what a plan throws away that was held."""
    for within, reason in plan.cleared:
        if reason:
            label = label_of(changelog)
            logger.warning("%s: the local copy of %s is thrown away and made anew: %s", label, within, reason)


def _clear(copy: LocalCopy, cleared: Iterable[Cleared]) -> None:
    for within, _ in cleared:
        copy.clear(within)


def _write(one: CopyPass, plan: Plan, batch: Batch) -> tuple[int, dict[str, int]]:
    """The bytes that were read, for the budget, and the bytes that were written, by role."""
    changes = plan.apply(batch.records)
    one.copy.write(changes, plan.marks(batch.offset_next))
    return 0 if one.has_end else _size_of(batch.records), bytes_by_role(changes, one.roles)


def _size_of(records: Iterable[ChangelogRecord]) -> int:
    return sum([len(record.key or b"") + len(record.value or b"") for record in records])
