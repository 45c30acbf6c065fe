"""Records that run straight from their batch: the front when one ends the run, and stores that serve again."""

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keylanes import ContextClosed, Retry, State
from keylanes.brokers.protocol import Batch, TopicPartition
from keylanes.brokers.simulated.broker import SimulatedRecord
from keylanes.errors import HandlerFailed
from keylanes.keyrange.hashing import point_of_key
from keylanes.keyrange.ranges import even_bounds
from keylanes.runtime.partition.generation import Generation, take_generation
from keylanes.runtime.partition.worker import Worker

from ...stage.ground import Ground
from ...stage.limited import settings_of
from .test_lanes import Stage

BAD = 5


async def _unfit(value: int) -> Any:
    return object() if value == BAD else value


async def _raising(value: int) -> int:
    if value == BAD:
        raise ValueError("bad")
    return value


def batch_of(records: Sequence[SimulatedRecord]) -> Batch:
    """So many from the start, or from where the one before ended."""
    return Batch(TopicPartition("in", 0), records, records[-1].offset + 1)


def numbered(count: int, value: bytes | None = None) -> list[SimulatedRecord]:
    """Records of keys of their own; their values are their offsets if there is none for all."""
    return [SimulatedRecord(i, 0, b"k%d" % i, b"%d" % i if value is None else value, ()) for i in range(count)]


def taken(stage: Stage) -> Generation:
    """All that is done, in whole stretches."""
    return take_generation([(stage.dispatch, stage.dispatch.draw_line())], records_max=1_000, bytes_max=1 << 30)


@pytest.mark.parametrize("function", [_unfit, _raising])
async def test_what_is_laid_down_before_the_end_of_a_run_lies_below_its_edges(function: Any) -> None:
    """A record fails for good before any other task had a turn: a commit may still take what was done before it, with
    the edges behind that, or it would be done again at the next start.
    """
    records, stage = numbered(10), Stage(function, retry=Retry(attempts=1))
    reading = asyncio.create_task(stage.slots.hand_through(stage.run, batch_of(records)))
    await stage.until(lambda: bool(stage.failures))
    assert isinstance(stage.failures[0], HandlerFailed)
    generation = taken(stage)
    assert [output.value for output in generation.outputs()] == [b"%d" % i for i in range(BAD)]
    for share in generation.shares:
        owned = [r.offset for r in records if share.first <= point_of_key(r.key or b"") < share.end]
        assert all(share.offset_to > offset for offset in owned if offset < BAD)
        assert all(share.offset_to <= offset for offset in owned if offset >= BAD)
    assert sum(share.move().outputs for share in generation.shares) == BAD
    reading.cancel()
    await stage.slots.close(1.0)


async def test_a_large_stretch_ends() -> None:
    """A generation takes stretches whole; so none is larger than a part of what a generation may be."""
    stage = Stage(_unfit, settings_of(generation_records_max=1_000))
    assert await stage.slots.hand_through(stage.run, batch_of(numbered(5_000, b"7"))) == 5_000
    generation = taken(stage)
    assert 1_000 <= len(generation.outputs()) < 2_000
    assert {share.offset_to for share in generation.shares} == {len(generation.outputs())}
    await stage.slots.close(1.0)


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_where_no_more_may_wait_for_a_commit_nothing_is_queued(is_stopped: bool) -> None:
    """The batch waits for the commit and goes on straight; told to stop meanwhile, the rest is its reader's."""
    stage = Stage(_unfit, settings_of(done_bytes_max=100_000))
    slots, dispatch = stage.slots, stage.dispatch
    reading = asyncio.create_task(slots.hand_through(stage.run, batch_of(numbered(1_000, b"7"))))
    sent = 0
    async with asyncio.timeout(10):
        while not reading.done():
            for _ in range(20):  # turns of the loop
                await asyncio.sleep(0)
            assert not any(worker.queue for worker in dispatch.workers)
            assert slots.done_bytes < 101_000
            generation = take_generation([(dispatch, dispatch.draw_line())], records_max=10_000, bytes_max=1 << 30)
            sent += len(generation.outputs())
            if is_stopped:
                slots.stop()
                continue
            slots.note_commit(generation.size)
    assert await reading == sent == (sent if is_stopped else 1_000)
    assert 100 < sent < 500 or not is_stopped
    await stage.slots.close(1.0)


async def test_a_large_stretch_ends_where_a_handler_suspends() -> None:
    """Also when each batch does so before its first look at the time."""
    size, batches = 50, 40
    records = [record._replace(value=b"%d" % (record.offset % size)) for record in numbered(size * batches)]
    released = asyncio.Event()

    async def handle(value: int) -> int | None:
        if value < size - 1:
            return value
        await released.wait()
        return None

    stage = Stage(handle, settings_of(generation_records_max=1_000))
    for start in range(0, len(records), size):
        part = batch_of(records[start : start + size])
        async with asyncio.timeout(10):
            index = await stage.slots.hand_through(stage.run, part)
        stage.dispatch.hand_out(part, index, [])
        released.set()
        await stage.until(lambda: not any(worker.active for worker in stage.dispatch.workers))
        released.clear()
    assert 1_000 <= len(taken(stage).outputs()) < 1_500
    await stage.slots.close(1.0)


async def test_after_a_stop_no_record_of_a_batch_begins() -> None:
    """Told so between two stretches; the rest is its reader's."""
    handled: list[int] = []

    async def handle(value: int) -> None:
        handled.append(value)

    stage = Stage(handle)
    reading = asyncio.create_task(stage.slots.hand_through(stage.run, batch_of(numbered(5_000))))
    await stage.until(lambda: bool(handled))
    stage.slots.stop()
    begun = len(handled)
    assert await reading == begun == len(handled) < 5_000
    assert stage.dispatch.front == begun
    await stage.slots.close(1.0)


class Held(SimulatedRecord):
    """A record that the garbage collector knows, so that those in memory can be counted."""


async def test_a_stuck_record_holds_no_other_of_its_batch() -> None:
    """However many batches have one that hangs: what is in memory is what waits for a worker or runs."""
    workers, batches, size = 64, 20, 500
    hang = asyncio.Event()

    async def handle(value: int) -> None:
        if not value:
            await hang.wait()

    stage = Stage(handle)
    slots, dispatch = stage.slots, stage.dispatch
    dispatch.replace_workers(dispatch.workers, [])
    dispatch.add_workers(even_bounds(workers), lambda first: 0)
    for number in range(batches):
        records = [Held(o, 0, b"k%d" % o, b"%d" % (o % size), ()) for o in range(number * size, (number + 1) * size)]
        part = batch_of(records)
        async with asyncio.timeout(10):
            index = await slots.hand_through(stage.run, part)
        ready: list[Worker] = []
        dispatch.hand_out(part, index, ready)
        slots.activate(stage.run, ready)
        await stage.until(lambda: not any(worker.active and worker.running is None for worker in dispatch.workers))
    del records, part
    for _ in range(10):  # turns of the loop: the task of the last batch has an end
        await asyncio.sleep(0)
    gc.collect()
    waiting = sum(len(worker.queue) + (worker.running is not None) for worker in dispatch.workers)
    assert sum(type(found) is Held for found in gc.get_objects()) == waiting < batches * size / 2
    hang.set()
    await stage.until(lambda: not any(worker.active for worker in dispatch.workers))
    await stage.slots.close(1.0)


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
