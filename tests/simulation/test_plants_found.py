"""Which planted defects are due: those whose code has changed, and some of the others in turn."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import pytest

from ..tiers.marks import tier
from . import plants_found
from .plants_found import IN_TURN, Due, Found, Reports, due, updated

pytestmark = tier("check")

NAMES = [f"defect {number}" for number in range(142)]
DIGESTS = {name: f"{number:x}" for number, name in enumerate(NAMES, 1)}
KNOWN = {name: Found(digest, 7) for name, digest in DIGESTS.items()}
TURNS = -(-len(NAMES) // IN_TURN)


def with_changed(count: int) -> dict[str, str]:
    """Digests of which the last ones differ from what is known."""
    return DIGESTS | dict.fromkeys(NAMES[len(NAMES) - count :], "another")


def test_nothing_has_changed() -> None:
    """Only those in turn are due, and each turn begins where the last one ended."""
    assert due(DIGESTS, KNOWN, 0) == Due((), tuple(NAMES[:15]), ())
    assert due(DIGESTS, KNOWN, 1) == Due((), tuple(NAMES[15:30]), ())
    assert due(DIGESTS, KNOWN, 9) == Due((), (*NAMES[135:], *NAMES[:8]), ())


def test_what_has_changed_is_due_beside_those_in_turn() -> None:
    """A new digest, a defect that is not known yet, and a digest that nobody can tell."""
    digests = DIGESTS | {NAMES[3]: "another", NAMES[50]: "", "fresh": "1"}
    known = KNOWN | {NAMES[50]: Found("")}
    assert due(digests, known, 0) == Due((NAMES[3], NAMES[50], "fresh"), (*NAMES[:3], *NAMES[4:16]), ())


def test_of_many_that_have_changed_some_are_left_out_by_name() -> None:
    """Of 41 the first 40 are due, and the run says which one is left out."""
    found = due(with_changed(41), KNOWN, 0)
    assert found.changed == tuple(NAMES[-41:-1])
    assert found.in_turn == tuple(NAMES[:15])
    assert found.left_out == (NAMES[-1],)
    assert str(found).endswith(f"\n1 more have changed and are NOT looked for: {NAMES[-1]}")
    assert not due(with_changed(40), KNOWN, 0).left_out


def test_what_is_left_out_may_be_in_turn() -> None:
    """A defect that is looked for in turn is not said to be left out."""
    found = due(with_changed(41), KNOWN, 9)
    assert (found.in_turn[0], found.left_out) == (NAMES[-1], ())


def looked_for(digests: Mapping[str, str], first: int, choose: Callable[..., Due] = due) -> set[str]:
    """What is looked for in as many commits as it takes, from ``first`` on."""
    seen = [choose(digests, KNOWN, turn) for turn in range(first, first + TURNS)]
    return {name for each in seen for name in (*each.changed, *each.in_turn)}


@pytest.mark.parametrize("changed", [0, 3, 41, len(NAMES)])
@pytest.mark.parametrize("first", [0, 5, 1376])
def test_every_defect_has_its_turn(changed: int, first: int) -> None:
    """Within ten commits all are looked for, however many have changed."""
    assert TURNS == 10
    assert looked_for(with_changed(changed), first) == set(NAMES)


@pytest.mark.parametrize("turn_of", [lambda turn: 0, lambda turn: turn % 9, lambda turn: 2 * turn])
def test_a_turn_that_leaves_some_out_is_found(turn_of: Callable[[int], int]) -> None:
    """Planted: a turn that stands still, one that begins anew too early and one that skips fail the test above."""

    def wrong(digests: Mapping[str, str], known: Mapping[str, Found], turn: int) -> Due:
        return due(digests, known, turn_of(turn))

    assert looked_for(DIGESTS, 0, wrong) < set(NAMES)


def test_without_git_the_first_are_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The turn is 0 in a folder that git does not know, and where there is no git."""
    assert plants_found.commits() >= 0
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert plants_found.commits() == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    assert plants_found.commits() == 0


def test_what_is_written_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A line for each defect, in order; without a seed where tests find it."""
    monkeypatch.setattr(plants_found, "FILE", tmp_path / "found.json")
    assert plants_found.known() == {}
    found = {'"fenced"': Found("ab", 0), "a": Found("cd")}
    plants_found.write(found)
    assert plants_found.known() == found
    assert (
        tmp_path / "found.json"
    ).read_text() == '{\n  "\\"fenced\\"": {"digest":"ab","seed":0},\n  "a": {"digest":"cd"}\n}\n'


def test_a_run_changes_the_lines_of_what_it_looked_for() -> None:
    """A defect that is found has a new line, one that is missed has none, and one that was not looked for keeps its."""
    before = {"found": Found("old", 1), "missed": Found("old", 2), "torn": Found("old"), "left out": Found("old", 3)}
    reports = Reports()
    reports.pytest_runtest_logreport(report("passed", plant="found", seed=7))
    reports.pytest_runtest_logreport(report("failed", plant="missed"))
    reports.pytest_runtest_logreport(report("passed", plant="torn"))  # by one of its tests
    reports.pytest_runtest_logreport(report("failed", plant="torn"))
    reports.pytest_runtest_logreport(report("passed", plant="fresh"))
    digests = dict.fromkeys(("found", "missed", "torn", "left out", "fresh", "unknown"), "new")
    assert updated(before, digests, reports) == {
        "found": Found("new", 7),
        "left out": Found("old", 3),
        "fresh": Found("new"),
    }


def report(outcome: Literal["passed", "failed"], **said: object) -> pytest.TestReport:
    """What pytest reports of a test."""
    return pytest.TestReport("id", ("", 0, ""), {}, outcome, None, "call", user_properties=[*said.items()])
