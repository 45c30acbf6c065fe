"""The folder of a process's local copies, and the storage of each source partition, opened from it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...brokers.protocol import Broker, TopicDescription, TopicPartition
from ...errors import FencedError, SettingsError
from ...offsets.decide import StoreSpec
from ...offsets.ledger import Ledger, SourcePartition
from ...state.changelog import changelog_topic
from ...state.tables import LocalCopies, LocalCopy, StoreInfo
from ..handlers.handler import Handler
from ..handlers.outputs import RECORD_FRAME_BYTES, destination_of
from ..handlers.partition_state import PartitionState
from ..handlers.store_declarations import codec_of
from ..settings import Settings
from .storage import BrokerTable, CopyTable, OwnCopy, StateThreads, Storage

if TYPE_CHECKING:
    from ...state.subfolders import Claimed

OpenCopies: TypeAlias = Callable[[str], LocalCopies]
"""From the birth of an application's logs to its copies; blocks, raises RocksError."""


def wanted_stores(handlers: Sequence[Handler]) -> list[StoreSpec]:
    """The stores that handlers ask for."""
    return [
        StoreSpec(
            name=d.name,
            topic=handler.topic,
            kind=d.kind,
            key_type=d.key_type,
            value_type=d.value_type,
            codec=codec_of(d),
        )
        for handler in handlers
        for d in handler.stores
    ]


@dataclass
class StorageOpener:
    """Opens the storages of an application once a run. ``handlers``: those with stores."""

    app: str
    broker: Broker
    settings: Settings
    handlers: Sequence[Handler]
    open_copies: OpenCopies | None
    threads: StateThreads
    copies: LocalCopies | None = field(default=None, init=False)
    """None: no local copies are open."""

    async def check(self) -> None:
        """Check that state can be kept, before the process joins: a start that is refused disturbs no member. The
        changelogs are there. Raises SettingsError, StoreError.
        """
        changelogs = [changelog_topic(self.app, handler.topic) for handler in self.handlers]
        if all(self.broker.table(changelog, 0) is not None for changelog in changelogs):
            return
        if self.open_copies is None:
            raise SettingsError(
                f"application {self.app!r} keeps state, and this broker can't: give Settings.state_folder, a local "
                "folder that the processes of one machine may share"
            )
        if isinstance(self.open_copies, StateFolder):
            await self.threads.run(self.open_copies.check)

    async def open(
        self, ledger: Ledger, infos: Sequence[StoreInfo], topics: Mapping[str, TopicDescription]
    ) -> dict[SourcePartition, Storage]:
        """Open the storages of all source partitions with stores. Raises SettingsError, StoreError, StateError."""
        storages: dict[SourcePartition, Storage] = {}
        for topic in [handler.topic for handler in self.handlers]:
            changelog = topics[changelog_topic(self.app, topic)]
            limit = destination_of(changelog).bytes_max - RECORD_FRAME_BYTES
            ahead = max(1, self.settings.limits.state_ahead_bytes_max // changelog.partitions)
            for partition in range(changelog.partitions):
                state = partial(PartitionState, f"{topic}[{partition}]", entry_bytes_max=limit, ahead_bytes_max=ahead)
                source = TopicPartition(changelog.name, partition)
                table = self.broker.table(*source)
                if table is not None:
                    storages[topic, partition] = BrokerTable(source, state(table), self.threads)
                else:
                    copy = await self._copy(ledger, infos, topic, partition)
                    storages[topic, partition] = OwnCopy(source, state(CopyTable(copy)), copy, self.threads)
        return storages

    async def _copy(self, ledger: Ledger, infos: Sequence[StoreInfo], topic: str, partition: int) -> LocalCopy:
        if self.copies is None:
            assert self.open_copies is not None, "that was checked before"
            self.copies = await self.threads.run(self.open_copies, ledger.control.app_birth)
            await self.threads.run(self.copies.declare, infos)
        return await self.threads.run(self.copies.copy, topic, partition)

    async def close(self) -> None:
        """Let go of the copies and their folder; a second call does nothing. Raises StoreError."""
        copies, self.copies = self.copies, None
        if copies is not None:
            await self.threads.run(self._let_go, copies)
        else:
            self._let_go(None)

    def _let_go(self, copies: LocalCopies | None) -> None:
        """Let go of the folder after its copies, however they end: the next process would find the copies open."""
        try:
            if copies is not None:
                copies.close()
        finally:
            if isinstance(self.open_copies, StateFolder):
                self.open_copies.close()


class StateFolder:
    """An ``OpenCopies`` of a subfolder of ``Settings.state_folder``. This process has the subfolder from the first call
    on.
    """

    def __init__(self, app: str, folder: str, name: str | None, cache_bytes: int, birth: str) -> None:
        self.app = app
        self.folder = Path(folder)
        self.name = name
        self.cache_bytes = cache_bytes
        self.birth = birth
        """The birth of this process; the subfolder names it to other processes."""
        self._claimed: Claimed | None = None
        self._closed = False
        self._guard = threading.Lock()

    def __call__(self, birth_text: str) -> LocalCopies:
        """Open the copies; raises RocksError."""
        from ...state.copies import open_copies

        return open_copies(self._claim(), app=self.app, birth=birth_text, cache_bytes=self.cache_bytes)

    def check(self) -> None:
        """Raises RocksError when this process gets no subfolder, or a damaged or foreign one."""
        from ...state.copies import check_copies

        check_copies(self._claim(), app=self.app, cache_bytes=self.cache_bytes)

    def close(self) -> None:
        """Let go of the subfolder. No thread takes a subfolder from now on, also none that is looking for one."""
        with self._guard:
            self._closed = True
            claimed, self._claimed = self._claimed, None
        if claimed is not None:
            claimed.lock.close()

    def _claim(self) -> Path:
        """The subfolder of this process; raises RocksError, FencedError. One call at a time."""
        from ...state.rocks import RocksError
        from ...state.subfolders import NameInUse, claim

        if self._claimed is not None:
            return self._claimed.folder
        try:
            claimed = claim(self.folder, self.app, self.name, birth=self.birth)
        except NameInUse as error:
            raise FencedError(str(error)) from error
        with self._guard:
            if not self._closed:
                self._claimed = claimed
                return claimed.folder
        claimed.lock.close()
        raise RocksError(f"{claimed.folder} is not wanted any more: the application stops")


def open_state_folder(app: str, settings: Settings, birth: str) -> StateFolder | None:
    """The way to open the copies in ``Settings.state_folder``; None: no folder is named."""
    folder = settings.state_folder
    if folder is None:
        return None
    name, cache_bytes = settings.group_instance_id, settings.limits.state_cache_bytes_max
    return StateFolder(app=app, folder=folder, name=name, cache_bytes=cache_bytes, birth=birth)
