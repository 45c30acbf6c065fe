"""Tiers and the proof: what is run, in which order, and what is written down of it."""

import contextlib
import os
import select
import sys
from pathlib import Path

import pytest
from rich.console import Console

from .marks import tier
from .parts import ALL, MINUTES_MAX, PARTS, Part
from .processes import END_S_MAX, machine, too_small
from .proof import FAILED, NOT_RUN, PASSED, Book, Result, in_order, main, room_of, run_part, run_parts
from .rooms import ROOMS, TESTS, concerns

pytestmark = tier("check")

FEW = [
    Part("group", "", ("group", "runtime"), 4, ()),
    Part("state", "", ("state",), 4, ()),
    Part("any", "", ALL, 2, ()),
    Part("large", "", ("group",), 6, ()),
]


@pytest.mark.parametrize(("name", "part"), [("fast", ""), ("proof", ""), ("check", "seeds")])
def test_an_unknown_tier_is_refused(name: str, part: str) -> None:
    """So is a part without the proof, and the proof without a part."""
    with pytest.raises(ValueError, match=repr(name)):
        tier(name, part)


def test_the_parts_have_names_of_their_own_and_rooms_that_exist() -> None:
    """A part takes six minutes at most, and names what it proves."""
    assert len({part.name for part in PARTS}) == len(PARTS)
    for part in PARTS:
        assert 0 < part.minutes <= MINUTES_MAX
        assert part.proves
        assert part.rooms == ALL or ROOMS.issuperset(part.rooms)


def test_a_slice_takes_what_changed_first() -> None:
    """Then others; the order of equals is drawn from the revision."""
    names = [part.name for part in in_order(FEW, {"state"}, "revision")]
    assert {*names[:2]} == {"state", "any"}
    assert names == [part.name for part in in_order(FEW, {"state"}, "revision")]
    orders = {tuple(part.name for part in in_order(FEW, {"docs"}, str(drawn))) for drawn in range(50)}
    assert len(orders) > 5
    assert all(order[0] == "any" for order in orders)
    assert {in_order(FEW, set(), str(drawn))[0].name for drawn in range(50)} == {part.name for part in FEW}


def test_where_nobody_knows_what_changed_all_rooms_have() -> None:
    """Each part may come first."""
    first = {in_order(FEW, None, str(drawn))[0].name for drawn in range(50)}
    assert first == {part.name for part in FEW}


def test_a_slice_runs_the_parts_that_fit(tmp_path: Path) -> None:
    """A part that takes longer than what is left is passed over, and a shorter one behind it is run."""
    parts = [Part(name, "", ALL, minutes, ("-c", "")) for name, minutes in (("a", 1), ("long", 6), ("b", 1))]
    book = Book(tmp_path / "proof.json")
    assert [part.name for part in run_parts(parts, book, "one", Console(quiet=True), minutes=5)] == ["a", "b"]
    assert {*book.results} == {"a", "b"}


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("group/moves.py", "group"),
        ("tests/group/test_plans.py", "group"),
        ("tests/test_house.py", "tests"),
        ("a.md", ""),
    ],
)
def test_a_file_belongs_to_a_room(path: str, room: str) -> None:
    """Tests belong to the room that they are about."""
    assert room_of(path) == room


@pytest.mark.parametrize(
    ("name", "rooms"),
    [
        ("state/test_keys.py", {"state"}),
        ("simulation/test_seeds.py", {"runtime"}),
        ("runtime/partition/test_cut.py", {"keyrange", "runtime"}),
        ("test_offset_log.py", {"offsets", "state"}),
    ],
)
def test_a_test_concerns_its_room_and_those_that_it_uses(name: str, rooms: set[str]) -> None:
    """By what it imports, and what that imports; the tests of whole applications belong to the runtime."""
    found = {room for room in ROOMS if concerns(TESTS / name, room)}
    assert found >= rooms
    assert "examples" not in found


def test_results_are_kept(tmp_path: Path) -> None:
    """What has passed at this revision is not run again; a damaged book is begun anew."""
    book, part = Book(tmp_path / "kept" / "proof.json"), FEW[0]
    book.put(part.name, Result(PASSED, "one", 1.0))
    assert Book(tmp_path / "kept" / "proof.json").has_passed(part, "one")
    assert not book.has_passed(part, "two")
    book.put(part.name, Result(FAILED, "one", 1.0))
    assert not book.has_passed(part, "one")
    (tmp_path / "kept" / "proof.json").write_text("{")
    assert Book(tmp_path / "kept" / "proof.json").results == {}


@pytest.mark.parametrize(("code", "outcome"), [(0, PASSED), (1, FAILED), (77, NOT_RUN)])
def test_the_exit_code_says_what_became_of_a_part(code: int, outcome: str) -> None:
    """77 is that of a part that can't run on this machine."""
    part = Part("x", "", ALL, 1, ("-c", f"raise SystemExit({code})"), on_sources=True)
    assert run_part(part, "one").outcome == outcome


@pytest.mark.parametrize(
    ("cores", "gib", "says"),
    [(2, 6, ""), (2, 3.75, "3.8 GiB of memory are less than 6"), (1, 8, "there is one core"), (1, 2, "2.0 GiB of")],
)
def test_on_a_small_machine_one_test_process_runs_after_the_other(cores: int, gib: float, says: str) -> None:
    """In a sentence; this machine has something of both."""
    assert too_small(cores, int(gib * 2**30)).startswith(says)
    assert bool(too_small(cores, int(gib * 2**30))) is bool(says)
    assert min(machine()) > 0


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2, and the way to see the parts."""
    with pytest.raises(SystemExit) as ended:
        main(["--only", "seed"])
    assert ended.value.code == 2
    assert "no part of the proof is named 'seed'; --list shows them" in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="waits for a process that is not its own")
def test_what_a_part_started_ends_with_it(tmp_path: Path) -> None:
    """Also a child that the part has left behind."""
    said = tmp_path / "pid"
    child = "import signal; signal.pause()"
    code = f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {child!r}])"
    code += f"; open({str(said)!r}, 'w').write(str(child.pid))"
    assert run_part(Part("x", "", ALL, 1, ("-c", code), on_sources=True), "one").outcome == PASSED
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(int(said.read_text()))
        assert select.select([handle], [], [], END_S_MAX)[0], "it goes on"
        os.close(handle)
