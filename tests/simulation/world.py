"""A whole application on a simulated cluster, with everything that may happen to it, drawn from one seed.

``run_seed`` draws a mix (partitions, workers, limits, records, faults), lets writers write while processes are killed,
stopped, started beside each other and cut off, heals what is broken, waits until everything is processed, and has the
logs judged. The same seed gives the same bytes in all logs.
"""

import asyncio
import hashlib
import math
import random
from collections import Counter
from dataclasses import dataclass

from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.codec import decode, encode
from keylanes.offsets.decide import decide_grant
from keylanes.offsets.ledger import Ledger, evolve_all
from keylanes.runtime import keeper
from keylanes.runtime.brokers.protocol import BrokerTimeout, Outgoing, TopicPartition
from keylanes.runtime.brokers.simulated import EPOCH_MS, Latency
from keylanes.runtime.errors import BrokerUnavailable, FencedError
from keylanes.runtime.member import Member
from keylanes.runtime.outputs import ERROR_HEADER
from keylanes.runtime.settings import Settings
from keylanes.runtime.virtual_loop import VirtualLoop

from .checker import Logs, check, check_state, check_trimmed, read_logs
from .cluster import Cluster
from .folders import Folders
from .process import APP, Process
from .state_checker import check_copies
from .twin import TTL_MS
from .workload import AUDIT, BIG_BYTES, BILLS, DEAD, ORDERS, OUT, draw_work

LEVEL_LIMIT_S = 120.0
END_LIMIT_S = 60.0
IDLE_S = 2.0
MERGES_MAX = 10
"""So often an application without work may merge what is cold, before it writes nothing more."""
CALM_LOOKS = 12
"""Nothing was split or merged in so many looks at an idle application: nothing will be."""
TROUBLE_ECHO_S = 4.0
"""So long after its faults ended the cluster may still be called unavailable: requests then under way time out."""


@dataclass(frozen=True)
class Mix:
    """What one seed draws before anything runs."""

    sources: dict[str, int]
    records: int
    keys: int
    trouble: float
    happenings: int
    span_s: float
    settings: Settings
    stateful: bool
    slice_changes: int
    offsets_unknown: float


def draw_mix(rng: random.Random) -> Mix:
    """Small limits mostly, so that every branch is reached with few records."""
    sources = {ORDERS: rng.randint(1, 3)}
    if rng.random() < 0.5:
        sources[BILLS] = rng.randint(1, 2)
    interval = rng.choice((20, 50, 100))
    settings = Settings(
        commit_interval_ms=interval,
        commit_lead_ms=rng.choice((0, 5, 15)),
        commit_all_workers_max=rng.choice((0, 0, 16)),
        generation_records_max=rng.choice((2, 10, 50_000)),
        generation_bytes_max=rng.choice((1_000, 1 << 24)),
        done_bytes_max=rng.choice((2_000, 20_000, 1 << 26)),
        buffer_bytes_max=rng.choice((2_000, 10_000, 50_000, 1 << 28)),
        fetch_records_max=rng.choice((3, 20, 2_000)),
        full_wait_ms=rng.choice((10, 100, 1_000)),
        handler_timeout_ms=rng.choice((250, 600)),
        merge_hold_ms=rng.choice((20, 200)),
        balance_interval_ms=rng.choice((20, 100, 1_000)),
        transaction_timeout_ms=rng.choice((500, 2_000)),
        request_timeout_ms=3_000,
        broker_retry_ms=rng.choice((2_000, 60_000)),
        drain_timeout_ms=rng.choice((100, 2_000)),
        snapshot_every_commits=rng.choice((1, 3, 10, 1_000)),
        history_ms=rng.choice((0, 200, 1_000_000)),
        compression_type=None,
    )
    return Mix(
        sources=sources,
        records=rng.choice((20, 60, 120, 200)),
        keys=rng.choice((1, 3, 8, 40)),
        trouble=rng.choice((0.0, 0.05, 0.2)),
        happenings=rng.choice((0, 3, 6, 9)),
        span_s=rng.choice((0.5, 2.0, 4.0)),
        settings=settings,
        stateful=rng.random() < 0.5,
        slice_changes=rng.choice((1, 2, 200)),
        offsets_unknown=rng.choice((0.0, 0.0, 0.5)),
    )


