"""PURE. How long a reader waits for room at a full worker, and when the reader goes on without the worker.

Three clocks run while the reader waits. ``PartitionDispatch.may_drop`` decides by the clocks:

- The reader has waited for long: ``full_wait_ms`` since the worker was found full.
- The worker is stuck: at the same record for ``STUCK_MS``, counted from the start of the record.
- All stands still: for ``full_wait_ms`` the number of records in the queues of all workers that the reader feeds has
  not fallen below its least value at the looks before.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from .dispatch import Blocked, PartitionDispatch
from .worker import Worker

STUCK_MS: Final = 100
"""A full worker that has run one record for this long makes no room soon."""

_ANY: Final = 1 << 60
"""More records than all queues can have."""

Verdict: TypeAlias = Literal["wait", "go", "drop"]
"""The next step of a reader: wait, hand over the record, or go on without the worker."""


class RoomWait:
    """The wait of a reader that stands at a full worker from ``now_s`` on. The times ``…_from_s``: when each clock
    of the module runs out.
    """

    def __init__(self, dispatch: PartitionDispatch, blocked: Blocked, now_s: float, full_wait_ms: int) -> None:
        self._dispatch = dispatch
        self._worker = blocked.worker
        self._size = blocked.size
        self._full_wait_s = full_wait_ms / 1000
        self._long_from_s = now_s + self._full_wait_s
        self._running = self._worker.running
        self._stuck_from_s = _stuck_from_s(self._worker, now_s)
        self._queued_least = _ANY
        self._still_from_s = self._long_from_s

    def may_go_on(self) -> bool:
        """Whether the worker has room, or is retired: then the record has another owner."""
        return self._worker.retired or self._dispatch.has_room_again(self._worker, self._size)

    def look(self, now_s: float, fed: Callable[[], Sequence[Worker]]) -> Verdict:
        """The next step of the reader. ``fed`` gives the workers that the reader feeds, and is called only where there
        is no room.
        """
        if self.may_go_on():
            return "go"
        if self._worker.running is not self._running:
            self._running, self._stuck_from_s = self._worker.running, _stuck_from_s(self._worker, now_s)
        workers = fed()
        queued = sum(len(worker.queue) for worker in workers)
        if queued < self._queued_least:
            self._queued_least, self._still_from_s = queued, now_s + self._full_wait_s
        may_drop = self._dispatch.may_drop(
            self._worker,
            workers,
            waited_long=now_s >= self._long_from_s,
            is_stuck=now_s >= self._stuck_from_s,
            stands_still=now_s >= self._still_from_s,
        )
        return "drop" if may_drop else "wait"


def _stuck_from_s(worker: Worker, now_s: float) -> float:
    """The time from which a worker counts as stuck, if the running record stays the same; perhaps in the past."""
    return (now_s if worker.running is None else min(worker.started_s, now_s)) + STUCK_MS / 1000
