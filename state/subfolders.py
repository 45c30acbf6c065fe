"""The subfolder of a state folder for each process. Processes of one machine may name the same state folder.

    KEYLANES          "keylanes subfolders format 1"
    .lock             locked while a process looks for a subfolder: one process at a time
    shop/             the subfolders of an application
        0/, 1/, …     of processes without a name
        a/            of the process with this name
            .lock     locked as long as the process has the subfolder, at the latest until the process ends; holds the
                      birth of the process that had the subfolder last
            …         the copies: see copies.py

Rules:

- A process without a name takes the lowest number whose subfolder exists and is free, else the lowest number without a
  subfolder. So a process that is alone finds the copies of its predecessor.
- The folder of a name is the name itself if the name begins with a letter and is no file of keylanes; else "=" and the
  name. No name may contain "=". So no name is mistaken for a number, for a path or for a file of keylanes.

Locks are locks of ``flock``: the system releases them when a process dies. A forked child holds none of its parent's
locks. Where ``flock`` is missing every subfolder looks free, and RocksDB's own lock refuses a second process.
"""

import os
import re
import weakref
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from .copies import KIND
from .rocks import (
    LOCK_FILE,
    MARKER,
    RocksInUse,
    check_marker,
    holder_of,
    in_words_of_system,
    is_empty,
    kind_in,
    own,
    write_marker,
)

SUBFOLDERS: Final = "subfolders"
SUBFOLDERS_FORMAT: Final = 1
_NUMBER: Final = re.compile(r"0|[1-9][0-9]*", re.ASCII)


class Claimed(NamedTuple):
    """The subfolder from ``claim``. ``lock``: close the lock to let go."""

    folder: Path
    lock: "Lock"


class NameInUse(RocksInUse):
    """A process of this machine has the subfolder of the name, and so the name itself."""


def claim(parent: Path | str, app: str, name: str | None = None, *, birth: str = "") -> Claimed:
    """Take a subfolder for this process alone: the subfolder of its name, else of the lowest free number; made if
    missing. ``birth``: a text unique to this run of the process.

    Blocks while another process takes a subfolder. Raises NameInUse, or RocksError where the state folder is no folder
    of this kind.
    """
    parent = Path(os.path.abspath(parent))
    with in_words_of_system(parent):
        own(parent)
        _check(parent)  # before anything is written: the folder may be a stranger's
        looking = Lock(parent)
        try:
            looking.wait()
            _check(parent)
            folder = parent / folder_of(app)
            if is_empty(parent):
                write_marker(parent, SUBFOLDERS, SUBFOLDERS_FORMAT)
            parent.chmod(0o700)
            _make_private(folder)
            lock = _lowest_free(folder) if name is None else _of_name(folder, app, name)
            lock.sign(birth)
            return Claimed(lock.folder, lock)
        finally:
            looking.close()


def birth_in(subfolder: Path) -> str | None:
    """The birth of the process that had a subfolder last; None: nothing was written. Raises OSError."""
    try:
        return (subfolder / LOCK_FILE).read_text(encoding="utf-8") or None
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def folder_of(name: str) -> str:
    """The folder of an application or of a process with a name, which may hold letters, digits and "._-"."""
    is_plain = name[:1].isalpha() and name.upper() != MARKER and not name.upper().startswith(f"{MARKER}.")
    return name if is_plain else f"={name}"


def subfolders_in(folder: Path) -> list[Path] | None:
    """The subfolders with copies, of a state folder or of one application in a state folder; None for other folders.

    In order: by application; numbers, then names. Raises OSError.
    """
    if kind_in(folder) == SUBFOLDERS:
        apps = sorted(Path(entry) for entry in os.scandir(folder) if entry.is_dir())
    elif folder.is_dir() and not (folder / MARKER).exists() and kind_in(folder.resolve().parent) == SUBFOLDERS:
        apps = [folder]
    else:
        return None
    found = []
    for app in apps:
        numbers = [app / str(number) for number in _numbers(app)]
        names = sorted(entry.name for entry in os.scandir(app) if not _NUMBER.fullmatch(entry.name))
        found += [*numbers, *(app / name for name in names if not name.startswith("."))]
    return [one for one in found if kind_in(one) == KIND and (one / "CURRENT").exists()]


# --- the choice of a subfolder ---------------------------------------------------------------------------------------


def _lowest_free(folder: Path) -> "Lock":
    """The taken lock of the subfolder with the lowest free number."""
    there = _numbers(folder)
    for number in _in_order(there):
        _make_private(folder / str(number))
        lock = Lock(folder / str(number))
        if lock.take():
            return lock
    raise AssertionError("numbers do not end")


def _in_order(there: list[int]) -> Iterator[int]:
    yield from there
    yield from (number for number in count() if number not in there)


def _numbers(folder: Path) -> list[int]:
    return sorted(int(entry.name) for entry in os.scandir(folder) if _NUMBER.fullmatch(entry.name) and entry.is_dir())


def _of_name(folder: Path, app: str, name: str) -> "Lock":
    """The taken lock of the subfolder of a name; raises NameInUse."""
    subfolder = folder / folder_of(name)
    _make_private(subfolder)
    lock = Lock(subfolder)
    if lock.take():
        return lock
    raise NameInUse(
        subfolder,
        holder_of(subfolder / LOCK_FILE),
        f", which has the name {name!r}, too: give each process of application {app!r} a group_instance_id of its "
        "own, or stop that one",
    )


def _make_private(folder: Path) -> None:
    own(folder)
    folder.chmod(0o700)


def _check(parent: Path) -> None:
    """Raises RocksError when a folder is neither new nor a state folder with subfolders."""
    if not is_empty(parent):
        check_marker(parent, SUBFOLDERS, SUBFOLDERS_FORMAT)


# --- locks -----------------------------------------------------------------------------------------------------------


class Lock:
    """The lock of a folder, at first not taken. The end of the process releases the lock, too."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError when the folder is not there."""
        self.folder = folder
        self._descriptor: int | None = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _open_locks.add(self)

    def take(self) -> bool:
        """Take a free lock and return True. A lock that is not free is closed: False."""
        try:
            _flock(self._descriptor, blocks=False)
        except BlockingIOError:
            self.close()
            return False
        return True

    def wait(self) -> None:
        """Wait until the lock is free and take it."""
        _flock(self._descriptor, blocks=True)

    def sign(self, text: str) -> None:
        """Write a text into the lock file, in place of the old text."""
        assert self._descriptor is not None, "it was taken"
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _flock(descriptor: int | None, *, blocks: bool) -> None:
    assert descriptor is not None, "a lock that was closed can't be taken"
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX if blocks else fcntl.LOCK_EX | fcntl.LOCK_NB)


_open_locks: Final["weakref.WeakSet[Lock]"] = weakref.WeakSet()


def _forget() -> None:
    """Close the descriptors in a forked child: its copies would hold the locks longer than the parent lives."""
    for lock in list(_open_locks):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
