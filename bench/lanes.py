"""How much faster are lanes than one record at a time? One partition, 10,000 keys, a handler that awaits 5 ms.

Two arms with the same handler on the same topic: keylanes, and a plain loop (aiokafka's getmany, no commits) that
awaits the handler record after record, on a prefix, since all of it would take minutes. The clock runs from the first
record's begin to the last one's end. Required: at least 100 times the throughput.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from keylanes import App
from keylanes.brokers.protocol import TopicPartition
from rig.broker import connected, fill, running_broker
from rig.child import in_child, run_coroutine
from rig.machine import surroundings
from rig.records import SEED, VALUE_BYTES, uniform_keys
from rig.results import print_table, spread, verdict, write_result
from rig.rounds import arguments, rate_said, run_rounds
from rig.witness import Witness

TOPIC = "lanes-source"
FETCH_RECORDS = 2_000
REQUIRED = 100.0
PLAIN_SECONDS_MAX = 20.0


def keylanes_arm(address: str, app_name: str, options: dict[str, Any]) -> dict[str, float]:
    """All records, through an application."""
    keys = uniform_keys(options["records"], options["keys"])
    witness, app = Witness(keys), App(app_name, broker=address)
    seconds, cpu_us = options["handler_ms"] / 1_000, 0.0

    @app.handler(TOPIC, parallelising_factor=options["workers"])
    async def handle(value: bytes) -> None:
        nonlocal cpu_us
        key = witness.begin(value)
        await asyncio.sleep(seconds)
        witness.end(key)
        if witness.handled == len(keys):
            cpu_us = witness.cpu_us_per_record()

    app.run(until="level")
    witness.check()
    seen = app.statistics()
    return {
        "records": witness.handled,
        "seconds": witness.seconds,
        "per_second": witness.handled / witness.seconds,
        "cpu_us_per_record": cpu_us,
        "pause_ms_max": witness.pause_s_max * 1_000,
        "commits": seen.commits,
        "loop_lag_ms_max": seen.loop_lag_ms_max,
    }


def plain_arm(address: str, app_name: str, options: dict[str, Any]) -> dict[str, float]:
    """A prefix of the records, each awaited before the next one."""
    del app_name
    keys = uniform_keys(options["records"], options["keys"])[: options["prefix"]]
    witness = Witness(keys)
    seconds = options["handler_ms"] / 1_000

    async def handle(value: bytes) -> None:
        key = witness.begin(value)
        await asyncio.sleep(seconds)
        witness.end(key)

    async def loop() -> None:
        async with contextlib.aclosing(batches(address)) as source:
            async for values in source:
                for value in values:
                    await handle(value)
                    if witness.handled == len(keys):
                        return

    run_coroutine(loop())
    witness.check()
    return {"records": witness.handled, "seconds": witness.seconds, "per_second": witness.handled / witness.seconds}


async def batches(address: str) -> AsyncGenerator[Sequence[bytes], None]:
    """The topic's values as a plain consumer gets them."""
    if address.startswith("embedded:"):
        async with connected(address) as broker:
            reader = await broker.reader({TopicPartition(TOPIC, 0): 0})
            while True:
                for batch in await reader.fetch([TopicPartition(TOPIC, 0)], records_max=FETCH_RECORDS, wait_ms=100):
                    yield [record.value or b"" for record in batch.records]
    from aiokafka import AIOKafkaConsumer  # it is not needed beside the embedded broker

    servers = address.removeprefix("kafka://")
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=servers, group_id=None, auto_offset_reset="earliest")
    await consumer.start()
    try:
        while True:
            for records in (await consumer.getmany(timeout_ms=100, max_records=FETCH_RECORDS)).values():
                yield [record.value or b"" for record in records]
    finally:
        await consumer.stop()


ARMS = {"keylanes": keylanes_arm, "one at a time": plain_arm}


def main() -> int:
    """Run the rounds; 0 when the requirement holds."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--records", type=int, help="records (default 150,000; with --full 500,000)")
    parser.add_argument("--prefix", type=int, help="records of the plain arm (default 1,000; with --full 3,000)")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=1_000, help="the parallelising factor (default 1,000)")
    parser.add_argument("--handler-ms", type=float, default=5.0)
    parsed = parser.parse_args()
    options = {
        "records": parsed.records or (500_000 if parsed.full else 150_000),
        "prefix": parsed.prefix or (3_000 if parsed.full else 1_000),
        "keys": parsed.keys,
        "value_bytes": VALUE_BYTES,
        "seed": SEED,
        "workers": parsed.workers,
        "handler_ms": parsed.handler_ms,
        "broker": parsed.broker,
    }
    where = surroundings()
    with running_broker(parsed.broker, "lanes") as address:
        in_child(fill, address, TOPIC, uniform_keys(options["records"], options["keys"]))

        def run(arm: str, suffix: str) -> dict[str, float]:
            return in_child(ARMS[arm], address, f"lanes-{suffix}", options)

        rounds = run_rounds(parsed.rounds, list(ARMS), run, rate_said)
    summary = summarise(rounds)
    write_result("lanes", {**where, "settings": options, "rounds": rounds, "summary": summary})
    return report(options, rounds, summary)


def summarise(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and spread per arm, and of the ratio within each round."""
    rates = {arm: [r["per_second"] for r in rounds if r["arm"] == arm] for arm in ARMS}
    ratios = [fast / slow for fast, slow in zip(*rates.values(), strict=True)]
    cpu = spread([r["cpu_us_per_record"] for r in rounds if r["arm"] == "keylanes"])
    by_arm = {arm: spread(values) for arm, values in rates.items()}
    return {**by_arm, "keylanes cpu_us_per_record": cpu, "ratio": spread(ratios)}


def report(options: dict[str, Any], rounds: list[dict[str, Any]], summary: dict[str, Any]) -> int:
    """The table and the verdict."""
    rows = []
    for arm in ARMS:
        records = next(r["records"] for r in rounds if r["arm"] == arm)
        rate = summary[arm]
        rows.append([arm, records, rate["median"], rate["least"], rate["greatest"]])
    print_table(
        f"{options['keys']:,} keys on one partition, {options['workers']:,} workers, handler awaits "
        f"{options['handler_ms']:g} ms, {options['broker']}: records/s",
        ["arm", "records", "median", "least", "greatest"],
        rows,
    )
    plain = max(r["seconds"] for r in rounds if r["arm"] == "one at a time")
    print(f"One at a time: a prefix of {options['prefix']:,} records in {plain:.1f} s.")
    ratio = summary["ratio"]
    cpu = summary["keylanes cpu_us_per_record"]["median"]
    print(f"Processor time of the keylanes process: {cpu:.1f} µs a record.")
    print(f"Ratio within a round: {ratio['median']:.0f} ({ratio['least']:.0f} to {ratio['greatest']:.0f}).")
    results = [
        verdict(f"the prefix took at most {PLAIN_SECONDS_MAX:g} s", plain <= PLAIN_SECONDS_MAX),
        verdict(f"at least {REQUIRED:g} times one at a time", ratio["median"] >= REQUIRED),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
