"""A Kafka cluster as the witness reads it, with librdkafka, while leaders move and brokers hang.

librdkafka keeps the leaders and their epochs that it learned once, and answers FENCED_LEADER_EPOCH for ever after a
leader has moved. So what fails is asked again by a new client, which knows nothing of before. One attempt is short, as
a broker that hangs says nothing; how long it is asked again has a limit. And of offsets that one broker of several did
not answer it says -1001 and no error: taken for an end, that would leave a partition out of the audit unseen.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .brokers import CHUNK_RECORDS, DECIDED_S_MAX, AuditError, Columns, Place, Span, Topic, provenance_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka.admin import AdminClient

A = TypeVar("A")

API_TIMEOUT_MS: Final = 30_000
"""A question with all its attempts; as ``default_api_timeout_ms`` of an application."""
ATTEMPT_S: Final = 4.0
"""One attempt; what ``request_timeout_ms`` is in an application. Longer, because nobody waits behind the audit."""
PAUSE_S_MAX: Final = 1.0
CONSUME_S: Final = 0.05
"""The client fills a chunk for so long: at the end of a partition it would wait for records that don't come."""

_PATIENT: Final = {
    "socket.timeout.ms": int(ATTEMPT_S * 1000),
    "socket.connection.setup.timeout.ms": int(ATTEMPT_S * 1000),
    "api.version.request.timeout.ms": int(ATTEMPT_S * 1000),
    "topic.metadata.refresh.interval.ms": int(ATTEMPT_S * 1000),
    "reconnect.backoff.ms": 500,
    "reconnect.backoff.max.ms": 1_000,
}
_PERMANENT: Final = frozenset(
    (
        "_AUTHENTICATION",
        "_AUTO_OFFSET_RESET",
        "_INVALID_ARG",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "OFFSET_OUT_OF_RANGE",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "UNSUPPORTED_VERSION",
    )
)
"""Errors that another attempt does not cure."""
_FILES: Final = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location")
_PROBE: Final = "probe"
"""In place of a file: what this machine trusts."""
_UNREACHED: Final = frozenset(("_ALL_BROKERS_DOWN", "_SSL", "_TIMED_OUT", "_TRANSPORT"))
_UNFIT: Final = ". Do the client settings (security.protocol, …) fit these brokers?"
_UNSECURED: Final = (
    ". Brokers that want TLS or a log-in may say no more than that: give --client-settings FILE (security.protocol=…), "
    "or MODULE:APP, whose security settings are used then"
)


