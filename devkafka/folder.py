"""The private folder of a development broker. The folder has one user at a time: the broker holds a lock to its end.

A start may find the broker of a dead program. The start waits for the broker's end until its deadline, then kills the
broker. The lock needs a system with ``flock``.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import StoreError
from .guard import process_start

POLL_SECONDS = 0.05
LOG_LINES_SHOWN = 20


def make_private(folder: Path) -> None:
    """Make a folder closed to other users; raises StoreError when the system refuses."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise StoreError(f"can't use the broker's folder {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def hold_lock(folder: Path, deadline: float) -> Iterator[int]:
    """Hold the folder's lock during the start of the broker; broker and guard inherit the lock and keep it."""
    import fcntl

    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        has_killed = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                has_killed = _refuse_or_kill(folder, has_killed, deadline)
            time.sleep(POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def read_state(folder: Path) -> dict[str, Any]:
    """The facts about the present or last user of the folder; empty when not known."""
    try:
        state = json.loads((folder / "broker.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def tail(path: Path) -> str:
    """The last lines of a file; "" without a file."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:])
    except OSError:
        return ""


def _refuse_or_kill(folder: Path, has_killed: bool, deadline: float) -> bool:
    """Handle a taken lock; returns whether the broker was killed. Raises StoreError while the owner lives, and for an
    unknown process. The broker of a dead owner has time to end until the deadline, then is killed once.
    """
    state = read_state(folder)
    owner = int(state.get("owner", 0))
    if owner and process_start(owner) == state.get("owner_start") and _is_alive(owner):
        raise StoreError(f"the broker's folder {folder} is in use by process {owner}")
    if time.monotonic() < deadline:
        return has_killed
    broker = int(state.get("pid", 0))
    is_known = broker and process_start(broker) == state.get("pid_start") and _is_ours(broker, folder)
    if has_killed or not is_known:
        raise StoreError(f"the broker's folder {folder} is locked by a process that is not known")
    os.kill(broker, signal.SIGKILL)
    time.sleep(1.0)
    return True


def _is_ours(pid: int, folder: Path) -> bool:
    """Whether a process is a Kafka of this folder, by its command line (Linux only)."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(os.fsencode(folder / name) in arguments for name in ("server.properties", "controller.properties"))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
