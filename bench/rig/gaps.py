"""PURE. The times between marks that follow each other, and percentiles."""

from collections.abc import Iterable, Sequence
from itertools import pairwise


def gaps(times: Iterable[float], since_s: float, until_s: float) -> list[float]:
    """The times between marks that follow each other, of those that lasted into ``[since_s, until_s)``."""
    found = sorted(times)
    if found and found[-1] < until_s:
        found.append(until_s)
    return [after - before for before, after in pairwise(found) if after > since_s and before < until_s]


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so large a share of all does not exceed; 0 where there is none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0
