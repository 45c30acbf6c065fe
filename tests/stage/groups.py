"""How the group of an application stands, by its logs, for tests that run one on a real broker."""

import asyncio
import time

from keylanes import Settings
from keylanes.cli.application import Named
from keylanes.cli.group_logs import stands_of
from keylanes.group.shown import GroupShown


def group_of(app: str, address: str, **settings: object) -> GroupShown:
    """The group now; blocks. Raises SettingsError where there is no such application, BrokerUnavailable."""
    named = Named(app, address, Settings.of(**settings))
    return asyncio.run(stands_of(named, None, lambda: int(time.time() * 1000))).group
