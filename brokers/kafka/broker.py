"""The adapter for Apache Kafka. The adapter needs brokers of version 2.1 or newer; tried with 4.3.

Four kinds of connections never wait for each other: this object's own for questions, one link per producer, one link
per appender, one consumer per reader. Only the modules of this folder know aiokafka.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from aiokafka.protocol.admin import CreateTopicsRequest, DeleteRecordsRequest, DescribeConfigsRequest

from ...errors import SettingsError
from ...state.tables import TABLE_CONFIG
from ..deadline import Deadline, NotSent, ReplyLost
from ..delivery import SessionAppender, TopicNumbers
from ..producer import TransactionalProducer
from ..protocol import (
    BrokerError,
    GroupOffsets,
    NotAuthorized,
    OffsetOutOfRange,
    Replication,
    TopicDescription,
    TopicPartition,
    TopicSpec,
    Watermarks,
)
from ..rights import Lacking, Right
from ..security import Security
from ..throttling import LIMIT_MS, Throttling
from .address import hosts_of, refuse_plaintext
from .client_logs import quieten_client_logs
from .groups import group_offsets
from .identities import TopicIdentities
from .link import (
    DEFAULT_REPLICATION,
    TOPIC_RESOURCE,
    TRY_AGAIN,
    Code,
    KafkaLink,
    LinkSettings,
    describe_code,
)
from .log_ins import LogIns
from .offsets import LATEST, ConfirmedWatermarks, ask_leaders, offsets_of
from .reader import KafkaReader
from .requests import CODECS, KafkaRequests
from .rights import ask_lacking

NO_TRANSACTION_TIMEOUT_MS: Final = 10_000  # asked for by the request of an appender, which begins no transaction

Made = KafkaReader | TransactionalProducer[bytes] | SessionAppender[bytes]
"""The parts that a broker makes, and closes when the broker is closed."""


class KafkaBroker:
    """A Kafka cluster, reached through ``bootstrap`` (``host:port[,host:port…]``). Constructed without I/O.

    ``request_timeout_ms`` bounds one attempt at a request, ``default_api_timeout_ms`` a call with all attempts.
    ``app``: the application that uses the broker; rights on the application's own topics are told by the beginning of
    the names. ``beside``: a broker of the same user, in use on the same loop: after a refused log-in of either broker,
    neither tries again. Raises SettingsError for an address without a port, and for an unencrypted connection to
    another machine that ``security`` does not allow.
    """

    is_alone: bool = False

    def __init__(
        self,
        bootstrap: str,
        *,
        security: Security | None = None,
        client_id: str = "keylanes",
        app: str = "",
        request_timeout_ms: int = 2_500,
        default_api_timeout_ms: int = 30_000,
        close_timeout_ms: int = 5_000,
        fetch_bytes_max: int = 16 * 1024 * 1024,
        compression_type: str | None = "lz4",
        throttled_ms_max: int = LIMIT_MS,
        beside: "KafkaBroker | None" = None,
    ) -> None:
        security = security or Security()
        if compression_type not in CODECS:
            raise SettingsError(f"compression_type: {compression_type!r}; allowed are {list(CODECS)}")
        refuse_plaintext(hosts_of(bootstrap), security)
        self._settings = LinkSettings(
            bootstrap=bootstrap,
            client_id=client_id,
            security=security,
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=default_api_timeout_ms,
            close_timeout_ms=close_timeout_ms,
            app=app,
            throttling=Throttling(throttled_ms_max),
            log_ins_beside=None if beside is None else beside.log_ins,
        )
        self.throttling = self._settings.throttling
        self._fetch_bytes_max = fetch_bytes_max
        self._codec = CODECS[compression_type]
        self._link = KafkaLink(self._settings)
        self._identities = TopicIdentities(self._link)
        self._limits = TopicNumbers(partial(self._numbers, "max.message.bytes"))
        self._confirmed = ConfirmedWatermarks(self._link, TopicNumbers(partial(self._numbers, "min.insync.replicas")))
        self._made: list[Made] = []

    @property
    def log_ins(self) -> LogIns:
        """The order in which the clients of this broker log in."""
        return self._settings.log_ins

    async def open(self) -> None:
        """Connect; raises BrokerTimeout."""
        quieten_client_logs()
        await self._link.open()

    async def reach_all(self) -> None:
        """Connect to each broker that the cluster advertises now, except for silent brokers. Raises
        AuthenticationRefused, also for a broker on another machine where nothing may be sent in the clear.
        """
        await self._link.reach_all(self._link.deadline("connecting to all brokers"))

    async def close(self) -> None:
        """Disconnect, with the readers, producers and appenders of this object; bounded in time."""
        made, self._made = self._made, []
        await asyncio.gather(*(one.close() for one in made))
        await self._link.close()
        self._identities.forget()

    async def describe(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """The topics among the given names that exist, with all settings."""
        if not topics:
            return {}
        deadline = self._link.deadline("describing topics")
        found = await self._link.topics(topics, deadline)
        configs = await self._configs(found, deadline)
        # A topic without settings was deleted between the two questions.
        return {
            name: TopicDescription(
                name=name,
                partitions=len(topic.partitions),
                config=configs[name],
                identity=topic.identity,
                replication=Replication(topic.replicas, topic.brokers),
            )
            for name, topic in found.items()
            if name in configs
        }

    async def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """See the protocol."""
        found = await self._link.topics(topics, self._link.deadline("counting partitions")) if topics else {}
        return {name: len(topic.partitions) for name, topic in found.items()}

    async def missing_rights(self, rights: Sequence[Right]) -> Lacking:
        """See the protocol."""
        return await ask_lacking(self._link, rights, self._link.deadline("asking for rights"))

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create topics; returns when each partition can be read."""
        if not specs:
            return
        deadline = self._link.deadline("creating topics")
        wanted = {spec.name: spec for spec in specs}
        while wanted:
            rows: list[tuple[Any, ...]] = [
                (spec.name, spec.partitions, spec.replicas or DEFAULT_REPLICATION, [], _settings_of(spec))
                for spec in wanted.values()
            ]
            request = CreateTopicsRequest(
                create_topic_requests=rows, timeout=self._settings.broker_wait_ms, validate_only=False
            )
            try:
                controller = await self._link.controller(deadline)
                reply = await self._link.ask(controller, request, deadline, is_handed_on=True)
            except (NotSent, ReplyLost) as error:
                await deadline.pause(error)
                continue
            if unmade := [name for name, code, _ in reply.topic_errors if code == Code.TOPIC_NOT_AUTHORIZED]:
                raise self._settings.rights_error(*(Right("topic", name, "CREATE") for name in unmade))
            for name, code, message in reply.topic_errors:
                if code in (Code.NONE, Code.TOPIC_EXISTS):
                    del wanted[name]
                elif code not in TRY_AGAIN:
                    raise BrokerError(f"topic {name!r} can't be created: {describe_code(code)} {message or ''}".strip())
            if wanted:
                await deadline.pause("the controller is not ready")
        await self._wait_usable({spec.name for spec in specs}, deadline)

    async def _wait_usable(self, topics: Collection[str], deadline: Deadline) -> None:
        while True:
            found = await self._link.topics(topics, deadline)
            leaders = [one.leader for topic in found.values() for one in topic.partitions.values()]
            if len(found) == len(topics) and None not in leaders:
                break
            await deadline.pause("partitions without a leader")
        # A node may be named as the leader before the node knows. A node that answers for offsets knows.
        partitions = [partition for topic in found.values() for partition, _ in topic.leaderships()]
        await offsets_of(self._link, dict.fromkeys(partitions, LATEST), deadline)

    async def watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        """Watermarks of partitions; raises UnknownTopic."""
        return await self._confirmed.of(partitions, self._link.deadline("asking for watermarks"))

    async def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See the protocol."""
        found = await offsets_of(self._link, times, self._link.deadline("asking for offsets by time"))
        return {partition: None if offset < 0 else offset for partition, offset in found.items()}

    async def group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> GroupOffsets:
        """See the protocol."""
        deadline = self._link.deadline(f"asking for the offsets of group {group!r}")
        return await group_offsets(self._link, group, partitions, deadline)

    async def reader(self, positions: Mapping[TopicPartition, int]) -> KafkaReader:
        """A new reader with connections of its own."""
        reader = KafkaReader(self._settings, self._fetch_bytes_max, self._identities, self.watermarks)
        await reader.open()
        self._keep(reader)
        reader.assign(positions)
        return reader

    async def producer(self, transactional_id: str, *, transaction_timeout_ms: int) -> TransactionalProducer[bytes]:
        """A new producer, after all older producers of the id are fenced and the last transaction is complete."""
        deadline = self._link.deadline(f"making a producer of {transactional_id!r}")
        requests = await self._requests(deadline, (), transactional_id, transaction_timeout_ms)
        producer = TransactionalProducer(requests, transactional_id, transaction_timeout_ms)
        self._keep(producer)
        return producer

    async def _requests(
        self,
        deadline: Deadline,
        topics: Collection[str],
        transactional_id: str | None = None,
        transaction_timeout_ms: int = NO_TRANSACTION_TIMEOUT_MS,
    ) -> KafkaRequests:
        """A new producer id or epoch, over connections of the producer's own. Raises BrokerError after ``close``,
        which would not end these connections. ``topics``: the topics to be written to without transactions.
        """
        self._link.check()
        link = KafkaLink(self._settings)
        try:
            await link.open(deadline)
            initialised = await link.initialise(transactional_id, transaction_timeout_ms, deadline, topics)
            self._link.check()  # ``close`` may have come meanwhile
        except BaseException:
            await link.close()
            raise
        return KafkaRequests(
            link=link,
            limits=self._limits,
            codec=self._codec,
            initialised=initialised,
            transactional_id=transactional_id,
        )

    def _keep(self, made: Made) -> None:
        self._made = [one for one in self._made if not one.closed]
        self._made.append(made)

    def table(self, topic: str, partition: int) -> None:
        """Kafka keeps logs only."""

    def appender(self) -> SessionAppender[bytes]:
        """A new appender; the session is an idempotent producer with connections of its own."""
        appender = SessionAppender(self._requests, self._link.deadline)
        self._keep(appender)
        return appender

    async def trim(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records below the given offsets; raises UnknownTopic, OffsetOutOfRange."""
        deadline = self._link.deadline("trimming")
        timeout_ms = self._settings.broker_wait_ms
        rows = {partition: partial(_row, partition.partition, offset) for partition, offset in before.items()}
        answers = await ask_leaders(
            self._link, rows, lambda rows: DeleteRecordsRequest(rows, timeout_ms), 1, "DELETE", deadline
        )
        for partition, (_low, code, *_) in answers.items():
            if code == Code.OFFSET_OUT_OF_RANGE:
                raise OffsetOutOfRange(partition, before[partition], (await self.watermarks([partition]))[partition])
            if code == Code.TOPIC_NOT_AUTHORIZED:
                raise self._settings.rights_error(Right("topic", partition.topic, "DELETE"))
            if code != Code.NONE:
                raise BrokerError(f"{partition.topic}[{partition.partition}] can't be trimmed: {describe_code(code)}")

    async def _configs(self, topics: Collection[str], deadline: Deadline) -> dict[str, dict[str, str]]:
        """All settings of existing topics."""
        if not topics:
            return {}
        request = DescribeConfigsRequest([(TOPIC_RESOURCE, name, None) for name in sorted(topics)])
        reply = await self._link.ask_any(request, deadline)
        found = {}
        if unseen := [row[3] for row in reply.resources if row[0] == Code.TOPIC_NOT_AUTHORIZED]:
            raise self._settings.rights_error(*(Right("topic", name, "DESCRIBE_CONFIGS") for name in unseen))
        for code, message, _kind, name, entries in reply.resources:
            if code == Code.NONE:
                found[name] = {entry[0]: entry[1] for entry in entries if entry[1] is not None}
            elif code != Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise BrokerError(f"settings of topic {name!r}: {describe_code(code)} {message or ''}".strip())
        return found

    async def _numbers(self, key: str, topics: Collection[str]) -> dict[str, int]:
        """A setting of the given topics, as far as brokers tell."""
        try:
            configs = await self._configs(topics, self._link.deadline(f"asking for {key}"))
        except NotAuthorized:
            return {}
        return {name: int(config[key]) for name, config in configs.items() if key in config}


def _row(*values: int) -> tuple[int, ...]:
    return values


def _settings_of(spec: TopicSpec) -> list[tuple[str, str]]:
    """The settings of a topic for Kafka: Kafka does not know the setting of a table."""
    return [(name, value) for name, value in spec.config.items() if name not in TABLE_CONFIG]
