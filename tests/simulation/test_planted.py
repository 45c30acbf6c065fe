"""The simulation's own test: a defect of each kind, planted into the runtime, is found by its seeds."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from keylanes.offsets.ledger import Ledger, evolve_all
from keylanes.runtime import reshape, restore, structure
from keylanes.runtime.brokers.protocol import Batch, BrokerError
from keylanes.runtime.brokers.simulated import EPOCH_MS, ConnectionSevered, SimulatedConnection
from keylanes.runtime.commit import CommitCycle
from keylanes.runtime.context import Context
from keylanes.runtime.coordinator import Coordinator
from keylanes.runtime.dispatch import PartitionDispatch, Worker
from keylanes.runtime.history import History
from keylanes.runtime.keeper import Keeper
from keylanes.runtime.logs import LogReader
from keylanes.runtime.partition_state import PartitionState, Scope
from keylanes.state.overlay import Overlay
from keylanes.state.restore import Plan
from keylanes.state.tables import Change

from ..runtime import test_state_running
from .world import run_seed

SEEDS_SEARCHED = 1_000

logger = logging.getLogger("tests.simulation")
pytestmark = pytest.mark.slow
Plant = Callable[[pytest.MonkeyPatch], None]


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """An expelled process is not fenced: its open transaction may still be committed."""

    async def fence(self: SimulatedConnection, transactional_id: str) -> None:
        return None

    patch.setattr(SimulatedConnection, "fence", fence)


def read_before_fence(patch: pytest.MonkeyPatch) -> None:
    """The edges of a grant are read before the older process is fenced."""
    fence, begin = Coordinator._fence_others, LogReader.begin_offsets
    early: dict[int, Ledger] = {}

    async def read_then_fence(self: Coordinator, ledger: Ledger) -> Ledger:
        early[id(self.logs)] = await begin(self.logs)
        return await fence(self, ledger)

    async def begin_early(self: LogReader) -> Ledger:
        return early[id(self)]

    async def read_nothing(self: Coordinator, ledger: Ledger, incarnation: int) -> Ledger:
        return ledger

    patch.setattr(Coordinator, "_fence_others", read_then_fence)
    patch.setattr(LogReader, "begin_offsets", begin_early)
    patch.setattr(Coordinator, "_read_all", read_nothing)


def producer_kept(patch: pytest.MonkeyPatch) -> None:
    """After a failure the same producer goes on."""

    async def keep(self: CommitCycle) -> None:
        return None

    async def read_only(self: CommitCycle, deadline: float, *, was_fenced: bool = False) -> None:
        self._producer._usable = True  # type: ignore[union-attr]  # the simulated producer refuses this by itself
        await self._read_logs()

    patch.setattr(CommitCycle, "_drop_producer", keep)
    patch.setattr(CommitCycle, "_replace_producer", read_only)


def unknown_is_aborted(patch: pytest.MonkeyPatch) -> None:
    """A transaction of unknown outcome is sent again without looking into the log."""

    async def replace(self: CommitCycle, deadline: float, *, was_fenced: bool = False) -> None:
        while True:
            try:
                self._producer = await self.coordinator.make_producer()
            except ConnectionSevered:  # dead: it would try for ever
                raise
            except BrokerError:
                continue
            return

    patch.setattr(CommitCycle, "_replace_producer", replace)


def office_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A fenced process makes itself a new producer and goes on."""

    def nobody_else(self: Coordinator, ledger: Ledger, incarnation: int) -> None:
        return None

    patch.setattr(Coordinator, "check_in_office", nobody_else)


def found_in_one_partition(patch: pytest.MonkeyPatch) -> None:
    """What is known of own transactions is looked up anew for each partition of the log."""
    read = LogReader.read_offsets

    async def look_up(self: LogReader, ledger: Ledger, log_partition: int, folded: tuple[int, int] = (0, 0)) -> Ledger:
        return await read(self, ledger, log_partition, (folded[0], ledger.transactions.get(folded[0], 0)))

    patch.setattr(LogReader, "read_offsets", look_up)


def last_plus_one(patch: pytest.MonkeyPatch) -> None:
    """The front stands behind the last record instead of at the reader's position."""
    hand_out = PartitionDispatch.hand_out

    def narrow(self: PartitionDispatch, batch: Batch, index: int, ready: list[Worker]) -> Any:
        end = batch.records[-1].offset + 1 if batch.records else self.front
        return hand_out(self, batch._replace(offset_next=end), index, ready)

    patch.setattr(PartitionDispatch, "hand_out", narrow)


