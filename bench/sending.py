"""How fast is ``app.send`` beside aiokafka's idempotent producer? Many calls at a time, in a running application.

Both send values of 100 bytes to topics of their own, in one process and on one event loop. In a round each of so many
callers sends ten records, one after the other, each acknowledged before the next; every other round begins with the
other arm. Each record must be there at the end. Required: at least half of aiokafka's rate (median of the rounds), and
50,000 calls at once, in a run and outside of one, without an error.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaProducer

from keylanes import App
from keylanes.brokers.protocol import TopicPartition, TopicSpec
from rig.broker import connected, running_broker
from rig.machine import surroundings
from rig.records import VALUE_BYTES, key_bytes
from rig.results import print_table, spread, verdict, write_result
from rig.rounds import Figures, arguments
from rig.witness import WrongRun

OURS, THEIRS = "keylanes", "aiokafka"
CALLS_EACH = 10
BURST = 50_000
REQUIRED = 0.5

Send = Callable[[bytes], Awaitable[Any]]


async def sent(send: Send, callers: int) -> Figures:
    """The rate, and the processor time of this process for a record."""

    async def call(number: int) -> None:
        for _ in range(CALLS_EACH):
            await send(key_bytes(number))

    began, began_cpu, count = time.perf_counter(), time.process_time(), callers * CALLS_EACH
    await asyncio.gather(*(call(number) for number in range(callers)))
    wall, processor = time.perf_counter() - began, time.process_time() - began_cpu
    return {"per_second": count / wall, "processor_us": processor / count * 1e6}


async def burst(send: Send) -> float:
    """The seconds that many calls at once take; raises the first error."""
    began = time.perf_counter()
    await asyncio.gather(*(send(key_bytes(number)) for number in range(BURST)))
    return time.perf_counter() - began


async def measure(address: str, rounds: int, callers: int, partitions: int) -> tuple[list[Figures], dict[str, float]]:
    """The figures of each round and arm, and the seconds of the bursts."""
    app, figures = App("bench-sending", broker=address), list[Figures]()

    @app.handler("in")
    async def handle(value: bytes) -> None: ...

    producer = AIOKafkaProducer(bootstrap_servers=address.removeprefix("kafka://"), enable_idempotence=True)
    value = "x" * VALUE_BYTES

    async def ours(key: bytes) -> None:
        await app.send(OURS, value, key=key)

    async def theirs(key: bytes) -> None:
        await producer.send_and_wait(THEIRS, value.encode(), key=key)

    arms: list[tuple[str, Send]] = [(OURS, ours), (THEIRS, theirs)]
    async with connected(address) as broker:
        await broker.create([TopicSpec(topic, partitions, {}) for topic in (OURS, THEIRS, "in")])
        await producer.start()
        async with app:
            for number in range(rounds):
                for arm, send in arms[::-1] if number % 2 else arms:
                    figures.append({"round": number, "arm": arm, **await sent(send, callers)})
                    print(f"  round {number}: {arm}: {figures[-1]['per_second']:,.0f} records/s", flush=True)
            seconds = {"in a run": await burst(ours)}
        seconds["outside of a run"] = await burst(ours)
        await app.close()
        await producer.stop()
        for topic, count in (
            (OURS, rounds * callers * CALLS_EACH + 2 * BURST),
            (THEIRS, rounds * callers * CALLS_EACH),
        ):
            marks = await broker.watermarks([TopicPartition(topic, partition) for partition in range(partitions)])
            if (there := sum(mark.high for mark in marks.values())) != count:
                raise WrongRun(f"{topic}: {count} records were acknowledged, {there} are there")
    return figures, seconds


def main() -> int:
    """Run all rounds; 0 when what is required holds."""
    parser = arguments(__doc__, rounds=9)
    parser.add_argument("--callers", type=int, default=2_000)
    parser.add_argument("--partitions", type=int, default=12)
    parsed = parser.parse_args()
    with running_broker("kafka", "sending") as address:
        figures, seconds = asyncio.run(measure(address, parsed.rounds, parsed.callers, parsed.partitions))
    rates = {arm: [one["per_second"] for one in figures if one["arm"] == arm] for arm in (OURS, THEIRS)}
    ratios = spread([ours / theirs for ours, theirs in zip(rates[OURS], rates[THEIRS], strict=True)])
    rows = []
    for arm in (OURS, THEIRS):
        processor = [one["processor_us"] for one in figures if one["arm"] == arm]
        rows.append([arm, *spread(rates[arm]).values(), *spread(processor).values()])
    print_table(
        f"{parsed.callers:,} callers, {parsed.partitions} partitions",
        ("arm", "records/s", "least", "greatest", "µs of processor", "least", "greatest"),
        rows,
    )
    print(f"{OURS} / {THEIRS}: {ratios['median']:.2f} ({ratios['least']:.2f} to {ratios['greatest']:.2f})")
    print(f"{BURST:,} calls at once: " + ", ".join(f"{took:.1f} s {where}" for where, took in seconds.items()))
    write_result("sending", {**surroundings(), "rounds": figures, "ratios": ratios, "burst_s": seconds})
    return 0 if verdict(f"at least {REQUIRED} of {THEIRS}'s rate", ratios["median"] >= REQUIRED) else 1


if __name__ == "__main__":
    sys.exit(main())
