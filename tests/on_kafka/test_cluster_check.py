"""The independent check of cluster chaos: it takes what an honest run wrote, and finds each defect planted in it."""

import ast
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from . import cluster_check
from .cluster_check import DEAD, FIN, GROUPS, MID, POISON, SOURCE, Row, judge

Rows = dict[str, list[Row]]
PARTITIONS, RECORDS = 3, 2_000


def honest() -> Rows:
    """What one worker would write that handles a record after the other; the promise in other words."""
    rows: Rows = {SOURCE: [], MID: [], FIN: [], DEAD: []}
    ends: Counter[tuple[str, int]] = Counter()

    def append(topic: str, partition: int, key: bytes | None, value: object) -> Row:
        rows[topic].append(Row(partition, ends[topic, partition], key, json.dumps(value).encode()))
        ends[topic, partition] += 1
        return rows[topic][-1]

    keys: dict[bytes, list[int]] = {}
    groups: dict[bytes, list[int]] = {}
    for number in range(RECORDS):
        key = None if number % 1_000 == 999 else b"k%d" % (number % 40)
        append(SOURCE, number % 40 % PARTITIONS, key, number)
        if key is None or number % POISON == 7:
            append(DEAD, 0, key, number)
            continue
        keys.setdefault(key, []).append(number)
        group, of_key = b"g%d" % (number % GROUPS), keys[key]
        value = {"key": key.decode(), "value": number, "count": len(of_key), "sum": sum(of_key)}
        where = append(MID, number % GROUPS % PARTITIONS, group, value)
        groups.setdefault(group, []).append(number)
        of_group = groups[group]
        weighted = sum(at * one for at, one in enumerate(of_group, 1))
        fin = {"value": number, "count": len(of_group), "sum": sum(of_group), "weighted": weighted}
        append(FIN, where.partition, group, fin)
    return rows


def lose(rows: Rows, topic: str) -> None:
    """One record is not there."""
    del rows[topic][len(rows[topic]) // 2]


def double(rows: Rows, topic: str) -> None:
    """One record is there twice."""
    row = rows[topic][len(rows[topic]) // 2]
    rows[topic].append(row._replace(offset=RECORDS + 1))


def change(rows: Rows, topic: str, name: str) -> None:
    """One number in one value is another."""
    at = len(rows[topic]) // 2
    value = json.loads(rows[topic][at].value)
    value[name] += 1
    rows[topic][at] = rows[topic][at]._replace(value=json.dumps(value).encode())


def swap(rows: Rows, topic: str, same: Callable[[Row], object]) -> None:
    """Two records of one key have changed places."""
    first = next(i for i, row in enumerate(rows[topic]) if row.partition == 1)
    other = next(i for i in range(first + 1, RECORDS) if same(rows[topic][i]) == same(rows[topic][first]))
    a, b = rows[topic][first], rows[topic][other]
    rows[topic][first], rows[topic][other] = b._replace(offset=a.offset), a._replace(offset=b.offset)


def rekey(rows: Rows, topic: str) -> None:
    """One record has the key of another."""
    at = len(rows[topic]) // 2
    rows[topic][at] = rows[topic][at]._replace(key=b"g0" if rows[topic][at].key != b"g0" else b"g1")


def of_key(row: Row) -> object:
    """Records of one key of the source that are in one partition."""
    return row.partition, json.loads(row.value)["key"]


PLANTED: dict[str, tuple[Callable[[Rows], None], str]] = {
    "lost in mid": (lambda rows: lose(rows, MID), "mid lost"),
    "lost in fin": (lambda rows: lose(rows, FIN), "fin lost"),
    "lost in dead": (lambda rows: lose(rows, DEAD), "dead lost"),
    "doubled in mid": (lambda rows: double(rows, MID), "mid doubled"),
    "doubled in fin": (lambda rows: double(rows, FIN), "fin doubled"),
    "doubled in dead": (lambda rows: double(rows, DEAD), "dead doubled"),
    "swapped in mid": (lambda rows: swap(rows, MID, of_key), "mid reordered"),
    "swapped in fin": (lambda rows: swap(rows, FIN, lambda row: row.key), "fin reordered"),
    "wrong sum in mid": (lambda rows: change(rows, MID, "sum"), "mid wrong"),
    "wrong count in mid": (lambda rows: change(rows, MID, "count"), "mid wrong"),
    "wrong sum in fin": (lambda rows: change(rows, FIN, "sum"), "fin wrong"),
    "wrong weighted in fin": (lambda rows: change(rows, FIN, "weighted"), "fin wrong"),
    "wrong key in mid": (lambda rows: rekey(rows, MID), "mid wrong"),
    "wrong key in dead": (lambda rows: rekey(rows, DEAD), "dead wrong"),
    "never in the source": (lambda rows: lose(rows, SOURCE), "wrong"),
    "a source written twice": (lambda rows: double(rows, SOURCE), "source doubled"),
}


def test_an_honest_run_passes() -> None:
    """Nothing is found in what was written as promised; a handler may come late with its outputs."""
    rows = honest()
    assert judge(rows) == {}
    assert {topic: len(found) > 0 for topic, found in rows.items()} == dict.fromkeys((SOURCE, MID, FIN, DEAD), True)
    assert len(rows[MID]) + len(rows[DEAD]) == RECORDS


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found(name: str) -> None:
    """Each defect is found, under its name."""
    defect, kind = PLANTED[name]
    rows = honest()
    defect(rows)
    found = judge(rows)
    assert any(one.endswith(kind) for one in found), found


def test_nothing_of_ours_is_used() -> None:
    """The check imports the standard library and confluent-kafka, and nothing else."""
    tree = ast.parse(Path(cluster_check.__file__).read_text())
    named = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    }
    assert named <= {*sys.stdlib_module_names, "confluent_kafka"}
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))
