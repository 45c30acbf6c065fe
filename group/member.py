"""PURE. The next step of one member, by what it has read of the control log.

What is asked and granted stands in the log; a member compares that with what it has taken up and given up, and does
what is missing. It acts on nothing else: a grant that does not count in its own fold is none, whoever said it.
"""

from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from ..keyrange.ranges import KeyRange
from ..offsets.control import Control
from ..offsets.control_events import CopyAsked, ReleaseAsked
from ..offsets.ledger import Place


class NotJoined(NamedTuple):
    """It has not joined: it asks, and waits for an answer."""


class Rejected(NamedTuple):
    """It was refused; see features.py."""

    reason: str


class Out(NamedTuple):
    """It was expelled: it stops at once, and commits no more. ``cause``: "" where that is forgotten already."""

    cause: str


class Works(NamedTuple):
    """It takes part. ``take_up``: epochs that were granted to it and that it has not taken up, ``wind_up``: what it is
    to release, ``go_on``: moves whose release was withdrawn. ``copies``: of whose state it shall have a copy, all that
    stand in the log.
    """

    incarnation: int
    take_up: tuple[tuple[Place, int], ...]
    wind_up: tuple[ReleaseAsked, ...]
    go_on: tuple[int, ...]
    copies: tuple[CopyAsked, ...]


State: TypeAlias = NotJoined | Rejected | Out | Works


def state_of(
    control: Control,
    birth: str,
    incarnation: int | None,
    taken: Collection[tuple[Place, int]] = (),
    winding: Collection[int] = (),
) -> State:
    """How it stands with the process born as ``birth``.

    ``incarnation``: under which it has joined, as far as it knows: a member that is over is forgotten in the log;
    ``taken``: the epochs that it has taken up, by place; ``winding``: the moves that it is winding up, or has released
    what they ask for: they stand in the log until that is granted again.
    """
    member = control.member_of(birth)
    if member is None and incarnation is None:
        return Rejected(control.refused[birth]) if birth in control.refused else NotJoined()
    if member is None or (incarnation is not None and member.incarnation != incarnation):
        return Out("")  # forgotten, and perhaps taken in once more by a request of its own that came late
    if member.expelled:
        return Out(member.cause)
    own = member.incarnation
    granted = {
        (place, owner.epoch)
        for place, owners in control.owners.items()
        for _, _, owner in owners.pieces()
        if owner.incarnation == own
    }
    asked = {number: one for number, one in sorted(control.moves.asked.items()) if one.incarnation == own}
    return Works(
        own,
        tuple(sorted(granted - set(taken))),
        tuple(one for number, one in asked.items() if number not in winding and (_place(one), one.epoch) in granted),
        tuple(sorted(set(winding) - asked.keys())),
        tuple(copy for _, copy in sorted(control.moves.copies.items()) if copy.incarnation == own),
    )


def _place(asked: ReleaseAsked) -> Place:
    return asked.topic, asked.partition


def range_of(asked: ReleaseAsked) -> KeyRange:
    """The points that are asked for."""
    return KeyRange(asked.first, asked.end)