class World:
    """The cluster, its writers, the processes, and what happens to them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.mix = draw_mix(self.rng)
        latency = Latency(
            marker_ms=self.rng.choice(((0.1, 2.0), (0.1, 20.0), (10.0, 200.0))),
            timeout_ms=self.rng.choice((300.0, 1_000.0)),
        )
        self.cluster = Cluster(self.rng.getrandbits(32), latency)
        for topic, partitions in self.mix.sources.items():
            self.cluster.create_topic(topic, partitions)
        for topic in (OUT, AUDIT, DEAD):
            self.cluster.create_topic(topic, self.rng.randint(1, 3))
        self.cluster.faults.offsets_unknown = self.mix.offsets_unknown
        self.folders = Folders(self.rng)
        self.is_happening = False
        self.processes: list[Process] = []
        self.trouble_until_s = -math.inf
        self.passings: list[asyncio.Task[None]] = []
        self.granting = asyncio.Lock()
        self.grantor = self.cluster.connect("grantor")
        self.reached: Counter[str] = Counter()
        self.wrong: list[str] = []
        """What handlers saw that must not be. Raised inside one it would pass for the handler's own failure."""
        self._writers = 0

    # --- writing ---------------------------------------------------------------------------------------------------

    async def write_all(self) -> None:
        """All records of the mix, in bursts over its span."""
        number = 0
        bursts: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            while number < self.mix.records:
                size = min(self.rng.choice((1, 3, 10, 40)), self.mix.records - number)
                bursts.append(group.create_task(self._write_burst(number, size)))
                number += size
                await asyncio.sleep(self.rng.random() * 2 * self.mix.span_s * size / self.mix.records)

    async def _write_burst(self, number: int, size: int) -> None:
        rng = self.rng
        topic = rng.choice(list(self.mix.sources))
        partition = rng.randrange(self.mix.sources[topic])
        records = [
            Outgoing(
                topic,
                partition,
                self._draw_key(),
                draw_work(rng, number + i, is_sync=topic == BILLS, trouble=self.mix.trouble),
                timestamp=self._draw_time(),
            )
            for i in range(size)
        ]
        kind = rng.choice(("plain", "plain", "holes", "together", "together", "aborted"))
        if kind in ("plain", "holes"):
            holes = [i for i in range(size) if rng.random() < 0.3] if kind == "holes" else []
            self.cluster.write(records, holes)
            return
        self._writers += 1
        name = f"writer-{self._writers}"
        await self.cluster.write_together(name, records, commit=kind == "together", rng=rng)

    def _draw_time(self) -> int | None:
        """Records of stateful mixes bring times of their own, which are not the clock's."""
        return EPOCH_MS + self.rng.randrange(4 * TTL_MS) if self.mix.stateful else None

    def _draw_key(self) -> bytes | None:
        draw = self.rng.random()
        if draw < 0.1:
            return None
        return b"" if draw < 0.15 else b"k%d" % int(self.rng.random() ** 2 * self.mix.keys)

    # --- processes -------------------------------------------------------------------------------------------------

    def start(self) -> Process:
        """Start a process, beside whatever runs."""
        process = Process(self, len(self.processes))
        self.processes.append(process)
        return process

    def alive(self) -> list[Process]:
        """Processes that have not ended."""
        return [p for p in self.processes if not p.task.done()]

    def judge_ended(self) -> None:
        """Raises what ended a process, unless that is how it had to end."""
        for process in self.processes:
            if not process.task.done() or process.was_killed:
                continue
            error = None if process.task.cancelled() else process.task.exception()
            if error is None:
                assert process.was_stopped, "a process ended by itself"
            elif isinstance(error, FencedError):
                rivals = [p for p in self.processes if p is not process and p.ended_s > process.started_s]
                assert rivals, "a process was fenced though no other ran"
            elif (
                isinstance(error, BrokerUnavailable) and not process.was_stopped
            ):  # a stop's last commit has little time
                assert process.started_s <= process.ended_s <= self.trouble_until_s, f"without trouble: {error!r}"
            elif not isinstance(error, BrokerUnavailable):
                raise error

    # --- what happens ----------------------------------------------------------------------------------------------

    async def happen(self) -> None:
        """The mix's happenings, one after the other at random times."""
        kinds = (
            "crash",
            "stop",
            "rival",
            "rivals",
            "aborted",
            "unknown",
            "slow",
            "away",
            "limit",
            "limit",
            "release",
            "release",
            *(("compact", "compact", "split", "split", "merge", "crash") if self.mix.stateful else ()),
        )
        for _ in range(self.mix.happenings):
            await asyncio.sleep(self.rng.random() * 2 * self.mix.span_s / self.mix.happenings)
            kind = self.rng.choice(kinds)
            self.reached[kind] += 1
            await self._happen(kind)
            if not self.alive():
                self.start()

    async def _happen(self, kind: str) -> None:
        rng = self.rng
        if kind == "crash":
            for process in self.alive():
                await process.kill()
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.5)))
        elif kind == "stop":
            for process in self.alive():
                process.was_stopped = True
                process.member.stop()
            if rng.random() < 0.5:
                await asyncio.wait([p.task for p in self.processes], timeout=END_LIMIT_S)
        elif kind in ("rival", "rivals"):
            self.start()
            if kind == "rivals":
                self.start()
        elif kind == "release":
            self.passings.append(asyncio.get_running_loop().create_task(self._pass_on()))
        elif kind in ("split", "merge"):
            self.passings.append(asyncio.get_running_loop().create_task(self._reshape(kind)))
        elif kind == "compact":
            self._compact()
        elif kind == "limit":
            self.cluster.limit(OUT, BIG_BYTES - 500 if rng.random() < 0.7 else None)
        else:
            await self._trouble(kind)

    def _compact(self) -> None:
        for place in self.sources():
            changelog = TopicPartition(f"{APP}.changelog.{place.topic}", place.partition)
            if changelog.topic in self.cluster.topics():
                self.cluster.compact(changelog, partly=self.rng.random() < 0.7)

    async def _trouble(self, kind: str) -> None:
        """The cluster misbehaves, for some time or until it is healed in the end."""
        faults, rng = self.cluster.faults, self.rng
        self.trouble_until_s = math.inf
        if kind == "aborted":
            faults.transact_aborted = rng.choice((0.3, 0.9))
        elif kind == "unknown":
            faults.transact_unknown = rng.choice((0.3, 0.9))
        elif kind == "slow":
            faults.reply_slow, faults.reply_slow_ms = 0.2, rng.choice((50.0, 700.0))
        else:
            faults.away = True
            await asyncio.sleep(rng.choice((0.05, 0.5, 2.5)))
            faults.away = False
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random())
            self.heal()
        self.judge_ended()

    async def _pass_on(self) -> None:
        """A range is released by the process that works, and granted to it again some time later; unless it ends."""
        rng = self.rng
        place = rng.choice(self.sources())
        first, end = sorted(rng.sample((0, 1 << 28, 1 << 30, 1 << 31, 3 << 30, SPACE_END), 2))
        within = KeyRange(first, end)
        process = next((p for p in self.alive() if p.is_working and not p.was_stopped), None)
        if process is None:
            return
        passing = asyncio.get_running_loop().create_task(self._release_and_grant(process, place, within))
        await asyncio.wait([passing, process.task], return_when=asyncio.FIRST_COMPLETED)
        if not passing.done():
            passing.cancel()
            return
        if not passing.cancelled() and not process.task.done():
            passing.result()
            self.reached["range passed on"] += 1

    async def _reshape(self, kind: str) -> None:
        """A split or a merge is asked for in the process that works; what comes of it is said by the logs."""
        rng = self.rng
        process = next((p for p in self.alive() if p.is_working and not p.was_stopped), None)
        if process is None:
            return
        place = rng.choice(self.sources())
        first, end = sorted(rng.sample((0, 1 << 28, 1 << 30, 1 << 31, 3 << 30, SPACE_END), 2))
        member = process.member
        asked = member.split(place, end - 1) if kind == "split" else member.merge(place, KeyRange(first, end))
        changing = asyncio.get_running_loop().create_task(asked)
        await asyncio.wait([changing, process.task], return_when=asyncio.FIRST_COMPLETED)
        changing.cancel()
        await asyncio.wait([changing])
        if not changing.cancelled() and not isinstance(changing.exception(), ValueError):
            changing.result()
            self.reached[f"asked for a {kind}"] += 1

    async def _append(self, records: list[Outgoing]) -> None:
        """Append until it is acknowledged: a grant that stands there twice is one grant."""
        while True:
            try:
                return await self.grantor.append(records)
            except BrokerTimeout:
                await asyncio.sleep(0.1)

    async def _release_and_grant(self, process: Process, place: TopicPartition, within: KeyRange) -> None:
        coordinator = process.member.coordinator
        try:
            await process.member.release(place, within)
        except ValueError:  # part of it is on its way already
            return
        process.lacks += 1
        await asyncio.sleep(self.rng.choice((0.0, 0.05, 0.5)))
        async with self.granting:  # a coordinator decides one thing after the other
            ledger = fold_of(self.cluster, APP)
            incarnation = next(i for i, m in ledger.control.members.items() if m.instance == coordinator.instance)
            grants = decide_grant(ledger, coordinator.term, place, incarnation, within)
            await self._append([Outgoing(f"{APP}.control", 0, None, encode(grant)) for grant in grants])
        await process.member.take_up(place, getattr(grants[0], "epoch", 0))
        process.lacks -= 1

    def heal(self) -> None:
        """No more faults."""
        faults = self.cluster.faults
        faults.transact_aborted = faults.transact_unknown = faults.reply_slow = 0.0
        faults.away = False
        if self.trouble_until_s == math.inf:
            self.trouble_until_s = asyncio.get_running_loop().time() + TROUBLE_ECHO_S

    # --- the end ---------------------------------------------------------------------------------------------------

    def sources(self) -> list[TopicPartition]:
        """All source partitions."""
        return [TopicPartition(topic, p) for topic, n in self.mix.sources.items() for p in range(n)]

    async def reach_level(self) -> Process:
        """Wait until one process is left and all it reads is committed; one that ended is replaced."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LEVEL_LIMIT_S
        while loop.time() < until:
            self.judge_ended()
            alive = self.alive()
            if not alive:
                self.start()
            elif len(alive) == 1 and alive[0].is_working and not alive[0].was_stopped:
                member = alive[0].member
                member.ends = {source: self.cluster.watermarks(source).high for source in self.sources()}
                if member.is_level() and not alive[0].lacks:
                    return alive[0]
            await asyncio.sleep(0.02)
        raise AssertionError(f"not level after {LEVEL_LIMIT_S} s:\n{self.describe()}")

    def describe(self) -> str:
        """Where the processes that are alive stand."""
        lines = []
        for process in self.alive():
            for run in process.member.runs:
                lines.append(f"{run.label}: front {run.dispatch.front}, end {self._high(run.label)}")
                lines += [f"  {worker}" for worker in run.dispatch.workers]
        return "\n".join(lines)

    def _high(self, label: str) -> list[int]:
        return [self.cluster.watermarks(s).high for s in self.sources() if f"{s.topic}[{s.partition}]" == label]

    def ends_of_logs(self) -> list[int]:
        """High watermarks of our logs."""
        places = [*self.cluster.places(f"{APP}.control"), *self.cluster.places(f"{APP}.offsets")]
        return [self.cluster.watermarks(place).high for place in places]

    async def stay_idle(self) -> Process:
        """An idle application appends nothing, once its merges are through; the process that is idle."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LEVEL_LIMIT_S
        process = await self.reach_level()
        merges_left = MERGES_MAX
        while loop.time() < until:
            if process.task.done():
                process = await self.reach_level()  # faults were healed too late for it
            if is_quiet(process.member):
                await asyncio.sleep(0.5)
                ends = self.ends_of_logs()
                await asyncio.sleep(IDLE_S)
                if self.ends_of_logs() == ends:
                    return process
                merges_left -= 1  # ranges that were split while there was work are found to be cold
                assert merges_left > 0, "an idle application goes on writing to its logs"
            await asyncio.sleep(0.1)
        raise AssertionError("merges are not through")

    async def finish(self, process: Process) -> None:
        """End in order, or not, and mostly look whether it starts again."""
        for again in range(self.rng.choice((1, 1, 2))):
            if again:
                process = self.start()
                await self.reach_level()
            if self.rng.random() < 0.3:
                await process.kill()
            else:
                process.was_stopped = True
                process.member.stop()
                done, _ = await asyncio.wait([process.task], timeout=END_LIMIT_S)
                assert done, "a stop in order does not end"
            self.judge_ended()

    async def run(self) -> None:
        """From the first start to the last check."""
        self.start()
        self.is_happening = True
        await asyncio.gather(self.write_all(), self.happen())
        self.is_happening = False
        self.heal()
        for passing in self.passings:
            await passing
        process = await self.stay_idle()
        await self.finish(process)
        assert not self.wrong, self.wrong[:5]
        logs = read_logs(self.cluster, APP, self.mix.sources, stateful=self.mix.stateful)
        self.count(logs)
        check(logs)
        if self.mix.stateful:
            check_state(logs, self.cluster, APP)
            for place in self.sources():
                for folder in self.folders.all:
                    self.reached["entries in copies"] += check_copies(self.cluster, APP, place, folder)
        check_trimmed(self.cluster, APP)
        ledger = fold_of(self.cluster, APP)
        assert not ledger.violations()
        assert not ledger.waiting()

    def count(self, logs: Logs) -> None:
        """What this seed came across."""
        for process in self.processes:
            if process.member.balance is not None:
                self.reached["split as hot"] += process.member.balance.splits
                self.reached["merged as cold"] += process.member.balance.merges
            for run in process.member.runs:
                self.reached["dropped"] += run.dispatch.records_dropped
                self.reached["caught up"] += run.dispatch.records_caught_up
        self.reached["trimmed"] += self.cluster.trims
        self.reached.update(type(placed.event).__name__ for placed in logs.offsets)
        self.reached.update(output.topic for output in logs.outputs)
        for output in logs.outputs:
            cause = dict(output.row.headers).get(ERROR_HEADER, b"").partition(b":")[0]
            self.reached[cause.decode()] += 1

    def trace(self) -> str:
        """A hash over every offset of every partition, and the time."""
        digest = hashlib.sha256()
        for topic in sorted(self.cluster.topics()):
            for place in self.cluster.places(topic):
                for entry in self.cluster.entries(place):
                    committed = entry.transaction.committed if entry.transaction else None
                    digest.update(repr((place, entry.record, committed)).encode())
        digest.update(repr(asyncio.get_running_loop().time()).encode())
        return digest.hexdigest()


