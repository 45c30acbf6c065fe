"""The demo as a person runs it: on the first flights, on the embedded broker, killed and not killed."""

import asyncio
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from figures import counts_expected
from flights import Flight, Totals, source_rows
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import ConsumerRecord
from keylanes.offsets.provenance import HEADER
from keylanes.state.changelog import decode_stored, is_beacon_key
from keylanes.state.keys import parse_key
from keylanes.state.topics import TopicStore
from logbook import read_topic

from ...tiers.marks import tier
from .conftest import Start

ROWS = 12_000
FOLDER = Path(".keylanes/demo-embedded")


def data_of(folder: Path) -> Path:
    """Where the only run in a demo's folder keeps its data."""
    (data,) = folder.glob("broker-*")
    return data


def report_in(folder: Path) -> dict[str, Any]:
    """What a demo has written for programs."""
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def records_of(data: Path, topic: str) -> dict[int, list[ConsumerRecord]]:
    """The records of a topic of the embedded broker, by partition."""

    async def read() -> dict[int, list[ConsumerRecord]]:
        broker = EmbeddedBroker(data)
        await broker.open()
        found: dict[int, list[ConsumerRecord]] = {}
        async for batch in read_topic(broker, topic):
            found.setdefault(batch.source.partition, []).extend(batch.records)
        await broker.close()
        return found

    return asyncio.run(read())


def assert_right(report: dict[str, Any], folder: Path, rows: int) -> None:
    """The figures are those of the flights, the source holds each row once and in order, no output is there twice.

    The state is what a loop over both sources gives.
    """
    counts = counts_expected(rows)
    assert report["is_right"], report
    assert report["wrong"] == []
    assert report["figures"]["counts"] == {name: getattr(counts, name) for name in counts.__struct_fields__}
    assert report["figures"]["is_level"]
    data = data_of(folder)
    loaded = records_of(data, "flights")
    for partition in range(4):
        rows_there = [(row.key, row.value) for row in source_rows(0, rows) if row.partition == partition]
        assert [(record.key, record.value) for record in loaded[partition]] == rows_there
    for topic in ("late", "flights.dead", "flights.by-destination"):
        outputs = [dict(r.headers)[HEADER] for records in records_of(data, topic).values() for r in records]
        assert max(Counter(outputs).values()) == 1
    flights = [(p, row.key, decode(row.value or b"").arr_delay) for p, own in loaded.items() for row in own]
    arrivals = [
        (p, row.key, msgspec.json.decode(row.value or b"")["minutes"])
        for p, own in records_of(data, "flights.by-destination").items()
        for row in own
    ]
    assert totals_of(data, "flights") == folded([(p, key, delay) for p, key, delay in flights if delay is not None])
    assert totals_of(data, "flights.by-destination") == folded(arrivals)
    assert Counter(minutes for _, _, minutes in arrivals) == Counter(each[2] for each in flights if each[2] is not None)


decode = msgspec.json.Decoder(Flight).decode
Minutes = tuple[int, bytes | None, int]


def folded(arrivals: list[Minutes]) -> dict[tuple[int, bytes], list[int]]:
    """Flights, minutes, late ones in a row and the longest such chain by partition and key; by a loop."""
    totals: dict[tuple[int, bytes], list[int]] = {}
    for partition, key, minutes in arrivals:
        assert key is not None
        flights, total, in_a_row, longest = totals.get((partition, key), [0, 0, 0, 0])
        in_a_row = in_a_row + 1 if minutes > 15 else 0
        totals[partition, key] = [flights + 1, total + minutes, in_a_row, max(longest, in_a_row)]
    return totals


def totals_of(data: Path, source: str) -> dict[tuple[int, bytes], list[int]]:
    """The state of the application for a source topic, as the broker keeps it."""
    store = TopicStore.open_read_only(data)
    found: dict[tuple[int, bytes], list[int]] = {}
    for partition in range(4):
        table = store.table(f"flights-demo.changelog.{source}", partition)
        assert table is not None
        for key, value in table.page(b"", None, 100_000):
            if is_beacon_key(key):
                continue
            totals = msgspec.json.decode(decode_stored(value).payload, type=Totals)
            found[partition, parse_key(key).key] = list(msgspec.structs.astuple(totals))
    store.close()
    return found


