"""Which tests concern a room: its own, and those of modules that import something of it."""

import re
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TESTS: Final = ROOT / "tests"
ROOMS: Final = frozenset({path.parent.name for path in ROOT.glob("*/__init__.py")} | {"bench", "examples"})
TESTS_OF: Final = {"runtime": ("examples", "simulation"), "brokers": ("on_kafka",)}
"""Folders of tests that are about a room, and are not named after it."""


@cache
def concerns(path: Path, room: str) -> bool:
    """Whether a file of tests is about a room, imports something of it, or something of a module that does."""
    if path.relative_to(TESTS).parts[0] in (room, *TESTS_OF.get(room, ())) or room in _imports(path):
        return True
    named = re.findall(r"^from keylanes\.([\w.]+) import", path.read_text(encoding="utf-8"), re.MULTILINE)
    modules = [ROOT / f"{name.replace('.', '/')}.py" for name in named]
    return any(room in _imports(module) for module in modules if module.exists())


@cache
def _imports(path: Path) -> set[str]:
    """The rooms of the package that a file imports something of."""
    up = "." * len(path.relative_to(ROOT).parts)
    return {
        *re.findall(rf"^ *from (?:keylanes\.|{re.escape(up)})(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
