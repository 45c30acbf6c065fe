"""Who owned what when, as the two logs tell it; history.txt and moved.txt have what happens between members."""

from collections.abc import Iterable
from itertools import pairwise
from random import Random
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from keylanes.group.history import JOIN, START, History
from keylanes.group.history_entries import EventTime, MoveEntry, MoveState, Party, select_entries
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
    MemberExpelled,
    MemberJoined,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
)
from keylanes.offsets.event_values import Band, Edge, PlannedMove, Tile
from keylanes.offsets.events import Committed, Event, RangesReleased, WorkersCut

from ..stage.log_events import (
    NO_NUMBER,
    coordinator_elected,
    in_turn,
    member_fenced,
    partition_started,
    ranges_granted,
)
from ..tiers.marks import tier

pytestmark = tier("check")

HALF = SPACE_END // 2
QUARTERS: Final = (0, SPACE_END // 4, HALF, 3 * SPACE_END // 4, SPACE_END)
PLACE: Final = ("orders", 0)


def told(
    control: Iterable[tuple[int, ControlEvent]], offsets: Iterable[tuple[int, Event]] = (), at: int = 0
) -> History:
    """The history of (time, event) of the control log, and of an offset log of one partition that begins at ``at``."""
    history = History()
    times, events = zip(*control, strict=True)
    for position, (ms, event) in enumerate(zip(times, in_turn(events), strict=True)):
        history.hear_control(position, ms, event)
    for position, (ms, written) in enumerate(offsets, at):
        history.hear_offsets(0, position, ms, written)
    return history


def begun(*names: str) -> list[tuple[int, ControlEvent]]:
    """An application of one partition and its members, at the time 0."""
    events: list[ControlEvent] = [AppCreated("app", "hash", 1), coordinator_elected(1, f"{names[0]} 1")]
    events += [joined(n, name) for n, name in enumerate(names, 1)]
    return [(0, event) for event in [*events, partition_started(1, *PLACE, 0, "earliest", 1)]]


def joined(incarnation: int, name: str, term: int = 1) -> MemberJoined:
    """A process with a name."""
    birth = f"{name} {incarnation}"
    return MemberJoined(term, NO_NUMBER, incarnation, name, birth, (birth,), "host", "", 1.0, 1, (), (), False)


def expelled(incarnation: int, cause: str, term: int = 1) -> MemberExpelled:
    """For a cause."""
    return MemberExpelled(term, NO_NUMBER, incarnation, cause, 0)


def granted(incarnation: int, epoch: int, *bands: tuple[int, int], term: int = 1, move: int = 0) -> RangesGranted:
    """Points, all of them by default."""
    spans = tuple(Band(first, end, 0) for first, end in bands or ((0, SPACE_END),))
    return RangesGranted(term, NO_NUMBER, move, incarnation, epoch, *PLACE, spans, (), ())


def asked(incarnation: int, epoch: int, first: int = 0, end: int = SPACE_END, move: int = 1) -> ReleaseAsked:
    """A request to release points."""
    return ReleaseAsked(1, NO_NUMBER, move, incarnation, epoch, *PLACE, first, end, 30_000)


def planned(move: int, origin: int, target: int, cause: str = "change", plan: int = 1, epoch: int = 9) -> PlanMade:
    """A plan of one move of the whole partition."""
    moves = (PlannedMove(move, *PLACE, 0, SPACE_END, origin, target, 0, 0.0, 0),)
    return PlanMade(1, NO_NUMBER, plan, epoch, cause, 0, 0, 1, moves)


def released(incarnation: int, epoch: int, first: int = 0, end: int = SPACE_END) -> RangesReleased:
    """Points, in the offset log."""
    return RangesReleased(incarnation, 1, epoch, *PLACE, 0, (Edge(first, end, 0),), ())


def cut(incarnation: int, epoch: int, *bounds: int) -> WorkersCut:
    """Points were taken up."""
    return WorkersCut(incarnation, 1, epoch, *PLACE, 1, bounds or (0, SPACE_END))


def moves(history: History) -> list[MoveEntry]:
    """What has moved, or is about to."""
    return [entry for entry in history.entries() if isinstance(entry, MoveEntry)]


def times(move: MoveEntry) -> tuple[EventTime | None, EventTime | None, int | None, int | None]:
    """The four."""
    return move.asked, move.released, move.granted_ms, move.taken_up_ms


# --- level 1 ----------------------------------------------------------------------------------------------------------


def test_a_grant_in_bands_and_in_chunks_is_one_move() -> None:
    """Bands that touch are one range, also those of a later event of the same epoch; it is taken up with the last."""
    chunks = [granted(1, 1, QUARTERS[0:2], QUARTERS[1:3]), granted(1, 1, QUARTERS[2:4])]
    control = [*begun("a"), *((ms, chunk) for ms, chunk in enumerate(chunks, 1))]
    (half,) = moves(told(control, [(5, cut(1, 1, 0, HALF))]))
    assert (half.first, half.end, half.granted_ms, half.taken_up_ms) == (0, QUARTERS[3], 2, None)
    assert half.state is MoveState.GRANTED
    (whole,) = moves(told(control, [(5, cut(1, 1, 0, HALF)), (6, cut(1, 1, HALF, QUARTERS[3]))]))
    assert (whole.state, whole.taken_up_ms) == (MoveState.MOVED, 6)


def test_points_that_were_granted_already_are_not_granted_again() -> None:
    """A band that comes twice, and a grant of an epoch that is over."""
    control = [*begun("a", "b"), (1, granted(1, 2, QUARTERS[0:2], QUARTERS[0:2])), (2, granted(2, 1, QUARTERS[0:2]))]
    (move,) = moves(told(control, [(3, cut(1, 2, *QUARTERS[0:2]))]))
    assert (move.target, move.end, move.granted_ms) == (Party(1, "a", "host"), QUARTERS[1], 1)


def test_what_has_become_of_the_parts_of_a_grant() -> None:
    """What went on to others before it was taken up is one part, what was taken up in time another, the rest is
    waited for.
    """
    control = [
        *begun("a", "b"),
        (1, granted(1, 1)),
        (3, granted(2, 2, QUARTERS[0:2])),
        (4, granted(2, 3, QUARTERS[1:3])),
    ]
    history = told([*control, (5, granted(2, 4, QUARTERS[2:4]))], [(2, cut(1, 1, *QUARTERS[2:4]))])
    of_first = [move for move in moves(history) if move.epoch == 1]
    assert [(move.first, move.end, move.state, move.taken_up_ms) for move in of_first] == [
        (0, HALF, MoveState.NOT_TAKEN_UP, None),
        (HALF, QUARTERS[3], MoveState.MOVED, 2),
        (QUARTERS[3], SPACE_END, MoveState.GRANTED, None),
    ]


def test_what_does_not_count_is_not_told() -> None:
    """Decisions of a term that is over, out of turn or said twice; what others write at an epoch."""
    control = begun("a", "b")
    history = told(
        [*control, (1, granted(1, 1)), (2, coordinator_elected(2, "b 2"))], [(3, cut(2, 1)), (4, released(2, 1))]
    )
    before = history.entries()
    for event in (granted(2, 2), granted(2, 2, term=2), expelled(1, "silent", term=2)):
        history.hear_control(99, 50, event)  # no number, in a term that has numbers
    assert history.entries() == before
    (move,) = moves(history)
    assert (move.taken_up_ms, move.state) == (None, MoveState.GRANTED)


def test_a_log_that_was_trimmed_tells_what_is_left() -> None:
    """When a range was released and taken up before is not known; it is not taken for something that never was."""
    control = [
        *begun("a", "b"),
        (1, granted(1, 1)),
        (2, planned(1, 1, 2)),
        (3, asked(1, 1)),
        (5, granted(2, 2, move=1)),
    ]
    control += [(40, expelled(2, "left")), (41, member_fenced(1, 2))]
    history = told(
        control, [(30, Committed(2, 9, 0, 1, 2, *PLACE, (Tile(1, 1, 0, SPACE_END, 0, 1),), 0, 0, 0))], at=700
    )
    assert history.begins_ms == {0: 30}
    first, second, waiting = moves(history)
    assert (first.state, first.taken_up_ms) == (MoveState.MOVED, None)
    assert (second.state, times(second)) == (MoveState.MOVED, (EventTime(3, "asked"), None, 5, None))
    assert waiting.state is MoveState.FENCED
    whole = told(control, [(0, cut(9, 9)), (30, cut(9, 9))])
    assert whole.begins_ms == {}
    assert [move.state for move in moves(whole)][:2] == [MoveState.NOT_TAKEN_UP, MoveState.NOT_TAKEN_UP]


def test_a_leaver_before_the_log_was_trimmed_is_not_taken_for_one_that_was_fenced_at_work() -> None:
    """It left in order, so it released all; when is not known. Of one that was silent the fence is."""
    for cause, let_go in (("left", None), ("silent", EventTime(6, "fenced"))):
        control = [*begun("a", "b"), (1, granted(1, 1)), (5, expelled(1, cause)), (6, member_fenced(1, 1))]
        (_, moved) = moves(told([*control, (7, granted(2, 2))], [(30, cut(9, 9))], at=700))
        assert (moved.released, moved.cause) == (let_go, cause)


def test_a_move_between_two_members_has_the_cause_that_its_plan_answers() -> None:
    """That somebody joined is answered by the first plan; the next one answers that somebody went."""
    control = [*begun("a", "b", "c"), (1, granted(1, 1)), (2, planned(1, 1, 2, epoch=4)), (3, asked(1, 1))]
    control += [(5, granted(2, 2, move=1)), (6, expelled(3, "silent"))]
    control += [(7, planned(2, 2, 1, plan=2, epoch=5)), (8, asked(2, 2, move=2)), (9, granted(1, 3, move=2))]
    control += [(10, planned(3, 1, 2, "load", plan=3, epoch=5)), (11, asked(1, 3, move=3)), (12, granted(2, 4, move=3))]
    offsets: list[tuple[int, Event]] = [(4, released(1, 1)), (8, released(2, 2)), (11, released(1, 3))]
    assert [(move.cause, move.plan) for move in moves(told(control, offsets))] == [
        (START, 0),
        (JOIN, 1),
        ("silent", 2),
        ("load", 3),
    ]


# --- in any order -----------------------------------------------------------------------------------------------------

STEP = st.tuples(
    st.sampled_from(["grant", "grant", "release", "cut"]),
    st.integers(1, 3),
    st.tuples(st.integers(0, 3), st.integers(1, 4)).map(lambda n: (n[0], min(4, n[0] + n[1]))),
)


@given(st.lists(STEP, max_size=12), st.randoms(use_true_random=False))
def test_each_point_has_the_owners_that_its_own_grants_name(
    steps: list[tuple[str, int, tuple[int, int]]], rng: Random
) -> None:
    """Each point goes from owner to owner as its grants say, each hand-over in one move. And in whichever order the two
    logs are heard, the same is told.
    """
    control, offsets = begun("a", "b", "c"), list[tuple[int, Event]]()
    owners: dict[int, list[tuple[int, int]]] = {quarter: [] for quarter in range(4)}
    for epoch, (what, who, (first, end)) in enumerate(steps, 1):
        span = QUARTERS[first], QUARTERS[end]
        if first >= end:
            continue
        if what == "grant":
            control.append((epoch, granted(who, epoch, span)))
            for quarter in range(first, end):
                owners[quarter].append((epoch, who))
        for quarter in range(first, end) if what != "grant" else ():
            if owners[quarter]:
                at, who = owners[quarter][-1]
                points = QUARTERS[quarter], QUARTERS[quarter + 1]
                offsets.append((epoch, released(who, at, *points) if what == "release" else cut(who, at, *points)))
    history = told(control, offsets)
    for quarter, chain in owners.items():
        over = [move for move in moves(history) if move.first <= QUARTERS[quarter] < move.end and move.epoch]
        assert [(move.epoch, move.target and move.target.incarnation) for move in over] == chain
        before = [None, *(who for _, who in chain)][:-1]
        assert [move.origin and move.origin.incarnation for move in over] == before
    assert mixed(control, offsets, rng).entries() == history.entries()


def mixed(control: list[tuple[int, ControlEvent]], offsets: list[tuple[int, Event]], rng: Random) -> History:
    """The same logs, heard in some other order of the two."""
    history, events = History(), in_turn([event for _, event in control])
    left, right = list(enumerate(zip(control, events, strict=True))), list(enumerate(offsets))
    while left or right:
        if left and (not right or rng.random() < 0.5):
            position, ((ms, _), event) = left.pop(0)
            history.hear_control(position, ms, event)
        else:
            position, (ms, written) = right.pop(0)
            history.hear_offsets(0, position, ms, written)
    return history


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_entries_are_chosen_by_time_and_place() -> None:
    """What began later or was over before is left out; what is under way has no end; a place has moves alone."""
    control = [*begun("a", "b"), (10, granted(1, 1)), (20, planned(1, 1, 2)), (30, asked(1, 1)), (50, granted(2, 2))]
    control += [(60, expelled(2, "silent"))]
    entries = told(control, [(12, cut(1, 1)), (40, released(1, 1)), (55, cut(2, 2))]).entries()
    first, second, waiting = (entry for entry in entries if isinstance(entry, MoveEntry))
    assert [entry for entry in select_entries(entries, since_ms=13) if isinstance(entry, MoveEntry)] == [
        second,
        waiting,
    ]
    assert [entry for entry in select_entries(entries, since_ms=1_000) if isinstance(entry, MoveEntry)] == [waiting]
    assert [entry for entry in select_entries(entries, until_ms=29) if isinstance(entry, MoveEntry)] == [first]
    assert [entry for entry in select_entries(entries, until_ms=31) if isinstance(entry, MoveEntry)] == [first, second]
    assert select_entries(entries, since_ms=55, until_ms=55) == [second]
    assert select_entries(entries, topic="orders") == select_entries(entries, partition=0) == [first, second, waiting]
    assert select_entries(entries, topic="bills") == select_entries(entries, partition=1) == []
    assert len(select_entries(entries)) == len(entries) > 3


def test_entries_come_in_the_order_of_the_control_log() -> None:
    """Whatever the clocks say; what is under way comes last."""
    control = [*begun("a", "b"), (90, granted(1, 1)), (80, planned(1, 1, 2)), (70, asked(1, 1)), (60, granted(2, 2))]
    entries = told([*control, (50, expelled(2, "silent"))], [(5, released(1, 1)), (3, cut(2, 2))]).entries()
    done = [entry for entry in entries if not entry.is_open]
    assert all(left.position <= right.position for left, right in pairwise(done))
    assert entries[-1].is_open
    (move,) = (entry for entry in entries if isinstance(entry, MoveEntry) and entry.epoch == 2)
    assert move.stood_still_ms == -2, "two clocks: it is told as it is"


def test_labels() -> None:
    """A whole partition has no points."""
    control = [*begun("a"), (1, granted(1, 1)), (2, ranges_granted(1, 1, 2, *PLACE, (Band(0, HALF, 0),)))]
    assert [move.label for move in moves(told(control, [(1, cut(1, 1))]))] == [
        "orders[0]",
        "orders[0] 00000000-80000000",
    ]
