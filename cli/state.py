"""``keylanes state``: the state in a folder, without the application or beside the running application.

The folder is a folder of local copies (``Settings.state_folder``), a subfolder of it, or the folder of an embedded
broker. A file in the folder tells which. All state in the folder is committed. A copy is written from the changelog,
and may be some transactions old. The copy of a process that has ended is as old as the end of the process. Hence, where
several subfolders are searched, each entry names its subfolder. With the address of the broker only the folder of the
present owner answers (state_owner.py).
"""

import base64
import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
import typer

from ..errors import LogError, SettingsError, StoreError
from ..keyrange.hashing import point_of_key
from ..keyrange.ranges import WHOLE, KeyRange
from ..keyrange.steps import Steps
from ..offsets.codec import EventError, decode
from ..offsets.ledger import Ledger, evolve_all
from ..runtime.logs.reader import control_topic
from ..state.changelog import changelog_topic
from ..state.copies import NoStateYet, RocksCopies, open_copies
from ..state.keys import bounds_of, encode_map_key
from ..state.lookup import Entry, KeyInSeveral, entries_of_key, entries_of_store, walk_table
from ..state.rocks import RocksError, kind_in
from ..state.subfolders import birth_in, subfolders_in
from ..state.tables import Marker, StoreInfo, Table
from ..state.topics import KIND as TOPICS
from ..state.topics import TopicStore
from .codes import epilog
from .state_owner import Owners, owners_of

T = TypeVar("T")
MayAnswer: TypeAlias = Callable[["StoredApp", StoreInfo, int, int], bool]
"""Whether a folder may answer for a point of a store's partition."""

READ_RECORDS_MAX: Final = 10_000
EXIT_NOTHING: Final = 1

state = typer.Typer(
    name="state", help="Look into state, as a folder holds it; also beside the application.", no_args_is_help=True
)


class NotHere(SettingsError):
    """A folder lacks the store, the partition, or the key's range; another folder may have the state."""


