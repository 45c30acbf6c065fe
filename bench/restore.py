"""How fast is lost state made whole again? A changelog of 0.25 GiB, read into an empty folder; then a warm restart.

Arms, one after the other in each round, each in a fresh process and an empty folder:

    bare    aiokafka's ``getmany``, each answer into one RocksDB ``WriteBatch``: the least that a restore has to do
    ours    the application's restore, with its checks, markers and keys

Both with the same RocksDB options, the same sizes of fetches and ``read_committed``. Every arm's folder is checked: the
number of records and a sample of the values. At the end some more records are written, and the last folder of ``ours``
is restarted warm. Required: ``ours`` has at least 0.8 of the records/s of ``bare``; the warm restart reads what was
written, and no more than that.

    --full    1 GiB
"""

import asyncio
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import rocksdict
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as KafkaPartition

from keylanes import Settings
from keylanes.brokers.protocol import Outgoing, TopicPartition, TopicSpec
from keylanes.keyrange.hashing import point_of_key
from keylanes.keyrange.ranges import WHOLE
from keylanes.runtime.stores.copy_pass import CopyMeans, CopyPass
from keylanes.runtime.stores.copy_writes import CopyWrites
from keylanes.runtime.stores.restore import Restore
from keylanes.runtime.stores.storage import StateThreads
from keylanes.runtime.watch.statistics import Progress
from keylanes.state.changelog import CHANGELOG_CONFIG, Beacon, encode_beacon, encode_stored
from keylanes.state.copies import open_copies
from keylanes.state.copy_readiness import points_of
from keylanes.state.keys import state_key
from keylanes.state.restore import Writers
from keylanes.state.rocks import CACHE_BYTES, _cache, _options  # the options of all arms are those of ours
from rig.broker import connected, running_broker
from rig.child import in_child, resident_bytes, run_coroutine
from rig.errors import WrongRun
from rig.machine import surroundings
from rig.places import FOLDER
from rig.records import SEED, VALUE_BYTES
from rig.results import print_table, verdict, write_result
from rig.rounds import arguments, run_rounds

TOPIC = "restore-changelog"
SOURCE = "restore-source"
ARMS = ("bare", "ours")
REQUIRED = 0.8
GIB = 1 << 30
RECORD_BYTES = 22 + 1 + VALUE_BYTES
"""A state key of this benchmark, and a stored value."""
SAMPLED = 2_000
PARTITIONS, TAIL = 4, 10_000
"""Of the changelog; the tail are the records of the warm restart."""
APPEND_RECORDS = 5_000
FETCH_BYTES = Settings().limits.fetch_bytes_max
PARTITION_BYTES = 4 * 1024 * 1024

_filler = random.Random(SEED).randbytes(1 << 16)


# --- the changelog -------------------------------------------------------------------------------------------------


def entry(number: int, version: int) -> tuple[bytes, bytes]:
    """State key and stored value of a record."""
    key = b"key-%08d" % number
    start = (number * 7 + version) % (len(_filler) - VALUE_BYTES)
    return state_key(point_of_key(key), 0, key), encode_stored(_filler[start : start + VALUE_BYTES])


async def fill(bootstrap: str, count: int, version: int) -> None:
    """Write records round the partitions, and a beacon at the end of each."""
    async with connected(bootstrap) as broker:
        if version == 0:
            await broker.create([TopicSpec(TOPIC, PARTITIONS, CHANGELOG_CONFIG)])
        appender = broker.appender()
        for first in range(0, count, APPEND_RECORDS):
            some = range(first, min(first + APPEND_RECORDS, count))
            await appender.append([Outgoing(TOPIC, n % PARTITIONS, *entry(n, version)) for n in some])
        beacon = encode_beacon(Beacon(1, version + 1))
        await appender.append([Outgoing(TOPIC, p, *beacon) for p in range(PARTITIONS)])


