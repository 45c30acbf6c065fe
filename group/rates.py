"""PURE. Who may begin how many attempts in a second, where a handler's rate is limited for the whole group.

The coordinator parts the rate among the members and tells each its *share* in its beats. A member obeys the newest
beat that it has heard, by (term, number), and its own beats say which that is and what its shares are. It keeps a share
until another is told, however long nobody is heard.

**Never above the rate.** All shares that may be in use never add up to more than the rate:

- What a member may use is the largest of what it says that it has, and of all that it was told since.
- A share is lowered at once; one is raised only by what is left of the rate besides all that may be in use.
- A share is free again when its member is FENCED, and not when it is expelled: until then it may not know.
- A new coordinator does not know what its predecessors told. It raises nothing before each member that could have a
  share has heard it, or is fenced.

The parts are by load: by the records that a member's ranges take in a second, and what is left of them, by which a
backlog is worked off everywhere at the same time. Each member has at least ``LEAST`` of an even part, so that what is
granted to it can begin.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..keyrange.hashing import SPACE_END
from ..offsets.control import Member
from ..offsets.signals import Beat, CoordinatorBeat, MemberRates, Rate
from .view import View

LEAST: Final = 0.125
BACKLOG_S: Final = 10
"""A backlog counts as if it were to be worked off in this time."""
CHANGE: Final = 0.1
"""Parts that have changed by less than this of an even part stay as they are."""
ROUNDING: Final = 1e-9
"""Sums of shares may be off by this part of a rate: they are floats."""


class Obeyed:
    """The fold of the coordinators' beats, of one member: its ``shares`` by topic."""

    def __init__(self) -> None:
        self.shares: dict[str, float] = {}
        self.term = self.number = 0

    def hear(self, beat: CoordinatorBeat, incarnation: int) -> bool:
        """A beat; whether it says anything else than what this member knows: then its own next beat should not wait."""
        if (beat.term, beat.number) <= (self.term, self.number):
            return False
        own = [one for one in beat.rates if one.incarnation == incarnation]
        told = {rate.topic: rate.share_per_s for one in own for rate in one.rates}
        is_news = beat.term != self.term or any(self.shares.get(topic) != share for topic, share in told.items())
        self.term, self.number = beat.term, beat.number
        self.shares |= told
        return is_news

    def beat(self, incarnation: int, birth: str, control_position: int, loop_lag_ms: int) -> Beat:
        """What this member says of itself."""
        rates = tuple(Rate(topic, share) for topic, share in sorted(self.shares.items()))
        return Beat(incarnation, birth, control_position, loop_lag_ms, self.term, self.number, rates)


@dataclass(slots=True)
class _Known:
    """What a coordinator knows of a member: the shares that it says it has, as of which beat, and what was told since:
    (number, shares by topic), in order.
    """

    number: int
    shares: dict[str, float]
    told: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def most(self, topic: str) -> float:
        """What it may be using."""
        return max([self.shares.get(topic, 0.0), *(shares.get(topic, 0.0) for _, shares in self.told)])

    @property
    def last(self) -> dict[str, float]:
        """What it has, or was told last."""
        return self.told[-1][1] if self.told else self.shares


