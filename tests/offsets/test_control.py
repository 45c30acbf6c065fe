"""The fold of the control log where events say what can't be, or say it again."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control import LOAD, Control, evolve_control
from keylanes.offsets.control_events import (
    AnswerAsked,
    AppCreated,
    ControlEvent,
    CopyAsked,
    CopyEnded,
    EndsPinned,
    LevelRaised,
    MemberRefused,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
    ReleaseWithdrawn,
)
from keylanes.offsets.event_values import Band, PinnedEnd, PlannedMove, Span

from ..stage.log_events import (
    APP_BIRTH,
    coordinator_elected,
    in_turn,
    member_expelled,
    member_fenced,
    member_joined,
    partition_started,
    ranges_granted,
    source_identified,
)
from ..tiers.marks import tier

pytestmark = tier("check")

BEGUN: tuple[ControlEvent, ...] = (
    AppCreated("app", "hash", 1),
    coordinator_elected(1, "a"),
    member_joined(1, 1, "a", "app.a"),
)


def folded(*events: ControlEvent) -> Control:
    """The fold of nothing but these events."""
    control = Control()
    for event in events:
        evolve_control(control, event)
    return control


def numbered(*events: ControlEvent) -> list[ControlEvent]:
    """A log of today that begins as every one does; what follows is in turn."""
    return in_turn([*BEGUN, *events])


def grant(
    incarnation: int, epoch: int, *, partition: int = 0, first: int = 0, end: int = SPACE_END, term: int = 1
) -> RangesGranted:
    """A grant of one band."""
    return ranges_granted(term, incarnation, epoch, "t", partition, (Band(first, end, 0),))


def test_who_never_joined_is_not_expelled() -> None:
    """The fold never fails on an event: one about nobody changes nothing."""
    log = numbered(member_expelled(1, 7), member_fenced(1, 8))
    assert folded(*log).members == folded(*numbered()).members


def test_a_partition_starts_once() -> None:
    """A second start would move the audit's left edge."""
    starts = [partition_started(1, "t", p, at, "earliest", 1) for p, at in ((0, 5), (0, 9), (1, 9))]
    assert folded(*numbered(*starts)).started == {("t", 0): 5, ("t", 1): 9}


def test_a_source_has_one_identity() -> None:
    """The first one stays: the offsets in the logs are those of that topic; a stale one counts for nothing."""
    events = (source_identified(0, "s", "z"), source_identified(1, "t", "x"), source_identified(1, "t", "y"))
    assert folded(*numbered(*events)).identities == {"t": "x"}


# --- what counts ------------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_term_count_once_and_in_turn() -> None:
    """A second copy, one that comes late and one that comes before its turn change nothing."""
    *begun, one, two = numbered(source_identified(1, "t", "x"), source_identified(1, "u", "y"))
    wanted = folded(*begun, one, two)
    assert wanted.identities == {"t": "x", "u": "y"}
    assert folded(*begun, two, one, two) == folded(*begun, one, one, two, two, one) == wanted
    assert folded(*begun, two).identities == {}


def test_each_term_has_numbers_of_its_own() -> None:
    """They begin at 1; a decision of a term before is nobody's, whatever its number."""
    log = numbered(coordinator_elected(2, "b"), source_identified(2, "t", "x"))
    assert folded(*log).number == 1
    late = in_turn([source_identified(1, "t", "z"), source_identified(1, "t", "z")])
    assert folded(*log[:-1], *late, log[-1]).identities == {"t": "x"}


def test_the_first_election_of_a_term_wins() -> None:
    """Two stood for it; the second is no coordinator, and what it decides has the numbers that are used."""
    control = folded(*in_turn([*BEGUN, coordinator_elected(2, "b"), coordinator_elected(2, "c")]))
    assert (control.term, control.coordinator) == (2, "b")


def test_the_first_election_says_which_application_it_is() -> None:
    """One of another application does not count, whatever its term; the members say nothing of it."""
    log = numbered()
    assert folded(*log).app_birth == APP_BIRTH
    foreign = coordinator_elected(9, "z", "another application")
    assert folded(*log, foreign) == folded(*log)
    assert folded(foreign, *log) == folded(foreign, log[0])


def test_the_level_only_rises() -> None:
    """One that is not above it changes nothing, and is no cause to move anything."""
    control = folded(*numbered(LevelRaised(1, 0, 2), LevelRaised(1, 0, 1), LevelRaised(1, 0, 2)))
    assert (control.level, control.group_epoch, control.number) == (2, folded(*numbered()).group_epoch + 1, 4)


# --- members ----------------------------------------------------------------------------------------------------------


def test_a_member_joins_once() -> None:
    """A used incarnation, or a birth that is known, joins nothing."""
    joined = member_joined(1, 2, "b", "app.b")
    control = folded(*numbered(joined))
    for again in (joined, member_joined(1, 1, "c", "app.c"), member_joined(1, 3, "b", "app.b")):
        after = folded(*numbered(joined, again))
        assert (after.members, after.incarnation_next) == (control.members, control.incarnation_next)
        assert after.group_epoch == control.group_epoch


