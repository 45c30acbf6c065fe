"""The types in the annotations of a handler or a store: all spellings of one type behave alike."""

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec


def plain(annotation: Any) -> Any:
    """The type behind an alias, a NewType or ``Annotated``. A constraint of msgspec stays."""
    origin = typing.get_origin(annotation)
    if hasattr(annotation, "__supertype__"):  # a NewType
        return plain(annotation.__supertype__)
    if hasattr(origin, "__value__"):  # an alias with types of its own: type Pair[T] = …
        return plain(origin.__value__[typing.get_args(annotation)])
    if hasattr(annotation, "__value__"):  # an alias: type Row = …
        return plain(annotation.__value__)
    if origin is Annotated:
        kind, *notes = typing.get_args(annotation)
        constraints = [note for note in notes if isinstance(note, msgspec.Meta)]
        return Annotated[plain(kind), *constraints] if constraints else plain(kind)
    return annotation


def without_none(annotation: Any) -> tuple[Any, bool]:
    """The plain type without None, and whether the annotation allows None."""
    annotation = plain(annotation)
    if annotation is Any:
        return annotation, True
    if annotation is None or annotation is type(None):
        return Any, True
    if typing.get_origin(annotation) is Annotated:
        kind, *constraints = typing.get_args(annotation)
        wanted, allows_none = without_none(kind)
        return Annotated[wanted, *constraints], allows_none
    if not is_union(annotation):
        return annotation, False
    members = [without_none(member) for member in typing.get_args(annotation) if member is not type(None)]
    allows_none = len(members) < len(typing.get_args(annotation)) or any(allowed for _, allowed in members)
    return typing.Union[tuple(wanted for wanted, _ in members)], allows_none  # noqa: UP007  # known only here


def is_optional(annotation: Any) -> bool:
    """Whether None is a value of a type; False for Any."""
    return plain(annotation) is not Any and without_none(annotation)[1]


def is_union(annotation: Any) -> bool:
    """Whether several types are allowed."""
    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union


def classes_in(annotation: Any) -> Iterator[type]:
    """The classes in an annotation, at any depth."""
    annotation = plain(annotation)
    if isinstance(annotation, type) and not typing.get_origin(annotation):
        yield annotation
    for part in typing.get_args(annotation):
        yield from classes_in(part)
