"""How fast is lost state made whole again? A changelog of some GiB, read into an empty folder; then a warm restart.

Arms, one after the other in each round, each in a fresh process and an empty folder:

    bare    aiokafka's ``getmany``, each answer into one RocksDB ``WriteBatch``: the least that a restore has to do
    ours    the application's restore, with its checks, markers and keys
    sst     ``getmany``, sorted in memory in chunks, written as SST files, which RocksDB takes in as they are

All with the same RocksDB options, the same sizes of fetches and ``read_committed``. Beside ``sst`` stands the time that
went into the files alone: so fast is a range that comes as a file. Every arm's folder is checked: the number of records
and a sample of the values. At the end some more records are written, and the last folder of ``ours`` is restarted warm.
Required: ``ours`` has at least 0.8 of the records/s of ``bare``; the warm restart reads what was written, and no more
than that.
"""

import random
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import rocksdict
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as KafkaPartition

from keylanes import Settings
from keylanes.brokers.protocol import Outgoing, TopicPartition, TopicSpec
from keylanes.keyrange.hashing import point_of_key
from keylanes.keyrange.ranges import WHOLE
from keylanes.runtime.stores.restore import Restore, Restoring
from keylanes.runtime.watch.statistics import Progress
from keylanes.state.changelog import CHANGELOG_CONFIG, Beacon, encode_beacon, encode_stored, is_beacon_key
from keylanes.state.copies import open_copies
from keylanes.state.keys import state_key
from keylanes.state.restore import Writers
from keylanes.state.rocks import CACHE_BYTES, _cache, _options  # the options of all arms are those of ours
from rig.broker import LOAD_RECORDS, connected, running_broker
from rig.child import in_child, resident_bytes, run_coroutine
from rig.machine import surroundings
from rig.places import FOLDER
from rig.records import SEED, VALUE_BYTES
from rig.results import print_table, spread, verdict, write_result
from rig.rounds import arguments, rate_said, run_rounds
from rig.witness import WrongRun

TOPIC = "restore-changelog"
SOURCE = "restore-source"
ARMS = ("bare", "ours", "sst")
REQUIRED = 0.8
GIB = 1 << 30
ENTRY_BYTES = 22
"""A state key of this benchmark."""
SAMPLED = 2_000
SST_BYTES = 128 * 1024 * 1024
FETCH_BYTES = Settings().fetch_bytes_max
PARTITION_BYTES = 4 * 1024 * 1024

_filler = random.Random(SEED).randbytes(1 << 16)


# --- the changelog -------------------------------------------------------------------------------------------------


def entry(number: int, version: int, value_bytes: int) -> tuple[bytes, bytes]:
    """State key and stored value of a record."""
    key = b"key-%08d" % number
    start = (number * 7 + version) % (len(_filler) - value_bytes)
    return state_key(point_of_key(key), 0, key), encode_stored(_filler[start : start + value_bytes])


async def fill(address: str, options: dict[str, Any], numbers: range, version: int) -> None:
    """Write records round the partitions, and a beacon at the end of each."""
    async with connected(address) as broker:
        if version == 0:
            await broker.create([TopicSpec(TOPIC, options["partitions"], CHANGELOG_CONFIG)])
        partitions, appender = options["partitions"], broker.appender()
        for first in range(numbers.start, numbers.stop, LOAD_RECORDS):
            some = range(first, min(first + LOAD_RECORDS, numbers.stop))
            await appender.append(
                [Outgoing(TOPIC, n % partitions, *entry(n, version, options["value_bytes"])) for n in some]
            )
        beacon = encode_beacon(Beacon(1, version + 1))
        await appender.append([Outgoing(TOPIC, p, *beacon) for p in range(partitions)])


def run_fill(address: str, options: dict[str, Any], count: int, version: int) -> float:
    """Fill; the seconds that took."""
    began = time.perf_counter()
    run_coroutine(fill(address, options, range(count), version))
    return time.perf_counter() - began


