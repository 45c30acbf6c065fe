"""Fills the source at a steady rate, each partition in turn. Called as ``-m failing_over.load ORDER.json``."""

import json
import sys
import time
from pathlib import Path
from typing import Any

TICK_S = 0.005


def run(order: dict[str, Any]) -> None:
    """Until it is killed. A record that comes late comes all the same: none is left out."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": order["bootstrap"], "linger.ms": 2, "enable.idempotence": True})
    began_s, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began_s) * order["per_second"])
        for number in range(sent, due):
            producer.produce(order["topic"], b"%d" % number, b"k%d" % number, partition=number % order["partitions"])
        sent = due
        producer.poll(TICK_S)


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
