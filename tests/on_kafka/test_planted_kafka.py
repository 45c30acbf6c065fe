"""The traps' own test: defects planted into the kafka adapter are found by them, on a real broker.

They are what Kafka's own clients do, or did.
"""

import inspect
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from keylanes.brokers.delivery import Session, SessionAppender
from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.kafka.reader import KafkaReader
from keylanes.brokers.producer import TransactionalProducer
from keylanes.brokers.protocol import BrokerError, TopicPartition, TopicSpec, TransactionAborted

from ..stage.planting import Planting, Put, change, finding
from ..stage.proxy import Proxy
from ..tiers.marks import tier
from . import test_kafka_appends, test_kafka_traps

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120), tier("proof", "planted-traps")]


class Trapped(NamedTuple):
    """A defect of the adapter, the trap that finds it, and a pattern for what is said then."""

    name: str
    effect: str
    put: Put
    trap: Callable[..., Any]
    finding: str


def answers_not_looked_at(patch: Planting) -> None:
    """A batch of a transaction counts as delivered, whatever is answered."""
    judge = Session._judge

    def trust(self: Session[Any], answers: Any, queues: Any) -> dict[Any, str]:
        return {} if self._in_transactions else judge(self, answers, queues)

    patch.setattr(Session, "_judge", trust)


def commit_asked_again(patch: Planting) -> None:
    """A commit without an answer is asked for again, on a new connection, by the same producer."""
    change(
        patch,
        TransactionalProducer,
        "_commit",
        (".verdict is Verdict.AGAIN:", ".verdict in (Verdict.AGAIN, Verdict.LOST):"),
    )


def fenced_is_aborted(patch: Planting) -> None:
    """Who was fenced is told that its transaction was aborted."""

    async def aborted(self: TransactionalProducer[Any]) -> BrokerError:
        return TransactionAborted("aborted")

    patch.setattr(TransactionalProducer, "_fence_error", aborted)


def lost_write_is_sent_again(patch: Planting) -> None:
    """A batch whose answer is lost is sent again under the next sequence number."""
    encode = Session._encode
    sent: dict[int, int] = {}

    def anew(self: Session[Any], records: Any, partition: Any, queue: Any, limit: int) -> None:
        sent[id(queue)] = queue.next
        encode(self, records, partition, queue, limit)

    judge = Session._judge

    def forget(self: Session[Any], answers: Any, queues: Any) -> dict[Any, str]:
        again = judge(self, answers, queues)
        for partition in again:
            queue = queues[partition]
            queue.next, queue.batch = sent[id(queue)], None
        return again

    patch.setattr(Session, "_encode", anew)
    patch.setattr(Session, "_judge", forget)


def limits_not_looked_at(patch: Planting) -> None:
    """Batches are as large as they get, whatever their topic takes."""
    change(patch, Session, "_encode", ("min(limit, BATCH_BYTES_MAX)", "BATCH_BYTES_MAX"))


def told_once_to_end(patch: Planting) -> None:
    """The tasks of a consumer are told to end as its own ``stop`` does it."""
    change(patch, KafkaReader, "_end_consumer", ("for task in going_on:", "for task in ():"))


def appenders_share_a_session(patch: Planting) -> None:
    """All appenders of a connection are one."""
    appender = KafkaBroker.appender
    shared: dict[KafkaBroker, SessionAppender[bytes]] = {}

    def the_same(self: KafkaBroker) -> SessionAppender[bytes]:
        return shared.setdefault(self, appender(self))

    patch.setattr(KafkaBroker, "appender", the_same)


TRAPPED = [
    Trapped(
        "future not awaited, on a real broker",
        "a transaction is committed though one of its batches was refused: lost outputs",
        answers_not_looked_at,
        test_kafka_traps.test_a_refused_record_aborts_all_and_is_named,
        "DID NOT RAISE .*TransactionRefused",
    ),
    Trapped(
        "same producer after an unknown EndTxn, on a real broker",
        "a commit that may still arrive is called aborted, and sent again: doubled or torn transactions",
        commit_asked_again,
        test_kafka_traps.test_a_commit_that_arrives_within_the_next_transaction,
        "TransactionAborted: aborted, the commit could not be asked for",
    ),
    Trapped(
        '"fenced" taken for "aborted", on a real broker',
        "a process that was replaced sends its transaction again: doubled records",
        fenced_is_aborted,
        test_kafka_traps.test_an_idle_producer_is_fenced,
        "TransactionAborted",
    ),
    Trapped(
        "append sent again as a new one",
        "what is written to the control log stands there twice or out of order, or is refused as that",
        lost_write_is_sent_again,
        test_kafka_traps.test_a_lost_append_is_written_once_and_in_order,
        r"== \[1, 2, 3, 4\]|Kafka error 45",
    ),
    Trapped(
        "appenders share one session, on a real broker",
        "whoever appends waits for as long as another append gets no answer",
        appenders_share_a_session,
        test_kafka_appends.test_no_appender_waits_for_another,
        "it waits for another appender",
    ),
    Trapped(
        "batches larger than their topic takes",
        "small records are refused together: dead letters without a cause",
        limits_not_looked_at,
        test_kafka_traps.test_small_records_are_never_refused_together,
        "Refused",
    ),
    Trapped(
        "consumer told once to end",
        "closing takes seconds, and a fetcher goes on for ever",
        told_once_to_end,
        test_kafka_traps.test_a_reader_ends_as_soon_as_it_is_assigned_anew,
        "AssertionError: goes on",
    ),
]


def faults_of(trap: Callable[..., Any]) -> list[dict[str, Any]]:
    """What a trap is run with, one after the other, beside the fixtures."""
    marks = [mark for mark in getattr(trap, "pytestmark", []) if mark.name == "parametrize"]
    return [{mark.args[0]: value} for mark in marks for value in mark.args[1]] or [{}]


async def found(run: Callable[[], Awaitable[None]]) -> str:
    """What a trap finds; empty: nothing."""
    try:
        await run()
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # a defect may raise anything
        return finding(error) or f"an accident: {error!r}"
    return ""


@pytest.mark.parametrize(
    ("trapped", "fault"),
    [(trapped, fault) for trapped in TRAPPED for fault in faults_of(trapped.trap)],
    ids=lambda value: value.name if isinstance(value, Trapped) else "-".join(f.name for f in value.values()) or "once",
)
async def test_a_trap_finds_a_planted_defect(
    trapped: Trapped,
    fault: dict[str, Any],
    broker: KafkaBroker,
    through: KafkaBroker,
    proxy: Proxy,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trap fails with it, as is stated there, and passes without it, with names and a topic of its own."""

    async def run(name: str) -> None:
        await broker.create([TopicSpec(name, 1, {})])
        offered = {"broker": broker, "through": through, "proxy": proxy, "place": TopicPartition(name, 0)}
        offered |= {"name": f"{name}-trap", **fault}
        wanted = inspect.signature(trapped.trap).parameters
        await trapped.trap(**{key: value for key, value in offered.items() if key in wanted})

    trapped.put(Planting(monkeypatch))
    said = await found(partial(run, f"{name}-with"))
    assert re.search(trapped.finding, said, re.DOTALL), f"found: {said or 'nothing'}"
    monkeypatch.undo()
    proxy.release()
    await run(f"{name}-without")
