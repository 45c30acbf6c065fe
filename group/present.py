"""PURE. The members of a group, as one look at the logs and the signals sees them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..offsets.control import Control, Member


@dataclass(frozen=True, slots=True)
class Present:
    """``living``: members that are not expelled; ``staying``: living members that do not leave; both by incarnation.
    ``able``: the staying members that can handle a topic, by topic; ``handled``: topics that a living member can
    handle; ``stateful``: topics with stores. ``awaited``: names for which points wait, by incarnation of the owner.
    """

    living: Mapping[int, Member]
    staying: Mapping[int, Member]
    able: Mapping[str, Mapping[int, Member]]
    handled: frozenset[str]
    stateful: frozenset[str]
    awaited: Mapping[int, str]


def members_present(control: Control, leaving: Collection[int], awaited: Mapping[int, str]) -> Present:
    """The members by the fold of the control log. ``leaving``: incarnations that have asked to leave."""
    living = {i: member for i, member in sorted(control.members.items()) if not member.expelled}
    staying = {i: member for i, member in living.items() if i not in leaving}
    able: dict[str, dict[int, Member]] = {}
    for i, member in staying.items():
        for source in member.joined.topics:
            able.setdefault(source.topic, {})[i] = member
    return Present(
        living=living,
        staying=staying,
        able=able,
        handled=frozenset(source.topic for member in living.values() for source in member.joined.topics),
        stateful=frozenset(store.topic for store in control.stores.values()),
        awaited=awaited,
    )


def renamed_members(control: Control, present: Present) -> set[int]:
    """Gone members that won't be back under their names, because all members were restarted under other names. A
    restart under other names is assumed if all owners of state are gone, at least as many names are present as are
    awaited, and no awaited name is present.
    """
    awaited = {i: name for i, name in present.awaited.items() if i not in present.living}
    there = {member.joined.instance for member in present.staying.values()} - {""}
    if not awaited or len(there) < len({*awaited.values()}) or not there.isdisjoint(awaited.values()):
        return set()
    is_state_owned = any(
        not control.is_expelled(owner.incarnation)
        for place, owners in control.owners.items()
        if place[0] in present.stateful
        for _, _, owner in owners.pieces()
    )
    return set() if is_state_owned else {*awaited}
