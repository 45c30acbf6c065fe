"""What the witness derives from the control log and the rare events, in small scripts."""

from msgspec.structs import replace

from keylanes.keyrange.hashing import HASH_NAME
from keylanes.keyrange.steps import Steps
from keylanes.offsets.control_events import AppCreated, ControlEvent, RangesGranted
from keylanes.offsets.event_values import Band, EpochFold, Piece
from keylanes.offsets.events import Event, SnapshotTaken, WorkersCut, WorkersMerged, WorkerSplit
from keylanes.spark.history import UNTIL_NEVER, fold_control, fold_workers, left_edges, oldest_snapshot

from ..stage.log_events import coordinator_elected, in_turn, member_joined, partition_started, ranges_granted
from ..tiers.marks import tier

pytestmark = tier("check")

TOP = 1 << 32


def control(*events: ControlEvent) -> list[tuple[int, Event]]:
    """A control log that starts with the application and its first coordinator; each decision is in turn."""
    return list(enumerate(in_turn([AppCreated("a", HASH_NAME, 1), coordinator_elected(1, "x"), *events])))


def granted(epoch: int, *bands: tuple[int, int, int], incarnation: int = 1, term: int = 1) -> RangesGranted:
    """A grant of (first, end, offset_from) in ``t[0]``."""
    return ranges_granted(term, incarnation, epoch, "t", 0, tuple(Band(*band) for band in bands))


def test_an_epoch_holds_until_the_next_grant_over_the_same_point() -> None:
    """A later grant of a part of the points ends the earlier one there, at its own offset, and nowhere else."""
    grants = fold_control(control(granted(1, (0, TOP, 0)), granted(2, (100, 200, 50), incarnation=2)))
    assert [part[1:] for part in grants.parts] == [
        (2, 2, 100, 200, 50, UNTIL_NEVER),
        (1, 1, 0, 100, 0, UNTIL_NEVER),
        (1, 1, 100, 200, 0, 50),
        (1, 1, 200, TOP, 0, UNTIL_NEVER),
    ]
    assert grants.problems == []


def test_events_of_a_lower_term_than_the_highest_elected_do_not_count() -> None:
    """What a deposed coordinator still writes changes nothing; a late election with a lower term neither."""
    grants = fold_control(
        control(
            coordinator_elected(3, "y"),
            granted(1, (0, TOP, 0), term=1),
            coordinator_elected(2, "late"),
            granted(2, (0, TOP, 0), term=2),
            partition_started(3, "t", 0, 7, "earliest", 1),
            granted(3, (0, TOP, 7), term=3),
        )
    )
    assert [(part.epoch, part.offset_from) for part in grants.parts] == [(3, 7)]
    assert grants.starts == {("t", 0): 7}


def numbered(*events: ControlEvent) -> list[tuple[int, Event]]:
    """A control log of level 1, with the numbers that these have."""
    return list(enumerate([AppCreated("a", HASH_NAME, 1), coordinator_elected(1, "x", "x"), *events]))


def test_a_decision_counts_once_and_in_turn() -> None:
    """What comes late, twice, before its turn, or without a number gives nothing. Copies are passed over; what no
    coordinator writes is named.
    """
    first, second = (replace(granted(epoch, (0, TOP, 0), incarnation=epoch), number=epoch) for epoch in (1, 2))
    late = replace(granted(3, (0, TOP, 0), incarnation=1), number=2)
    unnumbered, early = granted(4, (0, TOP, 0)), replace(granted(5, (0, TOP, 0)), number=7)
    grants = fold_control(numbered(first, first, second, late, unnumbered, early))
    assert [(part.epoch, part.incarnation) for part in grants.parts] == [(2, 2), (1, 1)]
    assert grants.problems == []
    assert grants.passed_over == 4
    assert [(problem["position"], problem["problem"]) for problem in grants.out_of_turn] == [
        (5, "another decision had its number"),
        (6, "out of turn: number 3 is next"),
        (7, "out of turn: number 3 is next"),
    ]


def test_the_first_election_says_which_application_it_is() -> None:
    """One of another application does not count, nor does what is decided in its term."""
    other = coordinator_elected(2, "y", "another application")
    grants = fold_control(numbered(other, replace(granted(1, (0, TOP, 0), term=2), number=1)))
    assert (grants.app_birth, grants.parts) == ("x", [])
    again = coordinator_elected(3, "z", "x")
    grants = fold_control(numbered(other, again, replace(granted(1, (0, TOP, 0), term=3), number=1)))
    assert (grants.app_birth, len(grants.parts)) == ("x", 1)


def test_a_member_joins_once() -> None:
    """A late copy of its joining, under the name of another process or as another member, changes nothing."""
    again = ((1, 1, "p"), (2, 1, "q"), (3, 2, "p"), (4, 3, "r"))
    joined = [replace(member_joined(1, who, birth, ""), number=number) for number, who, birth in again]
    assert fold_control(numbered(*joined)).births == {1: "p", 3: "r"}


