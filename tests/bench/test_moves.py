"""What it costs that state moves: what notes tell of lateness and stops, when work is even, the bars, the tables."""

from typing import Any

import pytest

from handing_over.scaling import Due, changed_share, is_even
from handing_over.state_sizes import ENTRY_BYTES, PARTS, SIZES, arms, entries_of
from handing_over.state_tables import judge, page, peers, tables
from handing_over.stops import Ended, curve, ended_of, gap_of_all_ms, longest_gap_ms, stood
from handover_app import NOTE
from keylanes.keyrange.hashing import SPACE_END
from moves import BENCH
from rig.book import Book
from rig.notes import Notes, Points, Unproven, notes_of, prove_all_came

from .books import book, run

MS = 1_000_000
HALF = SPACE_END // 2


def noted(who: str, *notes: tuple[int, int, int, int, int]) -> Notes:
    """Notes: ms at which a record ended, its partition, by how many ms it was late, its key and its number."""
    raw = (
        NOTE.pack(at_ms * MS, at_ms * MS, partition, late_ms * 1_000, key, number)
        for at_ms, partition, late_ms, key, number in notes
    )
    return notes_of(b"".join(raw), who)


# --- notes -----------------------------------------------------------------------------------------------------------


def test_records_of_some_points_come_in_the_order_of_their_ends() -> None:
    """Whoever handled them; those of other points and partitions are left out."""
    notes = [noted("a", (10, 0, 1, 0, 0), (30, 0, 1, 1, 0), (40, 1, 1, 2, 0)), noted("b", (20, 0, 5, 0, 1))]
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
    notes = [noted("a", (10, 0, 0, 0, 0), (20, 1, 0, 1, 0), (30, 0, 0, 0, 1)), noted("b", (70, 1, 0, 1, 1))]
    assert gap_of_all_ms(notes, 2, 0, 100 * MS) == 50.0
    assert gap_of_all_ms(notes[:1], 2, 0, 100 * MS) == 20.0


def test_a_curve_has_records_where_they_were_due() -> None:
    """So a stop shows as a slope that falls: who was due at its begin is the latest."""
    records = ((-0.1, 0.0), (0.1, 2.0), (0.3, 1.8))
    ended = [Ended(int((1.0 + due_s + late_s) * 1e9), int(late_s * 1e6)) for due_s, late_s in records]
    found = curve(ended, 10**9, -0.25, 1.0)
    assert [(late.at_s, late.records, late.max_ms) for late in found] == [
        (-0.25, 1, 0.0),
        (0.0, 1, 2_000.0),
        (0.25, 1, 1_800.0),
    ]
    assert curve(ended, 10**9, -0.25, 0.2) == found[:2]


def test_who_is_late_by_a_tenth_of_a_second_stood_still() -> None:
    """If it ended in the window."""
    ended = [Ended(10, 99_999), Ended(20, 100_000), Ended(30, 100_000)]
    assert stood(ended, 0, 30) == 1


def test_all_records_came_though_some_were_handled_again() -> None:
    """How many is told; one that nobody handled is not made up for."""
    notes = [noted("a", (1, 0, 0, 0, 0), (2, 0, 0, 0, 1)), noted("a", (3, 0, 0, 0, 1), (4, 0, 0, 1, 0))]
    assert prove_all_came(notes, [2, 1]) == 1
    with pytest.raises(Unproven, match="of 4 records 1 are missing"):
        prove_all_came(notes, [2, 2])


def test_work_is_even_if_nobody_has_much_less_than_the_others() -> None:
    """And if there is some."""
    assert is_even([100.0, 70.0, 100.0], 0.7)
    assert not is_even([100.0, 100.0, 50.0], 0.7)
    assert is_even([100.0, 100.0, 50.0], 0.6)
    assert not is_even([0.0, 0.0], 0.7)


def test_the_state_of_keys_has_to_be_read_that_another_member_handles_afterwards() -> None:
    """By the last record of each key before two moments."""
    before = (noted("a", *((key, 0, 0, key, 0) for key in range(1, 5))), noted("b", (9, 0, 0, 0, 0)))
    assert changed_share(before, 10 * MS, 99 * MS, 5) == 0
    moved = noted("b", (20, 0, 0, 1, 1), (21, 0, 0, 2, 1), (100, 0, 0, 3, 1))
    back = noted("a", (30, 0, 0, 2, 2))
    assert changed_share([*before, moved], 10 * MS, 99 * MS, 5) == 0.4
    assert changed_share([*before, back, moved], 10 * MS, 99 * MS, 5) == 0.2


def test_so_much_is_due_as_the_rate_says() -> None:
    """Before it begins, what was sent before."""
    due = Due(50, 10.0, 20.0)
    assert [due.at(when_s) for when_s in (0.0, 10.0, 12.5)] == [50, 50, 100]


# --- parts -----------------------------------------------------------------------------------------------------------


def test_every_part_has_arms() -> None:
    """And each of them is run once; entries make up the state."""
    for size in SIZES.values():
        assert all(arms(part, size) for part in PARTS)
    assert arms("state", SIZES["full"]) == ["0.1 GB", "0.3 GB", "1 GB", "4 GB"]
    assert entries_of(1.0, 1_000) == round(1e6 / ENTRY_BYTES)
    assert entries_of(0.001, 10**6) == 1
    assert tuple(BENCH.runs) == PARTS


