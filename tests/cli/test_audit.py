"""``keylanes audit MODULE:APP``: logs of an older version that go on under this one, and two applications in one topic.

``golden/version_1.jsonl`` holds all topics of the application ``shop`` as keylanes wrote them when headers named no
application: 90 records of ``orders`` in two runs, on the embedded broker. A line names a topic, those behind it are its
records, partition by partition: offset, timestamp, key, value and headers, bytes as hex.
"""

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

GOLDEN = Path(__file__).parent / "golden" / "version_1.jsonl"
MORE = 60
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


def unpacked(text: str | None) -> bytes | None:
    """Bytes from hex."""
    return None if text is None else bytes.fromhex(text)


def store_golden(folder: Path) -> None:
    """The golden topics as an embedded broker's folder, and more orders."""
    store = TopicStore.open(folder)
    name, partition = "", -1
    for line in map(json.loads, GOLDEN.read_text().splitlines()):
        if isinstance(line, dict):
            name, partition = line["topic"], -1
            store.create(name, line["partitions"], line["config"])
            continue
        offset, timestamp, key, value, headers = line
        partition += offset == 0
        given = tuple((header, unpacked(data)) for header, data in headers)
        store.append([NewRecord(name, partition, unpacked(key), unpacked(value), given, timestamp)])
    store.append([NewRecord("orders", n % 2, b"key %d" % (n % 7), b"%d" % n, (), 1) for n in range(MORE)])
    store.close()


def outputs(folder: Path) -> Counter[bytes]:
    """How many outputs name which application; b"": their header is of version 1."""
    store = TopicStore.open_read_only(folder)
    found: Counter[bytes] = Counter()
    for topic in ("packed", "audited", "orders.dead"):
        for partition in range(2):
            first, end = store.watermarks(topic, partition)
            records = store.read(topic, partition, first, end)[0] if first < end else []
            found.update(decode_provenance(dict(record.headers)[HEADER] or b"").app_id for record in records)
    store.close()
    return found


def test_an_upgraded_application_and_another_one_in_its_topic_are_proven(tmp_path: Path) -> None:
    """Outputs of both versions lie in one topic, beside another application's."""
    pytest.importorskip("pyspark")
    folder = tmp_path / "topics"
    (tmp_path / "shop.py").write_text(textwrap.dedent(APPLICATIONS))
    store_golden(folder)
    written = outputs(folder)
    assert written.keys() == {b""}
    for name in ("app", "other"):
        assert keylanes(tmp_path, "run", f"shop:{name}", "--until", "level").returncode == 0
    seen = outputs(folder)
    assert seen[b""] == written[b""]
    records = 90 + MORE
    others = next(app_id for app_id, n in seen.items() if app_id and n == records)
    assert len(seen) == 3

    ended = keylanes(tmp_path, "audit", "shop:app", "--outputs", "audited", "--level", "--json")
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    assert report["figures"]["records"] == records
    assert report["figures"]["outputs"] + report["figures"]["dead_letters"] == seen.total() - seen[others]
    assert report["figures"]["outputs_of_others"] == records
    assert report["destinations"].keys() == {"packed", "audited", "orders.dead"}
