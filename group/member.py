"""PURE. The next step of one member, from the control log as read so far.

Requests and grants are events of the log. A member compares the log with the ranges that the member has taken up and
given up, and does the missing steps. Nothing else counts: a grant that changes nothing in the member's own fold is no
grant.
"""

from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from ..keyrange.ranges import KeyRange
from ..offsets.control import Control
from ..offsets.control_events import CopyAsked, ReleaseAsked
from ..offsets.ledger import SourcePartition


class NotJoined(NamedTuple):
    """The process has not joined: it asks, and waits for an answer."""


class Rejected(NamedTuple):
    """The process was refused; see features.py."""

    reason: str


class Out(NamedTuple):
    """The process was expelled: it stops at once, and commits no more. ``cause``: "" if the cause is forgotten."""

    cause: str


class Works(NamedTuple):
    """The process is a member. ``new_epochs``: the (place, epoch) pairs granted and not taken up; ``release_requests``:
    new requests to release; ``withdrawn_moves``: moves under release whose request was withdrawn. ``copies``: all
    copies that the log asks of the member.
    """

    incarnation: int
    new_epochs: tuple[tuple[SourcePartition, int], ...]
    release_requests: tuple[ReleaseAsked, ...]
    withdrawn_moves: tuple[int, ...]
    copies: tuple[CopyAsked, ...]


State: TypeAlias = NotJoined | Rejected | Out | Works


def state_of(
    control: Control,
    birth: str,
    incarnation: int | None,
    taken: Collection[tuple[SourcePartition, int]] = (),
    winding: Collection[int] = (),
) -> State:
    """The state of the process born as ``birth``.

    ``incarnation``: as the process remembers, None before the join; the log forgets former members. ``taken``: the
    (place, epoch) pairs taken up; ``winding``: the moves under release, or released. The fold of the log keeps a
    released move until the next grant of the points.
    """
    member = control.member_of(birth)
    if member is None and incarnation is None:
        return Rejected(control.refusals[birth]) if birth in control.refusals else NotJoined()
    if member is None or (incarnation is not None and member.incarnation != incarnation):
        return Out("")  # the member was forgotten, and a late copy of its request to join may have been admitted anew
    if member.expelled:
        return Out(member.cause)
    own = member.incarnation
    granted = {
        (place, owner.epoch)
        for place, owners in control.owners.items()
        for _, _, owner in owners.pieces()
        if owner.incarnation == own
    }
    asked = {number: one for number, one in sorted(control.moves.release_requests.items()) if one.incarnation == own}
    return Works(
        incarnation=own,
        new_epochs=tuple(sorted(granted - set(taken))),
        release_requests=tuple(
            one
            for number, one in asked.items()
            if number not in winding and (one.topic_partition, one.epoch) in granted
        ),
        withdrawn_moves=tuple(sorted(set(winding) - asked.keys())),
        copies=tuple(copy for _, copy in sorted(control.moves.copies.items()) if copy.incarnation == own),
    )


def range_of(asked: ReleaseAsked) -> KeyRange:
    """The points asked for."""
    return KeyRange(asked.first, asked.end)
