"""The work of a slots' task: workers one after the other, or a batch with records that run straight."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from ...brokers.protocol import Batch, ConsumerRecord
from ...state.overlay import OverlayEntry
from ..partition.dispatch import Route
from ..partition.worker import Worker
from .partition_run import PartitionRun

T = TypeVar("T")
G = TypeVar("G", bound="TaskWork")


class TaskWork:
    """A task's work: the running worker, and the workers waiting for their turn in the task, the next worker last. The
    workers wait as long as no handler suspends. ``parted``: they came from another task, after a handler suspended
    there.
    """

    __slots__ = ("parted", "run", "waiting", "worker")

    def __init__(self, run: PartitionRun, waiting: list[Worker], *, parted: bool = False) -> None:
        self.run = run
        self.waiting = waiting
        self.parted = parted
        self.worker: Worker | None = None

    def running_record(self) -> tuple[ConsumerRecord, float] | None:
        """The running record, and the time of its start."""
        worker = self.worker
        record = None if worker is None else worker.running
        return None if worker is None or record is None else (record, worker.started_s)


class StraightBatch(TaskWork):
    """A task's work: the records of a batch, in order of offsets, each for its idle worker, as long as no handler
    suspends. The first record with a suspended handler keeps the task.

    - ``at``: the index of the present record; from here on nothing was handed over. ``record``: the present record.
    - ``route``: the batch on its way to the workers. ``ready``: workers to start, with new records in their queues.
    - ``through``: gets the index where the reader begins to hand out the rest of the batch.
    - ``is_called``: the handler of the present record was called. ``has_parted``: the handler suspended.
    - ``is_permitted``: the records run under one permit, where the handler has a limit. The record with a suspended
      handler keeps the permit.

    The task lets others run after each time slice. ``since_s``: when the slice began. A slice ends at the index
    ``last``, at ``full_at`` bytes of done records, or at the processor time ``until_s``. ``look_at``: the index of the
    next look at these bounds.
    """

    __slots__ = (
        "at", "batch", "full_at", "has_parted", "is_called", "is_permitted", "last", "look_at", "ready", "record",
        "route", "since_s", "through", "until_s",
    )  # fmt: skip

    def __init__(self, run: PartitionRun, batch: Batch, cells: Sequence[OverlayEntry | None], since_s: float) -> None:
        super().__init__(run, [])
        self.batch = batch
        self.at = 0
        self.since_s = since_s
        self.route = Route(batch, 0, cells)
        self.look_at = self.last = self.full_at = 0
        self.until_s = 0.0
        self.through: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.record: ConsumerRecord | None = None
        self.ready: list[Worker] = []
        self.is_called = self.has_parted = False
        self.is_permitted = False

    def running_record(self) -> tuple[ConsumerRecord, float] | None:
        """The running record, and its start; as long as no handler suspends, the start of the time slice."""
        record = self.record
        return super().running_record() if self.has_parted or record is None else (record, self.since_s)

    def end(self, at: int) -> None:
        """End the batch, handed over up to index ``at``; the rest is for its reader."""
        if not self.through.done():  # a reader that was cancelled does not care
            self.through.set_result(at)

    def let_go(self) -> None:
        """Forget the batch: a task that stays with one worker for long must not keep all records in memory."""
        self.batch = Batch(self.batch.source, (), self.batch.offset_next)
        self.route.records, self.route.entries = [], []


@types.coroutine
def driven(work: Coroutine[Any, Any, T], argument: G, on_suspended: Callable[[G], None]) -> Generator[Any, Any, T]:
    """Await ``work``, and call ``on_suspended(argument)`` when the work suspends for the first time."""
    steps = work.__await__()
    try:
        waits_for = next(steps)
    except StopIteration as ended:
        result: T = ended.value
        return result
    on_suspended(argument)
    while True:  # the first suspension was taken out of ``steps`` above: it is awaited by hand
        try:
            yield waits_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001  # the error is for the work
            try:
                waits_for = work.throw(error)
            except StopIteration as ended:
                result = ended.value
                return result
        else:
            return (yield from steps)
