"""The rights that an application needs, and the check of the rights at the start, before any change.

``rights_needed`` is the least-privilege table of docs/security.md. The check asks for rights on the application's own
topics by name; the error shows the beginning of the names, because an ACL grants the rights by prefix.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ...brokers.patience import within_limit
from ...brokers.protocol import Broker, NotAuthorized, TopicDescription
from ...brokers.rights import OUTPUT_OPERATIONS, Operation, Right, as_granted
from ...state.changelog import changelog_topic
from ...state.tables import TABLE_CONFIG
from ..handlers.handler import Handler
from ..settings import Settings
from . import replication
from .reader import control_topic, offsets_topic, signals_topic
from .topics import destinations_of, prepare_topics

logger = logging.getLogger("keylanes")

SOURCE: Final[tuple[Operation, ...]] = ("READ", "DESCRIBE_CONFIGS")
LOG: Final[tuple[Operation, ...]] = ("READ", "WRITE", "DESCRIBE_CONFIGS")


def rights_needed(app: str, handlers: Sequence[Handler], *, creates: bool) -> list[Right]:
    """The rights that an application needs to run. ``creates``: whether the application makes missing topics.

    Further rights: ``start="group:…"`` needs DESCRIBE on the group, at the first start of the topic; sent records for a
    topic that no handler declares need the rights of an output.
    """
    stateful = [handler.topic for handler in handlers if handler.stores]
    create: tuple[Operation, ...] = ("CREATE",) if creates else ()
    needs = [Right("topic", handler.topic, operation) for handler in handlers for operation in SOURCE]
    for topic in destinations_of(handlers):
        needs += [Right("topic", topic, operation) for operation in (*OUTPUT_OPERATIONS, *create)]
    logs = (control_topic(app), offsets_topic(app), signals_topic(app))
    for topic in (*logs, *(changelog_topic(app, source) for source in stateful)):
        needs += [Right("topic", topic, operation) for operation in (*LOG, *create)]
        if topic == offsets_topic(app):
            needs.append(Right("topic", topic, "DELETE"))  # to trim events older than history_ms
    needs.append(Right("transactional-id", f"{app}.", "WRITE"))
    return list(dict.fromkeys(needs))


async def prepare_with_rights(
    app: str, handlers: Sequence[Handler], broker: Broker, settings: Settings
) -> dict[str, TopicDescription]:
    """Check the rights, then prepare the topics (``prepare_topics``). Raises NotAuthorized with all missing rights,
    before any topic is made.
    """
    needs = rights_needed(app, handlers, creates=settings.create_topics)
    needs += await _group_rights(app, handlers, broker, settings)
    await refuse_lacking(broker, settings, needs, app)
    stateful = [handler.topic for handler in handlers if handler.stores]
    topics = await prepare_topics(app, handlers, broker, settings, stateful, TABLE_CONFIG)
    _log_replication(app, [topics[name] for name in sorted(written_to(app, handlers))])
    return topics


def written_to(app: str, handlers: Sequence[Handler]) -> list[str]:
    """The topics with the committed work of an application."""
    changelogs = [changelog_topic(app, handler.topic) for handler in handlers if handler.stores]
    return [control_topic(app), offsets_topic(app), *changelogs, *destinations_of(handlers)]


def _log_replication(app: str, topics: Sequence[TopicDescription]) -> None:
    if line := replication.replication_text(topics):
        logger.info("%s: %s", app, line)
    for line in replication.warnings(topics):
        logger.warning("%s: %s", app, line)


async def refuse_lacking(broker: Broker, settings: Settings, rights: Sequence[Right], app: str = "") -> None:
    """Raises NotAuthorized with all missing rights; rights on topics of ``app`` are named by prefix, as in an ACL."""
    lacking = await within_limit(broker.missing_rights(rights), settings.call_limit_ms, "asking for rights")
    if lacking.rights:
        raise NotAuthorized(as_granted(lacking.rights, app), lacking.principal)


async def _group_rights(app: str, handlers: Sequence[Handler], broker: Broker, settings: Settings) -> list[Right]:
    """The rights on consumer groups from which topics start. An application that has run before needs none: its control
    log names the started topics.
    """
    groups = {handler.start.group for handler in handlers if handler.start.group is not None}
    with suppress(NotAuthorized):  # the check of the other rights tells the refusal
        log = control_topic(app)
        if groups and log in await within_limit(broker.partitions([log]), settings.call_limit_ms, f"looking for {log}"):
            return []
    return [Right("group", group, "DESCRIBE") for group in sorted(groups)]
