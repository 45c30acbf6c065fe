"""Reading committed records with aiokafka's consumer, without a group.

The reader adds to the consumer:

- The reader keeps the positions, and gives them to the consumer again after an error: the consumer advances past an
  oversize record.
- ``fetch`` returns as soon as a position moved, also past markers and aborted records only: a caller that reads a log
  to the end waits for the move.
- The consumer waits for ever for a topic that is gone and for a broker that is away; here both become errors.
- Records are handed on as parsed. The consumer would make another object of each record, with fields that nobody here
  needs: two fifths of the cost of reading.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import aiokafka.errors
from aiokafka import AIOKafkaConsumer

from ..protocol import (
    Batch,
    BrokerError,
    BrokerTimeout,
    ConsumerRecord,
    CorruptRecord,
    Headers,
    OffsetOutOfRange,
    TopicPartition,
    UnknownTopic,
    Watermarks,
)
from ..rights import Right
from . import inside
from .identities import TopicIdentities
from .link import LinkSettings, start_within

FETCH_WAIT_MS_MAX: Final = 250  # a new assignment may wait so long for the answer to an old request
PARTITION_BYTES_MAX: Final = 4 * 1024 * 1024
PARTITION_BYTES_MIN: Final = 1024 * 1024  # as much as a batch may have by Kafka's own defaults: smaller ones stutter
NO_TIMESTAMP: Final = -1
LOOK_SECONDS: Final = 1.0
"""Seconds between two looks whether topics are still the same."""
TOLD_AGAIN_SECONDS: Final = 0.01
"""Seconds until the tasks of a closed consumer are told again to end."""

logger = logging.getLogger("keylanes")

WatermarksOf = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, Watermarks]]]


class KafkaReader:
    """A reader with one consumer. ``assign`` takes effect with the next ``fetch``; one ``fetch`` at a time."""

    def __init__(
        self, settings: LinkSettings, fetch_bytes_max: int, identities: TopicIdentities, watermarks: WatermarksOf
    ) -> None:
        self._settings = settings
        self._fetch_bytes_max = fetch_bytes_max
        self._identities = identities  # asks on the broker's connections; the consumer's own are busy with fetches
        self._watermarks = watermarks
        self._consumer: Any = None
        self._positions: dict[TopicPartition, int] = {}
        self._is_applied = True
        """Whether the consumer has the partitions of the last ``assign``."""
        self._news: asyncio.Future[None] | None = None
        """Done when a waiting ``fetch`` shall look again."""
        self._last_answers: dict[TopicPartition, tuple[Any, float]] = {}
        """The time of the last answer about each partition, by the wall clock, and when it was noticed, by the loop's.
        The next records clear all.
        """
        self._empty_answers: dict[TopicPartition, EmptyAnswers] = {}
        self._careful: dict[TopicPartition, int] = {}
        """Partitions that are read record by record, with the number of records left."""
        self._topics_look: asyncio.Task[None] | None = None
        """The regular look whether the topics are still the same."""
        self._next_look_s = 0.0
        self._first_look: asyncio.Task[None] | None = None
        """The look whether newly assigned partitions exist. Nothing is handed out before its end."""
        self.closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on, and no others."""
        self._positions = dict(positions)
        self._is_applied = False
        self._wake()

    def position(self, source: TopicPartition) -> int:
        """The offset to be read next."""
        return self._positions[source]

    async def open(self) -> None:
        """Connect; raises BrokerTimeout."""
        deadline = self._settings.deadline(f"connecting a reader to Kafka at {self._settings.bootstrap}")
        if self._consumer is None:
            self._consumer = await start_within(self._new_consumer, self._start, self._drop, deadline)

    def _new_consumer(self) -> Any:
        consumer = AIOKafkaConsumer(
            **self._settings.client_arguments(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_bytes=self._fetch_bytes_max,
            fetch_max_wait_ms=FETCH_WAIT_MS_MAX,
        )
        inside.set_client(consumer, self._settings.client())
        return consumer

    async def _start(self, consumer: Any) -> None:
        await consumer.start()
        self._note_answer(consumer, False)
        inside.tell_at_once(consumer, partial(self._note_answer, consumer))

    def _note_answer(self, consumer: Any, has_news: bool) -> None:  # called by a hook
        fetching, now_s = inside.client_of(consumer).fetching, asyncio.get_running_loop().time()
        allowed = min(fetching.request_max(now_s), fetching.bytes_max(now_s))
        inside.set_fetch_bytes(consumer, max(1, min(self._fetch_bytes_max, allowed)))
        if has_news:
            self._wake()

    async def close(self) -> None:
        """Let go of connections; bounded in time."""
        self.closed = True
        self._wake()
        for look in (self._topics_look, self._first_look):
            if look is not None:
                look.cancel()
        self._topics_look = self._first_look = None
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._drop(consumer)
            inside.let_go(consumer)

    async def _drop(self, consumer: Any) -> None:
        """Let go of a consumer, with all tasks and requests under way; also when the caller is cancelled.

        The consumer's ``stop`` is not used: ``stop`` tells each task once to end, and waits for one task after the
        other. But a fetcher that is giving up the requests of the last assignment takes this for the end of a request:
        the fetcher goes on, and ``stop`` waits for ever. And a task that has not begun, or a fetch from a broker that
        is away, makes ``stop`` end half done, as if *we* were cancelled.
        """
        inside.mark_closed(consumer)
        for task in inside.tasks_of(consumer):
            task.cancel()
        inside.client_of(consumer).let_go()
        await asyncio.shield(self._end_consumer(consumer))

    async def _end_consumer(self, consumer: Any) -> None:
        limit_ms = self._settings.close_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while going_on := [task for task in inside.tasks_of(consumer) if not task.done()]:
                    await asyncio.wait(going_on, timeout=TOLD_AGAIN_SECONDS)
                    for task in going_on:
                        task.cancel()
                closing = inside.client_of(consumer).close()
                await asyncio.gather(*inside.tasks_of(consumer), closing, return_exceptions=True)
        except TimeoutError:
            logger.warning("a reader did not end within %d ms; its connections are closed", limit_ms)

    async def fetch(self, sources: Collection[TopicPartition], *, records_max: int, wait_ms: int) -> list[Batch]:
        """See the protocol."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_ms / 1000
        while True:
            if self.closed or self._consumer is None:
                raise BrokerError("the reader is not open")
            if not self._is_applied:
                await self._apply_assignment()
                continue
            self._look_at_topics(loop.time())
            wanted = [source for source in sources if source in self._positions]
            if self._first_look is not None and inside.answered_partitions(self._consumer):
                await self._end_first_look()
                continue
            batches = await self._take(wanted, records_max)
            left = end - loop.time()
            if batches or left <= 0:
                if not batches:
                    await self._check_alive(wanted)
                return batches
            await self._wait(left)

    async def _apply_assignment(self) -> None:
        """Give the consumer the partitions, after a look whether the partitions exist: asking for missing ones might
        create them. Partitions that any reader saw a moment ago are asked for at once, because somebody waits for the
        first record. The look goes on beside the requests, and nothing is handed out before the look is through.
        """
        positions = self._positions
        if self._first_look is not None:
            self._first_look.cancel()
        self._first_look = asyncio.ensure_future(self._identities.check(positions))
        self._first_look.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not self._identities.were_seen(positions, LOOK_SECONDS):
            await self._end_first_look()
        if positions is self._positions and not self.closed:  # else assigned anew meanwhile: ``fetch`` comes back
            self._is_applied = True
            self._last_answers.clear()
            self._empty_answers.clear()
            self._careful.clear()
            # The consumer prefetches so much of each partition, without a bound for all partitions together.
            share = max(PARTITION_BYTES_MIN, self._fetch_bytes_max // max(1, len(positions)))
            inside.set_partition_bytes(self._consumer, min(share, PARTITION_BYTES_MAX, self._fetch_bytes_max))
            inside.let_go(self._consumer)
            self._consumer.assign(list(positions))
            for source, offset in positions.items():
                self._consumer.seek(source, offset)

    async def _end_first_look(self) -> None:
        """Wait for the look that was begun with the assignment. Raises the look's error: then another look begins."""
        look = self._first_look
        assert look is not None, "it was begun"
        await asyncio.wait({look})
        if look is self._first_look:  # else assigned anew meanwhile
            self._first_look = None
            if not look.cancelled() and (error := look.exception()) is not None:
                self._is_applied = False
                raise error

    async def _take(self, sources: Collection[TopicPartition], records_max: int) -> list[Batch]:
        """Take the present records of partitions from the consumer, in the order of arrival.

        One partition is asked at a time: an error in a partition would otherwise throw away the records of another.
        """
        if not sources:
            return []
        consumer, positions = self._consumer, self._positions
        if (failed := inside.failure_of(consumer)) is not None:
            raise BrokerError(f"the reader has failed: {failed!r}") from failed
        ours = {source: source for source in sources}  # aiokafka's partitions equal ours, but are not ours
        batches: list[Batch] = []
        for source in [ours[theirs] for theirs in inside.answered_partitions(consumer) if theirs in ours]:
            try:
                # The call does not suspend: nothing can be assigned in between.
                taken_max = 1 if source in self._careful else records_max
                found = await inside.take_records(consumer, source, taken_max)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # decompressors may raise anything
                consumer.seek(source, positions[source])
                if source not in self._careful and _is_damage(error):
                    # Good records in front of the damage are handed out first, one by one.
                    self._careful[source] = records_max
                    where = f"{source.topic}[{source.partition}] from offset {positions[source]} on"
                    logger.warning("%s: damage; the next %d records are read one by one: %r", where, records_max, error)
                    continue
                if batches:
                    break  # the error comes again with the next fetch
                raise await self._translate_error(error, source, positions[source]) from error
            position = inside.position_of(consumer, source)
            if position != positions[source]:
                records: Sequence[ConsumerRecord] = found.get(source, ())
                if records and records[0].timestamp is None:  # as Kafka kept records before version 0.10
                    records = [
                        _UntimedRecord(
                            offset=r.offset, timestamp=NO_TIMESTAMP, key=r.key, value=r.value, headers=r.headers
                        )
                        for r in records
                    ]
                positions[source] = position
                batches.append(Batch(source, records, position))
                self._count_careful(source, len(records))
                records_max -= len(records)
                if records_max == 0:
                    break
        if batches:
            self._last_answers.clear()
            self._empty_answers.clear()
        return batches

    def _count_careful(self, source: TopicPartition, good: int) -> None:
        """Count good records. After as many as wanted there is no damage: only that one answer was damaged."""
        left = self._careful.get(source, 0) - good
        if left > 0:
            self._careful[source] = left
        else:
            self._careful.pop(source, None)

    async def _wait(self, seconds: float) -> None:
        """Wait until the consumer has something new, an assignment comes, or the time is over."""
        loop = asyncio.get_running_loop()
        self._news = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await self._news
        finally:
            timer.cancel()
            self._news = None

    def _wake(self) -> None:
        """Let a waiting ``fetch`` look again."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _translate_error(self, error: Exception, source: TopicPartition, position: int) -> BrokerError:
        """An error of the consumer as an error of the protocol."""
        match error:
            case aiokafka.errors.OffsetOutOfRangeError():
                marks = (await self._watermarks([source]))[source]
                if marks.start <= position <= marks.high:  # in the leader's log: a deposed leader has less
                    return BrokerTimeout(f"a broker that does not lead {source.topic}[{source.partition}] answered")
                return OffsetOutOfRange(source, position, marks)
            case aiokafka.errors.TopicAuthorizationFailedError():
                return self._settings.rights_error(Right("topic", source.topic, "READ"))
            case aiokafka.errors.KafkaError() if error.retriable:
                return BrokerTimeout(str(error))
            case _:
                return CorruptRecord(
                    f"{source.topic}[{source.partition}] can't be read at offset {position}: {error!r}. Nothing was "
                    "skipped. Mend the partition; or delete its records up to behind that and start under a new "
                    "application name"
                )

    async def _check_alive(self, sources: Collection[TopicPartition]) -> None:
        """Nothing came: raises BrokerTimeout when the brokers are silent for longer than a call may take, UnknownTopic
        when a topic is gone. Raises CorruptRecord when a broker answers all the time without the announced records: the
        broker can't read a damaged file, and does not say so.
        """
        if (refusal := inside.client_of(self._consumer).refusal) is not None:
            raise refusal
        now = asyncio.get_running_loop().time()
        limit_ms = self._settings.default_api_timeout_ms
        for source in sources:
            position, (answered, end) = self._positions[source], inside.answered_of(self._consumer, source)
            if end is None or end <= position:
                self._empty_answers.pop(source, None)
            else:
                empty = self._empty_answers.get(source, EmptyAnswers(answered, 0)).heard(answered, limit_ms)
                self._empty_answers[source] = empty
                if empty.ms > 2 * limit_ms:
                    raise CorruptRecord(
                        f"{source.topic}[{source.partition}] can't be read at offset {position}: it has records up to "
                        f"{end}, and for {2 * limit_ms} ms the broker gave none. Its file is damaged there; "
                        "nothing was skipped"
                    )
            seen, since = self._last_answers.setdefault(source, (answered, now))
            if seen != answered:
                self._last_answers[source] = (answered, now)
            elif (now - since) * 1000 > limit_ms:
                await self._identities.check([source])
                raise BrokerTimeout(f"no answer to reads of {source.topic}[{source.partition}] for {limit_ms} ms")
        gone = [source for source in sources if not inside.leader_known(self._consumer, source)]
        await self._identities.check(gone)

    def _look_at_topics(self, now: float) -> None:
        """Look once in a while, beside the work, whether the topics are still the same; raises UnknownTopic.

        Fetches go by name: a topic that was deleted and created anew goes on being read at the old offset.
        """
        look = self._topics_look
        if look is not None and look.done():
            self._topics_look = None
            if not look.cancelled() and isinstance(error := look.exception(), UnknownTopic):
                raise error
        if self._topics_look is None and now >= self._next_look_s:
            self._next_look_s = now + LOOK_SECONDS
            self._topics_look = asyncio.ensure_future(self._identities.check(self._positions))
            # The error is read here, also when nobody fetches any more: asyncio would call it lost.
            self._topics_look.add_done_callback(lambda task: task.cancelled() or task.exception())


class EmptyAnswers(NamedTuple):
    """The time for which a broker has answered without the records announced. While this process stands still, nobody
    hears the broker's answers, so the answers measure the time, not the clock. Both fields are in ms.
    """

    answered: int  # the time of the last answer
    ms: int

    def heard(self, answered: int, step_ms_max: int) -> "EmptyAnswers":
        """Count the newest answer, for the time since the last answer, up to ``step_ms_max``."""
        return EmptyAnswers(answered, self.ms + min(max(answered - self.answered, 0), step_ms_max))


class _UntimedRecord(NamedTuple):
    """A record without a timestamp."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def _is_damage(error: Exception) -> bool:
    """Whether records in front of unreadable data may be good: the error is no answer of the broker, and no loss."""
    known = isinstance(error, aiokafka.errors.OffsetOutOfRangeError | aiokafka.errors.TopicAuthorizationFailedError)
    return not known and not (isinstance(error, aiokafka.errors.KafkaError) and error.retriable)
