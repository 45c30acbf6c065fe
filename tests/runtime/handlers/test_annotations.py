"""Types as users spell them, and values that JSON can't write."""

import math
from typing import Annotated, Any, NewType, Optional, Union

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from keylanes import DecodeFailed, JsonCodec, MsgpackCodec, SettingsError
from keylanes.runtime.handlers.annotations import is_optional
from keylanes.runtime.handlers.handler import declare
from keylanes.runtime.handlers.store_declarations import shape_of
from keylanes.runtime.handlers.values import value_decoder

from ...tiers.marks import tier

pytestmark = tier("check")


class Row(msgspec.Struct):
    """A value."""

    a: float | None


class Model:
    """Looks like a model of pydantic."""

    @classmethod
    def model_validate_json(cls, text: bytes) -> "Model":
        """As there."""
        return cls()


class ByClass:
    """A user's codec, which knows classes."""

    def decoder(self, annotation: Any) -> Any:
        """See Codec."""
        assert annotation is Row
        return lambda value: msgspec.json.decode(value, type=Row)

    def encode(self, value: Any) -> bytes:
        """See Codec."""
        return msgspec.json.encode(value)


new_type: Any = NewType  # what type checkers refuse to be named here users may still write
alias: Any = TypeAliasType
Named = new_type("Named", Row)
Alias = alias("Alias", Row)
Gone = alias("Gone", Row | None)
ROWS = [Row, Named, Alias, Annotated[Row, "a note"], Annotated[Annotated[Alias, "one"], "two"]]
OPTIONAL = [
    Row | None,
    Optional[Row],  # noqa: UP045  # as users may write it
    Union[None, Row],  # noqa: UP007  # as users may write it
    Gone,
    Annotated[Row | None, "a note"],
    Annotated[Annotated[Gone, "one"], "two"],
    Annotated[Row, "a note"] | None,
    Union[Named, None],  # noqa: UP007  # a NewType has no | in 3.11's annotations of strings
    new_type("Maybe", Gone),
]


@pytest.mark.parametrize("codec", [JsonCodec(), ByClass()], ids=["ours", "a user's"])
@pytest.mark.parametrize(("spellings", "takes_none"), [(ROWS, False), (OPTIONAL, True)])
def test_all_spellings_of_a_type_behave_alike(codec: Any, spellings: list[Any], takes_none: bool) -> None:
    """A value is read as the type, also by a codec that knows classes; None is a value where the type has it."""
    for spelling in spellings:
        decode = value_decoder(spelling, codec, "handler f")
        assert decode(b'{"a":1.5}') == Row(1.5), spelling
        assert is_optional(spelling) is takes_none
        if takes_none:
            assert decode(None) is None
        else:
            with pytest.raises(DecodeFailed, match="has no value"):
                decode(None)


@pytest.mark.parametrize("kind", [bytes, bytearray, str])
def test_bytes_and_text_stay_as_they_are_under_every_name(kind: Any) -> None:
    """They are no JSON, in values and in stores."""
    for spelling in (kind, new_type("Raw", kind), alias("Text", kind), Annotated[kind, "a note"]):
        read = JsonCodec().decoder(spelling)(b"as it is")
        assert (type(read), read) == (kind, "as it is" if kind is str else b"as it is")
        assert JsonCodec().encoder(spelling)(read) == b"as it is"
        assert shape_of(spelling) == shape_of(kind)


@pytest.mark.parametrize(("item", "named"), [(Row, "Row"), (list[int], r"list\[int\]"), (Row | None, r".*Row \| None")])
def test_a_list_of_values_is_refused(item: Any, named: str) -> None:
    """It may mean a batch, which there is not, or one array; both forms are named."""

    def handle(rows: Any) -> None: ...

    handle.__annotations__["rows"] = list[item]
    both = rf"one record at a time.*one by one write {named}, for one record .* array write tuple\[{named}, \.\.\.\]"
    with pytest.raises(SettingsError, match=both):
        declare(handle, "orders")


@pytest.mark.parametrize("returned", [Model, Model | None, list[Model], Annotated[Model, "a note"]])
def test_a_model_of_pydantic_is_refused_where_it_is_declared(returned: Any) -> None:
    """Our codecs can't write it; a codec of the user's may."""

    def handle(value: bytes) -> Any: ...

    handle.__annotations__["return"] = returned
    with pytest.raises(SettingsError, match="a model of pydantic needs a codec of its own"):
        declare(handle, "orders", to="out")
    assert declare(handle, "orders", to="out", codec=_Any()).to == "out"


class _Any:
    """A codec of the user's."""

    def decoder(self, annotation: Any) -> Any:
        """See Codec."""
        return bytes

    def encode(self, value: Any) -> bytes:
        """See Codec."""
        return b""


_NUMBERS = st.none() | st.floats() | st.integers()
_VALUES = st.recursive(
    _NUMBERS | st.text(max_size=5) | st.just("null") | st.builds(Row, st.none() | st.floats()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def _has_odd_float(value: Any) -> bool:
    """The plain twin of the look at what is encoded."""
    if isinstance(value, Row):
        return _has_odd_float(value.a)
    if isinstance(value, dict):
        return any(map(_has_odd_float, value.values()))
    if isinstance(value, list):
        return any(map(_has_odd_float, value))
    return isinstance(value, float) and not math.isfinite(value)


def test_messagepack_has_such_numbers() -> None:
    """So the hint is right."""
    codec = MsgpackCodec()
    assert math.isnan(codec.decoder(float)(codec.encode(math.nan)))


@given(_VALUES)
def test_what_json_has_no_number_for_is_refused(value: Any) -> None:
    """NaN and infinities, at any depth, in outputs and in stores. Text is sent as it is."""
    if isinstance(value, str):
        return
    for encode in (JsonCodec().encode, JsonCodec().encoder(Any), JsonCodec().encoder(list[Row])):
        if _has_odd_float(value):
            with pytest.raises(ValueError, match=r"NaN or an infinity.*give None, or declare codec=MsgpackCodec\(\)"):
                encode(value)
        else:
            assert msgspec.json.decode(encode(value)) == msgspec.to_builtins(value)
