"""Writing copies of state in threads, and who may write the copy of a changelog partition.

A copy has one pass as its writer at a time. A restore takes the changelog partition: the passes of the learner stand
still until the restore is over. Restores of disjoint ranges may go on side by side: a near copy waits for no far one.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final, TypeVar

from ...brokers.protocol import TopicPartition
from ...brokers.threads import DaemonThreads
from ..settings import Settings
from .changelogs import errors_of
from .storage import StateThreads

T = TypeVar("T")

LEARNER_THREADS: Final = 2
"""Threads beside one for each partition that may be restored at once."""


class CopyWrites:
    """The writes of all passes of a process."""

    def __init__(self, settings: Settings, threads: StateThreads) -> None:
        self.settings = settings
        self._state_threads = threads
        self._threads = DaemonThreads(settings.limits.restore_partitions_max + LEARNER_THREADS, "keylanes-copies")
        self._writing: dict[TopicPartition, set[asyncio.Future[Any]]] = {}
        self._taken = Counter[TopicPartition]()

    async def run(self, changelog: TopicPartition, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that works on the copy of a changelog partition, in a thread. A cancelled caller waits for
        the end, too: the copy may be closed next. Raises StateError, StoreError.
        """
        writing = asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        under_way = self._writing.setdefault(changelog, set())
        under_way.add(writing)
        self._state_threads.large_writes += 1
        writing.add_done_callback(partial(self._note_end, under_way))
        with errors_of(changelog):
            try:
                return await asyncio.shield(writing)
            finally:
                if not writing.done():
                    await asyncio.wait([writing], timeout=self.settings.close_timeout_ms / 1000)

    def _note_end(self, under_way: "set[asyncio.Future[Any]]", writing: "asyncio.Future[Any]") -> None:
        self._state_threads.large_writes -= 1
        under_way.discard(writing)

    async def finish(self, changelog: TopicPartition) -> None:
        """Wait for the writes of a changelog partition that are under way."""
        if under_way := self._writing.get(changelog):
            await asyncio.wait(set(under_way))

    @contextlib.asynccontextmanager
    async def take(self, changelog: TopicPartition) -> AsyncIterator[None]:
        """Have the passes of the learner stand still that write to this copy. Large writes come soon."""
        self._taken[changelog] += 1
        self._state_threads.large_writes += 1
        try:
            await self.finish(changelog)
            yield
        finally:
            self._state_threads.large_writes -= 1
            self._taken[changelog] -= 1

    def is_taken(self, changelog: TopicPartition) -> bool:
        """Whether a restore writes to this copy."""
        return self._taken[changelog] > 0

    def shutdown(self) -> None:
        """Let the threads end; a second call does nothing."""
        self._threads.shutdown(wait=False)
