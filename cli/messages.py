"""Log lines of the commands, for people, on standard error. No other module of the package sets up logging."""

import logging
import sys

from ..errors import SettingsError


class _StandardError(logging.Handler):
    """Writes to the standard error of the moment, so that a progress bar may stand below the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        sys.stderr.write(self.format(record) + "\n")


def checked_level(level: str) -> str:
    """A level under Python's name; raises SettingsError for an unknown level."""
    known = ("DEBUG", "INFO", "WARNING", "ERROR")
    if level.upper() not in known:
        raise SettingsError(f"--log-level is one of {', '.join(known)}; seen {level!r}")
    return level.upper()


def set_up_logging(level: str) -> None:
    """Log lines for people to standard error, unless logging is set up already."""
    handler = _StandardError()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
