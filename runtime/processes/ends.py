"""PURE. What follows when one of several processes has ended."""

from enum import Enum, auto
from typing import Final

BACK_OFF_S: Final = 0.5
BACK_OFF_S_MAX: Final = 30.0
"""The wait before a process is started again; it doubles as long as none lives for longer than the longest wait."""

FATAL: Final = frozenset((2, 3, 4, 5, 6, 7, 8, 9, 70))
"""The exit codes of errors.py: to start again would lead to the same."""
EXPELLED: Final = 3


class Then(Enum):
    """``DONE``: it is not started again. ``AGAIN``: it is. ``ALL_END``: neither it nor the others have to go on."""

    DONE = auto()
    AGAIN = auto()
    ALL_END = auto()


def after(code: int, *, has_begun: bool, stops: bool, until_level: bool, may_come_back: bool) -> Then:
    """What follows an exit code, which is the negative number of a signal that killed the process.

    ``has_begun``: it came as far as to run the application; ``stops``: all were told to stop; ``until_level``: they run
    to the level; ``may_come_back``: it said that it was expelled, and not because another process has its name. That it
    did not join again by itself is the setting ``exit_on_expulsion``.
    """
    if code == 0:
        return Then.DONE if stops or until_level else Then.AGAIN
    if stops:
        return Then.DONE
    if code == EXPELLED and may_come_back:
        return Then.AGAIN
    if code in FATAL or (code > 0 and not has_begun):  # the program does not even come to its application
        return Then.ALL_END
    return Then.AGAIN


def next_wait_s(wait_s: float, lived_s: float) -> float:
    """The wait behind one of ``wait_s``, of a process that lived for so long."""
    return BACK_OFF_S if lived_s > BACK_OFF_S_MAX else min(2 * wait_s, BACK_OFF_S_MAX)
