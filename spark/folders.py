"""Copies of state in folders of this machine: ``read_copies`` makes a frame of the folders.

The witness shares only the format of folders with the runtime (state/copies.py). A folder is opened beside its writer.
One task opens a folder once and reads the whole folder: markers and entries are of one moment. A copy does not hold
points without a marker: entries at these points are passed over.

Columns: ``copy`` (the place of the folder in the list), ``topic``, ``partition``, ``first``, ``end``, ``position`` and
``time_ms`` of a marker, and ``key`` and ``value`` of an entry at the marker's points. A marker has its own row, without
key.
"""

import json
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..keyrange.ranges import KeyRange
from .brokers import AuditError
from .history import Grants

if TYPE_CHECKING:
    import pyarrow as pa

    from ..state.copies import RocksCopies

COPY_SCHEMA = (
    "copy int, topic string, partition int, first bigint, end bigint, position bigint, time_ms bigint, "
    "key binary, value binary"
)
PAGE_ENTRIES = 8_192


def copies_in(folders: Sequence[str], app: str, grants: Grants) -> list[Path]:
    """The folders of copies: each of ``folders``, or the subfolders of the application inside.

    Raises AuditError when a folder can't be read, holds no state, or belongs to another application or to other logs.
    Needs no Spark.
    """
    from ..state.copies import NoStateYet, open_copies
    from ..state.rocks import RocksError

    if folders and not grants.stores:
        raise AuditError(f"copies: the application {app!r} has declared no store")
    found: list[Path] = []
    for folder in folders:
        inside = _inside(Path(folder), app)
        filled = []
        for path in [Path(folder)] if inside is None else inside:
            try:
                open_copies(path, app=app, birth=grants.app_birth, mode="beside").close()
            except NoStateYet as error:
                if inside is None:
                    raise AuditError(f"copies: {error}") from None
            except RocksError as error:
                raise AuditError(f"copies: {error}") from error
            else:
                filled.append(path.resolve())
        if not filled:
            raise AuditError(f"copies: {folder} holds no state of {app!r}")
        found += filled
    return list(dict.fromkeys(found))


def _inside(folder: Path, app: str) -> list[Path] | None:
    """The subfolders with copies; in a state folder, the subfolders of the application. None: no subfolders."""
    from ..state.subfolders import folder_of, subfolders_in

    try:
        inside = subfolders_in(folder)
        if inside is None or not inside or inside[0].parent == folder:
            return inside
    except OSError as error:
        raise AuditError(f"copies: {folder} can't be read: {error}") from error
    return [path for path in inside if path.parent.name == folder_of(app)]


def read_copies(spark: SparkSession, folders: Sequence[Path]) -> DataFrame:
    """All markers and entries of folders of copies, as a frame. Each computation of the frame reads anew."""
    spark.dataSource.register(KeylanesCopies)
    return spark.read.format("keylanes_copies").option("folders", json.dumps([str(path) for path in folders])).load()


@dataclass
class Folder(InputPartition):
    """The folder of one task."""

    number: int
    path: str


class CopiesReader(DataSourceReader):
    """Reads a folder in each task."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._folders: list[str] = json.loads(options["folders"])

    def partitions(self) -> Sequence[InputPartition]:
        """One task for each folder."""
        return [Folder(number, path) for number, path in enumerate(self._folders)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Arrow batches of about a page."""
        from ..state.copies import open_copies

        assert isinstance(partition, Folder)
        copies = open_copies(partition.path, mode="beside")
        try:
            for topic, number, columns in _pages(copies):
                yield _batch(partition.number, topic, number, columns)
        finally:
            copies.close()


def _pages(copies: "RocksCopies") -> Iterator[tuple[str, int, list[tuple[Any, ...]]]]:
    """Topic, partition, and rows of first, end, position, time_ms, key, value."""
    from ..state.keys import bounds_of

    for topic in copies.topics():
        for partition in copies.partitions(topic):
            copy = copies.copy(topic, partition)
            for first, end, marker in copy.markers().pieces():
                marker_row = (first, end, marker.position, marker.time_ms)
                yield topic, partition, [(*marker_row, None, None)]
                at, stop = bounds_of(KeyRange(first, end))
                while page := copy.page(at, stop, PAGE_ENTRIES):
                    yield topic, partition, [(*marker_row, key, value) for key, value in page]
                    at = page[-1][0] + b"\0"


def _batch(number: int, topic: str, partition: int, rows: list[tuple[Any, ...]]) -> "pa.RecordBatch":
    import pyarrow as pa  # here: Spark starts a process to plan each source, without need of Arrow

    kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in (item.split() for item in COPY_SCHEMA.split(", "))])
    n = len(rows)
    columns = [[number] * n, [topic] * n, [partition] * n, *zip(*rows, strict=True)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class KeylanesCopies(DataSource):
    """Copies of state in folders."""

    @classmethod
    def name(cls) -> str:
        return "keylanes_copies"

    def schema(self) -> str:
        return COPY_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # our own
        return CopiesReader(self.options)