class SavedPartition(NamedTuple):
    """The committed state of one source partition, and the ranges with state."""

    table: Table
    ranges: Sequence[KeyRange]
    markers: Steps[Marker] | None = None
    """The positions up to which a copy has the changelog."""

    def read_committed(self, key: bytes, point: int) -> bytes | None:  # noqa: ARG002  # the caller has looked
        """The stored value of a state key."""
        return self.table.get(key)

    def span_committed(
        self,
        first: bytes,
        end: bytes | None,
        within: KeyRange,  # noqa: ARG002  # the caller has looked
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entries of ``[first, end)`` in order."""
        return walk_table(self.table, first, end)


class StoredApp(Protocol):
    """The state of one application in a folder. ``where``: the name of the subfolder, where several are searched; else
    None. ``birth``: of the process that had the folder last; None: the folder has no birth.
    """

    app: str
    where: str | None
    birth: str | None
    stores: Mapping[str, StoreInfo]

    def partitions(self, topic: str) -> Mapping[int, SavedPartition]:
        """The partitions of a source topic; raises RocksError."""

    def close(self) -> None:
        """Let go."""


class CopiesInFolder:
    """The state in local copies."""

    def __init__(self, copies: RocksCopies, birth: str | None, where: str | None) -> None:
        self.app = copies.app
        self.birth = birth
        self.where = where
        self._copies = copies
        self.stores: Mapping[str, StoreInfo] = {store.name: store for store in copies.stores()}

    def partitions(self, topic: str) -> Mapping[int, SavedPartition]:
        """See StoredApp. Points without a marker do not count as state: their entries may be leftovers."""
        found = {}
        for partition in self._copies.partitions(topic):
            copy = self._copies.copy(topic, partition)
            markers = copy.markers()
            found[partition] = SavedPartition(
                copy, [KeyRange(first, end) for first, end, _ in markers.pieces()], markers
            )
        return found

    def close(self) -> None:
        """See StoredApp."""
        self._copies.close()


class TopicsInFolder:
    """The state in changelogs that an embedded broker keeps by key."""

    where: str | None = None
    birth: str | None = None

    def __init__(self, topics: TopicStore, app: str | None) -> None:
        self._topics = topics
        self.app = _app_in(topics, app)
        self.stores: Mapping[str, StoreInfo] = _declared_stores(topics, self.app)

    def partitions(self, topic: str) -> Mapping[int, SavedPartition]:
        """See StoredApp."""
        changelog = changelog_topic(self.app, topic)
        stored = self._topics.topics().get(changelog)
        tables = [self._topics.table(changelog, p) for p in range(stored.partitions if stored is not None else 0)]
        return {p: SavedPartition(table, (WHOLE,)) for p, table in enumerate(tables) if table is not None}

    def close(self) -> None:
        """See StoredApp."""
        self._topics.close()


@contextlib.contextmanager
def open_folder(folder: Path, app: str | None, *, may_lack: bool = False) -> Iterator[list[StoredApp]]:
    """The state of a folder, or of each of its subfolders. With ``may_lack`` the list is empty where the folder has no
    state of the named application. Raises RocksError, SettingsError, LogError.
    """
    try:
        is_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        subfolders = subfolders_in(folder)
    except OSError as error:
        raise RocksError(f"{folder} can't be read: {error}") from error
    if may_lack and app is not None and is_empty:
        yield []
        return
    with contextlib.ExitStack() as stack:
        if subfolders is None:
            yield [stack.enter_context(contextlib.closing(_open(folder, app)))]
            return
        every: list[StoredApp] = []
        for subfolder in subfolders:
            with contextlib.suppress(NoStateYet):
                every.append(stack.enter_context(contextlib.closing(_open_copies(subfolder, None, subfolder.name))))
        apps = {stored.app for stored in every}
        chosen_app = app if may_lack and app is not None else _one_of(apps, app, folder)
        yield [stored for stored in every if stored.app == chosen_app]


def _open(folder: Path, app: str | None) -> StoredApp:
    if kind_in(folder) != TOPICS:
        return _open_copies(folder, app)  # raises the right error for any other folder
    topics = TopicStore.open_read_only(folder)
    try:
        return TopicsInFolder(topics, app)
    except BaseException:
        topics.close()
        raise


def _open_copies(folder: Path, app: str | None, where: str | None = None) -> StoredApp:
    copies = open_copies(folder, app=app, mode="beside")
    try:
        return CopiesInFolder(copies, birth_in(folder), where)
    except BaseException:
        copies.close()
        raise


def _app_in(topics: TopicStore, app: str | None) -> str:
    """The application to read, among the applications with a control log and a changelog; raises SettingsError."""
    names = topics.topics()
    control = control_topic("")
    found = {
        candidate
        for name in names
        if (candidate := name.removesuffix(control)) != name
        and any(other.startswith(changelog_topic(candidate, "")) for other in names)
    }
    return _one_of(found, app, topics.folder)


def _one_of(found: Collection[str], app: str | None, folder: Path) -> str:
    """The application to read, among the applications with state in a folder; raises SettingsError."""
    if app is None and len(found) == 1:
        return next(iter(found))
    if not found:
        raise SettingsError(f"{folder}: no application keeps state here")
    if app is None or app not in found:
        asked = "name one with --app" if app is None else f"seen --app {app}"
        raise SettingsError(f"{folder}: the applications that keep state here are {sorted(found)}; {asked}")
    return app


def _declared_stores(topics: TopicStore, app: str) -> dict[str, StoreInfo]:
    """The stores of an application, from its control log; raises LogError."""
    name = control_topic(app)
    marks = topics.watermarks(name, 0)
    events, position = [], marks.start
    while position < marks.high:
        records, position = topics.read(name, 0, position, READ_RECORDS_MAX)
        for record in records:
            try:
                events.append(decode(record.value or b""))
            except EventError as error:
                raise LogError(f"{name} at position {record.offset}: {error}") from None
    stores = evolve_all(Ledger(), events).control.stores.values()
    return {
        s.name: StoreInfo(
            number=s.store,
            name=s.name,
            topic=s.topic,
            kind=s.kind,
            key_type=s.key_type,
            value_type=s.value_type,
            codec=s.codec,
        )
        for s in stores
    }


# --- entries ---------------------------------------------------------------------------------------------------------


def of_each(stored: Sequence[StoredApp], look: Callable[[StoredApp], T]) -> list[tuple[StoredApp, T]]:
    """The results of a look into each subfolder; raises NotHere only when all subfolders raise NotHere."""
    found: list[tuple[StoredApp, T]] = []
    missed: list[NotHere] = []
    for one in stored:
        try:
            found.append((one, look(one)))
        except NotHere as error:
            missed.append(error)
    if missed and not found:
        raise missed[0]
    return found


def choose_store(stored: StoredApp, name: str, partition: int | None) -> tuple[StoreInfo, Mapping[int, SavedPartition]]:
    """A store, and its partitions or the requested partition; raises NotHere, RocksError."""
    store = stored.stores.get(name)
    if store is None:
        raise NotHere(f"application {stored.app!r} has no store {name!r} here; it has {sorted(stored.stores)}")
    found = stored.partitions(store.topic)
    if partition is None:
        return store, found
    if partition not in found:
        raise NotHere(f"partition {partition} of {store.topic!r} is not here; there are {sorted(found)}")
    return store, {partition: found[partition]}


def any_folder(_stored: StoredApp, _store: StoreInfo, _partition: int, _point: int) -> bool:
    """Every folder may answer."""
    return True


def entries_of(
    stored: StoredApp,
    name: str,
    key: bytes,
    map_key: str | None,
    partition: int | None,
    may_answer: MayAnswer = any_folder,
) -> list[tuple[dict[str, object], Marker | None]]:
    """The values of a record's key: one, or the entries of its map, each with the marker of the copy. Raises
    SettingsError when several partitions have the key, NotHere when no partition here covers the key.
    """
    store, partitions = choose_store(stored, name, partition)
    point = point_of_key(key)
    answering = {
        p: saved
        for p, saved in partitions.items()
        if any(r.first <= point < r.end for r in saved.ranges) and may_answer(stored, store, p, point)
    }
    if not answering:
        raise NotHere(f"no partition of {store.topic!r} here holds the state of this key: it is not restored")
    try:
        entries = entries_of_key(store, key, _map_key_bytes(store, map_key), answering.items())
    except KeyInSeveral as error:
        raise SettingsError(
            f"partitions {error.partitions} of {store.topic!r} have this key; name one with --partition"
        ) from None
    markers = {p: None if saved.markers is None else saved.markers.at(point) for p, saved in answering.items()}
    return [(printable_entry(store, entry, stored.where), markers[entry.partition]) for entry in entries]


def _map_key_bytes(store: StoreInfo, map_key: str | None) -> bytes | None:
    """A map's key from the command line; raises SettingsError."""
    if map_key is None:
        return None
    if store.kind != "map":
        raise SettingsError(f"--map-key: store {store.name!r} has one value for each key, no map")
    if store.key_type == "bytes":
        return map_key.encode()
    try:
        return encode_map_key(int(map_key) if store.key_type == "int" else map_key, store.key_type)
    except ValueError as error:
        raise SettingsError(f"--map-key: the keys of {store.name!r} are {store.key_type}: {error}") from None


def all_entries(stored: StoredApp, name: str, partition: int | None) -> Iterator[dict[str, object]]:
    """All values of a store, or of one partition, in order of partitions and points. Raises StateError."""
    store, partitions = choose_store(stored, name, partition)
    for number, saved in partitions.items():
        for within in saved.ranges:
            for entry in entries_of_store(store, number, walk_table(saved.table, *bounds_of(within))):
                yield printable_entry(store, entry, stored.where)


def printable_entry(store: StoreInfo, found: Entry, where: str | None) -> dict[str, object]:
    """An entry for printing; bytes that are no text or can't be decoded become base64."""
    entry: dict[str, object] = {} if where is None else {"folder": where}
    entry |= {"partition": found.partition, **_text("key", found.key)}
    if found.map_key is not None:
        entry |= _text("map_key", found.map_key) if isinstance(found.map_key, bytes) else {"map_key": found.map_key}
    try:
        entry |= _value(store, found.payload)
    except (ValueError, TypeError):  # written by other code, or with types outside of JSON
        entry["value_base64"] = base64.b64encode(found.payload).decode()
    if found.deadline_ms is not None:
        entry["deadline_ms"] = found.deadline_ms
    return entry


def _text(name: str, data: bytes) -> dict[str, object]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _value(store: StoreInfo, payload: bytes) -> dict[str, object]:
    """The decoded value of an entry; raises ValueError or TypeError for bytes, and for a value outside of JSON."""
    value: Any
    if store.codec == "msgpack":
        value = msgspec.msgpack.decode(payload)
        msgspec.json.encode(value)  # raises for types outside of JSON
    elif store.codec == "json" and store.value_type == "str":
        value = payload.decode()
    elif store.codec == "json" and store.value_type != "bytes":
        value = msgspec.json.decode(payload)
    else:
        raise ValueError("bytes as they are")
    return {"value": value}


# --- the commands ----------------------------------------------------------------------------------------------------

Folder = Annotated[
    Path, typer.Argument(help="Settings.state_folder, a subfolder of it, or the folder of an embedded broker")
]
StoreName = Annotated[str, typer.Argument(metavar="STORE", help="the store's name")]
Partition = Annotated[int | None, typer.Option(min=0, help="of the source topic; else all")]
AppName = Annotated[str | None, typer.Option("--app", help="where a folder has the state of several applications")]


@state.command(epilog=epilog(0, 2, 4, 6, 8, code_1="there is no value"))
def get(
    folder: Folder,
    store: StoreName,
    key: Annotated[str, typer.Argument(help="the record's key")],
    map_key: Annotated[str | None, typer.Option(help="the key in a map; else all of the map is printed")] = None,
    partition: Partition = None,
    app: AppName = None,
    is_base64: Annotated[bool, typer.Option("--base64", help="KEY is given as base64")] = False,
    broker: Annotated[
        str | None, typer.Option(help="the broker's address: then the present owner's folder alone answers")
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="any folder answers, and each entry says how far its copy is")
    ] = False,
) -> None:
    """Print the value of a key, or the entries of its map, as JSON; 1 is the exit code when there is none."""
    try:
        data = base64.b64decode(key, validate=True) if is_base64 else key.encode("utf-8", "surrogateescape")
    except ValueError as error:
        raise SettingsError(f"--base64: {key!r} is none: {error}") from None
    try:
        with open_folder(folder, app, may_lack=broker is not None) as stored:
            sources = [one.stores[store].topic for one in stored if copy and store in one.stores]
            name = stored[0].app if stored else app or ""
            owners = None if broker is None else owners_of(name, broker, store, sources[0] if sources else None)
            may_answer = any_folder if owners is None or copy else _owners_folder(owners)
            try:
                answers = of_each(stored, lambda one: entries_of(one, store, data, map_key, partition, may_answer))
            except NotHere:
                if may_answer is any_folder:
                    raise
                answers = []
            found = [entry for _, entries in answers for entry in entries]
            births = {one.birth for one in stored}
    except RocksError as error:
        raise StoreError(str(error)) from error
    for entry, marker in found:
        _print({**entry, **_how_far(entry, marker, owners)} if copy else entry)
    if not found:
        missed = (
            owners.reasons_without_answer(partition, point_of_key(data), births)
            if owners is not None and not copy
            else []
        )
        if missed:
            raise SettingsError(
                f"store {store!r}: the state of this key is not in {folder}, or another partition may have it: "
                f"{'; '.join(missed)}. --copy takes what is kept of it here"
            )
        sys.stderr.write(f"keylanes: store {store!r} has nothing for this key\n")
        raise typer.Exit(EXIT_NOTHING)


