"""What several processes make of a load: figures of a run, hand-overs under load, memory, the table and its bars."""

from pathlib import Path
from typing import Any

import pytest

from cores import BENCH, arms
from handover_app import NOTE
from keylanes.group.history_entries import EventTime, MoveEntry, MoveState, Party
from keylanes.keyrange.hashing import HASH_NAME, SPACE_END
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.control_events import (
    AppCreated,
    CoordinatorElected,
    LevelRaised,
    MemberJoined,
    PartitionStarted,
)
from keylanes.offsets.decide import Turn, decide_grant
from keylanes.offsets.event_values import LEVEL
from keylanes.offsets.events import Event, WorkersCut
from keylanes.offsets.ledger import evolve_all
from keylanes.offsets.starts import EARLIEST
from rig.logs import Logs
from rig.memory import family, shared_out_bytes
from rig.notes import Notes, Points, notes_of
from spreading.moving import CELLS, chosen, handed_over_ms
from spreading.run import SIZES, Arm, figures_of

from ..stage.log_events import range_released

S = 1_000_000_000
CELL = SPACE_END // CELLS
PLACE = ("t", 0)
NO_READER: Any = None
NO_APPENDER: Any = None
"""Nothing is read or asked for."""


def noted(who: str, *times_s: tuple[float, float]) -> Notes:
    """Notes of records that began and ended at these seconds."""
    return notes_of(b"".join(NOTE.pack(int(a * S), int(b * S), 0, 0, 0, n) for n, (a, b) in enumerate(times_s)), who)


def sampled(*values: tuple[float, float, int]) -> list[dict[str, float]]:
    """Samples of (second, processor time, records read)."""
    return [{"at_s": at_s, "cpu_s": cpu_s, "records_read": read, "records": 0} for at_s, cpu_s, read in values]


def each_second(first: int, end: int) -> list[tuple[float, float]]:
    """Records that take a second, one behind the other."""
    return [(float(n), float(n + 1)) for n in range(first, end)]


def test_the_steady_part_is_while_all_work() -> None:
    """From when the last one began to when the first one has nothing left; who did nothing counts for nothing."""
    notes = [noted("a", *each_second(1, 9)), noted("b", *each_second(3, 11)), noted("c")]
    samples = [sampled((0.5, 1.0, 0), (11.0, 5.0, 9)), sampled((0.5, 1.0, 0), (11.0, 3.0, 15)), []]
    found = figures_of(notes, samples, 16)
    assert (found["at_work"], found["spread_s"]) == (2, 2.0)
    assert found["per_second"] == 16 / 10
    assert found["steady_per_second"] == (6 + 5) / 6  # those that end within [3, 9)
    assert found["cpu_us_per_record"] == (4 + 2) / 16 * 1e6
    assert found["read"] == 24 / 16
    assert found["shares"] == [0.5, 0.5, 0.0]


def test_hand_overs_are_no_part_of_it() -> None:
    """Neither of the steady rate, nor of what is read: who takes something over reads once more."""
    notes = [noted("a", *each_second(1, 9)), noted("b", *each_second(1, 9))]
    samples = [sampled((0.5, 0.0, 0), (5.0, 1.0, 16), (9.0, 2.0, 40))] * 2
    found = figures_of(notes, samples, 16, 5 * S)
    assert found["steady_per_second"] == 6 / 4
    assert found["read"] == 2.0
    assert figures_of(notes, samples, 16, int(1.5 * S))["steady_per_second"] is None, "too short to say anything"


def test_the_first_cell_of_the_widest_band_goes_to_the_next_one() -> None:
    """Of those that have something; who is alone gives nothing."""
    half = SPACE_END // 2
    wanted = chosen({0: [(0, half + CELL, "a"), (half + CELL, SPACE_END, "b")]})
    assert wanted == (Points(0, 0, CELL), "b")
    wanted = chosen({0: [(0, half, "a"), (half, SPACE_END, "c")], 1: [(0, SPACE_END, "c")]})
    assert wanted == (Points(1, 0, CELL), "a")
    assert chosen({0: [(0, SPACE_END, "a")]}) is None
    assert chosen({0: []}) is None


def begun(turn: Turn) -> Logs:
    """Of an application of two members and one partition."""
    logs = Logs("app", "t", NO_READER, NO_APPENDER, [])
    events: list[Event] = [AppCreated("app", HASH_NAME, 1), CoordinatorElected(1, "", "a", "a")]
    events.append(LevelRaised(*turn.next(), LEVEL))
    for number, name in ((1, "a"), (2, "b")):
        ids = (f"app.{name}",)
        joined = MemberJoined(*turn.next(), number, name, name, ids, "", "", 1.0, LEVEL, (), (), until_level=False)
        events.append(joined)
    events.append(PartitionStarted(*turn.next(), *PLACE, 0, EARLIEST, 1))
    evolve_all(logs.ledger, events)
    return logs


def test_what_was_granted_is_known_from_the_control_log_alone() -> None:
    """Touching points of a member as one, also of several grants."""
    turn, half = Turn(1), SPACE_END // 2
    logs = begun(turn)
    assert logs.granted(0) == []
    for owner, first, end in ((1, 0, CELL), (1, CELL, half), (2, half, SPACE_END)):
        evolve_all(logs.ledger, decide_grant(logs.ledger, turn, PLACE, owner, KeyRange(first, end), move=0))
    assert logs.granted(0) == [(0, half, "a"), (half, SPACE_END, "b")]


