"""The version of keylanes, and whether the hot modules run as C.

The list ``[tool.keylanes] compiled`` in ``pyproject.toml`` names the hot modules; ``setup.py`` compiles them.
"""

from importlib.util import find_spec
from typing import Final

VERSION: Final = "0.1.0"

_HOT = find_spec(f"{__package__}.engine.slots")

IS_COMPILED: Final = _HOT is not None and not (_HOT.origin or "").endswith(".py")
"""False, as in a linked checkout: Python runs the hot modules, and a record takes about twice as long."""