def edge_forgets(what: str) -> Plant:
    """The edge does not look at something that holds it back."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        def edge_now(self: Worker, front: int) -> int:
            waiting = self.queue[0].offset if self.queue else None
            bounds: dict[str, int | None] = {
                "running": self.running.offset if self.running is not None else None,
                "queue": waiting if self.running is None else None,
                "dropped_from": self.dropped_from,
            }
            return min([front, *(b for name, b in bounds.items() if b is not None and name != what)])

        patch.setattr(Worker, "edge_now", edge_now)

    return plant


def catch_up_from_too_far(patch: pytest.MonkeyPatch) -> None:
    """The catch-up pass starts behind the first record that its worker lacks."""
    start = PartitionDispatch.catch_up_start

    def late(self: PartitionDispatch) -> int | None:
        found = start(self)
        return None if found is None else found + 1

    patch.setattr(PartitionDispatch, "catch_up_start", late)


def merged_when_not_level(patch: pytest.MonkeyPatch) -> None:
    """Neighbours become one although they stand at different offsets."""

    def hold(workers: list[Worker]) -> bool:
        for worker in workers:
            worker.hold_at = worker.taken_to
        return all(worker.dropped_from is None for worker in workers)

    def always(workers: list[Worker]) -> bool:
        return all(w.running is None and not w.done for w in workers)

    patch.setattr(reshape, "hold", hold)
    patch.setattr(structure, "are_level", always)
    patch.setattr(reshape, "are_level", always)


def snapshot_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """What stands between a snapshot's position and its own place is not read again."""
    search = LogReader._search_snapshot

    async def skip(self: LogReader, log_partition: int, source: Any, marks: Any) -> Any:
        snapshot, position = await search(self, log_partition, source, marks)
        return snapshot, marks.high if snapshot else position

    patch.setattr(LogReader, "_search_snapshot", skip)


def trimmed_too_far(patch: pytest.MonkeyPatch) -> None:
    """The log is trimmed up to now, its newest snapshot with it."""

    async def everything(self: History, log_partition: int, below: int) -> int:
        return (await self.logs.watermarks(self.logs.offsets(log_partition))).high

    patch.setattr(History, "_old_enough", everything)


def attempts_share_a_context(patch: pytest.MonkeyPatch) -> None:
    """What a failed attempt sent is sent together with what the next one sends."""
    kept: dict[tuple[str, int, int], list[Any]] = {}
    make, close = Context.__init__, Context.close

    def init(self: Context, topic: str, partition: int, record: Any, attempt: int) -> None:
        make(self, topic, partition, record, attempt)
        self._sent = kept.setdefault((topic, partition, record.offset), []) if attempt > 1 else self._sent

    def close_and_keep(self: Context) -> Any:
        sent = close(self)
        kept[self.topic, self.partition, self.offset] = list(sent)
        return sent

    patch.setattr(Context, "__init__", init)
    patch.setattr(Context, "close", close_and_keep)


def failed_is_committed(patch: pytest.MonkeyPatch) -> None:
    """A transaction that failed for sure is treated as if it had been committed."""
    transact = CommitCycle._transact

    async def trust(self: CommitCycle, generation: Any, deadline: float) -> Any:
        failure = await transact(self, generation, deadline)
        if failure is not None:
            self.ledger = evolve_all(self.ledger, generation.events(self.transaction))
            self._finish(generation, 0)
        return None

    patch.setattr(CommitCycle, "_transact", trust)


# --- state -----------------------------------------------------------------------------------------------------------


def written_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The copy takes what a transaction changes before it is committed."""
    records = Keeper.records

    def write_first(self: Keeper, changes: Any, incarnation: int, transaction: int) -> Any:
        for changed in changes:
            self._followers[changed.dispatch.topic, changed.dispatch.partition].write(changed.last.items())
        return records(self, changes, incarnation, transaction)

    patch.setattr(Keeper, "records", write_first)


def marker_with_the_first_slice(patch: pytest.MonkeyPatch) -> None:
    """The copy's marker is written ahead of the data that it speaks of."""
    follow = Keeper._follow

    async def mark_first(self: Keeper, place: Any, copy: Any, last: Any, position: int) -> None:
        copy.write((), self._marks(place, position))
        await follow(self, place, copy, last, position)

    patch.setattr(Keeper, "_follow", mark_first)


def map_of_all_keys(patch: pytest.MonkeyPatch) -> None:
    """What is done of a map is looked for by the store alone, not by the record's key."""

    def entries(self: Overlay, prefix: bytes) -> list[Change]:
        return sorted((at, value) for at, value in self._newest.items() if at[4:6] == prefix[4:6])

    patch.setattr(Overlay, "entries", entries)


def attempts_share_writes(patch: pytest.MonkeyPatch) -> None:
    """What a failed attempt wrote is there for the next one."""
    kept: dict[str, Any] = {}
    make, close = Scope.__init__, Scope.close

    def init(self: Scope, state: PartitionState, where: str, timestamp_ms: int) -> None:
        make(self, state, where, timestamp_ms)
        self.writes.update(kept.pop(where, {}))

    def close_and_keep(self: Scope) -> Any:
        kept[self._where] = dict(self.writes)
        return close(self)

    patch.setattr(Scope, "__init__", init)
    patch.setattr(Scope, "close", close_and_keep)


