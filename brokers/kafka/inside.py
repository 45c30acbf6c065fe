"""The parts of aiokafka in use that aiokafka's documentation does not promise: each private thing, and why.

Written for aiokafka 0.14. For a new minor version this page is the list to check. No other module here touches a
private attribute of aiokafka's objects, but for ``client.KafkaClient``: the class overrides ``_get_conn``, the way of
every request, and ``_metadata_update``, which asks one broker after another for metadata.

A consumer is an ``AIOKafkaConsumer`` without a group, a client an ``AIOKafkaClient``. Names imported from
``aiokafka.protocol``, ``aiokafka.record`` and ``aiokafka.conn`` are not listed: a missing name fails at the import.
"""

import asyncio
import functools
import itertools
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from aiokafka.client import ConnectionGroup

from ..protocol import ConsumerRecord, TopicPartition

USED: Final[Mapping[str, tuple[str, ...]]] = {
    "aiokafka.consumer.consumer.AIOKafkaConsumer": ("_client", "_closed", "_coordinator", "_fetcher", "_subscription"),
    "aiokafka.consumer.group_coordinator.NoGroupCoordinator": ("_reset_committed_task",),
    "aiokafka.consumer.fetcher.Fetcher": (
        "_fetch_max_bytes",
        "_fetch_task",
        "_max_partition_fetch_bytes",
        "_pending_tasks",
        "_proc_fetch_request",
        "_records",
        "fetched_records",
    ),
    "aiokafka.consumer.fetcher.FetchResult": (
        "_partition_records",
        "_topic_partition",
        "_update_position",
        "check_assignment",
        "getall",
        "has_more",
    ),
    "aiokafka.consumer.fetcher.PartitionRecords": ("_consumer_record", "_records_iterator"),
    "aiokafka.consumer.subscription_state.SubscriptionState": ("subscription",),
    "aiokafka.consumer.subscription_state.Subscription": ("assignment",),
    "aiokafka.consumer.subscription_state.Assignment": ("state_value",),
    "aiokafka.consumer.subscription_state.TopicPartitionState": ("lso", "position", "timestamp"),
    "aiokafka.client.AIOKafkaClient": ("_conns", "_get_conn", "_md_synchronizer", "_metadata_update", "_sync_task"),
    "aiokafka.cluster.ClusterMetadata": ("leader_for_partition",),
    "aiokafka.conn.AIOKafkaConnection": ("_do_sasl_handshake", "_do_version_lookup", "_reader", "_requests", "_writer"),
    "asyncio.streams.StreamReader": ("_buffer",),
}
"""By class: names that have to exist. Names without an underscore are reached only through private names."""

Connections: TypeAlias = dict[tuple[int | str, ConnectionGroup], Any]

BOOTSTRAP: Final = "bootstrap", ConnectionGroup.DEFAULT
"""The key of the connection that a client asks while no broker is known."""

# --- a client --------------------------------------------------------------------------------------------------------


def connections(client: Any) -> Connections:
    """The client's own connections by node and group: to close all, also after a cancelled ``bootstrap``, and to look
    at a connection before use.
    """
    found: Connections = client._conns
    return found


def keep_metadata(client: Any) -> None:
    """Begin the client's task that keeps up the metadata, as aiokafka's ``bootstrap`` does: ours replaces it."""
    if client._sync_task is None:
        client._sync_task = asyncio.create_task(client._md_synchronizer())


def is_reset(connection: Any) -> bool:
    """Whether the transport of a connection is closed. The connection itself may hear of the end some turns later."""
    return connection._writer is not None and connection._writer.is_closing()


def abort(connection: Any, reason: Any = None) -> None:
    """Close a connection at once. TLS would say good-bye first, and wait in vain for a silent broker."""
    if (transport := transport_of(connection)) is not None:
        transport.abort()
    connection.close(reason=reason)


def is_waited_for(connection: Any) -> bool:
    """Whether somebody waits for an answer on the connection."""
    return any(not answer.done() for _, _, answer in connection._requests)


def bytes_received(connection: Any) -> int:
    """The bytes that are there of an unfinished answer: these tell a slow answer from a silent broker."""
    reader = connection._reader
    return 0 if reader is None else len(reader._buffer)


def transport_of(connection: Any) -> Any:
    """The transport of a connection; None: not yet, or no longer."""
    return None if connection._writer is None else connection._writer.transport


# --- a consumer: its connections, its tasks --------------------------------------------------------------------------


def set_client(consumer: Any, client: Any) -> None:
    """Give a consumer, before the start, a client of ours with mended connections."""
    consumer._client = client


def client_of(consumer: Any) -> Any:
    """The client of a consumer: to close the connections at any step of the consumer."""
    return consumer._client


def leader_known(consumer: Any, source: TopicPartition) -> bool:
    """Whether the consumer knows a leader. Without a leader the consumer asks nobody, and says nothing."""
    return consumer._client.cluster.leader_for_partition(source) not in (None, -1)


def mark_closed(consumer: Any) -> None:
    """Mark a consumer as closed. Else the freed consumer says that nobody has stopped it: ``stop`` is not used."""
    consumer._closed = True


