"""PURE. Members that handle different topics. Two programs may use one application name by mistake, or a new version
runs beside the old version. The coordinator warns of each difference once.
"""

from itertools import combinations
from typing import Final, TypeAlias

from ..offsets.control import Member
from .view import View

SHOWN: Final = 5
"""The most topics named for a difference."""

Topics: TypeAlias = frozenset[str]


class Declared:
    """The differences that a process has told while the process coordinated: each pair of declarations once, in all of
    its terms. A declaration is the set of topics that a member handles.
    """

    def __init__(self) -> None:
        self._told: set[frozenset[Topics]] = set()
        """The pairs told so far."""
        self._members: frozenset[int] = frozenset()
        """The staying members at the last call."""
        self._compared: frozenset[int] = frozenset()
        """The members compared last."""
        self._position = 0
        """The end of the control log when the staying members last changed."""

    def differences(self, view: View) -> list[str]:
        """A sentence for each new pair of different declarations of members at work. No pair is told twice.

        A member is at work if it has read of the last change of the members, as its beat says. Otherwise the member may
        be gone and not expelled yet, and the last member to join may be its replacement.
        """
        members = frozenset(member.incarnation for member in view.staying_members)
        if members != self._members:
            self._members, self._position = members, view.position
        at_work = [member for member in view.staying_members if self._is_at_work(view, member)]
        now = frozenset(member.incarnation for member in at_work)
        if now == self._compared:
            return []
        self._compared = now
        examples: dict[Topics, Member] = {}
        for member in at_work:
            examples.setdefault(frozenset(source.topic for source in member.joined.topics), member)
        sentences = []
        for topics, others in combinations(examples, 2):
            pair = frozenset((topics, others))
            if pair not in self._told:
                self._told.add(pair)
                sentences.append(_difference(examples[topics], topics - others, examples[others], others - topics))
        return sentences

    def _is_at_work(self, view: View, member: Member) -> bool:
        beat = view.heard.beats.get(member.incarnation)
        return member.birth == view.memory.birth or (beat is not None and beat.control_position >= self._position)


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