async def answers(address: str, partitions: int) -> AsyncIterator[list[Any]]:
    """What ``getmany`` returns of all partitions, up to the ends as they are now."""
    sources = [KafkaPartition(TOPIC, p) for p in range(partitions)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address.removeprefix("kafka://"),
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


async def bare(address: str, folder: Path, options: dict[str, Any]) -> dict[str, float]:
    """One ``WriteBatch`` for what one partition answered."""
    database = opened(folder)
    began = time.perf_counter()
    count = 0
    async for records in answers(address, options["partitions"]):
        batch = rocksdict.WriteBatch(raw_mode=True)
        put = batch.put
        for record in records:
            put(record.key, record.value)
        database.write(batch)
        count += len(records)
    seconds = time.perf_counter() - began
    check(count, options, [database.get(key) for key, _ in sample(options)])
    database.close()
    return {"seconds": seconds, "records": count}


async def sst(address: str, folder: Path, options: dict[str, Any]) -> dict[str, float]:
    """Chunks sorted in memory, each a file that RocksDB takes in."""
    database = opened(folder)
    began = time.perf_counter()
    count, size, files_s = 0, 0, 0.0
    chunk: list[tuple[bytes, bytes]] = []

    def take_in() -> float:
        start = time.perf_counter()
        chunk.sort()
        path = str(folder / f"{count}.sst")
        writer = rocksdict.SstFileWriter(_options(_cache.at_least(CACHE_BYTES)))
        writer.open(path)
        for key, value in chunk:
            writer[key] = value
        writer.finish()
        database.ingest_external_file([path])
        chunk.clear()
        return time.perf_counter() - start

    async for records in answers(address, options["partitions"]):
        for record in records:
            if not is_beacon_key(
                record.key
            ):  # the same in each partition: once more in a file it would be out of order
                chunk.append((record.key, record.value))
                size += len(record.key) + len(record.value)
        count += len(records)
        if size >= SST_BYTES:
            files_s += take_in()
            size = 0
    if chunk:
        files_s += take_in()
    seconds = time.perf_counter() - began
    check(count, options, [database.get(key) for key, _ in sample(options)])
    database.close()
    return {"seconds": seconds, "records": count, "files_seconds": files_s}


async def ours(
    address: str, folder: Path, options: dict[str, Any], version: int = 0, *, warm: bool = False
) -> dict[str, float]:
    """The restore of all partitions."""
    told: list[Progress] = []
    opened_s = time.perf_counter()
    copies = open_copies(folder, app="restore", birth="bench")
    partitions = options["partitions"]
    held = [copies.copy(SOURCE, partition) for partition in range(partitions)]
    async with connected(address) as broker:
        began = time.perf_counter()
        await Restore(broker, Settings(), lambda progress: told.__setitem__(slice(None), [progress])).run(
            [
                Restoring(
                    TopicPartition(TOPIC, p), held[p], [WHOLE], Writers({1: version + 1}, frozenset([1])), lambda: None
                )
                for p in range(partitions)
            ]
        )
        ended = time.perf_counter()
    (last,) = told
    if not warm:
        wanted = zip(numbers(options), sample(options), strict=True)
        values = [held[number % partitions].get(key) for number, (key, _) in wanted]
        check(last.records, options, values)
    copies.close()
    return {"seconds": ended - began, "records": last.records, "seconds_with_opening": ended - opened_s}


def opened(folder: Path) -> rocksdict.Rdict:
    """An empty database with the options of ours."""
    folder.mkdir(parents=True)
    chosen = _options(_cache.at_least(CACHE_BYTES))
    chosen.create_if_missing(True)
    return rocksdict.Rdict(str(folder / "db"), chosen, column_families={"default": chosen})


def numbers(options: dict[str, Any]) -> Sequence[int]:
    """The records that are looked at."""
    return random.Random(SEED).sample(range(options["records"]), min(SAMPLED, options["records"]))


def sample(options: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    """What they are."""
    return [entry(number, 0, options["value_bytes"]) for number in numbers(options)]


def check(count: int, options: dict[str, Any], values: Sequence[bytes | None]) -> None:
    """Raises WrongRun unless all records came and the sampled values are right."""
    expected = options["records"] + options["partitions"]
    if count != expected:
        raise WrongRun(f"{count} records were read of {expected}")
    wrong = sum(value != wanted for value, (_, wanted) in zip(values, sample(options), strict=True))
    if wrong:
        raise WrongRun(f"{wrong} of {len(values)} values are wrong")


def run_arm(address: str, arm: str, options: dict[str, Any]) -> dict[str, float]:
    """One arm, in an empty folder."""
    folder = FOLDER / "restored" / arm
    shutil.rmtree(folder, ignore_errors=True)
    cpu_s = time.process_time()
    figures = run_coroutine({"bare": bare, "ours": ours, "sst": sst}[arm](address, folder, options))
    cpu_us = (time.process_time() - cpu_s) / figures["records"] * 1e6  # other work on the machine aside
    if arm != "ours":
        shutil.rmtree(folder, ignore_errors=True)
    rate = figures["records"] / figures["seconds"]
    return {**figures, "per_second": rate, "cpu_us_per_record": cpu_us, "resident_bytes": resident_bytes()}


def run_warm(address: str, options: dict[str, Any], version: int) -> dict[str, float]:
    """Restart on the folder that the last round left."""
    return run_coroutine(ours(address, FOLDER / "restored" / "ours", options, version, warm=True))


# --- the rounds ----------------------------------------------------------------------------------------------------


def main() -> int:
    """Run the rounds; 0 when what is required holds."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--gib", type=float, help="state in GiB (default 0.25; with --full 1)")
    parser.add_argument("--value-bytes", type=int, default=VALUE_BYTES)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--tail", type=int, default=10_000, help="records of the warm restart")
    parsed = parser.parse_args()
    if parsed.broker != "kafka":
        parser.error("the embedded broker keeps state by key: there is nothing to restore")
    gib = parsed.gib or (1.0 if parsed.full else 0.25)
    options = {
        "records": int(gib * GIB / (ENTRY_BYTES + 1 + parsed.value_bytes)),
        "value_bytes": parsed.value_bytes,
        "partitions": parsed.partitions,
        "tail": parsed.tail,
        "gib": gib,
        "seed": SEED,
    }
    where = surroundings()
    try:
        with running_broker("kafka", "restore") as address:
            filled_s = in_child(run_fill, address, options, options["records"], 0, limit_s=3_600)
            print(f"{options['records']:,} records in {options['partitions']} partitions, written in {filled_s:.0f} s")

            def run(arm: str, _: str) -> dict[str, float]:
                return in_child(run_arm, address, arm, options)

            rounds = run_rounds(parsed.rounds, ARMS, run, rate_said)
            unchanged = in_child(run_warm, address, options, 0)
            in_child(run_fill, address, options, options["tail"], 1)
            warm = in_child(run_warm, address, options, 1)
    finally:
        shutil.rmtree(FOLDER / "restored", ignore_errors=True)
    summary = summarise(rounds, options)
    result = {"settings": options, "rounds": rounds, "summary": summary, "unchanged": unchanged, "warm": warm}
    write_result("restore", {**where, **result})
    return report(options, summary, unchanged, warm)


def summarise(rounds: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    """Median and spread of each arm, and the ratios within the rounds."""
    size = options["records"] * (ENTRY_BYTES + 1 + options["value_bytes"])
    by_arm = {arm: [r for r in rounds if r["arm"] == arm] for arm in ARMS}
    arms = {
        arm: {
            "per_second": spread([r["per_second"] for r in mine]),
            "seconds": spread([r["seconds"] for r in mine]),
            "mb_per_second": spread([size / 1e6 / r["seconds"] for r in mine]),
            "cpu_us_per_record": spread([r["cpu_us_per_record"] for r in mine]),
            "resident_bytes": spread([r["resident_bytes"] for r in mine]),
        }
        for arm, mine in by_arm.items()
    }
    ratios = {
        arm: spread([a["per_second"] / b["per_second"] for a, b in zip(by_arm[arm], by_arm["bare"], strict=True)])
        for arm in ARMS
    }
    files = spread([size / 1e6 / r["files_seconds"] for r in by_arm["sst"]])
    return {"arms": arms, "ratio_to_bare": ratios, "sst_files_alone_mb_per_second": files}


def report(
    options: dict[str, Any], summary: dict[str, Any], unchanged: dict[str, float], warm: dict[str, float]
) -> int:
    """The tables, and what is required."""
    columns = ["arm", "records/s", "least", "greatest", "MB/s", "seconds", "CPU, µs/record", "of bare", "memory, MB"]
    rows = []
    for arm, figures in summary["arms"].items():
        rate = figures["per_second"]
        others = [figures[name]["median"] for name in ("mb_per_second", "seconds", "cpu_us_per_record")]
        ratio, memory = summary["ratio_to_bare"][arm]["median"], figures["resident_bytes"]["median"] / 1e6
        rows.append([arm, rate["median"], rate["least"], rate["greatest"], *others, ratio, memory])
    print_table(f"{options['gib']:g} GiB of state, {options['records']:,} records", columns, rows)
    files = summary["sst_files_alone_mb_per_second"]["median"]
    print(f"sorting, writing and taking in SST files alone: {files:,.0f} MB/s")
    for what, figures in (("nothing new", unchanged), (f"{options['tail']:,} new records", warm)):
        took = f"{figures['seconds']:.2f} s ({figures['seconds_with_opening']:.2f} s with opening)"
        print(f"warm restart, {what}: {figures['records']:,} records read, {took}")
    ratio = summary["ratio_to_bare"]["ours"]["median"]
    tail = options["tail"] + options["partitions"]
    holds = [
        verdict(f"ours has at least {REQUIRED:g} of bare: {ratio:.2f}", ratio >= REQUIRED),
        verdict("a warm restart reads its tail only", (unchanged["records"], warm["records"]) == (0, tail)),
    ]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
