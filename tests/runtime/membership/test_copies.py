"""Ranges with state change hands behind a copy: what becomes of the copy, of what was owned, and of what comes back.

The test decides: it writes into the control log what a coordinator would.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator

import pytest

from keylanes.brokers.protocol import Outgoing
from keylanes.keyrange.hashing import SPACE_END
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.offsets.codec import decode_signal, encode
from keylanes.offsets.control_events import ControlEvent, CopyAsked, ReleaseAsked
from keylanes.offsets.decide import Turn, decide_grant
from keylanes.offsets.event_values import Span
from keylanes.offsets.events import RangesReleased
from keylanes.offsets.ledger import Ledger, evolve_all
from keylanes.offsets.signals import Copies

from ...stage.engine import OUT, Engine
from ...stage.log_events import coordinator_elected
from ...stage.virtual import virtual_in
from .group import until
from .test_hand_over import KEYS, PLACE, Pair

LOWER, UPPER = WHOLE.split(SPACE_END // 2)


class Decided(Pair):
    """Two members, and a coordinator's decisions by hand."""

    def take_office(self) -> None:
        """No member decides any more: the one that is elected is never heard of, for a session."""
        control = self.ledger().control
        self.write(coordinator_elected(control.term + 1, "by hand", control.app_birth))

    def write(self, *events: ControlEvent) -> None:
        """Into the control log."""
        self.cluster.write([Outgoing("app.control", 0, None, encode(event)) for event in events], ())

    def ledger(self) -> Ledger:
        """Both logs as they are now."""
        return evolve_all(Ledger(), [*self.events("app.control"), *self.events()])

    def ask_copy(self, engine: Engine, *bands: KeyRange, role: str = "learner", bytes_per_s: int = 0) -> int:
        """COPY_ASKED; the number of its move."""
        control = self.ledger().control
        move, incarnation = control.moves.move_max + 1, engine.member.own_ledger.incarnation
        spans = tuple(Span(band.first, band.end) for band in bands)
        self.write(CopyAsked(control.term, control.number + 1, move, incarnation, *PLACE, spans, role, bytes_per_s))
        return move

    async def ready(self, move: int) -> None:
        """Wait until the member has said that the copy is."""
        await until(lambda: any(copy.move == move and copy.is_ready for told in self.told() for copy in told.copies))

    def told(self) -> list[Copies]:
        """What was said of copies."""
        said = [decode_signal(record.value or b"") for record in self.cluster.committed_records("app.signals")]
        return [one for one in said if isinstance(one, Copies)]

    async def released(self, engine: Engine, within: KeyRange, move: int) -> None:
        """RELEASE_ASKED; returns when all of it is committed."""
        control = self.ledger().control
        (epoch,) = {owner.epoch for _, _, owner in control.owners[PLACE].pieces(within.first, within.end)}
        own = engine.member.own_ledger.incarnation
        number = control.number + 1
        self.write(ReleaseAsked(control.term, number, move, own, epoch, *PLACE, within.first, within.end, 30_000))

        def is_free() -> bool:
            gone = [event for event in self.events() if isinstance(event, RangesReleased) and event.move == move]
            return sum(band.end - band.first for event in gone for band in event.bands) == within.size

        await until(is_free)

    async def granted(self, engine: Engine, within: KeyRange) -> None:
        """GRANT; returns when its workers run."""
        ledger = self.ledger()
        turn = Turn(ledger.control.term, ledger.control.number)
        self.write(*decide_grant(ledger, turn, PLACE, engine.member.own_ledger.incarnation, within))
        await until(lambda: self.points(engine, within) == within.size)

    def counts_are_right(self) -> None:
        """Each output bears how many records its key had by then."""
        seen = dict.fromkeys(range(KEYS), 0)
        values = [(record.value or b"").split() for record in self.cluster.committed_records(OUT)]
        for number, count in sorted((int(number), int(count)) for number, count in values):
            seen[number % KEYS] += 1
            assert count == seen[number % KEYS], number

    def copied(self, engine: Engine, within: KeyRange) -> dict[bytes, bytes]:
        """What a member's copy holds of a range."""
        return {k: v for k, v in engine.copied().get(0, {}).items() if within.contains(int.from_bytes(k[:4], "big"))}

    def committed(self, within: KeyRange) -> dict[bytes, bytes]:
        """What its changelog says."""
        state = self.owner.folded().get(0, {})
        return {k: v for k, v in state.items() if within.contains(int.from_bytes(k[:4], "big"))}


@contextlib.asynccontextmanager
async def decided() -> AsyncIterator[Decided]:
    """Both members at work; in the end all that was sent was counted rightly."""
    pair = Decided(session_timeout_ms=300_000)
    await pair.start(is_stateful=True)
    pair.take_office()
    yield pair
    if pair.sending is not None:
        pair.sending.cancel()
    await until(lambda: len(pair.cluster.committed_records(OUT)) >= pair.sent)
    pair.counts_are_right()
    for engine in (pair.other, pair.owner):
        await engine.crash()


def restored_records(caplog: pytest.LogCaptureFixture) -> list[int]:
    """How many records each restore has read so far."""
    said = [record.getMessage() for record in caplog.records]
    found = [re.match(r"restored the state of .*: ([0-9,]+) records", line) for line in said]
    return [int(match[1].replace(",", "")) for match in found if match]


