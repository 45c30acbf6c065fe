"""The steps of the commit cycle and of a hand-over, as those who watch them hear of them."""

from typing import Literal, TypeAlias

CommitStep: TypeAlias = Literal["take", "transact", "committed", "applied"]
"""In their order: a generation is taken, its transaction is sent, the broker has committed it, its edges have moved."""
HandOverStep: TypeAlias = Literal["asked", "winding", "released", "granted", "restored", "taken up"]
"""In their order. At who gives up: it was asked for a release, begins no record of it any more, has committed a part of
the release. At who takes up: it has read a grant, the state is whole, the workers run.
"""
Step: TypeAlias = CommitStep | HandOverStep
