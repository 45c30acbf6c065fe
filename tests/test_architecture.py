"""docs/architecture.md against the code: what it names is there."""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

from .test_house import BELOW, ROOMS
from .tiers.marks import tier

pytestmark = tier("check")

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DECIDED = re.findall(r"^\| ([^|]+) \| `([\w/]+)\.py` \| `([\w.]+)` \|$", PAGE, re.MULTILINE)
DECISIONS_MIN = 20


def test_the_table_of_decisions_is_read() -> None:
    """Every row of the table is understood, and each question stands there once."""
    _, _, table = PAGE.partition("## Where is … decided?")
    rows = table.partition("\n## ")[0].count("\n| ") - 1  # its head
    assert len(DECIDED) == rows >= DECISIONS_MIN
    assert len({question for question, _, _ in DECIDED}) == rows


@pytest.mark.parametrize(("question", "module", "name"), DECIDED, ids=[question for question, _, _ in DECIDED])
def test_a_decision_is_where_the_page_says(question: str, module: str, name: str) -> None:
    """The module exists, and the function, class or method in it."""
    found = importlib.import_module(f"keylanes.{module.replace('/', '.')}")
    made = reduce(getattr, name.split("."), found)
    home = getattr(made, "__module__", None) or found.__name__  # a compiled method names none
    assert home == found.__name__, f"{name} is defined in {home}"


def test_the_page_lists_every_room() -> None:
    """Each room of the house and of the runtime stands on the page."""
    rooms = [*ROOMS, *(path.split("/")[1] for path in BELOW if path.startswith("runtime/"))]
    missing = [room for room in rooms if not re.search(rf"^ *{room}/ +\S", PAGE, re.MULTILINE)]
    assert not missing


def test_the_page_names_files_that_exist() -> None:
    """Every path that is written as code leads to a file."""
    paths = re.findall(r"`((?:[\w]+/)+[\w.]+\.(?:py|md))`", PAGE)
    assert paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_the_walks_name_what_exists() -> None:
    """Each class, function and setting in the walks is defined in the code."""
    paths = [*ROOT.glob("*.py"), *(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))]
    code = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    found = re.findall(r"^ *(?:async def|def|class) (\w+)|^ +(\w+):", code, re.MULTILINE)
    defined = {name for pair in found for name in pair}
    _, _, walks = PAGE.partition("## Three walks")
    names = re.findall(r"`(\w+(?:\.\w+)?)`", walks)
    assert names
    assert [name for name in names if not defined.issuperset(name.split("."))] == []
