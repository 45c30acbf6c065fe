"""Making local copies of state whole from their changelogs, before anybody works with them.

Some partitions at a time, each in one reading pass: while a batch is written in a thread the next one is fetched, so no
more than two are in memory. Each batch goes with its markers, so a restore that was broken off goes on where it was.
What becomes of a record is decided in ``state.restore``; here is only the fetching, the writing and the telling.

A high watermark counts only when it is taken after whoever wrote the ranges' state before was fenced; ``run`` takes it.
Others may go on writing other ranges of the partition.

Who waits for a near copy waits for connections above all. So it has one reader, which ``open`` makes while the logs are
still being read: it begins a little below the copy's marker, where the beacons are looked for, and goes on to the end.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ...brokers.protocol import (
    Batch,
    Broker,
    BrokerTimeout,
    CorruptRecord,
    OffsetOutOfRange,
    TopicPartition,
    UnknownTopic,
)
from ...errors import StateError
from ...keyrange.ranges import KeyRange
from ...state.copy_readiness import least_position, points_of
from ...state.restore import BEACON_STEP, BeaconSearch, Plan, Writers, plan_restore
from ...state.tables import Change, LocalCopy
from ..settings import Settings
from ..watch.statistics import Progress
from .changelogs import CopyThreads, Fetches, ask_changelogs, errors_of, label_of, labels_of, unreadable

logger = logging.getLogger("keylanes")

FETCH_RECORDS_MAX: Final = 4_000
SAID_FROM_OFFSETS: Final = 10_000
"""A restore of fewer is over before anybody could read about it."""
SAID_EVERY_S: Final = 5.0
NEAR_OFFSETS: Final = 131_072
"""A copy that lacks so many or fewer waits for no lane: it is restored within about a second, and a range waits for it.
A learner may call a copy ready that lacks some ten thousands.
"""
TAIL_BYTES_MAX: Final = 8 * 1024 * 1024
"""So much of what was read for the beacons is kept until they were compared, and need not be read again; of all copies
that are restored at once.
"""


class CopyToRestore(NamedTuple):
    """A copy that shall become whole for the key ranges that are held.

    ``writers``: who changed the partition's state, as the logs had it before; None: the changelog is not compared with
    them. ``on_ready`` is called on the loop: the copy is whole.
    """

    changelog: TopicPartition
    copy: LocalCopy
    held: Sequence[KeyRange]
    writers: Writers | None
    on_ready: Callable[[], None]


class Restore:
    """One restore; ``run`` is called once. ``lanes``: shared with others that go on beside it, and taken for each copy
    that is not near.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        on_progress: Callable[[Progress], None] | None = None,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        lanes: asyncio.Semaphore | None = None,
    ) -> None:
        self._lanes = asyncio.Semaphore(settings.limits.restore_partitions_max) if lanes is None else lanes
        self.broker, self.settings, self.on_progress, self.now_ms = broker, settings, on_progress, now_ms
        self._threads = CopyThreads(settings.limits.restore_partitions_max, "keylanes-restore", settings)
        self._opened: dict[TopicPartition, Fetches] = {}

    async def open(self, changelog: TopicPartition, copy: LocalCopy, held: Sequence[KeyRange]) -> None:
        """Have the reader of a copy made that will be restored, unless it is read from the start. It may still be
        followed. Whoever calls this calls ``close``. Raises StateError, StoreError.
        """
        if len(self._opened) < self.settings.limits.restore_partitions_max:
            with errors_of(changelog):
                markers = await self._threads.run(copy.markers)
            if position := least_position(points_of(held), markers):
                self._opened[changelog] = fetches = self._fetches(changelog, max(0, position - BEACON_STEP))
                fetches.open()

    async def close(self) -> None:
        """Let go of readers and threads; a second call does nothing."""
        opened, self._opened = self._opened, {}
        await asyncio.gather(*[fetches.close() for fetches in opened.values()], return_exceptions=True)
        self._threads.shutdown()

    async def run(self, sources: Sequence[CopyToRestore]) -> None:
        """Make the copies whole. What it wrote stays when it ends early, and the next one goes on from there.

        Raises StateError (a changelog is missing, lost its head, holds what is no state, or has other beacons
        than the offset log names), StoreError (the copy can't be written), BrokerError.
        """
        try:
            if sources:
                await self._run(sources)
        finally:
            await self.close()

    async def _run(self, sources: Sequence[CopyToRestore]) -> None:
        passes = [self._pass(source, plan) for source, plan in await self._plan(sources)]
        passes.sort(key=lambda one: (one.plan.offsets > NEAR_OFFSETS, not one.is_opened, one.plan.offsets))
        at_once = min(len(passes), self.settings.limits.restore_partitions_max)
        progress = _RestoreLog([one.plan for one in passes])
        lanes: list[asyncio.Future[None]] = []
        try:
            await asyncio.gather(*[one.fetches.close() for one in passes[at_once:]])  # they are made anew
            for one in passes[:at_once]:
                if one.plan.offsets:
                    one.fetches.open()  # what was written since a copy was near is there when the beacons were read
            planned = [(one.source, one.plan) for one in passes]
            await check_beacons_of(self.broker, self.settings, planned, passes[:at_once])
            left = deque(passes)
            lanes += [asyncio.ensure_future(self._work(left, progress)) for _ in range(at_once)]
            await asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION)
            for lane in lanes:
                if lane.done():
                    lane.result()
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            await asyncio.gather(*[one.fetches.close() for one in passes], return_exceptions=True)
        progress.say_end()

    def _pass(self, source: CopyToRestore, plan: Plan) -> "_RestorePass":
        """What was opened beyond the plan's position, as its copy is thrown away, may have an error at hand."""
        limit = TAIL_BYTES_MAX // self.settings.limits.restore_partitions_max
        opened = self._opened.get(source.changelog)
        if opened is None or opened.positions[source.changelog] > plan.position:
            return _RestorePass(source, plan, self._fetches(source.changelog, plan.position), limit, is_opened=False)
        return _RestorePass(source, plan, self._opened.pop(source.changelog), limit, is_opened=True)

    def _fetches(self, changelog: TopicPartition, position: int) -> Fetches:
        return Fetches(self.broker, self.settings, {changelog: position}, f"restoring from {label_of(changelog)}")

    async def _plan(self, sources: Sequence[CopyToRestore]) -> list[tuple[CopyToRestore, Plan]]:
        """What each copy lacks. The clock is read before the watermarks: what is above them is younger."""
        now_ms = self.now_ms()
        marks, retention_ms = await ask_changelogs(self.broker, self.settings, [source.changelog for source in sources])
        plans = []
        for source in sources:
            start, high = marks[source.changelog]
            with errors_of(source.changelog):
                markers = await self._threads.run(source.copy.markers)
                plan = plan_restore(source.held, markers, start, high, now_ms, retention_ms[source.changelog.topic])
            plans.append((source, plan))
        return plans

    async def _work(self, left: "deque[_RestorePass]", progress: "_RestoreLog") -> None:
        """Restore one partition after the other, as long as there are some."""
        while left:
            one = left.popleft()
            is_near = one.plan.offsets <= NEAR_OFFSETS
            async with contextlib.nullcontext() if is_near else self._lanes:
                with errors_of(one.source.changelog):
                    await self._clear(one.source, one.plan)
                    reached = await self._restore(one, progress)
            if reached < one.plan.high:
                left.append(await self._anew(one, reached, progress))
                continue
            progress.partitions_done += 1
            self._tell(progress)
            one.source.on_ready()

    async def _clear(self, source: CopyToRestore, plan: Plan) -> None:
        say_cleared(source.changelog, plan)
        for within, _ in plan.cleared:
            await self._threads.run(source.copy.clear, within)

    async def _anew(self, one: "_RestorePass", reached: int, progress: "_RestoreLog") -> "_RestorePass":
        """A copy whose deletes may be gone, as it was read for so long. Raises StateError when that is so again."""
        if one.is_anew:
            raise StateError(
                f"the changelog {label_of(one.source.changelog)} keeps its deletes for "
                f"delete.retention.ms={one.plan.delete_retention_ms}, and its copy was not whole within half of that, "
                f"twice: {one.plan.high - reached:,} offsets are left of {one.plan.offsets:,}. Let "
                "delete.retention.ms of this topic be more than twice as long as it takes to restore a partition"
            )
        await one.fetches.close()
        [(source, plan)] = await self._plan([one.source])
        progress.offsets_total += plan.offsets - (one.plan.high - reached)
        again = self._pass(source, plan)
        again.is_anew = True
        return again

    async def _restore(self, one: "_RestorePass", progress: "_RestoreLog") -> int:
        """The reading pass, and the position that it has reached: the plan's end, or less when it took so long that
        deletes may be gone. A batch is fetched while the one before it is written.
        """
        source, plan = one.source, one.plan
        if plan.position >= plan.high:
            await self._threads.run(source.copy.write, (), plan.marks(plan.high))
            return plan.high
        position = plan.position
        writing: asyncio.Future[int] | None = None
        try:
            async with contextlib.aclosing(one.batches()) as batches:
                async for batch in batches:
                    if writing is not None:
                        progress.bytes += await self._threads.wait_for_thread(writing)
                        writing = None
                    if plan.is_outlived(position, self.now_ms()):
                        return position
                    writing = self._threads.begin(_write, source.copy, plan, batch)
                    progress.records += len(batch.records)
                    progress.offsets += min(batch.offset_next, plan.high) - position
                    position = min(batch.offset_next, plan.high)
                    self._tell(progress)
            if writing is not None:
                progress.bytes += await self._threads.wait_for_thread(writing)
            return position
        finally:
            if writing is not None:
                with contextlib.suppress(Exception):  # raised above, or behind what is being raised
                    await self._threads.wait_for_thread(writing)

    def _tell(self, progress: "_RestoreLog") -> None:
        progress.say()
        if self.on_progress is not None:
            self.on_progress(progress.told())


