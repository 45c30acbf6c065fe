"""An application whose handler computes, in one process or several, each of which notes what it handles.

keylanes alone. Called as ``python cores_app.py ORDER.json``; ``app.run(processes=…)`` starts it again for each process.
Each one's notes are those of handover_app.py; some times a second it samples its records, what it has read of the
source so far, and its processor time. Both files end with its number. The handler is a ``def``, and is given the value
alone. SIGTERM ends all in order.
"""

import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

from _driver import spin
from handover_app import CountingBroker, Notes
from keylanes import App, Settings
from keylanes.brokers.protocol import Broker
from keylanes.runtime.connect import connect
from keylanes.runtime.processes.child import SIBLING

SAMPLE_S = 0.1
NAME = "core"


def sampled(path: str, notes: Notes, counts: CountingBroker) -> None:
    """In a thread, without end."""
    with open(path, "a") as file:
        while True:
            now = {"at_s": time.monotonic(), "cpu_s": time.process_time(), "records": notes.count}
            file.write(json.dumps({**now, "records_read": counts.records_read}) + "\n")
            file.flush()
            time.sleep(SAMPLE_S)


def run(order: dict[str, Any]) -> None:
    """Until SIGTERM."""
    address, settings = f"kafka://{order['bootstrap']}", Settings(threads=order["threads"], group_instance_id=NAME)
    number = 1 if SIBLING is None else SIBLING.number
    counting = CountingBroker(connect(address, settings, order["group"]), order["topic"], "")
    is_parent = order["processes"] > 1 and SIBLING is None
    app = App(order["group"], broker=address if is_parent else cast(Broker, counting), settings=settings)
    notes, guard = Notes(f"{order['notes']}-{number}", order["notes_max"]), threading.Lock()
    spin_us, clock = order["spin_us"], time.monotonic_ns

    @app.handler(order["topic"])
    def work(value: bytes) -> None:
        began_ns = clock()
        spin(spin_us)
        with guard:
            notes.add(began_ns, 0, value)

    if not is_parent:
        arguments = (f"{order['samples']}-{number}", notes, counting)
        threading.Thread(target=sampled, args=arguments, daemon=True).start()
    app.run(processes=order["processes"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    run(json.loads(Path(sys.argv[1]).read_text()))
