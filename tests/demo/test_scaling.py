"""What a step of a course that scales costs, by the two logs."""

import msgspec

from keylanes.demo.course import Course, Scaled
from keylanes.demo.owners import Copied, Mark, RunningTime
from keylanes.demo.scaling import (
    Log,
    Motion,
    Rest,
    ScalingFigures,
    place_of_a_move,
    scaling_figures,
    scaling_marks,
)
from keylanes.demo.tiles import Place, PlaneTile
from keylanes.group.happened import MoveEntry
from keylanes.group.history import History
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

from ..stage.log_events import NO_NUMBER, coordinator_elected, in_turn, partition_started
from ..tiers.marks import tier

pytestmark = tier("check")

HALF = SPACE_END // 2
DECIDED = 1, NO_NUMBER
MIDDLE = (HALF, SPACE_END)
ALL_OF_IT = (0, SPACE_END)


def joined(incarnation: int, name: str) -> MemberJoined:
    """A process with a name."""
    return MemberJoined(*DECIDED, incarnation, name, f"birth {name}", (name,), "host", "", 1.0, 1, (), (), True)


def planned(plan: int, epoch: int, *moves: PlannedMove) -> PlanMade:
    """A plan in one part that answers so many causes."""
    return PlanMade(*DECIDED, plan, epoch, "change", 0, 0, 1, moves)


def move(number: int, points: tuple[int, int], origin: int, target: int) -> PlannedMove:
    """A move of points with 1,000 bytes of state."""
    return PlannedMove(number, "t", 0, *points, origin, target, 1_000, 0.0, 0)


def granted(number: int, incarnation: int, epoch: int, points: tuple[int, int]) -> RangesGranted:
    """A grant of points."""
    return RangesGranted(*DECIDED, number, incarnation, epoch, "t", 0, (Band(*points, 0),), (), ())


def copy_asked(number: int, incarnation: int, points: tuple[int, int], role: str) -> CopyAsked:
    """A copy of points."""
    return CopyAsked(*DECIDED, number, incarnation, "t", 0, (Span(*points),), role, 0)


