"""The house rules, each a function from source files to complaints, and each shown to catch a planted violation."""

import ast
import functools
import gc
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .records_of_state import RECORDS, SET_LATER
from .tiers.marks import tier

pytestmark = tier("check")

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("asgi", "brokers", "cli", "devkafka", "group", "keyrange", "offsets", "runtime", "spark", "state")
PURE_ROOMS = ("group/", "keyrange/", "offsets/", "runtime/handlers/", "runtime/partition/")
AT_THE_TOP = ("__init__.py", "errors.py")
BESIDE = ("bench", "examples", "tests")
FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 500
TEST_LINES_MAX = 600
"""Tests may be longer: a module of them is read case by case."""
TEST_FLOORS = {
    "tiers": -1,
    "stage": 0,
    "keyrange": 1,
    "offsets": 2,
    "state": 2,
    "brokers": 3,
    "group": 3,
    "devkafka": 4,
    "runtime": 4,
    "spark": 4,
    "asgi": 5,
    "bench": 5,
    "cli": 6,
    "examples": 6,
    "on_kafka": 7,
    "simulation": 8,
}
"""The folders of tests. Each imports of the tests its own, those on lower floors and the stage, and of the package what
stands no higher than its own room.
"""
BENCH_SEES = {
    "rig": (),
    "comparison": ("rig",),
    "steadiness": ("rig",),
    "failing_over": ("rig",),
    "handing_over": ("rig",),
    "spreading": ("rig",),
    "pairing": ("rig",),
    "peers": (),
}
"""The rooms of ``bench/``, and what each may import of the others."""
DOORS = ("asgi/__init__.py",)
"""Rooms that users import from: their names stand there."""
LONGER = {
    "tests/brokers/test_conformance.py": "one suite for every adapter, read as what a broker is",
}
"""Files that may hold longer functions or more lines, each with its reason."""
Files = Mapping[str, str]
"""Sources by their path from the checkout, with forward slashes."""


