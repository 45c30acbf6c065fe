"""What a hand-over costs: what notes prove and tell of stops, when work is even, the parts, the bars, the tables."""

import time
from array import array
from typing import Any

import pytest

from handing_over.load import keys_of
from handing_over.moving import bands_of, homes_of, stays_of
from handing_over.scaling import Due, changed_share, is_even
from handing_over.sizes import ENTRY_BYTES, GROUPS, PARTS, SIZES, arms, entries_of
from handing_over.stops import Ended, ended_of, gap_of_all_ms, longest_gap_ms, stood
from handing_over.tables import tables
from handing_over.verdicts import gaps_of, judge
from handover import BENCH
from handover_app import NOTE, PLACE
from handover_app import Notes as Written
from keylanes.keyrange.hashing import SPACE_END
from rig.book import Book
from rig.logs import Commit
from rig.notes import Notes, Points, Unproven, count_of, notes_of, prove, prove_all_came, stood_still_ns

from .books import book, run

MS = 1_000_000
HALF = SPACE_END // 2
LEFT, RIGHT = Points(0, 0, HALF), Points(0, HALF, SPACE_END)


def noted(who: str, *notes: tuple[int, int, int, int]) -> Notes:
    """Notes of partition 0: when a record began and ended, its key and its number."""
    return notes_of(b"".join(NOTE.pack(began, ended, 0, 9, key, number) for began, ended, key, number in notes), who)


def handled(who: str, *notes: tuple[int, int, int, int, int]) -> Notes:
    """Notes: ms at which a record ended, its partition, by how many ms it was late, its key and its number."""
    raw = (
        NOTE.pack(at_ms * MS, at_ms * MS, partition, late_ms * 1_000, key, number)
        for at_ms, partition, late_ms, key, number in notes
    )
    return notes_of(b"".join(raw), who)


# --- notes -----------------------------------------------------------------------------------------------------------


def test_notes_are_read_as_a_member_writes_them(tmp_path: Any) -> None:
    """Up to the first that was not written."""
    written = Written(str(tmp_path / "notes"), 10)
    for number in range(3):
        written.add(5, 2, PLACE.pack(4, number, time.monotonic_ns() - 70_000_000) + b"filler")
    found = notes_of((tmp_path / "notes").read_bytes(), "a")
    assert (found.who, [*found.key], [*found.number], [*found.partition]) == ("a", [4] * 3, [0, 1, 2], [2] * 3)
    assert [*found.began_ns] == [5] * 3
    assert all(70_000 <= late < 10_000_000 for late in found.late_us)
    assert [*found.ended_ns] == sorted(found.ended_ns)
    assert notes_of(b"", "a").ended_ns == array("Q")
    assert count_of(memoryview((tmp_path / "notes").read_bytes())) == 3


@pytest.mark.parametrize(
    ("notes", "wrong"),
    [
        ([(1, 2, 0, 0), (2, 3, 0, 1), (1, 9, 1, 0)], ""),
        ([(1, 2, 0, 0), (1, 9, 1, 0)], "1 missing"),
        ([(1, 2, 0, 0), (2, 3, 0, 1), (3, 4, 0, 1), (1, 9, 1, 0)], "1 doubled"),
        ([(1, 2, 0, 0), (1, 3, 0, 1), (1, 9, 1, 0)], "1 out of order"),
        ([(1, 2, 0, 0), (2, 3, 0, 1), (1, 9, 1, 0), (9, 10, 1, 1)], "1 unknown"),
    ],
)
def test_a_run_is_proven_by_its_notes(notes: list[tuple[int, int, int, int]], wrong: str) -> None:
    """Of all members together: each record once, and none of a key before the one before it had ended."""
    members = [noted("a", *notes[::2]), noted("b", *notes[1::2])]
    if not wrong:
        assert prove(members, [2, 1]) == 3
        return
    with pytest.raises(Unproven, match=wrong):
        prove(members, [2, 1])


