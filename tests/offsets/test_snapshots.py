"""Snapshots: what is folded from one and what follows it equals the fold of everything."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.steps import Steps
from keylanes.offsets.codec import EventError, decode, encode
from keylanes.offsets.control_events import ControlEvent, RangesGranted
from keylanes.offsets.event_values import Band, Tile
from keylanes.offsets.events import Committed, OffsetEvent, SnapshotTaken, WorkersCut, WorkersMerged, WorkerSplit
from keylanes.offsets.ledger import Ledger, evolve_all
from keylanes.offsets.snapshots import (
    newest_snapshot,
    restore_snapshot,
    search_starts,
    take_snapshot,
    transactions_in,
)

from ..stage.log_events import (
    coordinator_elected,
    fold_in_turn,
    member_expelled,
    member_fenced,
    member_joined,
    ranges_granted,
)
from .log_strategies import PLACE, control_logs, offset_logs

OTHER = ("other", 0)


def through_the_log(parts: Sequence[SnapshotTaken]) -> list[SnapshotTaken]:
    """Encoded and decoded again."""
    decoded = [decode(encode(part)) for part in parts]
    assert all(isinstance(part, SnapshotTaken) for part in decoded)
    return decoded  # type: ignore[return-value]  # just asserted


def without_foreign_workers(ledger: Ledger) -> Ledger:
    """A snapshot keeps workers where their epoch holds points; elsewhere their names mean nothing."""
    ledger = ledger.copy()
    for fold in ledger.partitions.values():
        for part in fold.parts.values():
            held = [(c, d, n) for a, b, n in part.workers.pieces() for c, d, _ in part.froms.pieces(a, b)]
            part.workers = Steps(held)
    return ledger


@settings(max_examples=300)
@given(control_logs(10, wrong=True), offset_logs(25), st.integers(0, 25))
def test_a_snapshot_and_what_follows_equal_everything(
    control: list[ControlEvent], offsets: list[OffsetEvent], position: int
) -> None:
    """Restored from the log's bytes, with all control events and the offset events behind its position read again."""
    position = min(position, len(offsets))
    head, tail = offsets[:position], offsets[position:]
    taken = evolve_all(Ledger(), [*control, *head])
    if taken.early_epochs():
        with pytest.raises(ValueError, match=r"no snapshot of source\[0\]: an event of epoch \d waits for its grant"):
            take_snapshot(taken, "app", 0, [PLACE], position, 1, 9)
        return
    parts = through_the_log(take_snapshot(taken, "app", 0, [PLACE], position, 1, 9))
    structural = (WorkersCut, WorkerSplit, WorkersMerged)
    tail = [event for event in tail if not isinstance(event, structural)]
    restored = Ledger(partitions=restore_snapshot(parts))
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
    if taken.early_epochs() or without_foreign_workers(taken) != taken:
        return
    parts = through_the_log(take_snapshot(taken, "app", 0, [PLACE], half, 1, 9))
    restored = Ledger(partitions=restore_snapshot(parts))
    again = evolve_all(restored, [*control, *offsets[half:]])
    assert again.partition(PLACE) == evolve_all(taken, offsets[half:]).partition(PLACE)


def grant(epoch: int, offset: int, first: int = 0) -> RangesGranted:
    """A grant up to the end of the space."""
    return ranges_granted(0, 1, epoch, *PLACE, (Band(first, SPACE_END, offset),))


def commit(epoch: int, offset: int, to: int, first: int = 0) -> Committed:
    """A commit of the same points."""
    return Committed(1, to, 0, 1, epoch, *PLACE, (Tile(0, 1, first, SPACE_END, offset, to),), 0, 0, 0)


def test_no_snapshot_is_taken_while_an_event_of_its_places_waits() -> None:
    """What waits at another place is of no concern to it."""
    ledger = fold_in_turn(Ledger(), grant(1, 0), commit(3, 0, 5))
    with pytest.raises(ValueError, match=r"no snapshot of source\[0\]: an event of epoch 3 waits for its grant"):
        take_snapshot(ledger, "app", 0, [OTHER, PLACE], 5, 1, 9)
    assert take_snapshot(ledger, "app", 0, [OTHER], 5, 1, 9)
    assert take_snapshot(fold_in_turn(ledger, grant(3, 0)), "app", 0, [PLACE], 5, 1, 9)


def snapshot(transaction: int, part: int, parts: int, *, incarnation: int = 1, position: int = 0) -> SnapshotTaken:
    """A part of a snapshot with nothing in it."""
    return SnapshotTaken(incarnation, transaction, part, parts, "app", position, "t", part, (), (), (), (), ())


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


def test_a_snapshot_says_which_transaction_of_each_writer_was_the_last() -> None:
    """Of those that may go on: whoever is fenced does not ask any more."""
    members: list[ControlEvent] = [
        coordinator_elected(1, "one"),
        *(member_joined(1, i, f"p{i}", f"p{i}") for i in (1, 2)),
    ]
    by_second = replace(commit(1, 5, 6), incarnation=2)
    ledger = fold_in_turn(Ledger(), grant(1, 0), *members, commit(1, 0, 5), by_second)
    parts = through_the_log(take_snapshot(ledger, "app", 0, [OTHER, PLACE], 5, 2, 10))
    assert transactions_in(parts) == {1: 5, 2: 6}
    assert parts[1].transactions == ()
    fold_in_turn(ledger, member_expelled(1, 1), member_fenced(1, 1))
    assert transactions_in(take_snapshot(ledger, "app", 0, [PLACE], 5, 2, 10)) == {2: 6}


def test_an_impossible_piece_is_refused() -> None:
    """A damaged snapshot stops the reader; it is not restored in part."""
    whole = take_snapshot(Ledger(), "app", 0, [PLACE], 5, 3, 4)[0]
    damaged = msgspec.convert(
        [*msgspec.to_builtins(whole)[:-5], [[1, 1, [[9, 3, 0, 0, None, None, False]], []]], [], [], [], []],
        SnapshotTaken,
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
