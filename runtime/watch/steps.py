"""The steps of the commit cycle and of a hand-over, for callbacks that watch the steps."""

from typing import Literal, TypeAlias

CommitStep: TypeAlias = Literal["take", "transact", "committed", "applied"]
"""In order: a generation is taken, its transaction is sent, the broker has committed, the edges have moved."""
HandOverStep: TypeAlias = Literal["asked", "winding", "released", "granted", "restored", "taken up"]
"""In order. The process that gives a range up: a release was asked for, no record of the range begins any more, a part
of the release is committed. The process that takes the range up: a grant was read, the state is whole, the workers run.
"""
Step: TypeAlias = CommitStep | HandOverStep
