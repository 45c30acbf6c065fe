"""The network between simulated processes and a cluster: delays, and requests that are lost, late, held or cut.

A request arrives after a delay and takes effect in one step, whether or not the sender still waits; the reply comes
after another delay. Every choice comes from the cluster's seed. All events here and in the cluster run in a context of
their own, not in the context of the sender: a paused process does not pause the network.
"""

import asyncio
import contextvars
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from ..deadline import NotSent
from ..protocol import BrokerError, BrokerTimeout, NotAuthorized, TopicPartition
from ..rights import Operation, Right
from .nodes import NoAnswer
from .quota import Quota

EPOCH_MS = 1_700_000_000_000  # a record's time is this plus the loop's time
BROKEN = "the connection broke before an answer came"
SILENT = "no answer in time"
UNREACHABLE = "no connection"
PRINCIPAL = "User:simulated"
RETRY_MS: Final = (1.0, 20.0)
"""So long a client waits before it asks again."""


class Unanswered(BrokerTimeout):
    """The node said nothing for a whole attempt."""


@dataclass
class Faults:
    """Probabilities for a request (or for a transaction), and switches; may be changed while the cluster runs."""

    transact_aborted: float = 0.0  # of a transaction's batches: the answer is an error that aborts the transaction
    transact_unknown: float = 0.0  # of a transaction: the request to commit, or the reply, is lost
    offsets_unknown: float = 0.0  # of a transaction's batch: the offset is not told
    coordinator_away: float = 0.0  # of an end of a transaction: the answer is "not available", carried out or not
    reply_slow: float = 0.0  # a reply takes reply_slow_ms longer
    reply_slow_ms: float = 500.0
    not_sent: float = 0.0  # there is no connection: the request does not leave, and the sender knows
    request_lost: float = 0.0  # the connection breaks, the cluster never sees the request
    reply_lost: float = 0.0  # carried out, and the connection breaks before the answer
    request_late: float = 0.0  # stays in the network for up to request_late_ms, even after the sender gave up
    request_late_ms: float = 20_000.0
    marker_late: float = 0.0  # of a marker: written up to marker_late_ms later
    marker_late_ms: float = 5_000.0
    cut: set[str] = field(default_factory=set)  # clients without any link: nothing leaves and nothing arrives
    cut_from: set[tuple[str, str]] = field(default_factory=set)  # as ``cut``, for requests of a client about a topic
    cut_from_node: set[tuple[str, int]] = field(default_factory=set)  # as ``cut``, between a client and a node
    denied: set[Right] = field(default_factory=set)  # rights that no client has, though all were allowed to start
    away: bool = False  # nothing is answered; every call ends with BrokerTimeout

    def refuse(self, operation: Operation, topics: Iterable[str]) -> None:
        """Raises NotAuthorized when the operation is denied for some of the topics."""
        rights = [Right("topic", topic, operation) for topic in dict.fromkeys(topics)]
        if lacking := [right for right in rights if right in self.denied]:
            raise NotAuthorized(lacking, PRINCIPAL)

    def heal(self) -> None:
        """End all faults; late requests stay late."""
        self.transact_aborted = self.transact_unknown = self.offsets_unknown = self.reply_slow = 0.0
        self.not_sent = self.request_lost = self.reply_lost = self.request_late = self.marker_late = 0.0
        self.coordinator_away = 0.0
        self.cut.clear()
        self.cut_from.clear()
        self.cut_from_node.clear()
        self.denied.clear()
        self.away = False


@dataclass(frozen=True)
class Latency:
    """Ranges in ms; delays are drawn evenly from a range."""

    request_ms: tuple[float, float] = (0.1, 2.0)  # each way
    marker_ms: tuple[float, float] = (0.1, 20.0)  # from a transaction's decision to each of its markers
    timeout_ms: float = 10_000.0  # so long a client waits for an answer, and repeats what may be asked twice
    attempt_ms: float = math.inf  # the limit of one try; never above timeout_ms


class RequestKind(Enum):
    """Kinds of requests."""

    METADATA = auto()
    CREATE = auto()
    OFFSETS = auto()
    TRIM = auto()
    FETCH = auto()
    COORDINATOR = auto()
    INIT = auto()
    ADD_PARTITIONS = auto()
    PRODUCE = auto()
    END_TXN = auto()
    DESCRIBE_TXN = auto()


class Fault(Enum):
    """The fault for one request that a test has chosen."""

    NOT_SENT = auto()  # no connection: the sender knows that the request did not leave
    LOSE_REQUEST = auto()  # the connection breaks, the cluster never sees the request
    LOSE_REPLY = auto()  # carried out, and the connection breaks before the answer
    HOLD_REQUEST = auto()  # the request waits in the network until ``release``, even if the sender has left


