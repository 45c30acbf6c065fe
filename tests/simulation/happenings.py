"""What befalls the application of a world: one method for each kind of happening in a plan."""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.network import Fault, RequestKind
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.runtime.partition.worker import Worker
from keylanes.state.changelog import changelog_topic

from .deposing import Deposing
from .hand_overs import HandOvers
from .moving import Moving
from .plan import DEPOSING_KINDS, Happening
from .process import APP, Process
from .steps import STRIKES
from .workload import BIG_BYTES, BILLS, OUT, draw_work

if TYPE_CHECKING:
    from .world import World

POINTS: Final = (0, 1 << 28, 1 << 30, 1 << 31, 3 << 30, SPACE_END)
"""Bounds of ranges that are passed on."""
GRANT_LIMIT_S = 60.0
TROUBLE_ECHO_S = 4.0
"""So long after its faults ended the cluster may still be called unavailable: requests then under way time out."""
LOOK_S: Final = 0.1
LASTS_S: Final = (0.05, 0.3, 1.0)
DAY_MS = 86_400_000
LOGS: Final = ("control", "offsets", "signals")
FENCE: Final = "fence"
ANY: Final = "any step"
ELECTED: Final = "CoordinatorElected"
ASKED: Final = "ReleaseAsked"
STEPS: Final = (
    ELECTED,
    "MemberJoined",
    "MemberExpelled",
    FENCE,
    "MemberFenced",
    "PlanMade",
    ASKED,
    "RangesGranted",
)
"""Steps of a coordinator at which something may befall it: an event that it has just written, or a fence."""
OVER: Final = ("MemberExpelled", FENCE, "MemberFenced")
"""Steps that come when a member is gone; most others come when one joins."""
BEFALL: Final = ("dies", "pauses", "cut")
ROLES: Final = tuple(f"coordinator {befall} at {step}" for befall in BEFALL for step in (*STEPS, ANY))
"""What may befall whom at which step."""
TRAPS_SESSIONS: Final = 2.0
"""So long, in sessions, it is waited in the end for steps at which something is to happen."""
PARTITIONS_MAX = 4
FAULTS: Final = {
    "aborted": ("transact_aborted", (0.3, 0.9)),
    "unknown": ("transact_unknown", (0.3, 0.9)),
    "coordinator away": ("coordinator_away", (0.3, 1.0)),
    "no connection": ("not_sent", (0.05, 0.3)),
    "lost requests": ("request_lost", (0.05, 0.2)),
    "lost replies": ("reply_lost", (0.05, 0.2)),
}
"""Happenings that raise the chance of one of the cluster's faults, to one of two."""


