"""Dead letters that were written back to their source with all of their headers, and what only looks like one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keylanes import App, Context, DeadLetter, Record, Retry
from keylanes.brokers.refusal import TOPIC_DEFAULTS
from keylanes.state.topics import NewRecord, StoredRecord, TopicStore

from ..stage.log_events import partition_started
from .honest import AUDITED, DEAD, LATE, OF_LETTER, SOURCE, Planner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylanes.spark.report import Report

pytestmark = pytest.mark.spark

CALLS = 60
"""Every fifth is an order that fails until the handler is mended."""


def shop(broker: str, *, is_mended: bool) -> App:
    """Orders come from calls, so that their topic is an output topic, too; letters are read by a handler of their own.
    A mended handler makes an order of each that failed before, and passes all headers on.
    """
    app = App("shop", broker=broker)

    @app.handler("calls", to="orders")
    async def take(value: bytes) -> bytes:
        return value

    @app.handler("orders", to="packed", retry=Retry(attempts=1), on_failure=DeadLetter("orders.dead"))
    async def pack(value: bytes, ctx: Context) -> Record:
        if value == b"bad":
            if not is_mended:
                raise ValueError("an order that can't be packed")
            ctx.send("orders", b"mended", headers=ctx.headers)
        return Record(value, headers=ctx.headers)

    @app.handler("orders.dead", to="told")
    async def tell(value: bytes, ctx: Context) -> Record:
        return Record(value, headers=ctx.headers)

    return app


def records(store: TopicStore, topic: str) -> list[tuple[int, StoredRecord]]:
    """All of a topic, with their partitions."""
    spans = [(p, *store.watermarks(topic, p)) for p in range(store.topics()[topic].partitions)]
    return [(p, record) for p, first, end in spans if first < end for record in store.read(topic, p, first, end)[0]]


def test_letters_that_were_written_back_are_records_and_no_outputs(spark: "SparkSession", tmp_path: Path) -> None:
    """Proven, whether the topics are named or searched for, also if one letter is written back twice. What is made of
    them carries none of their headers.
    """
    from keylanes.spark.audit import AuditSpec, audit

    url = f"embedded:{tmp_path / 'topics'}"
    store = TopicStore.open(tmp_path / "topics")
    for topic in ("calls", "orders", "orders.dead"):
        store.create(topic, 2, TOPIC_DEFAULTS)
    values = [b"good" if n % 5 else b"bad" for n in range(CALLS)]
    store.append([NewRecord("calls", n % 2, b"key %d" % (n % 7), value, (), 1) for n, value in enumerate(values)])
    store.close()
    shop(url, is_mended=False).run(until="level")
    store = TopicStore.open(tmp_path / "topics")
    letters = [NewRecord("orders", p, o.key, o.value, o.headers, 1) for p, o in records(store, "orders.dead")]
    store.append([*letters, letters[0]])
    store.close()
    shop(url, is_mended=True).run(until="level")

    store = TopicStore.open_read_only(tmp_path / "topics")
    made = [record for topic in ("packed", "told") for _, record in records(store, topic)]
    made += [record for _, record in records(store, "orders") if record.value == b"mended"]
    store.close()
    assert len(letters) == CALLS // 5
    assert {name for record in made for name, _ in record.headers} == {"kl"}

    named = AuditSpec(app="shop", broker=url, outputs=["orders", "packed", "told"], dead_letters=["orders.dead"])
    for spec in (named, AuditSpec(app="shop", broker=url)):
        report = audit(spark, replace(spec, level=True))
        assert report.violated_checks() == []
        assert report.figures["replays"] == len(letters) + 1
        assert [note for note in report.notes if "written back to their source" in note and "orders 13 (" in note]


def test_what_is_no_replay_is_judged(audited: "Callable[..., Report]") -> None:
    """A letter that is doubled in its dead-letter topic, which is a source here, too. An output that is doubled in
    another source with the headers of a letter, or in its own with one of them, or with none.
    """
    run = Planner(restarts=0).run()
    run.control += [partition_started(1, topic, p, 0, "earliest", 2) for topic in (DEAD, LATE) for p in range(2)]
    letter = next(output for output in run.outputs if output.destination == DEAD)
    late, *others = [output for output in run.outputs if output.destination == LATE][:4]
    passed_on = ((), OF_LETTER[:1], OF_LETTER[1:])
    wrong = [
        letter,
        replace(late, headers=OF_LETTER),
        *(replace(o, destination=SOURCE, headers=h) for o, h in zip(others, passed_on, strict=True)),
    ]
    replay = replace(letter, destination=SOURCE)
    run.outputs += [*wrong, replay]
    report = audited(run, level=False, outputs=[LATE, AUDITED, SOURCE], examples_max=100)
    assert {"output-once", "commit-outputs", "commit-digest"} <= set(report.violated_checks())
    found = [(e["kl_partition"], e["kl_offset"]) for e in report.check("output-once").examples]
    assert sorted(found) == sorted((output.partition, output.offset) for output in wrong)
    assert report.figures["replays"] == 1
