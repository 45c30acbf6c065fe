"""The rights that commands need, fewer than the application has: the second table of docs/security.md.

A command checks its rights before anything else, to name all missing rights at once.
"""

from collections.abc import Sequence
from typing import Final

from ..brokers.rights import Operation, Right
from ..runtime.handlers.handler import Handler
from ..runtime.logs.reader import control_topic, offsets_topic, signals_topic
from ..runtime.logs.topics import destinations_of, reserved_topics
from ..state.changelog import changelog_topic

MAKING: Final[tuple[Operation, ...]] = ("DESCRIBE", "DESCRIBE_CONFIGS", "CREATE")


def to_look(app: str) -> list[Right]:
    """To look at a group and its history."""
    return [Right("topic", log(app), "READ") for log in (control_topic, offsets_topic, signals_topic)]


def to_ask(app: str) -> list[Right]:
    """To send a request to a group."""
    return [
        Right("topic", control_topic(app), "READ"),
        Right("topic", offsets_topic(app), "DESCRIBE"),
        Right("topic", signals_topic(app), "WRITE"),
    ]


def to_find_owner(app: str, copied: str | None) -> list[Right]:
    """To find the owner of a key. ``copied``: the source topic for whose state the ends of the changelog are needed;
    None: no topic.
    """
    ends = [] if copied is None else [Right("topic", changelog_topic(app, copied), "DESCRIBE")]
    return [*(Right("topic", log(app), "READ") for log in (control_topic, offsets_topic)), *ends]


def to_create(app: str, handlers: Sequence[Handler]) -> list[Right]:
    """To create the missing topics of an application."""
    stateful = [handler.topic for handler in handlers if handler.stores]
    own = sorted(reserved_topics(app, stateful))
    names = [*(handler.topic for handler in handlers), *destinations_of(handlers), *own]
    return [Right("topic", name, operation) for name in dict.fromkeys(names) for operation in MAKING]
