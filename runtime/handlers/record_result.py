"""PURE. The outputs and state changes of a finished record."""

from collections.abc import Sequence

import msgspec

from ...brokers.protocol import ConsumerRecord, Outgoing
from ...state.overlay import Layer


class RecordResult(msgspec.Struct, gc=False):
    """A finished record that produced something, and its part of the transaction. ``gc=False``: a process has many of
    these objects, and none is in a reference cycle.

    ``changes``: the record's changes of state; None: no change.
    """

    record: ConsumerRecord
    outputs: Sequence[Outgoing]
    dead: bool
    digest: int
    size: int
    changes: Layer | None = None
