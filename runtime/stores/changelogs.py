"""Reading changelogs, and writing copies in threads: the common part of a restore and of a learner."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from ...brokers.patience import Patience, ask_until_answered, close_within
from ...brokers.protocol import (
    Batch,
    Broker,
    BrokerError,
    BrokerTimeout,
    Reader,
    TopicDescription,
    TopicPartition,
    UnknownTopic,
    Watermarks,
)
from ...brokers.threads import DaemonThreads
from ...errors import StateError, StoreError
from ...state.restore import ChangelogUnfit
from ...state.rocks import RocksError
from ..settings import Settings

T = TypeVar("T")

FETCH_WAIT_MS: Final = 200
DELETE_RETENTION_MS_DEFAULT: Final = 86_400_000
"""Kafka's default for ``delete.retention.ms``, for topics without the setting."""
DELETE_RETENTION_MS_MIN: Final = 60_000
NAMED_MAX: Final = 3
"""How many partitions a log line names."""
_WHAT_TO_DO: Final = "Restore the topic from a copy, or start under a new application name."


def label_of(changelog: TopicPartition) -> str:
    """A partition of a changelog, for people."""
    return f"{changelog.topic}[{changelog.partition}]"


def labels_of(changelogs: Iterable[TopicPartition]) -> str:
    """The first ``NAMED_MAX`` changelogs, for people."""
    return ", ".join(map(label_of, list(changelogs)[:NAMED_MAX]))


@contextlib.contextmanager
def errors_of(changelog: TopicPartition) -> Iterator[None]:
    """Turn errors of a changelog and its copy into errors of the application."""
    try:
        yield
    except ChangelogUnfit as error:
        raise StateError(f"the changelog {label_of(changelog)} can't be used: {error}. {_WHAT_TO_DO}") from error
    except RocksError as error:
        raise StoreError(str(error)) from error


@contextlib.contextmanager
def unreadable(*kinds: type[BrokerError]) -> Iterator[None]:
    """Turn broker errors of ``kinds``, errors that no waiting mends, into StateError."""
    try:
        yield
    except kinds as error:
        raise StateError(f"a changelog can't be read: {error}. {_WHAT_TO_DO}") from error


async def ask_changelogs(
    broker: Broker, settings: Settings, changelogs: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, Watermarks], dict[str, int]]:
    """The watermarks of changelogs, and for how many ms tombstones stay in each topic. Raises BrokerError, and
    StateError where a changelog is missing or its tombstones do not stay long enough.
    """
    patience = Patience(settings.broker_retry_ms, "asking for changelogs")
    topics = {source.topic for source in changelogs}

    async def asked() -> tuple[dict[str, TopicDescription], dict[TopicPartition, Watermarks]]:
        return await asyncio.gather(broker.describe(topics), broker.watermarks(changelogs))

    try:
        described, marks = await ask_until_answered(asked, patience)
    except UnknownTopic as error:
        raise StateError(f"a changelog is missing: {error}. {_WHAT_TO_DO}") from error
    configs = {name: found.config for name, found in described.items()}
    name, default = "delete.retention.ms", DELETE_RETENTION_MS_DEFAULT
    retention_ms = {topic: int(configs.get(topic, {}).get(name, default)) for topic in topics}
    for topic, kept_ms in sorted(retention_ms.items()):
        if kept_ms < DELETE_RETENTION_MS_MIN:
            raise StateError(
                f"the changelog {topic} keeps its deletes for {name}={kept_ms}; at least {DELETE_RETENTION_MS_MIN} are "
                "needed, and more than twice as long as a partition takes to restore: a copy that has come no farther "
                f"by then may lack deletes. Raise {name} of the topic"
            )
    return marks, retention_ms


class Fetches:
    """Fetches committed records of changelogs, each from a position on, and waits for a broker that is away.

    Each ``Fetches`` has a reader of its own. A shared reader that stands at the end of one partition would wait there
    for new records, and could begin with another partition only after the broker's answer. ``positions``: the next
    offset of each changelog.
    """

    def __init__(self, broker: Broker, settings: Settings, positions: Mapping[TopicPartition, int], what: str) -> None:
        """``what`` is the purpose, in words."""
        self.broker = broker
        self.settings = settings
        self.positions = dict(positions)
        self.opened_s = 0.0
        """When the reader was made, by the loop's time."""
        self._reader: Reader | None = None
        self._opening: asyncio.Future[None] | None = None
        self._patience = Patience(settings.broker_retry_ms, what)

    def open(self) -> None:
        """Have the reader made in the background. The reader fetches ahead; ``fetch`` raises its errors."""
        if self._reader is None and self._opening is None:
            self._opening = asyncio.ensure_future(self._open_ahead())

    async def _open_ahead(self) -> None:
        reader = await self._open()
        await reader.fetch((), records_max=1, wait_ms=0)  # takes nothing, but starts the fetching at the positions

    async def _open(self) -> Reader:
        self.opened_s = asyncio.get_running_loop().time()
        positions = self.positions
        self._reader = reader = await self.broker.reader(positions)
        if self.positions is not positions:
            reader.assign(self.positions)
        return reader

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Fetch the changelogs of ``positions`` from there on, and no others."""
        if self.positions != positions:
            self.positions = dict(positions)
            if self._reader is not None:
                self._reader.assign(self.positions)

    async def fetch(self, records_max: int) -> Sequence[Batch]:
        """The next batches; empty when nothing arrives in time. Raises BrokerError."""

        async def fetched() -> Sequence[Batch]:
            """Fetch once, with a new reader after a call without an answer."""
            opening, self._opening = self._opening, None
            if opening is not None:
                await opening
            reader = await self._open() if self._reader is None else self._reader
            try:
                return await reader.fetch(self.positions, records_max=records_max, wait_ms=FETCH_WAIT_MS)
            except BrokerTimeout:
                await self.close()
                raise

        batches = await ask_until_answered(fetched, self._patience)
        for batch in batches:
            self.positions[batch.source] = batch.offset_next
        return batches

    async def close(self) -> None:
        """Drop the reader, also a reader that is being made; bounded in time."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening], timeout=self.settings.close_timeout_ms / 1000)
            if opening.done() and not opening.cancelled():
                opening.exception()  # asyncio would log an error that nobody retrieves
        reader, self._reader = self._reader, None
        if reader is not None:
            await close_within(self.settings.close_timeout_ms, reader.close(), "closing a reader of changelogs")


class CopyThreads:
    """Threads that write copies."""

    def __init__(self, threads: int, name: str, settings: Settings) -> None:
        self.settings = settings
        self._threads = DaemonThreads(threads, name)

    def begin(self, function: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """Begin a call of ``function`` in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def wait_for_thread(self, writing: "asyncio.Future[T]") -> T:
        """Wait for the result of a thread. A cancelled caller waits, too: the copy may be closed next."""
        try:
            return await asyncio.shield(writing)
        finally:
            if not writing.done():
                await asyncio.wait([writing], timeout=self.settings.close_timeout_ms / 1000)

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call ``function`` in a thread, and wait for the result."""
        return await self.wait_for_thread(self.begin(function, *arguments))

    def shutdown(self) -> None:
        """Let the threads end; a second call does nothing."""
        self._threads.shutdown(wait=False)
