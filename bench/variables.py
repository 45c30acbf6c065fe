"""What it costs that every attempt at a record has context variables of its own.

Handlers that do not suspend are called as the engine calls them, each in a copy of the application's context, and as
they would be called without one, by ``await``. No broker, no queues: what is measured is the difference, in nanoseconds
of processor time per record. The arms run one after the other in each round. It runs on the interpreted package and on
the compiled one; the plain loop is interpreted in both.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import copy_context

from keylanes import IS_COMPILED
from keylanes.runtime.engine.calls import NOTHING, LoopCalls
from rig.machine import surroundings
from rig.results import print_table, spread, write_result
from rig.rounds import Figures, arguments, run_rounds

Handler = Callable[[bytes], Awaitable[bytes | None]]


async def nothing(value: bytes) -> None:
    """Returns nothing."""


async def value(value: bytes) -> bytes:
    """Returns a value."""
    return value


async def suspends(value: bytes) -> None:  # noqa: ARG001  # as the others are
    """Takes a turn of the loop."""
    await asyncio.sleep(0)


HANDLERS: dict[str, Handler] = {"nothing": nothing, "value": value, "suspends": suspends}
ARMS = tuple(f"{name}, {how}" for name in HANDLERS for how in ("await", "own context"))


def decode(value: bytes | None) -> bytes:
    """As the engine decodes bytes."""
    return value or b""


async def awaited(handler: Handler, records: int) -> None:
    """Handlers share the context of their task."""
    for _ in range(records):
        await handler(decode(b"value"))


async def in_own_context(handler: Handler, records: int) -> None:
    """Each has a context of its own."""
    calls = LoopCalls(handler, decode, copy_context())
    for _ in range(records):
        if not calls.begin(b"value", NOTHING):
            await calls
        if calls.failed() is None:
            calls.result()


def run_arm(arm: str, records: int) -> Figures:
    """Nanoseconds per record."""
    name, _, how = arm.partition(", ")
    began_s = time.process_time()
    asyncio.run((awaited if how == "await" else in_own_context)(HANDLERS[name], records))
    return {"ns": (time.process_time() - began_s) / records * 1e9}


def main() -> int:
    """Measure, and show the differences."""
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--records", type=int, default=200_000)
    parsed = parser.parse_args()
    rounds = run_rounds(
        parsed.rounds, ARMS, lambda arm, _: run_arm(arm, parsed.records), lambda figures: f"{figures['ns']:.0f} ns"
    )
    summary = {}
    for name in HANDLERS:
        by_how = [[run["ns"] for run in rounds if run["arm"] == f"{name}, {how}"] for how in ("await", "own context")]
        summary[name] = spread([own - shared for shared, own in zip(*by_how, strict=True)])
    rows = [[name, *(round(figure) for figure in found.values())] for name, found in summary.items()]
    how = "compiled" if IS_COMPILED else "interpreted"
    print_table(f"What a context of its own costs a record, in ns, {how}", ["handler", *summary["value"]], rows)
    options = {"records": parsed.records, "is_compiled": IS_COMPILED}
    write_result(f"variables-{how}", {**surroundings(), "settings": options, "rounds": rounds, "summary": summary})
    return 0


if __name__ == "__main__":
    sys.exit(main())
