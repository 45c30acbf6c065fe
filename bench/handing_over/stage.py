"""One run's members, load and logs, from its first process to the proof that every record was handled rightly."""

import contextlib
import json
import mmap
import os
import signal
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from handing_over.load import keys_of
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import even_bounds
from rig.broker import known
from rig.counts import read_counts
from rig.drivers import Driver, run_module, run_peer
from rig.errors import WrongRun
from rig.ground import Ground
from rig.logs import Logs, opened
from rig.notes import NOTE_BYTES, Notes, Points, Unproven, count_of, notes_of, prove, prove_all_came

SESSION_MS = 10_000
START_S_MAX, END_S_MAX, FILL_S_MAX = 120.0, 120.0, 1_800.0
LOOK_S = 0.1
CALM_S = 1.5
"""For so long everything has an owner that works on it, and nothing is asked for, before a group is steady."""
NOTES_MORE = 1_000

FILL_PER_S = 4_000.0
TAIL_BYTES = 2_000
"""Of samples: more than two of them."""

Sample = dict[str, float]
NOTHING: Sample = {"records": 0}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be handled. ``records_max``: at most so many records come of one process. ``entries``: of state, for
    each key, 0 for a handler that does nothing; ``settings``: of the members, beside those that all have.
    """

    partitions: int
    factor: int
    records_max: int
    keys: int = 20_000
    entries: int = 0
    change_every: int = 1
    """One of so many records of a key changes its state."""
    heavy: tuple[int, int, int] = (0, 0, SPACE_END)
    """Source partition (-1: any) and points of the keys with so many entries; the others have one."""
    settings: dict[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    """What starts a member that is none of ours, an order behind it."""


@dataclass
class Stage:
    """A run: its processes, in a folder of its own."""

    bootstrap: str
    app: str
    topic: str
    folder: Path
    work: Work
    running: dict[str, Driver] = field(default_factory=dict)
    all_started: dict[str, int] = field(default_factory=dict)
    """How often each was started."""
    load: Driver | None = None

    # --- members -----------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start members. One that ran before goes on with its state, and notes in a file of its own."""
        for name in names:
            if name in self.running:
                raise ValueError(f"{name!r} runs already")
            self.all_started[name] = self.all_started.get(name, 0) + 1
            work = self.work
            order: dict[str, Any] = {
                **self._order(),
                "group": self.app,
                "name": name,
                "notes": str(self._notes(name)),
                "samples": str(self._samples(name)),
                "notes_max": work.records_max + NOTES_MORE,
                "session_ms": SESSION_MS,
                "factor": work.factor,
                "entries": work.entries,
                "heavy": work.heavy,
                "change_every": work.change_every,
                "settings": {**work.settings, **({"state_folder": str(self.folder / "state")} if work.entries else {})},
                "folder": str(self.folder / "state" / name),
            }
            if work.command:
                self.running[name] = Driver(work.command, order, self.folder / name)
            else:
                self.running[name] = run_peer("handover_app.py", order, self.folder / name)

    def stop(self, *names: str) -> None:
        """Stop members in order, and wait for their end. Raises WrongRun."""
        for name in names:
            self.running[name].process.send_signal(signal.SIGTERM)
        for name in names:
            self.running.pop(name).end()

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.running.pop(name).kill()

    def look(self) -> None:
        """Raises WrongRun when a process has ended by itself."""
        for name, driver in self.running.items():
            if (code := driver.process.poll()) is not None:
                raise WrongRun(f"{name} ended with code {code}: {driver.last_words()}")

    def last(self, name: str, start: int = 0) -> Sample:
        """The newest sample of a member's process number ``start``, 0 for its newest process."""
        path = self._samples(name, start)
        if not path.exists():
            return NOTHING
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")[1:-1]
        return json.loads(lines[-1]) if lines else NOTHING

    def total(self, what: str) -> float:
        """One figure of the newest samples of all processes, as a sum."""
        starts = [(name, start) for name, count in self.all_started.items() for start in range(1, count + 1)]
        return sum(self.last(name, start).get(what, 0) for name, start in starts)

    def first_began_s(self, name: str) -> float | None:
        """When a member's record began that ended first; None: there was none."""
        if not self._notes(name).exists():
            return None
        with self._notes(name).open("rb") as file:
            first = notes_of(file.read(NOTE_BYTES), name)
        return first.began_ns[0] / 1e9 if first.began_ns else None

    # --- load --------------------------------------------------------------------------------------------------------

    def begin_load(self, *phases: dict[str, Any]) -> float:
        """Start the load with its first phase; when that began."""
        order = {**self._order(), "keys": self.work.keys, "phases": phases, "counts": str(self.folder / "counts")}
        self.load = run_module("handing_over.load", order, self.folder / "load")
        return float(self.load.event("phase", START_S_MAX)["at_s"])

    def next_phase(self) -> float:
        """Begin the next phase; when it began."""
        assert self.load is not None, "a load runs"
        self.load.process.send_signal(signal.SIGUSR1)
        return float(self.load.event("phase", START_S_MAX)["at_s"])

    def end_load(self) -> int:
        """End the load; how many records came."""
        assert self.load is not None, "a load runs"
        self.load.process.send_signal(signal.SIGTERM)
        records = int(self.load.event("result", END_S_MAX)["records"])
        self.load.end()
        return records

    @staticmethod
    def phase(per_second: float) -> dict[str, Any]:
        """A phase of a load that draws its keys."""
        return {"per_second": per_second, "is_once": False}

    @staticmethod
    def once(per_second: float = FILL_PER_S) -> dict[str, Any]:
        """A phase of a load that takes each key once."""
        return {"per_second": per_second, "is_once": True}

    def filled(self) -> int:
        """Wait until the phase that takes each key once has sent all; how many records there are."""
        assert self.load is not None, "a load runs"
        return int(self.load.event("all once", FILL_S_MAX)["records"])

    # --- the whole ---------------------------------------------------------------------------------------------------

    async def steady(self, logs: Logs, *, to_all: bool = False) -> None:
        """Wait until every member has joined, and everything has an owner that works on it. ``to_all``: and everybody
        has something. Raises WrongRun.
        """
        until_s, since_s = time.monotonic() + START_S_MAX, time.monotonic()
        while time.monotonic() - since_s < CALM_S:
            await logs.watch(LOOK_S)
            self.look()
            owners = {name for partition in range(self.work.partitions) for _, _, name in logs.holders(partition)}
            is_whole = "" not in owners and (not to_all or owners == {*self.running})
            if (
                not is_whole
                or {*logs.names().values()} != {*self.running}
                or logs.ledger.control.moves.release_requests
            ):
                since_s = time.monotonic()
            if time.monotonic() > until_s:
                raise WrongRun(f"no steady group within {START_S_MAX:g} s: {sorted(owners)} of {sorted(self.running)}")

    async def rested(self, logs: Logs, seconds: float) -> None:
        """Wait until nothing was asked for and no state was copied for so long. Raises WrongRun."""
        until_s, since_s = time.monotonic() + START_S_MAX, time.monotonic()
        while time.monotonic() - since_s < seconds:
            await logs.watch(LOOK_S)
            self.look()
            moves = logs.ledger.control.moves
            if moves.release_requests or moves.copies:
                since_s = time.monotonic()
            if time.monotonic() > until_s:
                raise WrongRun(
                    f"no rest within {START_S_MAX:g} s: {sorted(moves.release_requests)}, {sorted(moves.copies)}"
                )

    async def handled(self, logs: Logs, records: int, seconds_max: float = END_S_MAX) -> float:
        """Wait until all records were handled; the time then. Raises WrongRun."""
        return await self.until(logs, lambda: self.total("records") >= records, "all handled", seconds_max)

    async def until(self, logs: Logs, is_so: Callable[[], bool], what: str, seconds_max: float = END_S_MAX) -> float:
        """Wait for something; the time then. Raises WrongRun."""
        until_s = time.monotonic() + seconds_max
        while not is_so():
            await logs.watch(LOOK_S)
            self.look()
            if time.monotonic() > until_s:
                raise WrongRun(f"not within {seconds_max:g} s: {what}")
        return time.monotonic()

    def proven(self, logs: Logs) -> list[Notes]:
        """All notes, of a run that is over. Raises WrongRun unless every record was handled once and in order: whoever
        is expelled has not committed all, and others handle that again.
        """
        notes = self.all_notes()
        try:
            prove(notes, read_counts(self.folder / "counts"))
        except Unproven as error:
            expelled = [f"{change.party.instance} ({change.cause})" for change in logs.expelled() if change.party]
            raise WrongRun(f"{error}; expelled: {', '.join(expelled) or 'nobody'}") from None
        return notes

    def proven_all_came(self) -> list[Notes]:
        """All notes, of a run in which a process was killed, or is none of ours. Raises WrongRun unless every record
        was handled, once or more.
        """
        notes = self.all_notes()
        try:
            prove_all_came(notes, read_counts(self.folder / "counts"))
        except Unproven as error:
            raise WrongRun(str(error)) from None
        return notes

    def noted(self) -> int:
        """How many records were handled so far, also by processes that were killed before they told."""
        count = 0
        for name, starts in self.all_started.items():
            for start in range(1, starts + 1):
                with (
                    self._notes(name, start).open("rb") as file,
                    mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as raw,
                    memoryview(raw) as view,
                ):
                    count += count_of(view)
        return count

    def all_notes(self) -> list[Notes]:
        """Those of all processes, one that was started anew beside the one before it."""
        return [
            notes_of(self._notes(name, start).read_bytes(), name)
            for name, starts in self.all_started.items()
            for start in range(1, starts + 1)
        ]

    def points(self) -> "array[int]":
        """Of each key, by its number."""
        return array("Q", [key.point for key in keys_of(self.work.keys, self.work.partitions)])

    def end(self) -> None:
        """Nothing is left behind."""
        for driver in [*self.running.values(), *([self.load] if self.load else [])]:
            driver.kill()

    def _order(self) -> dict[str, Any]:
        return {"bootstrap": self.bootstrap, "topic": self.topic, "partitions": self.work.partitions}

    def _notes(self, name: str, start: int = 0) -> Path:
        return self.folder / f"notes-{name}-{start or self.all_started[name]}"

    def _samples(self, name: str, start: int = 0) -> Path:
        return self.folder / f"samples-{name}-{start or self.all_started[name]}"


