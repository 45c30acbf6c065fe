"""A topic with state that got more partitions, by the commands and the program of docs/partitioners.md."""

import re
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

from keylanes.brokers.partitioner import partition_of_key
from keylanes.state.topics import NewRecord, TopicStore

from .test_commands import keylanes

PAGE = Path(__file__).resolve().parents[2] / "docs" / "partitioners.md"
GREW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CUSTOMERS = [b"customer %d" % n for n in range(120)]
BEFORE, NOW = 2, 4
OLD, NEW = (b"100", b"50"), (b"180", b"9")
BROKER = {"KEYLANES_BROKER": "embedded:topics"}
APPLICATIONS = """
    from keylanes import App, State

    again, anew = App("totals"), App("totals-2")

    @again.handler("orders", to="totals")
    @anew.handler("orders-2", to="totals-2")
    async def total(value: int, sums: State[int]) -> int:
        sums.put((sums.get() or 0) + value)
        return sums.get()
"""


def program() -> str:
    """What people copy."""
    (found,) = re.findall(r'```python\n("""copy_orders\.py.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


def at_ms(minutes: int) -> int:
    """So long after the topic has grown."""
    return int((GREW + timedelta(minutes=minutes)).timestamp() * 1000)


def sell(folder: Path) -> None:
    """Orders of each customer from before the topic grew, and of afterwards."""
    store = TopicStore.open(folder / "topics")
    store.create("orders", NOW, {})
    for partitions, values, minutes in ((BEFORE, OLD, -60), (NOW, NEW, 60)):
        for value in values:
            store.append(
                [
                    NewRecord("orders", partition_of_key(key, partitions), key, value, (("by", value),), at_ms(minutes))
                    for key in CUSTOMERS
                ]
            )
    store.close()


def read(folder: Path, topic: str) -> dict[tuple[int, bytes | None], list[tuple[bytes | None, bytes | None]]]:
    """The values of a topic with the header ``by``, by partition and key."""
    found: dict[tuple[int, bytes | None], list[tuple[bytes | None, bytes | None]]] = {}
    store = TopicStore.open_read_only(folder / "topics")
    for partition in range(NOW):
        first, end = store.watermarks(topic, partition)
        for record in store.read(topic, partition, first, end)[0] if first < end else ():
            found.setdefault((partition, record.key), []).append((record.value, dict(record.headers).get("by")))
    store.close()
    return found


def test_the_program_of_the_page_brings_the_keys_of_a_grown_topic_together(tmp_path: Path) -> None:
    """Under a new name alone it is refused with exit code 2; from the topic that the program has written every total is
    right, and each key's records lie in their order.
    """
    sell(tmp_path)
    (tmp_path / "copy_orders.py").write_text(program(), encoding="utf-8")
    (tmp_path / "shop.py").write_text(textwrap.dedent(APPLICATIONS), encoding="utf-8")

    refused = keylanes(tmp_path, "run", "shop:again", "--until", "level", **BROKER)
    assert refused.returncode == 2
    assert "orders has 4 partitions and had 2" in refused.stderr

    for target in ("copy_orders:older", "copy_orders:newer", "shop:anew"):
        ended = keylanes(tmp_path, "run", target, "--until", "level", **BROKER)
        assert ended.returncode == 0, ended.stderr
    expected = [(value, value) for value in (*OLD, *NEW)]
    assert read(tmp_path, "orders-2") == {(partition_of_key(key, NOW), key): expected for key in CUSTOMERS}
    totals = read(tmp_path, "totals-2")
    assert {values[-1][0] for values in totals.values()} == {b"339"}
    assert len(totals) == len(CUSTOMERS)
