"""The world of a round of chaos: broker, network, loader, processes, and how each thing is done to them."""

import asyncio
import shutil
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from keylanes.devkafka.node import KafkaNode

from ..stage.proxy import END_TXN, INIT_PRODUCER_ID, Fault, Proxy, Weather
from . import chaos_app
from . import chaos_plan as plan
from .chaos_audit import Figures, judge
from .chaos_loader import Loader
from .chaos_plan import Planned, Round
from .chaos_process import FENCED, INVARIANT_BROKEN, LOG_REFUSED, UNAVAILABLE, ChaosError, Process
from .chaos_stage import ChaosStage
from .cluster_check import DEAD, SOURCE

LATE = "late"
TRANSACTION_MS = 3_000
SETTINGS = {
    "commit_interval_ms": 40,
    "commit_lead_ms": 10,
    "transaction_timeout_ms": TRANSACTION_MS,
    "session_timeout_ms": TRANSACTION_MS,
    "return_ms": 4_000,
    "heartbeat_interval_ms": 300,
    "exit_on_expulsion": True,
    "request_timeout_ms": 1_500,
    "broker_retry_ms": 90_000,
    "close_timeout_ms": 2_000,
    "drain_timeout_ms": 5_000,
    "balance_interval_ms": 200,
    "snapshot_every_commits": 50,
}
TRIES = 6
"""So often a process may give up for lack of an answer (exit code 6) while one thing happens."""


