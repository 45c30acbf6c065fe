"""PURE. Risks of topics that an application accepts, checked. Results may be wrong in these topics."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from ...errors import SettingsError
from .handler import Handler, check_topic_name


class Accepted(NamedTuple):
    """Topics by the risk that the application accepts.

    ``moved_keys``: topics with state that got more partitions. Old records of a key may lie in another partition than
    new ones. ``outputs_of_others``: topics that the application writes and reads, with outputs of another application
    for the same sources.
    """

    moved_keys: frozenset[str] = frozenset()
    outputs_of_others: frozenset[str] = frozenset()


NOTHING: Final = Accepted()


def check_accepted(*, moved_keys: Iterable[str], outputs_of_others: Iterable[str]) -> Accepted:
    """Check the arguments ``accept_…`` of ``App``; raises SettingsError."""
    others = _topics(outputs_of_others, "accept_outputs_of_others")
    return Accepted(_topics(moved_keys, "accept_moved_keys"), others)


def topics_in_loop(handlers: Iterable[Handler], accepts: Accepted) -> set[str]:
    """The topics that an application both writes and reads, without the topics in ``accepts.outputs_of_others``."""
    listed = list(handlers)
    written = {topic for handler in listed for topic in (*handler.outputs, handler.dead_letters)}
    return {handler.topic for handler in listed} & written - accepts.outputs_of_others


def _topics(named: Iterable[str], name: str) -> frozenset[str]:
    if isinstance(named, str) or not isinstance(named, Iterable):
        raise SettingsError(f'{name} is a sequence of topics; seen {named!r}: write App(…, {name}=("orders",))')
    topics = tuple(named)
    for topic in topics:
        check_topic_name(topic, name)
    return frozenset(topics)
