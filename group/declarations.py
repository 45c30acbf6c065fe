"""PURE. Members that handle different topics: two programs under one name, or a new version beside the old version."""

from itertools import combinations
from typing import Final, TypeAlias

from ..offsets.control import Member
from .view import View

SHOWN: Final = 5
"""The most topics named for a difference."""

Topics: TypeAlias = frozenset[str]


class Declared:
    """The differences that a process has told while it coordinated: each pair of declarations once, in any term."""

    def __init__(self) -> None:
        self._said: set[frozenset[Topics]] = set()
        self._members: frozenset[int] = frozenset()
        self._compared: frozenset[int] = frozenset()
        self._position = 0

    def differences(self, view: View) -> list[str]:
        """A sentence for each pair of different declarations of living members. No pair is told twice.

        A member lives if it has beaten since the last member joined. A gone member, not expelled yet, may have been
        replaced by the last member.
        """
        members = frozenset(member.incarnation for member in view.staying)
        if members != self._members:
            self._members, self._position = members, view.position
        living = [member for member in view.staying if self._lives(view, member)]
        now = frozenset(member.incarnation for member in living)
        if now == self._compared:
            return []
        self._compared = now
        first: dict[Topics, Member] = {}
        for member in living:
            first.setdefault(frozenset(source.topic for source in member.joined.topics), member)
        said = []
        for topics, others in combinations(first, 2):
            pair = frozenset((topics, others))
            if pair not in self._said:
                self._said.add(pair)
                said.append(_difference(first[topics], topics - others, first[others], others - topics))
        return said

    def _lives(self, view: View, member: Member) -> bool:
        beat = view.heard.beats.get(member.incarnation)
        return member.birth == view.seat.birth or (beat is not None and beat.control_position >= self._position)


def _difference(one: Member, alone: Topics, other: Member, other_alone: Topics) -> str:
    parts = [
        f"{_name_of(who)} handles {_topics_text(topics)}, and incarnation {beside.incarnation} does not"
        for who, topics, beside in ((one, alone, other), (other, other_alone, one))
        if topics
    ]
    return (
        f"members handle different topics: {'; '.join(parts)}. Two programs need two application names; where a new "
        "version replaces an old one, this passes"
    )


def _name_of(member: Member) -> str:
    name, host = member.joined.instance, member.joined.host
    return f"incarnation {member.incarnation}" + (f" ({name})" if name else "") + (f" on {host}" if host else "")


def _topics_text(topics: Topics) -> str:
    named = sorted(topics)
    more = len(named) - SHOWN
    return ", ".join(named[:SHOWN]) + (f" and {more} more" if more > 0 else "")
