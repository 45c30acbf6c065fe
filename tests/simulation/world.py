"""A whole application on a simulated cluster, with everything that happens to it in a plan.

``run_plan`` lets writers write while processes are killed, stopped, continued, started beside each other and cut off,
and the cluster and the disks misbehave; then it heals what is broken, waits until everything is processed, and looks
whether an idle application stays idle and ends in order. All the while each step is checked (``Watch``). The same plan
gives the same bytes in all logs.
"""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.link import WENT_BACK
from keylanes.brokers.simulated.log import Transaction
from keylanes.errors import BrokerUnavailable, FencedError, SettingsError, StoreError
from keylanes.group.members import LEFT, SILENT, SUPERSEDED
from keylanes.group.view import Rules
from keylanes.keyrange.hashing import SPACE_END
from keylanes.offsets.codec import decode, decode_signal
from keylanes.offsets.control_events import MemberExpelled
from keylanes.offsets.events import Event
from keylanes.runtime.logs.own_ledger import Expelled
from keylanes.runtime.member import AppRun
from keylanes.runtime.membership import coordinator_loop, errands, rules
from keylanes.runtime.settings import Settings
from keylanes.runtime.stores import changelogs, storage

from ..stage.cluster import Cluster, fold_of
from .folders import Folders
from .happenings import FENCE, TROUBLE_ECHO_S, Happenings
from .key_order import KeyOrder
from .loop import PausingLoop
from .plan import Burst, Mix, Plan
from .process import APP, FACTORS, Process
from .questions import Questions
from .rates import Rates
from .state_checker import check_copies
from .watch import UNKNOWN, Watch, Whereabouts
from .witness import check_ownership

LEVEL_LIMIT_S = 120.0
END_LIMIT_S = 60.0
IDLE_S = 2.0
LOOK_S = 0.1
"""So often it is looked whether all is done."""
MERGES_MAX = 10
"""So often an application without work may merge what is cold, before it writes nothing more."""
CALM_LOOKS = 12
"""Nothing was split or merged in so many looks at an idle application: nothing will be."""
SILENCE_SESSIONS = 2.0
"""So many sessions behind the last trouble somebody may still be silent by it."""
WRITER = "writer-"
INJECTED = (
    "transact_aborted",
    "transact_unknown",
    "coordinator_away",
    "reply_slow",
    "not_sent",
    "request_lost",
    "reply_lost",
    "request_late",
    "marker_late",
)
"""Faults of the cluster that count one by one; ``away`` and ``cut`` count once however many requests meet them."""
STORY_LINES = 60
"""So much of the story is told with a failure."""


class Outcome(NamedTuple):
    """What a plan came to. ``trace``: a hash over every offset of every partition, and the time."""

    trace: str
    reached: Counter[str]
    faults: Counter[str]
    story: list[str]