def run_fill(bootstrap: str, count: int, version: int) -> float:
    """Fill; the seconds that took."""
    began = time.perf_counter()
    run_coroutine(fill(bootstrap, count, version))
    return time.perf_counter() - began


async def answers(bootstrap: str) -> AsyncIterator[list[Any]]:
    """What ``getmany`` returns of all partitions, up to the ends as they are now."""
    sources = [KafkaPartition(TOPIC, p) for p in range(PARTITIONS)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=PARTITION_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign(sources)
        ends = await consumer.end_offsets(sources)
        left = sum(ends.values())
        while left > 0:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                left -= len(records)
                yield records
    finally:
        await consumer.stop()


# --- the arms ------------------------------------------------------------------------------------------------------


async def bare(bootstrap: str, folder: Path, written: int) -> dict[str, float]:
    """One ``WriteBatch`` for what one partition answered."""
    database = opened(folder)
    began = time.perf_counter()
    count = 0
    async for records in answers(bootstrap):
        batch = rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for record in records:
            put(record.key, record.value)
        database.write(batch)
        count += len(records)
    seconds = time.perf_counter() - began
    check(count, written, [database.get(key) for key, _ in sample(written)])
    database.close()
    return {"seconds": seconds, "records": count}


async def ours(bootstrap: str, folder: Path, written: int) -> dict[str, float]:
    """The restore of all partitions into an empty folder."""
    return await restored(bootstrap, folder, 0, written)


async def restored(bootstrap: str, folder: Path, version: int, written: int | None) -> dict[str, float]:
    """What a start restores into a folder. ``written``: how many records an empty one must have then, None for a folder
    that was restored before.
    """
    told: list[Progress] = []
    opened_s = time.perf_counter()
    copies = open_copies(folder, app="restore", birth="bench")
    held = [copies.copy(SOURCE, partition) for partition in range(PARTITIONS)]
    async with connected(bootstrap) as broker:
        began = time.perf_counter()
        settings = Settings()
        means = CopyMeans(broker, settings, lambda: int(time.time() * 1000), CopyWrites(settings, StateThreads()))
        lanes = asyncio.Semaphore(settings.limits.restore_partitions_max)
        passes = [
            CopyPass((SOURCE, p), TopicPartition(TOPIC, p), held[p], points_of([WHOLE]), has_end=True)
            for p in range(PARTITIONS)
        ]
        for one in passes:
            one.writers = Writers({1: version + 1}, frozenset([1]))
        await Restore(means, lanes, told.append, lambda _: None).run(passes)
        ended = time.perf_counter()
    last = told[-1]
    if written is not None:
        wanted = zip(numbers(written), sample(written), strict=True)
        check(last.records, written, [held[number % PARTITIONS].get(key) for number, (key, _) in wanted])
    copies.close()
    return {"seconds": ended - began, "records": last.records, "seconds_with_opening": ended - opened_s}


def opened(folder: Path) -> rocksdict.Rdict:
    """An empty database with the options of ours."""
    folder.mkdir(parents=True)
    chosen = _options(_cache.at_least(CACHE_BYTES))
    chosen.create_if_missing(True)
    return rocksdict.Rdict(str(folder / "db"), chosen, column_families={"default": chosen})


def numbers(written: int) -> Sequence[int]:
    """The records that are looked at."""
    return random.Random(SEED).sample(range(written), min(SAMPLED, written))


def sample(written: int) -> list[tuple[bytes, bytes]]:
    """Their keys and values."""
    return [entry(number, 0) for number in numbers(written)]


def check(count: int, written: int, values: Sequence[bytes | None]) -> None:
    """Raises WrongRun unless all records came and the sampled values are right."""
    expected = written + PARTITIONS
    if count != expected:
        raise WrongRun(f"{count} records were read of {expected}")
    wrong = sum(value != wanted for value, (_, wanted) in zip(values, sample(written), strict=True))
    if wrong:
        raise WrongRun(f"{wrong} of {len(values)} values are wrong")


def run_arm(bootstrap: str, arm: str, written: int) -> dict[str, float]:
    """One arm, in an empty folder."""
    folder = FOLDER / "restored" / arm
    shutil.rmtree(folder, ignore_errors=True)
    cpu_s = time.process_time()
    figures = run_coroutine({"bare": bare, "ours": ours}[arm](bootstrap, folder, written))
    cpu_us = (time.process_time() - cpu_s) / figures["records"] * 1e6  # other work on the machine aside
    rate = figures["records"] / figures["seconds"]
    return {**figures, "per_second": rate, "cpu_us_per_record": cpu_us, "resident_bytes": resident_bytes()}


def run_warm(bootstrap: str, version: int) -> dict[str, float]:
    """Restart on the folder that the last round left."""
    return run_coroutine(restored(bootstrap, FOLDER / "restored" / "ours", version, None))


# --- the rounds ----------------------------------------------------------------------------------------------------


def main() -> int:
    """Run the rounds; 0 when what is required holds."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--full", action="store_true")
    parsed = parser.parse_args()
    gib = 1.0 if parsed.full else 0.25
    count = int(gib * GIB / RECORD_BYTES)
    where = surroundings()
    try:
        with running_broker("restore") as bootstrap:
            filled_s = in_child(run_fill, bootstrap, count, 0, limit_s=3_600)
            print(f"{count:,} records in {PARTITIONS} partitions, written in {filled_s:.0f} s")

            def run(arm: str, _: str) -> dict[str, float]:
                return in_child(run_arm, bootstrap, arm, count)

            rounds = run_rounds(parsed.rounds, ARMS, run, lambda figures: f"{figures['per_second']:,.0f} records/s")
            unchanged = in_child(run_warm, bootstrap, 0)
            in_child(run_fill, bootstrap, TAIL, 1)
            warm = in_child(run_warm, bootstrap, 1)
    finally:
        shutil.rmtree(FOLDER / "restored", ignore_errors=True)
    settings = {"gib": gib, "records": count, "partitions": PARTITIONS, "tail": TAIL, "seed": SEED}
    write_result("restore", {**where, "settings": settings, "rounds": rounds, "unchanged": unchanged, "warm": warm})
    return report(f"{gib:g} GiB of state, {count:,} records", rounds, count, unchanged, warm)


def report(
    title: str, rounds: list[dict[str, Any]], count: int, unchanged: dict[str, float], warm: dict[str, float]
) -> int:
    """The table, and what is required. The ratios are those of the rounds."""
    columns = ["arm", "records/s", "least", "greatest", "MB/s", "seconds", "CPU, µs/record", "of bare", "memory, MB"]
    by_arm = {arm: [run for run in rounds if run["arm"] == arm] for arm in ARMS}
    ratios, rows = {}, []
    for arm, own in by_arm.items():
        of_bare = zip(own, by_arm["bare"], strict=True)
        ratios[arm] = median(one["per_second"] / bare["per_second"] for one, bare in of_bare)
        rates = [one["per_second"] for one in own]
        names = ("seconds", "cpu_us_per_record", "resident_bytes")
        seconds, cpu_us, memory = (median(one[name] for one in own) for name in names)
        row = [arm, median(rates), min(rates), max(rates), count * RECORD_BYTES / 1e6 / seconds, seconds, cpu_us]
        rows.append([*row, ratios[arm], memory / 1e6])
    print_table(title, columns, rows)
    for what, figures in (("nothing new", unchanged), (f"{TAIL:,} new records", warm)):
        took = f"{figures['seconds']:.2f} s ({figures['seconds_with_opening']:.2f} s with opening)"
        print(f"warm restart, {what}: {figures['records']:,} records read, {took}")
    read = unchanged["records"], warm["records"]
    holds = [
        verdict(f"ours has at least {REQUIRED:g} of bare: {ratios['ours']:.2f}", ratios["ours"] >= REQUIRED),
        verdict("a warm restart reads its tail only", read == (0, TAIL + PARTITIONS)),
    ]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