def test_a_range_stands_still_between_the_last_of_the_old_owner_and_the_first_of_the_new_one() -> None:
    """Of its own points: what both do elsewhere, and what the new owner did before it was asked for, is no matter."""
    points = {0: 0, 1: HALF}
    old = noted("a", (10, 20, 0, 0), (30, 40, 0, 1), (45, 50, 1, 0))
    new = noted("b", (1, 5, 0, 9), (41, 55, 1, 1), (62, 66, 0, 3), (60, 70, 0, 2))
    assert stood_still_ns(old, new, LEFT, points, 25, 61) == (40, 60)
    assert stood_still_ns(old, new, LEFT, points, 61, 99) == (40, 62)
    assert stood_still_ns(old, new, LEFT, points, 25, 60) is None
    assert stood_still_ns(old, new, Points(1, 0, HALF), points, 25, 99) is None
    assert stood_still_ns(noted("a"), new, LEFT, points, 25, 99) is None


def test_all_records_came_though_some_were_handled_again() -> None:
    """How many is told; one that nobody handled is not made up for."""
    notes = [handled("a", (1, 0, 0, 0, 0), (2, 0, 0, 0, 1)), handled("a", (3, 0, 0, 0, 1), (4, 0, 0, 1, 0))]
    assert prove_all_came(notes, [2, 1]) == 1
    with pytest.raises(Unproven, match="of 4 records 1 are missing"):
        prove_all_came(notes, [2, 2])


def test_records_of_some_points_come_in_the_order_of_their_ends() -> None:
    """Whoever handled them; those of other points and partitions are left out."""
    notes = [handled("a", (10, 0, 1, 0, 0), (30, 0, 1, 1, 0), (40, 1, 1, 2, 0)), handled("b", (20, 0, 5, 0, 1))]
    points = [0, HALF, 0]
    assert ended_of(notes, Points(0, 0, HALF), points) == [Ended(10 * MS, 1_000), Ended(20 * MS, 5_000)]
    assert [one.at_ns // MS for one in ended_of(notes, None, points)] == [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("since_ms", "until_ms", "gap_ms"), [(0, 100, 60.0), (11, 20, 10.0), (25, 30, 60.0), (81, 90, 0.0), (0, 5, 0.0)]
)
def test_a_gap_counts_that_lasts_into_the_window(since_ms: int, until_ms: int, gap_ms: float) -> None:
    """Also if it began before, or ends behind it."""
    ended = [Ended(at_ms * MS, 0) for at_ms in (10, 20, 80)]
    assert longest_gap_ms(ended, since_ms * MS, until_ms * MS) == gap_ms


def test_of_all_partitions_the_longest_gap_counts() -> None:
    """Records of another partition end no gap."""
    notes = [handled("a", (10, 0, 0, 0, 0), (20, 1, 0, 1, 0), (30, 0, 0, 0, 1)), handled("b", (70, 1, 0, 1, 1))]
    assert gap_of_all_ms(notes, 2, 0, 100 * MS) == 50.0
    assert gap_of_all_ms(notes[:1], 2, 0, 100 * MS) == 20.0


def test_who_is_late_by_a_tenth_of_a_second_stood_still() -> None:
    """If it ended in the window."""
    ended = [Ended(10, 99_999), Ended(20, 100_000), Ended(30, 100_000)]
    assert stood(ended, 0, 30) == 1


# --- parts -----------------------------------------------------------------------------------------------------------


def test_work_is_even_if_nobody_has_much_less_than_the_others() -> None:
    """And if there is some."""
    assert is_even([100.0, 70.0, 100.0], 0.7)
    assert not is_even([100.0, 100.0, 50.0], 0.7)
    assert is_even([100.0, 100.0, 50.0], 0.6)
    assert not is_even([0.0, 0.0], 0.7)


def test_the_state_of_keys_has_to_be_read_that_another_member_handles_afterwards() -> None:
    """By the last record of each key before two moments."""
    before = (handled("a", *((key, 0, 0, key, 0) for key in range(1, 5))), handled("b", (9, 0, 0, 0, 0)))
    assert changed_share(before, 10 * MS, 99 * MS, 5) == 0
    moved = handled("b", (20, 0, 0, 1, 1), (21, 0, 0, 2, 1), (100, 0, 0, 3, 1))
    back = handled("a", (30, 0, 0, 2, 2))
    assert changed_share([*before, moved], 10 * MS, 99 * MS, 5) == 0.4
    assert changed_share([*before, back, moved], 10 * MS, 99 * MS, 5) == 0.2


def test_so_much_is_due_as_the_rate_says() -> None:
    """Before it begins, what was sent before."""
    due = Due(50, 10.0, 20.0)
    assert [due.at(when_s) for when_s in (0.0, 10.0, 12.5)] == [50, 50, 100]


