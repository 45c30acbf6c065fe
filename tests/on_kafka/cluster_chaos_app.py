"""The application under cluster chaos, a process of its own: state, other keys in the middle, dead letters.

Argument: a ``Told`` as JSON. Every step of its commit cycle becomes a line in its file of notes. What it promises is in
cluster_check.py.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from keylanes import App, Context, DeadLetter, State

FACTOR = 16
GROUPS = 97
FIN = "fin"


class OfKey(msgspec.Struct):
    """What is kept of a key of the source."""

    count: int = 0
    sum: int = 0


class OfGroup(msgspec.Struct):
    """What is kept of a group. ``weighted``: the sum of each number times its place, which depends on the order."""

    count: int = 0
    sum: int = 0
    weighted: int = 0


class Middle(msgspec.Struct):
    """A record of the topic in the middle."""

    key: str
    value: int
    count: int
    sum: int


class Last(msgspec.Struct):
    """A record of the last topic."""

    value: int
    count: int
    sum: int
    weighted: int


def main() -> None:
    """Run as told."""
    if TYPE_CHECKING:
        from ..stage.limited import settings_of
        from .chaos_app import POISON, Poison, Told, end_with_parent
    else:
        sys.path.extend(map(str, (Path(__file__).parent, Path(__file__).parent.parent / "stage")))
        from chaos_app import POISON, Poison, Told, end_with_parent  # this is run as a script
        from limited import settings_of

    end_with_parent()
    told = msgspec.json.decode(sys.argv[1], type=Told)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    notes = os.open(told.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    app = App(told.name, broker=told.address, settings=settings_of(**told.settings))

    @app.handler(told.source, to=told.late, parallelising_factor=FACTOR, on_failure=DeadLetter(told.dead))
    async def per_key(value: int, ctx: Context, of_key: State[OfKey]) -> None:
        if value % POISON == 7:
            raise Poison(f"{value} is poison")
        before = of_key.get() or OfKey()
        if told.busy_ms or value % 16 == 0:
            await asyncio.sleep(told.busy_ms / 1000 or value % 5 / 1000)
        now = OfKey(before.count + 1, before.sum + value)
        of_key.put(now)
        key = (ctx.key or b"").decode()
        ctx.send(told.late, Middle(key, value, now.count, now.sum), key=b"g%d" % (value % GROUPS))

    @app.handler(told.late, to=FIN, parallelising_factor=FACTOR)
    async def per_group(middle: Middle, ctx: Context, of_group: State[OfGroup]) -> Last:
        before = of_group.get() or OfGroup()
        count = before.count + 1
        now = OfGroup(count, before.sum + middle.value, before.weighted + count * middle.value)
        of_group.put(now)
        return Last(middle.value, now.count, now.sum, now.weighted)

    def note(step: str) -> None:
        os.write(notes, f"{step}\n".encode())

    note("begun")
    app.run(until=told.until, on_step=note)
    note("ended")


if __name__ == "__main__":
    main()
