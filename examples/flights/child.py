"""A process that the demo starts: ``python child.py SPEC``, for members.py alone.

The process is one of several, or with ``processes`` in its SPEC a service that keeps this number of processes:
``app.run(processes=…)`` runs this program once more for each of them.

Standard output is a pipe to the demo, for the reports of each process, a line of JSON for each report; the processes of
a service inherit the pipe. Standard input of a process that the demo starts is a pipe from the demo. The end of the
input means that the demo is gone. Then the process stops in order, as far as it gets: the demo's Kafka goes, too. A
service takes its processes along.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import msgspec

from application import make_app
from course import SESSION_S, Told
from keylanes.runtime.processes.child import SIBLING
from keylanes.runtime.settings import Settings
from place import DemoPlace
from processing import Processing
from saying import log_to

ORPHAN_S = 5.0
"""The time that a process stays without the demo. A service then aborts the processes that it keeps."""
PR_SET_PDEATHSIG = 1


class ChildSpec(msgspec.Struct, frozen=True):
    """The specification of a process.

    ``name``: its group_instance_id. ``address``: of the broker; ``folder``: of the demo; ``copies``: the folder for
    copies of state; ``seed``: of the unrest. ``max_in_flight``: see ``make_app``. ``processes``: the number of
    processes that a service keeps; 1: the process is no service. ``may_return``: when the process is gone, its ranges
    wait for a process of the same name.
    """

    name: str
    address: str
    folder: str
    copies: str
    handler_ms: float
    seed: str
    max_in_flight: int | None = None
    processes: int = 1
    may_return: bool = True


class Said(msgspec.Struct, frozen=True):
    """A report, with the name of the process and its number in the system."""

    name: str
    process: int
    told: Told


class Child:
    """The process, seen from inside."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec, self.name = spec, spec.name
        settings = Settings(
            state_folder=spec.copies, group_instance_id=spec.name, session_timeout_ms=int(SESSION_S * 1000)
        )
        self.settings = settings if spec.may_return else msgspec.structs.replace(settings, return_ms=0)
        if SIBLING is not None:  # a service has started this process, and numbers its name
            self.name = SIBLING.settings(self.settings).group_instance_id or spec.name
        self.is_service = spec.processes > 1 and SIBLING is None

    def run(self) -> None:
        """Work until all records are done or a signal comes; raises SystemExit when the application stops."""
        spec, place = self.spec, DemoPlace(Path(self.spec.folder))
        os.set_blocking(sys.stdout.fileno(), False)
        log_to(place.log, self.name)
        if SIBLING is None:
            self._watch_the_demo()
        app = make_app(
            spec.address, self.settings, spec.handler_ms, max_in_flight=spec.max_in_flight, is_slow=place.slow.exists
        )
        seed, processes = f"{spec.seed} {self.name}", spec.processes
        is_loud = place.loud.exists
        Processing(app, seed, lambda: not is_loud(), on_told=self._tell, processes=processes).run()

    def _watch_the_demo(self) -> None:
        if sys.platform == "linux":  # SIGCONT at the end of the demo: a paused process has to notice the end, too
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
        threading.Thread(target=self._listen, name="demo", daemon=True).start()

    def _listen(self) -> None:
        while os.read(0, 64):  # not sys.stdin: the end of the process would wait for its lock
            continue
        gone = threading.Timer(ORPHAN_S, _stop if self.is_service else partial(os._exit, 1))
        gone.daemon = True
        gone.start()
        _stop()

    def _tell(self, told: Told) -> None:
        line = msgspec.json.encode(Said(self.name, os.getpid(), told)) + b"\n"
        with contextlib.suppress(OSError):  # the demo is gone, or does not read: a report is not worth a wait
            os.write(sys.stdout.fileno(), line)


def _stop() -> None:
    """Stop this process in order; a second call aborts."""
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    Child(msgspec.json.decode(sys.argv[1], type=ChildSpec)).run()
