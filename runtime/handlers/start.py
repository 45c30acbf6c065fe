"""Where the reading of a handler's topic starts, in the form of the control log."""

import msgspec

from ...offsets.starts import EARLIEST


class Start(msgspec.Struct, frozen=True):
    """A start of a topic. ``text``: the start in the words of the control log; equal starts have equal words.

    ``timestamp_ms``: from the first record of this time or later. ``group``: from the committed offsets of a consumer
    group. Without both: "earliest" or "latest", by ``text``.
    """

    text: str = EARLIEST
    timestamp_ms: int | None = None
    group: str | None = None


FROM_EARLIEST = Start()
