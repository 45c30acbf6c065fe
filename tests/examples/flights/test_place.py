"""What an interrupted demo leaves behind, and what the next one makes of it."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course import Act, Course
from place import DemoPlace

from ...tiers.marks import tier
from .conftest import FLIGHTS

pytestmark = tier("check")


def opened(folder: Path, rows: int = 10, *, reset: bool = False) -> tuple[DemoPlace, bool]:
    """A place as a start of the demo finds it, and whether it goes on."""
    place = DemoPlace(folder)
    with place.held():
        return place, place.open(rows, Course(), reset=reset)


def used(place: DemoPlace) -> Path:
    """Data of a broker in the place."""
    place.data.mkdir()
    place.copies.mkdir()
    (place.data / "data").write_text("records")
    place.report.write_text("{}")
    return place.data


def test_the_first_demo_starts_with_loading(tmp_path: Path) -> None:
    """In a folder that does not exist yet, a demo starts afresh, and the folder is private."""
    place, goes_on = opened(tmp_path / "a" / "demo")
    assert not goes_on
    assert place.state.phase == "load"
    assert place.folder.stat().st_mode & 0o777 == 0o700


def test_an_interrupted_demo_goes_on_with_its_data(tmp_path: Path) -> None:
    """The next demo takes up run, phase and data of one that did not finish."""
    first, _ = opened(tmp_path)
    data = used(first)
    first.put(phase="process")
    second, goes_on = opened(tmp_path)
    assert goes_on
    assert second.state == first.state
    assert second.data == data
    assert second.copies.exists()
    assert (data / "data").read_text() == "records"


@pytest.mark.parametrize("other", [Course(2), Course(3, is_kept=True)])
def test_an_interrupted_demo_knows_its_course(tmp_path: Path, other: Course) -> None:
    """Who was killed is known to the next start, which has as many processes, started alike; one with others starts
    afresh.
    """
    first = DemoPlace(tmp_path)
    with first.held():
        first.open(10, Course(3), reset=False)
        course = Course(3, (Act("kill", ("demo-2",), 0.34, role="coordinator"),))
        first.put(course=course)
    second = DemoPlace(tmp_path)
    with second.held():
        assert second.open(10, Course(3), reset=False)
        assert second.state.course == course
    third = DemoPlace(tmp_path)
    with third.held():
        assert not third.open(10, other, reset=False)
        assert third.state.course == other


def test_an_interrupted_demo_knows_who_was_told_to_stop(tmp_path: Path) -> None:
    """They do not come again."""
    course = Course(4, (Act("scale", ("demo-2",), 0.08, 7, is_up=True), Act("scale", ("demo-2",), 0.78, 9)))
    first = DemoPlace(tmp_path)
    with first.held():
        first.open(10, Course(4), reset=False)
        first.put(course=course)
    second = DemoPlace(tmp_path)
    with second.held():
        assert second.open(10, Course(4), reset=False)
    assert second.state.course == course
    assert second.state.course.started() == ["demo-1"]


@pytest.mark.parametrize("why", ["finished", "reset", "another size", "a state that can't be read"])
def test_otherwise_it_starts_afresh(tmp_path: Path, why: str) -> None:
    """A finished demo, RESET, another size or an unreadable state: old data and results go, the new data lie apart."""
    first, _ = opened(tmp_path)
    data = used(first)
    first.put(phase="finished" if why == "finished" else "audit")
    if why == "a state that can't be read":
        (tmp_path / "state.json").write_text('{"version": 6}')
    second, goes_on = opened(tmp_path, 11 if why == "another size" else 10, reset=why == "reset")
    assert not goes_on
    assert second.state.phase == "load"
    assert not data.exists()
    assert not first.copies.exists()
    assert not second.report.exists()
    assert second.data != data


def test_what_is_not_the_demos_stays(tmp_path: Path) -> None:
    """A start afresh removes what demos leave, and nothing else in the folder."""
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "mine").mkdir()
    opened(tmp_path)
    opened(tmp_path, reset=True)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "mine").is_dir()


def test_one_demo_at_a_time(tmp_path: Path) -> None:
    """The next one waits while another holds the folder, or a process that a killed one has left: it has the lock."""
    with DemoPlace(tmp_path).held():
        lock = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock]) as left:
        os.close(lock)
        code = "import sys; from pathlib import Path; from place import DemoPlace\n"
        code += "with DemoPlace(Path(sys.argv[1])).held(): print('in')"
        command = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=FLIGHTS) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == f"waiting for the end of a demo in {tmp_path}\n"
            assert following.poll() is None
            assert left.stdin is not None
            left.stdin.close()
            assert following.stdout.read() == "in\n"
