"""The application of the deposed leader, for ``keylanes run deposed_app:app``: it counts the records of each key.

The value of a record is an id; the output is the id with the rank of the record among the records of the key. A plain
application keeps no state, says 0 for the rank, and can't cut its partitions. All settings are keylanes' defaults. The
environment has the differences between processes and cases:

    DEPOSED_APP, DEPOSED_SOURCE, DEPOSED_OUTPUT   names of the application and its topics
    DEPOSED_PLAIN                                 1: a plain application
    KEYLANES_BROKER, KEYLANES_STATE_FOLDER, …     as for any application
"""

import asyncio
import os

import msgspec

from keylanes import App, Settings, State

WORK_S = 0.01
NAME = os.environ.get("DEPOSED_APP", "deposed")
SOURCE = os.environ.get("DEPOSED_SOURCE", "source")
OUTPUT = os.environ.get("DEPOSED_OUTPUT", "output")


class Counted(msgspec.Struct):
    """An output: ``id`` of the record, ``count``: how many records of the key there are up to this one."""

    id: int
    count: int


app = App(NAME, settings=Settings.from_env())


async def count(order: int, of_key: State[int]) -> Counted:
    """Count a record."""
    await asyncio.sleep(WORK_S)
    seen = (of_key.get() or 0) + 1
    of_key.put(seen)
    return Counted(order, seen)


async def hand_on(order: int) -> Counted:
    """Say that a record was there."""
    await asyncio.sleep(WORK_S)
    return Counted(order, 0)


if os.environ.get("DEPOSED_PLAIN") == "1":
    app.handler(SOURCE, to=OUTPUT, parallelising_factor=1)(hand_on)
else:
    app.handler(SOURCE, to=OUTPUT)(count)