class Shares:
    """What the coordinator of a term has told the members, and what they have heard of it."""

    def __init__(self, term: int) -> None:
        self.term = term
        self._known: dict[int, _Known] = {}
        self._unheard: frozenset[int] = frozenset()
        """Members that limit a topic and did not hear this coordinator yet, as far as is known."""
        self._called: frozenset[int] = frozenset()
        """Those of them for which it has beaten."""
        self._limits: dict[str, float] = {}
        self._parts: dict[str, dict[int, float]] = {}
        self._parted: tuple[int, int] = (-1, -1)
        """The number of the last decision, and the version of the loads, by which rates were parted last."""
        self._parted_ms = 0

    def hear(self, beat: Beat) -> None:
        """What a member says of itself, in the order of its partition or not."""
        known = self._known.get(beat.incarnation)
        if beat.term != self.term or (known is not None and beat.number < known.number):
            return
        told = [] if known is None else [one for one in known.told if one[0] > beat.number]
        shares = {rate.topic: rate.share_per_s for rate in beat.rates}
        self._known[beat.incarnation] = _Known(beat.number, shares, told)

    def next(self, view: View) -> dict[int, dict[str, float]]:
        """The shares of all members as the next beat is to tell them; of one that is not named nothing changes."""
        self._part(view)
        if not self._limits:
            return {}
        unfenced = {m.incarnation: m for m in view.control.unfenced() if any(_limit(m, t) for t in self._limits)}
        self._known = {incarnation: known for incarnation, known in self._known.items() if incarnation in unfenced}
        for incarnation in unfenced:
            if (beat := view.heard.beats.get(incarnation)) is not None:
                self.hear(beat)
        self._unheard = frozenset(unfenced.keys() - self._known.keys())
        shares: dict[int, dict[str, float]] = {}
        for topic, limit in self._limits.items():
            for incarnation, share in self._of_topic(topic, limit, unfenced).items():
                shares.setdefault(incarnation, {})[topic] = share
        return shares

    @property
    def is_awaiting(self) -> bool:
        """Whether more can be told when a member says that it has heard what it was told."""
        return bool(self._unheard) or any(known.told for known in self._known.values())

    def is_due(self, shares: Mapping[int, Mapping[str, float]]) -> bool:
        """Whether a beat should not wait: these are others than those that members have or were told last, or there is
        a member that has not heard of this coordinator.
        """
        lasts = ((self._known[incarnation].last, own) for incarnation, own in shares.items())
        return any(last != {**last, **own} for last, own in lasts) or not self._unheard <= self._called

    def tell(self, number: int, shares: Mapping[int, Mapping[str, float]]) -> tuple[MemberRates, ...]:
        """They are told by the beat of this number."""
        self._called = self._unheard
        for incarnation, own in shares.items():
            known = self._known[incarnation]
            if known.last != (now := {**known.last, **own}):
                known.told.append((number, now))
        return tuple(
            MemberRates(incarnation, tuple(Rate(topic, share) for topic, share in sorted(own.items())))
            for incarnation, own in sorted(shares.items())
        )

    def _of_topic(self, topic: str, limit: float, unfenced: Mapping[int, Member]) -> dict[int, float]:
        parts = self._parts.get(topic, {})
        living = [i for i in parts if i in self._known and i in unfenced and not unfenced[i].expelled]
        last = {i: self._known[i].last.get(topic, 0.0) for i in living}
        wanted = {i: limit * parts[i] for i in living}
        shares = {i: min(last[i], wanted[i]) for i in living}
        if any(_limit(unfenced[i], topic) for i in self._unheard):
            return shares
        in_use = sum(known.most(topic) for known in self._known.values())
        free = limit * (1.0 - ROUNDING) - in_use
        most = {i: self._known[i].most(topic) for i in living}
        lacks = {i: wanted[i] - most[i] for i in living if wanted[i] - most[i] > limit * ROUNDING * 2}
        if free <= limit * ROUNDING or not lacks:
            return shares
        part = min(1.0, free / sum(lacks.values()))
        return shares | {i: most[i] + part * lack for i, lack in lacks.items()}

    def _part(self, view: View) -> None:
        """Part the rates anew when owners or members have changed, or loads were told since."""
        now = view.control.number, view.heard.loads.version
        has_changed = now[0] != self._parted[0]
        is_time = view.now_ms - self._parted_ms >= view.rules.load_interval_ms and now != self._parted
        if not (has_changed or is_time):
            return
        self._parted, self._parted_ms = now, view.now_ms
        self._limits = limits_of(view.control.unfenced())
        for topic in self._limits:
            parts, before = parts_of(view, topic), self._parts.get(topic, {})
            is_other = parts.keys() != before.keys()
            if is_other or any(abs(parts[i] - before[i]) > CHANGE / len(parts) for i in parts):
                self._parts[topic] = parts
        self._parts = {topic: parts for topic, parts in self._parts.items() if topic in self._limits}


def limits_of(members: Iterable[Member]) -> dict[str, float]:
    """The limited rates by topic. While members differ, for a while of a rollout, the lowest one counts."""
    limits: dict[str, float] = {}
    for member in members:
        for source in member.joined.topics:
            if source.rate_per_s > 0.0:
                limits[source.topic] = min(source.rate_per_s, limits.get(source.topic, source.rate_per_s))
    return limits


def parts_of(view: View, topic: str) -> dict[int, float]:
    """Which part of the rate of a topic each living member that limits it is to have; together 1.0."""
    able = [member.incarnation for member in view.living if _limit(member, topic) > 0.0]
    if not able:
        return {}
    weights = _weights(view, topic, able)
    whole, least = sum(weights.values()), LEAST / len(able)
    if whole <= 0.0:
        return dict.fromkeys(able, 1.0 / len(able))
    return {i: least + (1.0 - LEAST) * weights[i] / whole for i in able}


def _weights(view: View, topic: str, able: Iterable[int]) -> dict[int, float]:
    """The loads of members, in records per second; where some of what they own was never measured, how much that is."""
    loads, points = dict.fromkeys(able, 0.0), dict.fromkeys(able, 0.0)
    is_measured = True
    for place, owners in view.control.owners.items():
        if place[0] != topic:
            continue
        for first, end, owner in owners.pieces():
            if owner.incarnation in points:
                points[owner.incarnation] += (end - first) / SPACE_END
                cost = view.heard.loads.cost(place, first, end)
                is_measured &= cost is not None
                if cost is not None:
                    loads[owner.incarnation] += cost.records_per_s + cost.backlog / BACKLOG_S
    return loads if is_measured and any(loads.values()) else points


def _limit(member: Member, topic: str) -> float:
    return max((source.rate_per_s for source in member.joined.topics if source.topic == topic), default=0.0)
