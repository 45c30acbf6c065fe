"""One partition and more and more members: what they read, what that costs, and whether each of them works.

The partition is parted evenly, as an operator would ask for it. The source is loaded at a steady rate. Handler "wait"
waits for 5 ms, so all members together have to keep up; "spin" uses 100 µs of the processor for each record, and gets
more than one process can do.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from handing_over.sizes import Size
from handing_over.stage import Sample, Stage, Work, begun, cut, names_of, said, staged
from keylanes.keyrange.hashing import SPACE_END
from rig.child import run_coroutine
from rig.ground import Ground
from rig.logs import ahead_s
from rig.notes import Notes, Points

FACTOR = 64
WAIT_MS, WAIT_RATE = 5.0, 8_000.0
SPIN_US, SPIN_RATE, SPIN_S = 100.0, 14_000.0, 10.0
"""The load of "spin" lasts so long; what it leaves is worked off behind it."""
WINDOW_S = 10.0
SHARED_S_MAX = 60.0


def run(ground: Ground, arm: str, suffix: str, size: Size) -> dict[str, Any]:
    """The figures of an arm. Raises WrongRun."""
    handler, members = arm.split(", ")
    is_wait = handler == "wait"
    seconds, rate = (size.load_s, WAIT_RATE) if is_wait else (SPIN_S, SPIN_RATE)
    work = Work(
        partitions=1,
        factor=FACTOR,
        wait_ms=WAIT_MS if is_wait else 0.0,
        spin_us=0.0 if is_wait else SPIN_US,
        records_max=int(rate * (seconds + WINDOW_S)),
    )
    with staged(ground, f"amplification-{suffix}", work) as stage:
        return run_coroutine(_run(stage, int(members), rate, seconds))


async def _run(stage: Stage, members: int, rate: float, seconds: float) -> dict[str, Any]:
    names = names_of(members)
    async with begun(stage, *names) as logs:
        await stage.steady(logs)
        cells = cut(Points(0, 0, SPACE_END), FACTOR)
        layout = {}
        for number, name in enumerate(names):
            own = cells[number * FACTOR // members : (number + 1) * FACTOR // members]
            layout[Points(0, own[0].first, own[-1].end)] = name
        await logs.share(layout, SHARED_S_MAX)
        said(f"{members} members share the partition; {rate:,.0f} records/s for {seconds:g} s")
        began_s = stage.begin_load(stage.phase(rate))
        await logs.watch(seconds)
        ended_s = began_s + seconds
        records = stage.end_load()
        done_s = await stage.handled(logs, records)
        await logs.watch(0.5)
        known = logs.names()
        stage.stop(*names)
        commits = [(known.get(one.incarnation, ""), one.at_ms / 1e3 - ahead_s()) for one in logs.commits if one.spans]
    notes = stage.proven(logs)
    samples = {name: stage.samples(name) for name in names}
    return figures_of(notes, samples, commits, records, (began_s, ended_s, done_s))


def figures_of(
    notes: Sequence[Notes],
    samples: dict[str, list[Sample]],
    commits: Sequence[tuple[str, float]],
    records: int,
    times_s: tuple[float, float, float],
) -> dict[str, Any]:
    """Of a run. ``commits``: who committed when; ``times_s``: when the load began and ended, and when all was handled,
    all by the monotonic clock.
    """
    began_s, ended_s, done_s = times_s
    handled = sum(len(of.within(int(began_s * 1e9), int(done_s * 1e9))) for of in notes)
    last_s = max(of.ended_ns[-1] / 1e9 for of in notes if of.ended_ns)
    cpu_s = sum(at(of, "cpu_s", last_s) - at(of, "cpu_s", began_s) for of in samples.values())
    windows = [began_s + WINDOW_S * n for n in range(int((ended_s - began_s + 1e-6) / WINDOW_S))]
    own = [
        {of.who: len(of.within(int(since_s * 1e9), int((since_s + WINDOW_S) * 1e9))) for of in notes}
        for since_s in windows
    ]
    made = [
        {of.who: sum(who == of.who and since_s <= at_s < since_s + WINDOW_S for who, at_s in commits) for of in notes}
        for since_s in windows
    ]
    return {
        "records": records,
        "per_second": handled / (last_s - began_s),
        "late_s": last_s - ended_s,
        "amplification": sum(of[-1]["records_read"] for of in samples.values()) / records,
        "cpu_us_per_record": cpu_s / handled * 1e6,
        "windows": len(windows),
        "window_records_least": min((min(window.values()) for window in own), default=0),
        "window_commits_least": min((min(window.values()) for window in made), default=0),
        "shares": {of.who: len(of.ended_ns) / records for of in notes},
    }


def at(samples: Sequence[Sample], name: str, at_s: float) -> float:
    """What was told then, between two samples in proportion."""
    times = [sample["at_s"] for sample in samples]
    place = bisect_left(times, at_s)
    if place in (0, len(samples)):
        return samples[min(place, len(samples) - 1)][name]
    before, after = samples[place - 1], samples[place]
    share = (at_s - before["at_s"]) / (after["at_s"] - before["at_s"])
    return before[name] + share * (after[name] - before[name])
