"""Where the demo says something: to people on standard output, and into its log file."""

import logging
from pathlib import Path


def say(text: str) -> None:
    """On standard output, at once."""
    print(text, flush=True)


def log_to(path: Path, name: str) -> None:
    """The runtime's log goes to a file (a dead letter is a line, and there are more than a thousand); fatal: shown.

    Several processes may append to the file; ``name``: who says the lines of this one.
    """
    logger = logging.getLogger("keylanes")
    file = logging.FileHandler(path, encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter(f"%(asctime)s %(process)d {name} %(levelname)s %(message)s"))
    shown = logging.StreamHandler()
    shown.setLevel(logging.CRITICAL)
    logger.addHandler(file)
    logger.addHandler(shown)
    logger.propagate = False
    logger.setLevel(logging.INFO)
