"""Lines for the end of a test run's output, from whichever test process."""

import pytest

NOTES = pytest.StashKey[dict[str, None]]()


def note(config: pytest.Config, text: str) -> None:
    """Say something at the end, once for all test processes. ``tests/conftest.py`` prints it."""
    if hasattr(config, "workeroutput"):  # of pytest-xdist; the process that prints reads it there
        config.workeroutput.setdefault("notes", []).append(text)
    else:
        config.stash.setdefault(NOTES, {})[text] = None
