"""What a group did, in figures, from the plan of an honest run. No Spark."""

from msgspec.structs import replace

from keylanes.offsets.control_events import CopyAsked, MemberJoined, RangesGranted
from keylanes.offsets.event_values import Band
from keylanes.offsets.events import WorkersCut
from keylanes.spark.group_figures import Times, group_figures
from keylanes.spark.group_report import GroupFigures
from keylanes.spark.report import Check, Report

from ..stage.log_events import NO_NUMBER, coordinator_elected
from ..tiers.marks import tier
from .group_plants import find, granted_again
from .honest import SOURCE, Run
from .honest_copies import MOVED, STATE_BYTES, CopyPlanner
from .honest_group import FIRST, SECOND, WHOLE, GroupPlanner
from .owned_logs import judged

pytestmark = tier("check")

BEGAN_MS = 1_000_005
"""The first grant."""


def figures_of(run: Run) -> GroupFigures:
    """Without Spark."""
    offsets = {(p, i): at_ms for p, times in enumerate(run.events_ms) for i, at_ms in enumerate(times)}
    return group_figures(*judged(run), Times(dict(enumerate(run.control_ms)), offsets, 0))


def test_the_figures_are_those_of_the_plan() -> None:
    """Who took part, how often somebody was elected, expelled, or got something, and what that took."""
    figures = figures_of(GroupPlanner().run())
    assert [(m.incarnation, m.instance, m.ended) for m in figures.members] == [
        (FIRST, "process 0", "silent"),
        (SECOND, "process 1", "left"),
    ]
    assert [(term.term, term.instance) for term in figures.terms] == [(1, "process 0"), (2, "process 1")]
    assert figures.expulsions == {"left": 1, "silent": 1}
    assert figures.moves == {"change": 1, "silent": 1}
    assert figures.released == (1, 25, 25, 25), "5 ms to the grant, 20 ms more to the first event of the new owner"
    assert figures.expelled == (1, 75, 75, 75)
    longest = figures.unowned_longest
    assert longest is not None
    assert (longest.topic, longest.partition, longest.ms, longest.cause) == (SOURCE, 0, 75, "silent")
    assert figures.from_ms == BEGAN_MS


def test_shares_are_points_over_the_time() -> None:
    """From the grant to the release, or to the expulsion; what nobody has is nobody's."""
    figures = figures_of(GroupPlanner().run())
    total = 2 * (figures.until_ms - figures.from_ms)
    own = {member.incarnation: round(member.share * total) for member in figures.members}
    reigns = [(r.partition, r.incarnation, r.until_ms - r.from_ms, r.end - r.first) for r in figures.reigns]
    assert {width for *_, width in reigns} == {WHOLE}
    assert own == {who: sum(ms for _, i, ms, _ in reigns if i == who) for who in (FIRST, SECOND)}
    assert [(partition, who) for partition, who, *_ in reigns] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert total - sum(own.values()) == (50 + 5) + 5 + 2 * 10, "until fenced and granted; the move; and the end"


def test_what_comes_back_to_its_owner_has_not_moved() -> None:
    """A range that was given up, and granted to the same member again."""
    run = GroupPlanner().run()
    granted_again(run)
    run.control_ms.append(run.control_ms[-1])
    assert figures_of(run).moves == {"change": 1, "silent": 1}


def test_what_nobody_takes_up_has_no_owner_to_the_end() -> None:
    """The last owner leaves long before the last event, and a member is there."""
    run = CopyPlanner().run()
    run.control_ms[-2:] = [run.control_ms[-1] + 5_000] * 2
    longest = figures_of(run).unowned_longest
    assert longest is not None
    assert (longest.ms, longest.cause, longest.is_over) == (5_000 + 10, "released", False)


