"""The owner of a key by the control log, and the check whether a folder belongs to the owner.

A folder stores the birth of the process that had the folder last (subfolders.py), and the control log has the birth of
each member. The folder of an owner's earlier run, before a new start elsewhere, stores another birth.
"""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from ..brokers.patience import within_limit
from ..brokers.protocol import TopicPartition
from ..errors import SettingsError
from ..offsets.control import Control, Member, Owner
from ..offsets.ledger import Ledger
from ..runtime.logs.reader import LogReader
from ..state.changelog import changelog_topic
from .application import Named, application_of
from .group_logs import open_group_logs
from .rights import to_find_owner


class Owners(NamedTuple):
    """The owners of the points of one source topic. ``ends``: the ends of the topic's changelog, by partition; empty
    where not requested.
    """

    ledger: Ledger
    topic: str
    ends: Mapping[int, int]

    @property
    def control(self) -> Control:
        """The fold of the control log."""
        return self.ledger.control

    def is_at_work(self, partition: int, point: int) -> bool:
        """Whether the owner of a point has cut its range into workers: the copy of the owner is whole by then."""
        owner = self._owner(partition, point)
        part = None if owner is None else self.ledger.partition((self.topic, partition)).parts.get(owner.epoch)
        return part is not None and part.workers.at(point) is not None

    def owner_of(self, partition: int, point: int) -> Member | None:
        """The owner of a point, unless expelled; None: the point has no owner now."""
        owner = self._owner(partition, point)
        member = None if owner is None else self.control.members.get(owner.incarnation)
        return None if member is None or member.expelled else member

    def _owner(self, partition: int, point: int) -> Owner | None:
        owners = self.control.owners.get((self.topic, partition))
        return None if owners is None else owners.at(point)

    def reasons_without_answer(self, partition: int | None, point: int, births: set[str | None]) -> list[str]:
        """The reasons why no folder here answers for a point, in words: the point has no owner, its owner has not taken
        the point up, or the owner's folder is elsewhere. For each partition, or for ``partition`` alone.
        """
        found = []
        for number in sorted(number for topic, number in self.control.started if topic == self.topic):
            if partition not in (None, number):
                continue
            member = self.owner_of(number, point)
            if member is None:
                found.append(f"{self.topic}[{number}]: nobody has it now")
                continue
            joined = member.joined
            who = f"incarnation {member.incarnation}" + (f" ({joined.instance})" if joined.instance else "")
            if not self.is_at_work(number, point):
                found.append(f"{self.topic}[{number}]: {who} was granted it and has not taken it up; ask again")
            elif member.birth not in births:
                endpoint = f", ask it at {joined.endpoint}" if joined.endpoint else ""
                found.append(f"{self.topic}[{number}]: {who} on {joined.host or 'an unknown host'} has it{endpoint}")
        return found


def owners_of(app: str, address: str, store: str, copied: str | None) -> Owners:
    """The owners by the logs of an application on its broker. ``copied``: the source topic with requested changelog
    ends, None: no topic. Raises SettingsError, LogError, BrokerUnavailable, AccessRefused.
    """
    return asyncio.run(_owners_of(application_of("state get", None, app, address), store, copied))


async def _owners_of(application: Named, store: str, copied: str | None) -> Owners:
    async with open_group_logs(application, to_find_owner(application.app, copied), hears=False) as group:
        logs = LogReader(group.app, group.broker, group.settings, group.log_partitions)
        try:
            ledger = await logs.begin_offsets(await logs.read_control(Ledger()))
        finally:
            await logs.close()
        control = ledger.control
        declared = control.stores.get(store)
        if declared is None:
            raise SettingsError(
                f"application {group.app!r} has no store {store!r} on this broker; it has {sorted(control.stores)}"
            )
        ends = [] if copied is None else [number for topic, number in control.started if topic == copied]
        changelog = changelog_topic(group.app, declared.topic)
        finding = group.broker.watermarks([TopicPartition(changelog, number) for number in ends])
        marks = await within_limit(finding, group.settings.call_limit_ms, f"watermarks of {changelog}")
        return Owners(ledger, declared.topic, {source.partition: mark.high for source, mark in marks.items()})
