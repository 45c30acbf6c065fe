"""What befalls a hand-over at each of its steps: the giver, the taker, the coordinator, and the ranges themselves.

A strike is a move that an operator asks for, and a trap at one of its steps. It is counted when the trap springs.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from keylanes.brokers.simulated.network import Fault, RequestKind
from keylanes.keyrange.ranges import KeyRange
from keylanes.offsets.control import LEARNER
from keylanes.offsets.control_events import CopyAsked, RangesGranted, ReleaseAsked
from keylanes.offsets.events import Event, RangesReleased, WorkersCut
from keylanes.offsets.signals import Copies, Signal
from keylanes.runtime.watch.steps import Step

from .moving import Move, Moving
from .process import APP, Process
from .steps import (
    ASKED,
    CHANGELOG,
    COORDINATOR,
    COPIED,
    COPYING,
    GIVER,
    GRANTED,
    PARTS,
    RELEASED,
    RELEASING,
    RESTORING,
    STRIKES,
    TAKEN_UP,
    TAKER,
    WINDING,
    Strike,
    can_meet,
)

if TYPE_CHECKING:
    from .world import World

SHORT, LONG = (0.1, 0.6), (1.2, 2.0)
"""In sessions: how long somebody stands still."""
TRIES: Final = 3
WAITED_SESSIONS: Final = 1.5
"""So long it is waited for a step."""
STEPS_AT: Final[dict[Step, tuple[str, str]]] = {"winding": (GIVER, WINDING), "granted": (TAKER, RESTORING)}
"""What a process tells of itself, and at which step of a hand-over that is for whom."""


@dataclass(eq=False)
class Trap:
    """At a step of a move something is to happen. ``has_sprung``: it has come to that."""

    move: Move
    strike: Strike
    befall: Callable[[], None]
    has_sprung: asyncio.Event = field(default_factory=asyncio.Event)


class HandOvers:
    """Of one world."""

    def __init__(self, world: "World", moving: Moving) -> None:
        self.world, self.moving, self.loop = world, moving, world.loop
        self._traps: list[Trap] = []
        self._losing: set[asyncio.Task[None]] = set()
        """Each waits until an answer is lost."""
        self._nobodys = contextvars.Context()
        """What is begun here is no process's: it goes on when that stands still."""

    # --- what is seen ----------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether there is a trap."""
        return bool(self._traps)

    def control(self, event: Event) -> None:
        """An event of the control log was written."""
        match event:
            case CopyAsked(role=role) if role == LEARNER:
                self._at(COPYING, event, event.incarnation, [KeyRange(b.first, b.end) for b in event.bands])
            case ReleaseAsked():
                self._at(ASKED, event, event.incarnation, [KeyRange(event.first, event.end)])
            case RangesGranted():
                self._at(GRANTED, event, event.incarnation, [KeyRange(b.first, b.end) for b in event.bands])

    def said(self, signal: Signal) -> None:
        """A signal was written."""
        for one in signal.copies if isinstance(signal, Copies) else ():
            asked = self.world.watch.copied.copies.get(one.move)
            if one.is_ready and asked is not None and asked.role == LEARNER:
                self._at(COPIED, asked, asked.incarnation, [KeyRange(b.first, b.end) for b in asked.bands])

    def produced(self, events: Iterable[Event]) -> None:
        """Events lie in a transaction that is not decided."""
        for event in events:
            if isinstance(event, RangesReleased):
                self._at(RELEASING, event, event.incarnation, [KeyRange(b.first, b.end) for b in event.bands])

    def decided(self, events: Iterable[Event]) -> None:
        """A transaction with these is committed."""
        for event in events:
            if isinstance(event, RangesReleased):
                self._at(RELEASED, event, event.incarnation, [KeyRange(b.first, b.end) for b in event.bands])
            elif isinstance(event, WorkersCut):
                self._at(TAKEN_UP, event, event.incarnation, [KeyRange(event.bounds[0], event.bounds[-1])])

    def heard(self, process: Process, step: Step) -> None:
        """A process has come to a step of its own."""
        part, at = STEPS_AT.get(step, ("", ""))
        for trap in self._traps:
            who = trap.move.giver if part == GIVER else trap.move.taker
            if trap.strike.step == at and process.incarnation == who and _is_at(process, trap.move, at):
                self._spring(trap)
                return

    def _at(
        self,
        step: str,
        event: CopyAsked | ReleaseAsked | RangesGranted | RangesReleased | WorkersCut,
        who: int,
        ranges: Iterable[KeyRange],
    ) -> None:
        is_giver = step in (ASKED, RELEASING, RELEASED)
        for trap in self._traps:
            move = trap.move
            is_there = move.place == (event.topic, event.partition) and who == (move.giver if is_giver else move.taker)
            if trap.strike.step == step and is_there and any(within.overlaps(move.within) for within in ranges):
                self._spring(trap)
                return

    def _spring(self, trap: Trap) -> None:
        if trap in self._traps and self.world.is_happening:
            self._traps.remove(trap)
            trap.has_sprung.set()
            self.loop.call_soon(trap.befall, context=self._nobodys)  # what is told now is not through

    # --- what befalls ----------------------------------------------------------------------------------------------

    async def strike(self, name: str, rng: random.Random) -> None:
        """Have something move, and something happen at a step of that; some moves do not come to it, and another one is
        tried.
        """
        strike, session_s = STRIKES[name], self.world.happenings.session_s
        if not can_meet(strike, stateful=self.world.mix.stateful):
            return
        before = self.world.reached[name]
        for _ in range(TRIES):
            if not self.world.is_happening or (move := await self.moving.drawn(rng)) is None:
                return
            self.moving.write(rng, move.place)
            trap = Trap(move, strike, partial(self._befall, strike, move, rng))
            self._traps.append(trap)
            self.moving.ask(rng, move)
            await _within(WAITED_SESSIONS * session_s, trap.has_sprung.wait())
            if trap in self._traps:
                self._traps.remove(trap)
            elif self._losing:
                await asyncio.wait(self._losing)
            await asyncio.sleep(0)  # what it sprang upon comes behind that
            if self.world.reached[name] > before:
                return

    def _befall(self, strike: Strike, move: Move, rng: random.Random) -> None:
        process = self._victim(strike.part, move)
        if not self.world.is_happening or (process is None and strike.part in PARTS):
            return
        self.world.tell(f"{strike}: {process.name if process else move.place.topic}")
        happenings, session_s = self.world.happenings, self.world.happenings.session_s
        if strike.part == CHANGELOG:
            happenings.compact(rng)
        elif process is None:
            happenings.grow(rng, move.place.topic)
        elif strike.fault in ("is killed", "loses its folder"):
            process.loses_folder = strike.fault == "loses its folder"
            happenings.dies(process)
            self.world.start()
        elif strike.fault.startswith("stands still"):
            low, high = SHORT if strike.fault == "stands still" else LONG
            if process.is_paused:
                return
            self.world.count_fault("pause")
            happenings.for_so_long(process.pause, process.resume, session_s * rng.uniform(low, high))
        elif strike.fault == "is cut off":
            happenings.cut_off_from_a_log(rng, process)
        elif strike.fault == "loses an answer":
            self._lose_an_answer(strike, process)
            return  # it is counted when it is lost
        else:
            self._reshape(strike, process, move, rng)
        self.world.reached[str(strike)] += 1

    def _victim(self, part: str, move: Move) -> Process | None:
        if part == COORDINATOR:
            return self.world.coordinator()
        who = move.giver if part == GIVER else move.taker if part == TAKER else 0
        return next((process for process in self.world.alive() if who and process.incarnation == who), None)

    def _lose_an_answer(self, strike: Strike, process: Process) -> None:
        """The next thing that it writes is carried out, and it does not hear of it."""
        network = self.world.cluster.network
        if strike.part == COORDINATOR:
            network.arm(RequestKind.PRODUCE, Fault.LOSE_REPLY, f"{APP}.control", process.name)
        else:
            network.arm(RequestKind.END_TXN, Fault.LOSE_REPLY, client=process.name)

        async def caught() -> None:
            if await _within(self.world.happenings.session_s, network.caught()):
                self.world.reached[str(strike)] += 1
                self.world.count_fault("an answer lost at a step")

        losing = self.loop.create_task(caught())
        self._losing.add(losing)
        losing.add_done_callback(self._losing.discard)

    def _reshape(self, strike: Strike, process: Process, move: Move, rng: random.Random) -> None:
        kind = strike.fault.removesuffix("s")
        reshaped = self.world.happenings.reshape(rng, kind, process, move.place)
        self.world.happenings.passings.append(self.loop.create_task(reshaped))


async def _within(seconds: float, work: Coroutine[Any, Any, object]) -> bool:
    """Whether it came to its end in so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        return False
    return True


def _is_at(process: Process, move: Move, step: str) -> bool:
    """Whether a process is at a step of this move, which it has come to for some move."""
    if step != WINDING:
        return True
    leaving = process.member.work.cycle.range_changes.wishes.leaving
    return any(wish.dispatch.place == move.place and wish.within.overlaps(move.within) for wish in leaving)
