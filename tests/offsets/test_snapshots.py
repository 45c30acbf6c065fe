"""Snapshots: what is folded from one and what follows it equals the fold of everything."""

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylanes.keyrange.steps import Steps
from keylanes.offsets.codec import EventError, decode, encode
from keylanes.offsets.control_events import ControlEvent
from keylanes.offsets.events import Committed, OffsetEvent, SnapshotTaken, WorkersCut, WorkersMerged, WorkerSplit
from keylanes.offsets.ledger import Ledger, evolve_all
from keylanes.offsets.snapshots import newest_snapshot, restore_snapshot, search_starts, take_snapshot

from .log_strategies import PLACE, control_logs, offset_logs

OTHER = ("other", 0)


def through_the_log(parts: Sequence[SnapshotTaken]) -> list[SnapshotTaken]:
    """Encoded and decoded again."""
    decoded = [decode(encode(part)) for part in parts]
    assert all(isinstance(part, SnapshotTaken) for part in decoded)
    return decoded  # type: ignore[return-value]  # just asserted


def without_foreign_workers(ledger: Ledger) -> Ledger:
    """A snapshot keeps workers where their epoch holds points; elsewhere their names mean nothing."""
    partitions = {}
    for place, fold in ledger.partitions.items():
        parts = {}
        for epoch, part in fold.parts.items():
            held = [(c, d, n) for a, b, n in part.workers.pieces() for c, d, _ in part.froms.pieces(a, b)]
            parts[epoch] = replace(part, workers=Steps(held))
        partitions[place] = replace(fold, parts=MappingProxyType(parts))
    return replace(ledger, partitions=MappingProxyType(partitions))


@settings(max_examples=300)
@given(control_logs(10, wrong=True), offset_logs(25), st.integers(0, 25))
def test_a_snapshot_and_what_follows_equal_everything(
    control: list[ControlEvent], offsets: list[OffsetEvent], position: int
) -> None:
    """Restored from the log's bytes, with all control events and the offset events behind its position read again."""
    position = min(position, len(offsets))
    head, tail = offsets[:position], offsets[position:]
    taken = evolve_all(Ledger(), [*control, *head])
    if taken.waiting():
        return  # the host stops on events that wait when it has read both logs to their ends
    parts = through_the_log(take_snapshot(taken, "app", 0, [PLACE], position, 1, 9))
    structural = (WorkersCut, WorkerSplit, WorkersMerged)
    tail = [event for event in tail if not isinstance(event, structural)]
    restored = Ledger(partitions=MappingProxyType(restore_snapshot(parts)))
    again = evolve_all(restored, [*control, *tail])
    wanted = without_foreign_workers(evolve_all(taken, tail))
    assert again.partition(PLACE) == wanted.partition(PLACE)
    assert again.control == wanted.control


@settings(max_examples=100)
@given(control_logs(6, wrong=False), offset_logs(15))
def test_structure_goes_on_from_a_snapshot(control: list[ControlEvent], offsets: list[OffsetEvent]) -> None:
    """Splits and merges behind the position find the workers that were cut before it, on points that were granted."""
    half = len(offsets) // 2
    taken = evolve_all(Ledger(), [*control, *offsets[:half]])
    if taken.waiting() or without_foreign_workers(taken) != taken:
        return
    parts = through_the_log(take_snapshot(taken, "app", 0, [PLACE], half, 1, 9))
    restored = Ledger(partitions=MappingProxyType(restore_snapshot(parts)))
    again = evolve_all(restored, [*control, *offsets[half:]])
    assert again.partition(PLACE) == evolve_all(taken, offsets[half:]).partition(PLACE)


def snapshot(transaction: int, part: int, parts: int, *, incarnation: int = 1, position: int = 0) -> SnapshotTaken:
    """A part of a snapshot with nothing in it."""
    return SnapshotTaken(incarnation, transaction, part, parts, "app", position, "t", part, 0, (), (), 0, 0)


COMMIT = Committed(1, 5, 0, 1, 1, "t", 0, (), 0, 0, 0)


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ([], None),
        ([COMMIT], None),
        ([snapshot(1, 0, 1)], [1]),
        ([snapshot(1, 0, 2)], None),
        ([snapshot(1, 1, 2)], None),
        ([snapshot(1, 0, 2), snapshot(1, 1, 2)], [1, 1]),
        ([snapshot(1, 0, 2), snapshot(2, 1, 2)], None),
        ([snapshot(1, 0, 2), snapshot(1, 1, 2, incarnation=2)], None),
        ([snapshot(1, 0, 1), COMMIT, snapshot(2, 0, 1)], [2]),
        ([snapshot(1, 0, 1), snapshot(2, 0, 2)], [1]),
        ([snapshot(1, 0, 2), snapshot(1, 1, 2), snapshot(2, 1, 2)], [1, 1]),
        ([snapshot(1, 1, 2), snapshot(2, 0, 2), COMMIT, snapshot(2, 1, 2)], [2, 2]),
    ],
)
def test_the_newest_whole_snapshot_is_found(log: list[OffsetEvent], found: list[int] | None) -> None:
    """A set that is cut off at either side, or torn, is passed over for an older whole one."""
    newest = newest_snapshot(log)
    assert (None if newest is None else [part.transaction for part in newest]) == found


def test_a_log_without_a_source_partition_has_a_snapshot_too() -> None:
    """One part that names no source partition: it restores to nothing, and bounds the read all the same."""
    parts = through_the_log(take_snapshot(Ledger(), "app", 3, [], 77, 1, 2))
    assert [(p.topic, p.partition, p.position, p.parts) for p in parts] == [("", 3, 77, 1)]
    assert newest_snapshot(parts) == parts
    assert restore_snapshot(parts) == {}


def test_partitions_that_share_a_log_partition_are_parts_of_one_set() -> None:
    """They are numbered, in the order in which they were named."""
    parts = take_snapshot(Ledger(), "app", 0, [OTHER, PLACE], 5, 3, 4)
    assert [(p.topic, p.part, p.parts) for p in parts] == [("other", 0, 2), ("source", 1, 2)]
    assert set(restore_snapshot(parts)) == {OTHER, PLACE}


def test_an_impossible_piece_is_refused() -> None:
    """A damaged snapshot stops the reader; it is not restored in part."""
    whole = take_snapshot(Ledger(), "app", 0, [PLACE], 5, 3, 4)[0]
    damaged = msgspec.convert(
        [*msgspec.to_builtins(whole)[:-4], [[1, 1, [[9, 3, 0, 0, None, None, False]]]], [], 0, 0], SnapshotTaken
    )
    with pytest.raises(EventError, match="damaged snapshot of source"):
        restore_snapshot([damaged])


@pytest.mark.parametrize("high", [0, 1, 999, 1_000, 1_001, 5_000, 1_000_000])
def test_the_search_goes_back_in_growing_steps_to_the_start(high: int) -> None:
    """Every start lies further back than the one before, the last one at the log's start; few are needed."""
    starts = list(search_starts(3, high + 3))
    assert starts[-1] == 3
    assert starts == sorted(set(starts), reverse=True)
    assert len(starts) <= 7
