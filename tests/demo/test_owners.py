"""Who worked on what, and when it changed, by the two logs."""

from keylanes.demo.owners import (
    COLOURS,
    Happening,
    History,
    Hold,
    Holding,
    Mark,
    RunningTime,
    colour_of,
    history_of,
    marks_of,
    moves,
    place_of_the_kill,
    shares,
    spans_of,
    still_s,
    unowned_s,
)
from keylanes.demo.tiles import Place, PlaneTile
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.events import Committed, OffsetEvent, WorkersCut

from ..stage.log_events import coordinator_elected, in_turn, member_expelled, member_joined, range_released
from ..tiers.marks import tier

pytestmark = tier("check")

HALF = SPACE_END // 2
NAMES = {1: "demo-1", 2: "demo-2", 3: "demo-1"}


def committed(incarnation: int, transaction: int) -> Committed:
    """A commit, of which only the time matters."""
    return Committed(incarnation, transaction, 0, 1, 1, "t", 0, (), 0, 0, 0)


def held(incarnation: int, first: int, end: int, from_ms: int, to_ms: int, *, is_released: bool) -> Hold:
    """A hold of the only partition."""
    return Hold("t", 0, first, end, incarnation, from_ms, to_ms, is_released)


def folded(*events: tuple[int, OffsetEvent]) -> Holding:
    """The fold of events with their times."""
    holding = Holding()
    for ms, event in events:
        holding.take(event, ms)
    return holding


LOST = folded(
    (100, WorkersCut(1, 1, 1, "t", 0, 0, (0, HALF, SPACE_END))),
    (150, committed(1, 1)),
    (200, range_released(1, 2, 1, "t", 0, HALF, SPACE_END)),
    (250, WorkersCut(2, 1, 2, "t", 0, 0, (HALF, SPACE_END))),
    (300, committed(2, 1)),
    (300, committed(1, 2)),
    (900, WorkersCut(2, 2, 3, "t", 0, 1, (0, HALF))),
    (950, committed(2, 2)),
)
"""The first process gives up a half, goes on with the other, and is killed at 300; the second one has all at 900."""


def test_a_range_is_held_from_its_cut_to_its_release() -> None:
    """Who releases a part keeps the rest; who was killed held its ranges up to its last commit."""
    assert LOST.holds() == [
        held(1, 0, HALF, 100, 300, is_released=False),
        held(1, HALF, SPACE_END, 100, 200, is_released=True),
        held(2, HALF, SPACE_END, 250, 950, is_released=False),
        held(2, 0, HALF, 900, 950, is_released=False),
    ]


