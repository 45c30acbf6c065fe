"""Where a handler's topic is begun, as it is written in the log."""

import msgspec

from ...offsets.starts import EARLIEST


class Start(msgspec.Struct, frozen=True):
    """``text``: what the log says of it, in words that do not change. ``timestamp_ms``: from the first record that is
    not older; ``group``: from what a consumer group has committed. Neither: "earliest" or "latest".
    """

    text: str = EARLIEST
    timestamp_ms: int | None = None
    group: str | None = None


FROM_EARLIEST = Start()
