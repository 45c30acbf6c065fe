"""Defects in who may write: fences, producers, transactions whose outcome is unknown, coordinators."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from keylanes.brokers.delivery import Session, SessionAppender
from keylanes.brokers.patience import within_limit
from keylanes.brokers.producer import TransactionalProducer
from keylanes.brokers.protocol import BrokerError, BrokerTimeout, TransactionUnknown
from keylanes.brokers.simulated.connection import SimulatedConnection
from keylanes.brokers.simulated.network import RequestKind
from keylanes.brokers.simulated.node import Node
from keylanes.brokers.simulated.requests import Numbered
from keylanes.group import cells, features, members
from keylanes.group.silence import Silence
from keylanes.offsets import control, snapshots
from keylanes.offsets.control import Control
from keylanes.offsets.ledger import Ledger, evolve_all
from keylanes.runtime import shutdown
from keylanes.runtime.engine.attempts import Attempts
from keylanes.runtime.engine.commit import CommitCycle
from keylanes.runtime.engine.transaction import Transactions
from keylanes.runtime.logs.own_ledger import OwnLedger
from keylanes.runtime.logs.reader import LogReader, OwnTransactions
from keylanes.runtime.member import AppRun
from keylanes.runtime.membership.decisions import Decisions
from keylanes.runtime.membership.errands import Errands
from keylanes.runtime.membership.group import Group
from keylanes.runtime.partition.generation import Generation

from ..brokers import test_simulated_appends, test_simulated_network
from ..group.finding import row
from ..offsets import test_control, test_counterexamples
from ..runtime import test_running
from ..runtime.logs import test_begin_anew
from ..runtime.membership import test_taken_over
from ..runtime.partition import test_generation
from ..stage.appending import append
from ..stage.planting import Planting, changed, everywhere
from .plants import DOUBLED, LEFT_OUT, LOST, NO_DEAD_LETTER, OUTSIDE, Plant, each, on_ground

NOT_FREE = "neither released nor was fenced at"
DAMAGE = "(LogError, SourceError, StateError)"
"""What a process that finds damage takes for its own expulsion, when there was one."""
GROUP_KINDS = ("rival", "rivals", "pause", "coordinator pauses", "crash")


def no_fence(patch: Planting) -> None:
    """Nobody is fenced."""

    async def fence(self: Errands, member: control.Member) -> None:
        self.memory.fenced.add(member.incarnation)

    patch.setattr(Errands, "_fence", fence)


def fence_does_not_wait(patch: Planting) -> None:
    """A fence that is answered with "transactions under way" counts as one that is through."""

    async def fence(self: Errands, member: control.Member) -> None:
        seat = self.memory
        assert isinstance(self.broker, SimulatedConnection)
        link = self.broker._new_link()
        for one in member.transactional_ids:
            deadline = link.deadline(f"fencing {one}")
            step_of = partial(_initialise, one)
            await link.ask_node(RequestKind.INIT, await link.coordinator(one, deadline), step_of, deadline)
        seat.fenced.add(member.incarnation)

    patch.setattr(Errands, "_fence", fence)


def _initialise(transactional_id: str, node: Node) -> Callable[[], int | None]:
    return partial(node.initialise, transactional_id, 60_000)


def produce_not_awaited(patch: Planting) -> None:
    """The commit is asked for while records are still on their way."""
    deliver = Session.deliver
    under_way: set[asyncio.Task[Any]] = set()

    async def begin(
        self: Session[Any], records: Any, groups: Any, deadline: Any, *, in_parts: bool = False
    ) -> dict[Any, int]:
        writing = deliver(self, records, groups, deadline, in_parts=in_parts)
        if not self._in_transactions:
            return await writing
        task = asyncio.get_running_loop().create_task(writing)
        under_way.add(task)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)
        return {}

    patch.setattr(Session, "deliver", begin)


def answers_not_looked_at(patch: Planting) -> None:
    """A batch whose answer is an error, or does not come, counts as delivered."""
    judge = Session._judge

    def trust(self: Session[Any], answers: Any, queues: Any) -> dict[Any, str]:
        return {} if self._in_transactions else judge(self, answers, queues)

    patch.setattr(Session, "_judge", trust)


def append_not_awaited(patch: Planting) -> None:
    """What is written to the control log is taken for written."""
    append = Decisions.append
    under_way: set[asyncio.Task[Any]] = set()

    async def begin(self: Decisions, events: Any) -> None:
        task = asyncio.get_running_loop().create_task(append(self, events))
        under_way.add(task)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)

    patch.setattr(Decisions, "append", begin)


def appenders_share_a_session(patch: Planting) -> None:
    """All appenders of a connection are one."""
    appender = SimulatedConnection.appender
    shared: dict[SimulatedConnection, SessionAppender[Numbered]] = {}

    def the_same(self: SimulatedConnection) -> SessionAppender[Numbered]:
        return shared.setdefault(self, appender(self))

    patch.setattr(SimulatedConnection, "appender", the_same)


def outcome_not_awaited(patch: Planting) -> None:
    """A transaction that takes long is taken for committed."""

    async def half(work: Any, limit_ms: int, what: str) -> Any:
        if what != "a transaction":
            return await within_limit(work, limit_ms, what)
        try:
            return await within_limit(work, 30, what)
        except (BrokerTimeout, TransactionUnknown):
            return {}

    patch.setattr("keylanes.runtime.engine.transaction", "within_limit", half)


def sent_again_unread(patch: Planting, kinds: tuple[type[BrokerError], ...]) -> None:
    """After a failure of these kinds a new producer sends the transaction again without a look into the log."""
    replace, transact = Transactions._replace_producer, TransactionalProducer.transact
    last: dict[str, BrokerError] = {}

    async def noted(self: TransactionalProducer[Any], records: Any, *, in_parts: bool = False) -> Any:
        try:
            return await transact(self, records, in_parts=in_parts)
        except BrokerError as error:
            last[self._id] = error
            raise

    async def unread(
        self: Transactions, deadline: float, doubtful: Collection[int] = (), *, was_fenced: bool = False
    ) -> None:
        is_one = isinstance(last.get(self.own_ledger.identity.transactional_id), kinds)
        await replace(self, deadline, () if is_one else doubtful, was_fenced=was_fenced)

    patch.setattr(TransactionalProducer, "transact", noted)
    patch.setattr(Transactions, "_replace_producer", unread)


def unknown_is_aborted(patch: Planting) -> None:
    """A commit without an answer is sent again."""
    sent_again_unread(patch, (TransactionUnknown, BrokerTimeout))


def office_not_checked(patch: Planting) -> None:
    """A fenced process makes itself a new producer and goes on."""

    def goes_on(self: OwnLedger) -> None:
        return None

    patch.setattr(OwnLedger, "check", goes_on)


def found_in_one_partition(patch: Planting) -> None:
    """What is known of own transactions is looked up anew for each partition of the log."""
    fold = LogReader.fold_offsets

    def look_up(self: LogReader, ledger: Ledger, source: Any, events: Any, own: OwnTransactions) -> Ledger:
        known = ledger.transactions.get(own.incarnation, 0)
        return fold(self, ledger, source, events, replace(own, folded=known, in_flight=None))

    patch.setattr(LogReader, "fold_offsets", look_up)


def own_folded_twice(patch: Planting) -> None:
    """Own events, which were folded when they were committed, are folded again when the log is read."""
    fold = LogReader.fold_offsets

    def all_of_it(self: LogReader, ledger: Ledger, source: Any, events: Any, own: OwnTransactions) -> Ledger:
        return fold(self, ledger, source, events, OwnTransactions())

    patch.setattr(LogReader, "fold_offsets", all_of_it)


def failed_is_committed(patch: Planting) -> None:
    """A transaction that failed for sure is treated as if it had been committed."""
    transact = Transactions._transact

    async def trust(self: Transactions, generation: Any, deadline: float) -> Any:
        failure = await transact(self, generation, deadline)
        if failure is not None:
            standing = self.own_ledger
            standing.ledger = evolve_all(standing.ledger, generation.events(standing.transaction))
            self._finish(generation, has_snapshot=False)
        return None

    patch.setattr(Transactions, "_transact", trust)


def incarnation_comes_back(patch: Planting) -> None:
    """A process takes the number of the one before it."""
    patch.setattr(Control, "incarnation_next", property(lambda self: max(self.members, default=1)))


def dead_letter_outside(patch: Planting) -> None:
    """The dead letter is written at once; the transaction that commits its record does not have it."""
    give_up = Attempts._fail_record

    async def write_now(self: Attempts, run: Any, record: Any, error: Exception, attempts: int) -> Any:
        done = await give_up(self, run, record, error, attempts)
        await append(self.destinations.broker, done.outputs)

    patch.setattr(Attempts, "_fail_record", write_now)


def last_commit_left_out(patch: Planting) -> None:
    """A stop in order ends without committing what is done."""

    async def nothing(cycle: CommitCycle, released: Any) -> None:
        return None

    everywhere(patch, shutdown._commit_rest, nothing)


PLANTS = [
    Plant("no fence", no_fence, kinds=("rival", "rivals", "pause", "slow"), finding=f"{DOUBLED}|is under way"),
    Plant(
        "FENCED without a fence",
        row(members, "tell_fenced", (" and m.incarnation in view.memory.fenced", "")),
        kinds=("rival", "rivals", "pause", "slow"),
        finding="is under way",
    ),
    Plant(
        "grant without FENCED",
        changed(cells, "_state_of_points", ("return CellState.LEAVING", "return CellState.FREE")),
        kinds=GROUP_KINDS,
        finding=NOT_FREE,
    ),
    Plant(
        "granted without reading",
        changed(cells, "_state_of_points", ("CellState.FREE if is_read else CellState.UNREAD", "CellState.FREE")),
        kinds=(*GROUP_KINDS, "slow"),
        finding=DOUBLED,
    ),
    Plant(
        "a release that is only asked for",
        changed(
            cells,
            "cells",
            (
                "if is_released else _state_of_points(",
                (
                    "if is_released or any(a.epoch == epoch for a in control.moves.release_requests.values())"
                    " else _state_of_points("
                ),
            ),
        ),
        kinds=("rival", "storm", "release", "slow"),
        finding=NOT_FREE,
    ),
    Plant(
        "a snapshot by anybody",
        changed(Group, "takes_snapshots", ("self.coordinating.is_coordinator and", "True and")),
        kinds=("rival", "storm"),
        finding="which never coordinated",
    ),
    Plant(
        "INIT without READ",
        changed(
            Transactions,
            "_replace_producer",
            ("await self.own_ledger.confirm()", "pass"),
            ("if doubtful:", "if False:"),
        ),
        kinds=("unknown", "lost replies"),
        finding=f"{DOUBLED}|{OUTSIDE}",
    ),
    Plant(
        "two of one name",
        changed(features, "_is_namesake", ("bool(asked.instance) and ", "False and ")),
        kinds=("twin", "flapping", "crash"),
        finding="has the name of .*, which is not fenced",
    ),
    Plant(
        "decisions of an older term count",
        changed(
            control,
            "event_counts",
            ("event.term == control.term and event.number == control.number + 1", "True"),
        ),
        (test_control.test_each_term_has_numbers_of_its_own,),
        finding="assert .*'t': 'z'",
    ),
    Plant(
        "an outage is silence",
        changed(Silence, "hear", ("if step > self.gap_ms:", "if step < 0:")),
        kinds=("signals away",),
        finding="at most the signals were away",
    ),
    *(
        Plant(
            f"{what} is damage for one that was expelled",
            changed(AppRun, "_run", (DAMAGE, others)),
            (each(test_taken_over.test_damage_that_an_expelled_process_finds_is_its_expulsion),),
            finding=f"{error}: damaged",
        )
        for what, others, error in (
            ("what retention took", "(LogError, StateError)", "SourceError"),
            ("newer state", "(LogError, SourceError)", "StateError"),
            ("a log that was trimmed", "(SourceError, StateError)", "LogError"),
        )
    ),
    Plant(
        "a log begun anew beside a transaction",
        changed(OwnLedger, "_begin_offsets", ("async with self.transaction_lock:", "if True:")),
        (test_begin_anew.test_what_is_committed_while_the_log_is_begun_anew_counts_once,),
        finding=f"LogError.*{OUTSIDE}",
    ),
    Plant(
        "fence that does not wait",
        fence_does_not_wait,
        kinds=("rival", "rivals", "late markers", "slow"),
        finding=f"{DOUBLED}|is under way",
    ),
    Plant("future not awaited", produce_not_awaited, finding=LEFT_OUT),
    Plant("future not awaited: a failed batch", answers_not_looked_at, finding=LEFT_OUT),
    Plant("future not awaited: the control log", append_not_awaited, finding="was acknowledged and does not count"),
    Plant(
        "appenders share one session",
        appenders_share_a_session,
        (test_simulated_appends.test_an_append_without_an_answer_holds_up_its_own_appender_only,),
        finding="it waited for another appender",
    ),
    Plant("future not awaited: the outcome", outcome_not_awaited, finding=LOST),
    Plant(
        "same producer after an unknown EndTxn",
        changed(
            TransactionalProducer,
            "_commit",
            ('self.requests.deadline(f"the commit of {self._id!r}")', 'self.requests.deadline("the commit", 60_000)'),
            (".verdict is Verdict.AGAIN:", ".verdict in (Verdict.AGAIN, Verdict.LOST):"),
        ),
        (each(test_simulated_network.test_a_lost_commit_is_unknown),),
        finding="DID NOT RAISE .*TransactionUnknown",
    ),
    Plant(
        "doubt taken for no",
        changed(
            TransactionalProducer,
            "_commit",
            ("answer.verdict is Verdict.NOT_SENT:", "answer.verdict in (Verdict.NOT_SENT, Verdict.DOUBTFUL):"),
        ),
        found_by=(test_simulated_network.test_a_coordinator_that_can_not_confirm_a_commit_leaves_it_unknown,),
        finding="TransactionAborted: aborted, the commit could not be asked for",
    ),
    Plant("unknown taken for aborted", unknown_is_aborted, kinds=("unknown", "lost replies"), finding=DOUBLED),
    Plant("fenced process goes on", office_not_checked, kinds=("rival", "rivals", "pause", "slow"), finding=DOUBLED),
    Plant(
        "unknown transaction found in one partition only",
        found_in_one_partition,
        kinds=("unknown", "lost replies"),
        finding=f"InvariantBroken.*{OUTSIDE}|{DOUBLED}",
    ),
    Plant("own events folded twice", own_folded_twice, finding=f"LogError.*{OUTSIDE}"),
    Plant(
        "failed transaction taken for committed",
        failed_is_committed,
        kinds=("aborted", "away"),
        finding=f"{LOST}|nobody told of worker",
    ),
    Plant(
        "term unchecked",
        changed(control, "event_counts", ("event.term == control.term and event", "event")),
        (test_counterexamples.test_an_expulsion_that_was_acknowledged_may_not_count,),
        finding="not lost.is_expelled",
    ),
    Plant(
        "number unchecked",
        changed(control, "event_counts", (" and event.number == control.number + 1", "")),
        (
            test_counterexamples.test_a_grant_that_lands_behind_another_decision_makes_no_second_owner,
            test_control.test_the_numbers_of_a_term_count_once_and_in_turn,
        ),
        finding="is None|== wanted",
    ),
    Plant(
        "a second joining counts",
        changed(control, "_members", ("event.incarnation > control.incarnation_max and", "")),
        (each(test_counterexamples.test_a_second_copy_of_a_joining_brings_nobody_back),),
        finding="after.is_expelled|after.is_fenced",
    ),
    Plant(
        "incarnation that comes back",
        incarnation_comes_back,
        (test_control.test_who_is_forgotten_is_out_for_good,),
        finding="incarnation_next == 3",
    ),
    Plant(
        "snapshot while an event waits",
        changed(snapshots, "take_snapshot", ("in sorted(ledger.partition(place).waiting)", "in ()")),
        (test_counterexamples.test_no_snapshot_is_taken_of_progress_that_waits_for_its_grant,),
        finding="DID NOT RAISE",
    ),
    Plant("dead letter outside the transaction", dead_letter_outside, finding=NO_DEAD_LETTER),
    Plant(
        "structure ahead of the tiles that it follows",
        changed(
            Generation,
            "halves",
            (
                "Generation(shares[:middle], opening=self.opening)",
                "Generation(shares[:middle], self.structure, self.heirs, opening=self.opening)",
            ),
            ("Generation(shares[middle:], self.structure, self.heirs)", "Generation(shares[middle:])"),
        ),
        (test_generation.test_what_changes_ranges_rides_with_the_last_half,),
        finding=r"\[half.structure for half in halves\]|assert \[\[.+\] == \[\[\]",
    ),
    Plant(
        "commit cancelled by a stop",
        changed(
            shutdown.Shutdown,
            "_commit",
            ("await self._until_or_failed(lambda: not cycle.is_sending, lambda: self.left_s(COMMITTED))", "pass"),
            ("if cycle.is_sending or pending:", "if False:"),
        ),
        kinds=("stop", "slow", "late requests", "late markers"),
        finding=LOST,
    ),
    Plant(
        "stop without the last commit",
        last_commit_left_out,
        (on_ground(test_running.test_service_processes_and_stops_in_order),),
        finding=r"== list\(range\(100\)\)",
    ),
]
