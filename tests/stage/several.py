"""An application in several processes, on the command line: each prints one line for each thing it does.

Arguments: address, name, source, what the handler does, settings as JSON, how many processes, ``level`` or ``on``.
"""

import json
import logging
import os
import sys
import threading
import time

from keylanes import App, Retry, Settings
from keylanes.runtime.processes.child import SIBLING

BAD = -1
"""The value at which a handler that ``fails`` does so for good, and one that gets ``stuck`` never ends."""
WORK_S = 0.002


def say(what: str) -> None:
    """One line at once, whoever else prints: with the process."""
    os.write(1, f"{os.getpid()} {what}\n".encode())


def main() -> None:
    """Run as the arguments say."""
    address, name, source, kind, settings, processes, until = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(processName)s %(message)s")
    if kind == "broken" and SIBLING is not None:
        raise RuntimeError("it does not come to its application")
    app = App(name, broker=address, settings=Settings.of(**json.loads(settings)))

    @app.handler(source, parallelising_factor=8, retry=Retry(attempts=1))
    def handle(value: int) -> None:
        if value == BAD and kind == "fails":
            raise ValueError("a bad value")
        if value == BAD and kind == "stuck":
            say("stuck")
            threading.Event().wait()
        time.sleep(WORK_S)
        say(f"handled {value}")

    if SIBLING is not None:
        say("begins")
        say(f"name {SIBLING.settings(app.settings).group_instance_id}")
    app.run(until="level" if until == "level" else None, processes=int(processes))
    say("ends")


if __name__ == "__main__":
    main()
