"""docs/bad-input.md and the tests of bad input are one: each row names its tests, each test has a row."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLED = ("test_bad_input*.py", "test_state_faults.py", "test_changelog_faults.py")
"""Modules of tests/broker of which every test has a row. Rows may name tests of other modules there, too."""


def named_in(*patterns: str) -> set[str]:
    """The names of the tests in modules of tests/broker."""
    paths = {path for pattern in patterns for path in (ROOT / "tests" / "broker").glob(pattern)}
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    named = (node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for name in named if name.startswith("test_")}


def rows(page: str) -> Iterator[list[str]]:
    """The cells of each row of the tables on a page, without their heads."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] not in ("cause", "---"):
            yield cells


def complaints(page: str, tabled: set[str], known: set[str]) -> Iterator[str]:
    """What is wrong between a page and the tests that must be on it (``tabled``) and may be (``known``)."""
    named: set[str] = set()
    for cells in rows(page):
        if len(cells) != 4 or not all(cells):
            yield f"a row has cause, outcome, what the user sees, test: {cells}"
            continue
        tests = re.findall(r"`(test_\w+)`", cells[3])
        if not tests:
            yield f"no test: {cells[0]}"
        yield from (f"{test} does not exist: {cells[0]}" for test in tests if test not in known)
        named.update(tests)
    yield from (f"{test} has no row" for test in sorted(tabled - named))


def test_each_row_has_its_tests_and_each_test_its_row() -> None:
    """The page is the tests' table of contents."""
    page = (ROOT / "docs" / "bad-input.md").read_text(encoding="utf-8")
    assert list(complaints(page, named_in(*TABLED), named_in("test_*.py"))) == []
    assert len(list(rows(page))) >= 100


def test_what_is_missing_is_noticed() -> None:
    """A row without a test, a test that does not exist, a test without a row, a row that is not whole."""
    page = "| cause | outcome |\n|---|---|\n| a | b | c | d |\n| e | f | g | `test_gone` |\n| h | i | `test_new` |\n"
    assert [text.split(":")[0] for text in complaints(page, {"test_new"}, {"test_new"})] == [
        "no test",
        "test_gone does not exist",
        "a row has cause, outcome, what the user sees, test",
        "test_new has no row",
    ]
