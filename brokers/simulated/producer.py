"""Writing to the simulated cluster: what the adapter for Kafka does in the same situation.

- AddPartitions, Produce: no answer ends the transaction. No commit was asked for: it is aborted.
- EndTxn(commit) is asked once. No answer means that the outcome is unknown.
- "Fenced" is also what is said when a transaction ran into its time limit; the cluster is asked which it was.
- Records go in batches cut to the topic's limit as it is known here; a batch is refused as a whole.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from ..filling import by_partition
from ..protocol import (
    BrokerError,
    BrokerTimeout,
    Outgoing,
    ProducerFenced,
    TopicPartition,
    TransactionAborted,
    TransactionRefused,
    TransactionUnknown,
    UnknownTopic,
)
from .batches import cut
from .link import Deadline, Link
from .log import BatchRefused, Concurrent
from .network import Kind

ABORT_MS_MAX: Final = 5_000

Limits = Callable[[Collection[str]], Awaitable[Mapping[str, int]]]
"""The ``max.message.bytes`` of topics."""


class Refused(Exception):
    """Records (by index) are refused for good."""

    def __init__(self, message: str, culprits: Iterable[int]) -> None:
        super().__init__(message)
        self.culprits = sorted(culprits)


class Session:
    """A producer at an epoch (None: outside transactions): batches with sequence numbers, delivered in order."""

    def __init__(self, link: Link, producer: str, epoch: int | None, limits: Limits) -> None:
        self.link, self.producer, self.epoch = link, producer, epoch
        self._limits = limits
        self._known: set[TopicPartition] = set()
        self.sequences: dict[TopicPartition, int] = {}

    async def plan(self, records: Sequence[Outgoing], deadline: Deadline) -> dict[TopicPartition, list[int]]:
        """Record indexes by partition; raises Refused for partitions that do not exist."""
        groups = by_partition(records)
        unknown = [source for source in groups if source not in self._known]
        if unknown:
            step = partial(self.link.cluster.missing_to_write, unknown)
            missing = await self.link.ask_again(Kind.METADATA, step, deadline)
            self._known.update(source for source in unknown if source not in missing)
            if missing:
                raise Refused(
                    f"topic {missing[0].topic!r} has no partition {missing[0].partition}",
                    (index for source in missing for index in groups[source]),
                )
        return groups

    async def deliver(
        self, records: Sequence[Outgoing], groups: Mapping[TopicPartition, Sequence[int]], deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """Write all, one batch of a partition at a time; by partition the offset behind the last record.

        Raises Refused, ProducerFenced, BrokerError.
        """
        ends: dict[TopicPartition, int] = {}
        limits = await self._limits(dict.fromkeys(source.topic for source in groups))
        queues = {source: cut(records, group, limits.get(source.topic, 1 << 30)) for source, group in groups.items()}
        numbers: dict[TopicPartition, int] = {}  # the sequence number of each partition's first batch that is left
        while queues:
            heads = {source: batches[0] for source, batches in queues.items()}
            for source in heads.keys() - numbers.keys():
                numbers[source] = self.sequences.get(source, 0)
                self.sequences[source] = numbers[source] + len(heads[source])
            answers = await self._produce(records, heads, numbers, deadline)
            again = self._judge(heads, answers)
            for source in heads:
                if source in again:
                    continue
                ends.pop(source, None)
                answer = answers[source]
                if isinstance(answer, int) and answer >= 0:
                    ends[source] = answer
                del queues[source][0], numbers[source]
                if not queues[source]:
                    del queues[source]
            if again:
                await deadline.pause("records were not taken")
        return ends

    async def _produce(
        self,
        records: Sequence[Outgoing],
        heads: Mapping[TopicPartition, Sequence[int]],
        numbers: Mapping[TopicPartition, int],
        deadline: Deadline,
    ) -> dict[TopicPartition, int | BrokerError]:
        """Send each batch to its partition's leader, one request for each leader; the answers by partition."""
        by_leader: dict[int, dict[TopicPartition, tuple[list[Outgoing], int]]] = {}
        for source, indexes in heads.items():
            batch = [records[index] for index in indexes], numbers[source]
            by_leader.setdefault(self.link.cluster.leader(source), {})[source] = batch
        parts = list(by_leader.values())
        write = self.link.cluster.produce
        replies = await asyncio.gather(
            *(self.link.ask(Kind.PRODUCE, partial(write, self.producer, self.epoch, part), deadline) for part in parts),
            return_exceptions=True,
        )
        answers: dict[TopicPartition, int | BrokerError] = {}
        for part, reply in zip(parts, replies, strict=True):
            if isinstance(reply, BrokerError):
                answers.update(dict.fromkeys(part, reply))
            elif isinstance(reply, BaseException):
                raise reply
            else:
                answers.update(reply)
        return answers

    def _judge(
        self, heads: Mapping[TopicPartition, Sequence[int]], answers: Mapping[TopicPartition, int | BrokerError]
    ) -> set[TopicPartition]:
        """Which partitions' batches are to be sent again; raises what ends the delivery."""
        self.link.check()
        again: set[TopicPartition] = set()
        refused: dict[TopicPartition, BrokerError] = {}
        for source in heads:
            match answers[source]:
                case int():
                    continue
                case BatchRefused() as error:
                    refused[source] = error
                case UnknownTopic() | Concurrent():
                    again.add(source)
                # Without a transaction the sequence numbers make it safe to send a batch twice. Within one, a late
                # copy could outlive the transaction, so a lost answer ends it.
                case BrokerTimeout() if self.epoch is None:
                    again.add(source)
                case error:
                    raise error
        if refused:
            raise Refused(str(next(iter(refused.values()))), (i for source in refused for i in heads[source]))
        return again


