"""The pure parts of the check of a deposed leader: which cases there are, the judge, the table, and what is dropped."""

import json
import struct

from .cluster_check import Row, longest_gap
from .deposed_cases import FATES, LOGS, MATRIX, VERSIONS, Case, Outcome, chosen, table, variant
from .deposed_drop import ADD_PARTITIONS, Dialogue, Segment, parse
from .deposed_judge import judge

BROKER, MEMBER, PORT = "10.0.0.1", "10.0.0.2", 5_000


def source(*records: str) -> list[Row]:
    """A source of one partition, by the keys of its records, whose ids count from 0."""
    return [Row(0, number, key.encode(), b"%d" % number) for number, key in enumerate(records)]


def outputs(*told: tuple[int, str, int]) -> list[Row]:
    """Outputs in one partition: id, key and count."""
    rows = []
    for offset, (number, key, count) in enumerate(told):
        rows.append(Row(0, offset, key.encode(), json.dumps({"id": number, "count": count}).encode()))
    return rows


def test_the_judge_finds_nothing_where_all_is_as_promised() -> None:
    """Each record has an output, in the order of its key, with its rank or, of a plain application, 0."""
    found = judge(source("a", "b", "a"), outputs((1, "b", 1), (0, "a", 1), (2, "a", 0)))
    assert (found.records, found.outputs) == (3, 3)
    assert (found.doubled, found.misordered, found.miscounted, found.unknown, found.overtaken) == (0, 0, 0, 0, 0)
    assert not found.missing


def test_the_judge_tells_the_faults_apart() -> None:
    """A doubled, a reordered, a wrongly counted, an unknown and a missing output are each counted once."""
    assert judge(source("a"), outputs((0, "a", 1), (0, "a", 2))).doubled == 1
    assert judge(source("a", "a"), outputs((1, "a", 2), (0, "a", 1))).misordered == 1
    assert judge(source("a", "a"), outputs((0, "a", 1), (1, "a", 1))).miscounted == 1
    assert judge(source("a"), outputs((0, "a", 1), (7, "a", 2))).unknown == 1
    skipped, waiting = judge(source("a", "a"), outputs((1, "a", 2))), judge(source("a", "a"), outputs((0, "a", 1)))
    assert (skipped.missing, skipped.overtaken) == (frozenset({0}), 1)
    assert (waiting.missing, waiting.overtaken) == (frozenset({1}), 0)


def test_the_matrix_is_whole_and_can_be_cut_down() -> None:
    """Every log, fate and version is there once; options choose rows, columns or one case."""
    assert len(set(MATRIX)) == len(MATRIX) == len(LOGS) * len(FATES) * len(VERSIONS)
    assert chosen([], [], []) == list(MATRIX)
    assert chosen(["offsets"], ["killed"], [2]) == [Case("offsets", "killed", 2)]
    assert {case.fate for case in chosen(["signals"], [], [1])} == set(FATES)


def test_variants_come_in_turn() -> None:
    """The fourth run is as the first; a changelog is never led by broker 1 for a plain application."""
    case = Case("offsets", "killed", 1)
    assert [variant(case, run).name for run in (1, 2, 3, 4)] == [
        "stateful, quiet",
        "plain, quiet",
        "stateful, busy",
        "stateful, quiet",
    ]
    assert variant(Case("changelog", "killed", 1), 2).is_stateful


def test_the_table_says_what_is_wrong() -> None:
    """Runs stand side by side in a row; a case that was not run has no row."""
    case = Case("control", "rack", 1)
    good = Outcome(run=1, during=True, after=True, again=0, codes={"a": 0})
    bad = Outcome(run=2, doubled=3, during=True, after=False, again=4, codes={"a": None})
    assert good.faults == []
    assert bad.faults == ["3 doubled", "did not go on after it", "did not start again (4)"]
    (row,) = table([(case, [good, bad]), (Case("control", "killed", 1), [])]).splitlines()[2:]
    assert row.startswith("| control × rack, version 1 | 2 | 0 / 3 | 0 / 0 | 0 / 0 | 0 / 0 | 0.0 / 0.0 | yes / yes |")
    assert row.endswith("| yes / NO | a:0 / a:hung | yes / NO (4) |")


def test_the_longest_gap_has_both_ends() -> None:
    """Where nothing was committed at all, the gap is the whole time."""
    assert longest_gap([], 1.0, 5.0) == 4.0
    assert longest_gap([0.5, 2.0, 2.5, 9.0], 1.0, 5.0) == 2.5


def test_a_dialogue_hears_the_answer_to_its_own_request() -> None:
    """An answer counts when its number was asked by the same port, in a request of the kind."""

    def heard(kind: int, answered: int, port: int, code: int) -> int | None:
        dialogue = Dialogue(ADD_PARTITIONS)
        asks = dialogue.asks(Segment(True, MEMBER, PORT, BROKER, 9_092, struct.pack(">ihhi", 8, kind, 0, 11)))
        assert asks is (kind == ADD_PARTITIONS)
        return dialogue.code(Segment(False, MEMBER, port, BROKER, 9_092, struct.pack(">iiih", 10, answered, 0, code)))

    assert heard(ADD_PARTITIONS, 11, PORT, 0) == 0
    assert heard(ADD_PARTITIONS, 11, PORT, 51) == 51
    assert heard(ADD_PARTITIONS, 12, PORT, 0) is None
    assert heard(ADD_PARTITIONS, 11, PORT + 1, 0) is None
    assert heard(0, 11, PORT, 0) is None


def test_a_segment_is_read_from_a_packet() -> None:
    """Addresses, ports and payload; padding behind the packet is not part of it; an empty segment is none."""
    tcp = struct.pack(">HHIIBBHHH", PORT, 9_092, 0, 0, 5 << 4, 16, 0, 0, 0)
    addresses = bytes([10, 0, 0, 2, 10, 0, 0, 1])

    def packet(payload: bytes) -> bytes:
        return struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0) + addresses + tcp + payload

    assert parse(packet(b"hello") + b"\0\0", True) == Segment(True, MEMBER, PORT, BROKER, 9_092, b"hello")
    assert parse(packet(b"") + b"\0\0", True) is None
