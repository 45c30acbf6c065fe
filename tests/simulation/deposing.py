"""A node of the cluster is cut off from the other nodes, and goes on answering processes.

Other nodes lead and coordinate in its place. Its answers are old, and it acknowledges nothing: see
``brokers/simulated/nodes.py``. An *election* is judged, unless something else befalls the group meanwhile: the group
decides again within a session and ``DECIDES_S``, while the old leader still answers everybody.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from keylanes.brokers.protocol import TopicPartition
from keylanes.state.changelog import changelog_topic

from .process import APP, Process
from .workload import OUT

if TYPE_CHECKING:
    from .happenings import Happenings
    from .world import World

TRANSACTIONS: Final = "__transaction_state"
CONTROL: Final = "control"
OFFSETS: Final = "offsets"
LED: Final = (CONTROL, CONTROL, OFFSETS, OFFSETS, "signals", "changelog", "source", "output", TRANSACTIONS)
"""What the node that is cut off leads, beside whatever else it does."""
DECIDES_S: Final = 3.0
"""So long, behind a session, it may take until the group decides again."""
LOOK_S: Final = 0.01
LATER: Final = 20
"""So many processes that are still to start reach what the others reach."""


class Deposing:
    """Of one world."""

    def __init__(self, world: "World", happenings: "Happenings") -> None:
        self.world, self.cluster, self.happenings = world, world.cluster, happenings
        self._judgings: list[asyncio.Task[None]] = []

    @property
    def _session_s(self) -> float:
        return self.happenings.session_s

    async def begin(self, kind: str, rng: random.Random) -> None:
        """Begin a happening of one of the ``DEPOSING_KINDS``."""
        match kind:
            case "deposed":
                self.depose(rng)
            case "rack":
                self.cut_rack(rng)
            case "election":
                await self.hold_election(rng)
            case "old control":
                await self.cut_rack_of_the_control_log(rng)
            case "old offsets":
                await self.depose_leader_of_offsets(rng)
            case "old coordinator":
                await self.depose_coordinator(rng)

    def depose(self, rng: random.Random) -> None:
        """A node is cut off, for some time, and answers all, some or none of the processes."""
        lasts_s = rng.choice((0.3, self._session_s, 2 * self._session_s)) * (0.5 + rng.random())
        deaf = self._everybody() if rng.random() < 0.2 else [p.name for p in self.world.alive() if rng.random() < 0.3]
        self._cut_off(self._node(rng, LED), deaf, lasts_s)

    async def depose_leader_of_offsets(self, rng: random.Random) -> None:
        """A node that leads the offset log, and not the control log, is cut off for long, and answers everybody."""
        await self._until(lambda: bool(self.world.workers()), 2 * self._session_s)
        node, nodes = self._node(rng, (OFFSETS,)), self.cluster.cluster.nodes
        if node is not None and nodes.leadership(TopicPartition(f"{APP}.{CONTROL}", 0)).leader != node:
            self._cut_off(node, (), self._session_s * (1 + 2 * rng.random()))

    async def depose_coordinator(self, rng: random.Random) -> None:
        """The node that coordinates the transactions of a process is cut off for long, when one has just ended."""
        await self._until(lambda: bool(self.world.workers()), 2 * self._session_s)
        nodes, process = self.cluster.cluster.nodes, self._some_process(rng)
        if process is None or nodes.deposed is not None:
            return
        state, one = self.cluster.state, process.member.identity
        await self._until(lambda: state.state_of(one.transactional_id)[0] == "CompleteCommit", self._session_s)
        self.world.reached[f"deposed: {TRANSACTIONS}"] += 1
        self._cut_off(nodes.coordinator(one.transactional_id), (), self._session_s * (1 + 2 * rng.random()))

    def cut_rack(self, rng: random.Random) -> None:
        """A process is cut off together with a node, which alone it may reach. Its own way comes back first."""
        first_s = rng.choice((0.3, self._session_s, 2 * self._session_s)) * (0.5 + rng.random())
        reaches_it, are_others_deaf = rng.random() < 0.5, rng.random() < 0.7
        self._cut_rack(rng, LED, first_s, reaches_it=reaches_it, are_others_deaf=are_others_deaf)

    async def cut_rack_of_the_control_log(self, rng: random.Random) -> None:
        """The same of the leader of the control log, which the process reaches, until others have its ranges."""
        await self._until(lambda: len(self.world.workers()) > 1, 2 * self._session_s)
        for place in self.world.sources:  # so that the process is at something
            self.happenings.moving.write(rng, place)
        await asyncio.sleep(0.1 * rng.random())
        first_s = self._session_s * (1.5 + rng.random())
        self._cut_rack(rng, (CONTROL,), first_s, reaches_it=True, are_others_deaf=True)

    def _cut_rack(
        self, rng: random.Random, led: Sequence[str], first_s: float, *, reaches_it: bool, are_others_deaf: bool
    ) -> None:
        process, node = self._some_process(rng), self._node(rng, led)
        then_s = rng.choice((0.3, self._session_s, 2 * self._session_s)) * (0.5 + rng.random())
        if process is None or node is None:
            return
        others = [name for name in self._everybody() if name != process.name]
        if self._cut_off(node, others if are_others_deaf else (), first_s + then_s):
            nodes = [one for one in self.cluster.cluster.nodes.numbers if one != node or not reaches_it]
            self._cut_from({(process.name, one) for one in nodes}, first_s)

    async def hold_election(self, rng: random.Random) -> None:
        """A node is cut off for long, and answers everybody; somebody comes at that moment, or is killed."""
        await self._until(lambda: bool(self.world.workers()), 2 * self._session_s)
        survivors, node = self.world.workers(), self._node(rng, LED)
        if self._cut_off(node, (), self._session_s + DECIDES_S + 1.0):
            self._judgings.append(asyncio.ensure_future(self._judge(rng, survivors)))

    # --- cutting off -------------------------------------------------------------------------------------------------

    def _everybody(self) -> list[str]:
        return [f"{APP}-{number}" for number in range(len(self.world.processes) + LATER)]

    def _some_process(self, rng: random.Random) -> Process | None:
        """Of those that work, if there are any."""
        some = self.world.workers() or self.world.alive()
        return rng.choice(some) if some else None

    def _node(self, rng: random.Random, led: Sequence[str]) -> int | None:
        """The node that leads something of what is drawn; None: there is nothing of it yet, or a node is cut off."""
        nodes, what, sources = self.cluster.cluster.nodes, rng.choice(led), [*self.world.mix.sources]
        if what == TRANSACTIONS:
            ids = [process.member.identity.transactional_id for process in self.world.alive()]
            node = nodes.coordinator(rng.choice(ids)) if ids else None
        else:
            topic = {
                "source": rng.choice(sources),
                "changelog": changelog_topic(APP, rng.choice(sources)),
                "output": OUT,
            }
            name = topic.get(what, f"{APP}.{what}")
            places = self.cluster.places(name) if name in self.cluster.topics() else []
            node = nodes.leadership(rng.choice(places)).leader if places else None
        if node is None or nodes.deposed is not None:
            return None
        self.world.reached[f"deposed: {what}"] += 1
        return node

    def _cut_off(self, node: int | None, deaf: Collection[str], lasts_s: float) -> bool:
        """Cut a node off, if there is one to be. ``deaf``: who does not reach it."""
        cluster = self.cluster.cluster
        if node is None:
            return False
        self.world.count_fault("node cut off")
        self.world.tell(f"node {node} is cut off")
        self.happenings.for_so_long(lambda: cluster.depose(node), cluster.mend, lasts_s)
        self._cut_from({(name, node) for name in deaf}, lasts_s)
        return True

    def _cut_from(self, pairs: set[tuple[str, int]], lasts_s: float) -> None:
        cut = self.cluster.faults.cut_from_node
        new = pairs - cut
        if new:
            self.happenings.for_so_long(lambda: cut.update(new), lambda: cut.difference_update(new), lasts_s)

    async def _until(self, is_so: Callable[[], bool], limit_s: float) -> None:
        """Wait for something, no longer than that."""
        until_s = self.world.loop.time() + limit_s
        while True:
            if is_so() or self.world.loop.time() >= until_s:
                return
            await asyncio.sleep(LOOK_S)

    async def judge_all(self) -> None:
        """Wait for the judgements of elections."""
        await asyncio.gather(*self._judgings)

    # --- judging -----------------------------------------------------------------------------------------------------

    async def _judge(self, rng: random.Random, survivors: list[Process]) -> None:
        """Somebody comes or is killed, which is to be decided in time."""
        world = self.world
        if len(survivors) > 1 and rng.random() < 0.6:
            victim = rng.choice(survivors)
            survivors.remove(victim)
            incarnation = victim.incarnation
            self.happenings.dies(victim)
            what = f"the expulsion of {victim.name}"

            def is_decided() -> bool:
                return incarnation in world.watch.expelled

        else:
            come = world.start()
            what = f"the joining of {come.name}"
            survivors.append(come)

            def is_decided() -> bool:
                birth, watch = come.member.identity.birth, world.watch
                return birth in watch.refused or birth in {joined.birth for joined in watch.joined.values()}

        undisturbed = self._undisturbed(survivors)
        limit_s = self._session_s + DECIDES_S
        await self._until(lambda: is_decided() or not undisturbed(), limit_s)
        if not undisturbed():
            return
        if not is_decided():
            world.fail(f"the group does not decide {what} within {limit_s} s of an election:\n{world.describe()}")
        world.reached["decided while an old leader answers"] += 1

    def _undisturbed(self, survivors: list[Process]) -> Callable[[], bool]:
        """Whether nothing but this has befallen the group."""
        world, happenings, nodes = self.world, self.happenings, self.cluster.cluster.nodes
        faults, begun, deposed = world.faults.total(), happenings.begun, nodes.deposed
        was_calm = len(happenings.troubles) == 1 and world.loop.time() - happenings.ended_s >= self._session_s

        def undisturbed() -> bool:
            are_there = all(not (p.task.done() or p.was_stopped or p.is_paused) for p in survivors)
            is_same = (world.faults.total(), happenings.begun, nodes.deposed) == (faults, begun, deposed)
            return was_calm and are_there and is_same and bool(survivors)

        return undisturbed
