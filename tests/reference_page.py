"""docs/reference.md from the sources of all that ``keylanes`` exports: signatures and docstrings.

``.venv/bin/python -P tests/reference_page.py`` writes it. It reads the sources: the compiler keeps no docstrings.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from keylanes.runtime.handlers.handler import PARALLELISING_FACTOR
from keylanes.runtime.testing import PARTITIONS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference.md"
COMMAND = ".venv/bin/python -P tests/reference_page.py"
WIDTH: Final = 100
PARAGRAPHS_MIN: Final = 2
"""Of a method with a heading of its own, if it is called in one line."""
DEFAULTS: Final = {"PARALLELISING_FACTOR": str(PARALLELISING_FACTOR), "PARTITIONS": str(PARTITIONS)}
"""Defaults with a name, and what they are; another one is shown as an ellipsis."""

INTRODUCTION = f"""# Reference

All that `keylanes` exports. Import each name from `keylanes`. Arguments behind `*` are given by name.

In a compiled package `help()` shows no docstring of `State`, `MapState` and the codecs, because the compiler does not
keep them. They stand here.

<!-- Generated from the sources: {COMMAND} -->
"""
GROUPS: Final = {
    "Applications": (
        "App",
        "Health",
        "Statistics",
        "PartitionStatistics",
        "UnownedPartition",
        "RunningRecord",
        "HotKey",
        "ToLevel",
    )
    + ("Progress", "Copying", "KeyRange", "Broker", "IS_COMPILED"),
    "Handlers": ("Context", "Record", "Retry", "DeadLetter", "Stop"),
    "Values": ("Codec", "JsonCodec", "MsgpackCodec"),
    "State": ("State", "MapState", "Store", "StoreView", "StoreEntry"),
    "Tests": ("SimulatedApp", "CommittedRecord"),
    "Settings": ("Settings", "Security", "Secret"),
    "Errors": ("KeylanesError", "SettingsError", "FatalError", "AccessRefused", "MachineError")
    + (
        "FencedError",
        "LogError",
        "HandlerMisdeclared",
        "HandlerFailed",
        "BrokerUnavailable",
        "SourceError",
        "StoreError",
    )
    + ("EmbeddedInUse", "StateError", "InvariantBroken", "NotSimulated", "SendUnknown")
    + ("StateNotReady", "Elsewhere", "HandlerError", "DecodeFailed", "OutputRefused", "NoKey", "StateValueTooLarge")
    + ("HandlerTimeout", "ContextClosed"),
}
ALIASES: Final = {
    "Headers": "brokers/protocol.py",
    "MapKey": "state/keys.py",
    "OnFatal": "runtime/app.py",
    "Partitioner": "brokers/partitioner.py",
    "PartitionOfKey": "brokers/partitioner.py",
    "StartFrom": "runtime/declared_start.py",
    "Step": "runtime/watch/steps.py",
}
"""Short names for types in signatures, and where they stand."""

OPAQUE = {"Broker": "made by keylanes.brokers and passed on: what it answers is between adapters and the runtime"}
"""Exported, but their own signatures are not for users, each with its reason."""
INSIDE = {
    "Context.close": "ends the attempt, when the handler has returned",
    "MapState.begin": "hands a store that is used again to the next record",
    "State.begin": "hands a store that is used again to the next record",
    "State.begin_at": "hands a store that is used again to the next record",
    "Retry.wait_ms": "tells whoever waits how long",
    "Settings.limits": "holds constants and shares, which users do not set",
}
"""Methods of what users are given that are not for them, each with its reason."""
GIVEN = ("Context", "MapState", "SimulatedApp", "State", "StoreView")
"""What users are given and never make."""
RESULTS: Final = ("Statistics", "PartitionStatistics", "Progress", "CommittedRecord")
"""Values that users read and never make: without the defaults of their fields."""
ELSEWHERE: Final = {"Settings": "settings.md", "Security": "settings.md#tls-and-sasl"}
"""Whose fields have a page of their own."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Described(NamedTuple):
    """A class or a value, as its source has it."""

    name: str
    node: ast.ClassDef | ast.AnnAssign
    words: str