def test_who_gets_a_range_back_works_on_it_when_it_has_taken_it_up_again() -> None:
    """Not as soon as it is granted, as its workers of before are in the log, too."""
    turn, half = Turn(1), SPACE_END // 2
    logs = begun(turn)

    def granted(owner: int, first: int, end: int) -> None:
        evolve_all(logs.ledger, decide_grant(logs.ledger, turn, PLACE, owner, KeyRange(first, end), move=0))

    granted(1, 0, SPACE_END)
    evolve_all(logs.ledger, [WorkersCut(1, 1, 1, *PLACE, 1, (0, half, SPACE_END))])
    assert logs.holders(0) == [(0, SPACE_END, "a")]
    evolve_all(logs.ledger, [range_released(1, 2, 1, *PLACE, 0, half, 0)])
    granted(2, 0, half)
    evolve_all(logs.ledger, [WorkersCut(2, 1, 2, *PLACE, 1, (0, half)), range_released(2, 2, 2, *PLACE, 0, half, 0)])
    granted(1, 0, half)
    assert logs.holders(0) == [(0, half, ""), (half, SPACE_END, "a")]
    evolve_all(logs.ledger, [WorkersCut(1, 3, 3, *PLACE, 9, (0, half))])
    assert logs.holders(0) == [(0, SPACE_END, "a")]


def moved(cause: str, asked_ms: int, released_ms: int, taken_up_ms: int | None) -> MoveEntry:
    """A move between two members."""
    a, b = Party(1, "a", ""), Party(2, "b", "")
    place = ("t", 0, 0, CELL)
    asked, released = EventTime(asked_ms, "asked"), EventTime(released_ms, "released")
    return MoveEntry(
        *(0, MoveState.MOVED, *place, a, b, cause, 1, 1, 1, 2),
        asked=asked,
        released=released,
        granted_ms=released_ms,
        taken_up_ms=taken_up_ms,
    )


def test_hand_overs_are_told_that_were_done_under_load() -> None:
    """Those that the harness asked for; not what the coordinator did by itself."""
    moves = [
        moved("request", 15_000, 15_100, 15_300),
        moved("request", 19_000, 19_100, 20_300),
        moved("request", 19_000, 19_100, None),
        moved("load", 16_000, 16_500, 18_000),
    ]
    assert handed_over_ms(moves, 20.0) == [300]


def test_memory_is_that_of_a_process_and_all_that_it_started(tmp_path: Path) -> None:
    """Also of those that its children started; who has ended meanwhile counts for nothing."""
    for process, children, kib in ((1, "2 3", 100), (2, "4", 20), (3, "", 3), (4, "9", 7)):
        (tmp_path / f"{process}/task/{process}").mkdir(parents=True)
        (tmp_path / f"{process}/task/{process}/children").write_text(children)
        (tmp_path / f"{process}/smaps_rollup").write_text(f"a header\nRss: 999 kB\nPss: {kib} kB\n")
    assert sorted(family(1, tmp_path)) == [1, 2, 3, 4, 9]
    assert shared_out_bytes(family(1, tmp_path), tmp_path) == 130 * 1024


def test_all_arms_have_sizes() -> None:
    """Each of one process has one of two beside it."""
    for size in SIZES.values():
        for part in BENCH.runs:
            found = [Arm.of(name) for name in arms(part, size)]
            assert {arm.partitions for arm in found} == {1, 4}
            assert all(arm._replace(processes=2) in found for arm in found)
            assert int(part.removesuffix("us")) in size.records
    assert not Arm(1, 1).has_moves
    assert not Arm(4, 2).has_moves


def run_of(arm: Arm, rate: float, steady: float | None, *handed_over_ms: int, part: str = "1000us") -> dict[str, Any]:
    """A run in a book."""
    figures = {
        "per_second": rate,
        "steady_per_second": steady,
        "spread_s": 0.4,
        "at_work": arm.processes,
        "read": 2.0,
        "cpu_us_per_record": 120.0,
        "memory_bytes": 2**27,
        "handed_over_ms": [*handed_over_ms],
    }
    return {"workload": part, "arm": arm.name, "round": 0, "figures": figures}


@pytest.mark.parametrize(("steady", "outcome"), [(1_600.0, "holds"), (1_599.0, "FAILS")])
def test_two_processes_reach_so_many_times_the_rate_of_one(
    steady: float, outcome: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the steady rate; that of the whole run is told."""
    runs = [run_of(Arm(1, 1), 900.0, 1_000.0), run_of(Arm(1, 2), 1_350.0, steady, 100, 300)]
    assert BENCH.report({"runs": runs}, [*BENCH.runs]) is (outcome == "holds")
    said = capsys.readouterr().out
    assert f"{outcome}: 1000us: 1 partition(s)" in said
    assert "1.50 times over the whole run; required 1.6" in said
    assert "1.60 ×" in said
    assert "200" in said, "the median of the hand-overs"


def test_a_run_that_failed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """And fails the whole; a part that is not asked for does not."""
    failed = {"workload": "100us", "arm": Arm(4, 8).name, "round": 1, "failed": "out of memory"}
    content = {"runs": [run_of(Arm(1, 1), 8_000.0, None, part="100us"), failed]}
    assert not BENCH.report(content, [*BENCH.runs])
    assert "failed: 100us, 4, 8, round 2: out of memory" in capsys.readouterr().out
    assert BENCH.report(content, ["1000us"])
