"""A producer's requests to the simulated cluster, each sent once, and the meaning of the cluster's answers.

``brokers.delivery`` and ``brokers.producer`` decide the same as on Kafka. Here faults of whole transactions come in.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from ..deadline import Deadline, NotSent
from ..delivery import AppendAnswer, ProduceBatch, TopicNumbers, Verdict
from ..producer import IdState
from ..protocol import (
    BrokerError,
    BrokerTimeout,
    NotAuthorized,
    Outgoing,
    ProducerFenced,
    ProducerForgotten,
    TopicPartition,
    UnknownTopic,
)
from .batches import count_fitting
from .link import Link, ProducerEpoch
from .log import BatchRefused, Concurrent, CoordinatorUnavailable
from .network import RequestKind
from .node import Node
from .nodes import NotLeader

T = TypeVar("T")

NOT_CARRIED_OUT: Final = 0.5  # of the commits that are lost on demand

Numbered = tuple[Sequence[Outgoing], int]
"""The records of one batch, and the sequence number."""


def verdict_of(error: BrokerError) -> Verdict:
    """The meaning of an error for the request."""
    match error:
        case ProducerForgotten():
            return Verdict.FORGOTTEN
        case ProducerFenced():
            return Verdict.FENCED
        case BatchRefused():
            return Verdict.REFUSED
        case CoordinatorUnavailable():
            return Verdict.DOUBTFUL
        case Concurrent() | NotLeader() | UnknownTopic():  # the topic is known to exist: news are on the way
            return Verdict.AGAIN
        case NotSent():
            return Verdict.NOT_SENT
        case BrokerTimeout():
            return Verdict.LOST
        case _:
            return Verdict.FAILED


def answer_of(error: BrokerError) -> AppendAnswer:
    """An error as an answer."""
    return AppendAnswer(verdict_of(error), str(error), refusal=error if isinstance(error, NotAuthorized) else None)


class SimulatedRequests:
    """A producer, ``initialised`` at an epoch (None: outside of transactions): ``TransactionRequests``,
    ``BatchRequests``.
    """

    def __init__(self, link: Link, limits: TopicNumbers, producer: str, initialised: ProducerEpoch | None) -> None:
        self.link = link
        self.limits = limits
        self.producer = producer
        self.initialised = initialised
        self.allowance = link.known.throttling.writing
        self._network = link.cluster.network

    @property
    def epoch(self) -> int:
        """The epoch of the transactional id."""
        assert self.initialised is not None, "only transactions have an epoch"
        return self.initialised.epoch

    @property
    def coordinator(self) -> int:
        """The node that gave the epoch: nothing proves the coordination of another node that claims it."""
        assert self.initialised is not None, "only transactions have a coordinator"
        return self.initialised.node

    def deadline(self, what: str, timeout_ms: float | None = None) -> Deadline:
        """See ``BatchRequests``."""
        return self.link.deadline(what, timeout_ms)

    async def missing_partitions(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> list[TopicPartition]:
        """See ``BatchRequests``."""
        return await self.link.missing_partitions(partitions, deadline, to_write=True)

    async def close(self) -> None:
        """Close the connections. A caller that still waits gets a BrokerTimeout."""
        self.link.close()

    # --- to the leaders of partitions --------------------------------------------------------------------------------

    def encode(
        self, records: Sequence[Outgoing], indexes: Sequence[int], first: int, sequence: int, limit: int
    ) -> ProduceBatch[Numbered]:
        """See ``BatchRequests``."""
        count, size = count_fitting(records, indexes, first, limit)
        return ProduceBatch(count, ([records[index] for index in indexes[first : first + count]], sequence), size, size)

    async def produce(
        self, batches: Mapping[TopicPartition, ProduceBatch[Numbered]], deadline: Deadline
    ) -> dict[TopicPartition, AppendAnswer]:
        """See ``BatchRequests``. Leaders that did not take their batches are forgotten."""
        leaders = self.link.leaders
        by_leader: dict[int | None, dict[TopicPartition, ProduceBatch[Numbered]]] = {}
        for place, batch in batches.items():
            by_leader.setdefault(leaders.leader(place), {})[place] = batch
        await self.link.known.wait_until_unmuted(deadline)
        parts = await asyncio.gather(*(self._produce_at(node, part, deadline) for node, part in by_leader.items()))
        self.link.known.wrote(sum(batch.unpacked for batch in batches.values()), self._network.quota)
        answers = {place: answer for part in parts for place, answer in part.items()}
        leaders.forget([place for place, answer in answers.items() if answer.verdict is not Verdict.DONE])
        if self.initialised is None:
            return answers
        happens, faults = self._network.happens, self._network.faults
        if happens(faults.transact_aborted, "transact_aborted"):
            answers[next(iter(answers))] = AppendAnswer(Verdict.FAILED, "aborted on demand")
        return {
            place: answer._replace(end=-1) if happens(faults.offsets_unknown, "offsets_unknown") else answer
            for place, answer in answers.items()
        }

    async def _produce_at(
        self, leader: int | None, batches: Mapping[TopicPartition, ProduceBatch[Numbered]], deadline: Deadline
    ) -> dict[TopicPartition, AppendAnswer]:
        if leader is None:
            return dict.fromkeys(batches, AppendAnswer(Verdict.NOT_SENT, "partitions without a leader"))
        epoch = None if self.initialised is None else self.initialised.epoch
        payloads = {place: batch.payload for place, batch in batches.items()}
        answer, found = await self._ask(
            RequestKind.PRODUCE, leader, lambda node: partial(node.produce, self.producer, epoch, payloads), deadline
        )
        if found is None:
            return dict.fromkeys(batches, answer)
        return {
            place: answer_of(end) if isinstance(end, BrokerError) else AppendAnswer(Verdict.DONE, end=end)
            for place, end in found.items()
        }

    # --- to the coordinator of the transactional id ------------------------------------------------------------------

    async def add(self, partitions: Collection[TopicPartition], deadline: Deadline) -> AppendAnswer:
        """See ``TransactionRequests``. Waits while the cluster throttles: the open transaction would wait."""
        await self.link.known.wait_until_unmuted(deadline)
        added = tuple(partitions)
        answer, _ = await self._ask(
            RequestKind.ADD_PARTITIONS,
            self.coordinator,
            lambda node: partial(node.add_partitions, self.producer, self.epoch, added),
            deadline,
        )
        return answer

    async def commit(self, deadline: Deadline) -> AppendAnswer:
        """See ``TransactionRequests``."""
        happens, faults = self._network.happens, self._network.faults
        is_lost = happens(faults.transact_unknown, "transact_unknown")
        arrives = not (is_lost and happens(NOT_CARRIED_OUT, "commit_not_carried_out"))

        def step_of(node: Node) -> Callable[[], None]:
            return partial(node.end, self.producer, self.epoch, True) if arrives else _nothing

        answer, _ = await self._ask(RequestKind.END_TXN, self.coordinator, step_of, deadline)
        return AppendAnswer(Verdict.LOST, "the answer was lost on demand") if is_lost else answer

    async def describe(self, deadline: Deadline) -> tuple[AppendAnswer, IdState | None]:
        """See ``TransactionRequests``."""
        answer, found = await self._ask(
            RequestKind.DESCRIBE_TXN, self.coordinator, lambda node: partial(node.state_of, self.producer), deadline
        )
        return answer, None if found is None else IdState(True, found[1] - self.epoch, found[0])

    async def _ask(
        self, kind: RequestKind, number: int, step_of: Callable[[Node], Callable[[], T]], deadline: Deadline
    ) -> tuple[AppendAnswer, T | None]:
        """The outcome of a request, and the answer; raises BrokerError when the connection is closed."""
        self.link.check()
        try:
            return AppendAnswer(Verdict.DONE), await self.link.ask_node(kind, number, step_of, deadline)
        except BrokerError as error:
            return answer_of(error), None


def _nothing() -> None:
    """The step of a request that never arrives."""
