"""Who worked on what, when it changed, and what that cost, by the two logs."""

import msgspec
import pytest

from course import Act, Course
from figures import ActFigures, ScalingFigures, group_figures, scaling_figures
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.control import LEARNER, STANDBY
from keylanes.offsets.control_events import (
    AppCreated,
    ControlEvent,
    CopyAsked,
    CopyEnded,
    MemberExpelled,
    MemberJoined,
    PlanMade,
    RangesGranted,
    ReleaseAsked,
)
from keylanes.offsets.event_values import NO_MOVE, Band, Edge, PlannedMove, Span
from keylanes.offsets.events import Event, RangesReleased, WorkersCut
from keylanes.spark.group_report import Reign, TimeMark
from keylanes.spark.plane_tiles import NO_PLANE, PlanePoint, PlaneTile
from logbook import Logbook
from owners import (
    GroupLog,
    RunningTime,
    areas_by_name,
    copies_of,
    count_grants,
    marks_of,
    place_of_a_move,
    reigns_of,
)

from ...stage.log_events import NO_NUMBER, coordinator_elected, in_turn, member_fenced, partition_started
from ...tiers.marks import tier

pytestmark = tier("check")

HALF = SPACE_END // 2
DECIDED = 1, NO_NUMBER
MIDDLE = (HALF, SPACE_END)
ALL_OF_IT = (0, SPACE_END)
Control = list[tuple[int, ControlEvent]]
Offsets = list[tuple[int, Event]]


def joined(incarnation: int, name: str, term: int = 1) -> MemberJoined:
    """A process with a name."""
    birth = f"birth {name} {incarnation}"
    return MemberJoined(term, NO_NUMBER, incarnation, name, birth, (birth,), "host", "", 1.0, 1, (), (), True)


def planned(plan: int, epoch: int, *moves: PlannedMove) -> PlanMade:
    """A plan in one part that answers so many causes."""
    return PlanMade(*DECIDED, plan, epoch, "change", 0, 0, 1, moves)


def move(number: int, points: tuple[int, int], origin: int, target: int) -> PlannedMove:
    """A move of points with 1,000 bytes of state."""
    return PlannedMove(number, "t", 0, *points, origin, target, 1_000, 0.0, 0)


def granted(number: int, incarnation: int, epoch: int, points: tuple[int, int], term: int = 1) -> RangesGranted:
    """A grant of points."""
    return RangesGranted(term, NO_NUMBER, number, incarnation, epoch, "t", 0, (Band(*points, 0),), (), ())


def copy_asked(number: int, incarnation: int, points: tuple[int, int], role: str) -> CopyAsked:
    """A copy of points."""
    return CopyAsked(*DECIDED, number, incarnation, "t", 0, (Span(*points),), role, 0)


def released(incarnation: int, transaction: int, epoch: int, *points: tuple[int, int]) -> RangesReleased:
    """Points that are given up."""
    edges = tuple(Edge(*each, 10) for each in points)
    return RangesReleased(incarnation, transaction, epoch, "t", 0, NO_MOVE, edges, ())


