"""Where a generation is cut: at what is done now while few workers are at work, else at a line some time ago; and how
long what is done may wait until it is committed.
"""

import asyncio

from keylanes.brokers.simulated.network import Latency

from ...stage.cluster import Cluster
from ...stage.engine import OUT, SOURCE, Engine, application, started
from ...stage.virtual import virtual

INTERVAL_S = 1.0
WORK_S = 0.01
WORKERS = 64
RECORDS = 20_000


@virtual
async def test_nothing_waits_for_a_line_while_few_are_at_work() -> None:
    """What is done shortly before a commit is in it."""
    app = application(commit_interval_ms=1_000, commit_lead_ms=900)

    @app.handler(SOURCE, to=OUT, parallelising_factor=WORKERS)
    async def work(value: int) -> int:
        return value

    engine = await started(app)
    loop = asyncio.get_running_loop()

    async def seen(key: bytes) -> float:
        engine.send(key, b"1")
        while key not in engine.values():  # noqa: ASYNC110  # nothing but virtual time passes
            await asyncio.sleep(WORK_S)
        return loop.time()

    committed_s = await seen(b"first")
    await asyncio.sleep(INTERVAL_S / 2)  # behind the moment of the line, which comes after a tenth
    assert await seen(b"second") - committed_s < 1.5 * INTERVAL_S


@virtual
async def test_a_commit_stays_small_while_many_are_at_work() -> None:
    """Neighbours that have passed the line are one tile, though each of them is at another record."""
    app = application(commit_interval_ms=200, commit_lead_ms=50, split_hot_ranges=False)

    @app.handler(SOURCE, to=OUT, parallelising_factor=WORKERS)
    async def work(value: int) -> int:
        await asyncio.sleep(WORK_S)
        return value

    engine = Engine(app)
    cycle = (await engine.start()).work.cycle
    sent = cycle.transactions
    for value in range(RECORDS):
        engine.send(b"k%d" % value, b"%d" % value)
        await asyncio.sleep(WORK_S / WORKERS * 2)  # half of what they can do
    assert sent.commits > 10
    assert sent.tiles < WORKERS / 4 * sent.commits
    await engine.level()


@virtual
async def test_nothing_waits_for_more_than_an_interval_the_lead_and_one_transaction() -> None:
    """What a crash may have run again: not also what was done in the transaction before, when each takes long."""
    interval_ms, lead_ms, way_ms, every_s, records = 200, 20, 10.0, 0.005, 400
    app = application(commit_interval_ms=interval_ms, commit_lead_ms=lead_ms, commit_all_workers_max=0)
    loop = asyncio.get_running_loop()
    done_s: list[float] = []

    @app.handler(SOURCE, to=OUT, parallelising_factor=WORKERS)
    async def work(value: int) -> int:
        done_s.append(loop.time())
        return value

    slow = Latency(request_ms=(way_ms, way_ms), marker_ms=(way_ms, way_ms))
    engine = await started(app, cluster=Cluster(0, slow))
    transaction_s = (3 * 2 + 1) * way_ms / 1000  # partitions added, records, the end; and markers
    waited: list[float] = []
    for number in range(records):
        engine.send(b"k%d" % number, b"%d" % number)
        await asyncio.sleep(every_s)
        seen = len(engine.values())
        waited += [loop.time() - done for done in done_s[len(waited) : seen]]
    assert len(waited) > records / 2
    limit_s = (interval_ms + lead_ms) / 1000 + transaction_s
    assert limit_s - transaction_s < max(waited) <= limit_s + every_s


@virtual
async def test_what_a_full_generation_left_is_committed_at_once() -> None:
    """Nothing waits for the next interval because many were done in this one."""
    app = application(commit_interval_ms=1_000, generation_records_max=10)

    @app.handler(SOURCE, to=OUT, parallelising_factor=WORKERS)
    async def work(value: int) -> int:
        await asyncio.sleep(WORK_S)
        return value

    engine = await started(app)
    began_s = asyncio.get_running_loop().time()
    for value in range(200):
        engine.send(b"k%d" % value, b"%d" % value)
    await engine.level()
    assert engine.member.work.cycle.transactions.commits >= 20
    assert asyncio.get_running_loop().time() < began_s + 3 * INTERVAL_S
