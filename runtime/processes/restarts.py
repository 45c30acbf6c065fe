"""PURE. What the parent does after the end of a child process."""

from enum import Enum, auto
from typing import Final

BACK_OFF_S: Final = 0.5
BACK_OFF_S_MAX: Final = 30.0
"""The wait before a restart, in seconds; doubled each time until a child lives longer than the longest wait."""

FATAL: Final = frozenset((2, 3, 4, 5, 6, 7, 8, 9, 70))
"""The exit codes of errors.py: a restart would end with the same error."""
EXPELLED: Final = 3


class Then(Enum):
    """``DONE``: no restart of the child. ``AGAIN``: a restart. ``ALL_END``: no restart, and all other children stop."""

    DONE = auto()
    AGAIN = auto()
    ALL_END = auto()


def after(code: int, *, has_begun: bool, stops: bool, until_level: bool, may_come_back: bool) -> Then:
    """What follows an exit code; a negative code is the number of the signal that killed the child.

    ``has_begun``: the child came as far as to run the application; ``stops``: all children were told to stop;
    ``until_level``: the children run with ``until="level"``; ``may_come_back``: as the child said, the group expelled
    the child, and not in favour of another process of its name. The setting ``exit_on_expulsion`` ended such a child:
    otherwise the child would have joined again by itself.
    """
    if code == 0:  # with until="level" the child has reached the ends
        return Then.DONE if stops or until_level else Then.AGAIN
    if stops:
        return Then.DONE
    if code == EXPELLED and may_come_back:
        return Then.AGAIN
    if code in FATAL or (code > 0 and not has_begun):  # the program failed before it ran its application
        return Then.ALL_END
    return Then.AGAIN


def next_wait_s(wait_s: float, lived_s: float) -> float:
    """The wait before the next restart of a child that lived for ``lived_s`` after a wait of ``wait_s``."""
    return BACK_OFF_S if lived_s > BACK_OFF_S_MAX else min(2 * wait_s, BACK_OFF_S_MAX)
