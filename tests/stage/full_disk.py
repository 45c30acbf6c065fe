"""A Kafka whose disk fills up while an application works, a process of its own: it owns the small disk.

Arguments: the folder of the disk, another folder. Prints what happened, a word to a line.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from keylanes import App, Context, Settings, State
from keylanes.devkafka.server import KafkaServer

from .ground import Ground
from .waiting import reached

RECORDS, KEYS = 3_000, 30
CHUNK = bytes(1 << 20)
WAIT_S = 90.0


class Counted(msgspec.Struct, array_like=True):
    """Which of its key's records this one is, and its value."""

    count: int
    value: int


def say(what: str) -> None:
    """One line at once."""
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def fill_up(disk: Path) -> Path:
    """Write until nothing fits any more."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(CHUNK)
        except OSError:
            return ballast


async def work(server: KafkaServer, disk: Path, app: App) -> None:
    """The disk is full until the broker ends of it; then there is room again."""
    async with app:
        await reached(lambda: app.statistics().records_done > RECORDS // 10, WAIT_S)
        ballast = fill_up(disk)
        await reached(lambda: not server.is_running(), WAIT_S)
        say("the broker ended")
        ballast.unlink()
        await asyncio.to_thread(server.start)
        await reached(lambda: app.statistics().partitions[0].offset_least == RECORDS, WAIT_S)
        say("level")


def main() -> None:
    """From a fresh Kafka to the outputs."""
    disk, other = Path(sys.argv[1]), Path(sys.argv[2])
    server = KafkaServer(disk / "kafka")
    server.start()
    try:
        ground = Ground(f"kafka://{server.bootstrap}", other / "state")
        ground.fill([(b"k%d" % (i % KEYS), b"%d" % i) for i in range(RECORDS)])
        settings = Settings.of(
            **ground.settings(transaction_timeout_ms=3_000, request_timeout_ms=1_500, broker_retry_ms=80_000)
        )
        app = App(ground.name, broker=ground.address, settings=settings)

        @app.handler(ground.source, to=ground.late, parallelising_factor=4)
        async def count(value: int, ctx: Context, seen: State[int]) -> Counted:
            await asyncio.sleep(0.005)
            seen.put((seen.get() or 0) + 1)
            return Counted(seen.get() or 0, value)

        asyncio.run(work(server, disk, app))
        by_key: dict[bytes | None, list[Counted]] = {}
        for record in ground.read(ground.late):
            by_key.setdefault(record.key, []).append(msgspec.json.decode(record.value or b"", type=Counted))
        expected = {b"k%d" % k: [Counted(i + 1, k + i * KEYS) for i in range(RECORDS // KEYS)] for k in range(KEYS)}
        say(str(by_key == expected))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
