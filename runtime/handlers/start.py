"""Where reading of a handler's topic starts, as written in the log."""

import msgspec

from ...offsets.starts import EARLIEST


class Start(msgspec.Struct, frozen=True):
    """A start of a topic. ``text``: the words of the log, always the same for the same start.

    ``timestamp_ms``: from the first record of this time or later. ``group``: from the committed offsets of a consumer
    group. Without both: "earliest" or "latest", by ``text``.
    """

    text: str = EARLIEST
    timestamp_ms: int | None = None
    group: str | None = None


FROM_EARLIEST = Start()
