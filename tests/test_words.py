"""The words of the code, each rule a function from source files to complaints, and shown to catch a violation."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from .tiers.marks import tier

pytestmark = tier("check")

ROOT: Final = Path(__file__).resolve().parents[1]
CORE: Final = ("brokers", "cli", "group", "keyrange", "offsets", "runtime", "state")
"""Rooms in which a class name stands for one thing."""
ROOMS: Final = (*CORE, "asgi", "devkafka", "spark")
POINTING: Final = frozenset(
    [
        "it",
        "that",
        "which",
        "who",
        "whoever",
        "what",
        "those",
        "these",
        "this",
        "they",
        "them",
        "one",
        "ones",
        "so",
        "its",
        "whose",
        "whom",
        "there",
        "whatever",
    ]
)
"""Words that point at a subject instead of naming it."""
ROOM_SHARE_MAX, FILE_SHARE_MAX = 0.06, 0.08
FILE_WORDS_MIN: Final = 300
"""A file with fewer words in docstrings has no share of its own."""
PARTICIPLE: Final = re.compile(
    r"_?([a-z]+(ed|ing)|kept|held|told|said|shown|found|gone|lost|left|known|sent|due|taken|given|built)"
)
NOUNS: Final = frozenset(["nothing", "string", "mapping", "setting", "heading", "listing", "timing", "ceiling"])
"""Nouns that end like a participle."""
OLD_WORDS: Final = frozenset(
    f"runtime/{name}.py"
    for name in (
        "engine/attempts", "engine/lanes", "engine/slots", "engine/stretches", "holding", "member",
        "membership/coordinating", "stores/copying", "stores/follower", "stores/keeper", "stores/learner",
        "stores/restore",
    )
)  # fmt: skip
"""Files that still point too often."""

Sources = Mapping[str, ast.Module]


def words_of(module: ast.Module) -> list[str]:
    """The words of a module's docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) or "" for node in ast.walk(module) if isinstance(node, documented))
    return [word for text in texts for word in re.findall(r"[A-Za-z']+", text)]


def share_of(words: list[str]) -> float:
    """The share of the pointing words."""
    return sum(word.lower() in POINTING for word in words) / max(1, len(words))


def pointing_files(sources: Sources) -> Iterator[str]:
    """Files whose docstrings point too often."""
    for name, module in sources.items():
        words = words_of(module)
        if len(words) > FILE_WORDS_MIN and share_of(words) > FILE_SHARE_MAX and name not in OLD_WORDS:
            yield f"{name}: {share_of(words):.1%} of the words in docstrings are pointing words"


def pointing_rooms(sources: Sources) -> Iterator[str]:
    """Rooms whose docstrings point too often, but for the files that still do."""
    rooms = defaultdict[str, list[str]](list)
    for name, module in sources.items():
        if name not in OLD_WORDS:
            rooms[name.split("/")[0]] += words_of(module)
    for room, words in rooms.items():
        if share_of(words) > ROOM_SHARE_MAX:
            yield f"{room}: {share_of(words):.1%} of the words in docstrings are pointing words"


def doubled_classes(sources: Sources) -> Iterator[str]:
    """Class names of the core that stand for several things."""
    places = defaultdict[str, list[str]](list)
    for name, module in sources.items():
        if name.split("/")[0] in CORE:
            for node in ast.walk(module):
                if isinstance(node, ast.ClassDef):
                    places[node.name.lstrip("_")].append(name)
    yield from (f"class {name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1)


def bare_participles(sources: Sources) -> Iterator[str]:
    """Module functions that are named by a participle alone: neither a verb nor a noun."""
    for name, module in sources.items():
        for node in module.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if PARTICIPLE.fullmatch(node.name) and node.name.lstrip("_") not in NOUNS:
                yield f"{name}: def {node.name}"


POINTS: Final = '"""' + "It is what it was. " * 100 + '"""'
PLAIN: Final = '"""' + "The coordinator grants a range. " * 100 + '"""'
RULES: Final[list[tuple[Callable[[Sources], Iterator[str]], dict[str, str], dict[str, str]]]] = [
    (pointing_files, {"group/a.py": POINTS}, {"group/a.py": PLAIN}),
    (pointing_rooms, {"group/a.py": PLAIN, "group/b.py": POINTS}, {"group/a.py": PLAIN, "state/b.py": PLAIN}),
    (doubled_classes, {"group/a.py": "class A: ...", "state/b.py": "class _A: ..."}, {"group/a.py": "class A: ..."}),
    (bare_participles, {"group/a.py": "def _granted(): ..."}, {"group/a.py": "def nothing(): ...\ndef grant(): ..."}),
]
EACH_RULE: Final = pytest.mark.parametrize(("rule", "bad", "good"), RULES, ids=[rule.__name__ for rule, *_ in RULES])


def parsed(texts: Mapping[str, str]) -> Sources:
    """The syntax trees of texts by file name."""
    return {name: ast.parse(text) for name, text in texts.items()}


@EACH_RULE
def test_the_words_of_the_rooms_are_plain(
    rule: Callable[[Sources], Iterator[str]], bad: dict[str, str], good: dict[str, str]
) -> None:
    """Each rule holds of the code, is silent about a good text, and catches a planted violation."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    assert list(rule(parsed(bad)))
    assert not list(rule(parsed(good)))
    assert not list(rule(parsed(texts)))
    assert texts.keys() >= OLD_WORDS
