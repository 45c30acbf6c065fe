"""A process in its group: all objects for taking part, made together."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from ...brokers.patience import within_limit
from ...brokers.protocol import TopicPartition, Watermarks
from ...group.rates import RateFold, limits_of
from ...group.signals_fold import COORDINATORS, Heard
from ...group.unowned_points import Unowned
from ...offsets.control import Member
from ...offsets.decide import StoreSpec
from ...offsets.ledger import SourcePartition
from ..handlers.start import Start
from ..logs.own_ledger import Identity, OwnLedger
from ..stores.answers import GroupView
from .control_tail import ControlTail
from .coordinator_beats import PROBES
from .coordinator_loop import CoordinatorLoop
from .member_signals import MemberSignals
from .offer import Offer
from .signals import Signals
from .sources import Sources, check_identities, check_stores
from .starts import Starts

RESIGN_S = 1.0
"""How long a process that ends tries to tell the others, at most."""


class Group:
    """The group in the view of a process. ``is_alone``: the broker proves that no other process exists.

    ``on_control_read`` is called after each read of the control log. ``set_rate`` is called with a topic, and the
    attempts per second that this process may begin from then on. ``wall_ms``, ``now_s``: see ``ControlTail``.
    """

    def __init__(
        self,
        own_ledger: OwnLedger,
        stores: Sequence[StoreSpec],
        on_control_read: Callable[[], None],
        set_rate: Callable[[str, float], None],
        wall_ms: Callable[[], int],
        now_s: Callable[[], float],
        *,
        is_alone: bool,
    ) -> None:
        identity: Identity = own_ledger.identity
        settings = identity.settings
        self.own_ledger = own_ledger
        self.identity = identity
        self.settings = settings
        self.stores = stores
        self.heard = Heard(settings.session_timeout_ms, settings.heartbeat_interval_ms)
        self.signals = Signals(
            app=identity.app, broker=identity.broker, settings=settings, heard=self.heard, on_heard=self._on_heard
        )
        self.control_tail = ControlTail(
            own_ledger=own_ledger,
            settings=settings,
            news=self.heard.news,
            on_read=self._note_control_read,
            wall_ms=wall_ms,
            now_s=now_s,
        )
        self.obeyed = RateFold()
        self.coordinating = CoordinatorLoop(
            own_ledger=own_ledger,
            heard=self.heard,
            obeyed=self.obeyed,
            signals=self.signals,
            control_tail=self.control_tail,
            is_alone=is_alone,
        )
        self.member_signals = MemberSignals(
            own_ledger=own_ledger,
            heard=self.heard,
            obeyed=self.obeyed,
            signals=self.signals,
            stores=stores,
            on_release_told=self.coordinating.wake,
            is_alone=is_alone,
        )
        self._limits: dict[str, float] = {}
        """The rates of the own handlers, by topic; a process without rates answers no share of a rate."""
        self._on_control_read = on_control_read
        self._set_rate = set_rate
        self.sources = Sources(identity.broker, settings)
        self._woken_s = 0.0
        """When signals woke the coordinator last."""
        self._heard_before = (0, 0)
        """The term and number of the coordinator's last beat before this process joined."""

    def _note_control_read(self) -> None:
        """The control log was read on, or was read up to its end."""
        self.member_signals.wake()
        self.coordinating.wake()
        self._on_control_read()

    def _on_heard(self, has_news: bool) -> None:
        """Pass on new signals. The coordinator wakes at once for news. For plain beats the coordinator wakes ``PROBES``
        times in a heartbeat interval at most: of many members, some member beats all the time.
        """
        self.coordinating.note_signals()
        self._obey()
        now_s = asyncio.get_running_loop().time()
        if has_news or now_s - self._woken_s >= self.settings.heartbeat_interval_ms / 1000 / PROBES:
            self._woken_s = now_s
            self.coordinating.wake()

    def _obey(self) -> None:
        """Take the own shares of the rates from the coordinator's beat, and confirm the shares with a beat."""
        own, beat = self.identity.incarnation, self.heard.coordinator
        if own is not None and beat is not None and self.obeyed.hear(beat, own) and self._limits:
            for topic, share_per_s in self.obeyed.shares.items():
                self._set_rate(topic, share_per_s)
            self.member_signals.beat()

    async def check(
        self, sources: Iterable[SourcePartition], identities: Mapping[str, str], starts: Mapping[str, Start]
    ) -> dict[TopicPartition, Watermarks]:
        """Read the control log, and check whether this process can take part. The check comes before the joining: an
        unfit process disturbs nobody.

        Returns, for each partition that was never started, the offset at which the partition would be started, and its
        end. Raises SettingsError, SourceError, LogError, BrokerError.
        """
        question = self.control_tail.moment()
        await self.own_ledger.read_control()
        self.control_tail.has_read(question)
        control = self.own_ledger.ledger.control
        check_identities(control.identities, identities)
        trial, places = Starts(self.identity.broker, self.settings, starts, is_trial=True), list(sources)
        trial.check(control)
        check_stores(control, places, self.stores)
        growing = {topic for topic, partition in places if (topic, partition) not in control.started}
        if not growing:
            return {}
        partitions = [TopicPartition(*place) for place in places if place[0] in growing]
        limit = self.settings.call_limit_ms
        marks = await within_limit(self.identity.broker.watermarks(partitions), limit, "watermarks of sources")
        decided = await trial.decide(control, marks)
        return {place: Watermarks(begun.offset, marks[place].high) for place, begun in decided.items()}

    def view(self) -> GroupView:
        """The view of the group that answers queries of state."""
        own_ledger, identity = self.own_ledger, self.identity
        limit_ms = identity.settings.query_view_ms_max
        return GroupView(
            lambda: own_ledger.ledger.control, lambda: identity.incarnation, self.control_tail.age_ms, limit_ms
        )

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """The loops from before the joining to the end."""
        coordinating = self.coordinating
        return [
            self.control_tail.run(),
            self.control_tail.see_ends(),
            self.signals.run(),
            coordinating.run(),
            coordinating.beat_on(),
            self.member_signals.run(),
        ]

    async def join(self, offer: Offer) -> Member:
        """Join the group. Raises FencedError, LogError, SettingsError when the group refuses this process."""
        if (beat := self.heard.coordinator) is not None:
            self._heard_before = (beat.term, beat.number)
        member = await self.member_signals.join(offer)
        self.identity.note_join(member)
        self._limits = limits_of([member])
        if self.member_signals.is_alone:
            for topic, limit_per_s in self._limits.items():
                self._set_rate(topic, limit_per_s)
        return member

    def has_caught_up(self) -> bool:
        """Whether a group with ``until="level"`` has caught up. Only a beat of the present coordinator counts, and only
        from the time after the joining: an earlier beat does not know the work of the own process.
        """
        control, beat = self.own_ledger.ledger.control, self.heard.coordinator
        if control.pinned is None or beat is None or beat.term != control.term:
            return False
        return beat.is_level and (beat.term, beat.number) > self._heard_before

    def is_dismissed(self) -> bool:
        """Whether the coordinator lets this leaving process go without waiting for others."""
        beat, control = self.heard.coordinator, self.own_ledger.ledger.control
        return beat is not None and beat.term == control.term and self.own_ledger.incarnation in beat.dismissed

    def unowned_ranges(self) -> Sequence[Unowned]:
        """The ranges without an owner; empty unless this process coordinates."""
        return self.coordinating.unowned if self.coordinating.is_coordinator else ()

    def is_at_rest(self) -> bool:
        """Whether no move, copy or plan is requested of any member, and every range has an owner."""
        moves = self.own_ledger.ledger.control.moves
        return not (moves.release_requests or moves.copies or moves.answer or self.unowned_ranges())

    def takes_snapshots(self) -> bool:
        """Whether this process takes the snapshots: as coordinator, but not while leaving, when a fence may come."""
        return self.coordinating.is_coordinator and not self.member_signals.leaves

    async def leave(self, limit_s: float) -> None:
        """Wait, for ``limit_s`` at most, until the group goes on without this process, which holds nothing any more. A
        coordinator goes on until its own last transaction is fenced, and then resigns.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        await self.member_signals.wait_until_left(limit_s)
        coordinating = self.coordinating
        while coordinating.is_coordinator and not self._is_fenced() and loop.time() < until:  # noqa: ASYNC110  # bounded
            await asyncio.sleep(0.01)
        if coordinating.is_coordinator:
            await coordinating.resign(min(RESIGN_S, max(0.0, until - loop.time())))

    async def tell_end(self) -> None:
        """Tell the group once that this process is gone, if it had joined and did not leave in order: others get its
        ranges without waiting for the end of the session. The process commits nothing more.

        A coordinator uses the coordinators' partition of the signals: its successor, a member until now, hears only
        that partition.
        """
        own, coordinating = self.identity.incarnation, self.coordinating
        if own is None or self.own_ledger.ledger.control.is_expelled(own):
            return
        leads = coordinating.is_coordinator
        try:
            async with asyncio.timeout(RESIGN_S):
                await self.member_signals.tell_end(COORDINATORS if leads else self.member_signals.partition)
                if leads:
                    await coordinating.resign(RESIGN_S)
        except TimeoutError:
            return

    def _is_fenced(self) -> bool:
        return self.own_ledger.ledger.control.is_fenced(self.own_ledger.incarnation)

    async def close(self) -> None:
        """Drop the connections; bounded in time."""
        await asyncio.gather(self.signals.close(), self.coordinating.close(), self.identity.true_ends.close())
