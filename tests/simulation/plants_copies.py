"""Defects in copies of state: who makes one, how far it is, and who writes to it."""

from keylanes.errors import StateError
from keylanes.group import plans
from keylanes.runtime.stores import copy_pass
from keylanes.runtime.stores.copy_pass import CopyPass
from keylanes.runtime.stores.copy_writes import CopyWrites
from keylanes.runtime.stores.learner import Learner
from keylanes.runtime.stores.storage import OwnCopy
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
READ = "await means.writes.run(one.changelog, one.copy.markers)"

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
        changed(CopyWrites, "take", ("await self.finish(changelog)", "pass")),
        found_by=(awaited(test_learner.test_a_write_that_is_under_way_is_waited_for),),
        finding="it is still being written",
    ),
    Plant(
        "a learner writes beside a restore",
        changed(CopyWrites, "is_taken", ("return self._taken[changelog] > 0", "return False")),
        found_by=(test_learner.test_a_pass_stands_still_while_a_restore_writes_to_its_copy,),
        finding="a restore writes to it",
    ),
    Plant(
        "what is owned is followed, too",
        changed(
            Learner,
            "_match",
            (
                "(one.points for one in followed.asked), followed.owned)",
                "(one.points for one in followed.asked), Steps())",
            ),
        ),
        found_by=(test_learner.test_what_is_owned_is_not_followed_until_it_is_released,),
        finding="what is owned is written by its owner alone",
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
            copy_pass,
            "plan_passes",
            (READ, f"{READ} if one.has_end else Steps()"),
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
            CopyPass,
            "take_plan",
            (
                "self.position = plan.position",
                "self.position = plan.high if plan.position and self.has_end else plan.position",
            ),
        ),
        kinds=MOVES,
        stateful=True,
        finding=CLAIMS,
    ),
    Plant(
        "a restore reads to where the copy's learner had looked",
        changed(
            copy_pass, "plan_passes", ("markers, start, high,", f"markers, start, {MARKED} if one.has_end else high,")
        ),
        kinds=MOVES,
        stateful=True,
        finding=r"it holds state up to .* and the offset log says",
        raised=StateError,
    ),
    Plant(
        "a learner's marker is where it will be",
        changed(
            copy_pass, "_write", ("plan.marks(batch.offset_next)", "plan.marks(max(plan.high, batch.offset_next))")
        ),
        kinds=("crash", "move", "deal"),
        stateful=True,
        finding=STALE,
    ),
]