class _RestorePass:
    """How a copy becomes whole, and by which reader. ``is_opened``: that was made before there was a plan.
    ``is_anew``: an earlier pass took too long. ``tail_bytes_max``: so much of the tail is kept.
    """

    def __init__(
        self, source: CopyToRestore, plan: Plan, fetches: Fetches, tail_bytes_max: int, *, is_opened: bool
    ) -> None:
        self.source, self.plan, self.fetches, self.is_opened = source, plan, fetches, is_opened
        self.is_anew = False
        self.tail_bytes_max = tail_bytes_max
        self._kept: deque[Batch] = deque()
        """The first ones that ``tail`` has read."""
        self._is_read = False

    def has_all_of(self, span: tuple[int, int]) -> bool:
        """Whether what its reader reads for the copy is a span that shall be read, and hardly more."""
        begins = self.fetches.positions.get(self.source.changelog, span[1])
        return self.is_opened and begins <= span[0] <= self.plan.position and span[1] == self.plan.high

    async def tail(self) -> AsyncGenerator[Batch, None]:
        """All from where the reader begins to the high watermark; what fits is kept for ``batches``."""
        size, self._is_read = 0, True
        async with contextlib.aclosing(self._read()) as batches:
            async for batch in batches:
                size += sum([len(record.key or b"") + len(record.value or b"") for record in batch.records])
                if size <= self.tail_bytes_max:  # it only grows: what is kept has no gaps
                    self._kept.append(batch)
                yield batch

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """All from where the copy goes on to the high watermark."""
        position = self.plan.position
        while self._kept:
            batch = self._kept.popleft()
            if batch.offset_next > position:
                yield _from(batch, position)
                position = batch.offset_next
        if position >= self.plan.high:
            return
        if self._is_read:
            self.fetches.assign({self.source.changelog: position})
        async with contextlib.aclosing(self._read()) as batches:
            async for batch in batches:
                if batch.offset_next > position:
                    yield _from(batch, position)

    def _read(self) -> AsyncGenerator[Batch, None]:
        return _read(self.fetches, {self.source.changelog: self.plan.high})


