"""An operator has ranges move between members: cells of the declared cut, several, hot bands, whole partitions.

Requests are records of the signals, written by nobody who takes part. Who holds what is told by the judge's cells.
"""

import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.broker import EPOCH_MS
from keylanes.group.signals_fold import MEMBERS
from keylanes.keyrange.ranges import KeyRange, even_bounds, join_neighbours
from keylanes.offsets.codec import encode
from keylanes.offsets.signals import MoveAsked

from .cells import NOBODY, Holder
from .process import APP, Process
from .twin import TTL_MS
from .workload import ATTEMPTS, BILLS, Work, draw_work

if TYPE_CHECKING:
    from .world import World

ANYBODY = 0
"""In place of the incarnation that something is to go to."""
LOOK_S = 0.02
SESSIONS_WAITED = 4.0
"""So long, in sessions, it is waited for somebody who holds something, and somebody else."""
NUMBERS = (1_000_000, 1_000_000_000)
"""Of records that are written while something moves: of no burst."""


class Move(NamedTuple):
    """Points of a source partition are to go from one incarnation to another."""

    place: TopicPartition
    within: KeyRange
    giver: int
    taker: int


class Moving:
    """Of one world."""

    def __init__(self, world: "World") -> None:
        self.world, self.cluster, self.loop = world, world.cluster, world.loop
        self._asked = 0

    # --- who holds what --------------------------------------------------------------------------------------------

    def held(self, place: TopicPartition, incarnation: int) -> list[KeyRange]:
        """What a member holds of a source partition, touching ranges as one."""
        own = (KeyRange(first, end) for first, end, holder in self._pieces(place) if holder.incarnation == incarnation)
        return join_neighbours(own, KeyRange.join)

    def part_of(self, rng: random.Random, process: Process, place: TopicPartition, run: KeyRange) -> KeyRange:
        """Some of a range that a process holds: all of it, or from one bound of a cell or a band to another one.

        Of what has one worker by declaration a part is asked for, too: it goes as a whole.
        """
        factor = process.factors[place.topic]
        if rng.random() < (0.7 if factor == 1 else 0.2):
            return run
        if factor == 1:
            return KeyRange(run.first, (run.first + run.end) // 2)
        bounds = {*even_bounds(factor)}
        for worker in process.workers_of(place):
            bounds |= {worker.first, worker.end}
        inside = sorted({run.first, run.end} | {bound for bound in bounds if run.first < bound < run.end})
        i = rng.randrange(len(inside) - 1)
        j = i + 1 if rng.random() < 0.5 else rng.randrange(i, len(inside) - 1) + 1
        return KeyRange(inside[i], inside[j])

    def draw(self, rng: random.Random) -> Move | None:
        """A move between two that work; None: there are no two, or nobody holds anything."""
        workers = [process for process in self.world.workers() if process.incarnation]
        pairs = [
            (process, place, run)
            for process in workers
            for place in self.world.sources
            for run in self.held(place, process.incarnation)
        ]
        if len(workers) < 2 or not pairs:
            return None
        giver, place, run = rng.choice(pairs)
        taker = rng.choice([process for process in workers if process is not giver])
        return Move(place, self.part_of(rng, giver, place, run), giver.incarnation, taker.incarnation)

    async def drawn(self, rng: random.Random) -> Move | None:
        """The same, when there are two; after some time None."""
        until_s = self.loop.time() + SESSIONS_WAITED * self.world.happenings.session_s
        while (move := self.draw(rng)) is None and self.loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
            if len(self.world.alive()) < 2:
                self.world.start()
        return move

    # --- what is asked for -----------------------------------------------------------------------------------------

    def ask(self, rng: random.Random, move: Move, *, to_anybody: bool = False) -> None:
        """Ask the coordinator for it. Whoever hears it late finds that it names an epoch that is over, or none."""
        self._asked += 1
        cells = self.world.watch.cells[move.place]
        epochs = {cells.holders[i].epoch for i in cells.within(move.within.first, move.within.end)}
        epoch = epochs.pop() if len(epochs) == 1 and rng.random() < 0.7 else 0
        target = ANYBODY if to_anybody else move.taker
        asked = MoveAsked(
            f"operator {self._asked}", "operator", *move.place, move.within.first, move.within.end, target, epoch
        )
        partition = 1 + rng.randrange(MEMBERS)
        self.cluster.write([Outgoing(f"{APP}.signals", partition, None, encode(asked))], ())
        self.world.tell(f"asked: {move.within} of {move.place} from {move.giver} to {target or 'anybody'}")

    async def deal(self, rng: random.Random) -> None:
        """Each source partition is dealt out over all who work: so several have parts of each."""
        if await self.drawn(rng) is None:
            return
        workers = [process for process in self.world.workers() if process.incarnation]
        for place in self.world.sources:
            bounds = even_bounds(workers[0].factors[place.topic])
            for i, (first, end) in enumerate(pairwise(bounds)):
                taker = workers[i * len(workers) // (len(bounds) - 1)]
                for holder in {c.incarnation for a, b, c in self._pieces(place) if a < end and first < b}:
                    if holder not in (NOBODY, taker.incarnation):
                        self.ask(rng, Move(place, KeyRange(first, end), holder, taker.incarnation))
        self.world.reached["dealt out"] += 1

    def _pieces(self, place: TopicPartition) -> list[tuple[int, int, Holder]]:
        cells = self.world.watch.cells.get(place)
        return [] if cells is None else list(cells.pieces())

    async def move(self, rng: random.Random) -> None:
        """One or several at once, under load."""
        if await self.drawn(rng) is None:
            return
        for _ in range(rng.choice((1, 1, 2, 4))):
            if (move := self.draw(rng)) is not None:
                self.write(rng, move.place)
                self.ask(rng, move, to_anybody=rng.random() < 0.2)

    async def move_what_is_stuck(self, rng: random.Random) -> None:
        """Of a range that moves some records do not come to their end: their handlers never do by themselves."""
        if (move := await self.drawn(rng)) is None or move.place.topic == BILLS:
            return
        values = [msgspec.json.encode(Work(number, hangs=ATTEMPTS)) for number in self._numbers(rng, 4)]
        self._append(rng, move.place, values)
        await asyncio.sleep(0.05)
        whole = next((r for r in self.held(move.place, move.giver) if r.contains(move.within.first)), move.within)
        self.ask(rng, move._replace(within=whole))

    # --- load ------------------------------------------------------------------------------------------------------

    def write(self, rng: random.Random, place: TopicPartition) -> None:
        """Records of a source partition, so that there is work while something of it moves."""
        numbers = self._numbers(rng, rng.randint(3, 12))
        values = [draw_work(rng, number, is_sync=place.topic == BILLS, trouble=0.05) for number in numbers]
        self._append(rng, place, values)

    def _numbers(self, rng: random.Random, count: int) -> range:
        first = rng.randrange(*NUMBERS)
        return range(first, first + count)

    def _append(self, rng: random.Random, place: TopicPartition, values: Sequence[bytes | None]) -> None:
        at_ms = EPOCH_MS + rng.randrange(4 * TTL_MS) if self.world.mix.stateful else None
        records = [Outgoing(*place, b"k%d" % rng.randrange(40), value, timestamp=at_ms) for value in values]
        self.cluster.write(records, ())
