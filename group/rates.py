"""PURE. How many attempts each member may begin in a second, for handlers with a rate limit for the whole group.

The coordinator divides the rate among the members. A coordinator's beat tells each member its *share*: attempts in a
second. A member obeys the newest beat that the member has heard, by (term, number). The member's own beats confirm the
number of that beat and repeat the shares. A member keeps a share until another share is told, however long the silence
is.

**Never above the rate.** The shares that may be in use never add up to more than the rate:

- The coordinator does not know which beat a member has heard last. So the coordinator counts for the member the largest
  of the confirmed share and all shares told since.
- A lower share is told at once. A raise takes only the part of the rate that no member may be using.
- The share of a member is free again when the member is FENCED. An expelled member may not know of the expulsion yet.
- A new coordinator does not know the shares told by its predecessors. Before any raise, each member with a possible
  share must have heard the new coordinator or be fenced.

The *part* of a member is the fraction of the rate that the member should have. Parts follow the load: the records that
a member's ranges get in a second, plus a fraction of the backlog, so that all backlogs end at the same time. Each
member has at least ``LEAST`` of an even part, so that new ranges can begin.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..keyrange.hashing import SPACE_END
from ..offsets.control import Member
from ..offsets.signals import Beat, CoordinatorBeat, MemberRates, Rate
from .view import View

LEAST: Final = 0.125
"""The least part of a member, as a fraction of an even part."""
BACKLOG_S: Final = 10
"""A backlog counts as if the members worked the backlog off in this many seconds."""
CHANGE: Final = 0.1
"""A part changes only by more than this fraction of an even part."""
ROUNDING: Final = 1e-9
"""Shares are floats, and their sums are rounded. So smaller fractions of the rate are left out."""


class RateFold:
    """One member's fold of the coordinators' beats. ``shares``: by topic; ``term``, ``number``: of the newest beat."""

    def __init__(self) -> None:
        self.shares: dict[str, float] = {}
        self.term = self.number = 0

    def hear(self, beat: CoordinatorBeat, incarnation: int) -> bool:
        """Take a beat. True: the beat tells news, and the member should confirm the beat at once."""
        if (beat.term, beat.number) <= (self.term, self.number):
            return False
        own = [one for one in beat.rates if one.incarnation == incarnation]
        told = {rate.topic: rate.share_per_s for one in own for rate in one.rates}
        is_news = beat.term != self.term or any(self.shares.get(topic) != share for topic, share in told.items())
        self.term, self.number = beat.term, beat.number
        self.shares |= told
        return is_news

    def beat(self, incarnation: int, birth: str, control_position: int, loop_lag_ms: int) -> Beat:
        """The member's next beat."""
        rates = tuple(Rate(topic, share) for topic, share in sorted(self.shares.items()))
        return Beat(
            incarnation=incarnation,
            birth=birth,
            control_position=control_position,
            loop_lag_ms=loop_lag_ms,
            term=self.term,
            number=self.number,
            rates=rates,
        )


@dataclass(slots=True)
class _Known:
    """The coordinator's knowledge of a member. ``number``: the confirmed beat; ``shares``: the confirmed shares;
    ``told``: the shares told later, as (number, shares by topic), in order.
    """

    number: int
    shares: dict[str, float]
    told: list[tuple[int, dict[str, float]]]

    def most(self, topic: str) -> float:
        """The largest share of a topic that the member may be using."""
        return max([self.shares.get(topic, 0.0), *(shares.get(topic, 0.0) for _, shares in self.told)])

    @property
    def last(self) -> dict[str, float]:
        """The shares told last, else the confirmed shares: the member uses them once it has heard all beats."""
        return self.told[-1][1] if self.told else self.shares


