"""The beats of a coordinator, and the probes of a process that does not hear the coordinator."""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

import msgspec

from ...group.copy_requests import parked_moves
from ...group.election import Candidate, probes
from ...group.members import members_dismissed
from ...group.rates import RateFold, RateShares
from ...group.signals_fold import COORDINATORS, PARTITIONS, Heard
from ...group.view import Rules, View
from ...offsets.signals import WAITS_MAX, CoordinatorBeat, Wait
from ..logs.own_ledger import OwnLedger
from .catch_up_check import CatchUpCheck
from .signals import Signals

PROBES: Final = 4
"""The number of probes in an interval: silence is found within this part of an interval."""


class CoordinatorBeats:
    """The beats of a process. ``view``: the coordinator's view now."""

    def __init__(
        self,
        own_ledger: OwnLedger,
        heard: Heard,
        obeyed: RateFold,
        signals: Signals,
        catch_up_check: CatchUpCheck,
        rules: Rules,
        view: Callable[[], View],
    ) -> None:
        self.own_ledger = own_ledger
        self.identity = own_ledger.identity
        self.heard = heard
        self.obeyed = obeyed
        self.signals = signals
        self.catch_up_check = catch_up_check
        self.rules = rules
        self.term = 0
        """The last term for which this process stood."""
        self.resigns = False
        """Whether this process decides nothing more."""
        self.dismissed: tuple[int, ...] = ()
        """The leaving members that need not wait for others, by the last beat."""
        self._view = view
        self._shares = RateShares(0)
        self._count = 0

    @property
    def is_awaiting_rates(self) -> bool:
        """Whether members are to confirm their shares of the rates."""
        return self._shares.is_awaiting

    def begin_term(self) -> None:
        """Begin the term for which this process was elected."""
        self._shares = RateShares(self.term)
        self.dismissed = ()
        self.beat()

    def beat(self) -> None:
        """Beat in each partition of the signals: the members of the partition can then be found silent."""
        self.signals.listen(to_all=True)
        view = self._view()
        self.dismissed = members_dismissed(view)
        beat = self._next_beat()
        rates = self._shares.tell(beat.number, self._shares.next_shares(view))
        waits = tuple(Wait(*one) for one in islice(parked_moves(view).items(), WAITS_MAX))
        self.signals.send(COORDINATORS, msgspec.structs.replace(beat, rates=rates, waits=waits))
        for partition in range(COORDINATORS + 1, PARTITIONS):
            self.signals.send(partition, beat)

    def beat_when_due(self, view: View) -> None:
        """Beat before the time when shares of rates, or the dismissed members, have changed."""
        if self._shares.is_due(self._shares.next_shares(view)) or members_dismissed(view) != self.dismissed:
            self.beat()

    def probe(self, candidate: Candidate) -> bool:
        """Say in each partition that the partition works, while the coordinator is not heard. The partitions of members
        count, too: the next coordinator knows at once which members are as silent as the coordinator. Returns whether
        this process probes.
        """
        identity, control = self.identity, self.own_ledger.ledger.control
        quiet_ms = int((asyncio.get_running_loop().time() - self.signals.read_s[COORDINATORS]) * 1000)
        is_probing = probes(control, self.heard, candidate, self.term, quiet_ms=quiet_ms)
        self.signals.listen(to_all=identity.incarnation is None or is_probing)
        if is_probing:
            position = identity.logs.positions[identity.logs.control]
            probe = self.obeyed.beat(identity.incarnation or 0, identity.birth, position, 0)
            for partition in range(PARTITIONS):
                self.signals.send(partition, probe)
        return is_probing

    async def resign(self, limit_s: float) -> None:
        """Say that this process decides nothing more: the next coordinator may stand at once."""
        self.resigns = True
        try:
            async with asyncio.timeout(limit_s):
                await self.signals.send_and_wait(COORDINATORS, self._next_beat())
        except TimeoutError:
            return

    def _next_beat(self) -> CoordinatorBeat:
        self._count += 1
        return CoordinatorBeat(
            term=self.term,
            number=self._count,
            resigns=self.resigns,
            interval_ms=self.rules.interval_ms,
            is_level=self.catch_up_check.has_caught_up,
            dismissed=self.dismissed,
            rates=(),
            waits=(),
        )