class World:
    """The cluster, its writers, and the processes. ``Happenings`` is what befalls them."""

    def __init__(self, plan: Plan, loop: PausingLoop) -> None:
        self.plan, self.mix, self.loop = plan, plan.mix, loop
        self.settings = plan.mix.make_settings()
        self.rng = random.Random(f"world {plan.seed}")
        self.cluster = Cluster(self.rng.getrandbits(32), plan.latency)
        for topic, partitions in {**plan.mix.sources, **plan.mix.topics}.items():
            self.cluster.create_topic(topic, partitions)
        self.cluster.faults.offsets_unknown = plan.mix.offsets_unknown
        self.sources = [TopicPartition(topic, p) for topic, n in plan.mix.sources.items() for p in range(n)]
        self.watch = Watch(self.cluster, APP, self.sources, stateful=plan.mix.stateful)
        self.cluster.hear(self._appended, self._committed)
        self.cluster.state.on_fence = self._fenced
        self.cluster.state.on_produce = self._produced
        self.factors = {topic: self.rng.choice(FACTORS) for topic in plan.mix.sources} | plan.mix.factors
        self.key_order = KeyOrder(lambda incarnation: incarnation in self.watch.expelled)
        self.rates = Rates(plan.mix.rate_per_s)
        self.questions = Questions(self)
        self.folders = Folders()
        self.processes: list[Process] = []
        self.is_happening = False
        self.happenings = Happenings(self)
        self.watch.whereabouts = self._whereabouts
        self.watch.factors = {} if plan.mix.differing else self.factors
        self.reached: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.story: list[str] = []
        self._began_s = loop.time()
        self._broken: asyncio.Future[None] = loop.create_future()
        loop.disk_s = self._disk_s
        loop.set_exception_handler(self._hear_loop)

    # --- what is told ----------------------------------------------------------------------------------------------

    def tell(self, what: str) -> None:
        """One line of the story."""
        self.story.append(f"{self.loop.time() - self._began_s:9.4f} s  {what}")

    def count_fault(self, kind: str) -> None:
        """Something went wrong on purpose."""
        self.faults[kind] += 1

    def fail(self, reason: str | BaseException) -> None:
        """Something that must not be. The first one ends the world."""
        if not self._broken.done():
            self.tell(f"wrong: {reason}")
            self._broken.set_exception(reason if isinstance(reason, BaseException) else AssertionError(reason))

    def _hear_loop(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "handle" in context and error is not None:  # a callback raised; lost tasks are told of at odd times
            self.fail(error)

    def _appended(self, records: Sequence[Outgoing]) -> None:
        if records[0].topic == f"{APP}.signals" and self.happenings.hand_overs.waits:
            for record in records:
                self.happenings.hand_overs.said(decode_signal(record.value or b""))
        if records[0].topic == self.watch.control_topic:
            before = len(self.watch.control)
            self.check(lambda: self.watch.hear(record.value for record in records))
            for event in self.watch.control[before:]:
                if isinstance(event, MemberExpelled):
                    self.questions.expelled(event.incarnation)
                    self.check(lambda event=event: self._judge_silence(event))  # type: ignore[misc]  # a default
                self.happenings.step(type(event).__name__)
                self.happenings.hand_overs.control(event)

    def _fenced(self, transactional_id: str) -> None:
        if any(transactional_id in self.watch.joined[who].transactional_ids for who in self.watch.expelled):
            self.happenings.step(FENCE)

    def _produced(self, records: Sequence[Outgoing]) -> None:
        if records[0].topic == self.watch.offsets_topic and self.happenings.hand_overs.waits:
            self.happenings.hand_overs.produced(decode(record.value or b"") for record in records)

    def _committed(self, transaction: Transaction) -> None:
        if not transaction.transactional_id.startswith(WRITER):
            self.check(lambda: self.happenings.hand_overs.decided(self._decided(transaction)))

    def _decided(self, transaction: Transaction) -> list[Event]:
        events = self.watch.decide(id(transaction), self.cluster.rows_of(transaction))
        self.questions.decided(events, self.watch.wrote)
        return events

    def check(self, check: Callable[[], None]) -> None:
        """Whatever a check raises is a failure."""
        try:
            check()
        except Exception as error:  # noqa: BLE001  # of any kind
            self.fail(error)

    def _disk_s(self, owner: str | None) -> float:
        slowest = next((p.disk_s for p in self.processes if p.name == owner), 0.0)
        return self.rng.random() * slowest if slowest else 0.0

    # --- writing ---------------------------------------------------------------------------------------------------

    async def write_all(self) -> None:
        """All bursts of the plan, each at its time."""
        async with asyncio.TaskGroup() as group:
            for number, burst in enumerate(self.plan.bursts):
                await self.until(burst.at_s)
                group.create_task(self._write(f"{WRITER}{number}", burst))

    async def until(self, at_s: float) -> None:
        """Sleep until a time of the plan."""
        await asyncio.sleep(max(0.0, self._began_s + at_s - self.loop.time()))

    async def _write(self, name: str, burst: Burst) -> None:
        records = [Outgoing(burst.topic, burst.partition, r.key, r.value, timestamp=r.at_ms) for r in burst.records]
        if not records:
            return
        if burst.kind == "plain":
            self.cluster.write(records, [i for i, item in enumerate(burst.records) if item.is_hole])
            return
        rng = random.Random(burst.seed)
        await self.cluster.write_together(name, records, commit=burst.kind == "committed", rng=rng)

    # --- processes -------------------------------------------------------------------------------------------------

    def start(self, name: str | None = None) -> Process:
        """Start a process, beside whatever runs; with a name, or one that is drawn."""
        process = Process(self, len(self.processes), name)
        self.processes.append(process)
        self.tell(f"{process.name} starts")
        return process

    def alive(self) -> list[Process]:
        """Processes that have not ended."""
        return [p for p in self.processes if not p.task.done()]

    def coordinator(self) -> Process | None:
        """The process that decides, by the control log, if it is alive."""
        return next((p for p in self.alive() if p.member.identity.birth == self.watch.coordinator), None)

    def workers(self) -> list[Process]:
        """Processes that work and shall go on to."""
        return [p for p in self.alive() if p.is_working and not p.was_stopped]

    def judge_ended(self) -> None:
        """Raises what ended a process, unless that is how it had to end."""
        for process in self.processes:
            if not process.task.done() or process.was_killed:
                continue
            error = None if process.task.cancelled() else process.task.exception()
            if error is None:
                assert process.was_stopped or process.until_level, "a process ended by itself"
            elif isinstance(error, Expelled):
                self._judge_expelled(process, error)
            elif isinstance(error, FencedError | SettingsError):
                if process.member.identity.birth not in self.watch.refused:
                    raise error
            elif isinstance(error, BrokerUnavailable):
                has_stopped = process.was_stopped or self._has_reached_its_level(process)
                if not has_stopped:  # a stop's last commit has little time
                    assert process.ended_s <= self.happenings.trouble_until_s, f"without trouble: {error!r}"
            elif not (isinstance(error, StoreError) and process.saw_full_disk):
                raise error

    def judge_level(self, process: Process) -> None:
        """Who ends by itself ran to the level, and all is committed up to the ends that were pinned for that."""
        if not self._has_reached_its_level(process):
            self.fail(f"{process.name} ended by itself, and it is not level with any of {self.watch.pins}")
        self.reached["ended at its level"] += 1

    def _has_reached_its_level(self, process: Process) -> bool:
        pins = self.watch.pins[max(0, process.pins_before - 1) :]
        return process.until_level and any(self.watch.has_reached(ends) for ends in pins)

    def _judge_silence(self, event: MemberExpelled) -> None:
        """Nobody who lives is silent while nothing is wrong, or the signals are away."""
        joined = self.watch.joined.get(event.incarnation)
        living = (p for p in self.alive() if joined is not None and p.member.identity.birth == joined.birth)
        process = next(living, None)
        if event.cause != SILENT or process is None or process.was_killed or process.is_paused:
            return
        calm_s = self.loop.time() - self.happenings.calm_since_s
        longest_s = SILENCE_SESSIONS * self.happenings.session_s + TROUBLE_ECHO_S
        assert calm_s <= longest_s, f"{event}: {process.name} lives, and for {calm_s} s at most the signals were away"

    def _judge_expelled(self, process: Process, error: Expelled) -> None:
        """Who is expelled ends only when it has left, or when another one has its name; else it comes back."""
        cause = self.watch.expelled.get(process.incarnation)
        assert cause is not None, f"{process.name} ended as expelled, and was not: {error!r}"
        if cause == LEFT:
            assert process.was_stopped, f"{process.name} left without being told to"
        else:
            assert cause == SUPERSEDED, f"{process.name} was expelled ({cause}) and did not come back"
            assert process.settings.group_instance_id, f"{process.name} has no name, and was superseded"

    def _whereabouts(self, incarnation: int) -> Whereabouts:
        owner = next((process for process in self.processes if process.incarnation == incarnation), None)
        if owner is None or owner.member.group.member_signals.leaves:
            return UNKNOWN
        return Whereabouts(owner.read[0], leaves=False)

    # --- the end ---------------------------------------------------------------------------------------------------

    async def reach_level(self) -> list[Process]:
        """Wait until all that is read is committed, and everything is held by those that live; if all have ended,
        another one is started.
        """
        until = self.loop.time() + LEVEL_LIMIT_S
        while self.loop.time() < until:
            self.judge_ended()
            alive = self.alive()
            if not alive:
                self.start()
            elif self.workers() == alive and self._is_level(alive) and not any(p.until_level for p in alive):
                return alive
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"not level after {LEVEL_LIMIT_S} s:\n{self.describe()}")

    def _is_level(self, alive: Sequence[Process]) -> bool:
        held: Counter[TopicPartition] = Counter()
        for process in alive:
            for run in process.member.runs:
                held[run.dispatch.place] += sum(worker.end - worker.first for worker in run.dispatch.workers)
        if held != dict.fromkeys(self.sources, SPACE_END):
            return False
        ends = {source: self.cluster.watermarks(source).high for source in self.sources}
        cells = self.watch.cells
        if cells.keys() < set(self.sources):  # one has grown, and was not started yet
            return False
        return all(edge == ends[source] for source in self.sources for edge in cells[source].edges)

    def describe(self, *, verbose: bool = False) -> str:
        """Where the processes that are alive stand."""
        lines = []
        for process in self.alive():
            member = process.member
            coordinates = member.group.coordinating.is_coordinator
            lines.append(
                f"{process.name}: {process.incarnation}, {member.state}, {member.is_ready.is_set()=}, {coordinates=}, "
                f"{process.was_stopped=}, {process.is_paused=}"
            )
            for run in member.runs:
                lines.append(f"{run.label}: front {run.dispatch.front}, {self.cluster.watermarks(run.dispatch.place)}")
                lines += [
                    f"  [{w.first:08x}, {w.end:08x}) epoch {w.epoch}: edge {w.edge}, {w.running=}, {len(w.queue)=}, "
                    f"{len(w.done)=}, {w.hold_at=}, {w.dropped_from=}"
                    for w in run.dispatch.workers
                    if verbose or w.edge < run.dispatch.front or w.hold_at is not None
                ]
        lines += [f"{event}" for event in self.watch.control[-12:]]
        return "\n".join(lines)

    def ends_of_logs(self) -> list[int]:
        """High watermarks of our logs, but for the signals: beats go on."""
        places = [*self.cluster.places(f"{APP}.control"), *self.cluster.places(f"{APP}.offsets")]
        return [self.cluster.watermarks(place).high for place in places]

    async def stay_idle(self) -> list[Process]:
        """An idle application appends nothing but beats, once its merges are through; the processes that are idle."""
        until = self.loop.time() + LEVEL_LIMIT_S
        processes = await self.reach_level()
        merges_left = MERGES_MAX
        while self.loop.time() < until:
            if not self._is_whole(processes):
                processes = await self.reach_level()  # faults were healed too late for one of them
            if all(is_quiet(process.member) for process in processes):
                await asyncio.sleep(0.5)
                ends = self.ends_of_logs()
                await asyncio.sleep(IDLE_S)
                if self.ends_of_logs() == ends and self._is_whole(processes):
                    for process in processes:
                        process.check_idle()
                    return processes
                merges_left -= 1  # ranges that were split while there was work are found to be cold
                assert merges_left > 0, f"an idle application goes on writing to its logs:\n{self.describe()}"
            await asyncio.sleep(0.1)
        raise AssertionError("merges are not through")

    def _is_whole(self, processes: Sequence[Process]) -> bool:
        """Whether these are those that work, still."""
        return self.workers() == processes

    async def finish(self, processes: Sequence[Process]) -> None:
        """End in order, or not, one after the other or all at once, and mostly look whether it starts again."""
        for again in range(self.rng.choice((1, 1, 2))):
            if again:
                self.start()
                processes = await self.reach_level()
            for process in self.rng.sample(processes, len(processes)):
                if self.rng.random() < 0.3:
                    await process.kill()
                else:
                    process.stop()
                    if self.rng.random() < 0.5:
                        await self._ended([process])
            await self._ended(processes)
            self.judge_ended()

    async def _ended(self, processes: Sequence[Process]) -> None:
        _, left = await asyncio.wait([process.task for process in processes], timeout=END_LIMIT_S)
        assert not left, "a stop in order does not end"

    async def run(self) -> None:
        """From the first start to the last check."""
        whole = self.loop.create_task(self._run())
        await asyncio.wait([whole, self._broken], return_when=asyncio.FIRST_COMPLETED)
        if self._broken.done():
            whole.cancel()
            await asyncio.wait([whole])
            self._broken.result()
        self._broken.cancel()
        whole.result()

    async def _run(self) -> None:
        self.is_happening = True
        for _ in range(self.mix.members):
            self.start()
        await asyncio.gather(self.write_all(), self.happenings.run())
        self.is_happening = False
        await self.happenings.heal()
        self.tell("healed")
        processes = await self.stay_idle()
        self.tell("level and idle")
        self.reached[f"idle with {len(processes)} processes"] += 1
        await self.finish(processes)
        self.count()
        self.watch.finish()
        assert not self.cluster.met[WENT_BACK], f"a client {WENT_BACK}, {self.cluster.met[WENT_BACK]} times"
        if self.mix.stateful:
            for place in self.sources:
                for folder in self.folders.all:
                    self.reached["entries in copies"] += check_copies(self.cluster, APP, place, folder.copies)
        ledger = fold_of(self.cluster, APP)
        assert not ledger.violations(), f"the ledger finds commits that do not count: {ledger.violations()}"
        assert not ledger.early_epochs(), f"the ledger finds events without a grant: {ledger.early_epochs()}"
        self.reached += check_ownership(self.cluster, APP)

    async def ask(self, process: Process, work: Coroutine[Any, Any, None]) -> bool:
        """Have a process do something for somebody outside; False when it ended before. Raises what the work raises."""
        if process.task.done():
            work.close()
            return False
        member = process.member
        asked = process.spawn(work)
        while not asked.done() and not process.task.done() and process.member is member and member.cause is None:
            await asyncio.wait([asked, process.task], timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        if asked.done() and not asked.cancelled():
            asked.result()
            return True
        asked.cancel()  # the run ends, or has ended
        await asyncio.wait([asked], timeout=END_LIMIT_S)
        return False

    def count(self) -> None:
        """What this plan came across."""
        for member in (member for process in self.processes for member in process.members):
            balance = member.work.balance if member.runs else None
            if balance is not None:
                self.reached["split as hot"] += balance.splits
                self.reached["merged as cold"] += balance.merges
            for run in member.runs:
                self.reached["dropped"] += run.dispatch.records_dropped
                self.reached["caught up"] += run.dispatch.records_caught_up
        self.reached["intervals between commits"] += sum(process.steadiness.looks for process in self.processes)
        self.reached["trimmed"] += self.cluster.trims
        self.reached["steps"] += self.watch.steps
        self.reached.update(self.watch.reached)
        self.reached.update(self.watch.copied.reached)
        self.reached.update(self.questions.reached)
        met = self.cluster.met
        self.faults.update({kind: met[kind] for kind in INJECTED})
        self.reached.update(met)

    def trace(self) -> str:
        """A hash over every offset of every partition, and the time."""
        digest = hashlib.sha256()
        for topic in sorted(self.cluster.topics()):
            for place in self.cluster.places(topic):
                for entry in self.cluster.entries(place):
                    committed = entry.transaction.committed if entry.transaction else None
                    digest.update(repr((place, entry.record, committed)).encode())
        digest.update(repr(self.loop.time()).encode())
        return digest.hexdigest()


def is_quiet(member: AppRun) -> bool:
    """Whether nothing is sent, held or still to be merged."""
    is_calm = member.work.balance is None or member.work.balance.calm_looks >= CALM_LOOKS
    wishes = member.work.cycle.range_changes.wishes
    return is_calm and not (member.work.cycle.is_sending or wishes.holds or wishes.wanted)


def _rules_of(rules_of: Callable[[Settings], Rules], join_ms: int, settings: Settings) -> Rules:
    return replace(rules_of(settings), join_ms=join_ms)


@contextmanager
def limits_of(mix: Mix) -> Iterator[None]:
    """The runtime's constants as a mix has them: small, so that something may fall between two steps."""
    limits = {
        (storage, "SLICE_CHANGES"): mix.slice_changes,
        (changelogs, "FETCH_RECORDS_MAX"): mix.restore_records_max,
        (errands, "LOOK_AGAIN_MS"): mix.sources_check_ms,
        (rules, "RELEASE_MS"): mix.release_ms,
        (coordinator_loop, "rules_of"): partial(_rules_of, rules.rules_of, mix.join_ms),
    }
    before = {where: getattr(*where) for where in limits}
    for where, value in limits.items():
        setattr(*where, value)
    try:
        yield
    finally:
        for where, value in before.items():
            setattr(*where, value)


def run_plan(plan: Plan) -> Outcome:
    """One whole simulation. Raises AssertionError, or what ended a process; its notes tell the story."""
    loop = PausingLoop(plan.seed)
    worlds: list[World] = []

    async def main() -> Outcome:
        world = World(plan, loop)
        worlds.append(world)
        await world.run()
        return Outcome(world.trace(), world.reached, world.faults, world.story)

    try:
        asyncio.set_event_loop(loop)
        with limits_of(plan.mix):
            return loop.run_until_complete(main())
    except Exception as error:
        for world in worlds:
            error.add_note("\n".join([f"seed {plan.seed}", *world.story[-STORY_LINES:]]))
        raise
    finally:
        try:
            for world in worlds:
                for process in world.processes:
                    loop.resume(process.name)
            loop.close()
        finally:
            asyncio.set_event_loop(None)