def test_what_nobody_could_own_is_left_out() -> None:
    """When all members have left, nothing lacks an owner: not at the end, and not until the application is started
    again. From then on what was released before does.
    """
    run = GroupPlanner().run()
    run.control_ms[-2:] = [run.control_ms[-1] + 5_000] * 2
    longest = figures_of(run).unowned_longest
    assert longest is not None
    assert (longest.ms, longest.cause) == (75, "silent")
    joined = run.control[find(run.control, MemberJoined, incarnation=SECOND)]
    run.control += [
        coordinator_elected(3, "process 2"),
        replace(joined, term=3, incarnation=3, birth="process 2"),
        RangesGranted(3, NO_NUMBER, 0, 3, 3, SOURCE, 0, (Band(0, WHOLE, 300),), (), ()),
    ]
    later = run.control_ms[-1] + 60_000_000
    run.control_ms += [later, later, later + 5]
    run.events[0].append(WorkersCut(3, 1, 3, SOURCE, 0, 0, (0, WHOLE)))
    run.events_ms[0].append(later + 200)
    longest = figures_of(run).unowned_longest
    assert longest is not None
    assert (longest.partition, longest.ms, longest.cause, longest.is_over) == (0, 200, "released", True)


def test_figures_of_copies_are_those_of_the_plan() -> None:
    """How many were asked for, what became of them, what moved, and what that took with a copy and without."""
    copies = figures_of(CopyPlanner().run()).copies
    assert copies.asked == {"learner": 2, "standby": 3}
    assert copies.ended == {"its move was withdrawn": 1, "its next owner is at work": 1}
    assert copies.promoted == {"learner": 1, "standby": 1}
    assert copies.standbys == 1
    assert copies.state_bytes == 2 * STATE_BYTES, "of what was granted, also to who had a copy of an orphan"
    assert copies.learned == (1, 40, 40, 40), "a commit, and 30 ms more"
    assert (copies.with_copy, copies.without_copy.moves) == ((1, 25, 25, 25), 0)
    run = CopyPlanner().run()
    del run.control[(at := find(run.control, CopyAsked, move=MOVED))], run.control_ms[at]
    copies = figures_of(run).copies
    assert (copies.with_copy.moves, copies.without_copy, copies.learned.moves) == (0, (1, 25, 25, 25), 0)


def test_the_report_shows_them_beside_the_verdict() -> None:
    """For people and as JSON, with what was looked at for the statements that hold."""
    checks = (Check("grant-edge", "a grant goes on", 4, 0), Check("grant-free", "it is free", 2, 1, ({"epoch": 2},)))
    report = Report("flights", "embedded:x", checks, (), {}, {}, group=figures_of(GroupPlanner().run()))
    text = report.to_text()
    assert "expulsions 2 (left 1, silent 1), moves 2 (change 1, silent 1)" in text
    assert "released to taken up: p50 25 ms, p99 25 ms, max 25 ms (1)" in text
    assert "longest without an owner at work: flights.in[0], 75 ms (silent)" in text
    assert "proved: edges where a grant begins 4" in text
    group = report.to_dict()["group"]
    assert group["proved"] == {"grant-edge": 4}
    assert group["released_to_taken_up_ms"] == {"moves": 1, "p50": 25, "p99": 25, "longest": 25}
    assert "copies" not in text, "none was asked for"
    assert "group" not in Report("flights", "embedded:x", checks, (), {}, {}).to_dict()


def test_the_report_shows_copies() -> None:
    """Beside the moves, and its verdict tells their statements from those on what is processed once."""
    checks = [Check("copy-first", "behind a copy", 2, 0), Check("copy-once", "it moves once", 1, 1)]
    report = Report("flights", "embedded:x", tuple(checks), (), {}, {}, group=figures_of(CopyPlanner().run()))
    text = report.to_text()
    assert "copies 5 (learner 2, standby 3), ended 2 (its move was withdrawn 1, its next owner is at work 1)" in text
    assert "promoted 2 (learner 1, standby 1), standbys at the end 1; state moved 10,000,000 bytes" in text
    assert "copy asked to release asked: p50 40 ms" in text
    assert "released to taken up with a copy: p50 25 ms, p99 25 ms, max 25 ms (1); without: no move" in text
    assert "proved: releases behind a copy 2" in text
    assert text.endswith("exactly once, but COPIES ARE WRONGLY ASKED FOR: 1 of 2 statements fail")
    assert report.exit_code == 1
    assert report.to_dict()["group"]["copies"]["state_bytes_moved"] == 10_000_000
    checks.append(Check("tile-cover", "all of it is covered", 5, 1))
    assert "NOT exactly once" in Report("flights", "embedded:x", tuple(checks), (), {}, {}).to_text()
