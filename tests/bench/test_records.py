"""The bench's records and its witness: what is produced can be checked, and what is wrong is seen."""

import random
from array import array
from pathlib import Path

from _driver import Spec, Tally
from comparison.kill import covered, grown
from comparison.latency import percentiles_ms
from keylanes.offsets.event_values import Tile
from keylanes.state.changelog import Beacon, encode_beacon, encode_stored
from keylanes.state.keys import state_key
from rig.reader import (
    Found,
    Turns,
    changelog_of,
    count_of_flechtwerk,
    count_of_keylanes,
    count_of_quix,
    count_of_streams,
    source_of,
    wrong_keys,
)
from rig.records import counts_of, keys_of, records_of, value_of

from .books import output

ORDER = {"distribution": "uniform", "records": 500, "keys": 20, "partitions": 3}


def spec(folder: Path, *, workload: str = "W1", expected: str = "") -> Spec:
    """An order for all of ``ORDER``'s records."""
    return Spec("any", workload, "", "", 3, "", str(folder), 500, 20, expected=expected)


def test_records_are_the_same_each_time_and_numbered_within_their_key() -> None:
    """A key stays in one partition; its numbers run from 0 without gaps; the third field is the running index."""
    records = list(records_of(ORDER))
    assert records == list(records_of(ORDER))
    assert {len(value) for _, _, value in records} == {100}
    places: dict[bytes, set[int]] = {}
    numbers: dict[bytes, list[int]] = {}
    for index, (partition, key, value) in enumerate(records):
        places.setdefault(key, set()).add(partition)
        numbers.setdefault(key, []).append(int.from_bytes(value[4:8], "little"))
        assert int.from_bytes(value[8:16], "little") == index
    assert all(len(seen) == 1 for seen in places.values())
    assert all(seen == list(range(len(seen))) for seen in numbers.values())


def test_keys_follow_their_distribution() -> None:
    """All are distinct, or the first one of a Zipf distribution leads; counts add up."""
    assert list(keys_of("distinct", 5, 5)) == [0, 1, 2, 3, 4]
    counts = counts_of(keys_of("zipf", 2_000, 50), 50)
    assert sum(counts) == 2_000
    assert counts[0] == max(counts) > 2_000 / 50 * 5


def test_a_value_has_the_size_that_is_asked_for() -> None:
    """Small and large ones, larger than the filler."""
    assert [len(value_of(1, 2, 3, 4, size)) for size in (16, 20, 100, 1_000, 100_000)] == [16, 20, 100, 1_000, 100_000]


def test_a_run_in_order_has_a_clean_result(tmp_path: Path) -> None:
    """All records, each once and in turn: nothing out of order, no key incomplete, and the end is told once."""
    path = tmp_path / "expected"
    path.write_bytes(counts_of(keys_of("uniform", 500, 20), 20).tobytes())
    told: list[bool] = []
    tally = Tally(spec(tmp_path, expected=str(path)), lambda: told.append(True))
    for _, _, value in records_of(ORDER):
        tally.end(tally.begin(value))
    result = tally.result()
    assert told == [True]
    assert (result["records"], result["out_of_order"], result["incomplete_keys"]) == (500, 0, 0)
    assert result["concurrency_peak"] == 1


def test_a_swap_within_a_key_and_a_doubled_record_are_seen(tmp_path: Path) -> None:
    """The witness needs no memory of records for it: a number out of turn is enough."""
    path = tmp_path / "expected"
    path.write_bytes(counts_of(keys_of("uniform", 500, 20), 20).tobytes())
    tally = Tally(spec(tmp_path, expected=str(path)), lambda: None)
    values = [value for _, _, value in records_of(ORDER)]
    for value in [*values[:-1], values[0]]:
        tally.end(tally.begin(value))
    result = tally.result()
    assert result["out_of_order"] == 1
    assert result["incomplete_keys"] == 2 or values[0][:4] == values[-1][:4]


def test_records_of_a_key_at_the_same_time_are_out_of_order(tmp_path: Path) -> None:
    """The second one begins before the first has ended."""
    tally = Tally(spec(tmp_path), lambda: None)
    first, second = (value_of(0, number, number, number) for number in (0, 1))
    tokens = [tally.begin(first), tally.begin(second)]
    for token in tokens:
        tally.end(token)
    for index in range(2, 500):
        tally.end(tally.begin(value_of(0, index, index, index)))
    assert (tally.result()["out_of_order"], tally.peak) == (1, 2)


def test_an_open_loop_writes_its_latencies(tmp_path: Path) -> None:
    """One for each record, from its scheduled time to the end of its handler."""
    tally = Tally(spec(tmp_path, workload="W7"), lambda: None)
    for index in range(500):
        tally.end(tally.begin(value_of(0, index, 1_000, index)))
    latencies = array("Q", Path(tally.result()["latency_ns"]).read_bytes())
    assert len(latencies) == 500
    assert min(latencies) > 10**18


