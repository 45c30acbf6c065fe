"""The simulated cluster is honest: random scripts show the same on it and on a real Kafka.

A script that differs is printed with its first difference, and as small as it could be made.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest

from keylanes.brokers.protocol import Outgoing, TopicPartition
from keylanes.brokers.simulated.log import ClusterState, PartitionLog, Transaction

from ..stage.proxy import Proxy
from ..tiers.brokers import SharedKafka
from ..tiers.marks import tier
from ..tiers.names import fresh
from .honest_runs import KafkaRun, Seen, simulate
from .honest_scripts import Script, draw_script, past_scripts

SCRIPTS = range(150)
AT_ONCE = 8
SHRINKING_SECONDS_MAX = 60.0
"""For the shortest of the scripts that differ."""

logger = logging.getLogger("tests.honest")
pytestmark = [pytest.mark.broker, pytest.mark.timeout(420), tier("proof", "honest-simulation")]


class Real:
    """A real Kafka that plays many scripts at once; those that break connections one by one, through a proxy."""

    def __init__(self, server: SharedKafka) -> None:
        self._server = server
        self._places = asyncio.Semaphore(AT_ONCE)
        self._alone = asyncio.Lock()

    async def play(self, script: Script, expected: Sequence[Seen]) -> list[Seen]:
        """What the script shows."""
        prefix = fresh("honest") + "-"
        if not script.breaks:
            async with self._places:
                return await KafkaRun(prefix, self._server.bootstrap, None).play(script, expected)
        async with self._alone:
            proxy = Proxy(self._server.proxied_port, self._server.proxied_listener_port)
            await proxy.start()
            try:
                bootstrap = f"127.0.0.1:{self._server.proxied_port}"
                return await KafkaRun(prefix, bootstrap, proxy).play(script, expected)
            finally:
                await proxy.close()


def difference(script: Script, simulated: Sequence[Seen], real: Sequence[Seen]) -> str:
    """The first step that showed something else; empty: there is none."""
    for number, (step, ours, theirs) in enumerate(zip(script.steps, simulated, real, strict=True)):
        if ours != theirs:
            return f"step {number}: {step}\n  simulated: {ours}\n  Kafka:     {theirs}"
    return ""


def smaller(script: Script) -> Iterator[Script]:
    """The script without some of its steps, or without some of a step's records."""
    size = len(script.steps) // 2
    while size:
        for at in range(0, len(script.steps), size):
            yield script._replace(steps=script.steps[:at] + script.steps[at + size :])
        size //= 2
    for number, step in enumerate(script.steps):
        items = step.arguments.get("items", ())
        for at in range(len(items) if len(items) > 1 else 0):
            less = step._replace(arguments={**step.arguments, "items": [*items[:at], *items[at + 1 :]]})
            yield script._replace(steps=(*script.steps[:number], less, *script.steps[number + 1 :]))


async def shrunk(script: Script, real: Real) -> tuple[Script, str]:
    """The script with what can be left out left out, as long as it still differs, and how it differs then."""
    said = ""
    try:
        async with asyncio.timeout(SHRINKING_SECONDS_MAX):
            goes_on = True
            while goes_on:
                goes_on = False
                for less in smaller(script):
                    expected = await asyncio.to_thread(simulate, less)
                    found = difference(less, expected, await real.play(less, expected))
                    if found:
                        script, said, goes_on = less, found, True
                        break
    except TimeoutError:
        pass
    return script, said


@pytest.fixture(scope="module")
def scripts() -> list[Script]:
    """The scripts of all seeds, behind those of the past."""
    return [*past_scripts(), *(draw_script(seed) for seed in SCRIPTS)]


@pytest.fixture(scope="module")
def simulated(scripts: list[Script]) -> list[list[Seen]]:
    """What each of them shows on the simulated cluster."""
    return [simulate(script) for script in scripts]


@pytest.fixture(scope="module")
def real(scripts: list[Script], simulated: list[list[Seen]], kafka_server: SharedKafka) -> list[list[Seen]]:
    """What each of them shows on a real Kafka."""

    async def play() -> list[list[Seen]]:
        kafka = Real(kafka_server)
        return await asyncio.gather(*(kafka.play(*each) for each in zip(scripts, simulated, strict=True)))

    return asyncio.run(play())


def test_scripts_show_the_same_on_the_simulated_and_on_a_real_kafka(
    scripts: list[Script], simulated: list[list[Seen]], real: list[list[Seen]], kafka_server: SharedKafka
) -> None:
    """Outcomes, offsets, records, positions, watermarks, states and epochs of transactional ids: all are equal.

    A script that differs is played again, alone: where a machine has much to do a request may come behind another one
    that it comes before else. What does not differ then is said as a warning.
    """
    logger.info("%d scripts, %d steps", len(scripts), sum(len(script.steps) for script in scripts))
    differing = [each for each in zip(scripts, simulated, real, strict=True) if difference(*each)]
    wrong = asyncio.run(still_differing(differing, kafka_server))
    wrong.sort(key=lambda each: len(each[0].steps))
    if wrong:
        script, what = wrong[0]
        small, still = asyncio.run(shrink(script, kafka_server))
        others = "".join(f"\n\nscript {other.seed}, {others}" for other, others in wrong[1:10])
        pytest.fail(f"{len(wrong)} scripts differ\n{script}\n{what}\n\nmade smaller:\n{small}\n{still}{others}")


