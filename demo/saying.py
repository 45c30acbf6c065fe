"""Where the demo says something: to people on standard output, and into its log file."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

Say: TypeAlias = Callable[[str], None]


def say(text: str) -> None:
    """On standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_to_stderr(text: str) -> None:
    """Where standard output is for a program."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def log_to(path: Path, name: str) -> Iterator[None]:
    """The runtime's log goes to a file (a dead letter is a line, and there are more than a thousand); fatal: shown.

    Several processes may append to the file; ``name``: who says the lines of this one.
    """
    logger = logging.getLogger("keylanes")
    before = logger.propagate, logger.level
    file = logging.FileHandler(path, encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter(f"%(asctime)s %(process)d {name} %(levelname)s %(message)s"))
    shown = logging.StreamHandler()
    shown.setLevel(logging.CRITICAL)
    logger.addHandler(file)
    logger.addHandler(shown)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.propagate, level = before
        logger.setLevel(level)
        logger.removeHandler(file)
        logger.removeHandler(shown)
        file.close()