def test_every_chunk_has_a_home_and_some_stay() -> None:
    """Each member has touching ones in each partition, of which the first stays."""
    for group in GROUPS:
        names = [f"m{n}" for n in range(group.members)]
        homes = homes_of(group, names)
        bands = bands_of(homes)
        assert len(bands) == group.members * group.partitions
        assert sum(band.end - band.first for band in bands) == group.partitions * SPACE_END
        staying = [(chunk.partition, home.name) for chunk, home in homes.items() if home.stays]
        assert sorted(staying) == sorted((p, name) for p in range(group.partitions) for name in names)


def test_gaps_are_between_commits_of_a_range_by_the_member_that_keeps_it() -> None:
    """Those of others, or of other points, end no gap."""
    commits = [Commit(ms, 1, 0, ((0, HALF),)) for ms in (1_000, 1_100, 1_250, 1_300)]
    commits += [
        Commit(1_200, 2, 0, ((0, HALF),)),
        Commit(1_210, 1, 1, ((0, HALF),)),
        Commit(1_220, 1, 0, ((HALF, HALF + 1),)),
    ]
    found = stays_of(commits, {1: "a", 2: "b"}, {LEFT: "a"}, 0.0, (1.0, 1.1), (1.1, 1.3))
    assert found["gaps_calm_s"] == pytest.approx([0.1])
    assert found["gaps_busy_s"] == pytest.approx([0.05, 0.15])


def test_every_key_belongs_to_one_partition() -> None:
    """And to one point."""
    keys = keys_of(1_000, 4)
    assert [key.number for key in keys] == [*range(1_000)]
    assert {key.partition for key in keys} == {0, 1, 2, 3}
    assert 400 < sum(key.point < HALF for key in keys) < 600


def test_every_part_has_arms() -> None:
    """At each size; entries make up the state."""
    for size in SIZES.values():
        assert all(arms(part, size) for part in PARTS)
    assert arms("state", SIZES["full"]) == ["0.1 GB", "0.3 GB", "1 GB", "4 GB"]
    assert entries_of(1.0, 1_000) == round(1e6 / ENTRY_BYTES)
    assert entries_of(0.001, 10**6) == 1
    assert tuple(BENCH.runs) == PARTS


def test_all_arms_are_run_in_turn_and_not_again(tmp_path: Any) -> None:
    """Every other round begins with the last arm; what failed is run again, what ended well is not."""
    kept = Book(tmp_path / "book.json")
    kept.open({"size": "full"})
    wanted = BENCH.missing(kept, ["moves", "crash"], SIZES["full"], None)
    first, second, third = ([("moves", group.arm, number) for group in GROUPS] for number in range(3))
    assert wanted == [*first, *reversed(second), *third, ("crash", "crash", 0)]
    kept.add("moves", "3 on 2", 1, figures={})
    kept.add("crash", "crash", 0, failed="it ended")
    assert BENCH.missing(kept, ["moves", "crash"], SIZES["full"], None) == [*wanted[:4], *wanted[5:]]
    assert BENCH.missing(kept, ["crash"], SIZES["full"], 2) == [("crash", "crash", 0), ("crash", "crash", 1)]


# --- bars and tables -------------------------------------------------------------------------------------------------


def moves_of(**changed: Any) -> dict[str, Any]:
    """Of ranges without state, at each bar's limit or near it."""
    times = {"asked": -20.0, "released": 5.0, "granted": 12.0, "taken up": 30.0}
    stood = [changed.get("stood_ms", 20.0)] * 99 + [changed.get("longest_ms", 290.0)]
    found = {name: changed.get(name, 0) for name in ("failed", "unseen", "others")}
    found |= {"late_s": 0.1, "per_second": changed.get("per_second", 19_900.0)}
    gaps = {"gaps_calm_s": [0.1] * 2_000, "gaps_busy_s": [0.1] * 1_000 + [changed.get("gap_s", 0.2)] * 10}
    return run("moves", "2 on 1", moves=[{"stood_ms": ms, **times} for ms in stood], **found, **gaps)


