"""The course of a demo with several processes: how many there can be, who is killed, paused or added, and when."""

import pytest
from msgspec.structs import replace

from course import (
    FLIGHTS_PER_S_OF_MANY,
    MEMBERS_MAX,
    OF_FEW,
    OF_MANY,
    OF_SCALED,
    PAUSED_BELOW_S,
    PAUSED_BEYOND_S,
    SESSION_S,
    Act,
    Course,
    Looked,
    Told,
    act_of,
    course_of,
    do_all_work,
    due,
    is_quiet,
    late,
    may_be,
)
from keylanes.errors import SettingsError

from ...tiers.marks import tier

pytestmark = tier("check")

PLACES = 8
WORKING = Told(records_done=100, workers=500)
THREE = {"demo-1": WORKING, "demo-2": Told(200, 900), "demo-3": WORKING}
KEPT = Course(2, is_kept=True)
KEPT_KILLED = Course(2, (Act("kill", ("demo-2",), 0.34, 7, "coordinator"),), is_kept=True)
KILLED = Course(3, (Act("kill", ("demo-2",), 0.34, 0, "coordinator"),))
BOTH = Course(3, (*KILLED.acts, Act("join", ("demo-4",), 0.5, 7)))
SIX = {f"demo-{number}": Told(100, 500 + number) for number in range(1, 7)}


def looked(share: float, told: dict[str, Told] | None = None, coordinator: str = "demo-3") -> Looked:
    """Three processes that work, at a share of the way."""
    return Looked(share, THREE if told is None else told, coordinator)


def next_act(looked: Looked, course: Course, *, places: int) -> Act | None:
    """What is to happen now."""
    step = due(looked, course, places=places)
    return None if step is None else act_of(step, looked, course, 7)


def test_one_process_runs_on_every_broker() -> None:
    """Several need one that they all reach, and there are not too many; the demo or a service starts them."""
    assert course_of(1, 1, "embedded") == Course()
    assert course_of(MEMBERS_MAX, 1, "kafka") == Course(MEMBERS_MAX)
    assert course_of(1, MEMBERS_MAX, "kafka") == Course(MEMBERS_MAX, is_kept=True)


@pytest.mark.parametrize(
    ("members", "processes", "broker", "said"),
    [
        (2, 1, "embedded", "seen BROKER=embedded, which is for one process: give BROKER=kafka, or MEMBERS=1"),
        (1, 2, "embedded", "seen BROKER=embedded, which is for one process: give BROKER=kafka, or PROCESSES=1"),
        (0, 1, "kafka", "MEMBERS is a number from 1 to 16; seen 0"),
        (17, 1, "kafka", "MEMBERS is a number from 1 to 16; seen 17"),
        (-1, 1, "embedded", "MEMBERS is a number from 1 to 16; seen -1"),
        (1, 0, "kafka", "PROCESSES is a number from 1 to 16; seen 0"),
        (1, 17, "kafka", "PROCESSES is a number from 1 to 16; seen 17"),
        (1, 1, "carrier", "BROKER is embedded or kafka; seen 'carrier'"),
        (3, 2, "kafka", "only one of MEMBERS and PROCESSES can be more than 1; seen MEMBERS=3 and PROCESSES=2: give"),
    ],
)
def test_other_numbers_are_refused(members: int, processes: int, broker: str, said: str) -> None:
    """In words that say what was seen and what is allowed; as wrong usage."""
    with pytest.raises(SettingsError, match=said) as refused:
        course_of(members, processes, broker)
    assert refused.value.exit_code == 2


def test_who_is_at_work_follows_from_the_course() -> None:
    """Who was killed stays away, also after a restart of the demo; who joined comes again."""
    assert Course().names() == ["demo"]
    assert Course(3).names() == ["demo-1", "demo-2", "demo-3"]
    assert KILLED.names() == ["demo-1", "demo-3"]
    assert BOTH.names() == ["demo-1", "demo-3", "demo-4"]
    assert BOTH.started() == BOTH.names()


def test_a_service_starts_its_processes_itself() -> None:
    """The demo starts the service alone; who was killed comes back."""
    assert KEPT.started() == ["demo"]
    assert KEPT.names() == KEPT_KILLED.names() == ["demo-1", "demo-2"]


