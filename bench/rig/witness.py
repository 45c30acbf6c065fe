"""The witness of a run: a figure counts only when every record was handled exactly once, in order within its key."""

import time
from collections.abc import Sequence

from rig.records import PLACE


class Skipped(Exception):
    """An arm cannot run here; the text says why."""


class Witness:
    """Sees each record when its handler begins and ends, and keeps the clock: from the first one to the last.

    ``expected`` holds the keys of the records that shall come. Complete and in order means: each key's records began in
    the order of their numbers, none before the one before it had ended, and all of them came.
    """

    def __init__(self, expected: Sequence[int]) -> None:
        self.expected = [0] * (max(expected) + 1)
        for key in expected:
            self.expected[key] += 1
        self.next = [0] * len(self.expected)
        self.out_of_order: list[tuple[int, int]] = []
        self.handled = 0
        self.began_s = self.ended_s = self.began_cpu_s = self.pause_s_max = 0.0
        """Seconds of the performance counter; the longest time in which no handler ended."""

    def begin(self, value: bytes) -> int:
        """A handler began; the number of the key."""
        if not self.began_s:
            self.began_s = self.ended_s = time.perf_counter()
            self.began_cpu_s = time.process_time()
        key, number = PLACE.unpack_from(value)
        if self.next[key] != number:
            self.out_of_order.append((key, number))
        return int(key)

    def end(self, key: int) -> None:
        """A handler ended."""
        self.next[key] += 1
        self.handled += 1
        now = time.perf_counter()
        if now - self.ended_s > self.pause_s_max:
            self.pause_s_max = now - self.ended_s
        self.ended_s = now

    @property
    def seconds(self) -> float:
        """From the first record's begin to the last one's end."""
        return self.ended_s - self.began_s

    def cpu_us_per_record(self) -> float:
        """Microseconds of processor time of this process for each record so far: other work on the machine aside."""
        return (time.process_time() - self.began_cpu_s) / self.handled * 1e6

    def check(self) -> None:
        """Raises WrongRun unless everything came exactly once and in order per key."""
        if self.out_of_order:
            first = self.out_of_order[0]
            raise WrongRun(f"{len(self.out_of_order)} records out of order; the first (key, number): {first}")
        wrong = [k for k, (seen, wanted) in enumerate(zip(self.next, self.expected, strict=True)) if seen != wanted]
        if wrong:
            key = wrong[0]
            raise WrongRun(
                f"{len(wrong)} keys are incomplete: key {key} has {self.next[key]} of {self.expected[key]} records"
            )


class WrongRun(Exception):
    """A run that lost, doubled or reordered records: its figures are void."""
