"""The words of the code, each rule a function from source files to complaints, and shown to catch a violation."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
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
NOUNS: Final = frozenset(
    [
        "ceiling",
        "embedded",
        "hashing",
        "heading",
        "holding",
        "listing",
        "mapping",
        "melting",
        "nothing",
        "sampling",
        "setting",
        "string",
        "succeed",
        "testing",
        "throttling",
        "timing",
        "trimming",
    ]
)
"""What only looks like a participle, and the names of a field that end like one."""
PUBLIC: Final = frozenset(["held"])
"""Public methods that keep their names."""
RESERVED: Final = frozenset(["Layout", "Place", "Producer", "Strand"])
"""Names of classes that are free for what users will see."""
FOREIGN: Final = frozenset(["Table"])
"""Classes of libraries with the name of one of ours."""
POSITIONS_MAX: Final = 4
"""As many values of a call that makes an object stand without a name."""
COMMENT_SHARE_MAX: Final = 0.08
COMMENT_WORDS_MIN: Final = 100
OLD_WORDS: Final = frozenset[str]()
"""Files that still point too often."""

Sources = Mapping[str, str]
"""The text of each file."""


@cache
def parsed(text: str) -> ast.Module:
    """The syntax tree of a text."""
    return ast.parse(text)


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
    for name, text in sources.items():
        words = words_of(parsed(text))
        if len(words) > FILE_WORDS_MIN and share_of(words) > FILE_SHARE_MAX and name not in OLD_WORDS:
            yield f"{name}: {share_of(words):.1%} of the words in docstrings are pointing words"


def pointing_rooms(sources: Sources) -> Iterator[str]:
    """Rooms whose docstrings point too often, but for the files that still do."""
    rooms = defaultdict[str, list[str]](list)
    for name, text in sources.items():
        if name not in OLD_WORDS:
            rooms[name.split("/")[0]] += words_of(parsed(text))
    for room, words in rooms.items():
        if share_of(words) > ROOM_SHARE_MAX:
            yield f"{room}: {share_of(words):.1%} of the words in docstrings are pointing words"


def doubled_classes(sources: Sources) -> Iterator[str]:
    """Class names of the core that stand for several things."""
    places = defaultdict[str, list[str]](list)
    for name, text in sources.items():
        if name.split("/")[0] in CORE:
            for node in ast.walk(parsed(text)):
                if isinstance(node, ast.ClassDef):
                    places[node.name.lstrip("_")].append(name)
    yield from (f"class {name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1)


def pointing_comments(sources: Sources) -> Iterator[str]:
    """Rooms whose comments point too often."""
    rooms = defaultdict[str, list[str]](list)
    for name, text in sources.items():
        if name not in OLD_WORDS:
            tokens = tokenize.generate_tokens(io.StringIO(text).readline)
            comments = (token.string for token in tokens if token.type == tokenize.COMMENT)
            rooms[name.split("/")[0]] += (word for comment in comments for word in re.findall(r"[A-Za-z']+", comment))
    for room, words in rooms.items():
        if len(words) > COMMENT_WORDS_MIN and share_of(words) > COMMENT_SHARE_MAX:
            yield f"{room}: {share_of(words):.1%} of the words in comments are pointing words"


def bare_participles(sources: Sources) -> Iterator[str]:
    """Functions, methods and modules that are named by a participle alone: neither a verb nor a noun."""
    for name, text in sources.items():
        if name in OLD_WORDS:
            continue
        bodies = [parsed(text).body, *(node.body for node in ast.walk(parsed(text)) if isinstance(node, ast.ClassDef))]
        functions = [n.name for body in bodies for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        for called in [Path(name).stem, *functions]:
            if PARTICIPLE.fullmatch(called) and called.lstrip("_") not in NOUNS | PUBLIC:
                yield f"{name}: {called}"


def unnamed_values(sources: Sources) -> Iterator[str]:
    """Objects of our classes that are made from more than four values without names."""
    trees = {name: parsed(text) for name, text in sources.items()}
    classes = {node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for name, tree in trees.items():
        for node in () if name in OLD_WORDS else ast.walk(tree):
            if isinstance(node, ast.Call) and len(node.args) > POSITIONS_MAX:
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if called in classes and called not in FOREIGN:
                    yield f"{name}:{node.lineno} {called} is made from {len(node.args)} values without names"


def crowded_lines(sources: Sources) -> Iterator[str]:
    """Lines of constructors with two assignments."""
    for name, text in sources.items():
        for made in () if name in OLD_WORDS else ast.walk(parsed(text)):
            if isinstance(made, ast.FunctionDef) and made.name in ("__init__", "__post_init__"):
                for node in (node for node in ast.walk(made) if isinstance(node, ast.Assign)):
                    if any(isinstance(one, ast.Tuple) for one in node.targets) and isinstance(node.value, ast.Tuple):
                        yield f"{name}:{node.lineno} has two assignments"


def spelt_places(sources: Sources) -> Iterator[str]:
    """Pairs of the topic and the partition of one value, beside the property ``topic_partition``."""
    for name, text in sources.items():
        tree = parsed(text)
        assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        unpacked = {node.value for node in assigned if any(isinstance(target, ast.Tuple) for target in node.targets)}
        for node in ast.walk(tree) if name.split("/")[0] in CORE else ():
            if isinstance(node, ast.Tuple) and len(node.elts) == 2 and node not in unpacked:
                first, second = (ast.unparse(one) for one in node.elts)
                owner = first.removesuffix(".topic")
                if owner not in (first, "self") and second == f"{owner}.partition":
                    yield f"{name}:{node.lineno} ({first}, {second})"


def reserved_names(sources: Sources) -> Iterator[str]:
    """Classes and aliases with a name that is kept free."""
    for name, text in sources.items():
        for node in ast.walk(parsed(text)) if name.split("/")[0] in CORE else ():
            if isinstance(node, ast.ClassDef) and node.name in RESERVED:
                yield f"{name}:{node.lineno} class {node.name}"
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in RESERVED:
                yield f"{name}:{node.lineno} {ast.unparse(node.target)}"


POINTS: Final = '"""' + "It is what it was. " * 100 + '"""'
PLAIN: Final = '"""' + "The coordinator grants a range. " * 100 + '"""'
RULES: Final[list[tuple[Callable[[Sources], Iterator[str]], dict[str, str], dict[str, str]]]] = [
    (pointing_files, {"group/a.py": POINTS}, {"group/a.py": PLAIN}),
    (pointing_rooms, {"group/a.py": PLAIN, "group/b.py": POINTS}, {"group/a.py": PLAIN, "state/b.py": PLAIN}),
    (doubled_classes, {"group/a.py": "class A: ...", "state/b.py": "class _A: ..."}, {"group/a.py": "class A: ..."}),
    (pointing_comments, {"group/a.py": "# so it is what it was\n" * 50}, {"group/a.py": "# a range is free\n" * 50}),
    (bare_participles, {"group/a.py": "def _granted(): ..."}, {"group/a.py": "def nothing(): ...\ndef grant(): ..."}),
    (
        bare_participles,
        {"group/a.py": "class A:\n    def granted(self): ..."},
        {"group/a.py": "class A:\n    held = 1"},
    ),
    (bare_participles, {"group/asking.py": ""}, {"group/requests.py": ""}),
    (
        unnamed_values,
        {"group/a.py": "class A: ...\nA(1, 2, 3, 4, 5)"},
        {"group/a.py": "class A: ...\nA(1, 2, 3, 4, e=5)\nB(1, 2, 3, 4, 5)"},
    ),
    (
        crowded_lines,
        {"group/a.py": "class A:\n    def __init__(self, a, b):\n        self.a, self.b = a, b"},
        {"group/a.py": "class A:\n    def __init__(self, pair):\n        self.a, self.b = pair"},
    ),
    (spelt_places, {"group/a.py": "(event.topic, event.partition)"}, {"group/a.py": "(event.topic, other.partition)"}),
    (reserved_names, {"group/a.py": "Place: TypeAlias = int"}, {"group/a.py": "class Placed: ..."}),
]
EACH_RULE: Final = pytest.mark.parametrize(
    ("rule", "bad", "good"), RULES, ids=[f"{rule.__name__}-{number}" for number, (rule, *_) in enumerate(RULES)]
)


@EACH_RULE
def test_the_words_of_the_rooms_are_plain(
    rule: Callable[[Sources], Iterator[str]], bad: dict[str, str], good: dict[str, str]
) -> None:
    """Each rule holds of the code, is silent about a good text, and catches a planted violation."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    assert list(rule(bad))
    assert not list(rule(good))
    assert not list(rule(texts))
    assert texts.keys() >= OLD_WORDS