def test_who_is_fenced_and_owns_nothing_is_forgotten() -> None:
    """Not before it is fenced, and not while it owns a point anywhere; in whichever order that comes."""
    owning = (grant(1, 1), grant(1, 1, partition=1, end=9), member_joined(1, 2, "b", "app.b"))
    out, fenced = member_expelled(1, 1), member_fenced(1, 1)
    left, right = grant(2, 2), grant(2, 2, partition=1)
    rest: tuple[ControlEvent, ...]
    for rest in ((out, fenced), (out, fenced, left), (left, out, fenced), (left, right), (out, left, right)):
        assert 1 in folded(*numbered(*owning, *rest)).members
    for rest in ((out, fenced, left, right), (left, right, out, fenced), (out, left, fenced, right)):
        assert list(folded(*numbered(*owning, *rest)).members) == [2]


def test_who_is_forgotten_is_out_for_good() -> None:
    """It is expelled and fenced, its incarnation is used, and it joins no more; the application is the same."""
    gone = numbered(member_joined(1, 2, "b", "app.b"), member_expelled(1, 1), member_fenced(1, 1))
    control = folded(*gone)
    assert (list(control.members), control.app_birth) == ([2], APP_BIRTH)
    assert (control.is_expelled(1), control.is_fenced(1)) == (True, True)
    assert (control.is_expelled(2), control.is_expelled(3), control.is_fenced(3)) == (False, False, False)
    assert control.incarnation_next == 3
    again = folded(*in_turn([*gone, member_joined(1, 1, "a", "app.a")]))
    assert (again.members, again.incarnation_next) == (control.members, 3)
    last = folded(*in_turn([*gone, member_expelled(1, 2), member_fenced(1, 2)]))
    assert (last.members, last.incarnation_next, last.app_birth) == ({}, 3, APP_BIRTH)


def test_an_incarnation_that_was_passed_over_is_out() -> None:
    """Nobody bears it, and nobody ever will."""
    control = folded(*numbered(member_joined(1, 3, "c", "app.c")))
    assert [control.is_expelled(i) for i in (1, 2, 3, 4)] == [False, True, False, False]


def test_the_newest_refusals_are_known() -> None:
    """So many that each is found by who waits for it; the rest is of no use to anybody."""
    refused = folded(*numbered(*(MemberRefused(1, 0, f"birth {i}", "name in use") for i in range(100)))).refusals
    assert list(refused) == [f"birth {i}" for i in range(36, 100)]


def test_the_first_ends_count_until_nobody_runs_to_them() -> None:
    """They are forgotten with the last member that ends at its level, for the next one gets its own."""
    first, second = ((PinnedEnd("t", 0, offset),) for offset in (5, 9))
    pinned: list[ControlEvent] = [
        member_joined(1, 2, "b", "app.b", until_level=True),
        EndsPinned(1, 0, first),
        EndsPinned(1, 0, second),
    ]
    assert folded(*numbered(*pinned)).pinned == first
    assert folded(*numbered(*pinned, member_expelled(1, 1))).pinned == first
    gone = folded(*numbered(*pinned, member_expelled(1, 2), EndsPinned(1, 0, second)))
    assert gone.pinned == second


# --- moves ------------------------------------------------------------------------------------------------------------


def plan(number: int, part: int, parts: int, *moves: int) -> PlanMade:
    """A part of a plan."""
    planned = tuple(PlannedMove(move, "t", 0, 0, 9, 1, 2, 0, 0.5, 0) for move in moves)
    return PlanMade(1, 0, number, 3, "joined", 0, part, parts, planned)


def test_a_plan_takes_effect_with_its_last_part() -> None:
    """Parts of another one in between, or a part that is missing, make no plan of it."""
    asked = AnswerAsked(1, 0, 7, 1, 100)
    half = folded(*numbered(asked, plan(1, 0, 2, 1)))
    assert (half.moves.plan, half.moves.planned, half.moves.answer is None) == (0, {}, False)
    whole = folded(*numbered(asked, plan(1, 0, 2, 1), plan(1, 1, 2, 2))).moves
    assert (whole.plan, whole.group_epoch, list(whole.planned), whole.answer) == (1, 3, [1, 2], None)
    torn = folded(*numbered(plan(1, 0, 2, 1), plan(2, 0, 2, 3), plan(1, 1, 2, 2), plan(2, 1, 2, 4))).moves
    assert (torn.plan, torn.planned) == (0, {})


def test_a_plan_is_a_cause_where_no_event_is() -> None:
    """Each time it takes effect: what is moved because of the load is asked for by nothing else in the log."""
    before = folded(*numbered())
    joined, load = plan(1, 0, 1, 1), replace(plan(1, 0, 2, 1), cause=LOAD)
    assert folded(*numbered(joined)).group_epoch == before.group_epoch
    assert folded(*numbered(load)).group_epoch == before.group_epoch
    whole = (load, replace(plan(1, 1, 2, 2), cause=LOAD))
    assert folded(*numbered(*whole)).group_epoch == before.group_epoch + 1
    assert folded(*numbered(*whole, replace(joined, cause=LOAD, plan=2))).group_epoch == before.group_epoch + 2


