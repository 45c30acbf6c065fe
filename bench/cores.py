"""What do several processes on one machine make of handlers that compute? ``app.run(processes=…)`` on one real Kafka.

    1000us, 100us   of processor time per record, on four partitions and on one, in one process and in several

The topics are filled beforehand. A run lasts from the first record that begins to the last that ends, over all
processes, and has figures only when every record was handled once and in order per key. Its *steady* part is from when
all were at work until the first of them has nothing left. On one partition the last records are handled while parts of
it are handed over. The arms of a round follow each other. Required: with 1,000 µs two processes reach 1.6 times the
steady rate of one.
"""

import sys
from collections.abc import Iterator
from statistics import median
from typing import Any

from rig.figures import Content
from rig.parts import Parts, Table, Verdict, figures
from spreading.run import SIZES, Arm, Size, run

PARTITIONS = (4, 1)
TIMES_MIN, OF_PART = 1.6, "1000us"
"""So many times the rate of one process two have to reach, of such a handler, where there are two cores."""
COLUMNS = (
    "partitions, processes", "records/s", "of one", "steady", "of one", "all at work s", "at work", "read", "CPU µs",
    "MiB", "handed over ms", "longest", "runs",
)  # fmt: skip
MIB = 1024 * 1024


def arms(part: str, size: Size) -> list[str]:
    """The arms of a part, as the book calls them."""
    return [Arm(partitions, n).name for partitions in PARTITIONS for n in size.processes[part]]


def tables(content: Content) -> list[Table]:
    """A table for each part."""
    return [_table(content, part) for part in BENCH.runs]


def _table(content: Content, part: str) -> Table:
    title = f"{part} of processor time per record, in several processes of one parent; medians, per record, of all"
    names = dict.fromkeys(run["arm"] for run in content["runs"] if run["workload"] == part and "figures" in run)
    return Table(part, title, COLUMNS, [row(content, part, Arm.of(name)) for name in names])


def row(content: Content, part: str, arm: Arm) -> list[Any]:
    """The figures of an arm, as its table shows them."""
    runs, cells = figures(content, part, arm.name), list[Any]([arm.name])
    for name in ("per_second", "steady_per_second"):
        reached = times(content, part, arm, name)
        cells += [middle(runs, name) or "", "" if reached is None else f"{reached:.2f} ×"]
    cells += [middle(runs, name) for name in ("spread_s", "at_work", "read", "cpu_us_per_record")]
    cells.append((middle(runs, "memory_bytes") or 0) / MIB)
    handed_over = [ms for one in runs for ms in one["handed_over_ms"]]
    return [*cells, median(handed_over) if handed_over else "", max(handed_over, default=""), len(runs)]


def middle(runs: list[dict[str, Any]], name: str) -> float | None:
    """The median of a figure; None where no run has it."""
    known = [one[name] for one in runs if one[name] is not None]
    return median(known) if known else None


def times(content: Content, part: str, arm: Arm, name: str) -> float | None:
    """How many times that of one process a figure is."""
    of_one = middle(figures(content, part, arm._replace(processes=1).name), name)
    own = middle(figures(content, part, arm.name), name)
    return own / of_one if own is not None and of_one else None


def judge(content: Content) -> Iterator[Verdict]:
    """The bars of which both sides were run."""
    for partitions in PARTITIONS:
        two = Arm(partitions, 2)
        in_all = times(content, OF_PART, two, "per_second")
        if in_all is not None:
            reached = times(content, OF_PART, two, "steady_per_second") or 0.0
            seen = f"two processes reach {reached:.2f} times the rate of one, {in_all:.2f} times over the whole run"
            text = f"{partitions} partition(s): {seen}; required {TIMES_MIN:g}"
            yield Verdict(OF_PART, text, reached >= TIMES_MIN)


BENCH = Parts(
    name="cores",
    doc=__doc__,
    runs={"1000us": run(1_000), "100us": run(100)},
    sizes=SIZES,
    arms=arms,
    rounds_of=lambda _, size: size.rounds,
    tables=tables,
    judge=lambda content: list(judge(content)),
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
