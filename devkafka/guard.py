"""A process between the program and the broker, so that the broker never outlives the program.

Run as a script with the standard library alone (``python -I -S guard.py '<json>'``); the script never imports keylanes.
The program writes orders to this process's standard input: ``stop`` stops the broker, ``kill`` kills the broker. At the
end of the input, also after a kill of the program, this process obeys the order in ``alone``. When this process itself
is killed, the kernel kills the broker (Linux). This process ends when the broker has ended, and holds the inherited
lock until then.

The fields of the argument:

- ``command``: the command line of the broker; ``out``: the file for its output.
- ``facts``: written into the JSON file ``state``, with the pid and the start of the broker and the pid of this process.
- ``stop_seconds``: from SIGTERM to SIGKILL.
- ``lock_fd``: the descriptor of the lock, for the broker to inherit.
- ``alone``: stop or kill.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

KERNEL_KILLS_CHILD_WITH_PARENT = 1  # PR_SET_PDEATHSIG
PARENT_CHECK_SECONDS = 1.0


def process_start(pid: int) -> str:
    """The start of a living process (clock ticks since boot): tells a re-used pid apart. "" where not known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _tie_to_this_process() -> Callable[[], None] | None:
    """A function for the child to call before becoming the broker. Safe here: this process has one thread."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    prctl, guard = ctypes.CDLL(None).prctl, os.getpid()

    def tie() -> None:
        prctl(KERNEL_KILLS_CHILD_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died before the tie was made
            os._exit(1)

    return tie


def _write_state(path: str, state: dict[str, Any]) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(state, file)
    os.replace(f"{path}.new", path)


def _next_order(child: "subprocess.Popen[bytes]", parent: int, signals: int, alone: str) -> str:
    """Wait for the next order: ``stop`` or ``kill`` from the input, ``stop`` at SIGTERM, ``alone`` when the program has
    ended, ``ended`` when the broker has ended.
    """
    received = b""
    while True:
        ready, _, _ = select.select([0, signals], [], [], PARENT_CHECK_SECONDS)
        if signals in ready and signal.SIGTERM in os.read(signals, 64):
            return "stop"
        if child.poll() is not None:
            return "ended"
        if 0 in ready:
            data = os.read(0, 64)
            received += data
            if not data:
                return alone
            if b"\n" in received:
                return received.split(b"\n")[0].decode("ascii", "replace")
        if os.getppid() != parent:  # a forked copy of the program may still hold the pipe
            return alone


def main(argument: str) -> int:
    """Run the broker to its end; returns the broker's exit code."""
    order = json.loads(argument)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signals_read, signals_write = os.pipe()
    os.set_blocking(signals_write, False)
    # A signal with a Python handler writes its number to the pipe, and so ends a wait in select.
    for noticed in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(noticed, lambda *_: None)
    signal.set_wakeup_fd(signals_write)
    parent = os.getppid()
    with open(order["out"], "wb") as out:
        child = subprocess.Popen(
            order["command"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[order["lock_fd"]],
            preexec_fn=_tie_to_this_process(),
        )  # fmt: skip
    facts = {**order["facts"], "pid": child.pid, "pid_start": process_start(child.pid), "guard": os.getpid()}
    _write_state(order["state"], facts)
    os.write(1, f"{child.pid}\n".encode())
    what = _next_order(child, parent, signals_read, order["alone"])
    if what == "kill":
        child.kill()
    elif what == "stop":
        child.terminate()
    try:
        child.wait(order["stop_seconds"])
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return child.returncode & 0xFF


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