def test_an_epoch_in_several_events_is_one_epoch() -> None:
    """A grant over the size limit is written as several events; only overlapping bands are a problem."""
    two = fold_control(control(granted(1, (0, 10, 0)), granted(1, (10, TOP, 5))))
    assert [(part.first, part.end, part.offset_from) for part in two.parts] == [(0, 10, 0), (10, TOP, 5)]
    assert two.problems == []
    overlapping = fold_control(control(granted(1, (0, 10, 0)), granted(1, (5, TOP, 0))))
    assert len(overlapping.problems) == 1


def test_a_grant_that_was_sent_again_is_one_grant() -> None:
    """Word for word the same event is the same grant; to another process or from another offset it is another one."""
    again = fold_control(control(granted(1, (0, TOP, 0)), granted(1, (0, TOP, 0))))
    assert [(part.first, part.end, part.offset_from) for part in again.parts] == [(0, TOP, 0)]
    assert again.problems == []
    for other in (granted(1, (0, TOP, 0), incarnation=2), granted(1, (0, TOP, 5))):
        assert len(fold_control(control(granted(1, (0, TOP, 0)), other)).problems) == 1


def cut(transaction: int, worker: int, *bounds: int) -> WorkersCut:
    """A cut by incarnation 1."""
    return WorkersCut(1, transaction, 1, "t", 0, worker, bounds)


def test_workers_follow_cuts_splits_and_merges() -> None:
    """Ranges, and in which transactions each worker came and went."""
    log: list[tuple[int, Event]] = [
        (0, cut(1, 0, 0, 10, 20, 30)),
        (1, WorkerSplit(1, 2, 1, "t", 0, 1, 15, 3)),
        (2, WorkersMerged(1, 4, 1, "t", 0, 4, 2, 5)),
    ]
    workers, problems = fold_workers(log)
    assert problems == []
    assert [(w.worker, w.first, w.end, w.born, w.died) for w in workers] == [
        (0, 0, 10, 1, UNTIL_NEVER),
        (1, 10, 20, 1, 2),
        (2, 20, 30, 1, 4),
        (3, 10, 15, 2, UNTIL_NEVER),
        (4, 15, 20, 2, 4),
        (5, 15, 30, 4, UNTIL_NEVER),
    ]
    assert [(w.run, w.is_odd, w.odd_before) for w in workers] == [
        (0, False, 0),
        (0, True, 0),
        (0, True, 1),
        (3, False, 0),
        (3, True, 0),
        (5, False, 0),
    ]


def test_contradictions_of_workers_are_named() -> None:
    """A number that comes back, a split outside the range, a merge of workers that are no neighbours."""
    log: list[tuple[int, Event]] = [
        (0, cut(1, 0, 0, 10, 20, 30)),
        (1, cut(1, 0, 0, 10)),
        (2, WorkerSplit(1, 2, 1, "t", 0, 1, 25, 3)),
        (3, WorkersMerged(1, 2, 1, "t", 0, 0, 2, 7)),
        (4, WorkerSplit(1, 2, 1, "t", 0, 99, 25, 8)),
    ]
    _, problems = fold_workers(log)
    assert [problem["position"] for problem in problems] == [1, 2, 3, 4, 4]


def taken(part: int, parts: int, position: int, transaction: int = 5) -> SnapshotTaken:
    """A part of a snapshot, of two epochs."""
    pieces = (Piece(0, 10, 0, 40, None, 0, False), Piece(10, TOP, 0, 30, 30, 1, False))
    later = (Piece(10, TOP, 30, 60, None, 7, False),)
    epochs = (EpochFold(1, 1, pieces, ()), EpochFold(2, 2, later, ()))
    return SnapshotTaken(1, transaction, part, parts, "a", position, "t", part, epochs, (), (), (), ())


def test_the_oldest_complete_snapshot_that_reaches_the_start_is_taken() -> None:
    """Incomplete ones and such as were taken in front of the start are passed over."""
    log: list[tuple[int, Event]] = [
        (10, taken(0, 1, 4, transaction=5)),
        (11, taken(0, 2, 9, transaction=6)),
        (12, taken(0, 2, 12, transaction=7)),
        (13, taken(1, 2, 12, transaction=7)),
        (14, taken(0, 1, 14, transaction=8)),
    ]
    found = oldest_snapshot(log, 8)
    assert found is not None
    assert (found.position, len(found.taken)) == (12, 2)
    assert oldest_snapshot(log, 15) is None


def test_a_snapshots_edges_are_the_greatest_of_its_epochs() -> None:
    """The left edge of each point; where the snapshot says nothing, the start."""
    assert left_edges(3, None) == Steps([(0, TOP, 3)])
    assert left_edges(3, taken(0, 1, 4)) == Steps([(0, 10, 40), (10, TOP, 60)])


def test_the_snapshot_names_workers_of_cuts_that_are_gone() -> None:
    """Their ranges come from its pieces, by incarnation."""
    workers, problems = fold_workers([], [taken(0, 1, 4)])
    assert problems == []
    assert [(w.incarnation, w.worker, w.first, w.end) for w in workers] == [
        (1, 0, 0, 10),
        (1, 1, 10, TOP),
        (2, 7, 10, TOP),
    ]
