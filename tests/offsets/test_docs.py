"""docs/offset-log.md says what the bytes are; here it is held to it."""

import re
from pathlib import Path

from keylanes.offsets.codec import decode
from keylanes.offsets.events import Committed, Tile
from keylanes.offsets.provenance import decode_provenance

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "offset-log.md").read_text()


def hex_column(block: str) -> bytes:
    """The bytes in front of the words of an annotated block."""
    rows = (re.match(r"\s*((?:[0-9a-f]{2} ?)+)(?=\s{2,}|$)", line) for line in block.splitlines())
    return bytes.fromhex("".join(row[1] for row in rows if row))


def test_the_annotated_commit_is_one() -> None:
    """The bytes that are explained decode to what the explanation says."""
    block = PAGE.split("### Byte by byte")[1].split("```")[1]
    expected = Committed(
        3, 5, 0, 1, 2, "flights", 3, (Tile(7, 2, 0x03800000, 0x04800000, 100, 250),), 3, 0, 0x0123456789ABCDEF
    )
    assert decode(hex_column(block)) == expected


def test_the_annotated_header_is_one() -> None:
    """So do the bytes of the header on outputs."""
    line = next(line for line in PAGE.splitlines() if line.startswith("96 01"))
    header = decode_provenance(bytes.fromhex(line))
    assert (header.topic, header.partition, header.offset, header.i, header.n) == ("flights", 3, 1234, 0, 2)


def test_the_page_shows_every_golden_event() -> None:
    """The examples on the page are the golden file, word for word."""
    golden = (ROOT / "tests" / "offsets" / "golden" / "events.txt").read_text().strip()
    assert golden in PAGE
