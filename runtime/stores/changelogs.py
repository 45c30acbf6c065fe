"""Reading changelogs, and writing copies of them in threads: what a restore and a learner have in common."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

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
from ...brokers.waiting import Patience, closed_within, until_answered
from ...errors import StateError, StoreError
from ...state.restore import ChangelogUnfit
from ...state.rocks import RocksError
from ..settings import Settings

T = TypeVar("T")

FETCH_WAIT_MS: Final = 200
DELETE_RETENTION_MS_DEFAULT: Final = 86_400_000
"""Kafka's own, where a topic's settings don't name it."""
DELETE_RETENTION_MS_MIN: Final = 60_000
NAMED_MAX: Final = 3
"""Partitions that one line names."""
_WHAT_TO_DO: Final = "Restore the topic from a copy, or start under a new application name."


def label_of(changelog: TopicPartition) -> str:
    """A partition of a changelog, for people."""
    return f"{changelog.topic}[{changelog.partition}]"


def labels_of(changelogs: Iterable[TopicPartition]) -> str:
    """The first ones of some."""
    return ", ".join(map(label_of, list(changelogs)[:NAMED_MAX]))


@contextlib.contextmanager
def errors_of(changelog: TopicPartition) -> Iterator[None]:
    """Errors of one changelog and its copy, as what they are to the application."""
    try:
        yield
    except ChangelogUnfit as error:
        raise StateError(f"the changelog {label_of(changelog)} can't be used: {error}. {_WHAT_TO_DO}") from error
    except RocksError as error:
        raise StoreError(str(error)) from error


@contextlib.contextmanager
def unreadable(*kinds: type[BrokerError]) -> Iterator[None]:
    """Errors of these kinds, which no waiting mends, as what they are to the application."""
    try:
        yield
    except kinds as error:
        raise StateError(f"a changelog can't be read: {error}. {_WHAT_TO_DO}") from error


async def ask_changelogs(
    broker: Broker, settings: Settings, changelogs: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, Watermarks], dict[str, int]]:
    """Watermarks, and for how long tombstones stay in each topic. Raises StateError, also where that is too short,
    BrokerError.
    """
    patience = Patience(settings.broker_retry_ms, "asking for changelogs")
    topics = {source.topic for source in changelogs}

    async def asked() -> tuple[dict[str, TopicDescription], dict[TopicPartition, Watermarks]]:
        return await asyncio.gather(broker.describe(topics), broker.watermarks(changelogs))

    try:
        described, marks = await until_answered(asked, patience)
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
    """Committed records of some changelogs, each from a position on. A broker that is away is waited for.

    It has a reader of its own: one that has come to the end of a partition asks there for new records, and would begin
    elsewhere only when it has the answer. ``positions``: what is fetched next.
    """

    def __init__(self, broker: Broker, settings: Settings, positions: Mapping[TopicPartition, int], what: str) -> None:
        """``what`` it is for, in words."""
        self.broker, self.settings = broker, settings
        self.positions = dict(positions)
        self.opened_s = 0.0
        """When its reader was made, by the loop's time."""
        self._reader: Reader | None = None
        self._opening: asyncio.Future[None] | None = None
        self._patience = Patience(settings.broker_retry_ms, what)

    def open(self) -> None:
        """Have the reader made meanwhile: it fetches ahead, and an error of it is told by ``fetch``."""
        if self._reader is None and self._opening is None:
            self._opening = asyncio.ensure_future(self._open_ahead())

    async def _open_ahead(self) -> None:
        reader = await self._open()
        await reader.fetch((), records_max=1, wait_ms=0)  # nothing of it, but it begins with its positions

    async def _open(self) -> Reader:
        self.opened_s = asyncio.get_running_loop().time()
        positions = self.positions
        self._reader = reader = await self.broker.reader(positions)
        if self.positions is not positions:
            reader.assign(self.positions)
        return reader

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on with these from there, and with no others."""
        if self.positions != positions:
            self.positions = dict(positions)
            if self._reader is not None:
                self._reader.assign(self.positions)

    async def fetch(self, records_max: int) -> Sequence[Batch]:
        """What comes next, if anything is there in time. Raises BrokerError."""

        async def fetched() -> Sequence[Batch]:
            """With a new reader after the broker did not answer."""
            opening, self._opening = self._opening, None
            if opening is not None:
                await opening
            reader = await self._open() if self._reader is None else self._reader
            try:
                return await reader.fetch(self.positions, records_max=records_max, wait_ms=FETCH_WAIT_MS)
            except BrokerTimeout:
                await self.close()
                raise

        batches = await until_answered(fetched, self._patience)
        for batch in batches:
            self.positions[batch.source] = batch.offset_next
        return batches

    async def close(self) -> None:
        """Let go of the reader, also of one that is being made; bounded in time."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening], timeout=self.settings.close_timeout_ms / 1000)
            if opening.done() and not opening.cancelled():
                opening.exception()  # nobody waits for what it has to say
        reader, self._reader = self._reader, None
        if reader is not None:
            await closed_within(self.settings.close_timeout_ms, reader.close(), "closing a reader of changelogs")


class CopyThreads:
    """Threads that write copies."""

    def __init__(self, threads: int, name: str, settings: Settings) -> None:
        self.settings = settings
        self._threads = DaemonThreads(threads, name)

    def begin(self, function: Callable[..., T], *arguments: object) -> "asyncio.Future[T]":
        """Have a thread do something."""
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def settled(self, writing: "asyncio.Future[T]") -> T:
        """What a thread returns. Also who is cancelled waits for it: the copy may be closed next."""
        try:
            return await asyncio.shield(writing)
        finally:
            if not writing.done():
                await asyncio.wait([writing], timeout=self.settings.close_timeout_ms / 1000)

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Both."""
        return await self.settled(self.begin(function, *arguments))

    def shutdown(self) -> None:
        """Let the threads end; a second call does nothing."""
        self._threads.shutdown(wait=False)