def test_what_is_missing_is_run_in_order(tmp_path: Any) -> None:
    """What the book has is not."""
    kept = Book(tmp_path / "book.json")
    kept.open({"size": "quick"})
    kept.add("state", "0.03 GB", 0, figures={})
    wanted = BENCH.missing(kept, ["state", "crash"], SIZES["quick"], None)
    assert wanted == [("state", "0.1 GB", 0), ("crash", "crash", 0)]


def runs_of(**changed: Any) -> list[dict[str, Any]]:
    """A run of every part."""
    late = {"p50_ms": 1.0, "p99_ms": 9.0, "max_ms": 30.0}
    found = []
    for gb, stood_ms in ((0.1, 30.0), (1.0, changed.get("stood_ms", 45.0))):
        moves = [{"stood_ms": stood_ms} for _ in range(20)]
        asked = [{"took_s": 2.0, "gap_ms": stood_ms, "late_ms_max": 80.0}] * 20
        figures = {"gb": gb, "moves": moves, "asked": asked, "failed": changed.get("failed", 0)}
        figures |= {
            "calm": late,
            "busy": late,
            "gaps_calm_s": [0.1],
            "gaps_busy_s": [changed.get("gap_s", 0.1) if gb == 1.0 else 0.25],
        }
        found.append(run("state", f"{gb:g} GB", **figures))
    curve_ = [[0.0, 10, 1.0, 2.0, 3.0], [0.25, 10, 1.0, 2.0, 3.0]]
    way = {
        "took_s": 3.0,
        "gap_ms": 20.0,
        "late_ms_max": 90.0,
        "stood": 4,
        "read_bytes": 4e8,
        "copied_bytes": 3e8,
        "curve": curve_,
    }
    found += [run("curves", arm, **way) for arm in arms("curves", SIZES["full"])]
    step = {
        "even_s": 9.0,
        "read_bytes": changed.get("read", 1.2e8),
        "copied_bytes": changed.get("copied", 1.2e8),
        "moved_bytes": 1e8,
        "gap_ms": 9.0,
        "stood": 3,
    }
    steps = [{**step, "before": before, "after": 3 - before, "span": [0.0, 9.0]} for before in (1, 2)]
    found += [run("scaling", arm, steps=steps, state_bytes=2e8, curve=curve_) for arm in arms("scaling", SIZES["full"])]
    back = {"works_s": changed.get("works_s", 3.0), "steady_s": 4.0, "read_records": 9, "read_bytes": 900.0}
    back |= {
        "gap_ms": 1e3 * changed.get("works_s", 3.0) + 900,
        "stopped_s": 1.0,
        "name": "m1",
        "others_read_bytes": 0.0,
    }
    rollout = {"restarts": [back], "state_bytes": 3e8, "changed_bytes_per_s": changed.get("per_s", 225.0)}
    return [*found, run("crash", "crash", crashes=[back]), run("rollout", "rollout", **rollout)]


def test_a_book_within_all_bars_holds() -> None:
    """Of one size of state alone there is nothing to compare."""
    assert [verdict.holds for verdict in judge(book(*runs_of()))] == [True] * 8
    assert len(judge(book(runs_of()[0]))) == 2
    assert judge(book()) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"stood_ms": 45.1},
        {"failed": 1},
        {"gap_s": 0.251},
        {"read": 1.21e8},
        {"copied": 0.69e8},
        {"works_s": 4.1},
        {"per_s": 220.0},
    ],
)
def test_each_bar_can_be_missed(changed: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """What is beyond it fails, and says so."""
    content = book(*runs_of(**changed))
    assert [verdict.holds for verdict in judge(content)].count(False) == 1
    assert not BENCH.report(content, PARTS)
    assert "FAILS: " in capsys.readouterr().out


def test_every_part_has_its_table() -> None:
    """As many cells on each row, on the page too; and the page says what is missed."""
    content = book(*runs_of(works_s=9.0))
    found = tables(content)
    assert [table.part for table in found] == list(PARTS)
    assert all(len(row) == len(table.columns) for table in found for row in table.rows)
    text = page(content)
    lines = [line for line in text.split("\n") if line.startswith("|")]
    assert len(lines) == sum(2 + len(table.rows) for table in found)
    assert "**Missed**: a member that was killed handles its first record 9.00 s later" in text
    assert "not measured" not in text
    assert page(book()).endswith(f"- not measured in this run: {', '.join(PARTS)}.")


def test_every_part_has_its_picture(tmp_path: Any) -> None:
    """Of the parts that were run."""
    draw = pytest.importorskip("handing_over.state_plot", exc_type=ImportError).draw
    draw(book(*runs_of()), tmp_path / "moves.png")
    assert {path.name for path in tmp_path.iterdir()} == {f"moves-{part}.png" for part in PARTS}


def test_the_table_of_peers_says_how_soon_work_is_even() -> None:
    """Of all arms; before anything was measured only how it is done."""
    assert [cell.strip() for cell in peers(book()).split("|")[:2]] == ["", "no state"]
    ours, _, theirs = peers(book(*runs_of())).split(" | ")
    even = ": balanced 9 s after members joined, and 9 s after they went; 240 MB read"
    assert ours == "".join(f"; 1, 2, 4, 2, 1 members with 0.3 GB{how}{even}" for how in ("", " and a standby"))
    assert theirs.endswith(f"; 1, 2, 4, 2, 1 members with 0.3 GB{even}")
