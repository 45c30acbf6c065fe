"""``keylanes audit MODULE:APP``: two applications in one topic."""

import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keylanes.offsets.provenance import HEADER, decode_provenance
from keylanes.state.topics import NewRecord, TopicStore

from .test_commands import keylanes

pytestmark = pytest.mark.spark

ORDERS = 150
APPLICATIONS = """
    from keylanes import App, Context, DeadLetter

    app, other = App("shop", broker="embedded:topics"), App("stock", broker="embedded:topics")

    @app.handler("orders", to="packed", on_failure=DeadLetter("orders.dead"), parallelising_factor=4)
    async def pack(value: int, ctx: Context) -> int | None:
        if value % 17 == 3:
            raise ValueError(value)
        if value % 5 == 0:
            ctx.send("audited", value, key=b"a")  # a topic that nobody declares
        return value if value % 3 else None

    @other.handler("orders", to="packed")
    async def count(value: int) -> int:
        return value
"""


def store_orders(folder: Path) -> None:
    """The source, as an embedded broker's folder, and the topic that nobody declares."""
    store = TopicStore.open(folder)
    for name in ("orders", "audited"):
        store.create(name, 2, {"cleanup.policy": "delete", "max.message.bytes": "1048588"})
    store.append([NewRecord("orders", n % 2, b"key %d" % (n % 7), b"%d" % n, (), 1) for n in range(ORDERS)])
    store.close()


def outputs(folder: Path) -> Counter[bytes]:
    """How many outputs name which application."""
    store = TopicStore.open_read_only(folder)
    found: Counter[bytes] = Counter()
    for topic in ("packed", "audited", "orders.dead"):
        for partition in range(2):
            first, end = store.watermarks(topic, partition)
            records = store.read(topic, partition, first, end)[0] if first < end else []
            found.update(decode_provenance(dict(record.headers)[HEADER] or b"").app_id for record in records)
    store.close()
    return found


def test_an_application_is_proven_beside_another_one_in_its_topic(tmp_path: Path) -> None:
    """Its outputs are judged, also those of a topic that nobody declared; those of the other one are counted."""
    pytest.importorskip("pyspark")
    folder = tmp_path / "topics"
    (tmp_path / "shop.py").write_text(textwrap.dedent(APPLICATIONS))
    store_orders(folder)
    for name in ("app", "other"):
        assert keylanes(tmp_path, "run", f"shop:{name}", "--until", "level").returncode == 0
    others, own = sorted(outputs(folder).values(), reverse=True)
    assert others == ORDERS > own
    ended = keylanes(tmp_path, "audit", "shop:app", "--outputs", "audited", "--level", "--json")
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    assert report["figures"]["records"] == ORDERS
    assert report["figures"]["outputs"] + report["figures"]["dead_letters"] == own
    assert report["figures"]["outputs_of_others"] == ORDERS
    assert report["destinations"].keys() == {"packed", "audited", "orders.dead"}