def _from(batch: Batch, position: int) -> Batch:
    """What of a batch lies at a position or above."""
    if not batch.records or batch.records[0].offset >= position:
        return batch
    return Batch(batch.source, [record for record in batch.records if record.offset >= position], batch.offset_next)


async def check_beacons_of(
    broker: Broker,
    settings: Settings,
    planned: Sequence[tuple[CopyToRestore, Plan]],
    opened: Sequence[_RestorePass] = (),
) -> None:
    """Compare the beacons of all changelogs with the writers that the logs know, before anything is cleared. Those of
    near copies are looked for by their own readers. Raises StateError, BrokerError.
    """
    left = {
        source.changelog: BeaconSearch(source.writers, plan.high, plan.position)
        for source, plan in planned
        if source.writers is not None
    }
    near = {one.source.changelog: one for one in opened}
    while left:
        to_read: dict[TopicPartition, tuple[int, int]] = {}
        for changelog, search in list(left.items()):
            with errors_of(changelog):
                span = search.span()
                if span is None:
                    search.check()
                    del left[changelog]
                    continue
            one = near.pop(changelog, None)
            if one is None or not one.has_all_of(span):
                to_read[changelog] = span
                continue
            async with contextlib.aclosing(one.tail()) as batches:
                async for batch in batches:
                    search.read(batch.records)
        positions = {changelog: first for changelog, (first, _) in to_read.items()}
        fetches = Fetches(broker, settings, positions, f"reading the beacons of {labels_of(positions)}")
        ends = {changelog: end for changelog, (_, end) in to_read.items()}
        async with contextlib.aclosing(_read(fetches, ends)) as batches:
            async for batch in batches:
                left[batch.source].read(batch.records)


