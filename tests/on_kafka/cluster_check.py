"""What the application under cluster chaos wrote, judged by another client and plain Python, without keylanes.

The application promises, for a source of numbers 0, 1, 2, … with keys:

    source -> mid    one record for each sound one, under the key of its group; count and sum are those of its own key
    source -> dead   a record without a key, or whose number is poison
    mid    -> fin    one record for each of mid; count, sum and weighted are those of its group

Run as a program (``cluster_check.py BOOTSTRAP``) it prints what it found as JSON.
"""

import itertools
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

SOURCE, MID, FIN, DEAD = "source", "mid", "fin", "dead"
POISON, GROUPS = 500, 97
READ_S = 120.0


class Row(NamedTuple):
    """A record that a committed reader sees. ``timestamp`` in ms."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    timestamp: int = 0


class Expected(NamedTuple):
    """What must be there once. ``chain``: whose order it keeps, ``place``: where it stands in that order."""

    key: bytes | None
    value: object
    chain: object
    place: int


def read(bootstrap: str, topic: str, settings: Mapping[str, str] | None = None) -> list[Row]:
    """All that is committed in a topic, partition by partition; raises TimeoutError when its end can't be reached."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "cluster-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
            **(settings or {}),
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions
        ends = {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=READ_S)[1]
            for number in partitions
        }
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        return sorted(_until(consumer, {number: end for number, end in ends.items() if end}, topic))
    finally:
        consumer.close()


def _until(consumer: Consumer, ends: dict[int, int], topic: str) -> list[Row]:
    """Read until every partition has been read to its end."""
    rows: list[Row] = []
    until = time.monotonic() + READ_S
    while ends:
        if time.monotonic() > until:
            raise TimeoutError(f"{topic}: the committed records end below {ends}: is a transaction open there?")
        for message in consumer.consume(10_000, 0.5):
            error, number = message.error(), message.partition()
            if error is None:
                rows.append(Row(number, message.offset(), message.key(), message.value(), message.timestamp()[1]))
            elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= ends.get(number, 0):
                ends.pop(number, None)
    return rows


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """The longest time between two neighbours of ``times`` within ``[begin, end]``, both of which count as such."""
    within = [begin, *(at for at in times if begin < at < end), end]
    return max(after - before for before, after in itertools.pairwise(within))


def judge(rows: Mapping[str, Sequence[Row]]) -> Counter[str]:
    """Everything that is not as promised, by topic and kind; empty when all is well."""
    found: Counter[str] = Counter()
    sound, letters = _expected_of_source(rows[SOURCE], found)
    found += _compared(MID, sound, rows[MID])
    found += _compared(DEAD, letters, rows[DEAD])
    found += _compared(FIN, _expected_of_mid(rows[MID]), rows[FIN])
    return found


def _expected_of_source(
    rows: Iterable[Row], found: Counter[str]
) -> tuple[dict[int, list[Expected]], dict[int, list[Expected]]]:
    """What mid and dead must hold, by number."""
    sound: dict[int, list[Expected]] = defaultdict(list)
    letters: dict[int, list[Expected]] = defaultdict(list)
    counts: Counter[object] = Counter()
    sums: Counter[object] = Counter()
    for row in sorted(rows):
        number = int(row.value)
        chain = (row.partition, row.key)
        if row.key is None or number % POISON == 7:
            letters[number].append(Expected(row.key, number, None, row.offset))
            continue
        counts[chain] += 1
        sums[chain] += number
        value = {"key": row.key.decode(), "value": number, "count": counts[chain], "sum": sums[chain]}
        sound[number].append(Expected(b"g%d" % (number % GROUPS), value, chain, row.offset))
    found["source doubled"] += sum(len(one) - 1 for all_ in (sound, letters) for one in all_.values())
    return sound, letters


def _expected_of_mid(rows: Iterable[Row]) -> dict[int, list[Expected]]:
    """What fin must hold, by number: the fold of mid as it is."""
    expected: dict[int, list[Expected]] = defaultdict(list)
    folds: dict[object, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in sorted(rows):
        number = int(json.loads(row.value)["value"])
        fold = folds[row.partition, row.key]
        fold[0] += 1
        fold[1] += number
        fold[2] += fold[0] * number
        value = {"value": number, "count": fold[0], "sum": fold[1], "weighted": fold[2]}
        expected[number].append(Expected(row.key, value, (row.partition, row.key), row.offset))
    return expected


def _compared(topic: str, expected: Mapping[int, Sequence[Expected]], rows: Iterable[Row]) -> Counter[str]:
    """What is lost, doubled, wrong or out of order in a topic. Numbers that are there twice are paired in order."""
    found: Counter[str] = Counter()
    seen: Counter[int] = Counter()
    last: dict[object, int] = {}
    for row in sorted(rows):
        value: Any = json.loads(row.value)
        number = int(value["value"] if isinstance(value, dict) else value)
        wanted = expected.get(number, ())
        at = seen[number]
        seen[number] += 1
        if at >= len(wanted):
            found[f"{topic} doubled" if wanted else f"{topic} wrong"] += 1
            continue
        one = wanted[at]
        if row.key != one.key or value != one.value:
            found[f"{topic} wrong"] += 1
        if one.chain is not None:
            stream = (one.chain, row.partition)
            found[f"{topic} reordered"] += one.place <= last.get(stream, -1)
            last[stream] = one.place
    found[f"{topic} lost"] += sum(max(0, len(wanted) - seen[number]) for number, wanted in expected.items())
    return +found


def main(bootstrap: str) -> int:
    """Read and judge; exit code 1 when something is not as promised."""
    rows = {topic: read(bootstrap, topic) for topic in (SOURCE, MID, FIN, DEAD)}
    found = judge(rows)
    sys.stdout.write(json.dumps({"found": found, "read": {topic: len(one) for topic, one in rows.items()}}) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
