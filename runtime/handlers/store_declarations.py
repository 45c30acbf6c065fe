"""Annotations of a handler's state, checked: from ``State[int]`` to a declared store."""

import typing
from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from ...brokers.options import Options
from ...errors import SettingsError
from ...state.keys import MAP_KEY_TYPES
from .annotations import is_optional, is_union, plain
from .stores import MapState, State, StoreDeclaration
from .values import Codec, JsonCodec, check_codec, codec_name

TTL_MS_MAX: Final = 100 * 366 * 86_400_000
NAME_CHARS_MAX: Final = 100


class Store(Options, frozen=True, kw_only=True):
    """Options of a store, for ``Annotated``.

    ``name``: the name of the store; by default the name of the parameter. ``ttl_ms``: how long a value is visible, in
    the time of records, for a replay to see the same. A value put by a record with timestamp t is visible to records
    with timestamps below t + ttl_ms. None: no limit. ``codec``: the codec of the values; by default JSON.
    """

    name: str | None = None
    ttl_ms: int | None = None
    codec: Codec | None = None


def is_store(annotation: Any) -> bool:
    """Whether an annotation names ``State`` or ``MapState``, in a correct form or a wrong one."""
    bare = typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation
    if is_union(bare):
        return any(is_store(part) for part in typing.get_args(bare))
    return bare in (State, MapState) or typing.get_origin(bare) in (State, MapState)


def declare_store(parameter: str, annotation: Any, where: str) -> StoreDeclaration:
    """Check the annotation of a handler's parameter; raises SettingsError."""
    options = Store()
    bare = annotation
    if typing.get_origin(annotation) is Annotated:
        bare, *notes = typing.get_args(annotation)
        options = next((note for note in notes if isinstance(note, Store)), options)
        if Store in notes:
            raise SettingsError(
                f"{where}: parameter {parameter}: Store is called: Annotated[State[int], Store(name=…)]"
            )
    name = options.name or parameter
    where = f"{where}: store {name!r}"
    if not name.isascii() or not all(c.isalnum() or c in "._-" for c in name) or len(name) > NAME_CHARS_MAX:
        raise SettingsError(f"{where}: a store's name has 1 to {NAME_CHARS_MAX} of a-z A-Z 0-9 . _ -")
    if options.ttl_ms is not None and not (isinstance(options.ttl_ms, int) and 1 <= options.ttl_ms <= TTL_MS_MAX):
        raise SettingsError(f"{where}: ttl_ms is 1 to {TTL_MS_MAX}, or None; seen {options.ttl_ms}")
    if is_union(bare):
        raise SettingsError(f"{where}: a store is always there: State[int], not in a union; seen {bare!r}")
    wanted = typing.get_args(bare)
    is_map = typing.get_origin(bare) is MapState
    if not wanted:
        raise SettingsError(f"{where}: it needs its types: State[int], MapState[str, int]; seen {bare!r}")
    key_type = ""
    if is_map:
        key_type = next((kind for kind, known in MAP_KEY_TYPES.items() if known is wanted[0]), "")
        if not key_type:
            raise SettingsError(f"{where}: a map's keys are str, bytes or int; seen {wanted[0]!r}")
    value = plain(wanted[-1])
    if is_optional(value):
        raise SettingsError(f"{where}: None says that there is no value, so it can't be one; seen {value!r}")
    check_codec(where, options.codec)
    codec = options.codec or JsonCodec()
    is_sure = isinstance(codec, JsonCodec) and value in (int, str, bytes, bool)
    try:
        decode, value_type = codec.decoder(value), shape_of(value)
    except TypeError as error:
        raise SettingsError(f"{where}: values can't be decoded as {value!r}: {error}") from None
    return StoreDeclaration(
        name=name,
        kind="map" if is_map else "value",
        key_type=key_type,
        value_type=value_type,
        ttl_ms=options.ttl_ms,
        codec=codec,
        encode=codec.encoder(value) if isinstance(codec, JsonCodec) else codec.encode,
        decode=decode,
        sure_type=value if is_sure else None,
    )


def check_store(app: str, declared: Iterable[StoreDeclaration], name: str, kind: Any) -> None:
    """Raises SettingsError where an application has declared no store ``name``, or declared the store with values of
    another kind; ``kind`` None: any.
    """
    known = {store.name: store for store in declared}
    if name not in known:
        raise SettingsError(f"application {app!r} has no store {name!r}; it has {sorted(known)}: name one of them")
    if kind is not None and shape_of(kind) != known[name].value_type:
        raise SettingsError(
            f"values of store {name!r} are declared as {known[name].value_type}; seen {kind!r}: ask for the "
            "type that the handler's parameter has"
        )


def shape_of(annotation: Any) -> str:
    """The kind of data of a type. A start compares the kind with the log, to notice a changed type of a store: fields
    of a struct may change, an int may not become a text.
    """
    annotation = plain(annotation)
    if annotation in (bytes, bytearray):
        return "bytes"
    info = msgspec.inspect.type_info(annotation)
    while isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    if isinstance(info, msgspec.inspect.StructType):
        return "array" if info.array_like else "object"
    if isinstance(info, msgspec.inspect.DataclassType | msgspec.inspect.TypedDictType | msgspec.inspect.DictType):
        return "object"
    arrays = msgspec.inspect.CollectionType | msgspec.inspect.TupleType | msgspec.inspect.NamedTupleType
    if isinstance(info, arrays):
        return "array"
    if annotation is not str and isinstance(info, msgspec.inspect.StrType | msgspec.inspect.BytesType):
        return "quoted"  # a value with a constraint is JSON, not the plain text or bytes
    return type(info).__name__.removesuffix("Type").lower()


def codec_of(declaration: StoreDeclaration) -> str:
    """The name of a store's codec, as the logs carry it."""
    return codec_name(declaration.codec)
