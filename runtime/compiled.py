"""Which keylanes runs: its version, and whether the hot modules run as C.

Those are ``[tool.keylanes] compiled`` in ``pyproject.toml``; ``setup.py`` compiles them.
"""

from importlib.util import find_spec
from typing import Final

VERSION: Final = "0.1.0"

_HOT = find_spec(f"{__package__}.engine.slots")

IS_COMPILED: Final = _HOT is not None and not (_HOT.origin or "").endswith(".py")
"""False: as Python, which does the same and takes about twice as long for a record. So runs a linked checkout."""