def is_quiet(member: Member) -> bool:
    """Whether nothing is sent, held or still to be merged."""
    assert member.cycle is not None, "it works"
    is_calm = member.balance is None or member.balance.calm_looks >= CALM_LOOKS
    is_merging = member.cycle.reshape.holds or any(run.wanted_bounds for run in member.runs)
    return is_calm and not (member.cycle.is_sending or is_merging)


def fold_of(cluster: Cluster, app: str) -> Ledger:
    """The runtime's own fold of all that is committed now."""
    places = [*cluster.places(f"{app}.control"), *cluster.places(f"{app}.offsets")]
    return evolve_all(Ledger(), (decode(row.value or b"") for place in places for row in cluster.rows(place)))


def run_seed(seed: int) -> tuple[str, Counter[str]]:
    """One whole simulation; its trace and what it came across. Raises AssertionError, or what ended a process."""
    loop = VirtualLoop(seed)

    async def main() -> tuple[str, Counter[str]]:
        world = World(seed)
        keeper.SLICE_CHANGES = world.mix.slice_changes  # type: ignore[misc]  # small, so that a crash falls between
        await world.run()
        return world.trace(), world.reached

    slice_changes = keeper.SLICE_CHANGES
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main())
    finally:
        try:
            loop.close()
        finally:
            keeper.SLICE_CHANGES = slice_changes  # type: ignore[misc]  # as it was
            asyncio.set_event_loop(None)