def restored_to_the_last_but_one(patch: pytest.MonkeyPatch) -> None:
    """A restore leaves out the last change below the high watermark."""
    apply = Plan.apply

    def early(self: Plan, records: Any) -> list[Change]:
        is_end = bool(records) and records[-1].offset >= self.high - 2
        changes = apply(self, records)
        return changes[:-1] if is_end else changes

    patch.setattr(Plan, "apply", early)


def time_of_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Time to live is counted from the clock, not from the records' timestamps."""
    make = Scope.__init__

    def init(self: Scope, state: PartitionState, where: str, timestamp_ms: int) -> None:
        make(self, state, where, EPOCH_MS + int(asyncio.get_running_loop().time() * 1000))

    patch.setattr(Scope, "__init__", init)


def no_tombstones(patch: pytest.MonkeyPatch) -> None:
    """A delete is made in the copy and left out of the changelog."""
    records = Keeper.records

    def without(self: Keeper, changes: Any, incarnation: int, transaction: int) -> Any:
        outgoing, events = records(self, changes, incarnation, transaction)
        return [record for record in outgoing if record.value is not None], events

    patch.setattr(Keeper, "records", without)


def beacon_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A changelog is taken for the state without asking who changed it last."""
    patch.setattr(restore, "check_beacon", lambda found, expected: None)


def older_read_wins(patch: pytest.MonkeyPatch) -> None:
    """What was read ahead is kept, though something newer was settled meanwhile."""
    end = PartitionState.end_reading

    def keep(self: PartitionState, settled: Any, keys: Any, values: Any) -> None:
        settled.clear()
        end(self, settled, keys, values)

    patch.setattr(PartitionState, "end_reading", keep)


def copy_trusted_after_a_grant(patch: pytest.MonkeyPatch) -> None:
    """A range that comes back is worked with whatever the copy holds of it."""

    async def trust(self: Keeper, place: Any, ranges: Any) -> None:
        state = self.states[place]
        state.ready = state.ready.replace((within.first, within.end, True) for within in ranges)

    patch.setattr(Keeper, "take_up", trust)


def granted_too_early(patch: pytest.MonkeyPatch) -> None:
    """A range is granted from the edges of before, while its release is being committed."""
    patch.setattr(reshape.Reshape, "is_leaving", lambda self, run, within: None)


PLANTS: dict[str, Plant] = {
    "no fence": no_fence,
    "offset log read before the fence": read_before_fence,
    "producer kept after a failure": producer_kept,
    "unknown taken for aborted": unknown_is_aborted,
    "fenced process goes on": office_not_checked,
    "unknown transaction found in one partition only": found_in_one_partition,
    "front at the last record + 1": last_plus_one,
    "edge forgets the running record": edge_forgets("running"),
    "edge forgets the queue": edge_forgets("queue"),
    "edge forgets what was dropped": edge_forgets("dropped_from"),
    "catch-up starts too late": catch_up_from_too_far,
    "merge of workers that are not level": merged_when_not_level,
    "events behind a snapshot's position skipped": snapshot_at_the_end,
    "log trimmed with its newest snapshot": trimmed_too_far,
    "attempts share what they send": attempts_share_a_context,
    "failed transaction taken for committed": failed_is_committed,
    "state written before the commit": written_before_the_commit,
    "marker ahead of the data": marker_with_the_first_slice,
    "map read across keys": map_of_all_keys,
    "failed attempt's state kept": attempts_share_writes,
    "restore stops one change early": restored_to_the_last_but_one,
    "time to live by the clock": time_of_the_clock,
    "delete without a tombstone": no_tombstones,
}

NAMED: dict[str, tuple[Plant, Callable[[], None]]] = {
    "beacon not checked": (beacon_not_checked, test_state_running.test_truncated_changelog_is_noticed),
    "older read wins": (older_read_wins, test_state_running.test_older_read_never_hides_what_was_settled),
    "older read wins, seen by a handler": (
        older_read_wins,
        test_state_running.test_nothing_is_read_ahead_twice_and_old,
    ),
    "copy trusted after a grant": (
        copy_trusted_after_a_grant,
        test_state_running.test_stale_copy_of_a_range_that_comes_back,
    ),
    "granted while its release is being committed": (
        granted_too_early,
        test_state_running.test_grant_while_the_release_is_being_committed,
    ),
}
"""Found by a test of their own: their interleavings need a second process, a slow disk, or a damaged topic."""


@pytest.mark.parametrize("name", NAMED)
def test_a_planted_defect_is_found_by_its_test(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test passes without the defect, and fails with it."""
    plant, test = NAMED[name]
    test()
    plant(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):
        test()


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the seeds fails; a rare interleaving may need more of them than ``check`` runs."""
    PLANTS[name](monkeypatch)
    for seed in range(SEEDS_SEARCHED):
        try:
            run_seed(seed)
        except Exception as error:  # noqa: BLE001  # whatever it is that finds it
            logger.info("%s: found by seed %d: %s: %.200s", name, seed, type(error).__name__, error)
            return
    pytest.fail(f"no seed of {SEEDS_SEARCHED} found: {name}")
