"""aiokafka's logs: the messages about our connections that may appear, and how often."""

import logging
import math
import time
from typing import Final

LOG_AGAIN_SECONDS: Final = 30.0
LOG_MESSAGES_MAX: Final = 1_000


class _Repeats(logging.Filter):
    """Lets a message through once in a while: aiokafka repeats a message at each try to connect."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a message was not logged lately."""
        message, now = record.getMessage(), time.monotonic()
        if now - self._last.get(message, -math.inf) < LOG_AGAIN_SECONDS:
            return False
        if len(self._last) >= LOG_MESSAGES_MAX:
            self._last.clear()
        self._last[message] = now
        return True


_repeats: Final = _Repeats()


def quieten_client_logs() -> None:
    """Keep aiokafka at WARNING, unless a level was set, and from repeating messages. In any case keep aiokafka from
    logging records: at DEBUG aiokafka prints every request, keys and values.
    """
    whole = logging.getLogger("aiokafka")
    if whole.level == logging.NOTSET:
        whole.setLevel(max(whole.getEffectiveLevel(), logging.WARNING))
    for name in ("aiokafka", *(name for name in logging.root.manager.loggerDict if name.startswith("aiokafka."))):
        logger = logging.getLogger(name)
        if logger.level != logging.NOTSET:
            logger.setLevel(max(logger.level, logging.INFO))
        logger.addFilter(_repeats)
