"""The rights that an application needs, and the question for them at its start, before it changes anything.

``needed`` is the least-privilege table of docs/security.md. The rights on an application's own topics are asked for by
name and told by the beginning of the names, which is how an ACL grants them.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ...brokers.protocol import Broker, NotAuthorized, TopicDescription
from ...brokers.rights import OUTPUT_OPERATIONS, Operation, Right, as_granted
from ...brokers.waiting import within_limit
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
    """What an application needs to run. ``creates``: whether it makes topics that are missing.

    Beside it: ``start="group:…"`` needs DESCRIBE on the group, at the first start of its topic; records that are sent
    to topics that no handler declares need there what an output needs.
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
            needs.append(Right("topic", topic, "DELETE"))  # what is older than history_ms
    needs.append(Right("transactional-id", f"{app}.", "WRITE"))
    return list(dict.fromkeys(needs))


async def prepare_with_rights(
    app: str, handlers: Sequence[Handler], broker: Broker, settings: Settings
) -> dict[str, TopicDescription]:
    """``prepare_topics``, with what the rights allow; raises NotAuthorized, which names all that are missing, before
    anything is made.
    """
    needs = rights_needed(app, handlers, creates=settings.create_topics)
    needs += await _groups(app, handlers, broker, settings)
    await refuse_lacking(broker, settings, needs, app)
    stateful = [handler.topic for handler in handlers if handler.stores]
    topics = await prepare_topics(app, handlers, broker, settings, stateful, TABLE_CONFIG)
    _tell_replication(app, [topics[name] for name in sorted(written_to(app, handlers))])
    return topics


def written_to(app: str, handlers: Sequence[Handler]) -> list[str]:
    """The topics that hold what an application has committed."""
    changelogs = [changelog_topic(app, handler.topic) for handler in handlers if handler.stores]
    return [control_topic(app), offsets_topic(app), *changelogs, *destinations_of(handlers)]


def _tell_replication(app: str, topics: Sequence[TopicDescription]) -> None:
    if line := replication.replication_text(topics):
        logger.info("%s: %s", app, line)
    for line in replication.warnings(topics):
        logger.warning("%s: %s", app, line)


async def refuse_lacking(broker: Broker, settings: Settings, rights: Sequence[Right], app: str = "") -> None:
    """Raises NotAuthorized with all that are missing, those on what is the own of ``app`` as an ACL grants them."""
    lacking = await within_limit(broker.lacking(rights), settings.call_limit_ms, "asking for rights")
    if lacking.rights:
        raise NotAuthorized(as_granted(lacking.rights, app), lacking.principal)


async def _groups(app: str, handlers: Sequence[Handler], broker: Broker, settings: Settings) -> list[Right]:
    """Of groups that topics are started from, unless the application has run before: which topics it has started since
    stands in its control log.
    """
    groups = {handler.start.group for handler in handlers if handler.start.group is not None}
    with suppress(NotAuthorized):  # which is told beside these
        log = control_topic(app)
        if groups and log in await within_limit(broker.partitions([log]), settings.call_limit_ms, f"looking for {log}"):
            return []
    return [Right("group", group, "DESCRIBE") for group in sorted(groups)]
