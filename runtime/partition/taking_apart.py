"""PURE. Take apart a generation that the broker refuses because of an output.

The generation is divided until the record with the refused output stands alone. The record then fails as its handler
would: the record becomes a dead letter, or stops the application. A refused dead letter stops the application, too. A
record that changed state does not become a dead letter: later records of its key have seen the change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...brokers.protocol import TransactionRefused
from ...errors import OutputRefused
from ..handlers.handler import DeadLetter, Stop
from ..handlers.outputs import Destination, build_dead_letter, place_of
from ..handlers.record_result import RecordResult
from .generation import Generation, WorkerPart


@dataclass(frozen=True, slots=True)
class Apart:
    """The generation is sent in ``parts``, one after the other."""

    parts: Sequence[Generation]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The record stood alone, and sends a dead letter now: the changed ``generation`` has to be sent again.

    ``said``: the message about the record, for people. ``grown_bytes``: by how much the record's result became larger.
    ``letter_of``: the source topic of the record.
    """

    generation: Generation
    said: str
    grown_bytes: int
    letter_of: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The record stood alone, and failed for good: the application stops."""

    why: str


@dataclass(frozen=True, slots=True)
class Unblamed:
    """No output is to blame, but keylanes' own records in the transaction: there is nothing to take apart."""

    why: str


Verdict: TypeAlias = Apart | Replaced | Failed | Unblamed


def take_apart(
    generation: Generation,
    refusal: TransactionRefused,
    policies: Mapping[str, DeadLetter | Stop],
    known: Mapping[str, Destination],
) -> Verdict:
    """The verdict on a generation whose transaction was refused. The generation is used up: parts take over its shares.

    The culprits of the refusal are indexes into the generation's outputs; larger indexes are keylanes' own records.
    ``policies``: what becomes of a record that failed for good, by source topic. ``known``: destinations by topic.
    """
    count = len(generation.outputs())
    culprits = [i for i in refusal.culprits if i < count]
    # keylanes' own records have the time of this machine's clock: where their times are refused, the clock is wrong.
    if not culprits or (refusal.is_untimely and len(culprits) < len(refusal.culprits)):
        return Unblamed(f"the broker refuses to take the offset log's events or changes of state: {refusal}")
    if generation.stretches:  # the culprit is found when the records are sent one by one
        generation.spread()
        return Apart([generation])
    if sum(len(share.done) for share in generation.shares) > 1:
        return Apart(generation.isolate(culprits))
    share = next(share for share in generation.shares if share.done)  # other workers may have moved without results
    policy = policies[share.dispatch.topic]
    instead = _instead(share, refusal, policy, known)
    if isinstance(instead, Failed):
        return instead
    done, said = instead
    before = share.done[0]
    share.done = [done]
    return Replaced(generation, said, done.size - before.size, share.dispatch.topic)


def _instead(
    share: WorkerPart, refusal: TransactionRefused, policy: DeadLetter | Stop, known: Mapping[str, Destination]
) -> tuple[RecordResult, str] | Failed:
    """The dead letter that the share's only record sends in place of the refused output, and the message about it."""
    dispatch = share.dispatch
    done, place = share.done[0], place_of(dispatch.topic, dispatch.partition, dispatch.app_id)
    where = f"{place.topic}[{place.partition}] offset {done.record.offset}: the broker refuses its output: {refusal}"
    if done.changes:  # later records of the key have seen the changes
        return Failed(f"{where}; it changed state, so it can't become a dead letter any more")
    destination = known.get(policy.topic) if isinstance(policy, DeadLetter) else None
    if not isinstance(policy, DeadLetter) or destination is None or done.dead:
        return Failed(where)
    try:
        letter = build_dead_letter(done.record, policy.topic, destination, place, refusal, 1, dispatch.partitions)
    except OutputRefused as refused:  # a partitioner of the user's own
        return Failed(f"{where}; its dead letter can't be written: {refused}")
    return letter, f"{where}; it goes to {policy.topic}"
