"""What a coordinator decides, as scripts that can be checked by eye (see stage.py)."""

import os
from pathlib import Path

import pytest

from .stage import played, scripts

FOLDER = Path(__file__).parent / "scripts"
REWRITES = bool(os.environ.get("REWRITE_SCRIPTS"))
"""Write what comes of each script into it; then look at the difference."""


@pytest.mark.parametrize("path", scripts(FOLDER), ids=lambda path: path.stem)
def test_a_script_comes_to_what_it_says(path: Path) -> None:
    """Each script says what its commands lead to."""
    text = path.read_text()
    now = played(text)
    if REWRITES:
        path.write_text(now)
    assert now == text


def test_there_are_scripts() -> None:
    """They are found."""
    assert len(scripts(FOLDER)) >= 10
