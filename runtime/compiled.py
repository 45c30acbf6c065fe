"""Whether the hot modules run as C (``[tool.keylanes] compiled`` in ``pyproject.toml``, made by ``setup.py``)."""

from typing import Final

from .engine import slots

IS_COMPILED: Final = not slots.__file__.endswith(".py")
"""False: as Python, which does the same and takes about twice as long for a record. So runs a linked checkout."""
