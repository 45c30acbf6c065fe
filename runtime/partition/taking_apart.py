"""PURE. What becomes of a generation that the broker refuses for what one of its outputs is.

It is taken apart until the record whose output is refused stands alone. That record then fails as its handler would:
it becomes a dead letter, or stops the application. A dead letter that is refused is sent once more, with the time of
now. A record that changed state does not become a dead letter: later records of its key have seen the change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...brokers.protocol import TransactionRefused
from ...errors import OutputRefused
from ..handlers.handler import DeadLetter, Stop
from ..handlers.outputs import Destination, build_dead_letter, place_of
from ..handlers.produced import Produced
from .generation import Generation, WorkerShare


@dataclass(frozen=True, slots=True)
class Apart:
    """It is sent in these parts, one after the other."""

    parts: Sequence[Generation]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The record stood alone, and sends something else now: the generation, as it is now, is sent again.

    ``said``: what became of the record, for people. ``grown_bytes``: how much larger is what it sends. ``letter_of``:
    the source topic of the record, which is a dead letter now.
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
    """No output is to blame, but what is ours in the transaction: there is nothing to take apart."""

    why: str


Verdict: TypeAlias = Apart | Replaced | Failed | Unblamed


def take_apart(
    generation: Generation,
    refusal: TransactionRefused,
    policies: Mapping[str, DeadLetter | Stop],
    known: Mapping[str, Destination],
) -> Verdict:
    """What to do with a generation whose transaction was refused. It is used up: parts share what it held.

    The culprits of the refusal are indexes into the generation's outputs; beyond them stands what is not of handlers.
    ``policies``: what becomes of a record that failed for good, by source topic. ``known``: topics that are written to.
    """
    count = len(generation.outputs())
    culprits = [i for i in refusal.culprits if i < count]
    if not culprits or (refusal.is_untimely and len(culprits) < len(refusal.culprits)):  # ours are stamped by our clock
        return Unblamed(f"the broker refuses to take the offset log's events or changes of state: {refusal}")
    if generation.stretches:  # who is to blame is told when it has been sent record by record
        generation.spread()
        return Apart([generation])
    if sum(len(share.done) for share in generation.shares) > 1:
        return Apart(generation.isolate(culprits))
    share = next(share for share in generation.shares if share.done)  # others may have moved without producing
    policy = policies[share.dispatch.topic]
    instead = _instead(share, refusal, policy, known)
    if isinstance(instead, Failed):
        return instead
    done, said = instead
    before = share.done[0]
    share.done = [done]
    return Replaced(generation, said, done.size - before.size, share.dispatch.topic)


def _instead(
    share: WorkerShare, refusal: TransactionRefused, policy: DeadLetter | Stop, known: Mapping[str, Destination]
) -> tuple[Produced, str] | Failed:
    """What a share's only record sends instead of what was refused, and what is said of that."""
    dispatch = share.dispatch
    done, place = share.done[0], place_of(dispatch.topic, dispatch.partition, dispatch.app_id)
    where = f"{place.topic}[{place.partition}] offset {done.record.offset}: the broker refuses its output: {refusal}"
    if done.changes:  # later records of its key have seen them
        return Failed(f"{where}; it changed state, so it can't become a dead letter any more")
    destination = known.get(policy.topic) if isinstance(policy, DeadLetter) else None
    if not isinstance(policy, DeadLetter) or destination is None or done.dead:
        return Failed(where)
    try:
        letter = build_dead_letter(done.record, policy.topic, destination, place, refusal, 1, dispatch.partitions)
    except OutputRefused as refused:  # a partitioner of the user's own
        return Failed(f"{where}; its dead letter can't be written: {refused}")
    return letter, f"{where}; it goes to {policy.topic}"
