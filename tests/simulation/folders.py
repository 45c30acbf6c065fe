"""Local copies of state as processes find them: of any age, and written only as far as a process lived."""

import random
from collections.abc import Callable, Iterable, Sequence

from keylanes.keyrange.ranges import KeyRange
from keylanes.keyrange.steps import Steps
from keylanes.state.memory import MemoryCopies, MemoryCopy
from keylanes.state.tables import Change, Mark, Marker, StoreInfo

LOST = 0.2
"""How often a process begins with an empty folder."""


class Folders:
    """All folders of a world. A process takes one that no other is using, mostly."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.all: list[MemoryCopies] = []
        self.used: list[MemoryCopies] = []

    def take(self) -> MemoryCopies:
        """An old folder that is free, or a new one."""
        free = [folder for folder in self.all if folder not in self.used]
        if not free or self.rng.random() < LOST:
            free = [MemoryCopies()]
            self.all += free
        folder = self.rng.choice(free)
        self.used.append(folder)
        return folder

    def give_back(self, folder: MemoryCopies) -> None:
        """The process has ended."""
        self.used.remove(folder)


class LivingCopies:
    """A folder in the hands of a process; ``may_write`` False: the process is dead, and nothing more comes here."""

    def __init__(self, folder: MemoryCopies, may_write: Callable[[], bool]) -> None:
        self.folder, self.may_write = folder, may_write

    def copy(self, topic: str, partition: int) -> "LivingCopy":
        return LivingCopy(self.folder.copy(topic, partition), self.may_write)

    def declare(self, stores: Sequence[StoreInfo]) -> None:
        self.folder.declare(stores)

    def close(self) -> None:
        """Nothing: others will take the folder."""


class LivingCopy:
    """One copy of it."""

    def __init__(self, copy: MemoryCopy, may_write: Callable[[], bool]) -> None:
        self.plain, self.may_write = copy, may_write
        self.get, self.get_many, self.page = copy.get, copy.get_many, copy.page

    def markers(self) -> Steps[Marker]:
        return self.plain.markers()

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        if self.may_write():
            self.plain.write(changes, marks)

    def clear(self, within: KeyRange) -> None:
        if self.may_write():
            self.plain.clear(within)
