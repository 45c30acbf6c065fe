"""How a defect is put into the running code: in the place of something that is called alike.

A defect with the signature of before raises a TypeError where it is called, and what is found then is that accident.
"""

import inspect
import linecache
import pkgutil
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest


class Misfit(AssertionError):
    """A replacement is not called as what it replaces: plant this defect anew."""


class Shape(NamedTuple):
    """How something is called where it stands: name, kind and whether there is a default of each parameter.

    ``use``: it is read as a property is, or called, or awaited; ``on_class``: also without an instance.
    """

    use: str
    parameters: tuple[tuple[str, str, bool], ...]
    on_class: bool

    def __str__(self) -> str:
        names = (f"{name}{'=…' if has_default else ''} ({kind})" for name, kind, has_default in self.parameters)
        where = "" if self.on_class else " on an instance"
        return f"{self.use}{where} with {', '.join(names) or 'nothing'}"

    def serves(self, before: "Shape") -> bool:
        """Whether whatever is done with the one can be done with this one."""
        return self[:2] == before[:2] and self.on_class >= before.on_class


class Planting:
    """Replaces attributes until the patch is undone; raises Misfit for what is called in another way."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def setattr(self, owner: Any, name: str, new: Any) -> None:
        """Give an attribute of a class or module another value; ``owner`` may be its dotted name."""
        owner = pkgutil.resolve_name(owner) if isinstance(owner, str) else owner
        old = inspect.getattr_static(owner, name)
        before, after = shape_of(owner, old), shape_of(owner, new)
        can_tell = before is not None and (after is not None or not callable(new))
        if can_tell and not (after and before and after.serves(before)):
            raise Misfit(f"{owner.__name__}.{name} is {before}; the defect {new!r} is {after or 'a value'}")
        self._put(owner, name, new)

    def _put(self, owner: Any, name: str, new: Any) -> None:
        self._patch.setattr(owner, name, new)


Put: TypeAlias = Callable[[Planting], None]
"""Plants a defect."""


class Tripping(Planting):
    """Whatever is planted raises a TypeError when it is called, as a defect of an outdated signature does. What is not
    called stays: it may be a defect's way into another process.
    """

    def _put(self, owner: Any, name: str, new: Any) -> None:
        function = _function_of(new)
        if isinstance(new, property):
            super()._put(owner, name, property(_trip))
        elif callable(function):
            super()._put(owner, name, staticmethod(_trip_later if inspect.iscoroutinefunction(function) else _trip))


def _trip(*arguments: object, **named: object) -> None:
    raise TypeError("begin() takes 2 positional arguments but 3 were given")


async def _trip_later(*arguments: object, **named: object) -> None:
    _trip()


def shape_of(owner: Any, value: Any) -> Shape | None:
    """The shape of an attribute as it stands in its class or module; None: it is no function, or one in C."""
    if isinstance(value, property):
        return Shape("read", (), False)
    function = _function_of(value)
    if not callable(function):
        return None
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except ValueError:
        return None
    is_method = inspect.isclass(owner) and inspect.isfunction(value)
    use = "awaited" if inspect.iscoroutinefunction(function) else "called"
    asked = [(p.name, p.kind.description, p.default is not p.empty) for p in parameters]
    return Shape(use, tuple(asked[is_method or isinstance(value, classmethod) :]), not is_method)


def _function_of(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


OURS = ("keylanes", "tests")
TESTS = Path(__file__).resolve().parents[1]


def finding(error: BaseException) -> str:
    """What an error says if it is a finding: an assertion, or an error of ours. A KeyError is an accident."""
    is_ours = type(error).__module__.split(".")[0] == OURS[0]
    return said_of(error) if is_ours or isinstance(error, AssertionError | pytest.fail.Exception) else ""


def said_of(error: BaseException) -> str:
    """The kind of an error, its text, and the line of the tests in which it came."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = ["", *(frame.line for frame in frames if TESTS in Path(frame.filename).resolve().parents)]
    return f"{type(error).__name__}: {error}\n{lines[-1]}"


def everywhere(patch: Planting, old: Any, new: Any) -> None:
    """Put a function in the place of another one wherever it was imported."""
    places = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in OURS]
    found = [(module, name) for module in places for name, value in list(vars(module).items()) if value is old]
    assert found, f"{old!r} is nowhere: plant this defect anew"
    for module, name in found:
        patch.setattr(module, name, new)


def mutated(function: Callable[..., Any], *pieces: tuple[str, str]) -> Any:
    """A function with pieces of its source replaced, each of which occurs once."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in pieces:
        assert source.count(old) == 1, f"{function.__qualname__} no longer holds {old!r} once: plant this defect anew"
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    name = f"<{function.__qualname__} with a defect, {hash(source):x}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name  # inspect finds it there
    code = compile(source, name, "exec", dont_inherit=True)
    exec(code, inspect.unwrap(function).__globals__, made)  # noqa: S102  # a defect is a change of the very source
    return made[function.__name__]


def change(patch: Planting, owner: Any, name: str, *pieces: tuple[str, str]) -> None:
    """Plant a changed source: of a method in its class, of a function wherever it is known."""
    before = getattr(owner, name)
    after = mutated(before, *pieces)
    if inspect.isclass(owner):
        patch.setattr(owner, name, after)
    else:
        everywhere(patch, before, after)


def changed(owner: Any, name: str, *pieces: tuple[str, str]) -> Put:
    """The same as a defect by itself."""

    def put(patch: Planting) -> None:
        change(patch, owner, name, *pieces)

    return put