class KafkaWitness:
    """A Kafka cluster, read with librdkafka. ``security`` holds client settings such as ``security.protocol``.

    ``api_timeout_s``: how long a question is asked again before it is an error, and how long a read may bring nothing.
    """

    def __init__(self, servers: str, security: dict[str, str], api_timeout_s: float = API_TIMEOUT_MS / 1000) -> None:
        self._servers, self._is_secured, self._api_timeout_s = servers, "security.protocol" in security, api_timeout_s
        for name in _FILES:
            path = security.get(name, _PROBE)
            if path != _PROBE and not Path(path).exists():
                raise AuditError(f"client settings: {name}: no such file on this machine: {path}")
        self._common: dict[str, Any] = {
            **_PATIENT,
            **security,
            "bootstrap.servers": servers,
            "log_level": 2,
            "error_cb": self._hear,
        }
        self._admin_client: AdminClient | None = None
        self._heard: KafkaError | None = None
        """What a client said last of its connections: it answers a question with less."""

    def topics(self) -> dict[str, Topic]:
        """All topics by name."""
        listed = self._asked("topics", lambda admin, limit_s: admin.list_topics(timeout=limit_s)).topics
        return {name: Topic(len(topic.partitions)) for name, topic in listed.items() if topic.error is None}

    def spans(self, places: Iterable[Place]) -> dict[Place, Span]:
        """First existing offset and high watermark."""
        wanted = list(places)
        starts = self._offsets(wanted, latest=False, committed=False)
        ends = self._offsets(wanted, latest=True, committed=False)
        return {place: Span(starts[place], ends[place]) for place in wanted}

    def wait_decided(self, spans: Mapping[Place, Span]) -> None:
        """Return when every transaction below the ends is decided."""
        waiting = {place: span.end for place, span in spans.items() if span.end > span.start}
        deadline = time.monotonic() + DECIDED_S_MAX
        while waiting:
            stable = self._offsets(list(waiting), latest=True, committed=True)
            waiting = {place: end for place, end in waiting.items() if stable[place] < end}
            if waiting and time.monotonic() > deadline:
                raise AuditError(f"broker: a transaction stays open for more than {DECIDED_S_MAX:.0f} s: {waiting}")
            if waiting:
                time.sleep(0.05)

    def read(self, place: Place, start: int, end: int, *, head_may_go: bool = False) -> Iterator[Columns]:
        """The committed records of ``[start, end)``."""
        self._heard, silent_from = None, time.monotonic()
        while start < end:
            consumer = self._consumer(head_may_go=head_may_go)
            try:
                for columns in self._consumed(consumer, place, start, end):
                    yield columns
                    start, silent_from = columns.offsets[-1] + 1, time.monotonic()
                return
            except _Lost as lost:
                self._may_go_on(lost.error, silent_from, f"{place[0]}[{place[1]}] from offset {start}")
            finally:
                consumer.close()

    def table(self, place: Place) -> Iterator[Columns] | None:
        """Kafka keeps logs."""

    def close(self) -> None:
        """Let go of connections."""
        self._admin_client = None

    # --- questions -------------------------------------------------------------------------------------------------

    def _admin(self) -> "AdminClient":
        if self._admin_client is None:
            try:
                from confluent_kafka import KafkaException
                from confluent_kafka.admin import AdminClient
            except ImportError:
                raise AuditError("broker: reading Kafka needs the package confluent-kafka") from None
            try:
                self._admin_client = AdminClient(self._common)
            except (KafkaException, ValueError) as error:
                raise AuditError(f"broker: wrong client settings: {error}") from None
        return self._admin_client

    def _asked(self, what: str, question: "Callable[[AdminClient, float], A]") -> A:
        """The answer; the question is asked again by new clients until there is one. Raises AuditError."""
        from confluent_kafka import KafkaException

        self._heard = None
        asked_from, pause_s, limit_s = time.monotonic(), 0.1, 1.0  # soon heard, why it can't be answered at all
        while True:
            admin = self._admin()
            try:
                return question(admin, limit_s)
            except KafkaException as error:
                admin.poll(0)
                self._admin_client = None
                self._may_go_on(error.args[0], asked_from, what)
            time.sleep(pause_s)
            pause_s, limit_s = min(2 * pause_s, PAUSE_S_MAX), min(2 * limit_s, ATTEMPT_S)

    def _offsets(self, places: list[Place], *, latest: bool, committed: bool) -> dict[Place, int]:
        from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        spec = OffsetSpec.latest() if latest else OffsetSpec.earliest()
        found: dict[Place, int] = {}

        def question(admin: "AdminClient", limit_s: float) -> None:
            """Those that are still wanted. What was answered is kept: leaders may move all the time."""
            asked = {TopicPartition(*place): spec for place in places if place not in found}
            unanswered = None
            for at, answer in admin.list_offsets(asked, isolation_level=level, request_timeout=limit_s).items():
                try:
                    offset = answer.result().offset
                except KafkaException as error:
                    unanswered = error
                    continue
                if offset >= 0:
                    found[at.topic, at.partition] = offset
            if unanswered is not None:
                raise unanswered
            if len(found) < len(places):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "a leader did not answer"))

        if places:
            self._asked(f"offsets of {places[0][0]} and others", question)
        return found

    # --- reading ---------------------------------------------------------------------------------------------------

    def _consumer(self, *, head_may_go: bool) -> "Consumer":
        from confluent_kafka import Consumer, KafkaException

        # The default back-off of 1 s and the small queue make a full scan three times slower.
        settings = {
            **self._common,
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
        try:
            return Consumer(settings)
        except (KafkaException, ValueError) as error:
            raise AuditError(f"broker: wrong client settings: {error}") from None

    def _consumed(self, consumer: "Consumer", place: Place, start: int, end: int) -> Iterator[Columns]:
        """Chunks, none of them empty; raises _Lost when there is an error, or nothing comes."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            consumer.assign([TopicPartition(*place, start)])
            silent_from = time.monotonic()
            while True:
                columns = Columns([], [], [], [], [])
                messages = consumer.consume(CHUNK_RECORDS, CONSUME_S)
                is_done, error = _fill(columns, messages, start, end)
                if columns.offsets:  # also what came before an error
                    yield columns
                if is_done:
                    return
                if error is not None:
                    raise _Lost(error)
                if messages:
                    silent_from = time.monotonic()
                elif time.monotonic() - silent_from > self._api_timeout_s / 2:
                    raise _Lost(None)  # the client finds leaders that moved; one that does not is replaced
        except KafkaException as error:
            raise _Lost(error.args[0]) from None

    # --- what went wrong -------------------------------------------------------------------------------------------

    def _hear(self, error: "KafkaError") -> None:
        if self._heard is None or error.name() != "_ALL_BROKERS_DOWN":  # that comes behind the cause
            self._heard = error

    def _may_go_on(self, error: "KafkaError | None", silent_from: float, what: str) -> None:
        """Raises AuditError when another attempt does not help, or there was none with success for too long."""
        heard = self._heard
        causes = [cause for cause in (error, heard) if cause is not None]
        said = "; ".join(dict.fromkeys(cause.str() for cause in causes)) or "nothing came"
        if any(_is_permanent(cause) for cause in causes):
            raise AuditError(f"broker: {what}: {said}")
        if time.monotonic() - silent_from < self._api_timeout_s:
            return
        limit, hint = f"{self._api_timeout_s:.0f} s", ""
        if any(cause.name() in _UNREACHED for cause in causes):
            hint = _UNFIT if self._is_secured else _UNSECURED
        raise AuditError(f"broker: no answer from {self._servers} for {limit}: {what}: {said}{hint}")


class _Lost(Exception):
    """A reader that has to be replaced, with what was said of it."""

    def __init__(self, error: "KafkaError | None") -> None:
        super().__init__(error)
        self.error = error


def _fill(columns: Columns, messages: Iterable[Any], start: int, end: int) -> "tuple[bool, KafkaError | None]":
    """Lay down the records of ``[start, end)`` up to an error; whether the end was reached, and the error."""
    from confluent_kafka import KafkaError

    for message in messages:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if message.topic() is None:  # of the group, which the client looks for and nobody uses
                continue
            return False, error
        offset = message.offset()
        if offset >= end:  # also the end of the partition, which passes aborted records and markers
            return True, None
        if error is not None or offset < start:  # below: of a topic that was made anew meanwhile
            continue
        columns.offsets.append(offset)
        columns.timestamps.append(message.timestamp()[1])
        columns.keys.append(message.key())
        columns.values.append(message.value())
        columns.provenance.append(provenance_of(message.headers()))
    return bool(columns.offsets) and columns.offsets[-1] == end - 1, None


def _is_permanent(error: "KafkaError") -> bool:
    # A broker that stops ends TLS handshakes, too; a certificate that is not accepted stays so.
    return error.name() in _PERMANENT or (error.name() == "_SSL" and "verify failed" in error.str())
