"""How a defect is put into the running code: in the place of something that is called alike.

A defect with the signature of before raises a TypeError where it is called, and what is found then is that accident.
"""

import inspect
import pkgutil
from collections.abc import Callable
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
