"""An application whose handler computes, in one process or several, each of which notes what it handles.

keylanes alone. Called as ``python cores_app.py ORDER.json``; ``app.run(processes=…)`` starts it again for each process.
Each one's notes are those of handover_app.py; some times a second it samples its records, processor time and peak
memory. Both files end with its number. The handler is a ``def``, and is given the value alone. SIGTERM ends all in
order.
"""

import json
import logging
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

from _driver import spin
from handover_app import Notes
from keylanes import App, Settings
from keylanes.runtime.processes.child import SIBLING

SAMPLE_S = 0.1


def sampled(path: str, notes: Notes) -> None:
    """In a thread, without end."""
    with open(path, "a") as file:
        while True:
            peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            now = {"at_s": time.monotonic(), "cpu_s": time.process_time(), "records": notes.count}
            file.write(json.dumps({**now, "peak_bytes": peak_bytes}) + "\n")
            file.flush()
            time.sleep(SAMPLE_S)


def run(order: dict[str, Any]) -> None:
    """Until SIGTERM."""
    app = App(order["group"], broker=f"kafka://{order['bootstrap']}", settings=Settings(threads=order["threads"]))
    number = 1 if SIBLING is None else SIBLING.number
    notes, guard = Notes(f"{order['notes']}-{number}", order["notes_max"]), threading.Lock()
    spin_us, clock = order["spin_us"], time.monotonic_ns

    @app.handler(order["topic"])
    def work(value: bytes) -> None:
        began_ns = clock()
        spin(spin_us)
        with guard:
            notes.add(began_ns, 0, 0, value)

    if order["processes"] == 1 or SIBLING is not None:
        threading.Thread(target=sampled, args=(f"{order['samples']}-{number}", notes), daemon=True).start()
    app.run(processes=order["processes"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    run(json.loads(Path(sys.argv[1]).read_text()))
