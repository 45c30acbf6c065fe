"""Creating the topics of an application: inputs and outputs of its handlers, and its logs."""

import asyncio
from collections.abc import Mapping

import msgspec

from ..brokers.patience import fatal_of
from ..brokers.protocol import Broker, BrokerError, TopicDescription, TopicSpec
from ..errors import EmbeddedInUse, SettingsError
from ..runtime.app import App
from ..runtime.connect import connect
from ..runtime.logs.rights import refuse_lacking
from ..runtime.logs.topics import destinations_of, log_specs, prepare_topics
from ..state.changelog import changelog_topic
from ..state.tables import TABLE_CONFIG
from .rights import to_create


def create_topics(app: App, partitions: int, narrower: Mapping[str, int], replicas: int | None = None) -> list[str]:
    """Create the missing topics of an application; returns a line for each topic: created, or there before.

    ``partitions``: of its sources, except the sources in ``narrower``, each with its own number. ``replicas``: None is
    the cluster's default. Raises SettingsError, BrokerUnavailable, StoreError, EmbeddedInUse while a process has the
    folder of an embedded broker.
    """
    if not app.handlers:
        raise SettingsError(f"application {app.name!r} has no handler: it has no topics to create")
    if not isinstance(app.broker, str):
        raise SettingsError(
            f"{app.name!r} has {type(app.broker).__name__} for a broker; topics --create needs an address: give "
            "App(broker=…) one, or set KEYLANES_BROKER"
        )
    return asyncio.run(_create(app, connect(app.broker, app.settings, app.name), partitions, narrower, replicas))


async def _create(
    app: App, broker: Broker, partitions: int, narrower: Mapping[str, int], replicas: int | None
) -> list[str]:
    try:
        await broker.open()
    except EmbeddedInUse as error:
        raise EmbeddedInUse(f"{error}. Or stop the application, create the topics, and start it again") from error
    except BrokerError as error:
        raise fatal_of(error) from error
    try:
        return await _create_missing(app, broker, partitions, narrower, replicas)
    except BrokerError as error:
        raise fatal_of(error) from error
    finally:
        await broker.close()


async def _create_missing(
    app: App, broker: Broker, partitions: int, narrower: Mapping[str, int], replicas: int | None
) -> list[str]:
    handlers = list(app.handlers.values())
    await refuse_lacking(broker, app.settings, to_create(app.name, handlers), app.name)
    stateful = [handler.topic for handler in handlers if handler.stores]
    sources = [TopicSpec(handler.topic, narrower.get(handler.topic, partitions), {}, replicas) for handler in handlers]
    logs = [spec.name for spec in log_specs(app.name, partitions)]
    names = [spec.name for spec in sources] + destinations_of(handlers) + logs
    names += [changelog_topic(app.name, topic) for topic in stateful]
    before = await broker.describe(names)
    missing = [spec for spec in sources if spec.name not in before]
    if missing:
        await broker.create(missing)
    settings = msgspec.structs.replace(app.settings, create_topics=True)
    found = await prepare_topics(app.name, handlers, broker, settings, stateful, TABLE_CONFIG, replicas)
    return [_line(found[name], is_new=name not in before) for name in dict.fromkeys(names)]


def _line(topic: TopicDescription, *, is_new: bool) -> str:
    what = "created" if is_new else "was there"
    line = f"{topic.name}: {what}, {topic.partitions} partition{'s' if topic.partitions > 1 else ''}"
    if topic.replication is None:
        return line
    return f"{line}, {topic.replication.replicas} replica{'s' if topic.replication.replicas > 1 else ''}"
