"""Defects in how a range changes hands: asked for, wound up, released in parts, granted, taken up."""

from typing import Any

from keylanes.group import cells, plans
from keylanes.runtime.engine import commit, commit_alarm
from keylanes.runtime.holding import Holding
from keylanes.runtime.partition import cut, wishes

from ..stage.planting import Planting, change, changed, everywhere
from .plants import AGAIN, DOUBLED, LOST, Plant
from .plants_fencing import NOT_FREE

MOVES = ("move", "deal", "move")


def released_while_it_runs(patch: Planting) -> None:
    """A part of a release goes although its record runs."""

    def always(workers: Any) -> bool:
        return True

    change(patch, cut, "release", ("any(w.running is not None for w in workers)", "False"))
    everywhere(patch, cut.are_releasable, always)


def held_back_for_long(patch: Planting) -> None:
    """All that is done waits until the last record of a release is through."""
    for module in (commit_alarm, commit):
        patch.setattr(module, "HOLD_BACK_MS", 60_000)


PLANTS = [
    Plant(
        "what is released in part counts for all",
        changed(
            cells,
            "cells",
            (
                "in part.released.all_pieces(first, end):",
                "in [(first, end, any(released for _, _, released in part.released.all_pieces(first, end)))]:",
            ),
        ),
        kinds=MOVES,
        finding=f"{NOT_FREE}|{DOUBLED}",
    ),
    Plant(
        "released while a record of it runs",
        released_while_it_runs,
        kinds=MOVES,
        finding=f"{AGAIN}|run at once|is run by|{LOST}",
    ),
    Plant(
        "a withdrawn release goes on",
        changed(Holding, "_go_on", ("self.range_changes.withdraw(wish)", "pass")),
        kinds=("stuck",),
        finding="was withdrawn, and its owner had read that",
    ),
    Plant(
        "taken up below the granted offset",
        changed(wishes, "edge_at", ("return edge\n", "return max(0, edge - 1)\n")),
        kinds=MOVES,
        finding=DOUBLED,
    ),
    Plant(
        "taken up above the granted offset",
        changed(wishes, "edge_at", ("return edge\n", "return edge + 1\n")),
        kinds=MOVES,
        finding=LOST,
    ),
    Plant(
        "hot bands forgotten at a move",
        changed(wishes, "add_granted", ("(*wanted, *part.granted_bounds)", "wanted")),
        kinds=("move", "split", "split"),
        finding="were bounds before",
    ),
    Plant(
        "one worker by declaration, in parts",
        changed(plans, "_ask_whole", ("if factors.get(request.topic) != 1:", "if True:")),
        kinds=MOVES,
        finding="has one worker by declaration",
    ),
    Plant(
        "all waits for what is given up",
        held_back_for_long,
        kinds=("stuck", "move"),
        finding="without a look at what is done",
    ),
]