def sources() -> dict[str, str]:
    """Every Python file of the project."""
    found = [*ROOT.glob("*.py"), *(path for folder in (*ROOMS, *BESIDE) for path in (ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(found)}


def in_package(path: str) -> bool:
    """Whether a file is part of the wheel."""
    return path in AT_THE_TOP or path.split("/")[0] in ROOMS


@functools.cache
def parsed(path: str, source: str) -> ast.Module:
    """A file's syntax; every rule looks at it, and none changes it."""
    return ast.parse(source, path)


@functools.cache
def nodes_of(path: str, source: str) -> list[ast.AST]:
    """All syntax nodes of a file."""
    return list(ast.walk(parsed(path, source)))


def nodes(files: Files) -> Iterator[tuple[str, ast.AST]]:
    """All syntax nodes of all files."""
    for path, source in files.items():
        for node in nodes_of(path, source):
            yield path, node


def line_of(node: ast.AST) -> int:
    """The line of a node that has one, or 0."""
    return int(getattr(node, "lineno", 0))


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function from its ``def`` to its end."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


# The rules


def sizes(files: Files) -> Iterator[str]:
    """Functions and modules stay small."""
    for path, source in files.items():
        count = len(source.splitlines())
        most = TEST_LINES_MAX if path.startswith("tests/") else MODULE_LINES_MAX
        if count > most and path not in LONGER:
            yield f"{path} has {count} lines, {most} are allowed"
    for path, node in nodes(files):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and path not in LONGER:
            count = lines_of(node)
            if count > FUNCTION_LINES_MAX:
                yield f"{path}:{node.lineno} {node.name} has {count} lines, {FUNCTION_LINES_MAX} are allowed"


def imported(node: ast.AST) -> list[str]:
    """What an absolute import names: modules, and for ``from a import b`` also ``a.b``."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def words_kept_out(files: Files) -> Iterator[str]:
    """Names say what a thing is: three words say nothing."""
    empty = re.compile("manager|helper|utils", re.IGNORECASE)
    for path in files:
        if empty.search(path):
            yield f"{path} is named with an empty word"
    for path, node in nodes(files):
        for name in names_given(node):
            if empty.search(name):
                yield f"{path}:{line_of(node)} names something {name}"


def names_given(node: ast.AST) -> list[str]:
    """The names that a node gives to something."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.arg(arg=name) | ast.alias(asname=str(name)) | ast.Name(id=name, ctx=ast.Store()):
            return [name]
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
    return []


def rooms_of_the_tests(files: Files) -> Iterator[str]:
    """A test folder imports its own room and those below it, and of the tests its own, those below and the stage."""
    for path, node in nodes(files):
        folder, _, name = path.removeprefix("tests/").partition("/")
        if not path.startswith("tests/") or not name:
            continue
        if folder not in TEST_FLOORS:
            yield f"{path}: tests/{folder}/ mirrors no room"
            return
        for room in (name.split(".")[1] for name in imported(node) if name.startswith("keylanes.")):
            if folder in ROOMS and TEST_FLOORS.get(room, 0) > TEST_FLOORS[folder]:
                yield f"{path} imports {room}/, which stands above tests/{folder}/"
        if isinstance(node, ast.ImportFrom) and node.level:
            inside = path.split("/")[1 : -node.level]
            other = (inside or (node.module or node.names[0].name).split("."))[0]
            if other not in ("test_house", folder) and TEST_FLOORS[other] >= TEST_FLOORS[folder]:
                yield f"{path}:{node.lineno} imports from tests/{other}/, which does not stand below tests/{folder}/"


def bare_rooms(files: Files) -> Iterator[str]:
    """Nobody imports a room under its bare name, which would load a second copy; inside, imports are relative."""
    for path, node in nodes(files):
        for name in imported(node):
            if name.split(".")[0] in ROOMS:
                yield f"{path}:{line_of(node)} imports {name}, a second copy of keylanes.{name}"
            elif in_package(path) and name.split(".")[0] == "keylanes":
                yield f"{path}:{line_of(node)} imports {name}: inside the package imports are relative"


def rooms_of_the_bench(files: Files) -> Iterator[str]:
    """What benchmarks share is in the rig, which sees no other room; rooms see the rig alone, and nobody a script."""
    in_bench = {path: path.split("/")[1:] for path in files if path.startswith("bench/")}
    scripts = {parts[0].removesuffix(".py") for parts in in_bench.values() if len(parts) == 1}
    for path, node in nodes({path: files[path] for path in in_bench}):
        room, *inside = in_bench[path]
        if isinstance(node, ast.Module) and inside and room not in BENCH_SEES:
            yield f"{path} is in a room of the bench that is not listed"
        seen = (room, *BENCH_SEES.get(room, ())) if inside else tuple(BENCH_SEES)
        for name in imported(node):
            first = name.split(".")[0]
            if first in {*BENCH_SEES, *scripts} and first not in seen:
                yield f"{path}:{line_of(node)} imports {name}, which is not for {room}"


def pure_hearts(files: Files) -> Iterator[str]:
    """What calls itself PURE or lies in a pure room waits for nothing, and imports no loop, clock, chance or I/O."""
    outside = {
        *("aiokafka", "asyncio", "concurrent", "datetime", "io", "logging", "os", "pathlib", "queue", "random"),
        *("rocksdict", "secrets", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid"),
    }
    for path, source in files.items():
        tree = parsed(path, source)
        if not (ast.get_docstring(tree) or "").startswith("PURE") and not path.startswith(PURE_ROOMS):
            continue
        for node in nodes_of(path, source):
            if isinstance(node, ast.AsyncFunctionDef):
                yield f"{path}:{node.lineno} is pure and waits in {node.name}"
            for name in outside & {name.split(".")[0] for name in imported(node)}:
                yield f"{path}: is pure and imports {name}"


def nothing_unfinished(files: Files) -> Iterator[str]:
    """No method is a promise."""
    for path, node in nodes(files):
        if isinstance(node, ast.Raise) and node.exc and "NotImplementedError" in ast.unparse(node.exc):
            yield f"{path}:{node.lineno} is unfinished"


def reasoned_ignores(files: Files) -> Iterator[str]:
    """Whoever silences a checker says why, beside it."""
    silenced = re.compile(r"#\s*(noqa|type: ignore)(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*|\[[\w,\s-]+\])?(?P<reason>.*)")
    for path, source in files.items():
        for number, line in enumerate(source.splitlines(), 1):
            found = silenced.search(line)
            if found and len(found["reason"].strip(" #")) < 4:
                yield f"{path}:{number} silences a checker without a reason: {line.strip()}"


def listed_packages(files: Files) -> Iterator[str]:
    """The packages in pyproject.toml are those that exist: one that is missing would be missing in the wheel."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.rpartition("/")[0] for path in files if in_package(path)}
    exist = {".".join(("keylanes", *folder.split("/"))) if folder else "keylanes" for folder in folders}
    for name in sorted(exist ^ set(setuptools["packages"])):
        yield f"{name} is " + ("not listed in pyproject.toml" if name in exist else "listed but has no files")
    for folder in sorted(folders):
        if f"{folder}/__init__.py".lstrip("/") not in files:
            yield f"{folder} has no __init__.py"


def compiled_modules() -> list[str]:
    """What mypyc makes C of."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return list(described["tool"]["keylanes"]["compiled"])


def fit_to_compile(files: Files) -> Iterator[str]:
    """The compiler forgets what a class is given beside its bases: a Struct that is an array would become an object.
    What waits inside ``except`` or ``finally`` leaves its exception to whoever runs meanwhile, as the one that is
    being handled there. And ``raise … from`` drops the cause.
    """
    compiled = compiled_modules()
    for path, node in nodes({path: source for path, source in files.items() if path in compiled}):
        if isinstance(node, ast.ClassDef) and node.keywords:
            yield f"{path}:{node.lineno} {node.name} has keywords, which are lost when it is compiled"
        if isinstance(node, ast.Module):
            for statement in node.body:
                is_constant = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]).isupper()
                if is_constant and "TypeVar" not in ast.unparse(statement):
                    yield f"{path}:{statement.lineno} is a constant that is looked up by name at each use: Final"
        if isinstance(node, ast.Raise) and node.cause is not None:
            yield f"{path}:{node.lineno} raises from a cause, which is lost when it is compiled: errors.caused()"
        for inner in ast.walk(node) if isinstance(node, ast.ExceptHandler) else ():
            if isinstance(inner, ast.Raise) and isinstance(inner.exc, ast.Call) and not is_caused(inner.exc):
                yield f"{path}:{inner.lineno} raises without a cause: errors.caused()"
        handled = [node.body] if isinstance(node, ast.ExceptHandler) else []
        handled += [node.finalbody] if isinstance(node, ast.Try) else []
        for statement in (statement for body in handled for statement in body):
            if any(isinstance(inner, ast.Await | ast.Yield | ast.YieldFrom) for inner in ast.walk(statement)):
                yield f"{path}:{statement.lineno} waits inside except or finally"


def set_later(files: Files) -> Iterator[str]:
    """In the runtime no part of an object is set from outside, but for records of state; callbacks have no default."""
    for path, line, name in places_set_later(files):
        if (path, name) not in SET_LATER:
            yield f"{path}:{line} {name} is set later"


def places_set_later(files: Files) -> Iterator[tuple[str, int, str]]:
    """Attributes that are set on other objects, and callbacks that constructors do not need."""
    for path, node in nodes({path: source for path, source in files.items() if path.startswith("runtime/")}):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            base = ast.unparse(node.value)
            if base != "self" and base.split(".")[-1].split("[")[0] not in RECORDS:
                yield path, node.lineno, ast.unparse(node)
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for arg in defaulted(node.args):
                if arg.annotation is not None and "Callable[" in ast.unparse(arg.annotation):
                    yield path, node.lineno, arg.arg
            given = {arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)}
            for inner in (inner for inner in ast.walk(node) if isinstance(inner, ast.AnnAssign)):
                is_made_here = isinstance(inner.value, ast.Lambda | ast.List) or (
                    isinstance(inner.value, ast.Name) and inner.value.id not in given
                )
                if is_made_here and "Callable[" in ast.unparse(inner.annotation):
                    yield path, inner.lineno, ast.unparse(inner.target).removeprefix("self.")


