"""Defects in state: what is written when, markers and restores, reading ahead, and what an attempt sees."""

import asyncio
from collections.abc import Callable
from typing import Any

from keylanes.brokers.protocol import ConsumerRecord
from keylanes.brokers.simulated.broker import EPOCH_MS
from keylanes.brokers.simulated.log import SimulatedRecord
from keylanes.runtime.handlers.partition_state import PartitionState, Scope
from keylanes.runtime.stores import copy_pass
from keylanes.runtime.stores.keeper import Keeper
from keylanes.runtime.stores.state_writers import StateWriters
from keylanes.runtime.stores.storage import OwnCopy
from keylanes.state import keys
from keylanes.state import restore as state_restore
from keylanes.state.changelog import is_beacon_key
from keylanes.state.overlay import Absent, Layer, Overlay
from keylanes.state.restore import BeaconSearch, Plan
from keylanes.state.tables import Change

from ..runtime.stores import test_restore, test_state_running, test_two_writers
from ..stage.planting import Planting, Put, changed
from ..state import test_copies_folder, test_keys
from . import plants_rocks
from .plants import LED_TO, Plant, in_folder
from .plants_copies import CLAIMS

SAW = f"{LED_TO} saw "
WRONG_STATE = rf"the changelog has|lies ahead of the changelog|is .* at Marker\(|{CLAIMS}|{SAW}"
BEHIND_A_MARKER = r"value is not None|>= marker\.position"


def written_before_the_commit(patch: Planting) -> None:
    """The copy takes what a transaction changes before it is committed."""
    records = Keeper.records

    def write_first(self: Keeper, changes: Any, incarnation: int, transaction: int) -> Any:
        for changed_now in changes:
            written = [(cell.key, value) for cell, value in changed_now.last.items()]
            storage = self.storages[changed_now.place]
            assert isinstance(storage, OwnCopy), "it is planted where there are copies"
            storage.copy.write(written)
        return records(self, changes, incarnation, transaction)

    patch.setattr(Keeper, "records", write_first)


def marker_with_the_first_slice(patch: Planting) -> None:
    """The copy's marker is written ahead of the data that it speaks of."""
    follow = OwnCopy._follow

    async def mark_first(self: OwnCopy, last: Any, position: int, time_ms: int) -> None:
        self.copy.write((), self.marks(position, time_ms))
        await follow(self, last, position, time_ms)

    patch.setattr(OwnCopy, "_follow", mark_first)


def map_of_all_keys(patch: Planting) -> None:
    """What is done of a map is looked for by the store alone, not by the record's key."""

    def entries(self: Overlay, prefix: bytes) -> list[Change]:
        within = [(key, self.get(key)) for entries in self._maps.values() for key in entries if key[4:6] == prefix[4:6]]
        return sorted((key, value) for key, value in within if not isinstance(value, Absent))

    patch.setattr(Overlay, "map_changes", entries)


def attempts_share_writes(patch: Planting) -> None:
    """What a failed attempt wrote is there for the next one."""
    kept: dict[str, Layer] = {}
    begin, close = Scope.begin, Scope.close

    def begin_with_kept(self: Scope, record: ConsumerRecord) -> None:
        begin(self, record)
        if (before := kept.pop(self._where, None)) is not None:
            for cell, value in zip(before.entries, before.values, strict=True):
                self._put(cell, value)

    def close_and_keep(self: Scope) -> Any:
        kept[self._where] = self.writes.layer()
        return close(self)

    patch.setattr(Scope, "begin", begin_with_kept)
    patch.setattr(Scope, "close", close_and_keep)


def restored_to_the_last_but_one(patch: Planting) -> None:
    """A restore leaves out the last change below the high watermark."""
    apply = Plan.apply

    def early(self: Plan, records: Any) -> list[Change]:
        is_end = bool(records) and records[-1].offset >= self.high - 2
        changes = apply(self, records)
        return changes[:-1] if is_end else changes

    patch.setattr(Plan, "apply", early)


def restore_marked_at_its_end(patch: Planting) -> None:
    """A restore notes with its first batch that it is through."""
    marks = Plan.marks

    def through(self: Plan, position: int) -> Any:
        return marks(self, self.high)

    patch.setattr(Plan, "marks", through)


