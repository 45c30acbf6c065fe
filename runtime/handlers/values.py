"""Values of records: bytes to what a handler's annotation asks for, and back. Never pickle.

``bytes`` and ``bytearray`` pass as they are, ``str`` is UTF-8, everything else that msgspec knows (Struct, dataclass,
dict, list, int, …) is JSON. A record without a value decodes only for an annotation that allows None.
"""

import types
import typing
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ...errors import DecodeFailed, SettingsError, caused


class Codec(Protocol):
    """How values are read and written. Both methods raise an exception for what they can't convert."""

    def decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        """A function from bytes to a value of the annotated type; raises TypeError for an impossible annotation."""

    def encode(self, value: Any) -> bytes:
        """The bytes of a value."""


class JsonCodec:
    """The default: bytes and str as they are, everything else as JSON by msgspec."""

    name = "json"

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()

    def decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        """See Codec."""
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
        return self._encoder.encode(value)

    def encoder(self, annotation: Any) -> Callable[[Any], bytes]:
        """What ``decoder`` of the same annotation reads: a str as it is only where nothing else is asked for. The
        function raises TypeError for a value of another type that could be read as one of this.
        """
        if annotation not in (bytes, bytearray, str):
            return self._encoder.encode
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


def codec_name(codec: Codec) -> str:
    """What a codec is called in our logs: its ``name`` if it has one, else its class."""
    return str(getattr(codec, "name", None) or type(codec).__qualname__)


def is_optional(annotation: Any) -> bool:
    """Whether None is a value of a type."""
    return annotation is not Any and _without_none(annotation)[1]


def _decodable(annotation: Any) -> Any:
    """The annotation, None as anything; raises TypeError when there is a type in it that msgspec does not know.

    Its decoders take such a type and then fail on every value.
    """
    annotation = Any if annotation is None else annotation
    todo: list[Any] = [msgspec.inspect.type_info(annotation)]
    seen: set[int] = set()
    while todo:
        part = todo.pop()
        if isinstance(part, msgspec.inspect.CustomType):
            raise TypeError(f"{part.cls!r} is no type of data")
        if isinstance(part, tuple):
            todo += part
        elif isinstance(part, msgspec.Struct) and id(part) not in seen:  # a type may refer to itself
            seen.add(id(part))
            todo += [getattr(part, field) for field in part.__struct_fields__]
    return annotation


def value_decoder(annotation: Any, codec: Codec, where: str) -> Callable[[bytes | None], Any]:
    """A function from a record's value to the handler's argument; it raises DecodeFailed.

    Raises SettingsError now when the annotation can't be decoded at all.
    """
    wanted, allows_none = _without_none(annotation)
    # A null inside the value is one, too, for our own codecs. Others are asked for what they know: a class.
    takes_null = isinstance(codec, JsonCodec | MsgpackCodec) and wanted not in (Any, bytes, bytearray, str)
    try:
        decode = codec.decoder(annotation if allows_none and takes_null else wanted)
    except Exception as error:  # noqa: BLE001  # a codec of a user may raise anything
        is_pydantic = hasattr(wanted, "model_validate_json")
        what = (
            "a model of pydantic needs a codec of its own"
            if is_pydantic
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


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """The annotation without None, and whether None was allowed."""
    if annotation is Any:
        return annotation, True
    if annotation is None or annotation is type(None):
        return Any, True
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        members = [a for a in typing.get_args(annotation) if a is not type(None)]
        allows_none = len(members) < len(typing.get_args(annotation))
        return (members[0] if len(members) == 1 else typing.Union[tuple(members)]), allows_none  # noqa: UP007  # the members are known only here
    return annotation, False


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