def defaulted(arguments: ast.arguments) -> list[ast.arg]:
    """The arguments with a default."""
    count = len(arguments.defaults)
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [*(arguments.args[-count:] if count else []), *(arg for arg, default in named if default is not None)]


def is_caused(call: ast.Call) -> bool:
    """Whether an error is given its cause before it is raised."""
    return ast.unparse(call.func) == "caused"


_PLANTED: list[tuple[Callable[[Files], Iterator[str]], str, str]] = [
    (fit_to_compile, "runtime/engine/slots.py", "class Done(msgspec.Struct, gc=False): ..."),
    (fit_to_compile, "runtime/engine/slots.py", "async def f():\n  try: g()\n  except ValueError:\n    await h()"),
    (fit_to_compile, "runtime/engine/slots.py", "raise ValueError from None"),
    (fit_to_compile, "runtime/engine/slots.py", "STRETCH_S = 0.002"),
    (fit_to_compile, "runtime/engine/slots.py", "try: f()\nexcept ValueError:\n  raise OutputRefused()"),
    (fit_to_compile, "runtime/engine/slots.py", "async def f():\n  try: g()\n  finally:\n    await h()"),
    (sizes, "runtime/long.py", "def f():\n" + "    g()\n" * FUNCTION_LINES_MAX),
    (sizes, "runtime/long.py", "\n" * (MODULE_LINES_MAX + 1)),
    (words_kept_out, "runtime/x.py", "class WorkerManager: ..."),
    (words_kept_out, "runtime/x.py", "def f(read_helper): ..."),
    (words_kept_out, "tests/utils.py", ""),
    (rooms_of_the_tests, "tests/state/test_x.py", "from keylanes.runtime import member"),
    (rooms_of_the_tests, "tests/state/test_x.py", "from ..simulation import plants"),
    (rooms_of_the_tests, "tests/runtime/engine/test_x.py", "from ...on_kafka.chaos import run_round"),
    (rooms_of_the_tests, "tests/stage/x.py", "from ..state import test_keys"),
    (rooms_of_the_tests, "tests/attic/test_x.py", "import os"),
    (bare_rooms, "tests/test_x.py", "import state"),
    (bare_rooms, "bench/x.py", "from runtime.errors import FatalError"),
    (bare_rooms, "runtime/x.py", "from keylanes.keyrange import ranges"),
    (rooms_of_the_bench, "bench/rig/x.py", "from comparison.arms import ARMS"),
    (rooms_of_the_bench, "bench/spreading/x.py", "from steadiness import slopes"),
    (rooms_of_the_bench, "bench/peers/x.py", "import rig.records"),
    (rooms_of_the_bench, "bench/rig/x.py", "import restore"),
    (rooms_of_the_bench, "bench/fresh/x.py", ""),
    (pure_hearts, "runtime/x.py", '"""PURE. Edges."""\nfrom time import monotonic'),
    (pure_hearts, "runtime/x.py", '"""PURE. Edges."""\nasync def f(): ...'),
    (pure_hearts, "runtime/partition/x.py", "async def f(): ..."),
    (nothing_unfinished, "runtime/x.py", "raise NotImplementedError"),
    (reasoned_ignores, "runtime/x.py", "f()  # noqa" + ": BLE001"),
    (reasoned_ignores, "runtime/x.py", "f()  # type" + ": ignore[attr-defined]"),
    (listed_packages, "runtime/fresh/__init__.py", ""),
    (listed_packages, "runtime/fresh/x.py", ""),
    (set_later, "runtime/x.py", "holding.begins = self._begin_reading"),
    (set_later, "runtime/x.py", "self.group.tail.wall_ms, now = wall_ms, 0"),
    (set_later, "runtime/x.py", "class X:\n  def __init__(self, on_step: Callable[[], None] = f): ..."),
    (set_later, "runtime/x.py", "class X:\n  def __init__(self):\n    self.on_end: Callable[[], None] = _nobody"),
    (set_later, "runtime/x.py", "class X:\n  def __init__(self):\n    self.listeners: list[Callable[[], None]] = []"),
]
BELOW = (
    *(f"brokers/{name}/__init__.py" for name in ("kafka", "simulated")),
    *(
        f"runtime/{name}/__init__.py"
        for name in ("engine", "handlers", "logs", "membership", "partition", "processes", "stores", "watch")
    ),
)
_RULES = list(dict.fromkeys(rule for rule, _, _ in _PLANTED))


