"""The steps of the commit cycle and of a hand-over, for callbacks that watch the steps."""

from typing import Literal, TypeAlias

CommitStep: TypeAlias = Literal["take", "transact", "committed", "applied"]
"""In order: a generation is taken, its transaction is sent, the broker has committed, the edges have moved."""
HandOverStep: TypeAlias = Literal["asked", "winding", "released", "granted", "restored", "taken up"]
"""In order. In the process that gives a range up: a release is requested ("asked"), no record of the range begins any
more ("winding"), a part of the release is committed ("released"). In the process that takes the range up: a grant was
read ("granted"), the state is whole ("restored"), the workers run ("taken up").
"""
Step: TypeAlias = CommitStep | HandOverStep


def ignore_step(step: Step) -> None:
    """Ignore a step: the callback of a run whose steps nobody watches."""
