"""A reader's wait at a full worker against a dumb twin, which judges by all that was seen since the wait began."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylanes.brokers.simulated.broker import SimulatedRecord
from keylanes.keyrange.ranges import even_bounds
from keylanes.runtime.handlers.sizes import bytes_of
from keylanes.runtime.partition.dispatch import Blocked, PartitionDispatch
from keylanes.runtime.partition.room import STUCK_MS, RoomWait, Verdict
from keylanes.runtime.partition.worker import Worker, WorkerNumbers

from ...tiers.marks import tier
from .test_dispatch import mutated

pytestmark = tier("check")

QUOTA_BYTES = 4_000
LOOKS_MAX = 60
PLANT_SEEDS = 2_000


@dataclass(frozen=True)
class Seen:
    """What can be seen at one moment: of the worker at which the reader stands, and of those that it feeds."""

    now_s: float
    running: Any
    started_s: float
    has_room: bool
    others: tuple[tuple[bool, int, bool], ...]
    """Of each other worker that the reader feeds: whether it runs a record, how many it has queued, if it is full."""
    queued: int
    """Records in the queues of all that it feeds."""
    is_fed: bool
    """Whether the worker at which it stands is one of those."""


@dataclass
class Twin:
    """Keeps everything that was seen, and keeps no clock. The first entry is the moment in which the wait began."""

    full_wait_s: float
    seen: list[Seen] = field(default_factory=list)

    def judge(self) -> Verdict:
        """What the reader does after the last entry."""
        last = self.seen[-1]
        if last.has_room:
            return "go"
        if self._stands_still():
            return "drop"
        waited_long = last.now_s >= self.seen[0].now_s + self.full_wait_s
        full = sum(is_full for _, _, is_full in last.others) + last.is_fed
        working = [queued for runs, queued, is_full in last.others if not is_full and (runs or queued)]
        loaded = full + len(working)
        are_mostly_idle = len(last.others) + last.is_fed - loaded > loaded
        if self._is_stuck() and are_mostly_idle:
            return "drop"
        if full * 2 > loaded or (waited_long and are_mostly_idle):
            return "drop" if waited_long else "wait"
        return "drop" if sum(working) <= len(working) else "wait"

    def _is_stuck(self) -> bool:
        """The row of entries up to the last one in which its record is the same: the first of them tells since when."""
        first = self.seen[-1]
        for entry in reversed(self.seen):
            if entry.running is not first.running:
                break
            first = entry
        since_s = first.now_s if first.running is None else min(first.started_s, first.now_s)
        return self.seen[-1].now_s >= since_s + STUCK_MS / 1000

    def _stands_still(self) -> bool:
        """The last look that saw fewer records queued than each look before it is as long ago as that."""
        looks = self.seen[1:]
        shorter = [n for n, look in enumerate(looks) if all(look.queued < before.queued for before in looks[:n])]
        return looks[-1].now_s >= looks[shorter[-1]].now_s + self.full_wait_s


class Drive:
    """Workers that begin, finish and get records at random while a reader stands at one of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.offset = 0
        self.now_s = self.rng.choice((0.0, 1_000.0))
        self.dispatch = PartitionDispatch("t", 0, 0, QUOTA_BYTES, WorkerNumbers())
        bounds = even_bounds(self.rng.choice((1, 2, 3, 6)))
        self.workers = self.dispatch.add_workers(bounds, lambda first: 0)
        self.pace = self.rng.choice((0.0, 0.2, 1.0))
        """How much of the time something happens."""
        for worker in self.workers:
            for _ in range(self.rng.choice((0, 0, 1, 3, 20))):
                self._queue(worker)
            if self.rng.random() < 0.5:
                self._begin(worker)
        self.stands_at = self.rng.choice(self.workers)
        self.size = self.rng.choice((200, 1_000, QUOTA_BYTES))
        while self.dispatch.has_room_again(self.stands_at, self.size):
            self._queue(self.stands_at)

    def _queue(self, worker: Worker) -> None:
        record = SimulatedRecord(self.offset, 0, b"k", b"v" * self.rng.choice((0, 10, 400)), ())
        self.offset += 1
        worker.queue.append(record)
        worker.queue_bytes += bytes_of(record)

    def _begin(self, worker: Worker) -> None:
        if self.dispatch.next_record(worker) is not None:
            # In a thread it begins later, and may have begun between two looks.
            worker.started_s = self.rng.choice((self.now_s, self.now_s - 0.05, self.now_s - 5.0, float("inf")))

    def happen(self) -> None:
        """Time passes, and something may have happened meanwhile."""
        self.now_s += self.rng.choice((0.02, 0.02, 0.021, 0.1, 0.4))
        for worker in self.workers:
            if self.rng.random() >= self.pace:
                continue
            match self.rng.choice(("end", "end", "begin", "end and begin", "queue", "drop", "take up", "retire")):
                case "end":
                    worker.running = None
                case "begin" if worker.running is None:
                    self._begin(worker)
                case "end and begin":
                    worker.running = None
                    self._begin(worker)
                case "queue":
                    self._queue(worker)
                case "drop":
                    worker.dropped_from = self.offset
                case "take up":
                    worker.dropped_from = None
                case "retire":
                    worker.retired = worker.retired or self.rng.random() < 0.02

    def see(self) -> Seen:
        """What the twin is told of the moment."""
        at, fed = self.stands_at, self.dispatch.fed_by_front()
        others = [(w.running is not None, len(w.queue), w.queue_bytes >= QUOTA_BYTES * 0.9) for w in fed if w is not at]
        held = at.queue_bytes
        has_room = at.retired or held == 0 or (held <= QUOTA_BYTES * 0.75 and held + self.size <= QUOTA_BYTES)
        queued = sum(len(w.queue) for w in fed)
        return Seen(self.now_s, at.running, at.started_s, has_room, tuple(others), queued, any(w is at for w in fed))


