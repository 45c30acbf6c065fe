"""RocksDB, opened only here.

Rules:

- *Raw mode always*: rocksdict's other mode unpickles stored values, and a tampered file would run code.
- Options are passed for the column family too: rocksdict forgets cache and filter of a database that is reopened
  without options. All databases of a process share one block cache, as large as the largest size that was requested.
- A folder is one of keylanes or is refused: a marker file in the folder names kind and format. The file is written
  before RocksDB touches the folder (opening a foreign database changes its files). The folder is not a symbolic link,
  and only its owner may enter.
- One process at a time has a folder open, by RocksDB's own lock. A refused process learns the id of the other process
  where the system tells.
- Every error is a ``RocksError`` in words. After an error of a write the database is of no use any more: RocksDB keeps
  refusing, even when a full disk has room again.
- No iterator leaves this module open: an open iterator keeps RocksDB's lock of the folder after ``close``.
- The write-ahead log is on: a write that has returned survives the death of the process. Damage to the log anywhere
  but at its torn end is an error, not a silent end. The exception is a folder whose content can be fetched again from
  a log of the broker (``follower``): there the damage ends the log, and nothing behind the damage is read.
"""

import contextlib
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import rocksdict

MARKER: Final = "KEYLANES"
_MARKER_BEING_WRITTEN: Final = "KEYLANES.new"
"""The prefix of marker files under way: two processes that make a folder at once write one file each."""
LOCK_FILE: Final = ".lock"
"""A lock file that may lie in a folder of keylanes; see ``subfolders.py``."""
_MARKER_TEXT: Final = re.compile(r"keylanes (?P<kind>[a-z]+) format (?P<format>[0-9]+)\n")
CACHE_BYTES: Final = 64 * 1024 * 1024
_WRITE_BUFFER_BYTES: Final = 32 * 1024 * 1024
_ARENA_BYTES: Final = 36 * 1024 * 1024
"""A write buffer is one block. Memory is taken as the block fills; three quarters full, it is written out. glibc
always maps blocks of this size alone and gives each back whole (its largest threshold is 32 MiB). With the usual blocks
of 1 MiB each write buffer leaves some blocks among small objects that came meanwhile, and the process grows."""
_WAL_BYTES_MAX: Final = 64 * 1024 * 1024  # the next process that opens the database reads as much again
_CATCH_UP_ATTEMPTS: Final = 200
_OPEN_ATTEMPTS: Final = 10  # beside a writer whose files may vanish between being listed and being opened

Mode = Literal["write", "beside"]


class RocksError(Exception):
    """A folder can't be used: in use, foreign, damaged, full or not private. The message gives reason and folder."""


class RocksInUse(RocksError):
    """A process has the folder already. ``pid``: the id of the process; None where the system does not tell."""

    def __init__(self, folder: Path, pid: int | None, more: str = "") -> None:
        holder = "this process" if pid == os.getpid() else "another process" + (f" (pid {pid})" if pid else "")
        super().__init__(f"{folder} is in use by {holder}{more}")
        self.folder = folder
        self.pid = pid


class WriteBatch:
    """Puts and deletes that happen together or not at all."""

    def __init__(self) -> None:
        self._batch = rocksdict.WriteBatch(raw_mode=True)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""
        self._batch.put(key, value)

    def delete(self, key: bytes) -> None:
        """Delete a key; a missing key is no error."""
        self._batch.delete(key)

    def delete_range(self, first: bytes, end: bytes) -> None:
        """Delete every key in ``[first, end)``."""
        self._batch.delete_range(first, end)