def time_of_the_clock(patch: Planting) -> None:
    """Time to live is counted from the clock, not from the records' timestamps."""
    begin = Scope.begin

    def begin_now(self: Scope, record: ConsumerRecord) -> None:
        now = EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)
        begin(self, SimulatedRecord(record.offset, now, record.key, record.value, record.headers))

    patch.setattr(Scope, "begin", begin_now)


def no_tombstones(patch: Planting) -> None:
    """A delete is made in the copy and left out of the changelog."""
    records = Keeper.records

    def without(self: Keeper, changes: Any, incarnation: int, transaction: int) -> Any:
        outgoing, events = records(self, changes, incarnation, transaction)
        return [row for row in outgoing if row.value is not None or is_beacon_key(row.key or b"")], events

    patch.setattr(Keeper, "records", without)


def beacon_not_checked(patch: Planting) -> None:
    """A changelog is taken for the state without asking who changed it last."""
    patch.setattr(state_restore, "check_beacons", lambda found, writers: None)


def copy_trusted_after_a_grant(patch: Planting) -> None:
    """A range that comes back is worked with whatever the copy holds of it."""
    take_up = Keeper.take_up

    async def trust(self: Keeper, granted: Any, logs: Any, incarnation: int, on_whole: Any) -> None:
        known = {place for place in granted if getattr(self.storages.get(place), "position", None) is not None}
        await take_up(self, {place: granted[place] for place in granted.keys() - known}, logs, incarnation, on_whole)
        for place in known:
            state = self.storages[place].state
            state.ready = state.ready.replace((within.first, within.end, True) for within in granted[place])
            on_whole(place)

    patch.setattr(Keeper, "take_up", trust)


def on_disk(defect: Callable[[plants_rocks.Set], None]) -> Put:
    """A defect in this process and in the writers that it starts."""

    def put(patch: Planting) -> None:
        defect(patch.setattr)
        planted = f"import runpy\nrunpy.run_path({plants_rocks.__file__!r})[{defect.__name__!r}](setattr)\n"
        patch.setattr(test_copies_folder, "WRITE", planted + test_copies_folder.WRITE)

    return put


