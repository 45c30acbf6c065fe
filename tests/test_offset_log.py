"""docs/offset-log.md says what the bytes are; here it is held to it."""

import re
from pathlib import Path

from keylanes.keyrange.hashing import point_of_key
from keylanes.offsets.codec import decode
from keylanes.offsets.event_values import Tile
from keylanes.offsets.events import Committed
from keylanes.offsets.provenance import decode_provenance
from keylanes.runtime.logs.topics import creation_commands
from keylanes.state.changelog import beacon_key, decode_beacon, decode_stored
from keylanes.state.keys import parse_key

from . import offset_log_page
from .tiers.marks import tier

pytestmark = tier("check")

ROOT = Path(__file__).parents[1]
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
    line = next(line for line in PAGE.splitlines() if line.startswith("97 02"))
    header = decode_provenance(bytes.fromhex(line))
    assert (header.version, header.app_id.hex()) == (2, "0123456789abcdef")
    assert (header.topic, header.partition, header.offset, header.i, header.n) == ("flights", 3, 1234, 0, 2)


def blocks(section: str) -> list[str]:
    """The blocks of a section."""
    return PAGE.split(f"## {section}\n")[1].split("\n## ")[0].split("```")[1::2]


def test_the_records_of_a_changelog_are_as_they_are_explained() -> None:
    """Key, value and beacon decode to what the explanation says."""
    _, key, value, beacon = map(hex_column, blocks("The changelog"))
    assert parse_key(key) == (point_of_key(b"AA"), 1, b"AA", b"JFK")
    assert decode_stored(value) == (b"17", 1_700_000_000_000)
    assert beacon[:9] == beacon_key(3)
    assert decode_beacon(beacon[:9], beacon[9:]) == (3, 7)


def test_the_command_that_makes_a_changelog_is_the_one_that_is_printed() -> None:
    """Word for word."""
    assert blocks("The changelog")[0].strip() == creation_commands("flights", 4, {"departures": 4})[-1]


def test_the_lists_of_events_are_up_to_date() -> None:
    """They say what the structures say; the command on the page writes them anew. All fields stand there in order."""
    assert offset_log_page.page(PAGE) == PAGE, f"run {offset_log_page.COMMAND}"
    assert offset_log_page.COMMAND in PAGE
    assert (
        "- **`workers_merged/1`** `[incarnation, transaction, epoch, topic, partition, left, right, worker]`: " in PAGE
    )
    assert "topic, partition, move, bands[Edge], bounds]`: " in PAGE
    assert "- **`Edge`** `[first, end, edge]`: P" in PAGE
