"""Defects in what is believed of leaders and coordinators that were deposed and still answer."""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from keylanes.brokers.leaders import Leaders
from keylanes.brokers.protocol import BrokerError, Producer
from keylanes.brokers.simulated.connection import SimulatedConnection
from keylanes.brokers.simulated.network import Kind
from keylanes.brokers.simulated.node import Leading, Node
from keylanes.brokers.simulated.requests import SimulatedRequests
from keylanes.brokers.waiting import bounded, closed_within
from keylanes.group.coordinator import ToFence
from keylanes.runtime.engine.transaction import Transactions
from keylanes.runtime.logs.office import Identity, Standing
from keylanes.runtime.membership import fencing
from keylanes.runtime.membership.coordinating import Coordinating

from ..stage.planting import Planting, change, changed, everywhere
from .plants import DOUBLED, LOST, Plant
from .plants_fencing import told_ends

OLD_ENDS = ("deposed", "rack", "crash", "coordinator dies", "rival", "pause")


def told_is_believed(patch: Planting) -> None:
    """Whoever says that it leads a partition is believed, on each connection until that one hears of another."""
    change(patch, Leading, "is_confirmed", ("return agreeing >= len(others) // 2", "return agreeing >= 0"))
    change(
        patch,
        SimulatedConnection,
        "_new_link",
        (
            "Link(self._cluster, self.client_name, self._heard)",
            "Link(self._cluster, self.client_name, type(self._heard)())",
        ),
    )


def read_behind_init_to_a_told_end(patch: Planting) -> None:
    """Behind INIT the control log is read to the end that some broker tells."""
    told_is_believed(patch)
    change(
        patch,
        Standing,
        "confirm",
        ("self.read_control_to(await self.identity.control_end.find())", "self.read_control()"),
    )


def own_outcome_to_a_told_end(patch: Planting) -> None:
    """What became of an own transaction is looked up below the end that some broker tells."""
    told_is_believed(patch)
    change(
        patch,
        Transactions,
        "_replace_producer",
        ("self.standing.read_offsets_to(await self._mark(producer, doubtful))", "self.standing.read()"),
    )


def granted_by_a_told_end(patch: Planting) -> None:
    """What a fenced member has committed is read to the end that some broker tells."""
    told_is_believed(patch)
    change(
        patch,
        Coordinating,
        "_read",
        (
            "self.standing.read_offsets_to({logs.offsets(number): end for number, end in wanted.ends.items()})",
            "self.standing.read()",
        ),
    )


def no_mark(patch: Planting) -> None:
    """A fence leaves no mark: what is told behind it counts as the end."""
    told_is_believed(patch)

    async def fence(identity: Identity, wanted: ToFence) -> Mapping[int, int]:
        limit_ms = identity.settings.transaction_limit_ms
        for one in wanted.member.transactional_ids:
            making = identity.broker.producer(one, transaction_timeout_ms=identity.settings.transaction_timeout_ms)
            producer: Producer = await bounded(making, limit_ms, f"fencing {one}")
            await closed_within(limit_ms, producer.close(), "closing")
        return await told_ends(identity, wanted)

    everywhere(patch, fencing.fence, fence)


def any_coordinator(patch: Planting) -> None:
    """Each request of a transaction goes to whoever calls itself the coordinator just then."""
    ask = SimulatedRequests._ask

    async def elsewhere(
        self: SimulatedRequests, kind: Kind, number: int, step_of: Callable[[Node], Callable[[], Any]], deadline: Any
    ) -> tuple[Any, Any]:
        if kind in (Kind.ADD_PARTITIONS, Kind.END_TXN):
            asked = self.link.any_node()
            with contextlib.suppress(BrokerError):
                number = await self.link.ask_node(
                    Kind.COORDINATOR, asked, lambda node: partial(node.coordinator, self.producer), deadline
                )
        return await ask(self, kind, number, step_of, deadline)

    patch.setattr(SimulatedRequests, "_ask", elsewhere)


PLANTS = [
    Plant(
        "an older leader epoch replaces a newer one",
        "processes go back to a leader that was deposed, and the group decides nothing until that one is mended",
        changed(Leaders, "advance", ("and heard.epoch < known.epoch", "and heard.epoch < 0")),
        kinds=("deposed", "rack"),
        finding="went back to an older leader epoch",
    ),
    Plant(
        "READ behind INIT to a told end",
        "a member that was expelled and fenced hears of neither from a leader that was deposed: doubled records",
        read_behind_init_to_a_told_end,
        kinds=("rack", "pause"),
        finding=DOUBLED,
    ),
    Plant(
        "own outcome read to a told end",
        "a transaction that was committed without an answer is not found, and sent a second time: doubled records",
        own_outcome_to_a_told_end,
        kinds=("deposed", "unknown"),
        finding=DOUBLED,
    ),
    Plant(
        "granted by a told end",
        "a grant begins at the edges of before the old leader was deposed: doubled records",
        granted_by_a_told_end,
        kinds=OLD_ENDS,
        finding=DOUBLED,
    ),
    Plant(
        "fence without a mark",
        "a grant begins at the edges of before the old leader was deposed: doubled records",
        no_mark,
        kinds=OLD_ENDS,
        finding=DOUBLED,
    ),
    Plant(
        "a transaction asked of another coordinator than its epoch",
        "a coordinator that was deposed says that a transaction is committed which is aborted later: lost records",
        any_coordinator,
        kinds=("deposed",),
        finding=f"{LOST}|a transaction calls itself",
    ),
]
