"""Values of records: bytes to the type of a handler's annotation, and back. Never pickle.

``bytes`` and ``bytearray`` pass unchanged, ``str`` is UTF-8, everything else that msgspec knows (Struct, dataclass,
dict, list, int, …) is JSON. A record without a value decodes only for an annotation that allows None.
"""

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from ...errors import DecodeFailed, SettingsError, caused
from .annotations import plain, without_none

_LARGEST: Final = (b"\xcb\x7f", b"\xcb\xff")
"""How MessagePack begins NaN, the infinities, and numbers beyond 2**1009."""


class Codec(Protocol):
    """How values are read and written. Both methods raise an exception for a value that they can't convert."""

    def decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        """A function from bytes to a value of the annotated type; raises TypeError for an impossible annotation."""

    def encode(self, value: Any) -> bytes:
        """The bytes of a value."""


class JsonCodec:
    """The default: bytes and str unchanged, everything else as JSON by msgspec. JSON has no NaN and no infinities:
    ``encode`` raises ValueError for NaN and infinities.
    """

    name = "json"

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()

    def decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        """See Codec."""
        annotation = plain(annotation)
        if annotation is bytes:
            return bytes
        if annotation is bytearray:
            return bytearray
        if annotation is str:
            return bytes.decode
        return msgspec.json.Decoder(_decodable(annotation)).decode

    def encode(self, value: Any) -> bytes:
        """See Codec."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        return self._json(value)

    def _json(self, value: Any) -> bytes:
        data = self._encoder.encode(value)
        if b"null" in data and _has_no_number(value):
            raise ValueError(
                "it holds NaN or an infinity, which JSON has not, and null would be written in its place: give None, "
                "or declare codec=MsgpackCodec()"
            )
        return data

    def encoder(self, annotation: Any) -> Callable[[Any], bytes]:
        """A function from values to bytes that ``decoder`` of the same annotation reads: a str is written unchanged
        only for the annotation ``str``. The function raises TypeError for any value but a str where the annotation is
        ``str``, and for any value but a bytes-like object where the annotation is ``bytes`` or ``bytearray``.
        """
        annotation = plain(annotation)
        if annotation not in (bytes, bytearray, str):
            return self._json if _may_hold_float(annotation) else self._encoder.encode
        allowed = (str,) if annotation is str else (bytes, bytearray, memoryview)

        def encode(value: Any) -> bytes:
            if not isinstance(value, allowed):
                raise TypeError(f"{annotation.__name__} is asked for; seen {type(value).__name__}")
            return self.encode(value)

        return encode


class MsgpackCodec:
    """Everything as msgpack by msgspec; bytes and str too."""

    name = "msgpack"

    def decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        """See Codec."""
        return msgspec.msgpack.Decoder(_decodable(annotation)).decode

    def encode(self, value: Any) -> bytes:
        """See Codec."""
        return msgspec.msgpack.encode(value)


def check_codec(where: str, codec: object) -> None:
    """Raises SettingsError for an object that is no codec, with the right form; None is the default."""
    does_both = all(callable(getattr(codec, method, None)) for method in ("decoder", "encode"))
    if codec is None or (does_both and not isinstance(codec, type)):
        return
    ours = {"json": "JsonCodec()", "msgpack": "MsgpackCodec()"}
    meant = f"{codec.__name__}()" if isinstance(codec, type) else ours.get(str(codec).lower(), "MyCodec()")
    raise SettingsError(
        f"{where}: codec is an object with decoder() and encode(): JsonCodec(), MsgpackCodec() or one of your own; "
        f"seen {codec!r}: write codec={meant}"
    )


def is_pydantic(kind: Any) -> bool:
    """Whether a class is a model of pydantic; keylanes' codecs don't know pydantic."""
    return hasattr(kind, "model_validate_json")


def codec_name(codec: Codec) -> str:
    """The name of a codec in keylanes' logs: the attribute ``name``, else the name of the class."""
    return str(getattr(codec, "name", None) or type(codec).__qualname__)


def _decodable(annotation: Any) -> Any:
    """The annotation; Any for None. Raises TypeError for a type that msgspec does not know.

    A decoder of msgspec accepts an unknown type and then fails on every value.
    """
    annotation = Any if annotation is None else annotation
    for part in _parts(annotation):
        if isinstance(part, msgspec.inspect.CustomType):
            raise TypeError(f"{part.cls!r} is no type of data")
    return annotation


def _may_hold_float(annotation: Any) -> bool:
    """Whether a value of a type may hold a float."""
    return any(isinstance(part, msgspec.inspect.FloatType | msgspec.inspect.AnyType) for part in _parts(annotation))


def _parts(annotation: Any) -> list[Any]:
    """The msgspec descriptions of a type and of its parts, at any depth."""
    todo: list[Any] = [msgspec.inspect.type_info(annotation)]
    found: list[Any] = []
    seen: set[int] = set()
    while todo:
        part = todo.pop()
        if isinstance(part, tuple):
            todo += part
        elif isinstance(part, msgspec.Struct) and id(part) not in seen:  # a type may refer to itself
            seen.add(id(part))
            found.append(part)
            todo += [getattr(part, field) for field in part.__struct_fields__]
    return found


def _has_no_number(value: Any) -> bool:
    """Whether a float in a value is NaN or an infinity. The bytes of MessagePack rule most values out at once."""
    try:
        packed = msgspec.msgpack.encode(value)
    except (OverflowError, TypeError):
        return _is_no_number(msgspec.to_builtins(value))
    return any(begin in packed for begin in _LARGEST) and _is_no_number(msgspec.to_builtins(value))


def _is_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_is_no_number(each) for each in value.values())
    return isinstance(value, list | tuple) and any(_is_no_number(each) for each in value)


def value_decoder(annotation: Any, codec: Codec, where: str) -> Callable[[bytes | None], Any]:
    """A function from a record's value to the handler's argument; the function raises DecodeFailed.

    Raises SettingsError at once for an annotation that can't be decoded at all.
    """
    annotation = plain(annotation)
    wanted, allows_none = without_none(annotation)
    # For keylanes' codecs a null inside the value is None, too. Other codecs get an annotation that they know: a class.
    takes_null = isinstance(codec, JsonCodec | MsgpackCodec) and wanted not in (Any, bytes, bytearray, str)
    try:
        decode = codec.decoder(annotation if allows_none and takes_null else wanted)
    except Exception as error:  # noqa: BLE001  # a codec of a user may raise anything
        what = (
            "a model of pydantic needs a codec of its own"
            if is_pydantic(wanted)
            else "use one of these, or a codec of your own"
        )
        refused = SettingsError(
            f"{where}: values can't be decoded as {annotation!r}: {error}; a codec of ours takes bytes, str, int, "
            f"list, dict, dataclasses, TypedDict, msgspec.Struct and the like: {what}: codec=, see docs/mistakes.md"
        )
        raise caused(refused, None)

    if wanted is bytes and isinstance(codec, JsonCodec) and not allows_none:

        def as_it_is(value: bytes | None) -> Any:
            if value is None:
                raise DecodeFailed("the record has no value and the handler asks for bytes")
            return value

        return as_it_is

    def decode_value(value: bytes | None) -> Any:
        if value is None:
            if allows_none:
                return None
            raise DecodeFailed(f"the record has no value and the handler asks for {_name(annotation)}")
        try:
            return decode(value)
        except Exception as error:  # noqa: BLE001  # a codec may raise anything; it is the record's fault, not ours
            raise caused(DecodeFailed(f"the value ({len(value)} bytes) is no {_name(wanted)}: {error}"), error)

    return decode_value


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