def test_who_is_killed_has_something_to_lose() -> None:
    """A coordinator without ranges, or one that is not known, is spared: then it is who has most."""
    idle = {**THREE, "demo-3": Told()}
    assert next_act(looked(0.4, idle), Course(3), places=2) == Act("kill", ("demo-2",), 0.4, 7, "member")
    assert next_act(looked(0.4, coordinator=""), Course(3), places=PLACES) == Act("kill", ("demo-2",), 0.4, 7, "member")


def test_nobody_is_killed_before_all_work() -> None:
    """Else its ranges would go to processes that only begin; with more processes than partitions some never work."""
    one_waits = {**THREE, "demo-1": Told()}
    assert due(looked(0.4, one_waits), Course(3), places=PLACES) is None
    assert due(looked(0.4, {"demo-2": WORKING}), Course(3), places=PLACES) is None
    assert due(looked(0.4, one_waits), Course(3), places=2) is not None


def test_who_came_last_is_waited_for() -> None:
    """All work when those have begun that are there by the course; who was killed is none of them."""
    two = {"demo-1": WORKING, "demo-3": WORKING}
    assert do_all_work(two, KILLED, places=PLACES)
    assert not do_all_work(two, BOTH, places=PLACES)
    assert not do_all_work({**two, "demo-4": Told(0, 500)}, BOTH, places=PLACES)
    assert do_all_work({**two, "demo-4": WORKING}, BOTH, places=PLACES)


def test_nobody_is_killed_while_a_range_is_on_its_way() -> None:
    """Unless that takes too long."""
    moving = {**THREE, "demo-1": Told(100, 500, is_moving=True)}
    assert due(looked(0.34, moving), Course(3), places=PLACES) is None
    assert due(looked(0.45, moving), Course(3), places=PLACES) is not None


@pytest.mark.parametrize(
    ("share", "course", "quiet"),
    [
        (0.1, Course(1), False),
        (0.5, Course(1), False),
        (0.81, Course(1), True),
        (0.1, Course(3), False),
        (0.32, Course(3), True),
        (0.4, KILLED, True),
        (0.6, BOTH, False),
        (0.81, BOTH, True),
        (0.1, KEPT, False),
        (0.32, KEPT, True),
        (0.35, KEPT_KILLED, False),
        (0.81, KEPT_KILLED, True),
        (0.1, Course(4), True),
        (0.34, Course(6), False),
        (0.81, Course(6), True),
    ],
)
def test_the_unrest_lets_be_what_is_to_be_seen(share: float, course: Course, quiet: bool) -> None:
    """From shortly before the kill until somebody has joined, or of a service at once, and near the end."""
    assert is_quiet(share, course) is quiet


COURSES: dict[str, tuple[Course, list[Act], list[int]]] = {
    "one": (Course(1), [], [1]),
    "a few": (
        Course(3),
        [Act("kill", ("demo-3",), 0.34, 7, "coordinator"), Act("join", ("demo-4",), 0.5, 7)],
        [3, 2, 3],
    ),
    "two of a service": (Course(2, is_kept=True), [Act("kill", ("demo-1",), 0.34, 7, "coordinator")], [2, 2]),
    "six of a service": (Course(6, is_kept=True), [Act("kill", ("demo-3",), 0.34, 7, "coordinator")], [6, 6]),
    "many": (
        Course(6),
        [
            Act("pause", ("demo-6",), 0.06, 7, "member", PAUSED_BELOW_S),
            Act("kill", ("demo-3",), 0.14, 7, "coordinator"),
            Act("join", ("demo-7",), 0.28, 7),
            Act("pause", ("demo-6",), 0.38, 7, "member", PAUSED_BEYOND_S),
            Act("kill", ("demo-6",), 0.56, 7, "member"),
            Act("join", ("demo-8",), 0.64, 7),
        ],
        [6, 6, 5, 6, 6, 5, 6],
    ),
    "scaled": (
        Course(4),
        [
            Act("scale", ("demo-2",), 0.08, 7, is_up=True),
            Act("scale", ("demo-3", "demo-4"), 0.24, 7, is_up=True),
            Act("scale", ("demo-3", "demo-4"), 0.55, 7),
            Act("scale", ("demo-2",), 0.78, 7),
        ],
        [1, 2, 4, 2, 1],
    ),
}


