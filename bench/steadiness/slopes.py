"""PURE. Whether something grows: a straight line through its samples, and what it rises by while they were taken.

Judged are the samples of the last three quarters of the time: before that caches fill up, and the broker warms up. A
line is fitted by least squares; what it rises by from the first to the last of these samples is compared with a bound,
a share of their median but at least an amount. A rise counts only when it is more than twice its standard error: what
goes up and down again grows by nothing.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

FIRST_SHARE = 0.25
ERRORS = 2.0
SAMPLES_MIN = 4
MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Line:
    """``value`` = ``start`` + ``slope`` × seconds; ``error``: the standard error of the slope."""

    start: float
    slope: float
    error: float


def fitted(seconds: Sequence[float], values: Sequence[float]) -> Line:
    """The line of least squares; raises ValueError for less than three samples."""
    if len(seconds) < 3:
        raise ValueError(f"a line with an error needs three samples; seen {len(seconds)}")
    middle, mean = statistics.fmean(seconds), statistics.fmean(values)
    wide = sum((at - middle) ** 2 for at in seconds)
    slope = sum((at - middle) * (v - mean) for at, v in zip(seconds, values, strict=True)) / wide
    start = mean - slope * middle
    rest = sum((v - start - slope * at) ** 2 for at, v in zip(seconds, values, strict=True))
    return Line(start=start, slope=slope, error=math.sqrt(rest / (len(seconds) - 2) / wide))


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A figure of the samples may rise by ``share`` of its median, or by ``free`` if that is more."""

    name: str
    title: str
    unit: str
    share: float
    free: float
    scale: float = 1.0


BOUNDS = (
    Bound(name="rss_bytes", title="memory", unit="MiB", share=0.03, free=4 * MIB, scale=MIB),
    Bound(name="handles", title="file handles", unit="", share=0.05, free=3),
    Bound(name="offset_log_per_record", title="offset log, bytes per record", unit="", share=0.1, free=0.02),
    Bound(name="changelog_per_record", title="changelog, bytes per record", unit="", share=0.05, free=0.5),
    Bound(name="state_bytes", title="folder of the state", unit="MiB", share=0.1, free=16 * MIB, scale=MIB),
    Bound(name="late_ms", title="lag behind the timetable", unit="ms", share=0.1, free=200),
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a figure rose by, and what it may."""

    bound: Bound
    median: float
    rise: float
    error: float
    allowed: float
    seconds: float

    @property
    def grows(self) -> bool:
        """More than it may, and by more than chance."""
        return self.rise > self.allowed and self.rise > ERRORS * self.error

    def __str__(self) -> str:
        scale, unit = self.bound.scale, f" {self.bound.unit}" if self.bound.unit else ""
        rise, error, allowed, median = (v / scale for v in (self.rise, self.error, self.allowed, self.median))
        return (
            f"{'GROWS' if self.grows else 'holds'}: {self.bound.title}: median {median:.4g}{unit}, by a line through "
            f"the last {self.seconds:,.0f} s {rise:+.3g} ± {error:.2g}{unit} (≤ {allowed:.3g})"
        )


def judge(samples: Sequence[Mapping[str, float]]) -> Iterator[Verdict]:
    """A verdict for each figure; raises ValueError when there are too few samples."""
    end_s = samples[-1]["at_s"] if samples else 0.0
    kept = [sample for sample in samples if sample["at_s"] >= FIRST_SHARE * end_s]
    if len(kept) < SAMPLES_MIN:
        raise ValueError(f"too few samples to judge: {len(kept)}, {SAMPLES_MIN} are needed")
    seconds = [sample["at_s"] for sample in kept]
    for bound in BOUNDS:
        values = [sample[bound.name] for sample in kept]
        line, median, passed = fitted(seconds, values), statistics.median(values), seconds[-1] - seconds[0]
        yield Verdict(
            bound=bound,
            median=median,
            rise=line.slope * passed,
            error=line.error * passed,
            allowed=max(bound.share * abs(median), bound.free),
            seconds=passed,
        )


class Written:
    """Bytes that were written to a log, seen from its files: the cleaner takes away from them, and that is no minus.

    Only what was the last file of a partition is looked at, and what came after it: the cleaner leaves that alone.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._last: dict[str, tuple[str, int]] = {}

    def look(self, sizes: Mapping[tuple[str, str], int]) -> int:
        """Sizes by (partition, file), whose names follow each other; all bytes so far."""
        for (partition, name), size in sorted(sizes.items()):
            last, size_before = self._last.get(partition, ("", 0))
            if name >= last:
                self.bytes += max(size - (size_before if name == last else 0), 0)
                self._last[partition] = (name, size)
        return self.bytes


def of_intervals(totals: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Samples with rates, from samples with totals: of the time since the sample before. The first one is only that."""
    found = []
    for before, after in pairwise(totals):
        passed = {name: after[name] - before[name] for name in after if name in before}
        records = max(passed["records"], 1)
        rates = {
            "per_second": passed["records"] / passed["at_s"],
            "cpu_us_per_record": passed["cpu_s"] / records * 1e6,
            "offset_log_per_record": passed["offset_log_bytes"] / records,
            "changelog_per_record": passed["changelog_bytes"] / records,
            "event_bytes_per_record": passed["event_bytes"] / records,
        }
        found.append({**after, **rates})
    return found
