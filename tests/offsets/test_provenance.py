"""The header that says where an output came from, and the digest that a commit event sums up."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.offsets.provenance import (
    APP_ID_BYTES,
    DIGEST_MASK,
    HEADER,
    VERSION,
    Origins,
    Provenance,
    app_id_of,
    decode_provenance,
    encode_provenance,
    output_digest,
    place_seed,
)

from ..tiers.marks import tier

pytestmark = tier("check")

VECTORS = Path(__file__).parents[1] / "keyrange" / "golden_xxhash64.json"
"""What Spark computed, see tests/keyrange/make_golden.py."""

APP_ID = bytes.fromhex("01 23 45 67 89 ab cd ef")
GOLDEN = bytes.fromhex("97 02 c4 08 01 23 45 67 89 ab cd ef a7 66 6c 69 67 68 74 73 02 ce 00 05 23 87 00 01")
"""``[2, APP_ID, "flights", 2, 336775, 0, 1]``: bytes that were written once must be read for ever."""

app_ids = st.binary(min_size=APP_ID_BYTES, max_size=APP_ID_BYTES)
topics = st.text(min_size=1, max_size=12)
partitions = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**63 - 1)
counts = st.integers(0, 2**31 - 1)
EDGES = [edge + near for edge in (0, 1 << 7, 1 << 8, 1 << 16, 1 << 32) for near in (-1, 0, 1) if edge + near >= 0]


def test_the_header_has_its_golden_bytes() -> None:
    """A version, application, topic, partition, offset, i and n as one msgpack array under a short name."""
    assert HEADER == "kl"
    assert encode_provenance(APP_ID, "flights", 2, 336_775, 0, 1) == GOLDEN
    assert decode_provenance(GOLDEN) == Provenance(2, APP_ID, "flights", 2, 336_775, 0, 1)


def test_an_application_is_named_by_the_hash_of_its_birth() -> None:
    """As Spark's ``xxhash64`` gives it, its highest byte first; another text is another application."""
    assert app_id_of("5f0c2b") == bytes.fromhex("72 d8 fb ba 11 ae 74 6f")
    assert app_id_of("5f0c2c") != app_id_of("5f0c2b")


@given(app_ids, topics, partitions, offsets, counts, counts)
def test_a_header_comes_back_as_it_was(app_id: bytes, topic: str, partition: int, offset: int, i: int, n: int) -> None:
    """Every field survives the way to bytes and back."""
    data = encode_provenance(app_id, topic, partition, offset, i, n)
    assert decode_provenance(data) == Provenance(VERSION, app_id, topic, partition, offset, i, n)


@pytest.mark.parametrize("app_id", [b"", bytes(7), bytes(9)])
def test_a_header_is_not_written_for_what_is_no_application(app_id: bytes) -> None:
    """Readers would refuse it: whoever writes hears it first."""
    with pytest.raises(ValueError, match="an app_id has 8 bytes; seen"):
        Origins(app_id, "flights", 2)


@given(app_ids, topics, partitions, offsets, counts, counts)
def test_headers_of_several_outputs_are_those_of_each(
    app_id: bytes, topic: str, partition: int, offset: int, i: int, n: int
) -> None:
    """Whichever of them it is."""
    assert Origins(app_id, topic, partition).each(offset, i, n) == encode_provenance(
        app_id, topic, partition, offset, i, n
    )


@given(topics, partitions, st.lists(offsets | st.sampled_from(EDGES), min_size=1, max_size=20), st.booleans())
def test_headers_of_records_in_turn_are_those_of_each(
    topic: str, partition: int, places: list[int], is_sorted: bool
) -> None:
    """Whatever the offset of the one before: at all lengths that an offset can have, and on both sides of a block."""
    origins = Origins(APP_ID, topic, partition)
    for offset in sorted(places) if is_sorted else places:
        for near in (offset, offset + 1, offset ^ 1, offset ^ 255):
            assert origins.of(near) == encode_provenance(APP_ID, topic, partition, near, 0, 1)


def test_a_header_cut_off_anywhere_is_refused() -> None:
    """Each shorter prefix raises ValueError that says damaged."""
    for length in range(len(GOLDEN)):
        with pytest.raises(ValueError, match="damaged 'kl' header"):
            decode_provenance(GOLDEN[:length])


@pytest.mark.parametrize(
    "data",
    [
        GOLDEN + b"\x00",
        msgspec.msgpack.encode([2, APP_ID, "flights", 2, 336_775, 0, 1, 9]),
        msgspec.msgpack.encode([2, APP_ID, "flights", 2, 336_775, 0]),
        msgspec.msgpack.encode([2, APP_ID[:7], "flights", 2, 336_775, 0, 1]),
        msgspec.msgpack.encode([2, APP_ID + b"8", "flights", 2, 336_775, 0, 1]),
        msgspec.msgpack.encode([2, "01234567", "flights", 2, 336_775, 0, 1]),
        msgspec.msgpack.encode([2, "flights", 2, 336_775, 0, 1]),
        msgspec.msgpack.encode([2, APP_ID, "flights", "2", 336_775, 0, 1]),
        msgspec.msgpack.encode({"version": 1}),
        msgspec.msgpack.encode([]),
        GOLDEN.replace(b"\xa7flights", b"\xa1\xff"),
        b"\x91" * 100_000,
        b"",
    ],
)
def test_a_damaged_header_is_refused(data: bytes) -> None:
    """A field more or less, another type, text that is no UTF-8, foreign bytes: a ValueError and no other error."""
    with pytest.raises(ValueError, match="damaged 'kl' header") as error:
        decode_provenance(data)
    assert type(error.value) is ValueError


@pytest.mark.parametrize("fields", [[3, APP_ID, "flights", 2, 336_775, 0, 1], [3, "of another shape"], [3], [1]])
def test_an_unknown_version_of_the_header_is_named(fields: list[object]) -> None:
    """Whatever another version looks like, the error says which version was seen and which is known."""
    with pytest.raises(ValueError, match=f"unknown version of the 'kl' header: seen {fields[0]}, known is 2"):
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
    assert (provenance.version, len(provenance.app_id)) == (VERSION, APP_ID_BYTES)


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
