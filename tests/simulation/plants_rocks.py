"""Defects in the copies of state on a disk.

The writer that is killed is a process of its own, so they are planted there, too: it runs this file by its path, which
is why it needs nothing but the package.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import rocksdict

from keylanes.state import copies
from keylanes.state.copies import RocksCopy
from keylanes.state.rocks import Rocks, WriteBatch

FAMILY = "markers"
ANYHOW = rocksdict.AccessType.read_write()

Set: TypeAlias = Callable[[Any, str, Any], None]
"""Gives an attribute of a class or module another value."""


def marker_in_another_family(put: Set) -> None:
    """Markers have a column family, which is flushed when one was written; RocksDB writes no log.

    As stores do that follow a log elsewhere: what is lost is read from there again, if the marker says so.
    """
    database = rocksdict.Rdict
    unlogged = rocksdict.WriteOptions()
    unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # its stub has a method, it is a property

    def opened(path: str, options: Any = None, column_families: Any = None, access_type: Any = ANYHOW) -> Any:
        options.create_missing_column_families(True)
        return database(path, options, column_families={**column_families, FAMILY: options}, access_type=access_type)

    class Split(WriteBatch):
        """Markers apart from everything else."""

        def __init__(self) -> None:
            super().__init__()
            self.markers: dict[bytes, bytes] = {}

        def put(self, key: bytes, value: bytes) -> None:
            if key[:1] == b"m":
                self.markers[key] = value
            else:
                super().put(key, value)

    def write(self: Rocks, writes: Any, *, sync: bool = False) -> None:
        self._open().write(writes._batch, unlogged)
        markers = self._open().get_column_family(FAMILY)
        for key, value in getattr(writes, "markers", {}).items():
            markers.put(key, value, unlogged)
            markers.flush()

    def get(self: Rocks, key: bytes) -> Any:
        return (self._open().get_column_family(FAMILY) if key[:1] == b"m" else self._open()).get(key)

    put(rocksdict, "Rdict", opened)
    put(copies, "WriteBatch", Split)
    put(Rocks, "write", write)
    put(Rocks, "get", get)


def marker_in_a_batch_of_its_own(put: Set) -> None:
    """The marker is written, then the changes that it speaks of."""
    commit = RocksCopy._commit

    def in_two(self: RocksCopy, writes: WriteBatch, marks: Any) -> None:
        commit(self, self._copies._writes(), marks)
        commit(self, writes, [])

    put(RocksCopy, "_commit", in_two)
