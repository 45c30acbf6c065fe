"""The topics of a long benchmark: made, filled and removed."""

import asyncio
import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.group import LeaveGroupRequest

from rig.drivers import Driver, run_module


@dataclass
class Ground:
    """A broker with the topics that are kept; everything else is removed after each run."""

    bootstrap: str
    folder: Path
    kept: set[str] = field(default_factory=set)

    def make(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Create a topic."""
        asyncio.run(self._with_admin(_create(topic, partitions, settings)))

    def fill(self, topic: str, order: Mapping[str, Any]) -> None:
        """Create a source topic and fill it, once. Raises WrongRun."""
        if topic in self.kept:
            return
        self.make(topic, order["partitions"])
        with self.loader({**order, "topic": topic}) as loader:
            loader.end()
        self.kept.add(topic)

    def loader(self, order: Mapping[str, Any]) -> Driver:
        """A running loader."""
        folder = self.folder / "loader"
        shutil.rmtree(folder, ignore_errors=True)
        return run_module("rig.loader", {**order, "bootstrap": self.bootstrap}, folder)

    def forget_members(self, group: str) -> None:
        """Take what was killed out of its consumer group at once: else its successor waits for the session's end."""
        asyncio.run(self._with_admin(_leave(group)))

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A folder for one run; it and all new topics are gone afterwards."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(Exception):  # the broker may be what failed; its folder is removed in any case
                asyncio.run(self._with_admin(_remove_others(self.kept)))

    async def _with_admin(self, work: Any) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await work(admin)
        finally:
            await admin.close()


def _create(topic: str, partitions: int, settings: Mapping[str, str] | None) -> Any:
    async def work(admin: AIOKafkaAdminClient) -> None:
        made = NewTopic(topic, num_partitions=partitions, replication_factor=1, topic_configs=dict(settings or {}))
        await admin.create_topics([made])

    return work


def _leave(group: str) -> Any:
    async def work(admin: AIOKafkaAdminClient) -> None:
        coordinator = await admin.find_coordinator(group)
        for answer in await admin.describe_consumer_groups([group], group_coordinator_id=coordinator):
            for _, _, _, _, _, members, *_ in answer.groups:
                for member, *_ in members:
                    await admin._send_request(LeaveGroupRequest(group, member), coordinator)

    return work


def _remove_others(kept: set[str]) -> Any:
    async def work(admin: AIOKafkaAdminClient) -> None:
        others = [t for t in await admin.list_topics() if t not in kept and not t.startswith("__")]
        if others:
            await admin.delete_topics(others)

    return work
