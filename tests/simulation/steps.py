"""The steps of a hand-over, who plays which part in it, and what may befall whom at which step."""

from typing import Final, NamedTuple

COPYING: Final = "copying"
COPIED: Final = "copied"
ASKED: Final = "asked"
WINDING: Final = "winding"
RELEASING: Final = "releasing"
RELEASED: Final = "released"
GRANTED: Final = "granted"
RESTORING: Final = "restoring"
TAKEN_UP: Final = "taken up"
COPIES: Final = (COPYING, COPIED)
"""Before it, where there is state: the taker is asked to copy that; and says that it is near."""
HAND_OVER: Final = (ASKED, WINDING, RELEASING, RELEASED, GRANTED, RESTORING, TAKEN_UP)
"""In their order: the release is asked for; the giver begins no record of it any more; its transaction that releases is
under way; and decided; the grant is written; the taker has read it, and makes its state whole; its first transaction is
decided.
"""

GIVER: Final = "giver"
TAKER: Final = "taker"
COORDINATOR: Final = "coordinator"
SOURCE: Final = "source"
CHANGELOG: Final = "changelog"
PARTS: Final = (GIVER, TAKER, COORDINATOR)
FAULTS: Final = ("is killed", "stands still", "stands still for long", "is cut off", "loses an answer")
"""``stands still``: for less than a session, and for longer."""


class Strike(NamedTuple):
    """What befalls whom at which step of a hand-over."""

    part: str
    fault: str
    step: str

    def __str__(self) -> str:
        """As it is called in plans and figures."""
        return f"{self.part} {self.fault} at {self.step}"


CHANGES: Final = (
    *(Strike(GIVER, "splits", step) for step in (*COPIES, *HAND_OVER)),
    *(Strike(GIVER, "merges", step) for step in (*COPIES, *HAND_OVER)),
    *(Strike(TAKER, "splits", step) for step in (RESTORING, TAKEN_UP)),
    *(Strike(SOURCE, "grows", step) for step in HAND_OVER),
    *(Strike(CHANGELOG, "is compacted", step) for step in (*COPIES, RELEASED, GRANTED)),
)
"""What is no fault, and meets a hand-over all the same."""
LOSSES: Final = tuple(Strike(TAKER, "loses its folder", step) for step in (*COPIES, GRANTED))
"""It is killed, and its disk is gone with what it had copied."""
STRIKES: Final = {
    str(strike): strike
    for strike in (
        *(Strike(part, fault, step) for part in PARTS for fault in FAULTS for step in (*COPIES, *HAND_OVER)),
        *CHANGES,
        *LOSSES,
    )
}
"""By the name of the happening."""


def can_meet(strike: Strike, *, stateful: bool) -> bool:
    """Whether it may happen where there is state, or none: a source with state may not grow, only state is copied."""
    if strike.step in COPIES or strike.part == CHANGELOG or strike in LOSSES:
        return stateful
    return strike.part != SOURCE or not stateful