def test_a_range_stands_still_to_the_first_tile_of_a_successor() -> None:
    """Tiles of others over other points, and those of before, are none of it."""
    tiles = [
        PlaneTile("t", 0, 1, 2, 0, 1, 0, HALF, 0, 10),
        PlaneTile("t", 0, 2, 1, 0, 1, HALF, SPACE_END, 0, 10),
        PlaneTile("t", 0, 2, 2, 1, 1, 0, HALF // 2, 10, 20),
        PlaneTile("t", 0, 2, 3, 1, 1, 0, HALF, 10, 20),
    ]
    times = {**LOST.times, (2, 3): 999}
    running = RunningTime([(0, 2_000)])
    assert still_s(1, LOST.holds(), tiles, times, running) == [0.65]
    assert still_s(1, LOST.holds(), tiles[:2], times, running) == []
    assert still_s(1, LOST.holds(), tiles, times, RunningTime([(0, 310), (900, 2_000)])) == [0.06]


def test_a_range_has_no_owner_until_a_successor_holds_it() -> None:
    """What was released before is none of it; a range that nobody takes up has none."""
    running = RunningTime([(0, 2_000)])
    assert unowned_s(1, LOST.holds(), running) == [0.6]
    assert unowned_s(1, [hold for hold in LOST.holds() if hold.from_ms < 900], running) == []


def test_a_move_is_a_range_that_another_process_takes() -> None:
    """The next run of the same name takes its own ranges up again."""
    holds = LOST.holds()
    assert moves(holds, NAMES) == 2
    assert moves(holds, {1: "demo-1", 2: "demo-1"}) == 0


def test_the_place_of_the_kill_lies_at_the_edges_of_the_killed() -> None:
    """In the middle of what it lost, behind its last tiles; none where it lost nothing of the topic."""
    tiles = [
        PlaneTile("t", 0, 1, 1, 0, 1, 0, HALF, 0, 10),
        PlaneTile("t", 0, 1, 2, 0, 1, 0, HALF, 10, 30),
        PlaneTile("t", 0, 2, 1, 0, 1, HALF, SPACE_END, 0, 70),
    ]
    assert place_of_the_kill(1, "t", LOST.holds(), tiles) == Place("t", 0, HALF // 2, 30)
    assert place_of_the_kill(1, "u", LOST.holds(), tiles) is None


def test_the_control_log_names_who_came_and_went() -> None:
    """Events that do not count are none: here a second election of the same term, and a late decision of the first."""
    events = in_turn(
        [
            coordinator_elected(1, "a", "app"),
            member_joined(1, 1, "a", "id-1"),
            coordinator_elected(1, "b", "app"),
            coordinator_elected(2, "b", "app"),
            member_joined(2, 2, "b", "id-2"),
            member_expelled(2, 1),
        ],
        "app",
    )
    late = member_expelled(1, 2)
    history = history_of([*((10 * n, event) for n, event in enumerate(events)), (90, late)])
    assert history.names == {1: "a", 2: "b"}
    assert history.happened == [
        Happening(0, "elected", "a"),
        Happening(10, "joined", "a"),
        Happening(30, "elected", "b"),
        Happening(40, "joined", "b"),
        Happening(50, "expelled", "a", "superseded"),
    ]


def test_the_marks_tell_the_kill_and_the_join() -> None:
    """In seconds of work; an election of before the kill is none of them."""
    happened = [
        Happening(0, "elected", "demo-1"),
        Happening(11_000, "elected", "demo-2"),
        Happening(12_000, "expelled", "demo-1", "silent"),
        Happening(15_000, "joined", "demo-4"),
    ]
    marks = marks_of(History({}, happened), {"demo-1": 1_000}, ["demo-4"], [], RunningTime([(0, 20_000)]))
    assert marks == [
        Mark(1.0, "demo-1 is killed", True),
        Mark(11.0, "demo-2 coordinates", False),
        Mark(12.0, "demo-1 is expelled", True),
        Mark(15.0, "demo-4 joins", False),
    ]
    assert marks_of(History({}, happened), {}, [], [], RunningTime([(0, 20_000)])) == []


def test_the_marks_tell_that_a_killed_process_is_back() -> None:
    """The first one that joins under its name afterwards; where it begins is none of it."""
    happened = [
        Happening(0, "joined", "demo-1"),
        Happening(1_500, "expelled", "demo-1", "died"),
        Happening(3_000, "joined", "demo-1"),
        Happening(9_000, "joined", "demo-1"),
    ]
    assert marks_of(History({}, happened), {"demo-1": 1_000}, [], [], RunningTime([(0, 20_000)])) == [
        Mark(1.0, "demo-1 is killed", True),
        Mark(1.5, "demo-1 is expelled", True),
        Mark(3.0, "demo-1 is back", False),
    ]


def test_the_marks_tell_what_a_pause_costs() -> None:
    """Nothing, or an expulsion, and a new start under the same name; what befalls it when it is killed later is not of
    the pause.
    """
    happened = [
        Happening(0, "joined", "demo-1"),
        Happening(9_000, "expelled", "demo-1", "silent"),
        Happening(12_000, "joined", "demo-1"),
        Happening(18_000, "expelled", "demo-1", "left"),
        Happening(19_000, "expelled", "demo-2", "silent"),
    ]
    paused = [("demo-1", 2_000), ("demo-2", 3_000)]
    marks = marks_of(History({}, happened), {"demo-2": 13_000}, [], paused, RunningTime([(0, 20_000)]))
    assert marks == [
        Mark(2.0, "demo-1 is paused", True),
        Mark(3.0, "demo-2 is paused", True),
        Mark(9.0, "demo-1 is expelled", True),
        Mark(12.0, "demo-1 is back", False),
        Mark(13.0, "demo-2 is killed", True),
        Mark(19.0, "demo-2 is expelled", True),
    ]


def test_pauses_between_runs_are_no_work() -> None:
    """Runs that overlap are one; a moment between two counts as the end of the first."""
    running = RunningTime([(5_000, 6_000), (0, 1_000), (500, 2_000)])
    assert running.total_s == 3.0
    assert [running.at(ms) for ms in (-5, 0, 1_500, 2_000, 4_000, 5_500, 9_000)] == [0, 0, 1.5, 2.0, 2.0, 2.5, 3.0]
    assert RunningTime(()).total_s == RunningTime(()).at(7) == 0
    assert spans_of([held(2, 0, 9, 1_000, 5_000, is_released=True)], NAMES, running)[0][4:] == ("demo-2", 1.0, 2.0)


def test_who_has_how_much_of_the_plane() -> None:
    """By name: runs of one name are one."""
    tiles = [
        PlaneTile("t", 0, 1, 1, 0, 1, 0, HALF, 0, 10),
        PlaneTile("t", 0, 3, 1, 0, 1, 0, HALF, 10, 20),
        PlaneTile("t", 0, 2, 1, 0, 1, HALF, SPACE_END, 0, 20),
    ]
    assert shares(tiles, NAMES) == {"demo-1": 10, "demo-2": 10}


def test_each_process_has_a_colour_that_stays() -> None:
    """All that there can be differ, in each shade; one process alone has one, too."""
    names = [f"demo-{number}" for number in range(1, 2 * len(COLOURS) + 1)]
    assert len({colour_of(name, shade) for name in names for shade in range(3)}) == 3 * len(names)
    assert colour_of("demo-1") == colour_of("demo") == COLOURS[0]
    assert all(0 <= channel <= 1 for name in names for shade in range(3) for channel in colour_of(name, shade))
