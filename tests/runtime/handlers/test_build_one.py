"""The fast way of building one output, beside the one that builds all of them."""

from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.brokers.protocol import Headers
from keylanes.errors import OutputRefused
from keylanes.keyrange.hashing import (
    hash_chain_int,
    hash_chain_long,
    hash_chain_long_int_bytes,
    hash_chain_text,
)
from keylanes.runtime.handlers.handler import Handler, declare
from keylanes.runtime.handlers.outputs import (
    Destination,
    UnknownDestination,
    build,
    build_one,
    outputs_returned,
    place_of,
    result_of,
)

from ...tiers.marks import tier

pytestmark = tier("check")


class Record(NamedTuple):
    """A record as read."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


PLACE = place_of("orders", 3, b"shop app")


async def _to_out(value: bytes) -> bytes:
    return value


async def _nowhere(value: bytes) -> None: ...


_HANDLERS = [declare(_to_out, "orders", to="out"), declare(_nowhere, "orders")]
_values = st.one_of(
    st.none(), st.binary(max_size=40), st.text(max_size=10), st.integers(), st.lists(st.integers(), max_size=3),
    st.builds(object),
)  # fmt: skip


@given(
    value=_values,
    key=st.none() | st.binary(max_size=12),
    offset=st.integers(0, 1 << 62),
    timestamp=st.integers(-1, 1 << 62),
    handler=st.sampled_from(_HANDLERS),
    known=st.sampled_from([{}, {"out": Destination(1, 400, False)}, {"out": Destination(7, 290, True)}]),
)
def test_one_output_is_what_build_makes_of_it(
    value: object,
    key: bytes | None,
    offset: int,
    timestamp: int,
    handler: Handler,
    known: dict[str, Destination],
) -> None:
    """The same, or nothing: then ``build`` makes it, or says what is wrong."""
    record = Record(offset, timestamp, key, b"value", ())
    try:
        fast = build_one(value, record, handler, PLACE, known)
    except OutputRefused:
        fast = None
    if fast is None:
        return
    slow = build(outputs_returned(value, handler), record, handler, PLACE, known)
    output, digest, size = fast
    (wanted,) = slow.outputs
    assert output == wanted
    assert (False, digest, size) == (slow.dead, slow.digest, slow.size)
    assert msgspec.structs.replace(slow, outputs=(wanted,)) == result_of(record, output, PLACE.seed)


def test_the_usual_case_is_the_fast_one() -> None:
    """A value for a record with a key is built without the rest, to whichever partition; one not known, not."""
    record = Record(7, 1, b"k", b"value", ())
    for partitions in (1, 8):
        built = build_one(b"x", record, _HANDLERS[0], PLACE, {"out": Destination(partitions, 1_000, False)})
        assert built is not None
        assert built[0].value == b"x"
    assert build_one(b"x", record, _HANDLERS[0], PLACE, {}) is None
    with pytest.raises(UnknownDestination):
        build(outputs_returned(b"x", _HANDLERS[0]), record, _HANDLERS[0], PLACE, {})


@given(
    offset=st.integers(0, (1 << 63) - 1), i=st.integers(0, (1 << 31) - 1), text=st.text(), seed=st.integers(0, 1 << 63)
)
def test_three_hashes_at_one_stroke(offset: int, i: int, text: str, seed: int) -> None:
    """A long, an int and a text in turn."""
    slow = hash_chain_text(text, hash_chain_int(i, hash_chain_long(offset, seed)))
    assert hash_chain_long_int_bytes(offset, i, text.encode(), seed) == slow
