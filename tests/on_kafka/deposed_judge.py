"""What the application of the deposed leader wrote, judged by another client and plain Python, without keylanes.

For a source of ids with keys the application promises one output for each record, under the record's key, in the order
of the key's records, with the rank of the record among those of its key. A plain application says 0 for the rank.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .cluster_check import Row, read


class Judgement(NamedTuple):
    """How many records there are, how many outputs, and what is not as promised."""

    records: int
    outputs: int
    doubled: int
    misordered: int
    miscounted: int
    unknown: int
    """Outputs of records that are not there."""
    missing: frozenset[int]
    """Ids without an output."""
    overtaken: int
    """How many of these have an output of a later record of their key: nobody will process them any more."""


class _Place(NamedTuple):
    """Where a record stands: partition, key, and its rank among the key's records."""

    partition: int
    key: bytes | None
    rank: int


def judge(source: Iterable[Row], outputs: Sequence[Row]) -> Judgement:
    """Compare outputs with their source, in which no two partitions have a key in common.

    Of a doubled output only the first is looked at for order and count.
    """
    places = _places(source)
    seen, last = Counter[int](), defaultdict[bytes | None, int](int)
    misordered = miscounted = unknown = 0
    for row in sorted(outputs):
        value = json.loads(row.value)
        number = int(value["id"])
        seen[number] += 1
        place = places.get(number)
        if place is None:
            unknown += 1
        elif seen[number] == 1:
            misordered += row.key != place.key or place.rank < last[place.key]
            miscounted += value["count"] not in (0, place.rank)
            last[place.key] = max(last[place.key], place.rank)
    doubled = sum(count - 1 for count in seen.values())
    missing = frozenset(places.keys() - seen.keys())
    overtaken = sum(places[number].rank < last[places[number].key] for number in missing)
    return Judgement(len(places), len(outputs), doubled, misordered, miscounted, unknown, missing, overtaken)


def _places(source: Iterable[Row]) -> dict[int, _Place]:
    """By id. An id that is in the source twice is a fault of the loader: ValueError."""
    places: dict[int, _Place] = {}
    ranks = Counter[tuple[int, bytes | None]]()
    for row in sorted(source):
        number, key = int(row.value), (row.partition, row.key)
        if number in places:
            raise ValueError(f"the source holds {number} twice: the loader's own producer doubled it")
        ranks[key] += 1
        places[number] = _Place(*key, ranks[key])
    return places


def judge_topics(bootstrap: str, source: str, output: str, settings: dict[str, str]) -> Judgement:
    """Read both topics as a committed reader and judge; raises TimeoutError when an end can't be reached."""
    return judge(read(bootstrap, source, settings), read(bootstrap, output, settings))
