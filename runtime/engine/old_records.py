"""A warning of records older than the retention time of their outputs."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from ...brokers.protocol import ConsumerRecord
from ..handlers.outputs import Destination
from .partition_run import PartitionRun

DAY_MS: Final = 86_400_000

logger = logging.getLogger("keylanes")


class OldRecords:
    """Warns once for each source topic whose outputs retention would delete at once. ``known``: destinations by topic.
    ``wall_ms``: the time of the clock.
    """

    def __init__(self, known: Mapping[str, Destination], wall_ms: Callable[[], int]) -> None:
        self._known = known
        self._wall_ms = wall_ms
        self._told: set[str] = set()

    def look(self, run: PartitionRun, first: ConsumerRecord) -> None:
        """Look at the first record read from a partition."""
        handler, topic = run.handler, run.dispatch.topic
        destination = self._known.get(handler.to or "")
        if destination is None or destination.retention_ms is None or not handler.keeps_time or topic in self._told:
            return
        age_ms = self._wall_ms() - first.timestamp
        if first.timestamp >= 0 and age_ms > destination.retention_ms:
            self._told.add(topic)
            logger.warning(
                "%s begins with records that are %.1f days old, and %s deletes what is older than %.1f days "
                "(retention.ms): outputs have the time of their record and are deleted soon. Raise retention.ms, or "
                'declare the handler with timestamps="now"',
                run.label,
                age_ms / DAY_MS,
                handler.to,
                destination.retention_ms / DAY_MS,
            )