def test_a_plan_replaces_what_no_move_has_begun() -> None:
    """A move of which a copy or a release was asked goes on beside the new ones."""
    copy = CopyAsked(1, 0, 1, 2, "t", 0, (Span(0, 9),), "learner", 0)
    ask = ReleaseAsked(1, 0, 2, 1, 1, "t", 0, 0, 9, 100)
    first = plan(1, 0, 1, 1, 2, 3)
    assert sorted(folded(*numbered(first, copy, ask, plan(2, 0, 1, 4))).moves.planned) == [1, 2, 4]
    ended = (CopyEnded(1, 0, 1, "done"), ReleaseWithdrawn(1, 0, 2, "deadline"))
    assert sorted(folded(*numbered(first, copy, ask, *ended, plan(2, 0, 1, 4))).moves.planned) == [4]


def test_what_was_asked_for_is_asked_until_it_was_granted_on() -> None:
    """All of its points, at the epoch that was asked; other places are other places."""
    ask = ReleaseAsked(1, 0, 2, 1, 1, "t", 0, 0, 9, 100)
    held = (grant(1, 1), ask)
    for rest in ([], [grant(2, 2, end=4)], [grant(2, 2, first=9)], [grant(2, 2, partition=1)]):
        assert folded(*numbered(*held, *rest)).moves.release_requests == {2: in_turn([*numbered(*held)])[-1]}
    assert not folded(*numbered(*held, grant(2, 2))).moves.release_requests
    assert not folded(*numbered(*held, grant(2, 2, end=4), grant(2, 3, first=4))).moves.release_requests


COPY_BANDS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8)), min_size=1, max_size=2)
COPY_STEPS = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 9), st.integers(1, 3), COPY_BANDS),
    st.tuples(st.just("end"), st.integers(1, 9)),
    st.tuples(st.just("grant"), st.integers(1, 3), COPY_BANDS),
    st.tuples(st.just("expel"), st.integers(1, 3)),
)


@given(st.lists(COPY_STEPS, max_size=12))
def test_a_copy_is_over_when_it_is_owned_or_ended_or_its_member_is_gone(steps: list[tuple[Any, ...]]) -> None:
    """Against a twin that keeps a set of points for each copy, and the owner of each point."""
    log = [*BEGUN, member_joined(1, 2, "b", "app.b"), member_joined(1, 3, "c", "app.c")]
    owners, copies = dict.fromkeys(range(16), 0), dict[int, tuple[int, set[int]]]()
    gone: set[int] = set()
    move_max = epoch = 0
    for what, *given_ in steps:
        spans = [(first, first + length) for first, length in given_[-1]] if what in ("ask", "grant") else []
        points = {point for first, end in spans for point in range(first, end)}
        number = given_[0]
        if what == "ask":
            bands = tuple(Span(*span) for span in spans)
            log.append(CopyAsked(1, 0, number, given_[1], "t", 0, bands, "standby", 0))
            copies[number], move_max = (given_[1], points), max(move_max, number)
        elif what == "end":
            log.append(CopyEnded(1, 0, number, "of no use"))
            copies.pop(number, None)
        elif what == "grant":
            epoch += 1
            log.append(ranges_granted(1, number, epoch, "t", 0, tuple(Band(*span, 0) for span in spans)))
            owners |= dict.fromkeys(points, number)
            copies = {n: (i, of) for n, (i, of) in copies.items() if i != number or {owners[p] for p in of} != {i}}
        elif number not in gone:  # it is expelled once
            gone.add(number)
            log.append(member_expelled(1, number))
            copies = {n: (i, of) for n, (i, of) in copies.items() if i != number}
    control = folded(*in_turn(log))
    assert {n: copy.incarnation for n, copy in control.moves.copies.items()} == {n: i for n, (i, _) in copies.items()}
    assert control.moves.move_max == move_max


def test_a_copy_of_the_fold_changes_by_itself() -> None:
    """Whatever is folded into one leaves the other as it was."""
    log = numbered(grant(1, 1), plan(1, 0, 1, 1), ReleaseAsked(1, 0, 2, 1, 1, "t", 0, 0, 9, 100))
    rest = in_turn(
        [
            coordinator_elected(2, "b"),
            member_joined(2, 2, "b", "app.b"),
            MemberRefused(2, 0, "c", "name in use"),
            member_expelled(2, 1),
            member_fenced(2, 1),
            grant(2, 2, term=2),
            partition_started(2, "t", 0, 5, "earliest", 1),
            source_identified(2, "t", "x"),
            CopyAsked(2, 0, 1, 2, "t", 0, (Span(0, 9),), "learner", 0),
        ]
    )
    original = folded(*log)
    copy = original.copy()
    for event in rest:
        assert evolve_control(copy, event) is copy
    assert original == folded(*log)
    assert copy == folded(*log, *rest) != original