class Network:
    """The proxy, in a thread with a loop of its own."""

    def __init__(self, port: int, target: int) -> None:
        self.proxy = Proxy(port, target)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self._done(self.proxy.start())

    def _done(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def do(self, work: Callable[[], object]) -> None:
        """Do something to the proxy in its thread."""

        async def doing() -> None:
            work()

        self._done(doing())

    def close(self) -> None:
        """Cut everything and end the thread."""
        self._done(self.proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


class World(ChaosStage[Planned]):
    """Everything of one round. ``current`` is the process that shall be at work."""

    def __init__(self, round_: Round, folder: Path, tell: Callable[[str], None]) -> None:
        super().__init__(plan.draw(round_), folder, tell, nodes=1, topics=(SOURCE, LATE, DEAD), is_proxied=True)
        self.round, self.figures = round_, Figures(seed=round_.seed)
        self.network: Network | None = None
        self._is_level = True
        self._gave_up = 0

    # --- the frame ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Broker, network, topics, loader, first process."""
        self.open()
        self.network = Network(self.broker.proxied_port, self.broker.proxied_listener_port)
        rate = self.round.records / max(10.0, plan.seconds_of(self.plan))
        self.loader = Loader(self.cluster.bootstrap, SOURCE, self.round.records, rate, self.round.seed)
        self.loader.start()
        self.start()

    @property
    def address(self) -> str:
        """The broker, without the proxy."""
        return f"kafka://{self.cluster.bootstrap}"

    @property
    def broker(self) -> KafkaNode:
        """The only node."""
        return self.cluster.nodes[0]

    @property
    def proxy(self) -> Proxy:
        """The network between application and broker."""
        assert self.network is not None, "the round has begun"
        return self.network.proxy

    @property
    def current(self) -> Process:
        """The process that was started last."""
        return self.processes[-1]

    def start(self, **told: object) -> Process:
        """One more process, in the first folder of state that no living one uses, and under its name."""
        used = {process.slot for process in self.processes if process.code is None}
        slot = next(slot for slot in range(9) if slot not in used)
        own = {"state_folder": str(self.state_of(slot)), "group_instance_id": f"slot-{slot}"}
        values = {"late": LATE, "unrest": self.round.seed * 1_000 + self.figures.starts, "planted": self.round.planted}
        self.figures.starts += 1
        address = f"kafka://127.0.0.1:{self.broker.proxied_port}"
        return self.process(address, {**SETTINGS, **own}, slot=slot, script=chaos_app.__file__, **{**values, **told})

    def state_of(self, slot: int) -> Path:
        """A folder of state."""
        return self.folder / "state" / f"slot-{slot}"

    def heal(self) -> None:
        """What the plan still owes happens; then no more faults: all is written, and the application works until it is
        level.
        """
        for _ in range(plan.MORE_MAX):
            if (more := plan.one_more(self.round, self.proxy.met)) is None:
                break
            self.say(f"one more: {more.told()}")
            self.happen(more)
        self.say("healed")
        assert self.loader is not None, "the round has begun"
        assert self.network is not None, "the round has begun"
        self.network.do(self.proxy.heal)
        self.written = self.loader.finish()
        if not self.has_caught_itself():
            self.stop_in_order()
        code = self.start(until="level", unrest=None).ended()
        if code and not self.round.planted:
            raise ChaosError(f"the last process ended with exit code {code}")
        self._is_level = code == 0

    def judge(self) -> None:
        """What Spark says; raises ChaosError when something does not hold."""
        judge(self, is_level=self._is_level)

    def end(self) -> None:
        """Nothing is left behind, whatever has happened."""
        super().end()
        if self.network is not None:
            self.network.close()

    # --- what happens ------------------------------------------------------------------------------------------------

    def happen(self, happening: Planned) -> None:
        """One thing; at its end a process of the application is at work, or on its way."""
        assert self.network is not None, "the round has begun"
        self._gave_up = 0
        storm = Weather(f"{self.round.seed} {self.figures.starts}", self.round.fault_rate)
        self.proxy.weather = storm if happening.is_stormy else None
        if happening.armed:
            armed = Fault[happening.armed]
            self.network.do(lambda: self.proxy.arm(END_TXN, armed))
        self.works(happening.transactions)
        match happening:
            case plan.KillAt():
                self.at(happening.step)
                self.kill(self.current)
                self.start()
            case plan.KillWithin():
                self.kill(self.current)
                self.dies(happening.point, happening.count)
                self.start()
            case plan.KillStarting():
                self.kill_starting(is_cold=happening.is_cold)
            case plan.StopAlone():
                self.at(happening.step)
                self.suspend(self.current)
                self.last(happening.seconds)
                self.current.send(signal.SIGCONT)
                self.works()
            case plan.StopTakenOver():
                self.taken_over(happening.step)
            case plan.StopChain():
                self.chain(happening.step)
            case plan.Second():
                self.second()
            case plan.Twins():
                self.twins()
            case plan.InOrder():
                self.stop_in_order()
                self.start()
            case plan.BrokerStop():
                self.suspend_broker(happening.seconds)
            case plan.BrokerKill():
                self.kill_broker(happening.application)
            case plan.BrokerRestart():
                self.restart_broker()

    # --- the application ---------------------------------------------------------------------------------------------

    def works(self, transactions: int = 1) -> None:
        """Wait until the current process has made so many transactions more; one that gave up has a successor."""
        while not self.current.wait_more("applied", transactions) and not self.has_caught_itself():
            self.succeed()

    def has_caught_itself(self) -> bool:
        """Whether the current process ended by what was planted into it: the logs are for the audit, then."""
        return bool(self.round.planted) and self.current.code in (LOG_REFUSED, INVARIANT_BROKEN)

    def at(self, step: str) -> None:
        """Wait until the current process has just noted a step."""
        while not self.current.wait(lambda: self.current.last == step, step):
            self.succeed()

    def succeed(self, **told: object) -> None:
        """The current process has ended: it may have given up, then another one is started; raises otherwise."""
        code = self.current.code
        if code != UNAVAILABLE or self._gave_up == TRIES:
            raise ChaosError(f"process {self.current.number} ended with exit code {code}")
        self._gave_up += 1
        self.figures.gave_up += 1
        self.say(f"process {self.current.number} gave up")
        self.start(**told)

    def kill(self, process: Process) -> None:
        """SIGKILL, wherever it is."""
        process.send(signal.SIGKILL)
        self.killed(process)

    def killed(self, process: Process) -> None:
        """It has been killed: counted by where it was."""
        if (code := process.ended()) != -signal.SIGKILL:
            raise ChaosError(f"process {process.number} was killed and ended with exit code {code}")
        self.figures.kills += 1
        self.figures.kills_in_transaction += process.last == "transact"

    def dies(self, point: str, count: int) -> None:
        """A process that kills itself at a point of the code."""
        self.start(point=point, count=count)
        while self.current.ended() != -signal.SIGKILL:
            self.succeed(point=point, count=count)
        self.killed(self.current)

    def kill_starting(self, *, is_cold: bool) -> None:
        """Kill the process, and the next one when it has asked for its producer."""
        self.kill(self.current)
        before = self.proxy.seen[INIT_PRODUCER_ID]
        starting = self.start()
        while not starting.wait(lambda: self.proxy.seen[INIT_PRODUCER_ID] > before, "producer"):
            self.succeed()
            starting = self.current
        self.kill(starting)
        if is_cold:
            self.say("its folder is lost")
            shutil.rmtree(self.state_of(starting.slot), ignore_errors=True)
        self.start()

    def suspend(self, process: Process) -> None:
        """SIGSTOP."""
        process.send(signal.SIGSTOP)
        self.figures.stops += 1

    def taken_over(self, step: str) -> None:
        """Suspend the process for longer than a transaction may take while another takes over; then it must go."""
        self.at(step)
        first = self.current
        self.suspend(first)
        began = time.monotonic()
        self.start()
        self.works(5)
        self.last(began + TRANSACTION_MS / 1000 + 0.5 - time.monotonic())
        first.send(signal.SIGCONT)
        self.goes(first)

    def chain(self, step: str) -> None:
        """Two processes are suspended one after the other, a third is at work; then both must go."""
        suspended: list[Process] = []
        for _ in range(2):
            self.at(step)
            suspended.append(self.current)
            self.suspend(self.current)
            self.start()
            self.works(2)
        self.last(TRANSACTION_MS / 1000)
        for process in reversed(suspended):
            process.send(signal.SIGCONT)
        for process in suspended:
            self.goes(process)

    def goes(self, process: Process) -> None:
        """One that was taken over must end as fenced, and the current one works on."""
        if (code := process.ended()) != FENCED:
            raise ChaosError(f"process {process.number} was taken over and ended with exit code {code}")
        self.figures.fenced += 1
        self.works()

    def share(self, *processes: Process) -> list[Process]:
        """Wait until each of them works; those that do, which have not given up meanwhile. One of these is current."""
        at_work = []
        for process in processes:
            if process.wait_more("applied"):
                at_work.append(process)
            elif process.code == UNAVAILABLE:
                self.figures.gave_up += 1
            else:
                raise ChaosError(f"process {process.number} ended beside another with exit code {process.code}")
        self.figures.shared += len(at_work) == len(processes)
        for process in at_work[-1:]:
            self.processes.remove(process)
            self.processes.append(process)
        return at_work

    def second(self) -> None:
        """Another process shares the work; the first one leaves, and the other has all of it."""
        at_work = self.share(self.current, self.start())
        if len(at_work) == 2:
            at_work[0].send(signal.SIGTERM)
            if (code := at_work[0].ended()) not in (0, UNAVAILABLE):
                raise ChaosError(f"process {at_work[0].number} was told to stop and ended with exit code {code}")
        self.works()

    def twins(self) -> None:
        """Two processes start at the same time and share the work; one is killed, and the other has all of it."""
        self.kill(self.current)
        at_work = self.share(self.start(), self.start())
        if len(at_work) == 2:
            self.kill(at_work[0])
        self.works()

    def stop_in_order(self) -> None:
        """SIGTERM: it ends with exit code 0. Where it gave up just then, that is what its code says."""
        self.works()
        self.current.send(signal.SIGTERM)
        if (code := self.current.ended()) not in (0, UNAVAILABLE) and not self.has_caught_itself():
            raise ChaosError(f"process {self.current.number} was told to stop and ended with exit code {code}")
        self.figures.gave_up += code == UNAVAILABLE

    # --- the broker --------------------------------------------------------------------------------------------------

    def restart_broker(self) -> None:
        """Stopped in order and started again; the application goes on."""
        self.cluster.stop()
        self.figures.broker_restarts += 1
        self.cluster.start()
        self.proxy.target = self.broker.proxied_listener_port
        self.works(2)

    def kill_broker(self, application: str) -> None:
        """SIGKILL of the broker, with the application killed behind it, suspended before it, or waiting."""
        if application == "suspended":
            self.at("transact")
            self.suspend(self.current)
        self.cluster.kill()
        self.figures.broker_kills += 1
        if application == "killed":
            self.kill(self.current)
            self.start()
        self.cluster.start()
        self.proxy.target = self.broker.proxied_listener_port
        if application == "suspended":
            self.current.send(signal.SIGCONT)
        self.works(2)

    def suspend_broker(self, seconds: float) -> None:
        """SIGSTOP of the broker for a time."""
        self.broker.suspend()
        self.figures.broker_stops += 1
        self.last(seconds)
        self.broker.resume()
        self.works(2)
