"""A failing plan is made smaller, as long as it fails in the same way: delta debugging over all that it consists of.

Knows of plans only that they are structs (msgspec's, or dataclasses) whose tuples of structs are lists of what happens:
parts are left out, chunk by chunk and then one by one, and what is left is made simpler, value by value. A failure is
the same when its ``kind`` is: the exception's type and its first words without numbers.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

P = TypeVar("P")

RUNS_MAX = 400
"""So often a plan is run at most while it is made smaller."""
KIND_WORDS = 5

Path = tuple[str | int, ...]
"""Where something stands in a plan: names of fields and places in tuples."""


class Shrunk(NamedTuple):
    """What came of it: the smallest plan that fails in the same way, and how often one was run to find it."""

    plan: Any
    runs: int


def kind_of(error: BaseException) -> str:
    """The exception's type and its first words, without the numbers, which change when something is left out."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    reason = getattr(error, "reason", None)  # what a world wraps to tell the story with it
    return kind_of(reason) if isinstance(reason, BaseException) else describe_kind(type(error).__name__, str(error))


def describe_kind(name: str, text: str) -> str:
    """The same of an exception that was told in words."""
    words = re.sub(r"\W*\d[\d.]*\W*", " ", text.partition("\n")[0]).split()
    return " ".join([f"{name}:", *words[:KIND_WORDS]])


def shrink(plan: P, kind: str, failure: Callable[[P], str | None], runs_max: int = RUNS_MAX) -> Shrunk:
    """The smallest plan found that fails with ``kind``; ``failure`` runs a plan and tells how it fails, or None."""
    search = _Search(plan, kind, failure, runs_max)
    size = None
    while search.runs < runs_max and size != (size := (parts_of(search.plan), search.runs_kept)):
        for path in sorted(lists_in(search.plan), key=len):
            search.leave_out(path)
        search.simplify()
    return Shrunk(search.plan, search.runs)


def parts_of(value: Any) -> int:
    """How many things a plan consists of: the members of all its lists."""
    return sum(len(_get(value, path)) for path in lists_in(value))


def lists_in(value: Any, path: Path = ()) -> list[Path]:
    """Where the lists of structs stand, the outer before the inner ones."""
    found: list[Path] = []
    for name, child in _fields(value):
        if isinstance(child, tuple | list) and child and _is_struct(child[0]):
            found.append((*path, name))
            for place, member in enumerate(child):
                found += lists_in(member, (*path, name, place))
        elif _is_struct(child):
            found += lists_in(child, (*path, name))
    return found


class _Search:
    """The smallest plan so far, and how often one was run."""

    def __init__(self, plan: Any, kind: str, failure: Callable[[Any], str | None], runs_max: int) -> None:
        self.plan, self.kind, self.failure, self.runs_max = plan, kind, failure, runs_max
        self.runs = 0
        self.runs_kept = 0
        self._seen = {repr(plan)}

    def keeps(self, smaller: Any) -> bool:
        """Try a plan, and go on with it when it fails in the same way."""
        if self.runs >= self.runs_max or repr(smaller) in self._seen:
            return False
        self._seen.add(repr(smaller))
        self.runs += 1
        if self.failure(smaller) != self.kind:
            return False
        self.plan = smaller
        self.runs_kept += 1
        return True

    def leave_out(self, path: Path) -> None:
        """Members of one list: first all, then ever smaller chunks, from the end, as what is late matters least."""
        try:
            members = _get(self.plan, path)
        except IndexError:  # the list stood in something that was left out meanwhile
            return
        chunk = len(members)
        while chunk >= 1:
            end = len(members)
            while end > 0:
                first = max(0, end - chunk)
                if self.keeps(_put(self.plan, path, members[:first] + members[end:])):
                    members = _get(self.plan, path)
                end = first
            chunk //= 2

    def simplify(self) -> None:
        """Each value by itself: the first simpler one with which the plan still fails."""
        for path in list(_values_in(self.plan)):
            value = _get(self.plan, path)
            for gone in value if isinstance(value, dict) else ():
                self.keeps(_put(self.plan, path, {k: v for k, v in _get(self.plan, path).items() if k != gone}))
            for simpler in _simpler(self.plan, path):
                try:
                    if self.keeps(_put(self.plan, path, simpler)):
                        break
                except (TypeError, ValueError):  # a struct that checks its values has refused this one
                    continue


def _values_in(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where the plain values stand."""
    for name, child in _fields(value):
        if _is_struct(child):
            yield from _values_in(child, (*path, name))
        elif isinstance(child, tuple | list) and child and _is_struct(child[0]):
            for place, member in enumerate(child):
                yield from _values_in(member, (*path, name, place))
        else:
            yield (*path, name)


def _simpler(plan: Any, path: Path) -> Iterator[Any]:
    """Simpler values than the one that stands there, the simplest first."""
    value, name = _get(plan, path), path[-1]
    if (
        name == "seed" or value is None or isinstance(value, dict)
    ):  # the seed orders what happens at once; it is nothing that happens
        return
    default = _default(_get(plan, path[:-1]), name)
    if default is not dataclasses.MISSING and default != value:
        yield default
    if isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, int | float):
        simpler = [type(value)(0), type(value)(1), type(value)(int(value))]
        yield from (each for each in dict.fromkeys(simpler) if abs(each) < abs(value))


def _is_struct(value: Any) -> bool:
    return isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _fields(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        return [(name, getattr(value, name)) for name in value.__struct_fields__]
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init]


def _default(struct: Any, name: str | int) -> Any:
    if isinstance(struct, msgspec.Struct):
        found: Any = next(field for field in msgspec.structs.fields(struct) if field.name == name)
        default = found.default
        return dataclasses.MISSING if default is msgspec.NODEFAULT else default
    return next(field for field in dataclasses.fields(struct) if field.name == name).default


def _get(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step] if isinstance(step, int) else getattr(value, step)
    return value


def _put(value: Any, path: Path, new: Any) -> Any:
    """A copy with something else at this place."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return (*value[:step], _put(value[step], rest, new), *value[step + 1 :])
    changed = {step: _put(getattr(value, step), rest, new)}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **changed)
    return dataclasses.replace(value, **changed)
