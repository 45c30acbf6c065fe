"""The topics of an application: its logs and the topics of its handlers; made when missing, checked at the start."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ...brokers.patience import within_limit
from ...brokers.protocol import Broker, TopicDescription, TopicSpec
from ...errors import SettingsError, SourceError
from ...group.signals_fold import PARTITIONS as SIGNALS_PARTITIONS
from ...state.changelog import CHANGELOG_CONFIG, changelog_topic
from ..handlers.handler import DeadLetter, Handler
from ..settings import Settings
from ..watch.story import count_text
from .reader import control_topic, offsets_topic, signals_topic

logger = logging.getLogger("keylanes")

BROKER_TIME = {"message.timestamp.type": "LogAppendTime"}
"""Times of the broker's clock: the clocks of processes differ."""

LOG_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", **BROKER_TIME}
"""Nothing may expire from our logs: an idle log with time retention empties itself. Only the history needs the age of
an event.
"""

SIGNALS_CONFIG = {"cleanup.policy": "delete", "retention.ms": "1800000", "segment.ms": "600000", **BROKER_TIME}
"""Half an hour of signals, which are of no use after a session. The timestamps show which process is silent."""

LOG_PARTITIONS_MAX = 64
KNOWN_PAUSE_MS = 50
"""The pause between two looks whether a created topic is known."""

NEW_TOPIC: Final = (
    "Write its records to a new topic by one partitioner, and process that one under a new application name: "
    "docs/partitioners.md has the program"
)
"""The advice for a topic with state that got more partitions."""
NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})


def log_specs(app: str, source_partitions: int) -> list[TopicSpec]:
    """Our own topics. The offset log has as many partitions as the widest source, up to 64, and never more later."""
    return [
        TopicSpec(control_topic(app), 1, LOG_CONFIG),
        TopicSpec(offsets_topic(app), max(1, min(source_partitions, LOG_PARTITIONS_MAX)), LOG_CONFIG),
        TopicSpec(signals_topic(app), SIGNALS_PARTITIONS, SIGNALS_CONFIG),
    ]


def changelog_specs(
    app: str, stateful: Mapping[str, int], table_config: Mapping[str, str] = NO_CONFIG
) -> list[TopicSpec]:
    """The changelogs of source topics with stores, each with as many partitions as its source has (``stateful``).

    ``table_config``: further settings for a broker that stores tables.
    """
    config = {**CHANGELOG_CONFIG, **table_config}
    return [TopicSpec(changelog_topic(app, source), n, config) for source, n in sorted(stateful.items())]


def reserved_topics(app: str, stateful: Collection[str]) -> frozenset[str]:
    """The topics that only keylanes writes to."""
    logs = (control_topic(app), offsets_topic(app), signals_topic(app))
    return frozenset((*logs, *(changelog_topic(app, source) for source in stateful)))


def destinations_of(handlers: Sequence[Handler]) -> list[str]:
    """The topics that handlers write to by their declaration."""
    named = {topic for h in handlers for topic in h.outputs}
    named |= {h.on_failure.topic for h in handlers if isinstance(h.on_failure, DeadLetter)}
    return sorted(named)


def creation_commands(
    app: str, source_partitions: int, stateful: Mapping[str, int], replicas: int | None = None
) -> list[str]:
    """Kafka's own commands for creating our logs, for people who create topics themselves.

    ``stateful``: the source topics with stores, with the number of their partitions. ``replicas``: None leaves it to
    the cluster (default.replication.factor).
    """
    factor = "" if replicas is None else f" --replication-factor {replicas}"
    commands = []
    for spec in [*log_specs(app, source_partitions), *changelog_specs(app, stateful)]:
        config = " ".join(f"--config {k}={v}" for k, v in spec.config.items())
        topic = f"--topic {spec.name} --partitions {spec.partitions}{factor}"
        commands.append(f"kafka-topics.sh --create --bootstrap-server BROKER {topic} {config}")
    return commands


