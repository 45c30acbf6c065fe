"""Defects in copies of state: who makes one, how far it is, and who writes to it."""

from keylanes.errors import StateError
from keylanes.group import plans
from keylanes.runtime.stores import copying
from keylanes.runtime.stores.follower import OwnCopy
from keylanes.runtime.stores.learner import Learner
from keylanes.runtime.stores.restore import Restore
from keylanes.state.restore import Plan

from ..runtime.stores import test_learner
from ..stage.planting import changed
from .plants import Plant, awaited

MOVES = ("move", "deal", "move")
CLAIMS = "a copy is marked as read up to"
STALE = rf"the copy has|at Marker\(|{CLAIMS}"
"""A value of before is seen, or lies in a copy, or a marker claims what is not there."""
MARKED = "max([marker.position for _, _, marker in markers.pieces()], default=high)"
"""How far a copy has come by its markers."""

PLANTS = [
    Plant(
        "plans pay no heed to who learns",
        changed(plans, "_fixed_points", ("if piece.heir != NOBODY", "if False")),
        kinds=MOVES,
        stateful=True,
        finding=r"learns it",
    ),
    Plant(
        "who takes up a range does not wait for its learner",
        changed(Learner, "let_go", ("await self.writes.is_through(place)", "pass")),
        found_by=(awaited(test_learner.test_a_write_that_is_under_way_is_waited_for),),
        finding="it is still being written",
    ),
    Plant(
        "what is owned is followed, too",
        changed(
            Learner,
            "_match",
            ("wanted = without(asked, self._owned.get(place, Steps()))", "wanted = without(asked, Steps())"),
        ),
        found_by=(test_learner.test_what_is_owned_is_not_followed_until_it_is_released,),
        finding="what is owned is written by its owner alone",
    ),
    Plant(
        "a copy that was followed is taken for as it was released",
        changed(
            Learner,
            "has_touched",
            ("return bool(self._touched.get(place, Steps()).pieces(within.first, within.end))", "return False"),
        ),
        found_by=(test_learner.test_what_is_owned_is_not_followed_until_it_is_released,),
        finding="values of before may lie there",
    ),
    Plant(
        "own commits mark all copies",
        changed(
            OwnCopy,
            "marks",
            ("[(first, end, marker) for first, end, _ in self.state.ready.pieces()]", "[(0, 1 << 32, marker)]"),
        ),
        kinds=MOVES,
        stateful=True,
        finding=STALE,
    ),
    Plant(
        "a pass that is planned anew pays no heed to its markers",
        changed(
            copying.Reading,
            "_plan",
            ("markers = await host.writes.run(one.place, one.copy.markers)", "markers = Steps()"),
        ),
        kinds=("cut", "move", "deal"),
        stateful=True,
        finding=r"it is copied twice",
    ),
    Plant(
        "a pass writes all that it reads",
        changed(Plan, "apply", ("if start is not None and record.offset >= start:", "if start is not None:")),
        kinds=("cut", "move", "deal"),
        stateful=True,
        finding=r"it is copied twice",
    ),
    Plant(
        "a near copy is taken for a whole one",
        changed(
            Restore, "_restore", ("if plan.position >= plan.high:", "if plan.position >= plan.high or plan.position:")
        ),
        kinds=MOVES,
        stateful=True,
        finding=CLAIMS,
    ),
    Plant(
        "a restore reads to where the copy's learner had looked",
        changed(Restore, "_plan", ("markers, start, high, now_ms,", f"markers, start, {MARKED}, now_ms,")),
        kinds=MOVES,
        stateful=True,
        finding=r"it holds state up to .* and the offset log says",
        raised=StateError,
    ),
    Plant(
        "a learner's marker is where it will be",
        changed(copying, "_write", ("plan.marks(batch.offset_next)", "plan.marks(max(plan.high, batch.offset_next))")),
        kinds=("crash", "move", "deal"),
        stateful=True,
        finding=STALE,
    ),
]