class Rocks:
    """An open database; made by ``open_rocks``. Any thread may call methods; only one calls ``close``."""

    def __init__(self, folder: Path, database: rocksdict.Rdict, scratch: Path | None) -> None:
        self.folder = folder
        self._database: rocksdict.Rdict | None = database
        # Also without a call of close: at the end of the process at the latest.
        self._forget_scratch = None if scratch is None else weakref.finalize(self, shutil.rmtree, scratch, True)
        self._process = os.getpid()
        self._reads = 0
        """The number of reads under way during which other threads run."""
        self._reads_changed = threading.Condition()
        self._sync = rocksdict.WriteOptions()
        self._sync.sync = True

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._database is None

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        with _in_words(self.folder):
            value: bytes | None = self._open().get(key)
            return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, in their order, None for a missing key. Other threads run meanwhile."""
        with self._counted_read(), _in_words(self.folder):
            values = self._open().get(list(keys))
            assert isinstance(values, list)
            return values

    def page(self, first: bytes, end: bytes, entries_max: int) -> list[tuple[bytes, bytes]]:
        """Up to ``entries_max`` keys and values of ``[first, end)`` in order, all of one moment."""
        with self._counted_read(), self.entries(first, end) as entries:
            return list(islice(entries, entries_max))

    def write(self, writes: WriteBatch, *, sync: bool = False) -> None:
        """Do all of these writes; with ``sync`` the writes survive the death of the machine too."""
        with _in_words(self.folder):
            if sync:
                self._open().write(writes._batch, self._sync)
            else:
                self._open().write(writes._batch)

    @contextlib.contextmanager
    def entries(self, first: bytes, end: bytes, *, before: bool = False) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        """Keys and values in ``[first, end)`` in order; with ``before`` from the last key at or below ``first`` on.

        The iterator is good inside the ``with`` only.
        """
        walk = self._walk(first, end, before)
        try:
            yield walk
        finally:
            walk.close()

    def catch_up(self) -> None:
        """See all writes up to now, in a database opened beside a writer; no write among them is missing.

        RocksDB reads the manifest first, then the logs. Between the two a writer may commit a flush to the manifest and
        delete the flushed log. RocksDB then misses the content of that log and yet sees later writes. Hence an attempt
        counts only if the manifest did not change meanwhile: files are deleted after the manifest has ceased to name
        them.
        """
        for _ in range(_CATCH_UP_ATTEMPTS):
            before = _manifest(self.folder)
            with _in_words(self.folder):
                self._open().try_catch_up_with_primary()
            if before is not None and before == _manifest(self.folder):
                return
        raise RocksError(f"{self.folder} changes too fast to be read beside its writer")

    def flush(self) -> None:
        """Write memory to files, and return when all is written. Other threads run meanwhile."""
        with self._counted_read(), _in_words(self.folder):
            self._open().flush()

    def close(self) -> None:
        """Let go of the folder when the reads of other threads have ended; a second call does nothing."""
        database, self._database = self._database, None
        # A forked child would wait for ever for threads that only its parent has.
        if database is not None and os.getpid() == self._process:
            with self._reads_changed:
                self._reads_changed.wait_for(lambda: not self._reads)
            with _in_words(self.folder):
                database.close()
        if self._forget_scratch is not None:
            self._forget_scratch()

    @contextlib.contextmanager
    def _counted_read(self) -> Iterator[None]:
        """A read during which other threads run. ``close`` waits for its end: rocksdict refuses to close meanwhile."""
        with self._reads_changed:
            self._reads += 1
        try:
            yield
        finally:
            with self._reads_changed:
                self._reads -= 1
                self._reads_changed.notify_all()

    def _open(self) -> rocksdict.Rdict:
        if self._database is None:
            raise RocksError(f"{self.folder} was closed")
        return self._database

    def _walk(self, first: bytes, end: bytes, before: bool) -> Generator[tuple[bytes, bytes], None, None]:
        with _in_words(self.folder):
            options = rocksdict.ReadOptions()
            options.set_iterate_upper_bound(end)
            iterator = self._open().iter(options)
            if before:
                iterator.seek_for_prev(first)
            else:
                iterator.seek(first)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()  # an iterator that met damage just ends, and this call raises


def open_rocks(
    folder: Path,
    kind: str,
    format_version: int,
    mode: Mode = "write",
    *,
    cache_bytes: int = CACHE_BYTES,
    follower: bool = False,
) -> Rocks:
    """Open the database in a folder.

    ``write``: alone; folder and database are made where missing. ``beside``: reads earlier writes, while a writer may
    be running; see ``Rocks.catch_up``. ``cache_bytes``: the least size of the cache that all databases of the process
    share. ``follower``: see the module. Raises RocksError.
    """
    folder = Path(os.path.abspath(folder))
    cache = _cache.at_least(cache_bytes)
    if mode == "write":
        _prepare(folder, kind, format_version)
        options = _options(cache)
        if follower:
            # With the tolerant mode the machine's death may leave a hole: the end of one log lost, the next one read.
            options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
        options.create_if_missing(True)
        with _in_words(folder):
            database = rocksdict.Rdict(str(folder), options, column_families={"default": options})
        return Rocks(folder, database, None)
    if not folder.is_dir():
        raise RocksError(f"{folder} does not exist or is not a folder")
    check_marker(folder, kind, format_version)
    for attempt in range(1, _OPEN_ATTEMPTS):
        try:
            return _open_beside(folder, cache)
        except RocksError:
            time.sleep(0.01 * attempt)
    return _open_beside(folder, cache)


def _open_beside(folder: Path, cache: rocksdict.Cache) -> Rocks:
    scratch = Path(tempfile.mkdtemp(prefix="keylanes-"))  # RocksDB writes a log of its own there
    try:
        options = _options(cache)
        options.create_if_missing(False)
        with _in_words(folder):
            access = rocksdict.AccessType.secondary(str(scratch))
            database = rocksdict.Rdict(str(folder), options, {"default": options}, access)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    rocks = Rocks(folder, database, scratch)
    try:
        rocks.catch_up()
    except BaseException:
        rocks.close()
        raise
    return rocks


class _SharedCache:
    """The block cache of the process; made at the first request. The cache only grows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: rocksdict.Cache | None = None
        self.size = 0

    def at_least(self, size: int) -> rocksdict.Cache:
        """The cache, grown to at least ``size`` bytes."""
        with self._lock:
            if self._cache is None:
                self._cache = rocksdict.Cache(size)
            elif size > self.size:
                self._cache.set_capacity(size)
            self.size = max(self.size, size)
            return self._cache


