"""Writes the source of a round of chaos with a client that is not ours, while everything else is killed."""

import random
import threading
import time
import zlib
from itertools import accumulate
from typing import Any

from confluent_kafka import KafkaError, Producer

from .chaos_app import PARTITIONS

KEYS = 2_000
ZIPF = 1.1
UNKEYED = 1_000
"""One record in so many has no key."""
TICK_S = 0.02
FIRST_SHARE = 0.2
BURST_CHANCE, BURST_S = 0.02, 2.0
FLUSH_S = 120.0


class Loader:
    """A thread that writes the values 0, 1, 2, …: a share of them at once, then ``rate`` a second, until ``finish``."""

    def __init__(
        self,
        address: str,
        topic: str,
        records: int,
        rate: float,
        seed: int,
        *,
        first: float = FIRST_SHARE,
        partitions: int = PARTITIONS,
    ) -> None:
        self._partitions = partitions
        self._topic, self._records, self._rate, self._first = topic, records, rate, first
        self._chance = random.Random(f"loader {seed}")
        self._weights = list(accumulate(1 / (rank + 1) ** ZIPF for rank in range(KEYS)))
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 0,  # for ever
                "log_level": 0,  # that the broker is away is known
                "error_cb": lambda error: None,
            }
        )
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self._failed: list[str] = []
        self._is_left = False
        self.written = 0
        self.acknowledged = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self, *, is_enough: bool = False) -> int:
        """Write what is missing of ``records``, unless it is enough; how many the broker has acknowledged. Raises when
        one was lost.
        """
        if is_enough:
            self._records = self.written
        self._told.set()
        self._thread.join(FLUSH_S)
        if self._thread.is_alive() or self._failed or self.acknowledged != self.written:
            raise RuntimeError(f"the loader wrote {self.written}, {self.acknowledged} are there: {self._failed[:3]}")
        return self.acknowledged

    def stop(self) -> None:
        """Leave it as it is: the round has failed."""
        self._records, self._is_left = 0, True
        self._told.set()

    def _run(self) -> None:
        self._write(int(self._records * self._first))
        owed = 0.0
        while not self._told.wait(TICK_S):
            # Beyond what is wanted it goes on slowly: whoever waits for a transaction shall not wait for ever.
            rate = self._rate if self.written < self._records else self._rate / 10
            owed += rate * TICK_S
            if self.written < self._records and self._chance.random() < BURST_CHANCE:
                owed += rate * BURST_S
            self._write(int(owed))
            owed -= int(owed)
            self._producer.poll(0)
        self._write(self._records - self.written)
        until = time.monotonic() + FLUSH_S
        while self._producer.flush(1.0) and not self._is_left and time.monotonic() < until:
            pass

    def _write(self, count: int) -> None:
        for _ in range(count):
            key = b"k%d" % self._chance.choices(range(KEYS), cum_weights=self._weights)[0]
            partition = zlib.crc32(key) % self._partitions
            named: dict[str, Any] = {} if self._chance.random() < 1 / UNKEYED else {"key": key}
            while True:
                try:
                    self._producer.produce(
                        self._topic, b"%d" % self.written, partition=partition, on_delivery=self._heard, **named
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self.written += 1

    def _heard(self, error: KafkaError | None, _message: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self._failed.append(str(error))