UP: Control = [
    (0, AppCreated("app", "hash", 1)),
    (0, coordinator_elected(1, "birth demo-1 1")),
    (1_000, joined(1, "demo-1")),
    (1_000, partition_started(1, "t", 0, 0, "earliest", 1)),
    (1_100, planned(1, 2, move(1, ALL_OF_IT, 0, 1))),
    (1_200, granted(1, 1, 1, ALL_OF_IT)),
    (3_000, joined(2, "demo-2")),
    (3_500, planned(2, 3, move(2, MIDDLE, 1, 2))),
    (3_600, copy_asked(2, 2, MIDDLE, LEARNER)),
    (4_600, ReleaseAsked(*DECIDED, 2, 1, 1, "t", 0, *MIDDLE, 30_000)),
    (5_000, granted(2, 2, 2, MIDDLE)),
]
"""One process has all of a partition, and gives a half to another one, which has copied its state."""
DOWN: Control = [
    (9_000, planned(3, 3, move(3, MIDDLE, 2, 1))),
    (9_100, copy_asked(3, 1, MIDDLE, LEARNER)),
    (9_300, ReleaseAsked(*DECIDED, 3, 2, 2, "t", 0, *MIDDLE, 30_000)),
    (9_700, granted(3, 1, 3, MIDDLE)),
    (9_900, MemberExpelled(*DECIDED, 2, "left", 0)),
    (10_500, planned(4, 4)),
]
"""And has it back when the other one leaves."""
KILL: Control = [
    (11_000, coordinator_elected(2, "birth demo-2 2")),
    (12_000, MemberExpelled(2, NO_NUMBER, 1, "silent", 0)),
    (12_100, member_fenced(2, 1)),
    (12_200, granted(4, 2, 3, (0, HALF), 2)),
    (15_000, joined(3, "demo-1", 2)),
    (16_000, MemberExpelled(2, NO_NUMBER, 3, "silent", 0)),
]
"""Or is killed: the other one coordinates, and has all; it is back later, and is paused for too long."""
OFFSETS: Offsets = [
    (1_300, WorkersCut(1, 1, 1, "t", 0, 0, (0, HALF, SPACE_END))),
    (4_800, released(1, 5, 1, MIDDLE)),
    (5_200, WorkersCut(2, 1, 2, "t", 0, 0, MIDDLE)),
    (9_400, released(2, 7, 2, MIDDLE)),
    (9_800, WorkersCut(1, 9, 3, "t", 0, 2, MIDDLE)),
]
TAKEN_OVER: Offsets = [*OFFSETS[:3], (12_500, WorkersCut(2, 9, 3, "t", 0, 1, (0, HALF)))]
TILES = [
    PlaneTile("t", 0, 1, 2, 0, 1, HALF, SPACE_END, 0, 10),
    PlaneTile("t", 0, 2, 2, 0, 1, HALF, SPACE_END, 10, 20),
    PlaneTile("t", 0, 2, 3, 0, 1, HALF, SPACE_END, 20, 30),
    PlaneTile("t", 0, 1, 9, 0, 1, 0, HALF, 10, 20),
    PlaneTile("t", 0, 1, 10, 2, 1, HALF, SPACE_END, 30, 40),
    PlaneTile("t", 0, 2, 11, 1, 1, 0, HALF // 2, 20, 30),
]
TIMES = {(1, 2): 2_000, (2, 2): 5_450, (2, 3): 6_000, (1, 9): 9_850, (1, 10): 9_950, (2, 11): 13_000}
STEPS = (Act("scale", ("demo-2",), 0.08, 2_500, is_up=True), Act("scale", ("demo-2",), 0.78, 8_000))


def log_of(control: Control, offsets: Offsets = OFFSETS) -> GroupLog:
    """What the logs say, in a run of 20 s."""
    log = GroupLog(times=TIMES)
    for position, (ms, event) in enumerate(offsets):
        log.history.hear_offsets(0, position, ms, event)
    for position, ((ms, _), decided) in enumerate(zip(control, in_turn(event for _, event in control), strict=True)):
        log.hear_control(position, ms, decided)
    log.close().running = RunningTime([(0, 20_000)])
    return log


def test_a_group_comes_to_rest() -> None:
    """When nothing is left to move, everything is owned by those who take part, and the newest plan answers all. A
    decision of a coordinator that was deposed changes nothing.
    """
    one, both = frozenset({"demo-1"}), frozenset({"demo-1", "demo-2"})
    log = log_of([*UP, *DOWN])
    assert log.rests == [(1_200, one), (5_000, both), (10_500, one)]
    begun = [log_of([*UP, *DOWN][:count]).at_rest for count in range(len(UP) + len(DOWN) + 1)]
    assert [number for number, names in enumerate(begun) if names] == [6, 11, 17]
    late = log_of([*UP, (5_500, coordinator_elected(2, "birth demo-2 2"))])
    late.hear_control(99, 6_000, msgspec.structs.replace(joined(3, "demo-3"), number=1))
    assert late.at_rest == both


@pytest.mark.parametrize(
    ("behind", "rests"),
    [
        ([planned(3, 3, move(3, (0, 9), 1, 2))], False),
        ([planned(3, 3)], True),
        ([copy_asked(9, 1, MIDDLE, STANDBY)], True),
        ([copy_asked(9, 1, MIDDLE, LEARNER)], False),
        ([copy_asked(9, 1, MIDDLE, LEARNER), CopyEnded(*DECIDED, 9, "of no use")], True),
    ],
)
def test_what_is_on_its_way_is_no_rest(behind: list[ControlEvent], rests: bool) -> None:
    """A move that was not asked for yet, or a copy for one; standbys are copied at rest. Nor are points without one."""
    assert bool(log_of([*UP, *((6_000, event) for event in behind)]).at_rest) is rests
    assert not log_of([*UP[:5], (1_200, granted(1, 1, 1, (0, HALF)))]).at_rest


def test_a_range_is_worked_on_from_its_cut_to_its_release() -> None:
    """Who releases a part keeps the rest; who was killed had its ranges up to its last commit. What a process copied
    before it got it is known, too.
    """
    log = log_of([*UP, *DOWN])
    assert sorted(reigns_of(log)) == [
        Reign("t", 0, 0, HALF, 1, 1_300, 9_950),
        Reign("t", 0, *MIDDLE, 1, 1_300, 4_800),
        Reign("t", 0, *MIDDLE, 1, 9_800, 9_950),
        Reign("t", 0, *MIDDLE, 2, 5_200, 9_400),
    ]
    assert copies_of(log) == [Reign("t", 0, *MIDDLE, 2, 3_600, 5_000), Reign("t", 0, *MIDDLE, 1, 9_100, 9_700)]
    assert count_grants(log.changed_hands()) == 2
    killed = reigns_of(log_of([*UP, *KILL], TAKEN_OVER))
    assert Reign("t", 0, 0, HALF, 1, 1_300, 9_950) in killed
    assert Reign("t", 0, 0, HALF, 2, 12_500, 13_000) in killed


def test_a_kill_has_its_figures_and_marks() -> None:
    """From the last commit of the killed one its ranges have no owner, and stand still until the first commit in them.
    Then who coordinates, the expulsion, and when it joins again; what a pause costs, and what comes of it later.
    """
    acts = (Act("kill", ("demo-1",), 0.34, 10_000, "coordinator"), Act("pause", ("demo-1",), 0.6, 15_500, seconds=3.0))
    log = log_of([*UP, *KILL], TAKEN_OVER)
    book = Logbook(plane=NO_PLANE._replace(tiles=TILES), group=log)
    figures = group_figures(book, Course(2, acts), 100)
    assert figures.killed == [
        ActFigures("demo-1", "coordinator", 0.34, 0.0, 12.0, 15.0, 9.95, (2.55, 2.55), (3.05, 3.05))
    ]
    assert figures.paused == [ActFigures("demo-1", "member", 0.6, 3.0, 16.0, None)]
    assert (figures.moves, figures.elections, figures.expelled) == (2, 2, {"silent": 2})
    assert marks_of(log, {"demo-1": 9_950}, ["demo-2"], []) == [
        TimeMark(3.0, "demo-2 joins", False),
        TimeMark(9.95, "demo-1 is killed", True),
        TimeMark(11.0, "demo-2 coordinates", False),
        TimeMark(12.0, "demo-1 is expelled", True),
        TimeMark(15.0, "demo-1 is back", False),
    ]
    assert marks_of(log, {}, [], [("demo-1", 15_500), ("demo-2", 15_500)]) == [
        TimeMark(15.5, "demo-1 is paused", True),
        TimeMark(15.5, "demo-2 is paused", True),
        TimeMark(16.0, "demo-1 is expelled", True),
    ]
    assert log.coordinator == "demo-2"


def test_each_step_has_its_figures() -> None:
    """From its beginning until the group is at rest; what moved until then is its own, and so is what that cost. One
    that never comes to rest has what moved before the next one.
    """
    course = Course(4, STEPS)
    assert scaling_figures(course, log_of([*UP, *DOWN]), TILES) == [
        ScalingFigures(["demo-2"], 2, True, 0.08, 2.5, 2.7, 1, 1_000, 1, 1.4, 0.4, 0.65),
        ScalingFigures(["demo-2"], 1, False, 0.78, 8.0, 2.5, 1, 1_000, 1, 0.6, 0.4, 0.55),
    ]
    up, down = scaling_figures(course, log_of([*UP, *DOWN[:-1]]), TILES)
    assert (up.settled_s, down.settled_s, down.moves) == (2.7, None, 1)
    early = Course(4, (STEPS[0], Act("scale", ("demo-3", "demo-4"), 0.24, 4_000, is_up=True)))
    assert [(one.settled_s, one.moves) for one in scaling_figures(early, log_of(UP), TILES)] == [(None, 0), (None, 1)]


def test_parts_that_are_released_one_by_one_are_one_range() -> None:
    """What stands still is told by the part that did for longest."""
    quarter = 3 * SPACE_END // 4
    parts = [(4_650, released(1, 4, 1, (HALF, quarter))), (4_800, released(1, 5, 1, (quarter, SPACE_END)))]
    log = log_of(UP, [OFFSETS[0], *parts, OFFSETS[2]])
    (up,) = scaling_figures(Course(4, STEPS[:1]), log, TILES)
    assert (up.moves, up.state_bytes, up.unowned_s, up.still_s) == (1, 1_000, 0.55, 0.8)


def test_the_picture_looks_at_a_range_that_moved() -> None:
    """At the edge that its first owner left; nowhere when nothing of the topic moved, though it was granted."""
    log = log_of([*UP, *DOWN])
    assert place_of_a_move(log, TILES, log.changed_hands(), "t") == PlanePoint("t", 0, (HALF + SPACE_END) // 2, 10)
    assert place_of_a_move(log, TILES, log.changed_hands(), "u") is None
    assert not log_of(UP[:6], OFFSETS[:1]).changed_hands()
    lost = log_of([*UP, *KILL], TAKEN_OVER)
    assert place_of_a_move(lost, TILES, lost.lost_by(1), "t") == PlanePoint("t", 0, HALF // 2, 20)


def test_pauses_between_runs_are_no_work() -> None:
    """Runs that overlap are one; a moment between two counts as the end of the first. A process works from its first
    cut to its last commit.
    """
    running = RunningTime([(5_000, 6_000), (0, 1_000), (500, 2_000)])
    assert running.total_s == 3.0
    assert [running.ms(ms) for ms in (-5, 0, 1_500, 4_000, 5_500, 9_000)] == [0, 0, 1_500, 2_000, 2_500, 3_000]
    assert RunningTime(()).total_s == RunningTime(()).ms(7) == 0
    assert log_of([*UP, *DOWN]).close().running.total_s == (13_000 - 1_300) / 1_000


def test_what_each_process_has_of_the_plane() -> None:
    """By name: incarnations of one name are one."""
    assert areas_by_name(TILES[:5], {1: "demo-1", 2: "demo-1"}) == {"demo-1": 50 * HALF}
    assert areas_by_name(TILES[1:3], {1: "demo-1", 2: "demo-2"}) == {"demo-2": 20 * HALF}
