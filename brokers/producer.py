"""The transactional producer of the adapters ``kafka`` and ``simulated``: the outcome of each transaction is known, or
named unknown.

The possible ends of each step, and the reaction:

- AddPartitions, Produce: a request that may be taken later is sent again. A refusal for good names the records of the
  batch. A lost answer ends the transaction. No commit was asked for, so nothing of the transaction becomes visible.
- EndTxn(commit) is sent again only after an answer that nothing was carried out. Without a sure answer the outcome is
  unknown. A second commit on a new connection would be wrong: a commit still under way could end the *next* transaction
  of the same epoch.
- Kafka also says "fenced" when a transaction ran into the time limit. The coordinator tells the two cases apart.

The producer is spent after each of these failures. The next producer has a new epoch; late requests of the spent
producer have the old epoch.

A transaction that failed is left open: the next producer of the id aborts the transaction, under a new epoch. An abort
here would be wrong where a batch is still under way and the broker does not verify batches (Kafka before 3.6): the
batch would arrive behind the marker of the abort, and the next transaction of this epoch would commit the batch.

All requests of an epoch go to the node that gave the epoch: the answer of any other transaction coordinator does not
count. When the node does not answer, or coordinates no more, the producer is spent.
"""

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from .deadline import Deadline
from .delivery import SENT_AGAIN, AppendAnswer, BatchRequests, FencedAnswer, RecordsRefused, Session, Verdict
from .protocol import (
    BrokerError,
    Outgoing,
    ProducerFenced,
    ProducerForgotten,
    TopicPartition,
    TransactionAborted,
    TransactionThrottled,
    TransactionUnknown,
)

T = TypeVar("T")

ABORTED: Final = frozenset({"PrepareEpochFence", "PrepareAbort", "CompleteAbort"})


class IdState(NamedTuple):
    """A coordinator's knowledge of a transactional id, relative to a producer; ``state`` has Kafka's names."""

    is_same_producer_id: bool
    epochs_later: int
    state: str


class TransactionRequests(BatchRequests[T], Protocol[T]):
    """The requests of a producer id under a transactional id, for the coordinator of the id."""

    async def add(self, partitions: Collection[TopicPartition], deadline: Deadline) -> AppendAnswer:
        """AddPartitionsToTxn: begins the transaction."""

    async def commit(self, deadline: Deadline) -> AppendAnswer:
        """EndTxn: commits the transaction."""

    async def describe(self, deadline: Deadline) -> tuple[AppendAnswer, IdState | None]:
        """DescribeTransactions (KIP-664). DONE and None: the id was idle for days, and Kafka forgot the id."""


class TransactionalProducer(Generic[T]):
    """A ``BrokerProducer``: one transactional id at one epoch."""

    def __init__(self, requests: TransactionRequests[T], transactional_id: str, transaction_timeout_ms: int) -> None:
        self.requests = requests
        self.session = Session(requests, in_transactions=True)
        self._id = transactional_id
        self._timeout_ms = transaction_timeout_ms
        self._usable = True
        self.closed = False
        self._began_s: float | None = None  # when the open transaction began, in the loop's time

    async def transact(self, records: Sequence[Outgoing], *, in_parts: bool = False) -> dict[TopicPartition, int]:
        """See the protocol."""
        if not self._usable:
            raise BrokerError("this producer is in use, was closed or has failed: make a new one")
        if not records:
            return {}
        self._usable = False
        ends = await self._write(records, in_parts=in_parts)
        await self._commit()
        self._usable = True
        return ends

    async def close(self) -> None:
        """Close the connections. The time limit, or the next producer, aborts a transaction that is still open."""
        self._usable, self.closed = False, True
        await self.requests.close()

    async def _write(self, records: Sequence[Outgoing], *, in_parts: bool) -> dict[TopicPartition, int]:
        """Begin a transaction and write records. Returns the offset behind each partition's last record."""
        began_s = asyncio.get_running_loop().time()
        deadline = self.requests.deadline(f"the transaction of {self._id!r}", self._timeout_ms)
        self._began_s = None
        try:
            groups = await self.session.plan(records, deadline)
            await self._add(groups, deadline)
            self._began_s = began_s
            return await self.session.deliver(records, groups, deadline, in_parts=in_parts)
        except (ProducerForgotten, TransactionThrottled):
            raise
        except RecordsRefused as error:
            raise error.as_refusal() from error
        except FencedAnswer as error:
            raise await self._fence_error() from error
        except BrokerError as error:
            raise TransactionAborted(f"aborted, nothing of it is visible: {error}") from error

    async def _add(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        while (answer := await self.requests.add(partitions, deadline)).verdict is Verdict.AGAIN:
            await deadline.pause(answer.problem)
        if answer.verdict is Verdict.FENCED:
            raise FencedAnswer(answer.problem)
        if answer.verdict is Verdict.FORGOTTEN:
            raise ProducerForgotten(f"the transactional id {self._id!r} has expired, or has a newer producer")
        if answer.verdict is not Verdict.DONE:
            raise answer.error("partitions can't join the transaction")

    async def _commit(self) -> None:
        deadline = self.requests.deadline(f"the commit of {self._id!r}")
        try:
            while (answer := await self.requests.commit(deadline)).verdict is Verdict.AGAIN:
                await deadline.pause(answer.problem)
        except BrokerError as error:  # the time is over, and no commit is under way
            raise TransactionAborted(f"aborted, the commit could not be asked for: {error}") from error
        if answer.verdict is Verdict.DONE:
            return
        if answer.verdict is Verdict.FENCED:
            raise await self._fence_error()
        if answer.verdict is Verdict.NOT_SENT:
            raise TransactionAborted(f"aborted, the commit could not be asked for: {answer.problem}")
        raise TransactionUnknown(f"no sure answer to the commit of {self._id!r}: {answer.problem}")

    async def _fence_error(self) -> BrokerError:
        """The meaning of "fenced": a newer producer, or a transaction that Kafka aborted at the time limit."""
        open_ms = 0.0 if self._began_s is None else (asyncio.get_running_loop().time() - self._began_s) * 1000
        # Kafka ends no transaction before the time limit. The time here began earlier than the time at Kafka.
        if open_ms < self._timeout_ms or await self._was_replaced():
            return ProducerFenced(f"a newer producer of the transactional id {self._id!r} exists")
        return TransactionAborted(f"aborted by the broker: it took longer than {self._timeout_ms} ms")

    async def _was_replaced(self) -> bool:
        """Whether a newer producer exists. This producer had a transaction open when Kafka named a newer epoch.

        Kafka aborts a transaction at the time limit under the next epoch. A newer producer aborts an open transaction
        in the same way and then takes one more epoch.
        """
        deadline = self.requests.deadline("asking for the state of a transactional id")
        with contextlib.suppress(BrokerError):
            while True:
                answer, state = await self.requests.describe(deadline)
                if answer.verdict is Verdict.DONE:
                    return state is not None and (
                        not state.is_same_producer_id or state.epochs_later > 1 or state.state not in ABORTED
                    )
                if answer.verdict not in SENT_AGAIN and answer.verdict is not Verdict.LOST:
                    break
                await deadline.pause(answer.problem)
        return True  # not known: going on might fence a rightful producer
