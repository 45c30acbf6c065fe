"""What a process works on once it is in office, and with what."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from ..brokers.protocol import TopicPartition
from .compiled import IS_COMPILED
from .ends_watch import EndsWatch, WayToLevel
from .engine.balance import Balance
from .engine.commit import CommitCycle
from .engine.partition_run import PartitionRun
from .engine.readers import CatchUp, MainReader
from .engine.slots import Slots
from .engine.windows import Windows
from .holding import Holding
from .load_report import LoadReport
from .logs.office import OwnLedger
from .requests import Requests
from .watch.statistics import Statistics


@dataclass(slots=True)
class Work:
    """Made in one step when the process has joined, and there to its end. ``runs`` come and go with what it holds."""

    runs: list[PartitionRun]
    ends: dict[TopicPartition, int]
    """Where each source partition ended when something of it was taken up first."""
    standing: OwnLedger
    cycle: CommitCycle
    reader: MainReader
    catch_up: CatchUp
    windows: Windows
    balance: Balance | None
    """None: hot ranges are not to be split."""
    requests: Requests
    ends_watch: EndsWatch
    load_report: LoadReport
    way: WayToLevel
    holding: Holding

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on from here to the end beside the commits."""
        keeper = self.holding.keeper
        beside = (keeper.learner, keeper.key_places, self.ends_watch, self.load_report)
        works = (self.reader, self.windows, self.holding, *beside)
        return [*(one.run() for one in works), self.load_report.sample()]

    def stop_reading(self) -> None:
        """Nothing more is read, and nothing split or merged."""
        self.reader.stop()
        self.catch_up.stop()
        self.windows.stop()
        if self.balance is not None:
            self.balance.stop()

    def statistics(self, slots: Slots, now_s: float) -> Statistics:
        """What has been done since it was made, and where it stands."""
        sent, balance, ends = self.cycle.transactions, self.balance, self.ends_watch
        partitions = ends.partitions()
        return Statistics(
            partitions=partitions,
            records_done=slots.records_done,
            lag=sum(partition.lag for partition in partitions),
            unowned=ends.unowned(),
            ends_age_s=now_s - ends.seen_s,
            failures=slots.failures.attempts,
            retries=slots.failures.retries,
            dead_letters=slots.failures.dead_letters,
            commits=sent.commits,
            tiles=sent.tiles,
            event_bytes=sent.event_bytes,
            throttled_ms=self.holding.standing.identity.broker.throttling.total_ms,
            trims_failed=sent.snapshots.trims_failed,
            done_bytes=slots.done_bytes - slots.held_bytes,
            running=slots.running(),
            oldest_running=slots.oldest_running(now_s),
            last_commit_age_s=None if sent.last_commit_s is None else now_s - sent.last_commit_s,
            splits=0 if balance is None else balance.splits,
            merges=0 if balance is None else balance.merges,
            hot_keys=() if balance is None else tuple(balance.hot_keys),
            copying=self.holding.keeper.learner.statistics(),
            to_level=self.way.gone(),
            is_compiled=IS_COMPILED,
        )
