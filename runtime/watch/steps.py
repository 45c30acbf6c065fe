"""The steps of the commit cycle, as those who watch it hear of them."""

from typing import Literal, TypeAlias

Step: TypeAlias = Literal["take", "transact", "committed", "applied"]
"""In their order: a generation is taken, its transaction is sent, the broker has committed it, its edges have moved."""
