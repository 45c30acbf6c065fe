"""The report of the cost of this member's ranges to the coordinator, which places ranges by cost.

A member alone in the group reports nothing: no range could move.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from ..brokers.patience import rest
from ..group.reports import Reports, loads_of
from ..keyrange.hashing import SPACE_END
from ..keyrange.ranges import KeyRange
from ..keyrange.steps import Steps
from ..offsets.signals import BandLoad
from .ends_watch import EndsWatch
from .engine.partition_run import PartitionRun
from .engine.windows import CutCosts, Windows
from .membership.group import Group
from .settings import Settings
from .stores.keeper import Keeper

DUE_S: Final = 0.001
"""A report is due this much before its time: a timer may come a moment early."""
SAMPLED_MS: Final = 60_000
"""How long a measured size of a range's state is used."""


class LoadReport:
    """The reports of a process. A band is a range of touching points owned at the same epoch."""

    def __init__(
        self, windows: Windows, ends_watch: EndsWatch, keeper: Keeper, group: Group, settings: Settings
    ) -> None:
        self.windows = windows
        self.ends_watch = ends_watch
        self.keeper = keeper
        self.group = group
        self.settings = settings
        self._reports = Reports()
        self._measured: dict[PartitionRun, list[BandLoad]] = {}
        self._bytes: dict[tuple[PartitionRun, KeyRange], tuple[int, float]] = {}
        """The size of each range's state, and the time of the measurement by the loop's time."""
        self._audience: tuple[bool, int] = (False, 0)
        """Whether another member takes part, and the term of the coordinator that beat last, at the last report."""
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look at the control log, which was read on: a report goes out at once when another member has joined."""
        if not self._audience[0] and self._has_others():
            self._wake.set()

    async def run(self) -> None:
        """Report in intervals until cancelled."""
        if self.group.member_signals.is_alone:
            return
        loop, interval_s = asyncio.get_running_loop(), self.settings.load_interval_ms / 1000
        due_s = loop.time() + interval_s
        while True:
            await rest(due_s - loop.time(), self._wake)
            self._wake.clear()
            if due_s - loop.time() < DUE_S:
                due_s = loop.time() + interval_s
                self._measure()
            self._send_due()

    async def sample(self) -> None:
        """Measure the size of each band's state, until cancelled."""
        loop = asyncio.get_running_loop()
        while not self.group.member_signals.is_alone:
            await rest(self.settings.load_interval_ms / 1000)
            now, old = loop.time(), self._bytes
            stateful = [run for run in self.windows.runs if run.state is not None and self._audience[0]]
            bands = [(run, KeyRange(first, end)) for run in stateful for first, end, _ in _bands(run)]
            self._bytes = {band: old[band] for band in bands if band in old}
            for run, within in bands:
                _, at_s = self._bytes.get((run, within), (0, -SAMPLED_MS))
                if (now - at_s) * 1000 >= SAMPLED_MS:
                    size = await self.keeper.sampled_bytes(run.dispatch.place, within)
                    self._bytes[run, within] = size, now

    def _send_due(self) -> None:
        """Send the due loads; all loads when another member, or another coordinator, has come to hear reports."""
        has_others, beat = self._has_others(), self.group.heard.coordinator
        audience = has_others, 0 if beat is None else beat.term
        is_new, self._audience = has_others and audience != self._audience, audience
        if not has_others:
            return
        bands = [band for run in self.windows.runs for band in self._measured.get(run, ())]
        due, own = self._reports.bands_due(bands, is_new=is_new), self.group.own_ledger.incarnation
        for load in loads_of(own, self.settings.load_interval_ms, due):
            self.group.member_signals.tell_load(load)

    def _has_others(self) -> bool:
        own_ledger = self.group.own_ledger
        members = own_ledger.ledger.control.members
        return any(not member.expelled and i != own_ledger.incarnation for i, member in members.items())

    def _measure(self) -> None:
        """Take the cost since the last call; a partition without a window closed since then keeps the last cost."""
        before, self._measured = self._measured, {}
        for run in self.windows.runs:
            costs = self.windows.take(run)
            bands = before.get(run, []) if costs is None else list(self._band_loads(run, costs))
            self._measured[run] = bands

    def _band_loads(self, run: PartitionRun, costs: CutCosts) -> Iterator[BandLoad]:
        per_interval = self.settings.load_interval_ms / 1000 / costs.seconds
        place, bounds = run.dispatch.place, costs.bounds
        end_offset = self.ends_watch.end_of(place, run.dispatch.front)
        for first, end, epoch in _bands(run):
            points: list[tuple[int, int]] = []
            busy_us = records = 0
            for number, spent_us in sorted(costs.busy_us.items()):
                cell_first, cell_end = bounds[number], bounds[number + 1]
                first_here, end_here = max(first, cell_first), min(end, cell_end)
                if first_here >= end_here:
                    continue
                # Bands that share a cell divide its cost by points.
                size, own_size = cell_end - cell_first, end_here - first_here
                cost = int(spent_us * own_size // size * per_interval)
                records += int(costs.records[number] * own_size // size * per_interval)
                if cost:
                    points.append((first_here, cost))
                    busy_us += cost
            state_bytes, _ = self._bytes.get((run, KeyRange(first, end)), (0, 0.0))
            backlog = _backlog(run, KeyRange(first, end), end_offset)
            yield BandLoad(
                topic=place[0],
                partition=place[1],
                first=first,
                end=end,
                epoch=epoch,
                busy_us=busy_us,
                records=records,
                backlog=backlog,
                state_bytes=state_bytes,
                points=tuple(points),
            )


def _bands(run: PartitionRun) -> list[tuple[int, int, int]]:
    """The bands of a partition in this process as (first, end, epoch): touching workers of an epoch make a band."""
    return Steps((worker.first, worker.end, worker.epoch) for worker in run.dispatch.workers).pieces()


def _backlog(run: PartitionRun, within: KeyRange, end: int) -> int:
    """About how many records of a range are left up to offset ``end`` of its partition."""
    front = run.dispatch.front
    area = sum(
        max(0, end - worker.edge_now(front)) * (worker.end - worker.first)
        for worker in run.dispatch.workers
        if within.contains(worker.first)
    )
    return area // SPACE_END  # as if the records were spread evenly over all points
