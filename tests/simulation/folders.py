"""Local copies of state as processes find them: of any age, and written only as far as a process lived."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from keylanes.brokers.protocol import TopicPartition
from keylanes.keyrange.ranges import KeyRange
from keylanes.keyrange.steps import Steps
from keylanes.state.memory import MemoryCopies, MemoryCopy
from keylanes.state.rocks import RocksError
from keylanes.state.tables import Change, LocalCopy, Mark, Marker, StoreInfo

LOST = 0.2
"""How often a process begins with an empty folder."""

Step: TypeAlias = "tuple[str, int, tuple[Change, ...], tuple[Mark, ...], KeyRange | None]"
"""One write or clearing: topic, partition, changes and marks, or the range that was cleared."""


class Folder:
    """A folder, and the steps that made it: a machine that loses power may forget the last of them."""

    def __init__(self) -> None:
        self.copies = MemoryCopies()
        self.steps: list[Step] = []

    def lose(self, rng: random.Random) -> int:
        """Forget some of the last steps, which were written and not synced; how many."""
        lost = rng.randint(0, min(len(self.steps), rng.choice((1, 5, 1_000))))
        if lost:
            del self.steps[-lost:]
            copies = MemoryCopies()
            copies.declare(self.copies.stores())
            for topic, partition, changes, marks, cleared in self.steps:
                if cleared is None:
                    copies.copy(topic, partition).write(changes, marks)
                else:
                    copies.copy(topic, partition).clear(cleared)
            self.copies = copies
        return lost

    def wipe(self) -> None:
        """Nothing of it is left."""
        self.copies, self.steps = MemoryCopies(), []


class Folders:
    """All folders of a world. A process takes one that no other is using, mostly."""

    def __init__(self) -> None:
        self.all: list[Folder] = []
        self.used: list[Folder] = []

    def take(self, rng: random.Random) -> Folder:
        """An old folder that is free, or a new one."""
        free = [folder for folder in self.all if folder not in self.used]
        if not free or rng.random() < LOST:
            free = [Folder()]
            self.all += free
        folder = rng.choice(free)
        self.used.append(folder)
        return folder

    def give_back(self, folder: Folder) -> None:
        """The process has ended."""
        self.used.remove(folder)


class LivingCopies:
    """A folder in the hands of a process; ``may_write`` False: the process is dead, and nothing more comes here.
    ``may_write`` raises what a disk raises that takes no more. ``writes`` and ``clears`` are told of each write and
    clearing, with the markers of before; ``marks`` behind a write of markers, with those of before.
    """

    def __init__(
        self,
        folder: Folder,
        may_write: Callable[[], bool],
        writes: Callable[[TopicPartition, Steps[Marker], Sequence[Change]], None],
        clears: Callable[[TopicPartition, Steps[Marker], KeyRange], None],
        marks: Callable[[TopicPartition, Steps[Marker], Sequence[Mark], LocalCopy], None],
    ) -> None:
        self.folder, self.may_write, self.writes, self.clears, self.marks = folder, may_write, writes, clears, marks

    def copy(self, topic: str, partition: int) -> "LivingCopy":
        return LivingCopy(self, topic, partition)

    def declare(self, stores: Sequence[StoreInfo]) -> None:
        self.folder.copies.declare(stores)

    def close(self) -> None:
        """Nothing: others will take the folder."""


class LivingCopy:
    """One copy of it."""

    def __init__(self, copies: LivingCopies, topic: str, partition: int) -> None:
        self.copies, self.topic, self.partition = copies, topic, partition
        self._place = TopicPartition(topic, partition)
        plain = self._plain
        self.get, self.get_many, self.page = plain.get, plain.get_many, plain.page

    @property
    def _plain(self) -> MemoryCopy:
        return self.copies.folder.copies.copy(self.topic, self.partition)

    def markers(self) -> Steps[Marker]:
        return self._plain.markers()

    def write(self, changes: Iterable[Change], marks: Iterable[Mark] = ()) -> None:
        if self.copies.may_write():
            step, before = (tuple(changes), tuple(marks)), self.markers()
            self.copies.writes(self._place, before, step[0])
            self._plain.write(*step)
            self.copies.marks(self._place, before, step[1], self._plain)
            self.copies.folder.steps.append((self.topic, self.partition, *step, None))

    def clear(self, within: KeyRange) -> None:
        if self.copies.may_write():
            self.copies.clears(self._place, self.markers(), within)
            self._plain.clear(within)
            self.copies.folder.steps.append((self.topic, self.partition, (), (), within))


def disk_full() -> RocksError:
    """What the copies in a folder raise when its disk takes no more."""
    return RocksError("the disk that holds the folder is full; free some space, then start again")