@pytest.fixture(autouse=True, scope="module")
def syntax() -> Iterator[None]:
    """It stays: to look through millions of nodes for what can go takes longer than to parse them."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.__name__)
def test_the_house_is_in_order(rule: Callable[[Files], Iterator[str]]) -> None:
    """Every file of the project keeps every rule."""
    complaints = list(rule(sources()))
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(("rule", "path", "source"), _PLANTED)
def test_a_planted_violation_is_found(rule: Callable[[Files], Iterator[str]], path: str, source: str) -> None:
    """Each rule complains about a file that breaks it, and names the file or its folder."""
    clean = {"__init__.py": "", **{f"{name}/__init__.py": "" for name in ROOMS}, **dict.fromkeys(BELOW, "")}
    clean["bench/restore.py"] = "from rig.records import SEED"
    assert not list(rule(clean))
    complaints = list(rule({**clean, path: source}))
    assert complaints
    assert any(Path(path).parent.name in complaint for complaint in complaints)


def test_the_exceptions_are_needed() -> None:
    """A file on the list of longer ones is longer, and its entry says why."""
    files = sources()
    for path, reason in LONGER.items():
        long = any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines_of(node) > FUNCTION_LINES_MAX
            for _, node in nodes({path: files[path]})
        )
        assert long or len(files[path].splitlines()) > MODULE_LINES_MAX
        assert len(reason) > 20


def test_what_is_set_later_is_there() -> None:
    """Each place on the list still breaks the rule."""
    assert {(path, name) for path, _, name in places_set_later(sources())} >= SET_LATER


def test_every_room_says_what_a_line_in_it_must_be_about() -> None:
    """The first line of each room's ``__init__.py`` says it, and nothing else is in that file, but for a door."""
    rooms = [path for path in sources() if in_package(path) and path.endswith("/__init__.py")]
    assert len(rooms) == len(ROOMS) + len(BELOW)
    for path in rooms:
        said, *names = sources()[path].splitlines()
        assert len(said.strip('"')) > 15, path
        assert not names or path in DOORS, path