@virtual_in(decided)
async def test_a_range_moves_behind_its_copy(pair: Decided, caplog: pytest.LogCaptureFixture) -> None:
    """The copy is made while its owner works; the new owner reads the tail alone, and counts on. The old one follows
    from where it was, and takes it up again from there.
    """
    caplog.set_level(logging.DEBUG, "keylanes")
    for _ in range(100):
        pair.send(KEYS)
        await asyncio.sleep(0.1)
    pair.keep_sending(1)
    move = pair.ask_copy(pair.other, LOWER)
    await pair.ready(move)
    assert pair.other.member.statistics(0.0).copying[:2] == (1, 1)
    all_of_it = len(pair.cluster.committed_records(pair.owner.changelog()))
    await pair.released(pair.owner, LOWER, move)
    back = pair.ask_copy(pair.owner, LOWER, role="standby")
    caplog.clear()
    await pair.granted(pair.other, LOWER)
    (tail,) = restored_records(caplog)
    assert tail < all_of_it / 10
    assert pair.other.member.statistics(0.0).copying.copies == 0, "what it owns is no copy"

    await pair.ready(back)
    standby = pair.owner.member.statistics(0.0).copying
    assert standby.bytes_standby < 10_000, "nothing was read that it had written itself"
    await asyncio.sleep(5.0)
    stale_ms = pair.owner.member.keeper.learner.stale_ms(PLACE, LOWER.first)
    assert stale_ms is not None
    assert stale_ms < 1_500
    await pair.released(pair.other, LOWER, back)
    caplog.clear()
    await pair.granted(pair.owner, LOWER)
    (tail,) = restored_records(caplog)
    assert tail < all_of_it / 10


@virtual_in(decided)
async def test_the_old_owner_follows(pair: Decided) -> None:
    """What the new one writes comes into its copy; what it goes on writing of the rest is marked for that alone."""
    pair.send(5 * KEYS)
    await asyncio.sleep(2.0)
    await pair.released(pair.owner, LOWER, 1)
    pair.ask_copy(pair.owner, LOWER, role="standby")
    await pair.granted(pair.other, LOWER)
    for _ in range(10):
        pair.send(5 * KEYS)
        await asyncio.sleep(0.3)
    await asyncio.sleep(3.0)
    assert pair.committed(LOWER)
    assert pair.copied(pair.owner, LOWER) == pair.committed(LOWER)
    assert pair.copied(pair.owner, UPPER) == pair.committed(UPPER)


@virtual_in(decided)
async def test_a_promotion_that_failed_goes_back(pair: Decided, caplog: pytest.LogCaptureFixture) -> None:
    """Who released it has followed it since: it restores the tail, for older values may lie there for a moment, and
    works on.
    """
    caplog.set_level(logging.DEBUG, "keylanes")
    for _ in range(20):
        pair.send(KEYS)
        await asyncio.sleep(0.1)
    await pair.released(pair.owner, LOWER, 1)
    move = pair.ask_copy(pair.owner, LOWER, role="standby")
    await pair.ready(move)
    followed = pair.owner.member.holding.held.followed[PLACE]
    assert followed.is_constant(LOWER.first, LOWER.end, value=True)
    caplog.clear()
    await pair.granted(pair.owner, LOWER)
    (tail,) = restored_records(caplog)
    assert tail < 100
    pair.send(5 * KEYS)


@virtual_in(decided)
async def test_a_range_that_was_not_followed_comes_back_without_a_restore(
    pair: Decided, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was written since it was released, and nothing is read."""
    caplog.set_level(logging.DEBUG, "keylanes")
    pair.send(5 * KEYS)
    await asyncio.sleep(2.0)
    await pair.released(pair.owner, LOWER, 1)
    caplog.clear()
    await pair.granted(pair.owner, LOWER)
    assert restored_records(caplog) == []
    pair.ask_copy(pair.owner, LOWER, role="standby")
    await asyncio.sleep(2.0)
    assert pair.owner.member.keeper.learner.copies() == (), "it owns it"
    pair.send(5 * KEYS)


@virtual_in(decided)
async def test_a_part_of_what_is_copied_is_granted(pair: Decided) -> None:
    """The learner does not write it any more; it follows the rest."""
    pair.send(5 * KEYS)
    move = pair.ask_copy(pair.other, LOWER, UPPER)
    await pair.ready(move)
    await pair.released(pair.owner, LOWER, move)
    await pair.granted(pair.other, LOWER)
    pair.send(5 * KEYS)
    await asyncio.sleep(3.0)
    keeper = pair.other.member.keeper
    assert keeper.learner.stale_ms(PLACE, LOWER.first) is None
    assert keeper.learner.stale_ms(PLACE, UPPER.first) is not None
    assert [points.pieces() for points in (one.points for one in keeper.learner._places[PLACE].passes)] == [
        [(UPPER.first, UPPER.end, True)]
    ]
    assert pair.copied(pair.other, WHOLE) == pair.committed(WHOLE)


@virtual_in(decided)
async def test_a_grant_in_the_middle_of_a_copy(pair: Decided) -> None:
    """Whoever is not ready restores what is left; what the learner was about to write is not written then."""
    for _ in range(50):
        pair.send(KEYS)
        await asyncio.sleep(0.1)
    pair.keep_sending(1)
    move = pair.ask_copy(pair.other, LOWER, bytes_per_s=5_000)
    await until(lambda: pair.other.member.statistics(0.0).copying.bytes_learner > 0)
    assert not any(copy.is_ready for told in pair.told() for copy in told.copies)
    await pair.released(pair.owner, LOWER, move)
    await pair.granted(pair.other, LOWER)
    await asyncio.sleep(2.0)
