"""The partitioners that an application names, checked."""

from collections.abc import Mapping

from ..brokers.partitioner import Partitioner, check_partitioner
from ..errors import SettingsError
from .handlers.handler import check_topic_name


def partitioners_of(partitioners: Mapping[str, Partitioner] | None) -> dict[str, Partitioner]:
    """The partitioners of an application, by topic. Raises SettingsError."""
    if partitioners is not None and not isinstance(partitioners, Mapping):
        raise SettingsError(
            f"partitioners is a mapping from topics to partitioners; seen {partitioners!r}. Name the topics that are "
            'written by it: App(…, partitioners={"orders": "crc32"})'
        )
    given = dict(partitioners or {})
    for topic, partitioner in given.items():
        check_topic_name(topic, "partitioners")
        check_partitioner(partitioner, topic)
    return given
