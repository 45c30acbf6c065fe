"""One of several processes of the demo: ``python -m keylanes.demo.child SPEC``, for members.py alone.

Standard output is a pipe to the parent, for what this process says of itself, a line of JSON each. Standard input is
one from it: ``quiet`` and ``loud`` tell the unrest what to do, and its end says that the parent is gone. Then this
process stops in order, as far as it gets: the parent's Kafka goes, too.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from ..runtime.settings import Settings
from ..runtime.watch.steps import Step
from .application import make_app
from .course import SESSION_S, Told
from .processing import Processing
from .saying import log_to

ORPHAN_S = 5.0
"""So long a process stays without its parent."""
PR_SET_PDEATHSIG = 1
QUIET, LOUD = b"quiet\n", b"loud\n"
NO_STEPS = -1


class ChildSpec(msgspec.Struct, frozen=True):
    """``name``: its group_instance_id. ``address`` of the broker, ``copies`` of the state, ``log``: the file to say
    things in, ``steps``: a descriptor to note steps at, or NO_STEPS. ``seed``: of the unrest. ``max_in_flight``: see
    ``make_app``.
    """

    name: str
    address: str
    copies: str
    log: str
    handler_ms: float
    seed: str
    steps: int = NO_STEPS
    max_in_flight: int | None = None


class Child:
    """The process, seen from inside."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self._is_quiet = True

    def run(self) -> None:
        """Until the group is level, or it is told to stop; raises SystemExit when the application stops."""
        spec = self.spec
        os.set_blocking(sys.stdout.fileno(), False)
        if sys.platform == "linux":  # one that is paused when the parent is killed has to notice, too
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
        settings = msgspec.structs.replace(
            Settings(),
            state_folder=spec.copies,
            group_instance_id=spec.name,
            session_timeout_ms=int(SESSION_S * 1000),
        )
        with log_to(Path(spec.log), spec.name):
            threading.Thread(target=self._listen, name="parent", daemon=True).start()
            Processing(
                make_app(spec.address, settings, handler_ms=spec.handler_ms, max_in_flight=spec.max_in_flight),
                f"{spec.seed} {spec.name}",
                is_quiet=lambda: self._is_quiet,
                on_step=self._note_step,
                on_told=_tell,
            ).run()

    def _listen(self) -> None:
        while told := os.read(0, 64):  # not sys.stdin: the end of the process would wait for its lock
            self._is_quiet = not told.endswith(LOUD)
        gone = threading.Timer(ORPHAN_S, os._exit, [1])
        gone.daemon = True
        gone.start()
        os.kill(os.getpid(), signal.SIGTERM)

    def _note_step(self, step: Step) -> None:
        if self.spec.steps != NO_STEPS:
            os.write(self.spec.steps, f"{time.time():.6f} {step}\n".encode())


def _tell(told: Told) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, or does not read: neither is worth waiting for
        os.write(sys.stdout.fileno(), msgspec.json.encode(told) + b"\n")


if __name__ == "__main__":
    Child(msgspec.json.decode(sys.argv[1], type=ChildSpec)).run()
