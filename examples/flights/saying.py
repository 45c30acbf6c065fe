"""Output of the demo: for people on standard output, and the runtime's log in a file."""

import logging
from pathlib import Path


def say(text: str) -> None:
    """Print a text on standard output, at once."""
    print(text, flush=True)


def log_to(path: Path, name: str) -> None:
    """Send the log of the runtime to a file; standard error shows fatal errors alone. Each dead letter is a line of the
    log, and a run has more than a thousand.

    Several processes may append to the file. ``name``: the process, in its lines.
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
