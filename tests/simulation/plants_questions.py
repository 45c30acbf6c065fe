"""Defects in who answers a question for state, and with what."""

from keylanes.runtime.handlers.partition_state import PartitionState
from keylanes.runtime.stores.answers import GroupView, LocalAnswers
from keylanes.runtime.stores.keeper import Keeper

from ..runtime.membership import test_questions as questions
from ..stage.planting import changed
from .plants import Plant

WRONG = r"is committed|is what another made it"

PLANTS = [
    Plant(
        "what is not committed is answered",
        changed(
            PartitionState,
            "read_committed",
            (
                "found = self.overlay.get_committed(key)",
                "found = self.overlay.get_committed(key) if (cell := self.overlay.find(key)) is None else cell.value",
            ),
        ),
        stateful=True,
        finding=WRONG,
    ),
    Plant(
        "a release under way is answered",
        changed(Keeper, "part_with", ("storage.state.part_with(within)", "pass")),
        found_by=(questions.test_the_owner_answers_until_it_releases_and_nobody_answers_with_what_was,),
        finding=WRONG,
    ),
    Plant(
        "a release that fails is for good",
        changed(Keeper, "keep", ("storage.state.keep(within)", "pass")),
        found_by=(questions.test_what_is_not_released_after_all_is_answered_meanwhile,),
        finding="it waits for 100 ms each time",
    ),
    Plant(
        "old knowledge of the group is good enough",
        changed(GroupView, "doubt", ("if age_ms <= self._ms_max:", "if age_ms >= 0:")),
        found_by=(questions.test_who_has_not_read_the_control_log_for_long_answers_nothing,),
        finding="DID NOT RAISE",
    ),
    Plant(
        "a copy that is too old answers",
        changed(LocalAnswers, "_how", ("stale_ms <= self.stale_ms_max", "stale_ms >= 0")),
        kinds=("cut", "move", "deal"),
        stateful=True,
        finding="has a copy that answers",
    ),
    Plant(
        "who was expelled is named",
        changed(GroupView, "owner", ("owner is None or control.is_expelled(owner.incarnation)", "owner is None")),
        found_by=(questions.test_nobody_is_named_who_was_expelled,),
        finding="named, and expelled",
    ),
]