class Happenings:
    """See the module. ``trouble_until_s``: until then the cluster may be called unavailable."""

    def __init__(self, world: "World") -> None:
        self.world, self.cluster, self.loop = world, world.cluster, world.loop
        self.troubles: set[asyncio.Task[None]] = set()
        """Each ends what it began, when its time is over or when it is cancelled."""
        self.moving = Moving(world)
        self.hand_overs = HandOvers(world, self.moving)
        self.deposing = Deposing(world, self)
        self.begun, self.ended_s = 0, -math.inf
        """So many troubles have begun; when the last one ended."""
        self.passings: list[asyncio.Task[None]] = []
        self._goes_on: dict[str, Callable[[random.Random], Coroutine[Any, Any, None]]] = {
            "flapping": self._flap,
            "move": self.moving.move,
            "stuck": self.moving.move_what_is_stuck,
            "strike": lambda rng: self.hand_overs.strike(rng.choice([*STRIKES]), rng),
            "release": self._pass_on,
            "split": partial(self._reshape, "split"),
            "merge": partial(self._reshape, "merge"),
        }
        """What takes its time, while other things happen."""
        self._traps: list[tuple[str, Callable[[Process], None], float]] = []
        """Steps at which something is to befall the coordinator, in the order in which they were set."""
        self._troubled_until_s = -math.inf
        self._others: set[asyncio.Task[None]] = set()
        """The troubles that are more than an outage of the signals."""
        self._others_until_s = -math.inf

    async def run(self) -> None:
        """All happenings of the plan, each at its time; there is always a process, or soon will be."""
        for happening in self.world.plan.happenings:
            await self.world.until(happening.at_s)
            self.world.judge_ended()
            self.world.tell(happening.kind)
            self.world.reached[happening.kind] += happening.kind not in STRIKES  # they are counted when they hit
            await self.begin(happening)
            if not self.world.alive():
                self.world.start()
        until_s = self.loop.time() + TRAPS_SESSIONS * self.session_s
        while (self._traps or self.hand_overs.waits) and self.loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
            if not self.world.alive():
                self.world.start()
        await self.deposing.judge_all()
        while self.troubles and self.world.rng.random() < 0.5:
            await asyncio.wait(self.troubles, return_when=asyncio.FIRST_COMPLETED)
            if not self.world.alive():
                self.world.start()

    async def begin(self, happening: Happening) -> None:
        """Have it begin."""
        kind, rng = happening.kind, random.Random(happening.seed)
        if kind in STRIKES:
            await self.hand_overs.strike(kind, rng)
        elif kind in DEPOSING_KINDS:
            await self.deposing.begin(kind, rng)
        elif kind in self._goes_on:
            self.passings.append(self.loop.create_task(self._goes_on[kind](rng)))
        elif kind in FAULTS:
            name, chances = FAULTS[kind]
            self._fault(rng, name, rng.choice(chances))
        else:
            await getattr(self, "_" + kind.replace(" ", "_"))(rng)

    async def heal(self) -> None:
        """No more faults: all that was begun is ended, and what is passed on is waited for."""
        troubles = list(self.troubles)
        for trouble in troubles:
            trouble.cancel()
        if troubles:
            await asyncio.wait(troubles)
        for passing in self.passings:
            await passing

    @property
    def trouble_until_s(self) -> float:
        """See the class."""
        return math.inf if self.troubles else self._troubled_until_s

    @property
    def calm_since_s(self) -> float:
        """Since then nothing was wrong but the signals at most."""
        return math.inf if self._others else self._others_until_s

    def _for_some_time(
        self,
        rng: random.Random,
        begin: Callable[[], None],
        end: Callable[[], None],
        longest_s: float | None = None,
        *,
        is_outage: bool = False,
    ) -> None:
        """Trouble that begins now and ends later. ``is_outage``: of the signals alone."""
        lasts_s = rng.choice(LASTS_S if longest_s is None else (longest_s,)) * 2 * rng.random()
        self.for_so_long(begin, end, lasts_s, is_outage=is_outage)

    def for_so_long(
        self, begin: Callable[[], None], end: Callable[[], None], lasts_s: float, *, is_outage: bool = False
    ) -> None:
        """The same for a time that is known."""

        async def last() -> None:
            try:
                await asyncio.sleep(lasts_s)
            finally:
                end()

        begin()
        self.begun += 1
        trouble = self.loop.create_task(last())
        self.troubles.add(trouble)
        if not is_outage:
            self._others.add(trouble)
        trouble.add_done_callback(self._trouble_over)

    def _trouble_over(self, trouble: "asyncio.Task[None]") -> None:
        self.troubles.discard(trouble)
        self.ended_s = self.loop.time()
        if trouble in self._others:
            self._others.discard(trouble)
            self._others_until_s = self.loop.time()
        echo_s = TROUBLE_ECHO_S + self.cluster.latency.timeout_ms / 1000
        self._troubled_until_s = max(self._troubled_until_s, self.loop.time() + echo_s)

    def _fault(self, rng: random.Random, name: str, chance: float, **more: float) -> None:
        """A probability of the cluster's faults is raised for some time."""
        faults = self.cluster.faults
        for field, value in more.items():
            setattr(faults, field, value)
        self._for_some_time(rng, lambda: setattr(faults, name, chance), lambda: setattr(faults, name, 0.0))

    # --- processes -------------------------------------------------------------------------------------------------

    async def _crash(self, rng: random.Random) -> None:
        for process in self._some(rng):
            self.world.count_fault("kill")
            await process.kill()
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.01, 0.5)))

    async def _power(self, rng: random.Random) -> None:
        for process in self._some(rng):
            process.loses_power = True
            self.world.count_fault("power")
            await process.kill()
        await asyncio.sleep(rng.choice((0.0, 0.5)))

    async def _stop(self, rng: random.Random) -> None:
        stopped = self._some(rng)
        for process in stopped:
            process.stop()
        if rng.random() < 0.5 and (ending := [p.task for p in stopped if not p.is_paused and not p.task.done()]):
            await asyncio.wait(ending, timeout=60.0)

    def _some(self, rng: random.Random) -> list[Process]:
        """One of those that are alive, or all."""
        process = self._some_process(rng)
        return self.world.alive() if process is None or rng.random() < 0.5 else [process]

    async def _rival(self, rng: random.Random) -> None:  # it has nothing to draw
        self._start_beside()

    async def _rivals(self, rng: random.Random) -> None:  # it has nothing to draw
        self._start_beside()
        self._start_beside()

    def _start_beside(self) -> None:
        beside = len(self.world.alive())
        if beside >= self.world.mix.processes_max:
            return
        self.world.faults["rival"] += bool(beside)
        self.world.start()

    async def _pause(self, rng: random.Random) -> None:
        process = self._some_process(rng)
        if process is not None and not process.is_paused:
            self.world.count_fault("pause")
            longest_s = rng.choice((None, self.session_s))
            self._for_some_time(rng, process.pause, process.resume, longest_s)
            if rng.random() < 0.6:
                self._start_beside()

    async def _clock(self, rng: random.Random) -> None:
        process = self._some_process(rng)
        if process is not None:
            self.world.count_fault("clock")
            process.clock_ms += rng.choice((-2 * DAY_MS, -60_000, -50, 50, 60_000, 2 * DAY_MS))

    async def _slow_disk(self, rng: random.Random) -> None:
        process, disk_s = self._some_process(rng), rng.choice((0.01, 0.1, 1.0))
        if process is not None:
            self.world.count_fault("slow disk")
            self._for_some_time(
                rng, lambda: setattr(process, "disk_s", disk_s), lambda: setattr(process, "disk_s", 0.0)
            )

    async def _full_disk(self, rng: random.Random) -> None:
        process = self._some_process(rng)
        if process is not None:
            process.is_disk_full = True

    def _some_process(self, rng: random.Random) -> Process | None:
        alive = self.world.alive()
        return rng.choice(alive) if alive else None

    # --- the group -------------------------------------------------------------------------------------------------

    def step(self, step: str) -> None:
        """The coordinator has come to a step."""
        trap = next((trap for trap in self._traps if trap[0] == step), None)
        if trap is not None and self.world.is_happening:
            self._traps.remove(trap)
            _, befall, after_s = trap
            self.loop.call_later(after_s, self._befall, befall, step)

    def _befall(self, befall: Callable[[Process], None], step: str) -> None:
        process = self.world.coordinator()
        if process is not None and not process.is_paused and self.world.is_happening:
            self.world.tell(f"{process.name} coordinates, and is at {step}")
            self.world.reached[f"coordinator {befall.__name__.strip('_')} at {step}"] += 1
            befall(process)

    def _set_trap(self, rng: random.Random, befall: Callable[[Process], None]) -> None:
        """Something befalls the coordinator at one of its steps, which is brought about, or at once."""
        step = rng.choice((*STEPS, *STEPS, ANY))
        if step == ANY:
            self._befall(befall, step)
            self._start_beside()
            return
        self._traps.append((step, befall, rng.choice((0.0, 0.0, 0.003, 0.02))))
        self._start_beside()
        coordinator = self.world.coordinator()
        others = [process for process in self.world.alive() if process is not coordinator]
        if step == ELECTED and coordinator is not None and others:
            coordinator.stop() if rng.random() < 0.5 else self.dies(coordinator)
        elif others and (step in OVER or rng.random() < 0.3):
            self.dies(rng.choice(others))
        elif step == ASKED:
            self.passings.append(self.loop.create_task(self._pass_on_soon(rng)))

    async def _coordinator_dies(self, rng: random.Random) -> None:
        self._set_trap(rng, self.dies)

    def dies(self, process: Process) -> None:
        """It is killed, now."""
        self.world.count_fault("kill")
        self.passings.append(self.loop.create_task(process.kill()))

    async def _coordinator_pauses(self, rng: random.Random) -> None:
        def pauses(process: Process) -> None:
            self.world.count_fault("pause")
            self._for_some_time(rng, process.pause, process.resume, self.session_s)

        self._set_trap(rng, pauses)

    async def _coordinator_cut(self, rng: random.Random) -> None:
        def cut(process: Process) -> None:
            self.cut_off_from_a_log(rng, process)

        self._set_trap(rng, cut)

    async def _cut_from_a_log(self, rng: random.Random) -> None:
        process = self._some_process(rng)
        if process is not None:
            self.cut_off_from_a_log(rng, process)

    def cut_off_from_a_log(self, rng: random.Random, process: Process) -> None:
        """One of the logs can't be reached by a process; the others can."""
        self.world.count_fault("cut from a log")
        cut, one = self.cluster.faults.cut_from, (process.name, f"{APP}.{rng.choice(LOGS)}")
        self._for_some_time(rng, lambda: cut.add(one), lambda: cut.discard(one), self.session_s)

    async def _signals_away(self, rng: random.Random) -> None:
        """Nobody hears anybody."""
        self.world.count_fault("signals away")
        cut, numbers = self.cluster.faults.cut_from, range(len(self.world.processes) + 20)
        everybody = {(f"{APP}-{number}", f"{APP}.signals") for number in numbers}
        self._for_some_time(
            rng,
            lambda: cut.update(everybody),
            lambda: cut.difference_update(everybody),
            self.session_s,
            is_outage=True,
        )

    async def _storm(self, rng: random.Random) -> None:
        """Five come at once, or some come and as many go."""
        for _ in range(5):
            self._start_beside()
        if rng.random() < 0.5:
            alive = self.world.alive()
            for process in rng.sample(alive, min(5, len(alive) - 1)):
                process.stop() if rng.random() < 0.5 else self.dies(process)

    async def _flap(self, rng: random.Random) -> None:
        name = rng.choice(self.world.mix.names) if self.world.mix.names else None
        for _ in range(3):
            if len(self.world.alive()) >= self.world.mix.processes_max or not self.world.is_happening:
                return
            process = self.world.start(name)
            await asyncio.sleep(rng.random() * self.session_s)
            if not process.task.done():
                self.world.count_fault("kill")
                await process.kill()

    async def _twin(self, rng: random.Random) -> None:
        """A process is started under the name of one that is there, which may stand still."""
        named = [p for p in self.world.alive() if p.settings.group_instance_id]
        if named:
            process = rng.choice(named)
            if rng.random() < 0.5 and not process.is_paused:
                self._for_some_time(rng, process.pause, process.resume, self.session_s)
            self.world.count_fault("two bear one name")
            self.world.start(process.settings.group_instance_id)

    async def _names_swapped(self, rng: random.Random) -> None:
        """Two processes with names end, in order or not, and each is started again under the name of the other."""
        named = {p.settings.group_instance_id: p for p in self.world.alive() if p.settings.group_instance_id}
        if len(named) >= 2:
            one, other = rng.sample([*named.values()], 2)
            self.world.count_fault("two have each other's names")
            for process, name in (
                (one, other.settings.group_instance_id),
                (other, one.settings.group_instance_id),
            ):
                if rng.random() < 0.5:
                    process.stop()
                else:
                    self.dies(process)
                self.world.start(name)

    async def _held_decision(self, rng: random.Random) -> None:
        """What the coordinator writes next waits in the network until others have gone ahead of it."""
        self._hold(
            rng, "decision held", RequestKind.PRODUCE, f"{APP}.control", longest_s=rng.choice((0.1, self.session_s))
        )
        if rng.random() < 0.7:
            self._start_beside()

    def _hold(
        self,
        rng: random.Random,
        counted: str,
        kind: RequestKind,
        topic: str | None = None,
        *,
        longest_s: float | None = None,
    ) -> None:
        """The next request of a kind waits in the network for some time. ``counted``: as what, if there is one."""
        network = self.cluster.network
        network.arm(kind, Fault.HOLD_REQUEST, topic)
        caught = self.loop.create_task(network.caught())

        def let_go() -> None:
            self.world.faults[counted] += caught.done()
            caught.cancel()
            network.disarm()
            network.release()

        self._for_some_time(rng, lambda: None, let_go, longest_s)

    @property
    def session_s(self) -> float:
        """After so long a silent member is expelled."""
        return self.world.settings.session_timeout_ms / 1000

    # --- the cluster -----------------------------------------------------------------------------------------------

    async def _slow(self, rng: random.Random) -> None:
        self._fault(rng, "reply_slow", 0.2, reply_slow_ms=rng.choice((50.0, 700.0)))

    async def _away(self, rng: random.Random) -> None:
        self.world.count_fault("cluster away")
        self._for_some_time(rng, lambda: self._set_away(True), lambda: self._set_away(False))

    def _set_away(self, is_away: bool) -> None:
        self.cluster.faults.away = is_away

    async def _restart(self, rng: random.Random) -> None:
        self.cluster.break_connections()
        await self._away(rng)

    async def _cut(self, rng: random.Random) -> None:
        process, cut = self._some_process(rng), self.cluster.faults.cut
        if process is not None:
            self.world.count_fault("cut off")
            name = process.name
            self._for_some_time(rng, lambda: cut.add(name), lambda: cut.discard(name))
            if rng.random() < 0.6:
                self._start_beside()

    async def _late_requests(self, rng: random.Random) -> None:
        late_ms = rng.choice((20.0, 400.0, 2_500.0))
        self._fault(rng, "request_late", rng.choice((0.05, 0.2)), request_late_ms=late_ms)

    async def _held_request(self, rng: random.Random) -> None:
        """One request, mostly the end of a transaction, waits in the network until others have gone ahead of it."""
        kind = rng.choice(
            (
                RequestKind.END_TXN,
                RequestKind.END_TXN,
                RequestKind.END_TXN,
                RequestKind.INIT,
                RequestKind.ADD_PARTITIONS,
                RequestKind.PRODUCE,
            )
        )
        self._hold(rng, "request held", kind)

    async def _late_markers(self, rng: random.Random) -> None:
        self._fault(rng, "marker_late", rng.choice((0.2, 0.7)), marker_late_ms=rng.choice((100.0, 1_500.0)))

    async def _limit(self, rng: random.Random) -> None:
        self.cluster.limit(OUT, BIG_BYTES - 500 if rng.random() < 0.7 else None)

    async def _retention(self, rng: random.Random) -> None:
        """Records of sources that are committed are deleted."""
        for place in self.world.sources:
            cells = self.world.watch.cells.get(place)
            if cells is not None and rng.random() < 0.7:
                self.cluster.forget(place, min(cells.edges))

    async def _grow(self, rng: random.Random) -> None:
        """A source gets a partition more, which has records before anybody notices."""
        self.grow(rng, rng.choice(list(self.world.mix.sources)))

    def grow(self, rng: random.Random, topic: str) -> None:
        """See above."""
        if len(self.cluster.places(topic)) >= PARTITIONS_MAX:
            return
        place = self.cluster.grow(topic)
        self.world.sources.append(place)
        first = rng.randrange(1_000_000, 1_000_000_000)
        values = [draw_work(rng, first + n, is_sync=topic == BILLS, trouble=0.05) for n in range(rng.randint(0, 9))]
        self.cluster.write([Outgoing(*place, b"k%d" % rng.randrange(9), value) for value in values], ())

    async def _compact(self, rng: random.Random) -> None:
        self.compact(rng)

    def compact(self, rng: random.Random) -> None:
        """All changelogs."""
        for place in self.world.sources:
            changelog = TopicPartition(changelog_topic(APP, place.topic), place.partition)
            if changelog.topic in self.cluster.topics():
                self.cluster.compact(changelog, partly=rng.random() < 0.7)

    # --- ranges ----------------------------------------------------------------------------------------------------

    async def _deal(self, rng: random.Random) -> None:
        await self.moving.deal(rng)

    async def _reshape(self, kind: str, rng: random.Random) -> None:
        process = self._some_worker(rng)
        await self.reshape(rng, kind, process, rng.choice(self.world.sources))

    async def reshape(self, rng: random.Random, kind: str, process: Process | None, place: TopicPartition) -> None:
        """A split or a merge is asked for in a process that works; what comes of it is said by the logs."""
        workers = sorted(self._workers(process, place), key=lambda worker: worker.first)
        if process is None or not workers:
            return
        i, member = rng.randrange(len(workers)), process.member
        left, right = workers[i], workers[min(i + 1, len(workers) - 1)]
        try:
            if kind == "split":
                asked = member.work.requests.split(place, rng.randrange(left.first, left.end))
            else:
                asked = member.work.requests.merge(place, KeyRange(left.first, right.end))
            if await self.world.ask(process, asked):
                self.world.reached[f"asked for a {kind}"] += 1
        except ValueError:  # there is nothing to split or merge there
            return

    def _some_worker(self, rng: random.Random) -> Process | None:
        working = self.world.workers()
        return rng.choice(working) if working else None

    async def _pass_on(self, rng: random.Random, *, is_held: bool = False) -> None:
        """A range is released by a process that works, and granted to one some time later; unless that ends.
        ``is_held``: of what it holds, where it holds something.
        """
        process = self._some_worker(rng)
        place = rng.choice(self.world.sources)
        if is_held and process is not None and process.member.runs:
            place = TopicPartition(*rng.choice(process.member.runs).dispatch.place)
        within = KeyRange(*sorted(rng.sample(POINTS, 2)))
        if process is None:
            return
        if process.factors[place.topic] == 1:  # one worker by declaration: it is nobody's in parts
            within = WHOLE
        try:
            if not await self._asked(process, process.member.work.requests.release(place, within)):
                return
            self.world.tell(f"{process.name} has released {within} of {place}")
        except ValueError:  # part of it is held by another one, or on its way
            return
        await asyncio.sleep(rng.choice((0.0, 0.05, 0.5)))
        process = self._some_worker(rng)
        if process is None:
            return
        if await self._asked(process, process.member.work.requests.grant(place, within)):
            self.world.reached["range passed on"] += 1
            self.world.tell(f"{process.name} was granted {within} of {place}")

    async def _pass_on_soon(self, rng: random.Random) -> None:
        """When somebody works."""
        until_s = self.loop.time() + TRAPS_SESSIONS * self.session_s
        while not any(process.member.runs for process in self.world.workers()):
            if self.loop.time() >= until_s:
                return
            await asyncio.sleep(LOOK_S)
        await self._pass_on(rng, is_held=True)

    async def _asked(self, process: Process, work: Coroutine[Any, Any, None]) -> bool:
        """Whether it came about before the process ended; in bounded time it does, or the process ends."""
        name = getattr(work, "__qualname__", work)
        asked = asyncio.ensure_future(self.world.ask(process, work))
        done, _ = await asyncio.wait([asked], timeout=GRANT_LIMIT_S)
        assert done, f"{name} asked of {process.name} takes more than {GRANT_LIMIT_S} s:\n{self.world.describe()}"
        return asked.result()

    def _workers(self, process: Process | None, place: TopicPartition) -> list[Worker]:
        runs = [] if process is None else process.member.runs
        return [
            w for run in runs if (run.dispatch.topic, run.dispatch.partition) == place for w in run.dispatch.workers
        ]