def say_cleared(changelog: TopicPartition, plan: Plan) -> None:
    """What of a copy is thrown away that was held."""
    for within, reason in plan.cleared:
        if reason:
            label = label_of(changelog)
            logger.warning("%s: the local copy of %s is thrown away and made anew: %s", label, within, reason)


async def _read(fetches: Fetches, ends: Mapping[TopicPartition, int]) -> AsyncGenerator[Batch, None]:
    """Batches of these changelogs, until the position of each has reached its end; the last may go beyond it. A broker
    that is away is waited for.
    """
    loop, settings = asyncio.get_running_loop(), fetches.settings
    limit_ms = settings.call_limit_ms + settings.transaction_timeout_ms
    moved_s = loop.time()
    try:
        while fetches.positions:
            with unreadable(OffsetOutOfRange, UnknownTopic, CorruptRecord):
                batches = await fetches.fetch(FETCH_RECORDS_MAX)
            moved_s = max(moved_s, fetches.opened_s)
            if not batches and (loop.time() - moved_s) * 1000 > limit_ms:
                source, position = next(iter(fetches.positions.items()))
                raise BrokerTimeout(
                    f"reading {label_of(source)} to {ends[source]} has stood at {position} for {limit_ms} ms"
                )
            for batch in batches:
                moved_s = loop.time()
                if batch.offset_next >= ends[batch.source]:
                    fetches.positions.pop(batch.source, None)
                yield batch
    finally:
        await fetches.close()


class _RestoreLog:
    """Counts, and says them in the log: at the end what was restored, and when there is much to do also before."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.partitions, self.partitions_done = len(plans), 0
        self.offsets_total, self.offsets, self.records, self.bytes = sum(plan.offsets for plan in plans), 0, 0, 0
        self._is_said = self.offsets_total >= SAID_FROM_OFFSETS
        self._began_s = self._said_s = asyncio.get_running_loop().time()
        if self._is_said:
            count = sum(1 for plan in plans if plan.offsets)
            logger.info("restoring state: at most %s records of %s", f"{self.offsets_total:,}", _partitions(count))

    def told(self) -> Progress:
        """For those who follow it."""
        done, total = self.partitions_done, self.partitions
        return Progress(done, total, self.records, self.offsets_total, self.bytes, self._seconds_left())

    def _seconds_left(self) -> float | None:
        if self.offsets >= self.offsets_total:
            return 0.0
        if not self.offsets:
            return None
        elapsed_s = asyncio.get_running_loop().time() - self._began_s
        return elapsed_s * (self.offsets_total - self.offsets) / self.offsets

    def say(self) -> None:
        """A line, if the last one is some time ago."""
        now_s = asyncio.get_running_loop().time()
        if not self._is_said or now_s - self._said_s < SAID_EVERY_S:
            return
        self._said_s = now_s
        logger.info(
            "restoring state: %s of at most %s records, %d of %s done, about %.0f s left",
            f"{self.records:,}",
            f"{self.offsets_total:,}",
            self.partitions_done,
            _partitions(self.partitions),
            self._seconds_left() or 0.0,
        )

    def say_end(self) -> None:
        """The last line."""
        seconds = asyncio.get_running_loop().time() - self._began_s
        logger.log(
            logging.INFO if self.records else logging.DEBUG,
            "restored the state of %s: %s records, %.1f MB in %.1f s (%s records/s)",
            _partitions(self.partitions),
            f"{self.records:,}",
            self.bytes / 1e6,
            seconds,
            f"{self.records / max(seconds, 1e-3):,.0f}",
        )


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def _write(copy: LocalCopy, plan: Plan, batch: Batch) -> int:
    """Write what a batch changes, with its markers; the bytes of that."""
    changes = plan.apply(batch.records)
    copy.write(changes, plan.marks(batch.offset_next))
    return bytes_of(changes)


def bytes_of(changes: Sequence[Change]) -> int:
    """Of keys and values."""
    return sum([len(key) + len(value) if value is not None else len(key) for key, value in changes])
