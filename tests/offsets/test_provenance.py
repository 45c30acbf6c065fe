"""The header that says where an output came from, and the digest that a commit event sums up."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.offsets.provenance import (
    DIGEST_MASK,
    HEADER,
    VERSION,
    Origins,
    Provenance,
    decode_provenance,
    encode_provenance,
    output_digest,
    place_seed,
)

VECTORS = Path(__file__).parents[1] / "keyrange" / "golden_xxhash64.json"
"""What Spark computed, see tests/keyrange/make_golden.py."""

GOLDEN = bytes.fromhex("96 01 a7 66 6c 69 67 68 74 73 02 ce 00 05 23 87 00 01")
"""``[1, "flights", 2, 336775, 0, 1]``: bytes that were written once must be read for ever."""

topics = st.text(min_size=1, max_size=12)
partitions = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**63 - 1)
counts = st.integers(0, 2**31 - 1)
EDGES = [edge + near for edge in (0, 1 << 7, 1 << 8, 1 << 16, 1 << 32) for near in (-1, 0, 1) if edge + near >= 0]


def test_the_header_has_its_golden_bytes() -> None:
    """A version, topic, partition, offset, i and n as one msgpack array under a short name."""
    assert HEADER == "kl"
    assert encode_provenance("flights", 2, 336_775, 0, 1) == GOLDEN
    assert decode_provenance(GOLDEN) == Provenance(1, "flights", 2, 336_775, 0, 1)


@given(topics, partitions, offsets, counts, counts)
def test_a_header_comes_back_as_it_was(topic: str, partition: int, offset: int, i: int, n: int) -> None:
    """Every field survives the way to bytes and back."""
    data = encode_provenance(topic, partition, offset, i, n)
    assert decode_provenance(data) == Provenance(VERSION, topic, partition, offset, i, n)


@given(topics, partitions, st.lists(offsets | st.sampled_from(EDGES), min_size=1, max_size=20), st.booleans())
def test_headers_of_records_in_turn_are_those_of_each(
    topic: str, partition: int, places: list[int], is_sorted: bool
) -> None:
    """Whatever the offset of the one before: at all lengths that an offset can have, and on both sides of a block."""
    origins = Origins(topic, partition)
    for offset in sorted(places) if is_sorted else places:
        for near in (offset, offset + 1, offset ^ 1, offset ^ 255):
            assert origins.of(near) == encode_provenance(topic, partition, near, 0, 1)


def test_a_header_cut_off_anywhere_is_refused() -> None:
    """Each shorter prefix raises ValueError that says damaged."""
    for length in range(len(GOLDEN)):
        with pytest.raises(ValueError, match="damaged 'kl' header"):
            decode_provenance(GOLDEN[:length])


@pytest.mark.parametrize(
    "data",
    [
        GOLDEN + b"\x00",
        msgspec.msgpack.encode([1, "flights", 2, 336_775, 0, 1, 9]),
        msgspec.msgpack.encode([1, "flights", 2, 336_775, 0]),
        msgspec.msgpack.encode([1, "flights", "2", 336_775, 0, 1]),
        msgspec.msgpack.encode({"version": 1}),
        msgspec.msgpack.encode([]),
        b"\x96\x01\xa1\xff\x02\x03\x00\x01",
        b"\x91" * 100_000,
        b"",
    ],
)
def test_a_damaged_header_is_refused(data: bytes) -> None:
    """A field more or less, another type, text that is no UTF-8, foreign bytes: a ValueError and no other error."""
    with pytest.raises(ValueError, match="damaged 'kl' header") as error:
        decode_provenance(data)
    assert type(error.value) is ValueError


@pytest.mark.parametrize("fields", [[2, "flights", 2, 336_775, 0, 1], [2, "of another shape"], [2, 1, 2, 3, 4, 5, 6]])
def test_an_unknown_version_of_the_header_is_named(fields: list[object]) -> None:
    """Whatever a later version looks like, the error says which version was seen and which is known."""
    with pytest.raises(ValueError, match="unknown version of the 'kl' header: seen 2, known 1"):
        decode_provenance(msgspec.msgpack.encode(fields))


@given(st.binary(max_size=24))
def test_any_bytes_give_a_header_or_a_value_error(data: bytes) -> None:
    """Headers come from topics that others may write to."""
    try:
        provenance = decode_provenance(data)
    except UnicodeDecodeError:
        raise  # a kind of ValueError, but not in words of ours
    except ValueError:
        return
    assert provenance.version == VERSION


@given(topics, partitions, offsets, counts, topics)
def test_a_digest_is_an_unsigned_64_bit_number(topic: str, partition: int, offset: int, i: int, to: str) -> None:
    """So a sum of digests needs one mask and no sign."""
    digest = output_digest(place_seed(topic, partition), offset, i, to)
    assert 0 <= digest <= DIGEST_MASK == 2**64 - 1


def test_a_digest_tells_every_field_apart() -> None:
    """One field changed is another digest: a doubled, moved or swapped output changes the sum."""
    base = ("flights", 1, 10, 0, "late")
    places = [base, ("flight", 1, 10, 0, "late"), ("flights", 2, 10, 0, "late"), ("flights", 1, 11, 0, "late")]
    places += [("flights", 1, 10, 1, "late"), ("flights", 1, 10, 0, "later"), ("flights", 10, 1, 0, "late")]
    digests = {output_digest(place_seed(topic, partition), offset, i, to) for topic, partition, offset, i, to in places}
    assert len(digests) == len(places)


def test_digests_of_outputs_are_those_of_spark() -> None:
    """The digest chains topic, partition, offset, i and destination as Spark chains the columns."""
    for row in json.loads(VECTORS.read_text(encoding="utf-8"))["outputs"]:
        seed = place_seed(row["topic"], row["partition"])
        assert output_digest(seed, row["offset"], row["i"], row["destination"]) == row["digest"]
