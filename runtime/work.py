"""The objects that a process works with once it has joined its group."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from ..brokers.protocol import TopicPartition
from .build_info import IS_COMPILED
from .ends_watch import CatchUpProgress, EndsWatch
from .engine.balance import Balance
from .engine.commit import CommitCycle
from .engine.partition_run import PartitionRun
from .engine.readers import CatchUp, MainReader
from .engine.slots import Slots
from .engine.windows import Windows
from .holding import Holding
from .load_report import LoadReport
from .logs.own_ledger import OwnLedger
from .requests import Requests
from .watch.statistics import Statistics


@dataclass(slots=True)
class Work:
    """The parts of a working process: made together after the joining."""

    runs: list[PartitionRun]
    """The source partitions with ranges in this process; partitions come and go with their ranges."""
    ends: dict[TopicPartition, int]
    """The end of each source partition at the first take-up of its ranges."""
    own_ledger: OwnLedger
    cycle: CommitCycle
    reader: MainReader
    catch_up: CatchUp
    windows: Windows
    balance: Balance | None
    """None: hot ranges are not split."""
    requests: Requests
    ends_watch: EndsWatch
    load_report: LoadReport
    way: CatchUpProgress
    holding: Holding

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """The loops of the work, without the loop of the commits: from the start of the work to its end."""
        keeper = self.holding.keeper
        beside = (keeper.learner, keeper.key_places, self.ends_watch, self.load_report)
        works = (self.reader, self.windows, self.holding, *beside)
        return [*(one.run() for one in works), self.load_report.sample()]

    def stop_reading(self) -> None:
        """Stop reading, splitting and merging."""
        self.reader.stop()
        self.catch_up.stop()
        self.windows.stop()
        if self.balance is not None:
            self.balance.stop()

    def statistics(self, slots: Slots, now_s: float) -> Statistics:
        """The work done since the start, and the present state."""
        sent, balance, ends = self.cycle.transactions, self.balance, self.ends_watch
        partitions = ends.partitions()
        return Statistics(
            partitions=partitions,
            records_done=slots.records_done,
            lag=sum(partition.lag for partition in partitions),
            unowned=ends.unowned_ranges(),
            ends_age_s=now_s - ends.seen_s,
            failures=slots.failures.attempts,
            retries=slots.failures.retries,
            dead_letters=slots.failures.dead_letters,
            commits=sent.commits,
            tiles=sent.tiles,
            event_bytes=sent.event_bytes,
            throttled_ms=self.holding.own_ledger.identity.broker.throttling.total_ms,
            trims_failed=sent.snapshots.trims_failed,
            done_bytes=slots.done_bytes,
            running=slots.count_running(),
            oldest_running=slots.oldest_running(now_s),
            last_commit_age_s=None if sent.last_commit_s is None else now_s - sent.last_commit_s,
            splits=0 if balance is None else balance.splits,
            merges=0 if balance is None else balance.merges,
            hot_keys=() if balance is None else tuple(balance.hot_keys),
            copying=self.holding.keeper.learner.statistics(),
            to_level=self.way.progress(),
            is_compiled=IS_COMPILED,
        )