_cache: Final = _SharedCache()


def _options(cache: rocksdict.Cache) -> rocksdict.Options:
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(10, False)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_arena_block_size(_ARENA_BYTES)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_background_jobs(2)
    options.set_max_open_files(-1)  # a reader beside a writer keeps the files that the writer deletes
    options.set_keep_log_file_num(3)
    return options


def _prepare(folder: Path, kind: str, format_version: int) -> None:
    """Make a folder of keylanes: a new one gets the marker, another one has to have it."""
    with in_words_of_system(folder):
        own(folder)
        is_new = is_empty(folder)
        if not is_new:
            check_marker(folder, kind, format_version)
        folder.chmod(0o700)
        if is_new:
            write_marker(folder, kind, format_version)


@contextlib.contextmanager
def in_words_of_system(folder: Path) -> Iterator[None]:
    """Turn the system's refusals of a folder into RocksError."""
    try:
        yield
    except OSError as error:
        raise RocksError(f"{folder} can't be used: {error}") from error


def own(folder: Path) -> None:
    """Make sure that the folder exists and belongs to the user of this process. Raises RocksError, OSError."""
    if folder.is_symlink():
        raise RocksError(f"{folder} is a symbolic link; name the folder itself")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(folder)


def is_empty(folder: Path) -> bool:
    """Whether a folder is empty, apart from leftovers of a process that died while making the folder."""
    names = {entry.name for entry in os.scandir(folder)}
    return all(name == LOCK_FILE or name.startswith(_MARKER_BEING_WRITTEN) for name in names)


