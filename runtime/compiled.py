"""Which keylanes runs: its version, and whether the hot modules run as C.

Those are ``[tool.keylanes] compiled`` in ``pyproject.toml``; ``setup.py`` compiles them.
"""

from typing import Final

from .engine import slots

VERSION: Final = "0.1.0"

IS_COMPILED: Final = not slots.__file__.endswith(".py")
"""False: as Python, which does the same and takes about twice as long for a record. So runs a linked checkout."""