# The directions between the rooms


def lint_imports(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of ``config`` on the package ``keylanes`` in ``folder``."""
    code = "from importlinter.cli import lint_imports_command as check; check()"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, "--config", str(config), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package as it is in the checkout, in a folder of its own."""
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / "keylanes" / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in AT_THE_TOP:
        shutil.copy(ROOT / name, tmp_path / "keylanes")
    return tmp_path


def test_imports_keep_their_direction(copied: Path) -> None:
    """Import-linter finds every contract of pyproject.toml kept."""
    answer = lint_imports(copied, ROOT / "pyproject.toml")
    assert answer.returncode == 0, answer.stdout + answer.stderr


UPWARD = {
    "The rooms of the house": ("spark/planted.py", "from ..runtime import app"),
    "The rooms of the runtime": ("runtime/partition/planted.py", "from ..engine import slots"),
    "The rooms of the brokers": ("brokers/simulated/planted.py", "from .. import embedded"),
    "The floors of the engine": ("runtime/engine/attempts.py", "from . import balance"),
    "No circles": ("runtime/logs/reader.py", "from . import office"),
    "The pure rooms": ("offsets/planted.py", "import time"),
    "Only brokers.kafka knows aiokafka": ("brokers/embedded.py", "import aiokafka"),
    "Only state knows RocksDB": ("runtime/stores/planted.py", "import rocksdict"),
    "The witness shares no logic with what it checks": ("spark/judge_logs.py", "from ..offsets import ledger"),
}
"""For each contract an import against it: a file, and a line more in it."""

UNPLACED = {
    "The rooms of the house": ("stray.py", ""),
    "The rooms of the runtime": ("runtime/stray.py", ""),
    "The rooms of the brokers": ("brokers/stray.py", ""),
    "The floors of the engine": ("runtime/engine/stray.py", ""),
}
"""Files without a room."""

INDIRECT = {"The pure rooms": ("runtime/partition/planted.py", "from ...brokers import patience")}
"""No loop by name, and one all the same."""


@pytest.mark.parametrize("planted", [UPWARD, UNPLACED, INDIRECT], ids=["upward", "unplaced", "indirect"])
def test_what_is_planted_breaks_its_contract(copied: Path, planted: dict[str, tuple[str, str]]) -> None:
    """An import upward or sideways, a circle, an impure import and a file without a room: each breaks its contract."""
    for path, line in planted.values():
        with (copied / "keylanes" / path).open("a") as file:
            file.write(f"\n{line}\n")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in contracts} == set(UPWARD), "each contract is shown to break"
    answer = lint_imports(copied, ROOT / "pyproject.toml")
    assert answer.returncode == 1, answer.stdout + answer.stderr
    said = " ".join(answer.stdout.split())
    assert {name for name in UPWARD if f"{name} BROKEN" in said} == set(planted), answer.stdout