PLANTS = [
    Plant(
        "state applied before the commit",
        written_before_the_commit,
        kinds=("aborted", "crash", "away"),
        stateful=True,
        finding="nobody has committed it",
    ),
    Plant(
        "marker in another column family",
        on_disk(plants_rocks.marker_in_another_family),
        (in_folder(test_copies_folder.test_a_killed_writer_leaves_no_change_behind_a_marker),),
        finding=BEHIND_A_MARKER,
    ),
    Plant(
        "marker in a batch of its own",
        on_disk(plants_rocks.marker_in_a_batch_of_its_own),
        (in_folder(test_copies_folder.test_a_torn_log_leaves_no_change_behind_a_marker),),
        finding=BEHIND_A_MARKER,
    ),
    Plant(
        "marker ahead of the data",
        marker_with_the_first_slice,
        kinds=("crash", "power", "slow disk"),
        stateful=True,
        finding=WRONG_STATE,
    ),
    Plant(
        "marker one too far",
        changed(OwnCopy, "_follow", ("self.marks(position, time_ms)", "self.marks(position + 2, time_ms)")),
        stateful=True,
        finding=WRONG_STATE,
    ),
    Plant("overlay read across keys", map_of_all_keys, stateful=True, finding=SAW),
    Plant(
        "settled while a newer write waits",
        changed(
            Overlay,
            "settle",
            ("if cell.layers:", "cell.value = layer.values[layer.entries.index(cell)]\n            if cell.layers:"),
        ),
        stateful=True,
        finding=SAW,
    ),
    Plant("failed attempt's state kept", attempts_share_writes, stateful=True, finding=WRONG_STATE),
    Plant("restore stops one change early", restored_to_the_last_but_one, stateful=True, finding=WRONG_STATE),
    Plant(
        "restore marked at its end",
        restore_marked_at_its_end,
        (test_restore.test_broken_off_and_gone_on_with,),
        finding=r"total <= first \+ second",
    ),
    Plant(
        "restore waits for a record at its end",
        changed(
            copy_pass,
            "plan_passes",
            ("markers, start, high,", "markers, start, high + one.has_end,"),
        ),
        stateful=True,
        finding="reading .* has stood at",
    ),
    Plant("time to live by the clock", time_of_the_clock, stateful=True, finding="lasts until another time"),
    Plant("delete without a tombstone", no_tombstones, stateful=True, finding=WRONG_STATE),
    Plant(
        "beacon in one partition only",
        changed(
            StateWriters,
            "records",
            (
                "records.append(Outgoing(topic, partition, key, beacon))",
                "records.append(Outgoing(topic, changes[0].place[1], key, beacon))",
            ),
        ),
        stateful=True,
        finding="the changelog has .*records wrote",
    ),
    Plant(
        "beacon of another partition",
        changed(
            StateWriters,
            "by_logs",
            (
                "self._writers(ledger, place, living, own)",
                "self._writers(ledger, (place[0], 0), living, own)",
            ),
        ),
        stateful=True,
        finding="StateError.*it holds state up to",
    ),
    Plant(
        "beacon not checked",
        beacon_not_checked,
        (test_state_running.test_truncated_changelog_is_noticed,),
        finding="DID NOT RAISE .*StateError",
    ),
    Plant(
        "one beacon for all writers",
        changed(
            StateWriters,
            "records",
            (
                "encode_beacon(Beacon(incarnation, transaction))",
                "beacon_key(0), transaction.to_bytes(8, 'big')",
            ),
        ),
        (test_two_writers.test_transactions_one_in_the_other,),
        finding="StateError.*no transaction of incarnation [12]",
    ),
    Plant(
        "living writer stands still",
        changed(
            state_restore,
            "check_beacons",
            ("seen == last if writers.is_fenced(incarnation) else seen >= last", "seen == last"),
        ),
        (test_two_writers.test_start_beside_a_writer_that_goes_on,),
        finding="StateError.*up to transaction 2 of incarnation 2",
    ),
    Plant(
        "living writer succeeded",
        changed(StateWriters, "succeed", ("known.is_fenced(i) and ", "")),
        (test_two_writers.test_start_beside_a_writer_that_goes_on,),
        finding=r"\(3, \(1, 2\)\)",
    ),
    Plant(
        "deleted beacon missed",
        changed(state_restore, "check_beacons", ("incarnation in found and is_ahead", "False")),
        (test_two_writers.test_succeeded_while_another_one_starts,),
        finding="StateError.*no transaction of incarnation 1",
    ),
    Plant(
        "search ends at the first beacon",
        changed(BeaconSearch, "span", ("is_any and self._writers.required <= self.found.keys()", "is_any")),
        (test_two_writers.test_long_silent_writer_is_looked_for,),
        finding="StateError.*no transaction of incarnation 1",
    ),
    Plant(
        "succession forgotten by an abort",
        changed(
            StateWriters,
            "records",
            ("self._succeeded.get(changed.place, ())", "self._succeeded.pop(changed.place, ())"),
        ),
        (test_two_writers.test_aborted_succession_is_made_again,),
        finding=r"assert \[\] == \[b'",
    ),
    Plant(
        "older read wins",
        changed(Overlay, "learn", ("isinstance(cell.value, Absent)", "not cell.layers")),
        (test_state_running.test_older_read_never_hides_what_was_settled,),
        finding=r'seen\(state, key\) == b"new"',
    ),
    Plant(
        "copy trusted after a grant",
        copy_trusted_after_a_grant,
        (test_state_running.test_stale_copy_of_a_range_that_comes_back,),
        finding=r"engine\.copied\(\) == engine\.folded\(\)",
    ),
    Plant(
        "last point left out of a scan",
        changed(
            keys,
            "bounds_of",
            (
                "None if within.end == SPACE_END else _POINT.pack(within.end)",
                "_POINT.pack(min(within.end, SPACE_END - 1))",
            ),
        ),
        (test_keys.test_a_key_range_is_one_scan, test_keys.test_the_last_range_has_no_upper_bound),
        finding=r"bounds_of\(",
    ),
    Plant(
        "readers outside see what is not committed",
        changed(PartitionState, "read_committed", ("self.overlay.get_committed(key)", "self.overlay.get(key)")),
        (test_state_running.test_store_shows_what_is_committed,),
        raised=ValueError,
        finding=r"holds this key in partitions \[0, 1\]",
    ),
]
