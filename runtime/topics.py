"""The topics of an application: its own logs and what its handlers name; made when missing, checked at the start."""

from collections.abc import Sequence

from .bounded import bounded
from .brokers.protocol import Broker, TopicDescription, TopicSpec
from .errors import SettingsError, SourceError
from .handlers import DeadLetter, Handler
from .logs import control_topic, offsets_topic
from .settings import Settings

LOG_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Nothing may expire from our logs by itself: an idle log with time retention empties itself."""

LOG_PARTITIONS_MAX = 64


def log_specs(app: str, source_partitions: int) -> list[TopicSpec]:
    """Our own topics. The offset log has as many partitions as the widest source, up to 64; it never grows."""
    return [
        TopicSpec(control_topic(app), 1, LOG_CONFIG),
        TopicSpec(offsets_topic(app), max(1, min(source_partitions, LOG_PARTITIONS_MAX)), LOG_CONFIG),
    ]


def destinations_of(handlers: Sequence[Handler]) -> list[str]:
    """The topics that handlers declare they write to."""
    named = {h.to for h in handlers if h.to is not None}
    named |= {h.on_failure.topic for h in handlers if isinstance(h.on_failure, DeadLetter)}
    return sorted(named)


def creation_commands(app: str, source_partitions: int) -> list[str]:
    """Kafka's own commands that create our logs, for people who create topics themselves."""
    commands = []
    for spec in log_specs(app, source_partitions):
        config = " ".join(f"--config {k}={v}" for k, v in spec.config.items())
        topic = f"--topic {spec.name} --partitions {spec.partitions}"
        commands.append(f"kafka-topics.sh --create --bootstrap-server BROKER {topic} {config}")
    return commands


async def prepare_topics(
    app: str, handlers: Sequence[Handler], broker: Broker, settings: Settings
) -> dict[str, TopicDescription]:
    """All topics the application needs, made where missing (``create_topics``) and checked.

    Raises SourceError for a missing source, SettingsError for a missing or unfit topic of ours or an output.
    """
    limit = settings.request_timeout_ms
    logs = [control_topic(app), offsets_topic(app)]
    named = [*(h.topic for h in handlers), *destinations_of(handlers)]
    for name in set(logs) & set(named):
        raise SettingsError(f"topic {name!r} is a log of application {app!r}: no handler reads or writes it")
    names = [*logs, *named]
    found = await bounded(broker.describe(names), limit, "describing topics")
    for handler in handlers:
        if handler.topic not in found:
            raise SourceError(f"the source topic {handler.topic!r} of handler {handler.name} does not exist")
    widest = max(found[h.topic].partitions for h in handlers)
    wanted = log_specs(app, widest)
    for name in destinations_of(handlers):
        partitions = max(found[h.topic].partitions for h in handlers if name in destinations_of([h]))
        wanted.append(TopicSpec(name, partitions, {}))
    missing = [spec for spec in wanted if spec.name not in found]
    if missing and not settings.create_topics:
        raise SettingsError(
            f"topics are missing and create_topics is off: {', '.join(spec.name for spec in missing)}. "
            f"`keylanes topics` prints the commands that create our logs"
        )
    if missing:
        await bounded(broker.create(missing), limit, "creating topics")
        found |= await bounded(broker.describe([spec.name for spec in missing]), limit, "describing topics")
    for spec in wanted:
        if spec.name not in found:
            raise SettingsError(f"the topic {spec.name!r} could not be created")
    _check_log(found[logs[0]], partitions=1)
    _check_log(found[logs[1]], partitions=None)
    return found


def _check_log(topic: TopicDescription, partitions: int | None) -> None:
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
