"""PURE. What a record produced that is through."""

from collections.abc import Sequence

import msgspec

from ...brokers.protocol import ConsumerRecord, Outgoing
from ...state.overlay import Layer


class Produced(msgspec.Struct, gc=False):
    """A record that is through and produced something: what goes into the transaction with it. It is in no circle, so
    that the garbage collection need not look at it: there are many.

    ``changes``: of the state; None: none.
    """

    record: ConsumerRecord
    outputs: Sequence[Outgoing]
    dead: bool
    digest: int
    size: int
    changes: Layer | None = None
