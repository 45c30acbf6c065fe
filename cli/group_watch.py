"""A live view of a group: reads its logs and signals continuously, and shows the group in intervals."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from ..brokers.patience import within_limit
from ..brokers.protocol import OffsetOutOfRange, Reader, TopicPartition
from ..group.beats import Beats
from ..group.loads import Loads
from ..group.overview import GroupShown, show_group
from ..group.piece_table import PieceTable
from ..group.signals_fold import COORDINATORS, PARTITIONS
from ..offsets.codec import SignalError, decode_signal
from ..offsets.control import Control
from ..offsets.ledger import Ledger
from ..offsets.signals import Copies, Copy, Load
from ..runtime.logs.reader import FETCH_RECORDS_MAX, HistoryTrimmed, LogReader, signals_topic
from ..runtime.outside_requests import GroupLogs
from .group_logs import GroupMoment, LastBeats, costs_of, parked_by, read_signal_contents
from .group_text import beat_text, busy_text, group_json, group_text, ranges_text, under_way

if TYPE_CHECKING:
    from rich.console import RenderableType

Show: TypeAlias = Callable[[GroupMoment], None]

INTERVAL_MS: Final = 500
"""The default time between two looks."""


class _SignalListener:
    """The content of the signals: of the recent ones, read by ``open``, and of new ones, read by ``listen``.

    Without signals of the group both do nothing.
    """

    def __init__(self, group: GroupLogs, control: Control) -> None:
        self.group = group
        self.beats = Beats(control)
        self.sources = [TopicPartition(signals_topic(group.app), partition) for partition in range(PARTITIONS)]
        self.loads = Loads()
        self.copies = dict[int, Mapping[int, Copy]]()
        self.parked = dict[int, str]()
        self._before: LastBeats | None = None
        """The last beats in front of ``open``."""
        self._reader: Reader | None = None
        """None: the group has no signals, or ``open`` has not run."""

    async def open(self, wall_ms: Callable[[], int]) -> None:
        """Read the recent signals, and start to listen."""
        if not self.group.has_signals:
            return
        broker, limit = self.group.broker, self.group.settings.call_limit_ms
        marks = await within_limit(broker.watermarks(self.sources), limit, f"watermarks of {self.sources[0].topic}")
        self._before, self.loads, copies, parked = await read_signal_contents(
            self.group, self.beats.control, None, wall_ms
        )
        self.copies, self.parked = {**copies}, {**parked}
        self._reader = await within_limit(broker.reader({}), limit, f"opening a reader of {self.sources[0].topic}")
        self._reader.assign({source: mark.high for source, mark in marks.items()})

    async def listen(self, wait_ms: int) -> None:
        """Take in new signals, waiting up to ``wait_ms``."""
        if self._reader is None:
            await asyncio.sleep(wait_ms / 1000)
            return
        try:
            batches = await self._reader.fetch(self.sources, records_max=FETCH_RECORDS_MAX, wait_ms=wait_ms)
        except OffsetOutOfRange as error:  # retention has trimmed this offset
            self._reader.assign(
                {**{s: self._reader.position(s) for s in self.sources}, error.source: error.watermarks.start}
            )
            return
        for partition, record in ((batch.source.partition, record) for batch in batches for record in batch.records):
            with contextlib.suppress(SignalError):  # a newer version's: no fact
                signal = decode_signal(record.value or b"")
                self.beats.hear(record.timestamp, signal)
                if isinstance(signal, Load):
                    self.loads.hear(signal, record.timestamp)
                elif isinstance(signal, Copies):
                    self.copies[signal.incarnation] = {copy.move: copy for copy in signal.copies}
                elif partition == COORDINATORS and (waits := parked_by(self.beats.control, signal)) is not None:
                    self.parked = waits

    @property
    def heard(self) -> LastBeats | None:
        """The last beat of each member; None without signals."""
        if self._before is None:
            return None
        members, new_ms = self.beats.control.unfenced_members(), self.beats.last_ms
        last_ms = {**self._before.last_ms, **{m.incarnation: new_ms[m.birth] for m in members if m.birth in new_ms}}
        return LastBeats(last_ms, {i for i in self._before.expired if i not in last_ms})

    async def close(self) -> None:
        """Let go of the connection."""
        if self._reader is not None:
            await self._reader.close()


async def watch(group: GroupLogs, wall_ms: Callable[[], int], interval_ms: int, show: Show) -> None:
    """Show the group in intervals, until cancelled. Raises LogError, BrokerError."""
    loop, interval_s = asyncio.get_running_loop(), interval_ms / 1000
    logs = LogReader(group.app, group.broker, group.settings, group.log_partitions)
    ledger = await logs.begin_offsets(await logs.read_control(Ledger()))
    signals, table = _SignalListener(group, ledger.control), PieceTable()
    try:
        await signals.open(wall_ms)
        while True:
            began_s = loop.time()
            shown = show_group(table, ledger, signals.copies, signals.parked)
            show(
                GroupMoment(
                    group=shown, at_ms=None, now_ms=wall_ms(), heard=signals.heard, costs=costs_of(shown, signals.loads)
                )
            )
            await signals.listen(interval_ms)
            await asyncio.sleep(max(0.0, began_s + interval_s - loop.time()))
            ledger = await logs.read_control(ledger)
            try:
                ledger = await logs.read_offsets(ledger, None, await logs.ends_of(logs.offset_logs()))
            except HistoryTrimmed:  # the watch fell behind the application's trimming: begin at a snapshot again
                ledger = await logs.begin_offsets(ledger)
    finally:
        await signals.close()
        await logs.close()


# --- how it is shown --------------------------------------------------------------------------------------------------


@contextmanager
def shown_on_screen(app: str, *, as_json: bool, is_all: bool) -> Iterator[Show]:
    """Yields the function that shows a group: on a terminal a picture that is renewed, else a block of lines for each
    change of the group, or a line of JSON for each change.
    """
    if as_json or not sys.stdout.isatty():
        yield changes_shown(app, group_json if as_json else partial(group_text, is_all=is_all), _write)
        return
    from rich.live import Live

    with Live(auto_refresh=False, screen=False) as live:
        yield lambda stands: live.update(picture(app, stands, is_all=is_all), refresh=True)


def changes_shown(app: str, text: Callable[[str, GroupMoment], str], write: Callable[[str], None]) -> Show:
    """A function that writes the group after each change of the group. Beats and loads alone are no change."""
    before: GroupShown | None = None

    def show(stands: GroupMoment) -> None:
        nonlocal before
        if stands.group != before:
            before = stands.group
            write(text(app, stands))

    return show


def picture(app: str, stands: GroupMoment, *, is_all: bool = False) -> "RenderableType":
    """The group for a terminal: its members, and the work under way, see ``under_way``."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    group = stands.group
    members = Table("member", "host", "standing", "last beat", "busy", "share", "ranges", box=None, pad_edge=False)
    for member in group.members:
        role = "coordinates" if member.is_coordinator else member.standing
        beat = beat_text(member, stands).removeprefix("last beat ")
        name = f"{member.incarnation} {member.instance}".strip()
        busy = busy_text(member, stands) or "?"
        members.add_row(
            *map(Text, (name, member.host or "?", role, beat, busy, f"{member.share:.0%}", ranges_text(member.held)))
        )
    parts: list[RenderableType] = [
        Text(f"{app}: {group.state.value}, term {group.term}, level {group.level}", style="bold"),
        members if group.members else Text("no member"),
    ]
    if lines := under_way(group, is_all=is_all):
        parts += [Text(), *map(Text, lines)]
    return Group(*parts)


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
