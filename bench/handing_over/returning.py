"""Members with names come back: one that is killed and started at once, and four that are started anew in turn.

Their folders stay. What each process reads of changelogs is counted in its readers: a tail is what others, or its last
transactions, have written since. A member that was killed has handled records that it did not commit; these are handled
again.
"""

import time
from collections.abc import Sequence
from typing import Any

from handing_over.carrying import FILLED_S_MAX, filled
from handing_over.sizes import CHANGE_EVERY, COPY_BYTES_PER_S, ENTRY_BYTES, FEW_LOOKS, Size, entries_of
from handing_over.stage import START_S_MAX, Stage, Work, begun, names_of, said, staged
from handing_over.stops import gap_of_all_ms
from keylanes.keyrange.hashing import SPACE_END
from rig.child import run_coroutine
from rig.ground import Ground
from rig.logs import Logs

FACTOR, KEYS, PARTITIONS = 16, 20_000, 4
CRASH_MEMBERS, ROLLOUT_MEMBERS = 2, 4
SETTLE_S, BACK_S = 3.0, 60.0
RESTS = 2.5
"""So many rests between two moves behind the filling it was seen that loads are level (10 s at full size)."""


def run_crash(ground: Ground, _arm: str, suffix: str, size: Size) -> dict[str, Any]:
    """The figures of so many crashes. Raises WrongRun."""
    names = names_of(CRASH_MEMBERS)
    going = [names[number % len(names)] for number in range(size.crashes)]
    with staged(ground, f"crash-{suffix}", work_of(size, size.per_second, len(going))) as stage:
        return run_coroutine(_run(stage, names, going, size.per_second, size.rest_s, are_killed=True))


def run_rollout(ground: Ground, _arm: str, suffix: str, size: Size) -> dict[str, Any]:
    """The figures of a rollout. Raises WrongRun."""
    names, per_second = names_of(ROLLOUT_MEMBERS), size.four_per_second
    with staged(ground, f"rollout-{suffix}", work_of(size, per_second, len(names))) as stage:
        found = run_coroutine(_run(stage, names, names, per_second, size.rest_s, are_killed=False))
    changed = per_second / CHANGE_EVERY * ENTRY_BYTES
    return {**found, "state_bytes": size.other_gb * 1e9, "changed_bytes_per_s": changed}


def work_of(size: Size, per_second: float, starts: int) -> Work:
    """State in all keys."""
    return Work(
        partitions=PARTITIONS,
        factor=FACTOR,
        keys=KEYS,
        records_max=KEYS + int(per_second * (START_S_MAX + size.watch_s + starts * BACK_S)),
        entries=entries_of(size.other_gb, KEYS),
        heavy=(-1, 0, SPACE_END),
        change_every=CHANGE_EVERY,
        settings={"copy_bytes_per_s": COPY_BYTES_PER_S, **FEW_LOOKS},
    )


async def _run(
    stage: Stage, names: Sequence[str], going: Sequence[str], per_second: float, rest_s: float, *, are_killed: bool
) -> dict[str, Any]:
    """One after the other of those ``going`` ends and is started again, under load."""
    returns = list[dict[str, Any]]()
    async with begun(stage, *names) as logs:
        await stage.steady(logs, to_all=True)
        stage.begin_load(stage.once(), stage.phase(per_second))
        await filled(stage, logs)
        stage.next_phase()
        await stage.rested(logs, RESTS * rest_s)
        for name in going:
            since_s, before = time.monotonic(), stage.total("changelog_bytes")
            (stage.kill if are_killed else stage.stop)(name)
            stopped_s = time.monotonic() - since_s
            stage.start(name)
            found = await _is_back(stage, logs, name, since_s)
            others_bytes = stage.total("changelog_bytes") - before - found["read_bytes"]
            returns.append({**found, "name": name, "stopped_s": stopped_s, "others_read_bytes": others_bytes})
            await logs.watch(SETTLE_S)
        records = stage.end_load()
        await _quiet(stage, logs, records)
        stage.stop(*names)
    notes = stage.proven_all_came() if are_killed else stage.proven(logs)
    for one in returns:
        since_ns, until_ns = int(one["since_s"] * 1e9), int((one["since_s"] + one["steady_s"] + SETTLE_S) * 1e9)
        one["gap_ms"] = gap_of_all_ms(notes, PARTITIONS, since_ns, until_ns)
    return {"records": records, "returns": returns}


async def _is_back(stage: Stage, logs: Logs, name: str, since_s: float) -> dict[str, Any]:
    """Until a member that was started works again, and the group is steady; what it has read by then."""
    await stage.until(logs, lambda: stage.first_began_s(name) is not None, f"{name} works again")
    works_s = (stage.first_began_s(name) or since_s) - since_s
    await stage.steady(logs, to_all=True)
    last = stage.last(name)
    steady_s = time.monotonic() - since_s
    said(f"{name}: works after {works_s:.2f} s, {last['changelog_records']:,.0f} records of changelogs read")
    read = {"read_bytes": last["changelog_bytes"], "read_records": last["changelog_records"]}
    return {"since_s": since_s, "works_s": works_s, "steady_s": steady_s, **read}


async def _quiet(stage: Stage, logs: Logs, records: int) -> None:
    """Wait until so many records were handled, and then no more are: some are handled again."""
    await stage.until(logs, lambda: stage.noted() >= records, "all handled", FILLED_S_MAX)
    before = -1
    while before != (before := stage.noted()):
        await logs.watch(SETTLE_S)
