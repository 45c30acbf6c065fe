"""Which subfolder of a state folder a process has. Processes of one machine may name the same state folder.

    KEYLANES          "keylanes subfolders format 1"
    .lock             locked while somebody looks for a subfolder: one process at a time does
    shop/             those of an application
        0/, 1/, …     of processes without a name
        a/            of the process with this name
            .lock     locked as long as the process has the subfolder, which ends with the process at the latest; it
                      says the birth of the process that had it last
            …         the copies: see copies.py

Rules:

- A process without a name has the lowest number that exists and is free, else the lowest one that does not exist. So a
  process that is alone finds the copies of the one before it.
- The folder of a name is the name itself if that begins with a letter and is no file of ours; else "=" stands in front,
  which no name may hold. So no name is taken for a number, for a path or for a file of ours.

Locks are those of ``flock``: the system lets go of them when a process dies. A child that was forked holds none of its
parent's. Where there is no ``flock`` every subfolder looks free, and RocksDB's own lock refuses a second process.
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
    """What ``claim`` gives. ``lock``: close it to let go."""

    folder: Path
    lock: "Lock"


class NameInUse(RocksInUse):
    """A process of this machine has the subfolder of the name, and so the name itself."""


def claim(parent: Path | str, app: str, name: str | None = None, *, birth: str = "") -> Claimed:
    """A subfolder for this process alone: that of its name, else of the lowest free number; made if there is none.
    ``birth``: text that no other run of a process ever had.

    Blocks while another process looks for its own. Raises NameInUse, or RocksError: the state folder is no such folder.
    """
    parent = Path(os.path.abspath(parent))
    with in_words_of_system(parent):
        own(parent)
        _check(parent)  # before anything is written to what may be a stranger's
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
    """The birth of the process that had a subfolder last; None: nobody has said it. Raises OSError."""
    try:
        return (subfolder / LOCK_FILE).read_text(encoding="utf-8") or None
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def folder_of(name: str) -> str:
    """The folder of an application or of a process with a name, which may hold letters, digits and "._-"."""
    is_plain = name[:1].isalpha() and name.upper() != MARKER and not name.upper().startswith(f"{MARKER}.")
    return name if is_plain else f"={name}"


def subfolders_in(folder: Path) -> list[Path] | None:
    """The subfolders that have copies, of a state folder or of one application in it; None when it is neither.

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


# --- which one -------------------------------------------------------------------------------------------------------


def _lowest_free(folder: Path) -> "Lock":
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
    """Raises RocksError when a folder is neither new, nor one of subfolders."""
    if not is_empty(parent):
        check_marker(parent, SUBFOLDERS, SUBFOLDERS_FORMAT)


# --- locks -----------------------------------------------------------------------------------------------------------


class Lock:
    """The lock of a folder, not yet taken. The end of the process lets go of it, too."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError when the folder is not there."""
        self.folder = folder
        self._descriptor: int | None = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _open_locks.add(self)

    def take(self) -> bool:
        """Take it if it is free; whether it was. One that was not is closed."""
        try:
            _flock(self._descriptor, blocks=False)
        except BlockingIOError:
            self.close()
            return False
        return True

    def wait(self) -> None:
        """Take it when it is free."""
        _flock(self._descriptor, blocks=True)

    def sign(self, text: str) -> None:
        """Write this into it, in place of what was there."""
        assert self._descriptor is not None, "it was taken"
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)

    def close(self) -> None:
        """Let go; a second call does nothing."""
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
    """In a child: its copies of the descriptors would hold the parent's locks longer than the parent lives."""
    for lock in list(_open_locks):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
