"""Under load a third member joins: how long until its first range works? Then it stops in order, and the next joins."""

from typing import Any

from handing_over.sizes import Size
from handing_over.stage import Stage, Work, begun, names_of, said, staged
from rig.child import run_coroutine
from rig.ground import Ground
from rig.logs import Logs, ahead_s

MEMBERS, PARTITIONS, FACTOR = 2, 4, 64
WAIT_MS, RATE = 5.0, 4_000.0
JOIN_S = 20.0
"""About, with the stop behind it."""


def run(ground: Ground, _arm: str, suffix: str, size: Size) -> dict[str, Any]:
    """The figures of so many joins. Raises WrongRun."""
    seconds = JOIN_S * (1 + size.joins)
    work = Work(partitions=PARTITIONS, factor=FACTOR, wait_ms=WAIT_MS, records_max=int(RATE * seconds * 1.5))
    with staged(ground, f"join-{suffix}", work) as stage:
        return run_coroutine(_run(stage, size.joins))


async def _run(stage: Stage, joins: int) -> dict[str, Any]:
    names, found = names_of(MEMBERS), list[tuple[float, float]]()
    async with begun(stage, *names) as logs:
        await stage.steady(logs, to_all=True)
        stage.begin_load(stage.phase(RATE))
        for number in range(joins):
            found.append(await _join(stage, logs, f"further{number}"))
        records = stage.end_load()
        await stage.handled(logs, records)
        stage.stop(*names)
    stage.proven(logs)
    return {"records": records, "joined_s": [one[0] for one in found], "started_s": [one[1] for one in found]}


async def _join(stage: Stage, logs: Logs, name: str) -> tuple[float, float]:
    """How long behind its JOINED, and behind its start, the first record of a member begins, which stops then."""
    stage.start(name)
    await stage.until(logs, lambda: stage.first_began_s(name) is not None, f"{name} works")
    await logs.watch(0.5)
    first_s = stage.first_began_s(name) or 0.0
    joined_s = first_s - (logs.joined_ms[name] / 1e3 - ahead_s())
    started_s = first_s - stage.started_s[name]
    said(f"{name}: its first record {joined_s:.2f} s behind JOINED, {started_s:.2f} s behind its start")
    await stage.steady(logs)
    stage.stop(name)
    await stage.steady(logs)
    return joined_s, started_s
