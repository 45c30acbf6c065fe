"""How the group of an application stands: from its logs alone, also while it is down."""

import asyncio
import json
from typing import Any

from ..brokers.protocol import Broker, BrokerError
from ..brokers.waiting import fatal_of
from ..errors import SettingsError
from ..group.shown import GroupShown, shown
from ..offsets.ledger import Ledger
from ..runtime.connect import connect
from ..runtime.logs.reader import LogReader, control_topic, offsets_topic
from ..runtime.settings import Settings

RANGES_SHOWN = 8
"""Of one member, on a line."""


def show_group(app: str, address: str, settings: Settings) -> GroupShown:
    """The group of an application, as its logs on a broker say. Raises SettingsError, LogError, BrokerUnavailable."""
    return asyncio.run(_show(app, connect(address, settings, f"{app}-group"), settings))


async def _show(app: str, broker: Broker, settings: Settings) -> GroupShown:
    try:
        await broker.open()
    except BrokerError as error:
        raise fatal_of(error) from error
    try:
        names = [control_topic(app), offsets_topic(app)]
        found = await broker.describe(names)
        if missing := [name for name in names if name not in found]:
            raise SettingsError(
                f"there is no application {app!r} on this broker: {', '.join(missing)} does not exist. Name one that "
                "has run there"
            )
        logs = LogReader(app, broker, settings, found[names[1]].partitions)
        try:
            ledger = await logs.read_control(Ledger())
            ledger = await logs.begin_offsets(ledger)
        finally:
            await logs.close()
        return shown(ledger.control, ledger.partitions)
    except BrokerError as error:
        raise fatal_of(error) from error
    finally:
        await broker.close()


def as_json(app: str, group: GroupShown) -> str:
    """All of it, for programs."""
    members = [
        {**member._asdict(), "held": [held._asdict() for held in member.held], "share": round(member.share, 6)}
        for member in group.members
    ]
    told: dict[str, Any] = {"app": app, **group._asdict(), "state": group.state.value, "members": members}
    return json.dumps(told)


def as_text(app: str, group: GroupShown) -> str:
    """For people: the group, a line for each member, and what waits for what."""
    epochs = f"group epoch {group.group_epoch}, assignment epoch {group.assignment_epoch}"
    lines = [f"{app}: {group.state.value}, term {group.term}, {epochs}, level {group.level}"]
    for member in group.members:
        name = f" {member.instance}" if member.instance else ""
        ranges = ", ".join(held.label for held in member.held[:RANGES_SHOWN]) or "nothing"
        if (more := len(member.held) - RANGES_SHOWN) > 0:
            ranges += f" and {more} more"
        role = ", coordinates" if member.is_coordinator else ""
        lines.append(
            f"  incarnation {member.incarnation}{name} on {member.host or '?'} ({member.standing}{role}): {ranges} "
            f"({member.share:.0%})"
        )
    if not group.members:
        lines.append("  no member")
    lines += [f"  {line}" for line in group.waits]
    return "\n".join(lines)
