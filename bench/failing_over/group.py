"""The processes of one run: started, told to stop, killed, and watched by what they note."""

import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from failing_over.notes import Note, notes_in, owners
from rig.drivers import Driver
from rig.errors import WrongRun

FRESH_S = 0.5
"""A partition is worked on if its newest note is younger."""
CALM_S = 2.0
"""For so long nothing may change hands before a group is steady."""
SHARES_DIFFER_MAX = 4
"""Partitions, of 20. Members of keylanes whose loads lie within a tenth of the mean are level."""
STEADY_SECONDS_MAX = 120.0
LOOK_S = 0.05


class Members:
    """``command``: starts a process of the arm, an order behind it. ``order``: what all of them are told."""

    def __init__(self, command: Sequence[str], order: Mapping[str, Any], folder: Path, partitions: int) -> None:
        self.command, self.order, self.folder, self.partitions = command, order, folder, partitions
        self.running: dict[str, Driver] = {}
        self._read: dict[str, int] = {}
        self.notes: list[Note] = []

    def start(self, name: str) -> None:
        """A process of that name; its notes go on where those of its predecessor end."""
        order = {**self.order, "name": name, "notes": str(self._file(name))}
        self.running[name] = Driver(self.command, order, self.folder / name)

    def stop(self, name: str) -> None:
        """SIGTERM, and an end in order; Java ends with 143 when it was told to. Raises WrongRun."""
        driver = self.running.pop(name)
        driver.process.send_signal(signal.SIGTERM)
        if (code := driver.process.wait(60)) not in (0, 128 + signal.SIGTERM):
            raise WrongRun(f"{name} ended with code {code}: {driver.last_words()}")

    def kill(self, *names: str) -> None:
        """SIGKILL of all of them at the same time."""
        for name in names:
            self.running[name].process.kill()
        for name in names:
            self.running.pop(name).process.wait()

    def look(self) -> list[Note]:
        """All notes so far."""
        for path in sorted(self.folder.glob("notes-*")):
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                raw = file.read()
            found = notes_in(raw, path.name.removeprefix("notes-"))
            self._read[path.name] = self._read.get(path.name, 0) + len(found) * 20
            self.notes += found
        return self.notes

    def owned(self) -> dict[str, set[int]]:
        """Who works on which partitions, by the newest notes."""
        held: dict[str, set[int]] = {name: set() for name in self.running}
        for partition, note in owners(self.look()).items():
            held.setdefault(note.who, set()).add(partition)
        return held

    def steady(self) -> dict[str, set[int]]:
        """Wait until every partition is worked on, in shares that hardly differ, and nothing has changed hands
        for a while; who works on which. Raises WrongRun.
        """
        until_s, since_s, before = time.monotonic() + STEADY_SECONDS_MAX, time.monotonic(), dict[str, set[int]]()
        while time.monotonic() < until_s:
            held = self.owned()
            if held != before or not self._is_even(held):
                before, since_s = held, time.monotonic()
            elif time.monotonic() - since_s >= CALM_S:
                return held
            for name, driver in self.running.items():
                if (code := driver.process.poll()) is not None:
                    raise WrongRun(f"{name} ended with code {code}: {driver.last_words()}")
            time.sleep(LOOK_S)
        raise WrongRun(f"no steady group within {STEADY_SECONDS_MAX:g} s: {_sizes(self.owned())}")

    def last(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """A window, in which notes are read."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not until():
            time.sleep(LOOK_S)

    def end(self) -> None:
        """Nothing is left behind."""
        for driver in self.running.values():
            driver.kill()

    def _is_even(self, held: Mapping[str, set[int]]) -> bool:
        sizes = [len(held[name]) for name in self.running]
        is_fresh = all(time.monotonic() - note.at_s < FRESH_S for note in owners(self.notes).values())
        whole = sum(sizes) == self.partitions and not any(held[name] for name in held.keys() - self.running.keys())
        return is_fresh and whole and max(sizes) - min(sizes) <= SHARES_DIFFER_MAX

    def _file(self, name: str) -> Path:
        return self.folder / f"notes-{name}"


def _sizes(held: Mapping[str, Iterable[int]]) -> dict[str, int]:
    return {name: len(list(partitions)) for name, partitions in held.items()}