@contextlib.contextmanager
def staged(ground: Ground, name: str, work: Work) -> Iterator[Stage]:
    """A fresh topic and group; all of it is gone afterwards."""
    with ground.scratch(f"handover-{name}") as folder:
        topic = f"handover-{name}"
        ground.make(topic, work.partitions)
        stage = Stage(ground.bootstrap, f"{topic}-app", topic, folder, work)
        try:
            yield stage
        finally:
            stage.end()


@contextlib.asynccontextmanager
async def begun(stage: Stage, *names: str) -> AsyncIterator[Logs]:
    """Its logs, once these members were started on a topic that the broker knows."""
    await known(stage.bootstrap, stage.topic)
    stage.start(*names)
    async with opened(stage.bootstrap, stage.app, stage.topic) as logs:
        yield logs


def cut(points: Points, parts: int) -> list[Points]:
    """Equal parts of points."""
    bounds = even_bounds(parts)
    within = [(a, b) for a, b in pairwise(bounds) if points.first <= a and b <= points.end]
    return [Points(points.partition, a, b) for a, b in within]


def names_of(count: int) -> list[str]:
    """Of so many members."""
    return [f"m{number}" for number in range(1, count + 1)]


def said(text: str) -> None:
    """Progress, for a person."""
    print(f"    {text}", file=sys.stdout, flush=True)
