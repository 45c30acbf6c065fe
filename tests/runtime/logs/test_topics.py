"""The changelogs among the topics of an application: made as their sources are, and refused when state is not safe."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from keylanes.brokers.protocol import BrokerTimeout, TopicDescription, TopicSpec
from keylanes.brokers.simulated.broker import SimulatedBroker
from keylanes.brokers.simulated.connection import SimulatedConnection
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.errors import SettingsError
from keylanes.runtime.handlers.handler import Handler, declare
from keylanes.runtime.logs.topics import changelog_specs, creation_commands, prepare_topics, reserved_topics
from keylanes.runtime.settings import Settings
from keylanes.state.changelog import CHANGELOG_CONFIG
from keylanes.state.tables import TABLE_CONFIG

from ...stage.passing import Passing
from ...tiers.marks import tier

pytestmark = tier("check")

CHANGELOG = "x.changelog.src"


async def pack(value: int) -> int:
    """Nothing much."""
    return value


def handlers(source: str = "src", to: str = "out") -> list[Handler]:
    """One handler of a topic."""
    return [declare(pack, source, to=to)]


def made(partitions: int = 3) -> SimulatedBroker:
    """A cluster with two sources, one of a single partition."""
    cluster = SimulatedBroker(1)
    cluster.create_topic("src", partitions)
    cluster.create_topic("other", 1)
    return cluster


def prepared(
    cluster: SimulatedBroker,
    *,
    declared: Collection[Handler] = (),
    stateful: Collection[str] = ("src",),
    table_config: Mapping[str, str] | None = None,
    create_topics: bool = True,
) -> dict[str, TopicDescription]:
    """The application's topics after its start."""
    return run_virtual(
        prepare_topics(
            "x",
            [*declared] or handlers(),
            cluster.connect("x"),
            Settings(create_topics=create_topics),
            stateful,
            table_config or {},
        )
    )


class Behind(Passing):
    """A connection to a node that hears of topics late: some questions long it knows only of what was there before."""

    def __init__(self, broker: SimulatedConnection, questions: int) -> None:
        super().__init__(broker)
        self.questions, self.new = questions, set[str]()

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """See the protocol."""
        await self.real.create(specs)
        self.new = {spec.name for spec in specs}

    async def describe(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """See the protocol."""
        found = await self.real.describe(topics)
        self.questions -= bool(self.new)
        return {name: topic for name, topic in found.items() if self.questions < 0 or name not in self.new}


@pytest.mark.parametrize("questions", [0, 1, 7])
def test_a_node_that_hears_late_of_new_topics_is_waited_for(questions: int) -> None:
    """The node that made them is another one than the one that is asked for their settings."""
    node: Any = Behind(made().connect("x"), questions)
    topics = run_virtual(prepare_topics("x", handlers(), node, Settings(), ["src"]))
    assert {"x.control", "x.offsets", CHANGELOG, "out"} <= topics.keys()


def test_a_node_that_never_hears_of_new_topics_is_given_up() -> None:
    """Within the time that a call may take; the start tries again."""
    node: Any = Behind(made().connect("x"), 1_000_000)
    with pytest.raises(
        BrokerTimeout, match=r"waiting until all brokers know of x\.control, x\.offsets, .*out took longer than"
    ):
        run_virtual(prepare_topics("x", handlers(), node, Settings(), ["src"]))


def test_a_changelog_is_made_like_its_source() -> None:
    """As many partitions, compacted for ever; none for a source without stores; found again at the next start."""
    cluster = made()
    found = prepared(cluster, declared=[*handlers(), *handlers("other")])
    assert (found[CHANGELOG].name, found[CHANGELOG].partitions) == (CHANGELOG, 3)
    assert found[CHANGELOG].config.items() >= CHANGELOG_CONFIG.items()
    assert "x.changelog.other" not in cluster.topics()
    assert prepared(cluster, create_topics=False)[CHANGELOG] == found[CHANGELOG]


def test_a_broker_that_keeps_tables_is_told_so() -> None:
    """What the caller gives for such a broker goes into the changelog's configuration, and into no other's."""
    (spec,) = changelog_specs("x", {"src": 3}, TABLE_CONFIG)
    assert spec == TopicSpec(CHANGELOG, 3, {**CHANGELOG_CONFIG, **TABLE_CONFIG})
    extra = {"min.compaction.lag.ms": "1"}  # one that the simulated broker keeps
    found = prepared(made(), table_config=extra)
    assert [topic.name for topic in found.values() if extra.items() <= topic.config.items()] == [CHANGELOG]


def test_a_missing_changelog_is_made_only_when_topics_may_be() -> None:
    """With create_topics off the start is refused, and the message names the changelog."""
    cluster = made()
    prepared(cluster, stateful=())
    with pytest.raises(SettingsError, match=r"create_topics is off: x\.changelog\.src"):
        prepared(cluster, create_topics=False)


@pytest.mark.parametrize("policy", ["delete", "compact,delete", None])
def test_a_changelog_from_which_something_is_deleted_is_refused(policy: str | None) -> None:
    """Only compaction keeps the newest value of each key; the default of a topic made by hand does not."""
    cluster = made()
    cluster.create_topic(CHANGELOG, 3, {} if policy is None else {"cleanup.policy": policy})
    with pytest.raises(SettingsError, match=f"must have cleanup.policy=compact .* it has {policy or 'delete'!r}"):
        prepared(cluster)


@pytest.mark.parametrize("partitions", [1, 2, 4])
def test_a_changelog_with_other_partitions_than_its_source_is_refused(partitions: int) -> None:
    """Fewer: the source got more meanwhile; more: it is the changelog of another one."""
    cluster = made()
    cluster.create_topic(CHANGELOG, partitions, CHANGELOG_CONFIG)
    with pytest.raises(SettingsError, match=f"{CHANGELOG} has {partitions} partitions, its source 3"):
        prepared(cluster)


@pytest.mark.parametrize("handler", [handlers(CHANGELOG), handlers(to="x.changelog.gone")], ids=["read", "written"])
def test_no_handler_reads_or_writes_a_changelog(handler: list[Handler]) -> None:
    """Neither one that is in use nor one of a source that has no stores any more."""
    with pytest.raises(SettingsError, match="no handler reads or writes it"):
        prepared(made(), declared=handler)


def test_the_commands_make_changelogs_too() -> None:
    """For the sources that are named, with their own numbers of partitions."""
    commands = creation_commands("x", 6, {"src": 3, "other": 6})
    assert [command.split("--topic ")[1].split()[:3] for command in commands] == [
        ["x.control", "--partitions", "1"],
        ["x.offsets", "--partitions", "6"],
        ["x.signals", "--partitions", "5"],
        ["x.changelog.other", "--partitions", "6"],
        [CHANGELOG, "--partitions", "3"],
    ]
    assert all(f"--config {key}={value}" in commands[-1] for key, value in CHANGELOG_CONFIG.items())


def test_what_only_the_application_itself_writes_to() -> None:
    """Its logs, and the changelogs of its sources with stores."""
    assert reserved_topics("x", ["src"]) == {"x.control", "x.offsets", "x.signals", CHANGELOG}