@dataclass(eq=False)
class NodeRequest:
    """A request under way. ``patience_s``: so long the sender waits when no answer will come; ``node``: the node that
    gets the request, None: no node in particular.
    """

    client_name: str
    kind: RequestKind
    step: Callable[[], Any]
    reply: asyncio.Future[Any]
    gives_up_at: float  # in the loop's time
    patience_s: float
    node: int | None
    timer: asyncio.TimerHandle | None = None
    has_arrived: bool = False


def topics_of(step: Callable[[], Any]) -> set[str]:
    """The topics of the partitions among a request's arguments."""
    arguments = step.args if isinstance(step, partial) else ()
    lists = [argument for argument in arguments if isinstance(argument, Mapping | tuple | list)]
    return {place.topic for listed in lists for place in listed if isinstance(place, TopicPartition)}


class Network:
    """The network, see the module. ``met`` counts by name the faults that really happened."""

    def __init__(self, rng: random.Random, latency: Latency, faults: Faults) -> None:
        self.latency = latency
        self.faults = faults
        self.met: Counter[str] = Counter()
        self.quota: Quota | None = None
        """The quota of all writes."""
        self._random = rng
        self._context = contextvars.Context()
        self._under_way: dict[NodeRequest, None] = {}
        self._armed: dict[RequestKind, tuple[Fault, str | None, str | None]] = {}
        self._held: list[NodeRequest] = []
        self._caught: asyncio.Event | None = None

    # --- for the cluster -------------------------------------------------------------------------------------------

    def later(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> asyncio.TimerHandle:
        """Call back after a time, outside of all processes."""
        return asyncio.get_running_loop().call_later(seconds, callback, *arguments, context=self._context)

    def draw(self, bounds_ms: tuple[float, float]) -> float:
        """Seconds between two bounds."""
        return self._random.uniform(*bounds_ms) / 1000

    def pauses(self) -> Iterator[float]:
        """Seconds before each next try of a client."""
        while True:
            yield self.draw(RETRY_MS)

    def choose(self, nodes: Sequence[int]) -> int:
        """A random node of the given nodes."""
        return self._random.choice(nodes)

    def happens(self, probability: float, name: str) -> bool:
        """Whether a fault is to happen now; each fault is counted."""
        if not probability or self._random.random() >= probability:
            return False
        self.met[name] += 1
        return True

    # --- for a test ------------------------------------------------------------------------------------------------

    def arm(self, kind: RequestKind, fault: Fault, topic: str | None = None, client: str | None = None) -> None:
        """Let the next request of a kind meet a fault: with a topic, the next request about the topic; with a client,
        the next request of the client.
        """
        self._caught = asyncio.Event()
        self._armed[kind] = fault, topic, client

    def disarm(self) -> None:
        """Forget the armed faults."""
        self._armed.clear()

    async def caught(self) -> None:
        """Wait until the fault has happened."""
        assert self._caught is not None, "nothing was armed"
        await self._caught.wait()

    def release(self) -> None:
        """Let held requests go on."""
        held, self._held = self._held, []
        for request in held:
            delay = self.draw(self.latency.request_ms)
            if request.reply.done():
                self.later(delay, self._arrive_late, request)
            else:
                assert request.timer is not None
                request.timer.cancel()
                self._after(request, delay, self._arrive, request, False)

    def break_connections(self) -> None:
        """End all requests under way with BrokerTimeout, carried out or not: the broker was started anew."""
        requests, self._under_way = list(self._under_way), {}
        for request in requests:
            if request.timer is not None:
                request.timer.cancel()
            if not request.has_arrived and self._reaches(request) and self._random.random() < 0.5:
                self._carry_out(request)
            if not request.reply.done():
                self.met["connection_broken"] += 1
            self._fail(request, BROKEN)

    # --- for a client ----------------------------------------------------------------------------------------------

    def send(
        self,
        client_name: str,
        kind: RequestKind,
        step: Callable[[], Any],
        limit_s: float,
        patience_s: float | None = None,
        node: int | None = None,
    ) -> asyncio.Future[Any]:
        """Have a step done in the cluster, by a node. The future has the step's result or error, or BrokerTimeout."""
        loop = asyncio.get_running_loop()
        request = NodeRequest(
            client_name,
            kind,
            step,
            loop.create_future(),
            gives_up_at=loop.time() + limit_s,
            patience_s=limit_s if patience_s is None else min(patience_s, limit_s),
            node=node,
        )
        self._under_way[request] = None
        faults, fault = self.faults, self._caught_by(client_name, kind, step)
        delay = self.draw(self.latency.request_ms)
        if fault is Fault.NOT_SENT or self.happens(faults.not_sent, "not_sent"):
            self._after(request, delay, self._fail, request, UNREACHABLE)
        elif fault is Fault.LOSE_REQUEST or self.happens(faults.request_lost, "request_lost"):
            self._after(request, delay, self._fail, request, BROKEN)
        elif fault is Fault.HOLD_REQUEST:
            self._held.append(request)
            self._leave_silent(request)
        elif self.happens(faults.request_late, "request_late"):
            self.later(self._random.random() * faults.request_late_ms / 1000, self._arrive_late, request)
            self._leave_silent(request)
        else:
            is_lost = fault is Fault.LOSE_REPLY or self.happens(faults.reply_lost, "reply_lost")
            self._after(request, delay, self._arrive, request, is_lost)
        return request.reply

    def _caught_by(self, client_name: str, kind: RequestKind, step: Callable[[], Any]) -> Fault | None:
        """The fault that was armed for a request; a fault serves once."""
        fault, topic, client = self._armed.get(kind, (None, None, None))
        if fault is None or client not in (None, client_name) or (topic is not None and topic not in topics_of(step)):
            return None
        assert self._caught is not None, "it was made when this was armed"
        self._caught.set()
        del self._armed[kind]
        return fault

    def _after(self, request: NodeRequest, delay: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Plan the next event of a request, unless the sender loses patience before."""
        if asyncio.get_running_loop().time() + delay > request.gives_up_at:
            self._leave_silent(request)
            if callback == self._arrive:
                self.later(delay, self._arrive_late, request)
            return
        request.timer = self.later(delay, callback, *arguments)

    def _leave_silent(self, request: NodeRequest) -> None:
        """Send no answer: the request fails when the sender has waited long enough."""
        now = asyncio.get_running_loop().time()
        request.timer = self.later(
            max(0.0, min(request.gives_up_at - now, request.patience_s)), self._fail, request, SILENT
        )

    def _reaches(self, request: NodeRequest) -> bool:
        """Whether anything comes through between the sender and the cluster; each failure is counted."""
        if self.faults.away:
            self.met["away"] += 1
            return False
        if request.client_name in self.faults.cut:
            self.met["cut"] += 1
            return False
        if self.faults.cut_from and any(
            (request.client_name, topic) in self.faults.cut_from for topic in topics_of(request.step)
        ):
            self.met["cut from a topic"] += 1
            return False
        return request.node is None or self.reaches_node(request.client_name, request.node)

    def reaches_node(self, client_name: str, node: int) -> bool:
        """Whether anything comes through between a client and a node; each failure is counted."""
        if (client_name, node) not in self.faults.cut_from_node:
            return True
        self.met["cut from a node"] += 1
        return False

    def _arrive(self, request: NodeRequest, loses_reply: bool) -> None:
        if not self._reaches(request):
            self._leave_silent(request)
            return
        # The sender was killed or cancelled before the request was surely under way: the request may be lost.
        if request.reply.done():
            self._under_way.pop(request, None)
            if self._random.random() < 0.5:
                return
        result, error = self._carry_out(request)
        if isinstance(error, NoAnswer):
            self.met["no answer"] += 1
            self._leave_silent(request)
            return
        delay = self.draw(self.latency.request_ms)
        if self.happens(self.faults.reply_slow, "reply_slow"):
            delay += self.faults.reply_slow_ms / 1000
        if loses_reply:
            self._after(request, delay, self._fail, request, BROKEN)
        else:
            self._after(request, delay, self._answer, request, result, error)

    def _arrive_late(self, request: NodeRequest) -> None:
        if self._reaches(request):
            self._carry_out(request)
            self.met["arrived_late"] += 1

    def _carry_out(self, request: NodeRequest) -> tuple[Any, BrokerError | None]:
        request.has_arrived = True
        try:
            return request.step(), None
        except BrokerError as error:
            return None, error

    def _answer(self, request: NodeRequest, result: Any, error: BrokerError | None) -> None:
        if not self._reaches(request):
            self._leave_silent(request)
            return
        self._under_way.pop(request, None)
        if request.reply.done():
            return
        if error is None:
            request.reply.set_result(result)
        else:
            _raise_in(request.reply, error)

    def _fail(self, request: NodeRequest, reason: str) -> None:
        self._under_way.pop(request, None)
        if not request.reply.done():
            kind = _ERRORS.get(reason, BrokerTimeout)
            _raise_in(request.reply, kind(f"{request.client_name}: {reason}"))


_ERRORS: Final[Mapping[str, type[BrokerTimeout]]] = {UNREACHABLE: NotSent, SILENT: Unanswered}


def _raise_in(future: "asyncio.Future[Any]", error: BrokerError) -> None:
    future.set_exception(error)
    future.exception()  # read here: the waiting task may never run again