def tasks_of(consumer: Any) -> list[asyncio.Task[Any]]:
    """The tasks of a consumer without a group, done or not: to end the consumer without ``stop``."""
    tasks = [consumer._client._sync_task]
    if consumer._coordinator is not None:
        tasks.append(consumer._coordinator._reset_committed_task)
    if consumer._fetcher is not None:
        tasks += [consumer._fetcher._fetch_task, *consumer._fetcher._pending_tasks]
    return [task for task in tasks if task is not None]


# --- a consumer: what it fetches -------------------------------------------------------------------------------------


def position_of(consumer: Any, source: TopicPartition) -> int:
    """The offset to be read next. The consumer's public method would need an await."""
    position: int = _state_of(consumer, source).position
    return position


class ReadAnswers(NamedTuple):
    """The news in the answers to reads of a partition. Both fields are None until the first answer."""

    at_ms: Any  # the time of the last answer, by the wall clock
    stable_end: int | None  # the last stable offset


def answered_of(consumer: Any, source: TopicPartition) -> ReadAnswers:
    """The latest answer to reads: whether the broker is silent, or answers without the records announced."""
    state = _state_of(consumer, source)
    return ReadAnswers(state.timestamp, state.lso)


def _state_of(consumer: Any, source: TopicPartition) -> Any:
    return consumer._subscription.subscription.assignment.state_value(source)


def failure_of(consumer: Any) -> BaseException | None:
    """The error that ended the fetching task: nothing would come any more. None: the task goes on."""
    task = consumer._fetcher._fetch_task
    if not task.done():
        return None
    return asyncio.CancelledError() if task.cancelled() else task.exception() or RuntimeError("it has ended")


def tell_at_once(consumer: Any, answered: Callable[[bool], None]) -> None:
    """Call ``answered`` as soon as an answer is there, with whether the answer has brought something. The consumer's
    own signal comes three turns of the loop later: behind a look for the next request, which finds that nothing was
    taken yet and has to be repeated.
    """
    fetcher = consumer._fetcher
    ask = fetcher._proc_fetch_request

    async def ask_and_tell(assignment: Any, node: int, request: Any) -> bool:
        has_news: bool = await ask(assignment, node, request)
        answered(has_news)
        return has_news

    fetcher._proc_fetch_request = ask_and_tell


def set_fetch_bytes(consumer: Any, bytes_max: int) -> None:
    """Set how much is asked of a node at once: a quota may allow less than before."""
    consumer._fetcher._fetch_max_bytes = bytes_max


def set_partition_bytes(consumer: Any, bytes_max: int) -> None:
    """Set how much is asked of a partition at once: the limit depends on the changing number of assigned partitions."""
    consumer._fetcher._max_partition_fetch_bytes = bytes_max


def answered_partitions(consumer: Any) -> Collection[TopicPartition]:
    """The partitions with an answer, in the order in which the answers came. The keys are aiokafka's partitions."""
    found: Collection[TopicPartition] = consumer._fetcher._records
    return found


async def take_records(
    consumer: Any, source: TopicPartition, records_max: int
) -> Mapping[TopicPartition, list[ConsumerRecord]]:
    """The present records of one partition, as parsed; raises an error that came as the answer. The call does not
    suspend. ``getmany`` would wait a turn, and make an object of each record.
    """
    _hand_on_as_parsed(consumer._fetcher._records[source])
    found: Mapping[TopicPartition, list[ConsumerRecord]]
    found = await consumer._fetcher.fetched_records([source], 0, max_records=records_max)
    return found


def let_go(consumer: Any) -> None:
    """Give back prefetched data, up to some MiB of each partition, for nobody will read the data any more. An answer
    that was not read to the end is a reference cycle with its own iterator, and would wait for a garbage collection. An
    answer that is an error is dropped, too: it would be raised after the next assignment.
    """
    for source, fetched in list(consumer._fetcher._records.items()):
        if not hasattr(fetched, "_partition_records"):
            del consumer._fetcher._records[source]
        elif fetched._partition_records is not None:
            fetched._partition_records._records_iterator.close()
            fetched._partition_records = None


def _hand_on_as_parsed(fetched: Any) -> None:
    """Leave out the consumer's own records, and the steps for each. ``fetched`` may be an error, or at the end."""
    parsed = getattr(fetched, "_partition_records", None)
    if parsed is not None:
        parsed._consumer_record = _as_parsed
        # By a weak reference: a cycle would wait for a garbage collection, and thousands make that stand still.
        fetched.getall = functools.partial(_all_at_once, weakref.ref(fetched))


def _all_at_once(fetched_here: "weakref.ref[Any]", max_records: int) -> list[ConsumerRecord]:
    """The consumer's ``getall``, without a call for each record."""
    fetched: Any = fetched_here()  # the caller holds the object
    parsed = fetched._partition_records
    if not fetched.check_assignment(fetched._topic_partition) or not fetched.has_more():
        return []
    records = list(itertools.islice(parsed._records_iterator, max_records))
    fetched._update_position()
    if len(records) < max_records:
        fetched._partition_records = None
    return records


def _as_parsed(_source: TopicPartition, record: ConsumerRecord) -> ConsumerRecord:
    return record