def sources() -> dict[str, Path]:
    """Where each name comes from, as ``keylanes`` imports it."""
    found: dict[str, Path] = {}
    for node in ast.walk(ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {name.asname or name.name: ROOT / f"{node.module.replace('.', '/')}.py" for name in node.names}
    return found


def described(name: str, path: Path) -> Described:
    """A name in its module."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Described(name, node, words(node))
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            return Described(name, node, text_of(below))
    raise LookupError(f"{path} has no {name}")


def words(node: ast.ClassDef | Function) -> str:
    """A docstring, as Markdown."""
    return (ast.get_docstring(node) or "").replace("``", "`")


def text_of(below: ast.stmt | None) -> str:
    """What stands as text below an assignment."""
    match below:
        case ast.Expr(ast.Constant(str(text))):
            return " ".join(text.replace("``", "`").split())
    return ""


def decorators(function: Function) -> set[str]:
    """The names of what a function is decorated with."""
    return {ast.unparse(decorator) for decorator in function.decorator_list}


def fields(node: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """The public fields of a structure, with what is said below each."""
    for statement, below in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and not ast.unparse(statement.target).startswith("_"):
            yield statement, text_of(below)


def methods(node: ast.ClassDef) -> Iterator[tuple[Function, list[Function]]]:
    """The public methods of a class, each with the signatures to show: its overloads where it has some."""
    overloads: list[Function] = []
    for function in node.body:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name.startswith("_"):
            continue
        if "overload" in decorators(function):
            overloads.append(function)
        else:
            if f"{node.name}.{function.name}" not in INSIDE:
                yield function, overloads or [function]
            overloads = []


def signature(head: str, arguments: ast.arguments, returns: ast.expr | None) -> str:
    """A call as it is declared, without ``self``; long ones with one argument a line."""
    shown = ast.arguments(**{field: getattr(arguments, field) for field in arguments._fields})
    if shown.args and shown.args[0].arg == "self":
        shown.args = shown.args[1:]
    result = f" -> {unquoted(ast.unparse(returns))}" if returns is not None else ""
    return call(head, [argument(one) for one in split(ast.unparse(shown))], result)


def call(head: str, arguments: list[str], result: str = "") -> str:
    """A call on one line, or with one argument a line."""
    line = f"{head}({', '.join(arguments)}){result}"
    return line if len(line) <= WIDTH else "\n".join([f"{head}(", *(f"    {one}," for one in arguments), f"){result}"])


def argument(text: str) -> str:
    """One argument: its name, its type, and its default if it has one."""
    name, has_default, default = unquoted(text).partition("=")
    if not has_default:
        return name
    is_name = default.isidentifier() and default not in ("None", "True", "False")
    return f"{name} = {DEFAULTS.get(default, '...') if is_name else default}"


def unquoted(text: str) -> str:
    """A type that is named before it is there, without its quotes."""
    return re.sub(r"'([A-Z]\w+)'", r"\1", text)


def split(arguments: str) -> list[str]:
    """Arguments that are separated by commas outside of brackets."""
    found, depth, begin = [], 0, 0
    for place, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append(arguments[begin:place].strip())
            begin = place + 1
    return [one for one in (*found, arguments[begin:].strip()) if one]


def code(*lines: str) -> str:
    """A block of Python."""
    return "\n".join(["```python", *lines, "```", ""])


def head_of(node: ast.ClassDef, made: Function | None) -> str:
    """How one is made: by its fields, or by its ``__init__``."""
    if node.name in GIVEN:
        return ""
    if made is not None:
        return code(signature(node.name, made.args, None))
    given = [ast.unparse(statement) for statement, _ in fields(node)]
    if node.name in RESULTS:
        given = [one.partition(" = ")[0] for one in given]
    if node.name == "Record":  # its one argument by place is of the base class
        given = ["value: Any", "*", *given]
    return code(call(node.name, given))


def of_class(found: Described) -> str:
    """What is said of a class: how it is made, what it is, its fields and its methods."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    made = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    parts = [f"### {found.name}\n"]
    if found.name in ELSEWHERE:
        return "\n".join([*parts, f"{found.words}\n", f"Its fields: [settings.md]({ELSEWHERE[found.name]}).\n"])
    is_whole = found.name not in OPAQUE
    parts += [head_of(node, made) if is_whole and "Protocol" not in map(ast.unparse, node.bases) else ""]
    parts += [f"{found.words}\n"]
    notes = [f"- `{ast.unparse(statement.target)}`: {said}" for statement, said in fields(node) if said]
    parts += ["\n".join(notes) + "\n"] if notes and is_whole else []
    called = [of_method(found.name, function, shown) for function, shown in methods(node)] if is_whole else []
    items = [one for one in called if one.startswith("- ")]
    parts += ["".join(items), *(one for one in called if one not in items)]
    return "\n".join(part for part in parts if part)


def of_method(owner: str, function: Function, shown: list[Function]) -> str:
    """What is said of a method or a property: one item of a list if it is called in one line."""
    if decorators(function) & {"property"}:
        assert function.returns is not None, "the house asks for types"
        calls = [f"{function.name}: {ast.unparse(function.returns)}"]
    else:
        prefix = "await " if isinstance(function, ast.AsyncFunctionDef) else ""
        calls = [signature(f"{prefix}{one.name}", one.args, one.returns) for one in shown]
    said = words(function)
    if len(calls) == 1 and "\n" not in calls[0] and said.count("\n\n") < PARAGRAPHS_MIN:
        return f"- `{calls[0]}`: {' '.join(said.split())}\n"
    return f"#### {owner}.{function.name}\n\n{code(*calls)}\n{said}\n"


def of_errors(names: tuple[str, ...], places: dict[str, Path]) -> str:
    """One row for each error: what it is a kind of, its exit code, what it says."""
    rows = ["| error | is a | exit code | what it says |", "|---|---|---|---|"]
    for name in names:
        found = described(name, places[name])
        assert isinstance(found.node, ast.ClassDef)
        codes = [ast.unparse(s.value) for s in found.node.body if isinstance(s, ast.Assign)]
        bases = ", ".join(f"`{ast.unparse(base)}`" for base in found.node.bases)
        rows.append(f"| `{name}` | {bases} | {''.join(codes)} | {' '.join(found.words.split())} |")
    return "\n".join(rows) + "\n"


def of_lifespan() -> str:
    """What a service imports."""
    body = ast.parse((ROOT / "asgi" / "lifespans.py").read_text(encoding="utf-8")).body
    *shown, made = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "lifespan"]
    calls = code(*(signature(one.name, one.args, one.returns) for one in shown))
    return f"## Services\n\n### keylanes.asgi.lifespan\n\n{calls}\n{words(made)}\n"


