"""Which rights commands need, by the second table of docs/security.md."""

from collections.abc import Iterable

from keylanes.brokers.rights import Right, as_granted
from keylanes.cli.rights import to_ask, to_create, to_find_owner, to_look

from ..runtime.logs.test_rights import Table, page, shop, table
from ..tiers.marks import tier

pytestmark = tier("check")

ALL_OF_SHOP = {"its sources, outputs and dead-letter topics": ["orders", "bills", "orders.dead"], "`<app>.`": ["shop."]}
COMMANDS: dict[str, Iterable[Right]] = {
    "`group`, `group history`": to_look("shop"),
    "`group move`, `group expel`": to_ask("shop"),
    "`state get --broker`": to_find_owner("shop", None),
    "the same with `--copy`": set(to_find_owner("shop", "orders")) - set(to_find_owner("shop", None)),
    "`topics --create`": as_granted(to_create("shop", list(shop().handlers.values())), "shop"),
}


def test_the_page_lists_those_of_commands() -> None:
    """Each command that talks to a broker has its rows."""
    found: dict[str, Table] = {}
    command = ""
    for given, name, pattern, operations in page("commands"):
        command = command if given == "″" else given
        for one in ALL_OF_SHOP.get(name, [name.strip("`").replace("<app>", "shop").replace("<source>", "orders")]):
            key = ("topic", one, pattern == "prefixed")
            found.setdefault(command, {}).setdefault(key, set()).update(operations.split(", "))
    assert found == {command: table(rights) for command, rights in COMMANDS.items()}
