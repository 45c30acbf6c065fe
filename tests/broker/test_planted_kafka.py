"""The traps' own test: defects planted into the kafka adapter are found by them, on a real broker.

They are what Kafka's own clients do, or did. ``docs/planted-bugs.md`` lists them with all others.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from keylanes.runtime.brokers.kafka import KafkaBroker
from keylanes.runtime.brokers.kafka_producer import KafkaProducer, Session
from keylanes.runtime.brokers.protocol import BrokerError, TopicPartition, TransactionAborted

from ..simulation.plants import change
from . import test_kafka_traps
from .proxy import Proxy

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


class Trapped(NamedTuple):
    """A defect of the adapter, and the trap that finds it."""

    name: str
    effect: str
    put: Callable[[pytest.MonkeyPatch], None]
    trap: Callable[..., Any]


def answers_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """A batch of a transaction counts as delivered, whatever is answered."""
    judge = Session._judge

    def trust(self: Session, codes: Any, queues: Any) -> Any:
        return judge(self, codes, queues) if self.transactional_id is None else {}

    patch.setattr(Session, "_judge", trust)


def commit_asked_again(patch: pytest.MonkeyPatch) -> None:
    """A commit without an answer is asked for again, on a new connection, by the same producer."""
    change(patch, KafkaProducer, "_commit", ("except NotSent as error:", "except (NotSent, ReplyLost) as error:"))


def fenced_is_aborted(patch: pytest.MonkeyPatch) -> None:
    """Who was fenced is told that its transaction was aborted."""

    async def aborted(self: KafkaProducer) -> BrokerError:
        return TransactionAborted("aborted")

    patch.setattr(KafkaProducer, "_fenced", aborted)


def lost_write_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    """A batch whose answer is lost is sent again under the next sequence number."""
    encode = Session._encode
    sent: dict[int, int] = {}

    def anew(self: Session, records: Any, partition: Any, queue: Any, limit: int) -> Any:
        sent[id(queue)] = queue.next
        return encode(self, records, partition, queue, limit)

    judge = Session._judge

    def forget(self: Session, codes: Any, queues: Any) -> Any:
        again = judge(self, codes, queues)
        for partition in again:
            queue = queues[partition]
            queue.next, queue.batch = sent[id(queue)], None
        return again

    patch.setattr(Session, "_encode", anew)
    patch.setattr(Session, "_judge", forget)


def limits_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Batches are as large as they get, whatever their topic takes."""
    change(patch, Session, "_encode", ("batch_size=min(limit, BATCH_BYTES_MAX)", "batch_size=BATCH_BYTES_MAX"))


TRAPPED = [
    Trapped(
        "future not awaited, on a real broker",
        "a transaction is committed though one of its batches was refused: lost outputs",
        answers_not_looked_at,
        test_kafka_traps.test_a_refused_record_aborts_all_and_is_named,
    ),
    Trapped(
        "same producer after an unknown EndTxn, on a real broker",
        "a commit that is late ends the producer's next transaction half-way: torn transactions",
        commit_asked_again,
        test_kafka_traps.test_a_commit_that_arrives_within_the_next_transaction,
    ),
    Trapped(
        '"fenced" taken for "aborted", on a real broker',
        "a process that was replaced sends its transaction again: doubled records",
        fenced_is_aborted,
        test_kafka_traps.test_an_idle_producer_is_fenced,
    ),
    Trapped(
        "append sent again as a new one",
        "what is written to the control log stands there twice, or out of order",
        lost_write_is_sent_again,
        test_kafka_traps.test_a_lost_append_is_written_once_and_in_order,
    ),
    Trapped(
        "batches larger than their topic takes",
        "small records are refused together: dead letters without a cause",
        limits_not_looked_at,
        test_kafka_traps.test_small_records_are_never_refused_together,
    ),
]


@pytest.mark.parametrize("trapped", TRAPPED, ids=lambda trapped: trapped.name)
async def test_a_trap_finds_a_planted_defect(
    trapped: Trapped,
    broker: KafkaBroker,
    through: KafkaBroker,
    proxy: Proxy,
    name: str,
    place: TopicPartition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The trap, which is passed without the defect, fails with it."""
    offered = {"broker": broker, "through": through, "proxy": proxy, "name": f"{name}-trap", "place": place}
    wanted = inspect.signature(trapped.trap).parameters
    known = {key: value for key, value in offered.items() if key in wanted}
    faults = [mark for mark in getattr(trapped.trap, "pytestmark", []) if mark.name == "parametrize"]
    if faults:
        known[faults[0].args[0]] = faults[0].args[1][0]
    trapped.put(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)):
        await trapped.trap(**known)
