"""Which rooms use a room: those whose files import something of it."""

import re
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TESTS_OF: Final = {"runtime": ("examples", "simulation"), "brokers": ("on_kafka",)}
"""Folders of tests that are about a room, and are not named after it."""


@cache
def users_of(room: str) -> frozenset[str]:
    """The room, and those that import it. Raises ValueError for a room that there is not."""
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"bench"}
    if room not in rooms:
        raise ValueError(f"no room is named {room!r}; there are {', '.join(sorted(rooms))}")
    found = {other for other in rooms for path in (ROOT / other).rglob("*.py") if room in _imports(path)}
    return frozenset({room, *found, *(folder for name in {room, *found} for folder in TESTS_OF.get(name, ()))})


@cache
def _imports(path: Path) -> set[str]:
    """The rooms of the package that a file imports something of."""
    up = "." * len(path.relative_to(ROOT).parts)
    return {*re.findall(rf"^ *from (?:keylanes\.|{re.escape(up)})(\w+)", path.read_text(encoding="utf-8"), re.M)}