async def prepare_topics(
    app: str,
    handlers: Sequence[Handler],
    broker: Broker,
    settings: Settings,
    stateful: Collection[str],
    table_config: Mapping[str, str] = NO_CONFIG,
    replicas: int | None = None,
) -> dict[str, TopicDescription]:
    """All topics of the application, made where missing (``create_topics``) and checked.

    ``stateful``: the source topics with stores; ``table_config``: see ``changelog_specs``; ``replicas``: of new topics.
    Raises SourceError for a missing source, SettingsError for a missing or unfit topic of ours or an output.
    """
    limit = settings.call_limit_ms
    control, offsets, signals = logs = control_topic(app), offsets_topic(app), signals_topic(app)
    named = [*(h.topic for h in handlers), *destinations_of(handlers)]
    for name in named:
        if name in logs or name.startswith(changelog_topic(app, "")):
            raise SettingsError(f"topic {name!r} is a log of application {app!r}: no handler reads or writes it")
    names = [*logs, *named, *(changelog_topic(app, source) for source in stateful)]
    found = await within_limit(broker.describe(names), limit, "describing topics")
    for handler in handlers:
        if handler.topic not in found:
            raise SourceError(
                f"the source topic {handler.topic!r} of handler {handler.name} does not exist, and sources are not "
                "created by their readers: create it with the partitions that it shall have, as by `keylanes "
                "topics MODULE:APP --partitions N --create`, or correct the name"
            )
    widest = max(found[h.topic].partitions for h in handlers)
    changelogs = changelog_specs(app, {source: found[source].partitions for source in stateful}, table_config)
    wanted = [*log_specs(app, widest), *changelogs]
    for name in destinations_of(handlers):
        partitions = max(found[h.topic].partitions for h in handlers if name in destinations_of([h]))
        wanted.append(TopicSpec(name, partitions, {}))
    missing = [spec._replace(replicas=replicas) for spec in wanted if spec.name not in found]
    if missing and not settings.create_topics:
        raise SettingsError(
            f"topics are missing and create_topics is off: {', '.join(spec.name for spec in missing)}. "
            f"`keylanes topics` prints the commands that create our logs"
        )
    if missing:
        await within_limit(broker.create(missing), limit, "creating topics")
        for spec in missing:
            logger.info("%s: created topic %s with %s", app, spec.name, count_text(spec.partitions, "partition"))
        created = ", ".join(spec.name for spec in missing)
        found |= await within_limit(
            _wait_until_known(broker, missing), limit, f"waiting until all brokers know of {created}"
        )
    _check_log(found[control], partitions=1)
    _check_log(found[offsets], partitions=None)
    _check_signals(found[signals])
    for spec in changelogs:
        _check_changelog(found[spec.name], spec.partitions)
    return found


async def _wait_until_known(broker: Broker, created: Sequence[TopicSpec]) -> dict[str, TopicDescription]:
    """The descriptions of created topics, as soon as the broker knows the topics from the controller."""
    names = [spec.name for spec in created]
    while len(found := await broker.describe(names)) < len(names):  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(KNOWN_PAUSE_MS / 1000)
    return dict(found)


def _check_changelog(topic: TopicDescription, partitions: int) -> None:
    """Check a changelog: retention by time or size would delete state; the partitions must match the source's."""
    if topic.partitions != partitions:
        raise SettingsError(
            f"{topic.name} has {topic.partitions} partitions, its source {partitions}; they must have as many. State "
            f"is kept by partition and key, so a source with stores can't get more partitions. {NEW_TOPIC}"
        )
    policy = topic.config.get("cleanup.policy", "delete")
    if policy != "compact":
        raise SettingsError(
            f"{topic.name} must have cleanup.policy=compact and nothing else (deletion would eat state); "
            f"it has {policy!r}"
        )


def _check_signals(topic: TopicDescription) -> None:
    if topic.partitions != SIGNALS_PARTITIONS:
        raise SettingsError(f"{topic.name} must have {SIGNALS_PARTITIONS} partitions; it has {topic.partitions}")
    if (kind := topic.config.get("message.timestamp.type", "LogAppendTime")) != "LogAppendTime":
        raise SettingsError(
            f"{topic.name} must have message.timestamp.type=LogAppendTime (the clocks of processes differ, and who is "
            f"silent is told by these times); it has {kind!r}"
        )


def _check_log(topic: TopicDescription, partitions: int | None) -> None:
    """Check the control log or the offset log. ``partitions``: the only number allowed; None: any number."""
    if partitions is not None and topic.partitions != partitions:
        raise SettingsError(f"{topic.name} must have {partitions} partition; it has {topic.partitions}")
    policy, retention = topic.config.get("cleanup.policy", "delete"), topic.config.get("retention.ms", "-1")
    if policy != "delete":
        raise SettingsError(
            f"{topic.name} must have cleanup.policy=delete (compaction would eat history); it has {policy!r}"
        )
    if retention != "-1":
        raise SettingsError(
            f"{topic.name} must have retention.ms=-1 (an idle log would empty itself); it has {retention}"
        )