def test_a_small_demo_comes_out_right(demo: Start, tmp_path: Path) -> None:
    """One command loads, processes, counts and draws; a second one starts afresh."""
    answer = demo("--rows", str(ROWS), "--no-audit")
    assert answer.returncode == 0, answer.stderr
    report = report_in(tmp_path / FOLDER)
    assert_right(report, tmp_path / FOLDER, ROWS)
    assert report["figures"]["workers"] == 2048
    assert Path(report["picture"]).read_bytes().startswith(b"\x89PNG")
    assert answer.stdout.startswith("To be fetched: nothing.")
    first = data_of(tmp_path / FOLDER)
    answer = demo("--rows", "2000", "--no-audit")
    assert answer.returncode == 0, answer.stderr
    assert "going on" not in answer.stdout
    assert "late, published by aircraft" in answer.stdout
    assert data_of(tmp_path / FOLDER) != first


@pytest.mark.parametrize("seed", [1, 2])
def test_a_demo_that_is_killed_again_and_again_loses_and_doubles_nothing(
    demo: Start, tmp_path: Path, seed: int
) -> None:
    """Killed (-9) at steps drawn at random, in loading and in processing, the demo ends with the right figures."""
    chance = random.Random(seed)
    killed_at = set()
    arguments = ("--rows", str(ROWS), "--no-audit", "--handler-ms", "20")
    for kill_at in (chance.randint(1, 6), chance.randint(1, 6), *(chance.randint(6, 24) for _ in range(3))):
        killed = demo(*arguments, kill_at=kill_at)
        if killed.returncode == 0:  # it was through before so many steps
            break
        assert killed.returncode == -9, killed.stderr
        killed_at.add(killed.stdout.partition(" ")[2])
    answer = demo(*arguments)
    assert answer.returncode == 0, answer.stderr
    assert_right(report_in(tmp_path / FOLDER), tmp_path / FOLDER, ROWS)
    assert any(step.startswith("load") for step in killed_at)
    assert any(not step.startswith("load") for step in killed_at)


@pytest.mark.spark
def test_the_audit_proves_a_small_demo(demo: Start, tmp_path: Path) -> None:
    """Spark finds every statement to hold, the expected outputs among them; wrong figures are an exit code of 1."""
    answer = demo("--rows", "3000")
    assert answer.returncode == 0, answer.stderr
    report = report_in(tmp_path / FOLDER)
    assert report["verdict"] == "exactly once: proven"
    checks = {check["name"]: check for check in report["audit"]["checks"]}
    assert checks["expected"]["violations"] == checks["state"]["violations"] == 0
    assert checks["state"]["checked"] == report["audit"]["figures"]["state_keys"] > 500
    assert "keys, each equal to what Spark computes from the flights" in answer.stdout
    state = tmp_path / FOLDER / "state.json"
    state.write_text(state.read_text().replace("3000", "2999").replace("finished", "audit"))
    answer = demo("--rows", "2999", "--no-audit")
    assert answer.returncode == 1, answer.stdout
    assert re.search("WRONG +records: 3,000, expected are 2,999", answer.stdout)
    assert "audit" in state.read_text()


@pytest.mark.parametrize("name", ["MEMBERS", "PROCESSES"])
def test_several_processes_need_a_kafka(
    demo: Start, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the embedded broker they are refused as wrong usage, before anything is made; the variables are those of
    `make demo`.
    """
    monkeypatch.setenv(name, "3")
    answer = demo()
    assert answer.returncode == 2
    assert f"{name}=3 needs a broker that several processes can reach" in answer.stderr
    assert "give BROKER=kafka" in answer.stderr
    assert not (tmp_path / ".keylanes").exists()


@pytest.mark.broker
@tier("proof", "demo-kills")
def test_a_small_demo_on_a_real_kafka(demo: Start, tmp_path: Path) -> None:
    """Killed while it processes, it leaves no Kafka behind; the next one goes on with the data, and stops its own."""
    killed = demo("--broker", "kafka", "--rows", "6000", "--no-audit", "--handler-ms", "100", kill_at=12)
    assert killed.returncode == -9, killed.stderr
    answer = demo("--broker", "kafka", "--rows", "6000", "--no-audit")
    assert answer.returncode == 0, answer.stderr
    assert "it goes on" in answer.stdout
    report = report_in(tmp_path / ".keylanes" / "demo-kafka")
    assert report["is_right"], report
    assert report["figures"]["counts"]["records"] == 6000
    state = json.loads((data_of(tmp_path / ".keylanes" / "demo-kafka") / "broker.json").read_text())
    assert not Path(f"/proc/{state['pid']}").exists()