def drive(seed: int, standing_type: type[RoomWait] = RoomWait) -> list[Verdict]:
    """One wait from its beginning to its end; raises AssertionError where the twin judges otherwise."""
    run = Drive(seed)
    full_wait_ms = run.rng.choice((0, 50, 300, 2_000))
    twin = Twin(full_wait_ms / 1000, [run.see()])
    standing = standing_type(run.dispatch, Blocked(run.stands_at, 0, run.size), run.now_s, full_wait_ms)
    said: list[Verdict] = []
    for _ in range(LOOKS_MAX):
        run.happen()
        twin.seen.append(run.see())
        said.append(standing.look(run.now_s, run.dispatch.fed_by_front))
        assert said[-1] == twin.judge(), f"look {len(said)} of seed {seed}"
        if said[-1] == "go":
            break
    return said  # a reader would end at the first "drop"; what is said behind it must be right as well


@settings(max_examples=300)
@given(st.integers(0, 1 << 32))
def test_a_wait_ends_as_all_that_was_seen_says(seed: int) -> None:
    """Whatever workers do and however time passes, each look says what the twin makes of the whole history."""
    drive(seed)


def test_the_drive_comes_to_each_verdict() -> None:
    """Waits that are long and short, and that end in either way."""
    runs = [drive(seed) for seed in range(200)]
    assert {verdict for said in runs for verdict in said} == {"wait", "go", "drop"}
    assert max(map(len, runs)) > LOOKS_MAX / 2


PLANTS = {
    "the wait begins anew with each look": ("now_s >= self._long_from_s", "now_s >= now_s + self._full_wait_s"),
    "a worker at its next record is still stuck": ("if self._worker.running is not self._running:", "if False:"),
    "a worker is stuck from each look on": ("if self._worker.running is not self._running:", "if True:"),
    "a record counts from when it was seen": (
        "self._worker.running, _stuck_from_s(self._worker, now_s)",
        "self._worker.running, now_s + STUCK_MS / 1000",
    ),
    "a queue of the same length is shorter": ("if queued < self._queued_least:", "if queued <= self._queued_least:"),
    "a queue is compared with the last look only": (
        "if queued < self._queued_least:",
        "is_less, self._queued_least = queued < self._queued_least, queued\n    if is_less:",
    ),
    "what stands still is not looked at": ("now_s >= self._still_from_s", "False"),
    "the worker's retirement is not looked at": ("if self.may_go_on():", "if not self._worker.queue_bytes:"),
}


@pytest.mark.interpreted
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_defect_is_found(name: str) -> None:
    """One of the waits ends otherwise than the twin says."""
    defective = type("Planted", (RoomWait,), {"look": mutated(RoomWait.look, *PLANTS[name])})
    for seed in range(PLANT_SEEDS):
        try:
            drive(seed, defective)
        except AssertionError:
            return
    pytest.fail(f"{PLANT_SEEDS} waits did not find: {name}")