class RateShares:
    """The shares told by a term's coordinator, and the members' confirmations."""

    def __init__(self, term: int) -> None:
        self.term = term
        self._known: dict[int, _Known] = {}
        self._unheard: frozenset[int] = frozenset()
        """Members with a limited topic that have confirmed no beat of this coordinator: they may not have heard it."""
        self._unheard_at_beat: frozenset[int] = frozenset()
        """``_unheard`` at the last beat. The beat has called these members already."""
        self._limits: dict[str, float] = {}
        """The limited rates, by topic."""
        self._parts: dict[str, dict[int, float]] = {}
        """By topic: the part of each member."""
        self._divided_at: tuple[int, int] = (-1, -1)
        """The decision number and the version of the loads when the rates were divided last."""
        self._divided_ms = 0
        """The time when the rates were divided last."""

    def hear(self, beat: Beat) -> None:
        """Take a member's beat. The order of the beats does not matter."""
        known = self._known.get(beat.incarnation)
        if beat.term != self.term or (known is not None and beat.number < known.number):
            return
        told = [] if known is None else [one for one in known.told if one[0] > beat.number]
        shares = {rate.topic: rate.share_per_s for rate in beat.rates}
        self._known[beat.incarnation] = _Known(beat.number, shares, told)

    def next_shares(self, view: View) -> dict[int, dict[str, float]]:
        """The shares for the next beat, by incarnation and topic. A member that is not named keeps its shares."""
        self._divide(view)
        if not self._limits:
            return {}
        unfenced = {
            m.incarnation: m for m in view.control.unfenced_members() if any(_limit(m, t) for t in self._limits)
        }
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
        """Whether the coordinator may tell more after further confirmations."""
        return bool(self._unheard) or any(known.told for known in self._known.values())

    def is_due(self, shares: Mapping[int, Mapping[str, float]]) -> bool:
        """Whether a beat should not wait. Either shares differ from the shares told last, or a member has not heard
        this coordinator.
        """
        lasts = ((self._known[incarnation].last, own) for incarnation, own in shares.items())
        return any(last != {**last, **own} for last, own in lasts) or not self._unheard <= self._unheard_at_beat

    def tell(self, number: int, shares: Mapping[int, Mapping[str, float]]) -> tuple[MemberRates, ...]:
        """Note the shares as told in the beat of this number, and return them for the beat."""
        self._unheard_at_beat = self._unheard
        for incarnation, own in shares.items():
            known = self._known[incarnation]
            if known.last != (now := {**known.last, **own}):
                known.told.append((number, now))
        return tuple(
            MemberRates(incarnation, tuple(Rate(topic, share) for topic, share in sorted(own.items())))
            for incarnation, own in sorted(shares.items())
        )

    def _of_topic(self, topic: str, limit: float, unfenced: Mapping[int, Member]) -> dict[int, float]:
        """The shares of a topic by incarnation: lower shares at once, raises as far as nobody may be using the rate."""
        parts = self._parts.get(topic, {})
        living = [i for i in parts if i in self._known and i in unfenced and not unfenced[i].expelled]
        last = {i: self._known[i].last.get(topic, 0.0) for i in living}
        wanted = {i: limit * parts[i] for i in living}
        shares = {i: min(last[i], wanted[i]) for i in living}
        if any(_limit(unfenced[i], topic) for i in self._unheard):
            return shares  # what these members use is not known: a predecessor may have told them any share
        in_use = sum(known.most(topic) for known in self._known.values())
        free = limit * (1.0 - ROUNDING) - in_use
        most = {i: self._known[i].most(topic) for i in living}
        lacks = {i: wanted[i] - most[i] for i in living if wanted[i] - most[i] > limit * ROUNDING * 2}
        if free <= limit * ROUNDING or not lacks:
            return shares
        fraction = min(1.0, free / sum(lacks.values()))
        return shares | {i: most[i] + fraction * lack for i, lack in lacks.items()}

    def _divide(self, view: View) -> None:
        """Divide the rates anew after a decision, or, once in a load interval, after new loads."""
        now = view.control.number, view.heard.loads.version
        has_decided = now[0] != self._divided_at[0]
        is_time = view.now_ms - self._divided_ms >= view.rules.load_interval_ms and now != self._divided_at
        if not (has_decided or is_time):
            return
        self._divided_at, self._divided_ms = now, view.now_ms
        self._limits = limits_of(view.control.unfenced_members())
        for topic in self._limits:
            parts, before = parts_of(view, topic), self._parts.get(topic, {})
            is_other = parts.keys() != before.keys()
            if is_other or any(abs(parts[i] - before[i]) > CHANGE / len(parts) for i in parts):
                self._parts[topic] = parts
        self._parts = {topic: parts for topic, parts in self._parts.items() if topic in self._limits}


def limits_of(members: Iterable[Member]) -> dict[str, float]:
    """Limited rates by topic. While members differ, during a rollout, the lowest rate counts."""
    limits: dict[str, float] = {}
    for member in members:
        for source in member.joined.topics:
            if source.rate_per_s > 0.0:
                limits[source.topic] = min(source.rate_per_s, limits.get(source.topic, source.rate_per_s))
    return limits


def parts_of(view: View, topic: str) -> dict[int, float]:
    """The part of a topic's rate for each living member with a limit; all parts add up to 1.0."""
    able = [member.incarnation for member in view.living_members if _limit(member, topic) > 0.0]
    if not able:
        return {}
    weights = _weights(view, topic, able)
    whole, least = sum(weights.values()), LEAST / len(able)
    if whole <= 0.0:
        return dict.fromkeys(able, 1.0 / len(able))
    return {i: least + (1.0 - LEAST) * weights[i] / whole for i in able}


def _weights(view: View, topic: str, able: Iterable[int]) -> dict[int, float]:
    """The loads of the members, in records per second. If a range has no measured load: the points of the members, in
    whole partitions.
    """
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
    """The rate that a member declares for a topic; 0.0: no limit."""
    return max((source.rate_per_s for source in member.joined.topics if source.topic == topic), default=0.0)
