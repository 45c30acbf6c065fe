"""PURE. Pairs of runs: the order in which they run, their ratios, and whether the current checkout is slower than BASE.

A *round* of a workload is three runs: the current checkout, BASE, and BASE again. BASE runs in the middle, and every
other round runs backwards. So each of the two others stands beside BASE, as often before as behind::

    current, base, again | again, base, current | current, base, again | …

A round is two pairs, with a ratio of processor time per record each: current / base and again / base. The ratios
again / base show what the ratios current / base would be if nothing had changed. The current checkout is *no slower*
when the median of current / base is at most ``MEDIAN_MAX`` or lies in the range of again / base.

By simulation with lognormal noise: with ``ROUNDS_MIN`` rounds noise alone breaks this rule in at most 2 of 100
comparisons, with two rounds in a quarter of them. More rounds also widen the range of again / base, so they find small
changes no better.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

CURRENT, BASE, AGAIN = "current", "BASE", "BASE again"
SIDES = (CURRENT, BASE, AGAIN)
MEDIAN_MAX = 1.02
ROUNDS_MIN = 7


class Round(NamedTuple):
    """Three runs of a workload. Rounds are numbered from 0 on."""

    number: int
    workload: str

    @property
    def sides(self) -> tuple[str, ...]:
        """In the order in which they run."""
        return SIDES[::-1] if self.number % 2 else SIDES


class Finding(NamedTuple):
    """The rounds of one workload, at least one: microseconds of processor time per record, in the order of SIDES."""

    rounds: Sequence[tuple[float, float, float]]

    @property
    def ratios(self) -> list[float]:
        """Of the current checkout against BASE, by round."""
        return [current / base for current, base, _ in self.rounds]

    @property
    def again(self) -> list[float]:
        """Of BASE against itself, by round."""
        return [again / base for _, base, again in self.rounds]

    @property
    def is_no_slower(self) -> bool:
        """The verdict, by the rule at the top of this module."""
        middle = median(self.ratios)
        return middle <= MEDIAN_MAX or min(self.again) <= middle <= max(self.again)


def rounds_of(count: int, workloads: Sequence[str]) -> list[Round]:
    """All rounds in their order. The workloads take turns: a bad minute of the machine spoils one round of each."""
    return [Round(number, workload) for number in range(count) for workload in workloads]


def findings(rounds: Iterable[Round], runs: Iterable[Mapping[str, Any]]) -> dict[str, Finding]:
    """By workload, of those of these rounds whose three runs are among the ``runs`` of a book. There is no finding of a
    workload without such a round.
    """
    cpu_us = {(one["round"], one["workload"], one["arm"]): one["figures"]["cpu_us_per_record"] for one in runs}
    found: dict[str, list[tuple[float, float, float]]] = {}
    for one in rounds:
        current, base, again = (cpu_us.get((*one, side)) for side in SIDES)
        if current and base and again:
            found.setdefault(one.workload, []).append((current, base, again))
    return {workload: Finding(whole) for workload, whole in found.items()}