UP: list[tuple[int, ControlEvent]] = [
    (0, AppCreated("app", "hash", 1)),
    (0, coordinator_elected(1, "birth demo-1")),
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
DOWN: list[tuple[int, ControlEvent]] = [
    (9_000, planned(3, 3, move(3, MIDDLE, 2, 1))),
    (9_100, copy_asked(3, 1, MIDDLE, LEARNER)),
    (9_300, ReleaseAsked(*DECIDED, 3, 2, 2, "t", 0, *MIDDLE, 30_000)),
    (9_700, granted(3, 1, 3, MIDDLE)),
    (9_900, MemberExpelled(*DECIDED, 2, "left", 0)),
    (10_500, planned(4, 4)),
]
"""And has it back when the other one leaves."""


def motion_of(events: list[tuple[int, ControlEvent]]) -> Motion:
    """The fold of events with their times."""
    motion = Motion()
    for (ms, _), event in zip(events, in_turn(event for _, event in events), strict=True):
        motion.take(ms, event)
    return motion


def moves_of(control: list[tuple[int, ControlEvent]], offsets: list[tuple[int, Event]]) -> list[MoveEntry]:
    """What moved, by both logs."""
    history = History()
    for position, (ms, event) in enumerate(offsets):
        history.hear_offsets(0, position, ms, event)
    for position, ((ms, _), decided) in enumerate(zip(control, in_turn(event for _, event in control), strict=True)):
        history.hear_control(position, ms, decided)
    return [entry for entry in history.entries() if isinstance(entry, MoveEntry)]


def released(incarnation: int, transaction: int, epoch: int) -> RangesReleased:
    """The half that moves, given up."""
    return RangesReleased(incarnation, transaction, epoch, "t", 0, NO_MOVE, (Edge(*MIDDLE, 10),), ())


OFFSETS: list[tuple[int, Event]] = [
    (1_300, WorkersCut(1, 1, 1, "t", 0, 0, (0, HALF, SPACE_END))),
    (4_800, released(1, 5, 1)),
    (5_200, WorkersCut(2, 1, 2, "t", 0, 0, MIDDLE)),
    (9_400, released(2, 7, 2)),
    (9_800, WorkersCut(1, 9, 3, "t", 0, 2, MIDDLE)),
]
TILES = [
    PlaneTile("t", 0, 1, 2, 0, 1, HALF, SPACE_END, 0, 10),
    PlaneTile("t", 0, 2, 2, 0, 1, HALF, SPACE_END, 10, 20),
    PlaneTile("t", 0, 2, 3, 0, 1, HALF, SPACE_END, 20, 30),
    PlaneTile("t", 0, 1, 9, 0, 1, 0, HALF, 10, 20),
    PlaneTile("t", 0, 1, 10, 2, 1, HALF, SPACE_END, 30, 40),
]
TIMES = {(1, 2): 2_000, (2, 2): 5_450, (2, 3): 6_000, (1, 9): 9_850, (1, 10): 9_950}
COURSE = Course(4, (Scaled(("demo-2",), True, 0.08, 2_500), Scaled(("demo-2",), False, 0.78, 8_000)))


def log_of(control: list[tuple[int, ControlEvent]]) -> Log:
    """All that the logs say."""
    return Log(motion_of(control), moves_of(control, OFFSETS), TILES, TIMES, RunningTime([(0, 20_000)]))


def test_a_group_comes_to_rest() -> None:
    """When nothing is left to move, everything is owned by those who take part, and the newest plan answers all."""
    one, both = frozenset({"demo-1"}), frozenset({"demo-1", "demo-2"})
    assert motion_of([*UP, *DOWN]).rests == [Rest(1_200, one), Rest(5_000, both), Rest(10_500, one)]
    begun = [motion_of([*UP, *DOWN][:count]).at_rest for count in range(len(UP) + len(DOWN) + 1)]
    assert [number for number, names in enumerate(begun) if names] == [6, 11, 17]


def test_a_move_that_was_not_asked_for_yet_is_on_its_way() -> None:
    """It is planned, and waits for its turn; a plan of nothing is rest, points without an owner are none."""
    assert motion_of(UP).at_rest
    assert not motion_of([*UP, (6_000, planned(3, 3, move(3, (0, 9), 1, 2)))]).at_rest
    assert motion_of([*UP, (6_000, planned(3, 3))]).at_rest
    assert not motion_of([*UP[:5], (1_200, granted(1, 1, 1, (0, HALF)))]).at_rest


def test_standbys_are_no_move() -> None:
    """They are copied at rest; a learner is on its way to own something."""
    standby = (6_000, copy_asked(9, 1, MIDDLE, STANDBY))
    assert motion_of([*UP, standby]).at_rest
    assert motion_of([*UP, standby]).copied() == motion_of(UP).copied()
    learner = (6_000, copy_asked(9, 1, MIDDLE, LEARNER))
    assert not motion_of([*UP, learner]).at_rest
    ended = motion_of([*UP, learner, (6_500, CopyEnded(*DECIDED, 9, "of no use"))])
    assert ended.at_rest
    assert ended.copied() == [Copied("t", 0, *MIDDLE, 2, 3_600, 5_000), Copied("t", 0, *MIDDLE, 1, 6_000, 6_500)]


def test_what_does_not_count_is_not_at_rest_either() -> None:
    """A decision of a coordinator that was deposed changes nothing."""
    late = motion_of([*UP, (5_500, coordinator_elected(2, "birth demo-2"))])
    late.take(6_000, msgspec.structs.replace(joined(3, "demo-3"), number=1))
    assert late.at_rest == {"demo-1", "demo-2"}


def test_a_copy_that_is_not_through_ends_with_the_log() -> None:
    """So far it is known."""
    assert motion_of(UP[:-1]).copied() == [Copied("t", 0, *MIDDLE, 2, 3_600, 4_600)]


def test_each_step_has_its_figures() -> None:
    """From its beginning until the group is at rest; what moved until then is its own, and so is what that cost."""
    assert scaling_figures(COURSE, log_of([*UP, *DOWN])) == [
        ScalingFigures(["demo-2"], 2, True, 0.08, 2.5, 2.7, 1, 1_000, 1, 1.4, 0.4, 0.65),
        ScalingFigures(["demo-2"], 1, False, 0.78, 8.0, 2.5, 1, 1_000, 1, 0.6, 0.4, 0.55),
    ]


def test_parts_that_are_released_one_by_one_are_one_range() -> None:
    """What stands still is told by the part that did for longest."""
    quarter = 3 * SPACE_END // 4
    parts = [Edge(HALF, quarter, 10), Edge(quarter, SPACE_END, 10)]
    offsets: list[tuple[int, Event]] = [
        (1_300, OFFSETS[0][1]),
        (4_650, RangesReleased(1, 4, 1, "t", 0, NO_MOVE, (parts[0],), ())),
        (4_800, RangesReleased(1, 5, 1, "t", 0, NO_MOVE, (parts[1],), ())),
        OFFSETS[2],
    ]
    log = log_of(UP)._replace(moves=moves_of(UP, offsets))
    assert len(log.moves) == 3
    (up,) = scaling_figures(Course(4, COURSE.acts[:1]), log)
    assert (up.moves, up.state_bytes, up.unowned_s, up.still_s) == (1, 1_000, 0.55, 0.8)


def test_a_step_that_never_comes_to_rest_says_so() -> None:
    """It has what moved before the next one."""
    up, down = scaling_figures(COURSE, log_of([*UP, *DOWN[:-1]]))
    assert (up.settled_s, down.settled_s) == (2.7, None)
    assert down.moves == 1
    first = Scaled(("demo-2",), True, 0.08, 2_500)
    early = Course(4, (first, Scaled(("demo-3", "demo-4"), True, 0.24, 4_000)))
    assert [(one.settled_s, one.moves) for one in scaling_figures(early, log_of(UP))] == [(None, 0), (None, 1)]


def test_each_step_is_marked() -> None:
    """By how many more or fewer, and who they are."""
    assert scaling_marks(scaling_figures(COURSE, log_of([*UP, *DOWN]))) == [
        Mark(2.5, "+1: demo-2", is_loss=False, is_step=True, until_s=5.2),
        Mark(8.0, "−1: demo-2", is_loss=True, is_step=True, until_s=10.5),
    ]


def test_the_picture_looks_at_a_range_that_moved() -> None:
    """At the edge that its first owner left; nowhere when nothing of the topic moved, though it was granted."""
    log = log_of([*UP, *DOWN])
    assert place_of_a_move("t", log) == Place("t", 0, (HALF + SPACE_END) // 2, 10)
    assert place_of_a_move("u", log) is None
    assert place_of_a_move("t", log._replace(moves=moves_of(UP[:6], OFFSETS[:1]))) is None
