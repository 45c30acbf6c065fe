"""A Kafka cluster, read by the witness with librdkafka, while leaders move and brokers hang.

kafka_clients.py makes the clients, kafka_spans.py asks for offsets, KafkaWitness reads records.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from .brokers import CHUNK_RECORDS, DECIDED_S_MAX, AuditError, Columns, Place, Span, Topic
from .kafka_clients import PAUSE_S_MAX, KafkaClients, unread_of
from .kafka_spans import KafkaSpans
from .rows import origin_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

CONSUME_S: Final = 0.05
"""The time to fill a chunk: at the end of a partition the client would wait for records that don't come."""
BELIEVED: Final = (
    "WARNING: {topics}: min.insync.replicas is 1, or is not told, and not all brokers that keep these topics answer: "
    "whoever says that it leads them is believed"
)


class KafkaWitness:
    """A Kafka cluster, read with librdkafka. ``security`` holds client settings such as ``security.protocol``.

    ``api_timeout_s``: how long a question is asked again before an error, and how long a read may bring nothing.
    """

    def __init__(self, servers: str, security: Mapping[str, str], api_timeout_s: float) -> None:
        self._clients = KafkaClients(servers, security, api_timeout_s)
        self._spans = KafkaSpans(self._clients)

    def topics(self) -> dict[str, Topic]:
        """All topics by name."""
        listed = self._clients.ask("topics", lambda admin, limit_s: admin.list_topics(timeout=limit_s)).topics
        return {name: Topic(len(topic.partitions)) for name, topic in listed.items() if topic.error is None}

    def refuse_unread(self, topics: Mapping[str, str]) -> None:
        """Raise AuditError with the missing rights, as told by the brokers."""
        unread = self._clients.ask("rights", lambda admin, limit_s: unread_of(admin, sorted(topics), limit_s))
        if unread:
            rights = dict.fromkeys((topics[name] or name, bool(topics[name])) for name in unread)
            who = self._clients.principal
            raise AuditError(" ".join(_right_missing(who, name, is_prefix=is_prefix) for name, is_prefix in rights))

    def spans(self, places: Iterable[Place]) -> dict[Place, Span]:
        """First existing offset and high watermark."""
        return self._spans.of(places, committed=False)

    def wait_decided(self, spans: Mapping[Place, Span]) -> None:
        """Return when every transaction below the ends is decided."""
        waiting = {place: span.end for place, span in spans.items() if span.end > span.start}
        deadline, pause_s = time.monotonic() + DECIDED_S_MAX, 0.05
        while waiting:
            stable = self._spans.of(waiting, committed=True)
            waiting = {place: end for place, end in waiting.items() if stable[place].end < end}
            if waiting and time.monotonic() > deadline:
                raise AuditError(f"broker: a transaction stays open for more than {DECIDED_S_MAX:.0f} s: {waiting}")
            if waiting:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def doubts(self) -> list[str]:
        """Topics without confirmed leaders."""
        topics = ", ".join(sorted(self._spans.believed_topics))
        return [BELIEVED.format(topics=topics)] if topics else []

    def read(self, place: Place, start: int, end: int, *, head_may_go: bool = False) -> Iterator[Columns]:
        """The committed records of ``[start, end)``."""
        self._clients.forget_problems()
        silent_from = time.monotonic()
        while start < end:
            consumer = self._consumer(head_may_go=head_may_go)
            try:
                for columns in self._consume(consumer, place, start, end):
                    yield columns
                    start, silent_from = columns.offsets[-1] + 1, time.monotonic()
                return
            except _Lost as lost:
                self._clients.may_go_on(lost.error, silent_from, f"{place[0]}[{place[1]}] from offset {start}")
            finally:
                consumer.close()

    def table(self, place: Place) -> Iterator[Columns] | None:
        """None: every topic of Kafka is a log."""

    def close(self) -> None:
        """Let go of connections."""
        self._clients.close()

    # --- reading ---------------------------------------------------------------------------------------------------

    def _consumer(self, *, head_may_go: bool) -> "Consumer":
        # The default back-off of 1 s and the small queue make a full scan three times slower.
        settings = {
            "group.id": "keylanes-audit",  # asked for by the client; no group is joined, nothing is stored
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest" if head_may_go else "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.queue.backoff.ms": 10,
            "fetch.error.backoff.ms": 100,
            "queued.max.messages.kbytes": 262_144,
            "fetch.message.max.bytes": 8_388_608,
        }
        return self._clients.consumer(settings)

    def _consume(self, consumer: "Consumer", place: Place, start: int, end: int) -> Iterator[Columns]:
        """Chunks of at least one record; raises _Lost after an error, or when nothing comes."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            consumer.assign([TopicPartition(*place, start)])
            silent_from = time.monotonic()
            while True:
                columns = Columns(offsets=[], timestamps=[], keys=[], values=[], origins=[])
                messages = consumer.consume(CHUNK_RECORDS, CONSUME_S)
                is_done, error = _fill(columns, messages, start, end)
                if columns.offsets:  # also the records in front of an error
                    yield columns
                if is_done:
                    return
                if error is not None:
                    raise _Lost(error)
                if messages:
                    silent_from = time.monotonic()
                elif time.monotonic() - silent_from > self._clients.api_timeout_s / 2:
                    raise _Lost(None)  # a client that does not find moved leaders is replaced
        except KafkaException as error:
            raise _Lost(error.args[0]) from None


def _right_missing(who: str | None, name: str, *, is_prefix: bool) -> str:
    """The message for a missing right to read, with the command that gives the right."""
    what = f"each topic whose name begins with {name!r} (prefixed" if is_prefix else f"topic {name!r} (literal"
    pattern = " --resource-pattern-type prefixed" if is_prefix else ""
    return (
        f"{who or 'this user'} has no right to READ on {what} ACL): allow it with `kafka-acls.sh --bootstrap-server "
        f"BROKER --add --allow-principal '{who or 'User:PRINCIPAL'}' --operation READ --topic '{name}'{pattern}`."
    )


class _Lost(Exception):
    """A consumer has to be replaced. ``error``: the error of the client; None: nothing came."""

    def __init__(self, error: "KafkaError | None") -> None:
        super().__init__(error)
        self.error = error


def _fill(columns: Columns, messages: Iterable[Any], start: int, end: int) -> "tuple[bool, KafkaError | None]":
    """Append the records of ``[start, end)`` up to an error; returns whether the end was reached, and the error."""
    from confluent_kafka import KafkaError

    for message in messages:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if message.topic() is None:  # an error of the consumer group, unused
                continue
            return False, error
        offset = message.offset()
        if offset >= end:  # also the end of the partition, behind aborted records and markers
            return True, None
        if error is not None or offset < start:  # below start: the topic was made anew meanwhile
            continue
        columns.offsets.append(offset)
        columns.timestamps.append(message.timestamp()[1])
        columns.keys.append(message.key())
        columns.values.append(message.value())
        columns.origins.append(origin_of(message.headers()))
    return bool(columns.offsets) and columns.offsets[-1] == end - 1, None
