"""Members join and go under load: 1, 2, 4, 2 and 1. Told is when the work is even, and what was copied.

The same for keylanes and for Kafka Streams, so everything is told by what the members write: notes of records and
samples. The work is even from when each member has handled at least the ``even_share`` of a mean share in each
``LOOK_S``, and all of them what was due ``BEHIND_S_MAX`` ago, for ``CALM_S``. What is read of changelogs is counted in
the readers, and what of it is copied before it is owned by the members. What moved is the state of the keys that
another member handles afterwards than before.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from handing_over.carrying import FILLED_S_MAX
from handing_over.sizes import CHANGE_EVERY, COPY_BYTES_PER_S, ENTRY_BYTES, STEPS, Size, entries_of
from handing_over.stage import FILL_PER_S, Stage, Work, said, staged
from handing_over.stops import ended_of, gap_of_all_ms, stood
from keylanes.keyrange.hashing import SPACE_END
from rig.broker import known
from rig.child import run_coroutine
from rig.errors import WrongRun
from rig.ground import Ground
from rig.notes import Notes

FACTOR, KEYS, PARTITIONS = 16, 2_000, 8
LOOK_S, CALM_S, EVEN_S_MAX = 2.0, 6.0, 180.0
BEHIND_S_MAX = 1.0
BYTES = ("changelog_bytes", "copied_bytes")
ALL_POINTS = (-1, 0, SPACE_END)


class Due(NamedTuple):
    """What a load has sent: ``before`` records, and ``per_second`` since then."""

    before: int
    since_s: float
    per_second: float

    def at(self, when_s: float) -> float:
        """How many records by then."""
        return self.before + max(when_s - self.since_s, 0.0) * self.per_second


def run(ground: Ground, command: tuple[str, ...], suffix: str, size: Size, *, standbys: int) -> dict[str, Any]:
    """The figures of an arm. ``command``: what starts a member of it; (): ours. Raises WrongRun."""
    seconds = len(STEPS) * (size.watch_s + EVEN_S_MAX)
    work = Work(
        partitions=PARTITIONS,
        factor=FACTOR,
        keys=KEYS,
        records_max=KEYS + int(size.four_per_second * seconds),
        entries=entries_of(size.other_gb, KEYS),
        heavy=ALL_POINTS,
        change_every=CHANGE_EVERY,
        settings={"copy_bytes_per_s": COPY_BYTES_PER_S, "return_ms": 0, "standbys": standbys},  # who goes stays away
        command=command,
    )
    with staged(ground, f"scaling-{suffix}", work) as stage:
        return run_coroutine(_run(stage, size))


async def _run(stage: Stage, size: Size) -> dict[str, Any]:
    steps = list[dict[str, Any]]()
    await known(stage.bootstrap, stage.topic)
    stage.start("m1")
    stage.begin_load(stage.once(FILL_PER_S / 10), stage.phase(size.four_per_second))
    await handled(stage, stage.filled())
    due = Due(KEYS, stage.next_phase(), size.four_per_second)
    await even(stage, due, size.even_share)
    for before, count in pairwise(STEPS):
        began_s, before_bytes = time.monotonic(), [stage.total(what) for what in BYTES]
        names = [f"m{number}" for number in range(1, count + 1)]
        stage.start(*(name for name in names if name not in stage.running))
        stage.stop(*(name for name in list(stage.running) if name not in names))
        even_s = await even(stage, due, size.even_share) - began_s
        await asyncio.sleep(max(size.watch_s - (time.monotonic() - began_s), 0.0))
        ended_s = time.monotonic()
        read, copied = (stage.total(what) - so_far for what, so_far in zip(BYTES, before_bytes, strict=True))
        said(f"{before} to {count} members: even after {even_s:.1f} s, {read / 1e6:,.0f} MB of changelogs read")
        step: dict[str, Any] = {"before": before, "after": count, "even_s": even_s, "span": [began_s, ended_s]}
        steps.append({**step, "read_bytes": read, "copied_bytes": copied})
    records = stage.end_load()
    await handled(stage, records)
    stage.stop(*stage.running)
    notes, points = stage.proven_all_came(), stage.points()
    state_bytes = stage.work.entries * KEYS * ENTRY_BYTES
    ended = ended_of(notes, None, points)
    for step in steps:
        since_ns, until_ns = (int(at_s * 1e9) for at_s in step["span"])
        step["moved_bytes"] = changed_share(notes, since_ns, until_ns, KEYS) * state_bytes
        step["stood"] = stood(ended, since_ns, until_ns)
        step["gap_ms"] = gap_of_all_ms(notes, PARTITIONS, since_ns, until_ns)
    return {"records": records, "state_bytes": state_bytes, "steps": steps}


async def handled(stage: Stage, records: int) -> None:
    """Wait until so many records were handled. Raises WrongRun."""
    until_s = time.monotonic() + FILLED_S_MAX
    while stage.total("records") < records:
        stage.look()
        if time.monotonic() > until_s:
            raise WrongRun(f"{records:,} records were not handled within {FILLED_S_MAX:g} s")
        await asyncio.sleep(LOOK_S / 10)


async def even(stage: Stage, due: Due, share: float) -> float:
    """Wait until the work of those that run is even; since when it is. Raises WrongRun."""
    until_s, since_s, before = time.monotonic() + EVEN_S_MAX, 0.0, dict[str, float]()
    while not since_s or time.monotonic() - since_s < CALM_S:
        at_s = time.monotonic()
        now = {name: stage.last(name)["records"] for name in stage.running}
        rates = [now[name] - before.get(name, 0) for name in now]
        is_behind = stage.total("records") < due.at(at_s - BEHIND_S_MAX)
        since_s = (since_s or at_s) if before and is_even(rates, share) and not is_behind else 0.0
        before = now
        stage.look()
        if time.monotonic() > until_s:
            raise WrongRun(f"the work of {len(now)} members was not even within {EVEN_S_MAX:g} s: {rates}")
        await asyncio.sleep(LOOK_S)
    return since_s


def is_even(rates: Sequence[float], share: float) -> bool:
    """Whether everybody has at least this share of a mean share, and there is some work."""
    return min(rates) >= share * sum(rates) / len(rates) > 0


def changed_share(notes: Sequence[Notes], since_ns: int, until_ns: int, keys: int) -> float:
    """The share of all keys whose last records before the one time and before the other were different members'."""
    before, after = _owners(notes, since_ns, keys), _owners(notes, until_ns, keys)
    return sum(old != new for old, new in zip(before, after, strict=True)) / keys


def _owners(notes: Sequence[Notes], until_ns: int, keys: int) -> list[str]:
    newest, owners = [0] * keys, [""] * keys
    for of in notes:
        for at in of.within(0, until_ns):
            key = of.key[at]
            if of.ended_ns[at] > newest[key]:
                newest[key], owners[key] = of.ended_ns[at], of.who
    return owners
