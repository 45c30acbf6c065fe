"""What a hand-over costs: what notes prove, when a load is even, the bars, the tables, the logs of many moves."""

import time
from array import array
from typing import Any

import pytest

from handing_over.amplification import at, figures_of
from handing_over.balance import Look, allowed, even_from_s, least_points
from handing_over.held import Group as HeldGroup
from handing_over.load import chosen, keys_of
from handing_over.moving import bands_of, homes_of, stays_of
from handing_over.sizes import GROUPS, PARTS, SIZES, arms
from handing_over.tables import cell, page, tables
from handing_over.verdicts import gaps_of, judge
from handover import BENCH
from handover_app import NOTE, PLACE
from handover_app import Notes as Written
from keylanes.keyrange.hashing import SPACE_END
from rig.book import Book
from rig.logs import Commit
from rig.notes import Notes, Points, Unproven, count_of, notes_of, prove, stood_still_ns

from .books import book, run

HALF = SPACE_END // 2
LEFT, RIGHT = Points(0, 0, HALF), Points(0, HALF, SPACE_END)


def noted(who: str, *notes: tuple[int, int, int, int]) -> Notes:
    """Notes of partition 0: when a record began and ended, its key and its number."""
    return notes_of(b"".join(NOTE.pack(began, ended, 0, 9, key, number) for began, ended, key, number in notes), who)


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
    assert written.busy_ns == sum(found.ended_ns) - 15
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


# --- load and balance ------------------------------------------------------------------------------------------------


def test_a_phase_takes_the_keys_of_its_partitions_and_points() -> None:
    """And every key belongs to one partition."""
    keys = keys_of(1_000, 4)
    assert {key.partition for key in keys} == {0, 1, 2, 3}
    found = chosen(keys, {"partitions": [0, 2], "points": [0, HALF]})
    assert {key.partition for key in found} == {0, 2}
    assert 0 < len(found) < 500
    assert all(key.point < HALF for key in found)


def test_a_load_is_even_from_when_it_stays_so() -> None:
    """Once is not enough; and who has nothing counts."""
    looks = [Look(n, {"a": load, "b": 2 - load}) for n, load in enumerate((2.0, 1.1, 1.4, 1.1, 1.0))]
    assert even_from_s(looks, 1.15) == 3
    assert even_from_s(looks[:3], 1.15) is None
    assert Look(0, {"a": 1.0, "b": 0.0}).unevenness == 2.0
    assert Look(0, {"a": 0.0, "b": 0.0}).unevenness == 0.0


def test_the_fewest_points_are_those_of_the_heaviest_units() -> None:
    """As many as bring each member below what is allowed; what can't be parted is allowed."""
    units = [Points(0, n, n + 1) for n in range(6)]
    owners = dict(zip(units, "aaaabb", strict=True))
    loads = dict(zip(units, (4.0, 2.0, 1.0, 1.0, 0.0, 0.0), strict=True))
    assert allowed(loads, 2) == 1.15
    assert least_points(loads, owners, 2, 1.15) == 1
    assert least_points({**loads, units[0]: 1.0}, owners, 2, 1.15) == 2
    assert least_points(dict.fromkeys(units, 1.0), dict(zip(units, "aaabbb", strict=True)), 2, 1.15) == 0
    assert allowed({units[0]: 9.0, units[1]: 1.0}, 2) == 1.8


# --- parts -----------------------------------------------------------------------------------------------------------


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


def test_amplification_is_what_all_members_read_and_their_processors_time_is_that_of_the_load() -> None:
    """And the least of any member in any window is told."""
    second = 10**9
    notes = [
        noted("a", *((n * second, n * second + 1, 0, n) for n in range(20))),
        noted("b", (15 * second, 15 * second + 1, 1, 0)),
    ]
    samples = {
        "a": [sample(0.0, 1.0, 0), sample(20.0, 3.0, 21)],
        "b": [sample(0.0, 1.0, 0), sample(20.0, 1.5, 21)],
    }
    commits = [("a", 1.0), ("a", 12.0), ("b", 15.0)]
    found = figures_of(notes, samples, commits, 21, (0.0, 20.0, 20.0))
    assert found["amplification"] == 2.0
    assert found["cpu_us_per_record"] == pytest.approx(2.5 * 19 / 20 / 21 * 1e6, rel=0.01)
    assert (found["windows"], found["window_records_least"], found["window_commits_least"]) == (2, 0, 0)


def sample(at_s: float, cpu_s: float, records_read: int) -> dict[str, float]:
    """What a member told."""
    return {"at_s": at_s, "cpu_s": cpu_s, "records_read": records_read}


def test_between_two_samples_a_value_is_taken_in_proportion() -> None:
    """And before the first and behind the last it is theirs."""
    samples = [sample(1.0, 10.0, 0), sample(3.0, 20.0, 0)]
    assert [at(samples, "cpu_s", when) for when in (0.0, 1.0, 1.5, 3.0, 9.0)] == [10.0, 10.0, 12.5, 20.0, 20.0]


def test_beside_a_range_that_is_held_nothing_of_the_moves_is_kept() -> None:
    """The logs that the decisions of the product write: each epoch but those that are in use is forgotten."""
    group = HeldGroup()
    for _ in range(200):
        group.move()
    fold = group.ledger.partition(("handover-held-source", 0))
    assert len(fold.parts) <= len(group.ranges) + 1
    assert not group.ledger.violations()
    assert not group.ledger.waiting()
    assert group.ranges[0].epoch == 1
    assert group.ranges[1].epoch > len(group.ranges)
    assert group.snapshot_bytes > 0