def test_the_reader_of_outputs_sees_every_kind_of_fault() -> None:
    """Missing, doubled, out of order, and a value that is not what became of its source."""
    records = [output(value_of(0, number, number, number)) for number in range(5)]
    assert source_of(records[3].value) == value_of(0, 3, 3, 3)
    torn = records[3]._replace(value=records[3].value[:-1] + b"?")
    found = Found(array("I", bytes(4 * 5)), 1)
    for record in (records[0], records[2], records[1], records[1], torn):
        found.take(record)
    seen = {name: number for name, number in found.event().items() if name != "event"}
    assert seen == {"seen": 5, "missing": 1, "doubled": 1, "out_of_order": 2, "damaged": 1}


def test_outputs_that_no_source_record_has_are_damaged() -> None:
    """A key or a number beyond the source's. Values that carry times are known all the same."""
    found = Found(keys_of("uniform", 500, 20), 20)
    for _, _, value in records_of(ORDER):
        found.take(output(value[:8] + (10**18).to_bytes(8, "little") + value[16:]))
    assert set(found.event().values()) == {"result", 500, 0}
    for value in (value_of(20, 0, 0, 0), value_of(0, 500, 0, 0)):
        found.take(output(value))
    assert found.event()["damaged"] == 2


def test_an_output_under_another_key_or_without_its_origin_is_damaged() -> None:
    """By both readers: of values with an index of their own, and of paced ones."""
    first, second, third = (output(value_of(0, number, number, number), "kl") for number in range(3))
    for found in (Found(array("I", bytes(4 * 3)), 1, header="kl"), Turns([3], "kl")):
        for record in (first, second._replace(key=b"key-000001"), third._replace(headers=(("other", b""),))):
            found.take(record)
        seen = found.event()
        assert (seen["missing"], seen["doubled"], seen["out_of_order"], seen["damaged"]) == (0, 0, 0, 2)


def test_a_stuck_record_has_no_output() -> None:
    """It is not missing; where it comes, it is damaged."""
    found = Found(keys_of("distinct", 3, 3), 3, stuck=1)
    for index in (0, 2):
        found.take(output(value_of(index, 0, index, index)))
    assert (found.event()["missing"], found.event()["damaged"]) == (0, 0)
    found.take(output(value_of(1, 0, 1, 1)))
    assert (found.event()["missing"], found.event()["damaged"]) == (0, 1)


def test_the_last_counts_of_changelogs_are_read() -> None:
    """Each arm's own form; keys that are missing, wrong or too many are counted."""
    ours = state_key(7, 0, b"key-000001"), encode_stored(b"12")
    assert count_of_keylanes(*ours) == (b"key-000001", 12)
    assert count_of_keylanes(*encode_beacon(Beacon(1, 2))) is None
    assert count_of_streams(b"key-000001", (12).to_bytes(8, "big")) == (b"key-000001", 12)
    assert count_of_quix(b'key-000001|"seen"', b"12") == (b"key-000001", 12)
    assert count_of_flechtwerk(b"key-000001", b'{"seen":12}') == (b"key-000001", 12)
    assert changelog_of("flechtwerk", "group", "source") == "group-changelog"
    expected = array("I", [5, 0, 7])
    assert wrong_keys({b"key-000000": 5, b"key-000002": 7}, expected) == 0
    assert wrong_keys({b"key-000000": 5, b"key-000002": 6, b"key-000001": 0}, expected) == 2


def test_what_ran_again_is_what_was_counted_again() -> None:
    """Also more than once; what was counted for the first time did not run again."""
    assert grown([1, 1, 0, 1], [1, 3, 1, 2]) == {1, 3}


def test_covered_records_are_those_inside_tiles() -> None:
    """Against the plain way: every record and every tile."""
    draw = random.Random(3)
    points = [draw.randrange(1_000) for _ in range(200)]
    tiles = []
    for worker in range(30):
        first, offset = draw.randrange(900), draw.randrange(180)
        tiles.append(Tile(worker, 1, first, first + draw.randrange(100), offset, offset + draw.randrange(40)))
    plain = [
        any(t.first <= point < t.end and t.offset_from <= offset < t.offset_to for t in tiles)
        for offset, point in enumerate(points)
    ]
    assert covered(points, tiles) == plain
    assert any(plain)


def test_percentiles_are_latencies_that_were_seen() -> None:
    """Of a thousand values, the 500th, the 990th and the 999th."""
    found = percentiles_ms([n * 1_000_000 for n in range(1_000, 0, -1)])
    assert found == {"p50": 500.0, "p99": 990.0, "p99.9": 999.0}
