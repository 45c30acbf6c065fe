"""Reading changelogs: what is asked of the broker, and with which limits."""

import asyncio
import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

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
from ...errors import StateError, StoreError
from ...state.restore import ChangelogUnfit
from ...state.rocks import RocksError
from ..settings import Settings

FETCH_RECORDS_MAX: Final = 4_000
FETCH_WAIT_MS: Final = 200
DELETE_RETENTION_MS_DEFAULT: Final = 86_400_000
"""Kafka's default for ``delete.retention.ms``, for topics without the setting."""
DELETE_RETENTION_MS_MIN: Final = 60_000
_WHAT_TO_DO: Final = "Restore the topic from a copy, or start under a new application name."


def label_of(changelog: TopicPartition) -> str:
    """A partition of a changelog, for people."""
    return f"{changelog.topic}[{changelog.partition}]"


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

    def __init__(self, broker: Broker, settings: Settings, what: str, fetch_share: int) -> None:
        """``what`` is the purpose, in words. A fetch returns one of ``fetch_share`` parts of ``FETCH_RECORDS_MAX``."""
        self.fetch_share = fetch_share
        self.broker = broker
        self.settings = settings
        self.positions: dict[TopicPartition, int] = {}
        self._reader: Reader | None = None
        self._ahead: asyncio.Future[Sequence[Batch]] | None = None
        """A fetch in the background."""
        self._has_moved = False
        """Whether ``positions`` are others than those of the reader."""
        self._stood_s = 0.0
        """For so long nothing has arrived although the changelog goes on."""
        self._patience = Patience(settings.broker_retry_ms, what)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Fetch the changelogs of ``positions`` from there on, and no others."""
        if self.positions != positions:
            self.positions = dict(positions)
            self._has_moved = True

    def begin_fetch(self) -> None:
        """Fetch the next batches in the background, the reader is made where there is none. ``fetch`` returns them, and
        raises the errors.
        """
        if self._ahead is None:
            self._ahead = asyncio.ensure_future(self._ask())

    async def fetch(self, ends: Mapping[TopicPartition, int]) -> Sequence[Batch]:
        """The next batches; empty when nothing arrives in time. Raises BrokerError, and BrokerTimeout when nothing has
        arrived for long although a changelog has records below its end in ``ends``.
        """
        if self._ahead is not None and self._has_moved:
            await self._drop_ahead()
        ahead, self._ahead = self._ahead, None
        batches = await (self._ask() if ahead is None else ahead)
        for batch in batches:
            self.positions[batch.source] = batch.offset_next
        self._look_whether_it_stands(ends)
        return batches

    def _look_whether_it_stands(self, ends: Mapping[TopicPartition, int]) -> None:
        limit_ms = self.settings.call_limit_ms + self.settings.transaction_timeout_ms
        behind = [(source, at) for source, at in self.positions.items() if at < ends.get(source, 0)]
        if not behind:
            self._stood_s = 0.0
        elif self._stood_s * 1000 > limit_ms:
            source, at = behind[0]
            raise BrokerTimeout(f"reading {label_of(source)} to {ends[source]} has stood at {at} for {limit_ms} ms")

    async def _ask(self) -> Sequence[Batch]:
        return await ask_until_answered(self._fetch_once, self._patience)

    async def _fetch_once(self) -> Sequence[Batch]:
        """Fetch once, with a new reader after a call without an answer."""
        reader, loop = self._reader, asyncio.get_running_loop()
        if reader is None:
            self._has_moved = False
            self._reader = reader = await self.broker.reader(self.positions)
            self._stood_s = 0.0
        elif self._has_moved:
            self._has_moved = False
            reader.assign(self.positions)
        began_s = loop.time()
        try:
            records_max = max(1, FETCH_RECORDS_MAX // self.fetch_share)
            batches = await reader.fetch(self.positions, records_max=records_max, wait_ms=FETCH_WAIT_MS)
        except BrokerTimeout:
            await self._close_reader()
            raise
        self._stood_s = 0.0 if batches else self._stood_s + loop.time() - began_s
        return batches

    async def _drop_ahead(self) -> None:
        """End the fetch in the background; bounded in time."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait([ahead], timeout=self.settings.close_timeout_ms / 1000)
            if ahead.done() and not ahead.cancelled():
                ahead.exception()  # asyncio would log an error that nobody retrieves

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await close_within(self.settings.close_timeout_ms, reader.close(), "closing a reader of changelogs")

    async def close(self) -> None:
        """Drop the reader, also a reader that is being made; bounded in time."""
        await self._drop_ahead()
        await self._close_reader()
