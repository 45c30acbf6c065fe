"""Defects in copies of state: who makes one, how far it is, and who writes to it."""

from keylanes.group import learning
from keylanes.runtime.stores import copying
from keylanes.runtime.stores.follower import Follower
from keylanes.runtime.stores.keeper import Keeper
from keylanes.runtime.stores.learner import Learner

from ..stage.planting import changed
from .plants import Plant

MOVES = ("move", "deal", "move")
STALE = r"the copy has|led to \[|records wrote|is the state that|at Marker"
"""A value of before is seen, or lies in a copy."""

PLANTS = [
    Plant(
        "released for somebody who has no copy",
        "a range stands still for as long as its state is copied",
        changed(learning, "wanting", ("or move.move in control.moves.copies:", "or True:")),
        kinds=MOVES,
        stateful=True,
        finding=r"has no copy|not level after",
    ),
    Plant(
        "plans pay no heed to who learns",
        "state is copied to one member, and asked for another: it moves twice",
        changed(learning, "fixed", ("if target != NOBODY:", "if False:")),
        kinds=MOVES,
        stateful=True,
        finding=r"learns it",
    ),
    Plant(
        "what learns writes on to what is owned",
        "older values come to lie over those of the new owner",
        changed(Learner, "owns", ("self._drop(place, points)", "pass")),
        kinds=MOVES,
        stateful=True,
        finding=STALE,
    ),
    Plant(
        "a copy that was followed is taken back as it was released",
        "who gets a range back begins with values of before, where its copy was being read again",
        changed(Keeper, "is_as_released", ("return not self.learner.has_touched(place, within)", "return True")),
        kinds=MOVES,
        stateful=True,
        finding=STALE,
    ),
    Plant(
        "own commits mark all copies",
        "a copy that only follows claims what it never read: its range is restored from too far on",
        changed(
            Follower,
            "marks",
            ("[(first, end, marker) for first, end, _ in self.state.ready.pieces()]", "[(0, 1 << 32, marker)]"),
        ),
        kinds=MOVES,
        stateful=True,
        finding=STALE,
    ),
    Plant(
        "a learner's marker is where it will be",
        "the same, after a crash in the middle of a copy",
        changed(copying, "_write", ("plan.marks(batch.offset_next)", "plan.marks(max(plan.high, batch.offset_next))")),
        kinds=("crash", "move", "deal"),
        stateful=True,
        finding=STALE,
    ),
]