# What an import does


def run_python(folder: Path, code: str) -> str:
    """Run a fresh Python in a folder away from the checkout; what it printed."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def test_importing_starts_nothing(tmp_path: Path) -> None:
    """To import keylanes and its kafka adapter makes no thread, no socket, no event loop and no child process."""
    code = """
        import asyncio, socket, subprocess, sys, threading
        started = []
        watched = ("socket.", "subprocess.", "os.fork", "os.posix_spawn")
        sys.addaudithook(lambda event, _: started.append(event) if event.startswith(watched) else None)
        asyncio.new_event_loop = lambda *_: started.append("loop")
        threading.Thread.start = lambda *_: started.append("thread")
        import keylanes
        import keylanes.brokers.kafka.broker
        print(started, threading.active_count())
    """
    assert run_python(tmp_path, code) == "[] 1"


def test_importing_needs_no_extra(tmp_path: Path) -> None:
    """To import keylanes loads nothing that only an extra installs, and no room under its bare name."""
    extras = ("confluent_kafka", "matplotlib", "numpy", "pandas", "pyarrow", "pyspark", "rich", "typer")
    unwanted = (*extras, *ROOMS, "errors")
    assert run_python(tmp_path, f"import sys, keylanes; print([m for m in {unwanted} if m in sys.modules])") == "[]"


# The pinned files


def test_what_is_compiled_exists() -> None:
    """A module that was renamed would be left out without a word."""
    assert not set(compiled_modules()) - set(sources())


def test_the_locks_fit_the_project() -> None:
    """Each dependency in pyproject.toml is pinned, within its bounds, in the set that needs it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    full = [
        *project["dependencies"],
        *(line for name in ("cli", "test", "dev", "spark", "plot") for line in extras[name]),
    ]
    spec = importlib.util.spec_from_file_location("lock_of_this_checkout", ROOT / "requirements" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    lock = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lock)
    small = lock.small_set(project)
    assert set(small) < set(full)
    wanted = {"check.txt": small, "full.txt": full, "java.txt": extras["java"]}
    for name, lines in wanted.items():
        pinned = pins(name)
        for requirement in map(Requirement, lines):
            if requirement.name != "keylanes":
                versions = pinned.get(requirement.name, [])
                assert versions, f"{requirement.name} is not in requirements/{name}"
                assert all(requirement.specifier.contains(version) for version in versions)


def test_the_small_set_is_part_of_the_full_one() -> None:
    """The full environment grows out of the small one: what both pin, they pin alike."""
    small, full = pins("check.txt"), pins("full.txt")
    assert small == {name: full[name] for name in small}


LOCKS = [*(ROOT / "requirements").glob("*.txt"), *(ROOT / "bench" / "peers" / "requirements").glob("*.txt")]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_the_locks_name_hashes_and_no_host(lock: Path) -> None:
    """Every pin carries hashes, and no file says where to download from: of ours, and of the bench's peers."""
    assert len(LOCKS) == 6
    text = lock.read_text()
    assert "://" not in text
    assert "--index" not in text
    blocks = [block for block in re.split(r"\n(?=\S)", text) if "==" in block]
    assert blocks
    assert all("--hash=sha256:" in block for block in blocks)


def pins(name: str) -> dict[str, list[str]]:
    """The versions that a pinned file names, by package."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line and line[0] not in "# ":
            package, _, version = line.partition(";")[0].rstrip("\\ ").partition("==")
            found.setdefault(package, []).append(version.strip())
    return found
