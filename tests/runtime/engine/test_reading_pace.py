"""How far the main reader reads ahead of the workers: not far where the processor is short, else as far as it likes."""

import asyncio

import pytest

from keylanes import InvariantBroken
from keylanes.runtime.engine import readers

from ...stage.ground import Ground

WAIT_S = 30.0


async def test_a_busy_loop_is_not_read_ahead_of(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """While every turn of the loop works off records, there wait about a fetch and a record of each worker, and what is
    fetched on top; buffers have room for many times as many.
    """
    monkeypatch.setattr(readers, "WORKED_OFF_MS", 60_000)  # a machine that stands still must not end the wait
    records, workers, fetch = 20_000, 100, 500
    await asyncio.to_thread(ground.fill, [(b"k%d" % (i % 5_000), b"%d" % i) for i in range(records)])
    app = ground.app(fetch_records_max=fetch)
    done, peak = 0, 0

    @app.handler(ground.source, parallelising_factor=workers)
    async def handle(value: int) -> None:
        nonlocal done, peak
        for _ in range(value % 10):
            await asyncio.sleep(0)
        done += 1
        if done % 50 == 0:
            peak = max(peak, app.statistics().partitions[0].queued_records)

    await asyncio.to_thread(app.run, until="level")
    assert done == records
    assert 0 < peak <= fetch + workers + fetch


async def test_what_waits_behind_a_stuck_record_keeps_nobody_from_reading(ground: Ground) -> None:
    """Far more than that may wait where the loop has time: records behind it are handled meanwhile."""
    hot, others = 3_000, 20
    await asyncio.to_thread(ground.fill, [(b"hot", b"0")] * hot + [(b"k%d" % i, b"1") for i in range(others)])
    app = ground.app(fetch_records_max=100)
    release, counts = asyncio.Event(), [0, 0]

    @app.handler(ground.source, parallelising_factor=16)
    async def handle(value: int) -> None:
        if value == 0:
            await release.wait()
        counts[value] += 1

    async with app, asyncio.timeout(WAIT_S):
        while counts[1] < others / 2:  # noqa: ASYNC110  # some share a range with the stuck one
            await asyncio.sleep(0.01)
        assert counts[0] == 0
        assert app.statistics().partitions[0].queued_records >= hot - 1
        release.set()
        while sum(counts) < hot + others:  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)
    assert counts == [hot, others]


async def test_a_reader_that_stands_and_is_cancelled_by_somebody_else_ends_the_run(ground: Ground) -> None:
    """The rest of its batch would be skipped and committed: who cleans tasks away that are not his loses no records."""
    hot = 3_000
    await asyncio.to_thread(ground.fill, [(b"hot", b"%d" % i) for i in range(hot)])
    app = ground.app(buffer_bytes_max=100_000)

    @app.handler(ground.source, parallelising_factor=4)
    async def handle(value: int) -> None:
        if not value:
            await asyncio.Event().wait()

    async def clean_up() -> None:
        async with app, asyncio.timeout(WAIT_S):
            while not (found := [task for task in asyncio.all_tasks() if "stands" in task.get_name()]):  # noqa: ASYNC110  # turns of the loop
                await asyncio.sleep(0.001)
            found[0].cancel()
            await asyncio.wait(found)

    with pytest.raises(InvariantBroken, match="stands"):
        await clean_up()
