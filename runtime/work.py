"""The objects that a process works with once it has joined its group."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ..brokers.protocol import TopicPartition
from .build_info import IS_COMPILED
from .ends_watch import CatchUpProgress, EndsWatch
from .engine.balance import Balance
from .engine.commit import CommitCycle
from .engine.old_records import OldRecords
from .engine.partition_run import PartitionRun
from .engine.readers import CatchUp, MainReader, ReadAhead
from .engine.slots import Slots
from .engine.windows import Windows
from .holding import Holding
from .load_report import LoadReport
from .logs.own_ledger import OwnLedger
from .membership.group import Group
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


def make_work(
    *,
    cycle: CommitCycle,
    holding: Holding,
    group: Group,
    old_records: OldRecords,
    read_ahead: ReadAhead,
    cpu_s: Callable[[], float],
) -> Work:
    """Make the parts around the commit cycle and the ranges of a process. To be called on the loop."""
    own_ledger, settings, slots, runs = holding.own_ledger, holding.settings, cycle.slots, holding.runs
    broker = own_ledger.identity.broker
    balance = Balance(runs, cycle.range_changes, settings, cpu_s) if settings.split_hot_ranges else None
    windows = Windows(runs, settings, balance)
    ends_watch = EndsWatch(
        broker=broker,
        settings=settings,
        holding=holding,
        unowned=group.unowned_ranges,
        seen_s=asyncio.get_running_loop().time(),
    )
    return Work(
        runs=runs,
        ends=holding.found,
        own_ledger=own_ledger,
        cycle=cycle,
        reader=MainReader(
            broker=broker, slots=slots, settings=settings, read_ahead=read_ahead, old_records=old_records
        ),
        catch_up=CatchUp(broker, slots, settings, read_ahead),
        windows=windows,
        balance=balance,
        requests=Requests(holding, cycle, group.member_signals),
        ends_watch=ends_watch,
        load_report=LoadReport(
            windows=windows, ends_watch=ends_watch, keeper=holding.keeper, group=group, settings=settings
        ),
        way=CatchUpProgress(ends_watch),
        holding=holding,
    )
