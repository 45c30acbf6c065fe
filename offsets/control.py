"""The fold of the control log: who coordinates, who took part, where each partition started.

Rule: an event counts while its term is the highest that was elected before it in the log. The first election of a term
wins; every fold of the same log comes to the same answer, so a coordinator that lost needs no fence here: nobody
listens to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from .events import (
    AppCreated,
    ControlEvent,
    CoordinatorElected,
    MemberExpelled,
    MemberFenced,
    MemberJoined,
    PartitionStarted,
    SourceIdentified,
    StoreDeclared,
)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a process, as the control log tells it."""

    incarnation: int
    instance: str
    transactional_id: str
    expelled: bool = False
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """The fold. ``members`` by incarnation; ``started``: offsets by (topic, partition), and ``begun`` the events that
    say them; ``stores`` by name; ``identities``: what the broker calls a source topic, by its name.
    """

    created: AppCreated | None = None
    term: int = 0
    coordinator: str | None = None
    members: Mapping[int, Member] = field(default_factory=lambda: MappingProxyType({}))
    started: Mapping[tuple[str, int], int] = field(default_factory=lambda: MappingProxyType({}))
    begun: Mapping[tuple[str, int], PartitionStarted] = field(default_factory=lambda: MappingProxyType({}))
    stores: Mapping[str, StoreDeclared] = field(default_factory=lambda: MappingProxyType({}))
    identities: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def incarnation_next(self) -> int:
        """The least incarnation that was never used, from 1."""
        return max(self.members, default=0) + 1

    def unfenced(self) -> list[Member]:
        """Members whose transactional id was not fenced yet, by incarnation."""
        return [m for _, m in sorted(self.members.items()) if not m.fenced]

    def is_expelled(self, incarnation: int) -> bool:
        """Whether the incarnation may commit no more."""
        member = self.members.get(incarnation)
        return member is not None and member.expelled


def event_counts(control: Control, event: ControlEvent) -> bool:
    """Whether the event, read when the fold was ``control``, counts."""
    match event:
        case AppCreated():
            return control.created is None
        case CoordinatorElected():
            return event.term > control.term
        case _:
            return event.term == control.term


def evolve_control(control: Control, event: ControlEvent) -> Control:
    """The fold with one more event; one that does not count changes nothing."""
    if not event_counts(control, event):
        return control
    match event:
        case AppCreated():
            return replace(control, created=event)
        case CoordinatorElected():
            return replace(control, term=event.term, coordinator=event.instance)
        case MemberJoined():
            member = Member(event.incarnation, event.instance, event.transactional_id)
            return replace(control, members=_with(control.members, event.incarnation, member))
        case MemberExpelled() if event.incarnation in control.members:
            member = replace(control.members[event.incarnation], expelled=True)
            return replace(control, members=_with(control.members, event.incarnation, member))
        case MemberFenced() if event.incarnation in control.members:
            member = replace(control.members[event.incarnation], fenced=True)
            return replace(control, members=_with(control.members, event.incarnation, member))
        case PartitionStarted() if (place := (event.topic, event.partition)) not in control.started:
            begun = _with(control.begun, place, event)
            return replace(control, started=_with(control.started, place, event.offset), begun=begun)
        case StoreDeclared() if event.name not in control.stores:  # a number that was given once stays
            return replace(control, stores=_with(control.stores, event.name, event))
        case SourceIdentified() if event.topic not in control.identities:  # the offsets in the logs are this one's
            return replace(control, identities=_with(control.identities, event.topic, event.identity))
        case _:
            return control


def _with(mapping: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    return MappingProxyType({**mapping, key: value})
