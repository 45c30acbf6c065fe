"""Something that passes on what is asked of it: a test's own connection, reader or producer changes some of that."""

from typing import Any


class Passing:
    """See the module."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)