class SimulatedProducer:
    """A ``Producer`` at one epoch of its transactional id."""

    def __init__(self, session: Session, transaction_timeout_ms: int, refused: Callable[[], None]) -> None:
        self._session = session
        self._link = session.link
        self._cluster = session.link.cluster
        self._id = session.producer
        self._timeout_ms = transaction_timeout_ms
        self._refused = refused
        self._usable = True
        self._opened: float | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the transactional id that this producer holds."""
        assert self._session.epoch is not None
        return self._session.epoch

    async def transact(self, records: Sequence[Outgoing]) -> dict[TopicPartition, int]:
        """See the protocol."""
        if not self._usable:
            raise BrokerError("this producer is in use, was closed or has failed: make a new one")
        if not records:
            return {}
        self._usable = False
        started = asyncio.get_running_loop().time()
        deadline = self._link.deadline(f"the transaction of {self._id!r}", self._timeout_ms)
        self._opened = None
        try:
            groups = await self._session.plan(records, deadline)
            await self._add(groups, deadline)
            self._opened = started
            ends = await self._session.deliver(records, groups, deadline)
            if self._cluster.network.happens(self._cluster.network.faults.transact_aborted, "transact_aborted"):
                raise BrokerError("aborted on demand")
        except Refused as error:
            self._refused()
            await self._abort(error)
            raise TransactionRefused(str(error), error.culprits) from error
        except ProducerFenced as error:
            raise await self._fenced() from error
        except BrokerError as error:
            await self._abort(error)
            raise TransactionAborted(f"aborted, nothing of it is visible: {error}") from error
        await self._commit()
        self._usable = True
        happens, unknown = self._cluster.network.happens, self._cluster.network.faults.offsets_unknown
        return {source: end for source, end in ends.items() if not happens(unknown, "offsets_unknown")}

    async def close(self) -> None:
        """Let go; an open transaction is left to be fenced or to time out."""
        self._usable = False
        self._link.close()

    async def _add(self, groups: Collection[TopicPartition], deadline: Deadline) -> None:
        step = partial(self._cluster.add_partitions, self._id, self.epoch, tuple(groups))
        while True:
            try:
                await self._link.ask(Kind.ADD_PARTITIONS, step, deadline)
            except (Concurrent, UnknownTopic) as error:
                await deadline.pause(error)
            else:
                return

    async def _commit(self) -> None:
        network, lost_at = self._cluster.network, 0.5
        deadline = self._link.deadline(f"the commit of {self._id!r}")
        commit: Callable[[], None] = partial(self._cluster.end, self._id, self.epoch, True)
        is_lost = network.happens(self._cluster.network.faults.transact_unknown, "transact_unknown")
        if is_lost and network.happens(lost_at, "commit_not_carried_out"):
            commit = _nothing
        try:
            while True:
                try:
                    await self._link.ask(Kind.END_TXN, commit, deadline)
                    break
                except Concurrent as error:
                    await self._pause_commit(deadline, error)
        except ProducerFenced as error:
            raise await self._fenced() from error
        except TransactionAborted:
            raise
        except BrokerError as error:
            raise TransactionUnknown(f"no answer to the commit of {self._id!r}: {error}") from error
        if is_lost:
            raise TransactionUnknown("the answer to the commit was lost on demand")

    async def _pause_commit(self, deadline: Deadline, problem: object) -> None:
        try:
            await deadline.pause(problem)
        except BrokerTimeout as error:
            raise TransactionAborted(f"aborted, the commit could not be asked for: {error}") from error

    async def _abort(self, reason: Exception) -> None:
        """Ask once to abort; raises when the answer is "fenced". Nothing else depends on the answer."""
        deadline = self._link.deadline("an abort", min(ABORT_MS_MAX, self._cluster.network.latency.timeout_ms))
        step = partial(self._cluster.end, self._id, self.epoch, False)
        try:
            with contextlib.suppress(BrokerTimeout):
                while True:
                    try:
                        await self._link.ask(Kind.END_TXN, step, deadline)
                        break
                    except Concurrent as error:
                        await deadline.pause(error)
        except ProducerFenced:
            raise await self._fenced() from reason
        except BrokerError:
            return

    async def _fenced(self) -> BrokerError:
        """What "fenced" means: a newer producer, or a transaction that the cluster aborted for taking too long."""
        open_ms = 0.0 if self._opened is None else (asyncio.get_running_loop().time() - self._opened) * 1000
        if open_ms < self._timeout_ms or await self._replaced():
            return ProducerFenced(f"a newer producer of the transactional id {self._id!r} exists")
        return TransactionAborted(f"aborted by the cluster: it took longer than {self._timeout_ms} ms")

    async def _replaced(self) -> bool:
        step = partial(self._cluster.state.state_of, self._id)
        deadline = self._link.deadline("asking for the state of a transactional id")
        try:
            state, epoch = await self._link.ask_again(Kind.DESCRIBE_TXN, step, deadline)
        except BrokerError:
            return True  # not to know is no reason to fence whoever it may be
        return epoch > self.epoch + 1 or state not in ("PrepareAbort", "CompleteAbort")


def _nothing() -> None:
    """What a request does that never arrives."""
