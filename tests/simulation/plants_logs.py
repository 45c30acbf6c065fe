"""Defects in what is read of our own logs: the fold, its events, snapshots, and what is deleted of the history."""

from collections.abc import Sequence
from typing import Any

from keylanes.offsets import codec, ledger, snapshots, starts
from keylanes.offsets.events import OffsetEvent
from keylanes.offsets.provenance import app_id_of
from keylanes.runtime.logs.own_ledger import OwnLedger
from keylanes.runtime.logs.reader import LogReader
from keylanes.runtime.logs.trimming import HistoryTrimming
from keylanes.runtime.partition.wishes import Wishes

from ..offsets import test_codec, test_ledger, test_snapshots
from ..runtime import test_starts, test_waiting
from ..runtime.engine import test_grants
from ..runtime.logs import test_own_ledger
from ..stage.log_events import member_fenced
from ..stage.planting import Planting, changed, everywhere
from .plants import DOUBLED, OUTSIDE, Plant, each

TRIMMED = "its (offsets are|history is) lost|lost what was to be read|holds no whole snapshot"


def snapshot_at_the_end(patch: Planting) -> None:
    """What stands between a snapshot's position and its own place is not read again."""
    search = LogReader._search_snapshots

    async def skip(self: LogReader, marks: Any) -> Any:
        found = await search(self, marks)
        return {s: (snapshot, marks[s].high if snapshot else position) for s, (snapshot, position) in found.items()}

    patch.setattr(LogReader, "_search_snapshots", skip)


def trimmed_too_far(patch: Planting) -> None:
    """The log is trimmed up to now, its newest snapshot with it."""

    async def everything(self: HistoryTrimming, log_partition: int, below: int) -> int:
        source = self.logs.offsets(log_partition)
        return (await self.logs.watermarks([source]))[source].high

    patch.setattr(HistoryTrimming, "_old_enough", everything)


def trimmed_below_the_newest(patch: Planting) -> None:
    """The log is trimmed below the snapshot that is only about to be written."""

    async def newest(self: HistoryTrimming, log_partition: int, below: int) -> int:
        return self._covered[log_partition][-1]

    patch.setattr(HistoryTrimming, "_old_enough", newest)


def passed_over(patch: Planting) -> None:
    """The log is read on behind the own commit."""
    fold = OwnLedger.fold

    def skip(self: OwnLedger, transaction: int, events: Sequence[OffsetEvent]) -> None:
        fold(self, transaction, events)
        for event in events:
            source = self.logs.offsets(event.partition)  # type: ignore[union-attr]  # the tests only commit
            self.logs.positions[source] += 3  # another's commit and its marker, and the own

    patch.setattr(OwnLedger, "fold", skip)


def unknown_decoded(patch: Planting) -> None:
    """An event of an unknown kind or version is taken for one that changes nothing."""
    decode = codec.decode

    def leniently(data: bytes) -> Any:
        try:
            return decode(data)
        except codec.EventError as error:
            if "unknown" in str(error):
                return member_fenced(0, 0)
            raise

    everywhere(patch, decode, leniently)


def named_anew(patch: Planting) -> None:
    """Whoever joined last says what the application calls itself."""
    of_last = property(lambda self: app_id_of(self.ledger.control.members[max(self.ledger.control.members)].birth))
    patch.setattr(OwnLedger, "app_id", of_last)


