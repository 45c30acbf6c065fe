"""What the commands say: the one place that sets up logging, for people, on standard error."""

import logging
import sys

from ..errors import SettingsError


class _StandardError(logging.Handler):
    """Writes to what standard error is at that moment, so that a progress bar may stand below the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        sys.stderr.write(self.format(record) + "\n")


def checked_level(level: str) -> str:
    """A level as Python calls it; raises SettingsError for an unknown one."""
    known = ("DEBUG", "INFO", "WARNING", "ERROR")
    if level.upper() not in known:
        raise SettingsError(f"--log-level is one of {', '.join(known)}; seen {level!r}")
    return level.upper()


def set_up_logging(level: str) -> None:
    """Lines for people on standard error, where nobody has set up anything."""
    handler = _StandardError()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