def runs_of(**changed: Any) -> list[dict[str, Any]]:
    """A run of every part."""
    found = [moves_of(**changed)]
    for gb, stood_ms in ((0.1, 30.0), (1.0, changed.get("state_stood_ms", 45.0))):
        gap_s = changed.get("state_gap_s", 0.1) if gb == 1.0 else 0.25
        figures = {
            "gb": gb,
            "moves": [{"stood_ms": stood_ms}] * 20,
            "asked": [{"took_s": 2.0, "gap_ms": stood_ms}] * 20,
        }
        figures |= {"failed": changed.get("state_failed", 0), "gaps_calm_s": [0.1], "gaps_busy_s": [gap_s]}
        found.append(run("state", f"{gb:g} GB", **figures, calm_late_p99_ms=9.0, busy_late_p99_ms=9.0))
    step = {"even_s": 9.0, "read_bytes": changed.get("read", 1.2e8), "copied_bytes": changed.get("copied", 1.2e8)}
    step |= {"moved_bytes": 1e8, "gap_ms": 9.0, "stood": 3}
    steps = [{**step, "before": before, "after": 3 - before} for before in (1, 2)]
    found += [run("scaling", arm, steps=steps, state_bytes=2e8) for arm in arms("scaling", SIZES["full"])]
    works_s = changed.get("works_s", 3.0)
    back = {"name": "m1", "works_s": works_s, "steady_s": 4.0, "stopped_s": 1.0, "gap_ms": 1e3 * works_s + 900}
    back |= {"read_records": 9, "read_bytes": 900.0, "others_read_bytes": 0.0}
    rollout = {"returns": [back], "state_bytes": 3e8, "changed_bytes_per_s": changed.get("per_s", 225.0)}
    return [*found, run("crash", "crash", returns=[back]), run("rollout", "rollout", **rollout)]


def test_a_book_within_all_bars_holds() -> None:
    """At quick size the number of moves is no bar; at full size there are too few. One size of state has nothing beside
    it to compare with.
    """
    verdicts = judge(book(*runs_of(), size="quick"))
    assert {verdict.part for verdict in verdicts} == set(PARTS)
    assert all(verdict.holds for verdict in verdicts)
    assert [verdict.text for verdict in judge(book(*runs_of())) if not verdict.holds] == [
        "at least 200 hand-overs were measured: 100"
    ]
    assert len(judge(book(runs_of()[1]))) == 2
    assert judge(book()) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"stood_ms": 61.0},
        {"longest_ms": 301.0},
        {"failed": 1},
        {"unseen": 3},
        {"per_second": 15_000.0},
        {"gap_s": 0.3},
        {"state_stood_ms": 45.1},
        {"state_failed": 1},
        {"state_gap_s": 0.251},
        {"read": 1.21e8},
        {"copied": 0.69e8},
        {"works_s": 4.1},
        {"per_s": 220.0},
    ],
)
def test_each_bar_can_be_missed(changed: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """What is beyond it fails, and says so; a part that is not asked for is not judged."""
    content = book(*runs_of(**changed), size="quick")
    assert [verdict.holds for verdict in judge(content)].count(False) == 1
    assert not BENCH.report(content, PARTS)
    assert "FAILS: " in capsys.readouterr().out


def test_gaps_may_be_twice_those_of_a_calm_time() -> None:
    """Of each round the p99.9 of all groups counts, and of these the median; the longest of all is told."""
    runs = [
        {**run("moves", arm, gaps_calm_s=[0.1, calm], gaps_busy_s=[busy]), "round": number}
        for number, (calm, busy) in enumerate(((0.2, 0.4), (0.3, 0.6), (0.4, 0.9)))
        for arm in ("2 on 1", "3 on 2")
    ]
    assert gaps_of(book(*runs)) == (0.3, 0.6, 0.9)
    assert gaps_of(book()) is None


def test_every_part_has_its_table() -> None:
    """As many cells on each row, on the page too; and the page says what is missed and what was not run."""
    content = book(*runs_of(works_s=9.0))
    found = tables(content)
    assert [table.part for table in found] == list(PARTS)
    assert all(table.rows and len(row) == len(table.columns) for table in found for row in table.rows)
    text = BENCH.page(content)
    lines = [line for line in text.split("\n") if line.startswith("|")]
    assert len(lines) == sum(2 + len(table.rows) for table in found)
    assert "**Missed**: a member that was killed handles its first record 9.00 s later" in text
    assert "not measured" not in text
    assert "quick" not in text
    assert BENCH.page(book()).endswith(f"- not measured in this run: {', '.join(PARTS)}.")
