"""What follows when one of several processes has ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from keylanes.errors import KeylanesError, SettingsError
from keylanes.runtime.processes.parent import PROCESSES_MAX, count_of, exit_code_text
from keylanes.runtime.processes.restarts import BACK_OFF_S, BACK_OFF_S_MAX, FATAL, Then, after, next_wait_s

RUNS = {"has_begun": True, "stops": False, "until_level": False, "may_come_back": False}


@pytest.mark.parametrize(
    ("code", "changed", "then"),
    [
        (-9, {}, Then.AGAIN),
        (-11, {"has_begun": False}, Then.AGAIN),
        (1, {}, Then.AGAIN),
        (1, {"has_begun": False}, Then.ALL_END),
        (0, {}, Then.AGAIN),
        (0, {"until_level": True}, Then.DONE),
        (0, {"stops": True}, Then.DONE),
        (5, {"stops": True}, Then.DONE),
        (-9, {"stops": True}, Then.DONE),
        (3, {}, Then.ALL_END),
        (3, {"may_come_back": True}, Then.AGAIN),
        (130, {}, Then.AGAIN),
    ],
)
def test_what_follows(code: int, changed: dict[str, bool], then: Then) -> None:
    """A crash is followed by a start, a cause that would come again by the end of all."""
    assert after(code, **{**RUNS, **changed}) is then


def test_every_fatal_error_ends_all() -> None:
    """Those that end a process with a code of their own."""

    def codes(kind: type[KeylanesError]) -> set[int]:
        own = {kind.exit_code} if hasattr(kind, "exit_code") else set()
        return own.union(*(codes(inner) for inner in kind.__subclasses__()))

    assert codes(KeylanesError) - {1} == FATAL


def test_the_wait_doubles_until_one_lives() -> None:
    """Up to the longest one."""
    waits = [BACK_OFF_S]
    while waits[-1] < BACK_OFF_S_MAX:
        waits.append(next_wait_s(waits[-1], 1.0))
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert next_wait_s(30.0, 29.0) == 30.0
    assert next_wait_s(30.0, 31.0) == BACK_OFF_S


def test_an_end_in_words() -> None:
    """As it is logged."""
    assert [exit_code_text(code) for code in (0, 5, -9, -64, -200)] == [
        "ended in order",
        "ended with exit code 5",
        "was killed by SIGKILL",
        "was killed by SIGRTMAX",
        "was killed by signal 200",
    ]


@pytest.mark.parametrize("wrong", [0, -1, PROCESSES_MAX + 1, True, 2.0, "2", "core", None])
def test_a_wrong_number_of_processes_is_refused(wrong: object) -> None:
    """With the value seen, and what is allowed."""
    with pytest.raises(SettingsError, match=rf"from 1 to {PROCESSES_MAX}, or 'cores' .*; seen {wrong!r}"):
        count_of(wrong)


def test_one_for_each_core() -> None:
    """That this process may use."""
    assert count_of("cores") >= 1
    assert count_of(3) == 3


def test_keylanes_can_be_imported_where_the_folder_is_gone(tmp_path: Path) -> None:
    """A service may be left in a folder that a deployment has removed."""
    folder = tmp_path / "released"
    folder.mkdir()
    program = f"import os; os.rmdir({str(folder)!r}); import keylanes; print(keylanes.App.__name__)"
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.stdout == "App\n", done.stderr