def _owners_folder(owners: Owners) -> MayAnswer:
    """A check whether a folder may answer: the owner of the point has the folder, and has taken the point up."""

    def may_answer(stored: StoredApp, _: StoreInfo, partition: int, point: int) -> bool:
        if isinstance(stored, TopicsInFolder):  # shared by all processes
            return True
        owner = owners.owner_of(partition, point)
        return owner is not None and owner.birth == stored.birth and owners.is_at_work(partition, point)

    return may_answer


def _how_far(entry: dict[str, object], marker: Marker | None, owners: Owners | None) -> dict[str, object]:
    """The position up to which a copy has the changelog; with the broker also the end of the changelog."""
    told: dict[str, object] = {} if marker is None else {"copied_to": marker.position}
    if marker is not None and owners is not None:
        told["changelog_ends"] = owners.ends.get(int(str(entry["partition"])))
    return told


@state.command(epilog=epilog(0, 2, 4, 8))
def scan(
    folder: Folder,
    store: StoreName,
    partition: Partition = None,
    limit: Annotated[int | None, typer.Option(min=0, help="print at most so many")] = None,
    app: AppName = None,
) -> None:
    """Print all values of a store as lines of JSON, in order of partitions and points."""
    try:
        with open_folder(folder, app) as stored:
            with_store = [one for one, _ in of_each(stored, lambda one: choose_store(one, store, partition))]
            entries = chain.from_iterable(all_entries(one, store, partition) for one in with_store)
            for entry in islice(entries, limit):
                _print(entry)
    except RocksError as error:
        raise StoreError(str(error)) from error


def _print(entry: dict[str, object]) -> None:
    sys.stdout.write(msgspec.json.encode(entry).decode() + "\n")
