"""How the group of an application stands, by its logs, for tests that run one on a real broker."""

import asyncio
import time

from keylanes import Settings
from keylanes.cli.application import Named
from keylanes.cli.group_logs import group_at, open_group_logs, read_history
from keylanes.group.history import History
from keylanes.group.overview import GroupShown


def group_of(app: str, address: str, **settings: object) -> GroupShown:
    """The group now; blocks. Raises SettingsError where there is no such application, BrokerUnavailable."""
    named = Named(app, address, Settings.of(**settings))
    return asyncio.run(group_at(named, None, lambda: int(time.time() * 1000))).group


def history_of(app: str, address: str, **settings: object) -> History:
    """What happened to it so far; blocks. Raises as ``group_of``."""

    async def read() -> History:
        async with open_group_logs(Named(app, address, Settings.of(**settings)), ()) as logs:
            return await read_history(logs)

    return asyncio.run(read())
