"""Which partition a key goes to, against what the real clients do, as on_kafka/make_golden_partitions.py asked them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keylanes.brokers.partitioner import check_partitioner, partition_by_crc32
from keylanes.errors import OutputRefused, SettingsError

from ..tiers.marks import tier

pytestmark = tier("check")

FILE = Path(__file__).parents[1] / "on_kafka" / "golden_partitions.json"
GOLDEN: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


def test_the_golden_file_holds_vectors() -> None:
    """An emptied file must not pass for an agreement with the clients."""
    assert len(GOLDEN["keys"]) == 13
    assert GOLDEN["partitions"] == [1, 2, 3, 7, 12, 64]


@pytest.mark.parametrize("name", ["murmur2", "crc32"])
def test_a_key_goes_where_the_real_clients_send_it(name: Any) -> None:
    """murmur2 as Kafka's Java producer computes it, crc32 as confluent-kafka sent it to a real Kafka."""
    place = check_partitioner(name, "orders")
    for row in GOLDEN["keys"]:
        key = bytes.fromhex(row["key"])
        assert [place(key, count) for count in GOLDEN["partitions"]] == row[name], key


def test_an_empty_key_keeps_its_order() -> None:
    """It goes to one partition, where librdkafka's default partitioner spreads it."""
    assert {partition_by_crc32(b"", count) for count in GOLDEN["partitions"]} == {0}


def of_the_first_byte(key: bytes, partitions: int) -> int:
    """A partitioner of one's own."""
    return key[0] % partitions


def failing(key: bytes, partitions: int) -> int:
    """One that can't tell."""
    raise KeyError(key)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda key, partitions: partitions, "gave partition 3 .*partitions 0 to 2.*Mend the function"),
        (lambda key, partitions: -1, "gave partition -1"),
        (lambda key, partitions: None, "failed for a key of 1 bytes"),
        (failing, "its partitioner failing failed for a key of 1 bytes: KeyError"),
    ],
)
def test_what_is_no_partition_is_refused(function: Callable[[bytes, int], Any], says: str) -> None:
    """A function of one's own is looked at for each output; the record fails, not the transaction."""
    with pytest.raises(OutputRefused, match=says):
        check_partitioner(function, "orders")(b"k", 3)
    assert check_partitioner(of_the_first_byte, "orders")(b"k", 3) == ord("k") % 3


@pytest.mark.parametrize("wrong", ["CRC32", "random", "", 7, None])
def test_what_is_no_partitioner_is_a_wrong_setting(wrong: Any) -> None:
    """The message names the topic, what was seen, what is allowed and what to do."""
    with pytest.raises(
        SettingsError, match=r"'orders' has .*; a partitioner is 'murmur2', 'crc32' or a function .*Give"
    ):
        check_partitioner(wrong, "orders")