# --- bars and tables -------------------------------------------------------------------------------------------------


def runs_of(**changed: Any) -> list[dict[str, Any]]:
    """A run of every part, at each bar's limit or near it."""
    times = {"asked": -20.0, "released": 5.0, "granted": 12.0, "taken up": 30.0}
    stood = [changed.get("stood_ms", 20.0)] * 99 + [changed.get("longest_ms", 290.0)]
    moves = [{"stood_ms": ms, "cause": "request", **times} for ms in stood]
    moved = {name: changed.get(name, 0) for name in ("failed", "unseen", "others")}
    moved |= {"late_s": 0.1, "per_second": changed.get("per_second", 19_900.0)}
    gaps = {"gaps_calm_s": [0.1] * 2_000, "gaps_busy_s": [0.1] * 1_000 + [changed.get("gap_s", 0.2)] * 10}
    skew = {"even_after_s": changed.get("even_after_s", 20.0), "unevenness_at_end": 1.1, "allowed": 1.15}
    skew |= {"heaviest_share": 0.02, "moves": 3, "moved": changed.get("moved", 0.8), "least": 0.7, "looks": [[0, 4.0]]}
    amplified = {"per_second": 8_000.0, "late_s": 0.1, "amplification": 2.0, "cpu_us_per_record": 40.0}
    amplified |= {"window_records_least": changed.get("own", 5), "window_commits_least": changed.get("own", 5)}
    points = [
        {
            "moves": n,
            "snapshot_bytes": size,
            "epochs_kept": 16,
            "control_bytes": 9,
            "start_seconds": s,
            "start_bytes": 9,
        }
        for n, size, s in (
            (10, 300, 0.1),
            (500, 400, 0.2),
            (1_000, changed.get("snapshot", 420), changed.get("start_s", 0.3)),
        )
    ]
    return [
        *(run("amplification", f"wait, {n}", **amplified) for n in (1, 2, 4, 8)),
        run("moves", "2 on 1", moves=moves, **moved, **gaps),
        *(run("skew", arm, **skew) for arm in ("partition", "keys")),
        run("join", "join", joined_s=[0.5, changed.get("joined_s", 1.0), 9.0], started_s=[2.0, 3.0, 4.0]),
        run("held", "held", points=points),
    ]  # fmt: skip


def test_a_book_within_all_bars_holds() -> None:
    """At quick size the number of moves is no bar; at full size there are too few."""
    verdicts = judge(book(*runs_of(), size="quick"))
    assert {verdict.part for verdict in verdicts} == set(PARTS)
    assert all(verdict.holds for verdict in verdicts)
    assert [verdict.text for verdict in judge(book(*runs_of())) if not verdict.holds] == [
        "at least 200 hand-overs were measured: 100"
    ]


@pytest.mark.parametrize(
    ("changed", "fails"),
    [
        ({"own": 0}, 3),
        ({"stood_ms": 61.0}, 1),
        ({"longest_ms": 301.0}, 1),
        ({"failed": 1}, 1),
        ({"unseen": 3}, 1),
        ({"per_second": 15_000.0}, 1),
        ({"gap_s": 0.3}, 1),
        ({"even_after_s": 61.0}, 2),
        ({"even_after_s": None}, 4),
        ({"moved": 0.92}, 2),
        ({"joined_s": 3.1}, 1),
        ({"snapshot": 450}, 1),
        ({"start_s": 0.8}, 1),
    ],
)
def test_each_bar_can_be_missed(changed: dict[str, Any], fails: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What is beyond it fails, and says so; a part that is not asked for is not judged."""
    content = book(*runs_of(**changed), size="quick")
    assert sum(not verdict.holds for verdict in judge(content)) == fails
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


def test_every_part_has_its_table_and_its_row_of_the_page() -> None:
    """As many cells on each row; and the page says what is missed."""
    content = book(*runs_of(own=0), size="full")
    found = tables(content)
    assert {table.part for table in found} == set(PARTS)
    assert all(len(row) == len(table.columns) for table in found for row in table.rows)
    text = page(content)
    assert text.count("| ") > len(PARTS)
    assert "**Missed**: 8 members on 1 partition" in text
    assert "quick" not in text
    assert "(p50), " in cell(content)
    assert cell(book()) == ""


def test_nothing_is_judged_or_shown_of_an_empty_book() -> None:
    """A part that was not run has no bar."""
    assert judge(book()) == []
    assert tables(book()) == []


def test_all_arms_are_run_in_turn_and_not_again(tmp_path: Any) -> None:
    """Every other round begins with the last arm; what repeats by itself runs once; what failed is run again."""
    assert set(BENCH.runs) == set(PARTS)
    kept = Book(tmp_path / "book.json")
    kept.open({"size": "full"})
    wanted = BENCH.missing(kept, ["skew", "join"], SIZES["full"], 2)
    assert wanted == [
        ("skew", "partition", 0),
        ("skew", "keys", 0),
        ("skew", "keys", 1),
        ("skew", "partition", 1),
        ("join", "join", 0),
    ]
    kept.add("skew", "keys", 0, figures={})
    kept.add("join", "join", 0, failed="it ended")
    assert BENCH.missing(kept, ["skew", "join"], SIZES["full"], 2) == [*wanted[:1], *wanted[2:]]
    assert "spin, 8" in arms("amplification", SIZES["full"])
    assert "spin, 8" not in arms("amplification", SIZES["quick"])
