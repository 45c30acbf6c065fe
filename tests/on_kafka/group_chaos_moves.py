"""Operators without rest: somebody asks all the time that ranges of a group go from one member to another."""

import random
import threading
from collections.abc import Callable, Sequence

from confluent_kafka import Producer

from keylanes.group.overview import GroupShown
from keylanes.group.signals_fold import partition_of
from keylanes.keyrange.ranges import even_bounds
from keylanes.offsets.codec import encode
from keylanes.offsets.signals import MoveAsked

from .cluster_chaos_app import FACTOR

BY = "an operator"
CELLS_MAX = 3
"""So many neighbouring workers are asked for at once."""


class Mover:
    """A thread that asks every ``pause_s`` for a move of a few workers of one of ``sources``, to some member or to that
    which has least. ``group``: how it stood when somebody looked last.
    """

    def __init__(
        self,
        bootstrap: str,
        app: str,
        sources: Sequence[tuple[str, int]],
        group: Callable[[], GroupShown | None],
        seed: int,
        pause_s: float,
    ) -> None:
        self._app, self._sources, self._group, self._pause_s = app, sources, group, pause_s
        self._chance = random.Random(f"moves {seed}")
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "error_cb": lambda error: None})
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mover", daemon=True)
        self.asked = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """No more; a second call does nothing."""
        self._told.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._told.wait(self._pause_s):
            if (group := self._group()) is not None:
                self._ask(group)
            self._producer.poll(0)

    def _ask(self, group: GroupShown) -> None:
        there = [member for member in group.members if member.standing == "member"]
        if len(there) < 2:
            return
        least = min(there, key=lambda member: (member.share, member.incarnation))
        target = least if self._chance.random() < 0.5 else self._chance.choice(there)
        (topic, partition), bounds = self._chance.choice(self._sources), even_bounds(FACTOR)
        cells = self._chance.randint(1, CELLS_MAX)
        first = self._chance.randrange(FACTOR + 1 - cells)
        self.asked += 1
        request = f"{BY} {self.asked}"
        points = bounds[first], bounds[first + cells]
        signal = MoveAsked(request, BY, topic, partition, *points, target.incarnation, 0)
        self._producer.produce(f"{self._app}.signals", encode(signal), partition=partition_of(BY, request))
