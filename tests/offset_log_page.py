"""The lists of events in docs/offset-log.md, from the structures of ``offsets/`` and their docstrings.

``.venv/bin/python -P tests/offset_log_page.py`` writes them. It reads the sources: the compiler keeps no docstrings.
"""

import ast
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from keylanes.offsets.control_events import ControlEvent
from keylanes.offsets.events import OffsetEvent

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "offset-log.md"
COMMAND = ".venv/bin/python -P tests/offset_log_page.py"
LISTS: Final = {
    "control": typing.get_args(ControlEvent),
    "offset": typing.get_args(OffsetEvent),
}
SOURCES: Final = ("event_values.py", "control_events.py", "events.py")


def page(written: str) -> str:
    """The page with each list as the structures are now; a list stands between two markers."""
    words = docstrings()
    values = dict.fromkeys(value for kinds in LISTS.values() for kind in kinds for value in values_in(kind))
    for name, kinds in (*LISTS.items(), ("values", tuple(values))):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, found, rest = written.partition(begin)
        _, found_end, after = rest.partition(end)
        assert all((found, found_end)), f"{PAGE.name} has no {begin.strip()} … {end}"
        written = "\n".join([before + begin.strip(), *items(kinds, words), end + after])
    return written


def items(kinds: Iterable[type[msgspec.Struct]], words: dict[str, str]) -> Iterator[str]:
    """One item for each structure: its tag or name, its fields in their order, and what it is."""
    for kind in kinds:
        fields = ", ".join(field.name + shown(field.type) for field in msgspec.structs.fields(kind))
        yield f"- **`{kind.__struct_config__.tag or kind.__name__}`** `[{fields}]`: {words[kind.__name__]}"


def shown(annotation: object) -> str:
    """The structure that a field has many of, in brackets behind the name of the field."""
    return "".join(f"[{value.__name__}]" for value in structures(annotation))


def structures(annotation: object) -> list[type[msgspec.Struct]]:
    """The structures that a field holds."""
    return [one for one in typing.get_args(annotation) if isinstance(one, type) and issubclass(one, msgspec.Struct)]


def values_in(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """The structures in the fields of one, and those in their fields."""
    for field in msgspec.structs.fields(kind):
        for value in structures(field.type):
            yield value
            yield from values_in(value)


def docstrings() -> dict[str, str]:
    """What the sources say of each structure, on one line."""
    trees = [ast.parse((ROOT / "offsets" / name).read_text(encoding="utf-8")) for name in SOURCES]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: " ".join((ast.get_docstring(node) or "").replace("``", "`").split()) for node in classes}


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
