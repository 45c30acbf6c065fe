"""PURE. Structures that users fill in. A new structure checks each field by name, type and bounds.

SettingsError refuses a wrong field in one sentence: the mistake, the value seen, the values allowed, the remedy.
"""

import collections.abc
import difflib
import types
import typing
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from ..errors import SettingsError

WORDS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
"""How truth is written in text, in any case of letters."""

LISTED_MAX: Final = 12
"""An error lists the fields of a structure only when the structure has no more fields."""


class _ByName(msgspec.StructMeta):
    """Refuses an unknown field as SettingsError, with the name that was probably meant."""

    if not TYPE_CHECKING:  # checkers go by the fields

        def __call__(cls, *values: Any, **named: Any) -> Any:  # noqa: N805  # of a metaclass
            """Make a structure."""
            for name in named:
                if name not in cls.__struct_fields__:
                    raise SettingsError(unknown_field(cls, name, f"{cls.__name__}.{name}"))
            try:
                return super().__call__(*values, **named)
            except TypeError as error:
                fields = ", ".join(cls.__struct_fields__[:LISTED_MAX])
                raise SettingsError(f"{cls.__name__}: {error}; its fields are given by name: {fields}") from error


class Options(msgspec.Struct, frozen=True, metaclass=_ByName):
    """The base of structures that users fill in."""

    removed: ClassVar[Mapping[str, str]] = {}
    """Fields of earlier versions, and what took the place of each. A structure with such a field is refused."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(type(self)):
            check(field, getattr(self, field.name), f"{type(self).__name__}.{field.name}")


def check(field: msgspec.structs.FieldInfo, value: Any, where: str) -> None:
    """Raises SettingsError for a value that a field does not take; ``where``: how the value was given."""
    try:
        msgspec.convert(value, field.type)
    except TypeError:
        return  # a type of no data, like a function: the user of the value judges
    except msgspec.ValidationError:
        is_shown = isinstance(value, str | int | float | None) and not (is_sensitive(field) or _is_structure(field))
        seen = repr(value) if is_shown else f"a {type(value).__name__}"
        allowed = words_of(field.type)
        if isinstance(value, str) and bool in _members(field.type):
            allowed += f" (in text also {', '.join(WORDS)})"
        raise SettingsError(f"{where} is {allowed}; seen {seen}; {_way_out(field)}") from None


def from_text(field: msgspec.structs.FieldInfo, text: str) -> Any:
    """Read the value of a field from text. Text without a meaning is returned unchanged: ``check`` refuses the text."""
    kinds = _members(field.type)
    if types.NoneType in kinds and (text == "" or (text.lower() == "none" and not is_sensitive(field))):
        return None
    if bool in kinds:
        return WORDS.get(text.strip().lower(), text)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                return text
    return text


def is_sensitive(field: msgspec.structs.FieldInfo) -> bool:
    """Whether errors hide the value of a field."""
    return "password" in field.name


def _is_structure(field: msgspec.structs.FieldInfo) -> bool:
    """Whether a field takes a structure. A value in place of the structure may be meant for a sensitive field."""
    return any(isinstance(kind, type) and issubclass(kind, msgspec.Struct) for kind in _members(field.type))


def near(name: str, known: Collection[str]) -> str | None:
    """The known name that was probably meant: of similar spelling, or the only known name that continues ``name``."""
    alike = difflib.get_close_matches(name, known, 1, 0.75)
    longer = [one for one in known if one.startswith(f"{name}_")]
    return alike[0] if alike else longer[0] if len(longer) == 1 else None


def unknown_field(kind: type[Options], name: str, where: str) -> str:
    """The text of an error about a name that no field has. ``where``: how the name was given."""
    if name in kind.removed:
        return f"{where} is no setting any more: {kind.removed[name]}; leave it out"
    known = kind.__struct_fields__
    meant = near(name, known)
    fields = ", ".join(known) if len(known) <= LISTED_MAX else "listed in docs/settings.md"
    return f"{kind.__name__} has no field {name!r}; " + (
        f"did you mean {meant}? All are {fields}" if meant else f"its fields are {fields}; leave {name} out"
    )


def words_of(kind: Any) -> str:
    """The values that a type allows, in words."""
    if typing.get_origin(kind) is typing.Annotated:
        bare, *notes = typing.get_args(kind)
        note = next((note for note in notes if isinstance(note, msgspec.Meta)), msgspec.Meta())
        if note.ge is not None and note.le is not None:
            return f"{words_of(bare)} from {note.ge} to {note.le}"
        if note.gt is not None and note.le is not None:
            return f"{words_of(bare)} above {note.gt}, up to {note.le:.0f}"
        return f"{words_of(bare)}, {note.ge} or more" if note.ge is not None else words_of(bare)
    if _is_union(kind):
        return ", or ".join(words_of(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is collections.abc.Callable:
        return "a function"
    known = {bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: "None"}
    return known.get(kind) or f"a {getattr(kind, '__name__', kind)}"


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (types.UnionType, typing.Union)


def _members(kind: Any) -> list[Any]:
    """The plain types in a type."""
    if typing.get_origin(kind) is typing.Annotated:
        return _members(typing.get_args(kind)[0])
    return [one for part in typing.get_args(kind) for one in _members(part)] if _is_union(kind) else [kind]


def _way_out(field: msgspec.structs.FieldInfo) -> str:
    default = field.default
    if default is msgspec.NODEFAULT:
        return "give one"
    shown = f"{type(default).__name__}()" if isinstance(default, msgspec.Struct) else repr(default)
    return f"leave it out for its default, {shown}, or correct it"