@pytest.mark.parametrize("name", COURSES)
def test_each_step_comes_once_from_its_share_of_the_way_on(name: str) -> None:
    """One after the other. The coordinator of a few is killed at a third, and another one joins at half; of a service
    the coordinator alone is killed, and comes back; many are paused, killed and joined in turn; four are scaled up from
    one process and down again, who came last first.
    """
    course, acts, sizes = COURSES[name]
    played, seen = course, [len(course.names())]
    for percent in range(101):
        told = {name: SIX.get(name, WORKING) for name in played.names()}
        coordinator = "demo-1" if name == "two of a service" else "demo-3"
        act = next_act(looked(percent / 100, told, coordinator), played, places=PLACES)
        if act is not None:
            played = replace(played, acts=(*played.acts, act))
            seen.append(len(played.names()))
    assert (list(played.acts), seen) == (acts, sizes)
    assert not played.missed


def test_what_was_not_reached_is_missed() -> None:
    """With its label; and a course knows who was at work after so many steps."""
    many, scaled = (replace(course, acts=tuple(acts)) for course, acts, _ in (COURSES["many"], COURSES["scaled"]))
    assert replace(many, acts=many.acts[:4]).missed == OF_MANY[4:]
    assert [step.label for step in replace(scaled, acts=scaled.acts[:2]).missed] == [
        "2 processes fewer",
        "a process fewer",
    ]
    assert [scaled.names_after(number) for number in (0, 2)] == [["demo-1"], ["demo-1", "demo-2", "demo-3", "demo-4"]]
    assert replace(scaled, acts=scaled.acts[:3]).started() == ["demo-1", "demo-2"]
    assert Course(4, is_kept=True).names() == ["demo-1", "demo-2", "demo-3", "demo-4"]


def test_nothing_happens_while_somebody_is_paused_or_does_not_work_yet() -> None:
    """However late it is."""
    assert next_act(Looked(0.9, SIX, "demo-3", is_paused=True), Course(6), places=PLACES) is None
    assert next_act(looked(0.6, {**THREE, "demo-1": Told()}), Course(3), places=PLACES) is None


def test_a_group_is_scaled_at_rest() -> None:
    """Not while something is on its way, or somebody is still there who is to go, or not there yet."""
    up = Course(4, (Act("scale", ("demo-2",), 0.08, 7, is_up=True),))
    there = looked(0.3, dict.fromkeys(up.names(), WORKING))
    step = due(there, up, places=PLACES)
    assert step == OF_SCALED[1]
    for names, may in (((), False), (("demo-1",), False), (("demo-1", "demo-2", "demo-3"), False), (up.names(), True)):
        assert may_be(step, there._replace(at_rest=frozenset(names)), up) is may
    assert due(looked(0.3, {"demo-1": WORKING, "demo-2": Told(0, 500)}), up, places=PLACES) is None
    assert may_be(OF_MANY[0], there, Course(6))


def test_one_pause_is_shorter_than_a_session_and_one_longer() -> None:
    """So one of them expels, with room for a slow machine."""
    assert PAUSED_BELOW_S <= SESSION_S / 2
    assert PAUSED_BEYOND_S > SESSION_S + 3


def test_a_member_is_spared_where_the_coordinator_is_meant() -> None:
    """And the other way round, unless it is alone."""
    kill = OF_MANY[4]
    assert act_of(kill, looked(0.6, SIX, "demo-6"), Course(6), 0) == Act("kill", ("demo-5",), 0.6, 0, "member")
    assert act_of(kill, looked(0.6, {"demo-1": WORKING}, "demo-1"), Course(6), 0) == Act(
        "kill", ("demo-1",), 0.6, 0, "coordinator"
    )


def test_a_step_is_late_some_way_behind_its_share() -> None:
    """Until it is taken; then the next one may be. Nothing is late where all is done, and of one process."""
    assert late(0.37, Course(3)) is None
    assert late(0.4, Course(3)) == OF_FEW[0]
    assert late(0.54, KILLED) is None
    assert late(0.56, KILLED) == OF_FEW[1]
    assert late(0.9, BOTH) is None
    assert late(0.9, Course(1)) is None


def test_only_many_processes_are_slowed() -> None:
    """Few are as fast as they can be, and so are those of a service."""
    assert Course(3).max_in_flight(5.0) is None
    assert Course(6, is_kept=True).max_in_flight(5.0) is None
    assert Course(5).max_in_flight(5.0) == Course(4).max_in_flight(5.0) == 5 * FLIGHTS_PER_S_OF_MANY // 1_000
    assert Course(4).max_in_flight(0.0) == 1
    assert Course(4).max_in_flight(20.0, 100) == 2
