"""Defects in what is believed of leaders and coordinators that were deposed and still answer."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from keylanes.brokers.leaders import Leaders
from keylanes.brokers.protocol import Broker, TopicPartition
from keylanes.brokers.simulated.connection import SimulatedConnection
from keylanes.brokers.simulated.network import RequestKind
from keylanes.brokers.simulated.node import Node
from keylanes.brokers.simulated.requests import SimulatedRequests
from keylanes.offsets.ledger import SourcePartition
from keylanes.runtime.logs.own_ledger import OwnLedger
from keylanes.runtime.membership.errands import Errands

from ..stage.planting import Planting, changed
from .plants import DOUBLED, LOST, Plant

OLD_ENDS = ("old offsets", "crash", "rival")


def told_by_the_old_leader(broker: Broker, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Where partitions end, by a deposed leader that still answers, if there is one: so nobody confirms it."""
    assert isinstance(broker, SimulatedConnection)
    cluster, deposed = broker._cluster, broker._cluster.nodes.deposed
    told = {source: cluster.state.watermarks(source).high for source in sources}
    if deposed is not None and cluster.network.reaches_node(broker.client_name, deposed.node):
        told |= {source: deposed.ends[source].marks.high for source in told if source in deposed.ends}
    return told


def read_behind_init_to_a_told_end(patch: Planting) -> None:
    """Behind INIT the control log is read to the end that some broker tells."""

    async def confirm(self: OwnLedger) -> None:
        told = told_by_the_old_leader(self.identity.broker, [self.logs.control])
        await self.read_control_to(told[self.logs.control])
        self.check()

    patch.setattr(OwnLedger, "confirm", confirm)


def own_outcome_to_a_told_end(patch: Planting) -> None:
    """What became of an own transaction is looked up below the end that some broker tells."""

    async def confirm(self: OwnLedger, log_partitions: Collection[int]) -> None:
        told = told_by_the_old_leader(self.identity.broker, map(self.logs.offsets, log_partitions))
        await self.identity.true_ends.offsets(log_partitions, 0)  # so logs are opened, too
        await self.read_offsets_to(told)

    patch.setattr(OwnLedger, "confirm_offsets", confirm)


def granted_by_a_told_end(patch: Planting) -> None:
    """What a fenced member has committed is read to the end that some broker tells."""

    async def read(self: Errands, wanted: list[tuple[SourcePartition, int]]) -> None:
        logs, seat = self.identity.logs, self.memory
        wanted_logs = {logs.offsets(logs.log_partition_of(place[1])) for place, _ in wanted}
        await self.own_ledger.read_offsets_to(told_by_the_old_leader(self.broker, wanted_logs))
        seat.read |= set(wanted)

    patch.setattr(Errands, "_read", read)


def any_coordinator(patch: Planting) -> None:
    """What is to be committed is asked of whoever calls itself the coordinator just then."""
    ask = SimulatedRequests._ask

    async def elsewhere(
        self: SimulatedRequests,
        kind: RequestKind,
        number: int,
        step_of: Callable[[Node], Callable[[], Any]],
        deadline: Any,
    ) -> tuple[Any, Any]:
        nodes = self.link.cluster.nodes
        if kind is RequestKind.ADD_PARTITIONS:
            number = nodes.coordinator(self.producer)
        elif kind is RequestKind.END_TXN and nodes.deposed is not None:
            number = nodes.told_coordinator(nodes.deposed.node, self.producer)
        return await ask(self, kind, number, step_of, deadline)

    patch.setattr(SimulatedRequests, "_ask", elsewhere)


PLANTS = [
    Plant(
        "an older leader epoch replaces a newer one",
        changed(Leaders, "advance", ("if heard.epoch < known.epoch and not is_another:", "if False:")),
        kinds=("deposed", "rack"),
        finding="went back to an older leader epoch",
    ),
    Plant(
        "READ behind INIT to a told end",
        read_behind_init_to_a_told_end,
        kinds=("old control", "rivals"),
        finding=DOUBLED,
    ),
    Plant(
        "own outcome read to a told end", own_outcome_to_a_told_end, kinds=("old offsets", "unknown"), finding=DOUBLED
    ),
    Plant("granted by a told end", granted_by_a_told_end, kinds=OLD_ENDS, finding=DOUBLED),
    Plant(
        "a transaction asked of another coordinator than its epoch",
        any_coordinator,
        kinds=("old coordinator", "split"),
        finding=f"{LOST}|a transaction calls itself",
    ),
]
