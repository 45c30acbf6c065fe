"""Hand-overs under load: cells of a partition that go from one process to another, asked for one after the other."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keylanes.group.happened import Move
from keylanes.keyrange.hashing import SPACE_END
from rig.logs import LOOK_S, opened
from rig.notes import Points

MOVES = 6
CELLS = 256
"""Of a partition: as many as it is cut into by default."""
REQUEST = "request"


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


async def ask_moves(address: str, app: str, topic: str, partitions: int) -> None:
    """Ask for a move, wait until it is granted, and ask for the next one; who runs this may cancel it."""
    async with opened(address, app, topic, is_control_alone=True) as logs:
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


def told(moves: Sequence[Move], began_s: float, ended_s: float) -> dict[str, Any]:
    """What the logs say of a run that lasted so, by the clock of the logs: of the moves that were asked for under load,
    how long the points stood still and how long it took in all, in ms; and of the plans for load, when their moves were
    asked for and taken up, in seconds behind the first record.
    """
    done = [
        (move, move.asked.ms, move.taken_up_ms)
        for move in moves
        if move.asked is not None and move.taken_up_ms is not None and move.taken_up_ms <= ended_s * 1e3
    ]
    asked_for = [(move, asked, taken_up) for move, asked, taken_up in done if move.cause == REQUEST]
    return {
        "stood_still_ms": [move.stood_still_ms for move, _, _ in asked_for],
        "handed_over_ms": [taken_up - asked for _, asked, taken_up in asked_for],
        "by_load_s": [
            (round(asked / 1e3 - began_s, 2), round(taken_up / 1e3 - began_s, 2))
            for move, asked, taken_up in done
            if move.cause == "load"
        ],
    }