def of_aliases() -> str:
    """One row for each short name."""
    rows = ["| name | is | |", "|---|---|---|"]
    for name, place in ALIASES.items():
        body = ast.parse((ROOT / place).read_text(encoding="utf-8")).body
        for node, below in zip(body, [*body[1:], None], strict=True):
            match node:
                case ast.Assign([ast.Name(target)], value) | ast.AnnAssign(ast.Name(target), _, value) if (
                    target == name and value is not None
                ):
                    meaning = ast.unparse(value).replace("|", "\\|")
                    rows.append(f"| `{name}` | `{meaning}` | {text_of(below)} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """The whole page."""
    places = sources()
    parts = [INTRODUCTION]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        if title == "Errors":
            parts.append(
                "`error.exit_code` is the exit code: of `keylanes run`, `app.run()` and a service with "
                "`keylanes.asgi.lifespan`, which end with it ([exit-codes.md](exit-codes.md)). Errors without one end "
                "no application.\n"
            )
            parts.append(of_errors(names, places))
            continue
        for name in names:
            found = described(name, places[name])
            if isinstance(found.node, ast.ClassDef):
                parts.append(of_class(found))
            else:
                parts.append(f"### {name}\n\n{code(f'{name}: bool')}\n{found.words}\n")
    parts.append(of_lifespan())
    exported = ", ".join(f"`{name}`" for name in ALIASES if name in places)
    parts += [f"## Types in signatures\n\nShort names. `keylanes` exports of them: {exported}.\n", of_aliases()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
