"""Whether a topic that an application writes and reads contains outputs of another application with the same sources.

An application that is started under a new name meets the outputs of the old application: its handlers read the old
outputs and their own, and each output comes twice. keylanes checks the topic before the start, and records read later.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from ...brokers.protocol import ConsumerRecord
from ...offsets.provenance import HEADER, decode_provenance

logger = logging.getLogger("keylanes")


def source_of_other(records: Iterable[ConsumerRecord], own: bytes, handled: Collection[str]) -> str | None:
    """The source topic of the first record that another application has made of a record of a topic in ``handled``;
    None: no record is such an output. ``own``: the id of the application; b"": each output is foreign.
    """
    for record in records:
        for name, data in record.headers:
            if name != HEADER or data is None or (own and own in data):
                continue
            try:
                made = decode_provenance(data)
            except ValueError:
                continue
            if made.topic in handled:
                return made.topic
    return None


class ForeignOutputs:
    """Warns once for each topic. ``looped``: the topics both written and read; ``handled``: all topics read; ``own``:
    the id of the application.
    """

    def __init__(self, looped: Collection[str], handled: Collection[str], own: Callable[[], bytes]) -> None:
        self._left = {*looped}
        self._handled = frozenset(handled)
        self._own = own

    def look(self, topic: str, records: Sequence[ConsumerRecord]) -> None:
        """Look at records that a reader has read."""
        if topic not in self._left:
            return
        source = source_of_other(records, self._own(), self._handled)
        if source is not None:
            self._left.remove(topic)
            logger.warning(
                "%s holds outputs that another application made of records of %s, which this one handles, too: the "
                "handler of %s is given what both made, so what it does is done twice. Stop one of them, or give this "
                "one a topic of its own: docs/process-again.md",
                topic,
                source,
                topic,
            )
