"""Records that run straight from their batch: the front when one ends the run, and stores that serve again."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from keylanes import ContextClosed, Retry, State
from keylanes.keyrange.hashing import point_of_key
from keylanes.keyrange.ranges import even_bounds
from keylanes.runtime.brokers.protocol import Batch, Broker, TopicPartition
from keylanes.runtime.brokers.simulated import SimulatedRecord
from keylanes.runtime.dispatch import Numbers, PartitionDispatch
from keylanes.runtime.errors import HandlerFailed
from keylanes.runtime.generation import take
from keylanes.runtime.handlers import declare
from keylanes.runtime.outputs import Destination, place_of
from keylanes.runtime.partition_run import PartitionRun
from keylanes.runtime.settings import Settings
from keylanes.runtime.slots import Slots

from ..broker.ground import Ground

BAD = 5


async def _unfit(value: int) -> Any:
    return object() if value == BAD else value


async def _raising(value: int) -> int:
    if value == BAD:
        raise ValueError("bad")
    return value


def sending(
    function: Any, records: Sequence[SimulatedRecord], settings: Settings, fail: Callable[[BaseException], None]
) -> tuple[Slots, PartitionRun, Batch]:
    """A partition of four workers whose handler sends, and a batch of it."""
    dispatch = PartitionDispatch("in", 0, 0, 1 << 20, Numbers())
    dispatch.add_workers(even_bounds(4), lambda first: 0)
    slots = Slots(cast(Broker, None), settings, fail)
    slots.destinations["out"] = Destination(1, 1 << 20, False)
    run = PartitionRun(dispatch, declare(function, "in", to="out", retry=Retry(attempts=1)), place_of("in", 0))
    return slots, run, Batch(TopicPartition("in", 0), records, len(records))


def ignore(_error: BaseException) -> None:
    """Nothing fails."""


@pytest.mark.parametrize("function", [_unfit, _raising])
async def test_what_is_laid_down_before_the_end_of_a_run_lies_below_its_edges(function: Any) -> None:
    """A record fails for good before any other task had a turn: a commit may still take what was done before it, with
    the edges behind that, or it would be done again at the next start.
    """
    failures: list[BaseException] = []
    records = [SimulatedRecord(i, 0, b"k%d" % i, b"%d" % i, ()) for i in range(10)]
    slots, run, batch = sending(function, records, Settings(), failures.append)
    dispatch = run.dispatch
    reading = asyncio.create_task(slots.hand_through(run, batch))
    async with asyncio.timeout(10):
        while not failures:  # noqa: ASYNC110  # turns of the loop
            await asyncio.sleep(0)
    assert isinstance(failures[0], HandlerFailed)
    generation = take([(dispatch, dispatch.line())], records_max=1_000, bytes_max=1 << 20)
    assert [output.value for output in generation.outputs()] == [b"%d" % i for i in range(BAD)]
    for share in generation.shares:
        owned = [r.offset for r in records if share.first <= point_of_key(r.key or b"") < share.end]
        assert all(share.offset_to > offset for offset in owned if offset < BAD)
        assert all(share.offset_to <= offset for offset in owned if offset >= BAD)
    assert sum(share.move().outputs for share in generation.shares) == BAD
    reading.cancel()
    await slots.close(1.0)


async def test_a_large_stretch_ends() -> None:
    """A generation takes stretches whole; so none is larger than a part of what a generation may be."""
    records = [SimulatedRecord(i, 0, b"k%d" % i, b"7", ()) for i in range(5_000)]
    slots, run, batch = sending(_unfit, records, Settings(generation_records_max=1_000), ignore)
    dispatch = run.dispatch
    assert await slots.hand_through(run, batch) == 5_000
    taken = take([(dispatch, dispatch.line())], records_max=1_000, bytes_max=1 << 30)
    assert 1_000 <= len(taken.outputs()) < 2_000
    assert {share.offset_to for share in taken.shares} == {len(taken.outputs())}
    await slots.close(1.0)


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_where_no_more_may_wait_for_a_commit_nothing_is_queued(is_stopped: bool) -> None:
    """The batch waits for the commit and goes on straight; told to stop meanwhile, the rest is its reader's."""
    records = [SimulatedRecord(i, 0, b"k%d" % i, b"7", ()) for i in range(1_000)]
    slots, run, batch = sending(_unfit, records, Settings(done_bytes_max=100_000), ignore)
    dispatch = run.dispatch
    reading = asyncio.create_task(slots.hand_through(run, batch))
    sent = 0
    async with asyncio.timeout(10):
        while not reading.done():
            for _ in range(20):  # turns of the loop
                await asyncio.sleep(0)
            assert not any(worker.queue for worker in dispatch.workers)
            assert slots.done_bytes < 101_000
            generation = take([(dispatch, dispatch.line())], records_max=10_000, bytes_max=1 << 30)
            sent += len(generation.outputs())
            if is_stopped:
                slots.stop()
                continue
            slots.done_bytes -= generation.size
            slots.resume()
    assert await reading == sent == (sent if is_stopped else 1_000)
    assert 100 < sent < 500 or not is_stopped
    await slots.close(1.0)


async def test_a_store_that_is_kept_does_not_serve_the_next_record(tmp_path: Path) -> None:
    """It goes on saying that its attempt has ended, while later records run straight on stores of their own."""
    ground = Ground(f"embedded:{tmp_path / 'data'}")
    await asyncio.to_thread(ground.fill, [(b"k", b"%d" % i) for i in range(50)])
    app = ground.app()
    kept: list[State[int]] = []
    refused: list[int] = []

    @app.handler(ground.source)
    async def handle(value: int, seen: State[int]) -> None:
        if value % 10 == 3:
            kept.append(seen)
        for store in kept:
            if store is not seen:
                with pytest.raises(ContextClosed):
                    store.put(1_000)
                refused.append(value)
        assert (seen.get() or 0) == value
        seen.put(value + 1)

    await asyncio.to_thread(app.run, until="level")
    assert len(kept) == 5
    assert len(refused) > 100
