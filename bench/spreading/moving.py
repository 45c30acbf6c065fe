"""Hand-overs under load: cells of a partition that go from one process to another, asked for one after the other."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keylanes.group.history_entries import MoveEntry
from keylanes.group.plans import REQUEST
from keylanes.keyrange.hashing import SPACE_END
from rig.logs import LOOK_S, opened
from rig.notes import Points

MOVES = 6
CELLS = 256
"""Of a partition: as many as it is cut into by default."""


class Wanted(NamedTuple):
    """These points shall go to a member."""

    points: Points
    name: str


def chosen(bands: Mapping[int, Sequence[tuple[int, int, str]]]) -> Wanted | None:
    """The first cell of the widest band goes to the next one of those that have something; None: one has all.

    ``bands``: who has which points, by source partition.
    """
    names = sorted({name for of in bands.values() for _, _, name in of})
    if len(names) < 2:
        return None
    partition, (first, _, name) = max(
        ((partition, band) for partition, of in bands.items() for band in of), key=lambda one: one[1][1] - one[1][0]
    )
    target = names[(names.index(name) + 1) % len(names)]
    return Wanted(Points(partition, first, first + SPACE_END // CELLS), target)


async def ask_moves(bootstrap: str, app: str, topic: str, partitions: int) -> None:
    """Ask for a move, wait until it is granted, and ask for the next one; who runs this may cancel it."""
    async with opened(bootstrap, app, topic, is_control_alone=True) as logs:
        await logs.watch(LOOK_S)
        for _ in range(MOVES):
            wanted = chosen({partition: logs.granted(partition) for partition in range(partitions)})
            if wanted is None:
                return
            await logs.ask(wanted.points, wanted.name)
            while not _is_granted(logs.granted(wanted.points.partition), wanted):
                await logs.read()


def _is_granted(bands: Sequence[tuple[int, int, str]], wanted: Wanted) -> bool:
    first, end = wanted.points.first, wanted.points.end
    return any(a <= first and end <= b and name == wanted.name for a, b, name in bands)


def handed_over_ms(moves: Sequence[MoveEntry], ended_s: float) -> list[int]:
    """How long each move took that the harness asked for and that was over by then, by the clock of the logs."""
    return [
        move.taken_up_ms - move.asked.ms
        for move in moves
        if move.cause == REQUEST and move.asked is not None and move.taken_up_ms is not None
        if move.taken_up_ms <= ended_s * 1e3
    ]
