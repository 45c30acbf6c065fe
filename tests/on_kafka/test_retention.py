"""Retention at work, by a real Kafka: what it passes before it was processed is never skipped in silence; and what it
forgets of a producer is no fault.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator

import pytest

from keylanes import App, Context, State
from keylanes.brokers.protocol import TopicPartition, Watermarks
from keylanes.devkafka.server import KafkaServer
from keylanes.errors import SourceError

from ..stage.feeding import stops_with
from ..stage.ground import Ground
from ..stage.stateful import configure
from ..stage.waiting import reached
from ..tiers.marks import tier

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120), tier("proof", "brokers")]

ID_MS = 1_000
AT_ONCE = {
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "transactional.id.expiration.ms": str(ID_MS),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
}
"""Kafka looks every 5 minutes, and forgets a transactional id after a week, looking every hour."""
RECORDS, BATCH, KEYS = 2_000, 100, 40
PASSED = "records that were not processed yet are gone"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka that looks for what it may delete all the time."""
    with KafkaServer(tmp_path_factory.mktemp("retention"), properties=AT_ONCE) as server:
        yield server


@pytest.fixture
def ground(server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """That Kafka, and a folder for the state."""
    ground = Ground(f"kafka://{server.bootstrap}", tmp_path_factory.mktemp("state") / "state")
    more(ground, 0)
    return ground


def more(ground: Ground, first: int) -> None:
    """So many records from this number on, evenly over the keys, in many batches: a reader has one at a time."""
    for begin in range(first, first + RECORDS, BATCH):
        ground.fill([(b"k%d" % (i % KEYS), b"%d" % i) for i in range(begin, begin + BATCH)])


class Work:
    """Counts the records of each key; from number ``stuck_at`` on the handler waits for the gate."""

    def __init__(self, stuck_at: int) -> None:
        self.gate = asyncio.Event()
        self.done = 0
        self._stuck_at = stuck_at

    def declare(self, ground: Ground, **settings: object) -> App:
        """The application."""
        app = ground.app(None, drain_timeout_ms=200, **settings)

        @app.handler(ground.source, to=ground.late, parallelising_factor=4)
        async def count(value: int, ctx: Context, seen: State[int]) -> dict[str, int]:
            if value >= self._stuck_at:
                await self.gate.wait()
            now = (seen.get() or 0) + 1
            seen.put(now)
            self.done += 1
            return {"value": value, "now": now}

        return app


async def marks(ground: Ground) -> Watermarks:
    """Start and end of the source."""
    broker, place = ground.connect(), TopicPartition(ground.source, 0)
    await broker.open()
    found = (await broker.watermarks([place]))[place]
    await broker.close()
    return found


def expire(ground: Ground) -> None:
    """Let all that is there now be older than it may be, and wait until Kafka has deleted it."""
    configure(ground, ground.source, {"retention.ms": "1"})

    async def wait() -> None:
        async with asyncio.timeout(60):
            while (found := await marks(ground)).start < found.high:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.05)

    asyncio.run(wait())
    configure(ground, ground.source, {"retention.ms": "-1"})


async def ends(app: App, while_it: Awaitable[None]) -> SourceError:
    """Run the application while something happens; the error it ends with."""
    ended = asyncio.Event()
    app.on_fatal = lambda error: ended.set()

    async def run() -> None:
        async with app:
            await while_it
            await asyncio.wait_for(ended.wait(), 60)

    with pytest.raises(SourceError) as caught:
        await run()
    return caught.value


def outputs(ground: Ground) -> int:
    """How many there are; each key's count from 1 on, without a gap and without a double."""
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for record in ground.read(ground.late):
        by_key.setdefault(record.key, []).append(record.value)
    for values in by_key.values():
        assert [bytes(value or b"").partition(b'"now":')[2] for value in values] == [
            b"%d}" % (i + 1) for i in range(len(values))
        ]
    return sum(map(len, by_key.values()))


