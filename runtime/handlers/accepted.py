"""PURE. What an application accepts of its topics at its first start, though answers may be wrong for it; checked."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from ...errors import SettingsError
from .handler import check_topic_name


class Accepted(NamedTuple):
    """``moved_keys``: topics with state whose old records lie where fewer partitions put them."""

    moved_keys: frozenset[str] = frozenset()


NOTHING: Final = Accepted()


def accepted(*, moved_keys: Iterable[str]) -> Accepted:
    """What ``App`` is given, checked; raises SettingsError."""
    return Accepted(_topics(moved_keys, "accept_moved_keys"))


def _topics(named: Iterable[str], name: str) -> frozenset[str]:
    if isinstance(named, str) or not isinstance(named, Iterable):
        raise SettingsError(f'{name} is a sequence of topics; seen {named!r}: write App(…, {name}=("orders",))')
    topics = tuple(named)
    for topic in topics:
        check_topic_name(topic, name)
    return frozenset(topics)