def kind_in(folder: Path) -> str:
    """The kind in the marker of a folder; "" without a readable marker."""
    try:
        found = _MARKER_TEXT.fullmatch((folder / MARKER).read_text(encoding="ascii", errors="replace"))
    except OSError:
        return ""
    return "" if found is None else found["kind"]


def holder_of(file: Path) -> int | None:
    """The process that has a file locked; None where the system does not tell (only Linux does)."""
    try:
        found, table = file.stat(), Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for words in map(str.split, table.splitlines()):  # 1: FLOCK ADVISORY WRITE 4711 fe:00:9977916 0 EOF
        if len(words) > 5 and words[5] == place and words[4].isdigit() and words[4] != "0":
            return int(words[4])
    return None


def _manifest(folder: Path) -> tuple[str, int] | None:
    """The name and length of the current manifest; None during a replacement."""
    try:
        name = (folder / "CURRENT").read_text(encoding="ascii", errors="replace").strip()
        return name, (folder / name).stat().st_size
    except OSError:
        return None


def _check_owner(folder: Path) -> None:
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise RocksError(f"{folder} is not a folder")
    if hasattr(os, "geteuid") and os.geteuid() not in (0, found.st_uid):
        raise RocksError(f"{folder} belongs to user {found.st_uid}; it has to belong to the one who runs this process")


def write_marker(folder: Path, kind: str, format_version: int) -> None:
    """Give a folder its kind, in one step. Raises OSError."""
    descriptor, new = tempfile.mkstemp(prefix=_MARKER_BEING_WRITTEN, dir=folder)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(f"keylanes {kind} format {format_version}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, folder / MARKER)


def check_marker(folder: Path, kind: str, format_version: int) -> None:
    """Raises RocksError unless a folder has this kind and format."""
    try:
        text = (folder / MARKER).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise RocksError(
            f"{folder} is not empty and was not made by keylanes (it has no file {MARKER}); name another folder"
        ) from None
    except OSError as error:
        raise RocksError(f"{folder} can't be read: {error}") from error
    found = _MARKER_TEXT.fullmatch(text)
    if found is None:
        raise RocksError(f"{folder / MARKER} is damaged: it reads {text[:60]!r}")
    if found["kind"] != kind:
        raise RocksError(f"{folder} holds keylanes {found['kind']}, not {kind}")
    if int(found["format"]) != format_version:
        raise RocksError(
            f"{folder} has format {found['format']}; this version of keylanes reads format {format_version}"
        )


_HELD_HERE: Final = "lock hold by current process"
_CAUSES: Final[Sequence[tuple[str, str]]] = (
    # a part of RocksDB's text, and its meaning
    (_HELD_HERE, "{folder} is already open in this process"),
    ("No space left on device", "the disk that holds {folder} is full; free some space, then start again"),
    ("Disk quota exceeded", "the disk quota for {folder} is used up; free some space, then start again"),
    ("Corruption", "{folder} is damaged (RocksDB: {error})"),
    ("comparator", "{folder} holds a RocksDB database that is not ours (RocksDB: {error})"),
    ("Column families not opened", "{folder} holds a RocksDB database that is not ours (RocksDB: {error})"),
    ("Permission denied", "{folder} may not be used by this user (RocksDB: {error})"),
)


@contextlib.contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    """Turn errors of rocksdict into RocksError."""
    try:
        yield
    except (RocksError, GeneratorExit):
        raise
    except Exception as error:
        # rocksdict raises bare Exceptions; their text is all there is.
        text = str(error).strip()
        if isinstance(error, rocksdict.DbClosedError):
            raise RocksError(f"{folder} was closed") from error
        if "/LOCK:" in text and _HELD_HERE not in text:
            raise RocksInUse(folder, holder_of(folder / "LOCK")) from error
        for sign, words in _CAUSES:
            if sign in text:
                raise RocksError(words.format(folder=folder, error=text)) from error
        raise RocksError(f"{folder} can't be used (RocksDB: {text})") from error
