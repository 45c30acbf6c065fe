"""docs/bad-input.md and the tests of bad input are one: each row names its tests, each test has a row, and what the
user sees by the page is asked for by a test of the row.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from .tiers.marks import tier

pytestmark = tier("check")

ROOT = Path(__file__).resolve().parents[1]
TABLED = ("test_bad_input*.py", "test_state_faults.py", "test_changelog_faults.py")
"""Modules of tests/on_kafka of which every test has a row. Rows may name tests of other modules there, too."""
PART_MIN = 8
"""Characters of a message that tell it from others."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def asked_in(*patterns: str) -> dict[str, set[str]]:
    """The tests in modules of tests/on_kafka by name, each with the texts that it asks for."""
    found: dict[str, set[str]] = {}
    for path in {path for pattern in patterns for path in (ROOT / "tests" / "on_kafka").glob(pattern)}:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        functions = {node.name: node for node in nodes if isinstance(node, Function)}
        found |= {name: texts_of(name, functions) for name in functions if name.startswith("test_")}
    return found


def texts_of(name: str, functions: dict[str, Function]) -> set[str]:
    """The texts, regular expressions in parts, and the names in a function and those of its module that it names."""
    texts: set[str] = set()
    left, seen = [name], {name}
    while left:
        function = functions[left.pop()]
        for node in (node for part in [*function.decorator_list, *function.body] for node in ast.walk(part)):
            match node:
                case ast.Expr(ast.Constant(str())):
                    node.value = ast.Constant(None)  # a docstring asks for nothing
                case ast.Constant(str() | bytes() as value):
                    text = value if isinstance(value, str) else value.decode("latin-1")
                    texts.update(part.strip() for part in re.split(r"\.[*+]", text.replace("\\", "")))
                case ast.Name(word) | ast.Attribute(attr=word) | ast.keyword(arg=str() as word):
                    texts.add(word)
                    if word in functions and word not in seen:
                        seen.add(word)
                        left.append(word)
    return texts


def is_asked_for(quote: str, texts: set[str]) -> bool:
    """Whether a test has a part of what the page quotes; of an error's name and of code, the words."""
    words = re.findall(r"\w+", quote)
    if re.fullmatch(r"[\w.()]+|\w+: …", quote):
        return words[-1] in texts
    parts = [part.strip(" :;,.") for part in quote.split("…")]
    return any(
        (len(text) >= PART_MIN and " " in text and text in quote)
        or any(len(part) >= PART_MIN and part in text for part in parts)
        for text in texts
    )


def rows(page: str) -> Iterator[list[str]]:
    """The cells of each row of the tables on a page, without their heads."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] not in ("cause", "---"):
            yield cells


def complaints(page: str, tabled: Collection[str], known: Mapping[str, set[str]]) -> Iterator[str]:
    """What is wrong between a page and the tests that must be on it (``tabled``) and may be (``known``, with texts)."""
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
        texts = {text for test in tests for text in known.get(test, ())}
        quotes = re.findall(r"`([^`]+)`", cells[2])
        yield from (f"no test asks for it: {quote}" for quote in quotes if not is_asked_for(quote, texts))
    yield from (f"{test} has no row" for test in sorted({*tabled} - named))


def test_each_row_has_its_tests_and_each_test_its_row() -> None:
    """The page is the tests' table of contents."""
    page = (ROOT / "docs" / "bad-input.md").read_text(encoding="utf-8")
    assert list(complaints(page, asked_in(*TABLED), asked_in("test_*.py"))) == []
    assert len(list(rows(page))) >= 100


def test_what_is_missing_is_noticed() -> None:
    """A row without a test, a test that does not exist, a message that no test asks for, a test without a row, a row
    that is not whole.
    """
    page = "| cause | outcome |\n|---|---|\n| a | b | c | d |\n| e | f | g | `test_gone` |\n| h | i | `test_new` |\n"
    page += "| j | k | `x 1 was seen, …`; `StoreError: …`; `y was seen` | `test_old` |\n"
    known = {"test_new": set[str](), "test_old": {"was seen, and", "StoreError", "z was seen"}}
    assert [text.split(":")[0] for text in complaints(page, {"test_new"}, known)] == [
        "no test",
        "test_gone does not exist",
        "a row has cause, outcome, what the user sees, test",
        "no test asks for it",
        "no test asks for it",
        "test_new has no row",
    ]
