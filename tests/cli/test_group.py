"""``keylanes group``: how a group stands, from its logs, also while nobody runs."""

import asyncio
import json
from pathlib import Path

from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import TopicSpec

from .test_commands import folder, keylanes

__all__ = ["folder"]


async def _sources(path: Path) -> None:
    broker = EmbeddedBroker(path)
    await broker.open()
    await broker.create([TopicSpec("orders", 2, {})])
    await broker.close()


def test_a_group_is_shown_while_it_is_down(folder: Path) -> None:
    """After a stop in order there is no member, and what there is waits for one; the command changes nothing."""
    asyncio.run(_sources(folder / "data"))
    assert keylanes(folder, "run", "shop:app", "--until", "level").returncode == 0
    first = keylanes(folder, "group", "shop:app")
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[0].startswith("shop: EMPTY, term 1, ")
    assert "orders[0] waits for a capable member" in first.stdout
    told = json.loads(keylanes(folder, "group", "--app", "shop", "--broker", "embedded:data", "--json").stdout)
    assert (told["state"], told["members"], len(told["waits"])) == ("EMPTY", [], 2)
    assert keylanes(folder, "group", "shop:app").stdout == first.stdout


def test_what_is_missing_is_said(folder: Path) -> None:
    """An application that never ran there, and an address that nobody gave, are named; exit code 2."""
    asyncio.run(_sources(folder / "data"))
    never = keylanes(folder, "group", "--app", "parcels", "--broker", "embedded:data")
    assert (never.returncode, "there is no application 'parcels' on this broker" in never.stderr) == (2, True)
    nowhere = keylanes(folder, "group", "--app", "parcels")
    assert (nowhere.returncode, "give --broker ADDRESS" in nowhere.stderr) == (2, True)