async def still_differing(
    differing: Sequence[tuple[Script, list[Seen], list[Seen]]], server: SharedKafka
) -> list[tuple[Script, str]]:
    """The scripts that differ when they are played again one by one, and how."""
    kafka, wrong = Real(server), list[tuple[Script, str]]()
    for script, ours, theirs in differing:
        if again := difference(script, ours, await kafka.play(script, ours)):
            wrong.append((script, again))
        else:
            logger.warning("script %d differed once: %s", script.seed, difference(script, ours, theirs))
    return wrong


async def shrink(script: Script, server: SharedKafka) -> tuple[Script, str]:
    """See ``shrunk``."""
    return await shrunk(script, Real(server))


def test_the_scripts_reach_what_they_are_for(simulated: list[list[Seen]], scripts: list[Script]) -> None:
    """Every step happens often, and so does every way in which a transaction may end."""
    met: Counter[str] = Counter()
    for script, shown in zip(scripts, simulated, strict=True):
        for step, seen in zip(script.steps, shown, strict=True):
            met[step.action] += 1
            if step.action == "transact":
                met[f"transact {seen if isinstance(seen, str) else seen[0] if isinstance(seen, tuple) else 'ok'}"] += 1
    outcomes = ("ok", "TransactionRefused", "TransactionAborted", "TransactionUnknown", "ProducerFenced", "BrokerError")
    assert all(met[f"transact {outcome}"] >= 10 for outcome in outcomes), met
    actions = ("append", "fence", "twin", "together", "hold", "release", "expire", "watermarks", "read", "trim")
    assert all(met[action] >= 5 for action in actions), met


def test_a_script_shows_the_same_whatever_the_delays(simulated: list[list[Seen]], scripts: list[Script]) -> None:
    """What scripts show does not depend on the simulated cluster's seed: a difference is one of behaviour."""
    for script, shown in zip(scripts, simulated, strict=True):
        assert difference(script, shown, simulate(script, seed=1)) == ""


# --- the comparison's own test ---------------------------------------------------------------------------------------


def markers_take_no_offset(patch: pytest.MonkeyPatch) -> None:
    """A marker is written beside the log."""
    mark = PartitionLog.mark

    def write(log: PartitionLog, transaction: Transaction) -> None:
        mark(log, transaction)
        log.entries.pop()

    patch.setattr(PartitionLog, "mark", write)


def readers_pass_open_transactions(patch: pytest.MonkeyPatch) -> None:
    """There is no last stable offset."""
    patch.setattr(PartitionLog, "stable", PartitionLog.high)


def nobody_is_fenced(patch: pytest.MonkeyPatch) -> None:
    """Older producers go on."""
    patch.setattr(ClusterState, "_current", lambda state, transactional_id, epoch: state.ids[transactional_id])
    patch.setattr(PartitionLog, "admit", lambda log, *arguments: True)


def late_ends_are_known_for_late(patch: pytest.MonkeyPatch) -> None:
    """An end names its transaction: one that is late does not end the next of its epoch."""
    begin, end = ClusterState.add_partitions, ClusterState.end

    def add(
        state: ClusterState, transactional_id: str, epoch: int, partitions: Collection[TopicPartition]
    ) -> tuple[Transaction, bool]:
        last = state.ids[transactional_id].transaction
        if last is not None and last.committed is None and last.epoch == epoch:
            state._current(transactional_id, epoch).transaction = None
        return begin(state, transactional_id, epoch, partitions)

    patch.setattr(ClusterState, "add_partitions", add)
    patch.setattr(ClusterState, "end", end)


def a_time_limit_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """What is open for too long is aborted, and its producer goes on."""

    def expire(state: ClusterState, transaction: Transaction) -> bool:
        was_open = transaction.committed is None
        transaction.committed = False if was_open else transaction.committed
        return was_open

    patch.setattr(ClusterState, "expire", expire)


def a_refusal_writes_nothing(patch: pytest.MonkeyPatch) -> None:
    """Of a transaction with a batch that is refused no record takes an offset."""
    produce = ClusterState.produce

    def check_all(state: ClusterState, *arguments: Any) -> int:
        records: Sequence[Outgoing] = arguments[2]
        end = produce(state, *arguments)
        if records[0].topic.endswith("small"):
            log = state.log(TopicPartition(records[0].topic, records[0].partition))
            del log.entries[len(log.entries) - len(records) :]
        return end

    patch.setattr(ClusterState, "produce", check_all)


@pytest.mark.parametrize(
    "plant",
    [
        markers_take_no_offset,
        readers_pass_open_transactions,
        nobody_is_fenced,
        late_ends_are_known_for_late,
        a_time_limit_keeps_the_epoch,
        a_refusal_writes_nothing,
    ],
)
def test_a_simulation_that_is_not_honest_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    scripts: list[Script],
    real: list[list[Seen]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With any of these defects in the simulated cluster a script differs."""
    plant(monkeypatch)
    for script, shown in zip(scripts, real, strict=True):
        try:
            found = difference(script, simulate(script), shown)
        except Exception as error:  # noqa: BLE001  # a cluster with a defect may break in any way
            found = repr(error)
        if found:
            logger.info("%s: found by script %d: %.200s", plant.__name__, script.seed, found)
            return
    pytest.fail(f"no script has noticed: {plant.__name__}")
