"""One process of a group that handles records by noting them: keylanes, or aiokafka's consumer group.

Called as ``python failover_apps.py ORDER.json``. A note is u64 nanoseconds of the system's monotonic clock, u32
partition, u64 offset, little-endian; it is written when the record was handled, straight to the system, so that what a
killed process noted stays. SIGTERM ends it in order.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from struct import Struct
from typing import Any

import uvloop

NOTE = Struct("<QIQ").pack
COMMIT_S = 0.1


def note(file: int, partition: int, offset: int) -> None:
    """A record was handled."""
    os.write(file, NOTE(time.monotonic_ns(), partition, offset))


def run_keylanes(order: dict[str, Any]) -> None:
    """Until SIGTERM."""
    from keylanes import App, Context, Settings

    handled = opened(order["notes"])
    app = App(
        order["group"],
        broker=f"kafka://{order['bootstrap']}",
        settings=Settings(
            commit_interval_ms=int(COMMIT_S * 1000),
            session_timeout_ms=order["session_ms"],
            group_instance_id=order["name"],
        ),
    )

    @app.handler(order["topic"], parallelising_factor=order["factor"])
    async def handle(_: bytes, ctx: Context) -> None:
        note(handled, ctx.partition, ctx.offset)

    app.run()


async def run_aiokafka(order: dict[str, Any]) -> None:
    """Until SIGTERM. What was handled is committed each 100 ms, before partitions are given up, and at the end."""
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener

    handled = opened(order["notes"])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=order["bootstrap"],
        group_id=order["group"],
        session_timeout_ms=order["session_ms"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    done: dict[Any, int] = {}

    class Commits(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
        async def on_partitions_revoked(self, _: Any) -> None:
            await commit()

        async def on_partitions_assigned(self, _: Any) -> None:
            done.clear()

    async def commit() -> None:
        taken = dict(done)
        done.clear()
        if taken:
            await consumer.commit(taken)

    consumer.subscribe([order["topic"]], listener=Commits())
    await consumer.start()
    committed_s = time.monotonic()
    try:
        while not stop.is_set():
            for place, records in (await consumer.getmany(timeout_ms=20)).items():
                for record in records:
                    note(handled, place.partition, record.offset)
                done[place] = records[-1].offset + 1
            if time.monotonic() - committed_s >= COMMIT_S:
                committed_s = time.monotonic()
                await commit()
        await commit()
    finally:
        await consumer.stop()


def opened(path: str) -> int:
    """A file of notes, written at its end."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def main() -> None:
    """Run as ordered."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    order: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    if order["arm"] == "keylanes":
        run_keylanes(order)
    else:
        uvloop.run(run_aiokafka(order))


if __name__ == "__main__":
    main()