PLANTS = [
    Plant("application named anew", named_anew, finding="outputs name .*, the application is"),
    Plant(
        "unknown event skipped",
        unknown_decoded,
        (
            each(test_codec.test_an_unknown_version_of_a_known_kind_is_refused),
            each(test_codec.test_what_is_no_event_is_refused_in_words),
        ),
        finding="DID NOT RAISE .*EventError",
    ),
    Plant(
        "epoch unchecked",
        changed(
            ledger,
            "_evolve_partition",
            ("part = partition.parts.get(event.epoch)", "part = partition.parts.get(partition.epoch_newest)"),
        ),
        (test_ledger.test_the_next_grant_ends_an_epoch_where_it_begins,),
        finding=r"\.violations\(\)",
    ),
    Plant(
        "incarnation unchecked",
        changed(ledger, "_commit", ("is_ours = event.incarnation == part.incarnation", "is_ours = True")),
        (test_ledger.test_a_commit_by_another_incarnation_or_after_a_release_is_a_violation,),
        finding=r"by=2\)\)\.violations\(\)",
    ),
    Plant(
        "tile that does not start at the edge",
        changed(ledger, "_commit_in_pieces", ("or edge != tile.offset_from or", "or edge > tile.offset_from or")),
        (each(test_ledger.test_a_tile_that_does_not_continue_its_band_is_a_violation),),
        finding=r"event\)\.violations\(\)",
    ),
    Plant(
        "grant chunk applied twice",
        changed(ledger, "_grant", ("if known is None:", "if True:")),
        finding=f"LogError.*{OUTSIDE}|{DOUBLED}",
    ),
    Plant(
        "grant to somebody else taken up",
        changed(Wishes, "add_grant", (" or part.incarnation != dispatch.incarnation", "")),
        (test_grants.test_a_grant_to_another_process_is_not_taken_up,),
        finding="DID NOT RAISE .*ValueError",
    ),
    Plant(
        "torn start taken for a growth",
        changed(starts, "is_added", ("return bool(counts) and partition >= max(counts)", "return bool(counts)")),
        (test_starts.test_a_start_that_was_cut_short_is_no_growth,),
        finding="partition 1 began at its end as it was at the second start",
    ),
    Plant(
        "grant at the last stable offset",
        changed(
            LogReader,
            "stream",
            (
                "            batches = await within_limit(_some(reader, wanted), limit, what)\n",
                (
                    "            batches = await reader.fetch(wanted, records_max=FETCH_RECORDS_MAX, wait_ms=0)\n"
                    "            if not batches:\n"
                    "                break\n"
                ),
            ),
        ),
        kinds=("pause", "crash", "rivals", "late markers"),
        finding=f"sim.control is empty|does not count|{DOUBLED}|{OUTSIDE}",
    ),
    Plant(
        "snapshot that lacks a worker",
        changed(
            snapshots,
            "_fold_epoch",
            ("for first, end in pairwise(bounds):", "for first, end in [*pairwise(bounds)][:-1]:"),
        ),
        finding=DOUBLED,
    ),
    Plant(
        "torn snapshot taken for whole",
        changed(snapshots, "newest_snapshot", ("if [p.part for p in parts] == list(range(event.parts)):", "if parts:")),
        (each(test_snapshots.test_the_newest_whole_snapshot_is_found),),
        finding="if newest is None else",
    ),
    Plant("events behind a snapshot's position skipped", snapshot_at_the_end, finding=DOUBLED),
    Plant("log trimmed with its newest snapshot", trimmed_too_far, kinds=("crash", "aborted"), finding=TRIMMED),
    Plant(
        "log trimmed below a snapshot that is not committed",
        trimmed_below_the_newest,
        kinds=("aborted", "crash"),
        finding=TRIMMED,
    ),
    Plant(
        "what others committed is passed over",
        passed_over,
        (test_own_ledger.test_what_others_committed_beside_a_member_is_known_to_it,),
        finding="lies outside what was granted",
    ),
    Plant(
        "positions of a search that was cut short",
        changed(
            LogReader,
            "begin_offsets",
            ("self.positions, self.commits_read = {**positions, **control}, commits_read", "pass"),
        ),
        (each(test_own_ledger.test_a_search_that_was_cut_short_leaves_nothing_behind),),
        finding=r"assert (False|\d == 5)",
    ),
    Plant(
        "a log that others trimmed is damage for a healthy member",
        changed(
            OwnLedger, "_read_offsets", ("except HistoryTrimmed as trimmed:", "except ZeroDivisionError as trimmed:")
        ),
        (
            test_own_ledger.test_an_unknown_transaction_that_others_trimmed_is_found_in_their_snapshot,
            test_own_ledger.test_what_nothing_became_of_is_not_found_in_a_snapshot,
        ),
        finding="HistoryTrimmed: .*lost what was to be read",
    ),
    Plant(
        "a snapshot forgets who committed last",
        changed(
            snapshots, "take_snapshot", ("for i, t in ledger.transactions.items() if not", "for i, t in () if not")
        ),
        (
            test_own_ledger.test_what_nothing_became_of_is_not_found_in_a_snapshot,
            test_snapshots.test_a_snapshot_says_which_transaction_of_each_writer_was_the_last,
        ),
        finding=r"assert (False|\{\} == )",
    ),
    Plant(
        "failed trim costs the snapshot",
        changed(HistoryTrimming, "trim", ("except BrokerError as error:", "except ZeroDivisionError as error:")),
        (test_waiting.test_a_log_that_cant_be_trimmed_is_snapshotted_all_the_same,),
        finding="no snapshots without trims",
    ),
]