async def test_it_passes_the_edge_while_the_application_is_down(ground: Ground) -> None:
    """What was not processed is gone: every start is refused with exit code 7, and writes nothing."""
    work = Work(stuck_at=RECORDS // 2)
    app = work.declare(ground)
    async with app:
        await reached(lambda: work.done >= RECORDS // 2)
    await asyncio.to_thread(expire, ground)
    before = await asyncio.to_thread(outputs, ground)
    assert before >= RECORDS // 2
    for _ in range(2):
        await asyncio.to_thread(stops_with, SourceError, Work(RECORDS).declare(ground), "retention or deletion passed")
    assert await asyncio.to_thread(outputs, ground) == before


async def test_it_passes_what_was_done_while_the_application_is_down(ground: Ground) -> None:
    """Where everything was processed nothing is missing: the next start goes on with the new records."""
    await asyncio.to_thread(Work(RECORDS).declare(ground).run, until="level")
    await asyncio.to_thread(expire, ground)
    await asyncio.to_thread(more, ground, RECORDS)
    await asyncio.to_thread(Work(2 * RECORDS).declare(ground).run, until="level")
    assert await asyncio.to_thread(outputs, ground) == 2 * RECORDS


async def test_it_passes_the_front_while_the_application_runs(ground: Ground) -> None:
    """The reader comes to what is gone: the run ends with exit code 7; what it had committed is there once."""
    work = Work(stuck_at=200)
    app = work.declare(ground, buffer_bytes_max=4 * 220 * 20, fetch_records_max=20, fetch_bytes_max=4_000)

    async def happens() -> None:
        await reached(lambda: work.done >= 190)
        await asyncio.to_thread(expire, ground)
        work.gate.set()

    error = await ends(app, happens())
    assert error.exit_code == 7
    assert PASSED in str(error)
    assert 190 <= await asyncio.to_thread(outputs, ground) < RECORDS
    await asyncio.to_thread(stops_with, SourceError, Work(RECORDS).declare(ground), "retention or deletion passed")


async def test_it_passes_a_worker_that_is_behind(ground: Ground) -> None:
    """The others stand at the end of the source; the one that has to read again what is gone ends the run, code 7."""
    work = Work(RECORDS)
    app = ground.app(None, drain_timeout_ms=200, buffer_bytes_max=8 * 220 * 20)

    @app.handler(ground.source, to=ground.late, parallelising_factor=8)
    async def count(value: int, ctx: Context) -> int:
        if ctx.key == b"k7":
            await work.gate.wait()
        work.done += 1
        return value

    async def happens() -> None:
        await reached(lambda: app.statistics().partitions[0].front == RECORDS)
        await reached(lambda: app.statistics().partitions[0].lagging_workers >= 1)
        await asyncio.to_thread(expire, ground)
        work.gate.set()

    error = await ends(app, happens())
    assert error.exit_code == 7
    values = await asyncio.to_thread(ground.values, ground.late)
    assert len(set(values)) == len(values) < RECORDS


async def test_it_passes_what_is_done_while_the_application_runs(ground: Ground) -> None:
    """Records that were read are at work already: nothing is missing, and the run goes on with the new ones."""
    work = Work(stuck_at=RECORDS - 100)
    app = work.declare(ground)
    async with app:
        await reached(lambda: app.statistics().partitions[0].front == RECORDS)
        await asyncio.to_thread(expire, ground)
        work.gate.set()
        await reached(lambda: work.done == RECORDS)
        await asyncio.to_thread(more, ground, RECORDS)
        await reached(lambda: app.statistics().partitions[0].offset_least == 2 * RECORDS)
    assert await asyncio.to_thread(outputs, ground) == 2 * RECORDS


async def test_it_forgets_the_id_of_an_application_that_has_nothing_to_do(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, nothing is warned of, and no record is worked twice."""
    work = Work(2 * RECORDS)
    app = work.declare(ground)
    with caplog.at_level(logging.INFO):
        async with app:
            await reached(lambda: app.statistics().partitions[0].offset_least == RECORDS)
            caplog.clear()
            await asyncio.sleep(3 * ID_MS / 1000)  # so long it has nothing to do: that is what is tested
            await asyncio.to_thread(more, ground, RECORDS)
            await reached(lambda: app.statistics().partitions[0].offset_least == 2 * RECORDS)
    assert [one.getMessage() for one in caplog.records if one.levelno > logging.INFO] == []
    assert caplog.text.count("the transactional id had expired") == 1
    assert work.done == await asyncio.to_thread(outputs, ground) == 2 * RECORDS
