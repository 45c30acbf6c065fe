"""What an application needs to be allowed, by its declarations."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from keylanes import App, DeadLetter, MapState
from keylanes.brokers.rights import Right, as_granted
from keylanes.runtime.logs.rights import rights_needed
from keylanes.runtime.logs.topics import reserved_topics

from ...tiers.marks import tier

pytestmark = tier("check")


def shop() -> App:
    """Two sources, one with state; outputs that are named once and twice, and a dead-letter topic."""
    app = App("shop", broker="embedded:never-opened")

    @app.handler("orders", to="bills", on_failure=DeadLetter("orders.dead"))
    async def bill(value: bytes, items: MapState[str, int]) -> bytes:
        return value

    @app.handler("bills", to="bills")
    async def copy(value: bytes) -> bytes:
        return value

    return app


Table = dict[tuple[str, str, bool], set[str]]
"""Resource, name, whether it is a prefix → operations."""


def table(rights: Iterable[Right]) -> Table:
    """As they are told."""
    found: Table = {}
    for right in rights:
        found.setdefault((right.resource, right.name, right.is_prefix), set()).add(right.operation)
    return found


def rights_of_shop(*, creates: bool) -> list[Right]:
    """What it needs, as it is asked for."""
    return rights_needed("shop", list(shop().handlers.values()), creates=creates)


@pytest.mark.parametrize("creates", [True, False])
def test_the_table_of_rights_follows_from_the_declarations(creates: bool) -> None:
    """Sources are read, outputs written, own topics both; the offset log is trimmed, and ids fence."""
    create = {"CREATE"} if creates else set()
    assert table(as_granted(rights_of_shop(creates=creates), "shop")) == {
        ("topic", "orders", False): {"READ", "DESCRIBE_CONFIGS"},
        ("topic", "bills", False): {"READ", "WRITE", "DESCRIBE_CONFIGS"} | create,
        ("topic", "orders.dead", False): {"WRITE", "DESCRIBE_CONFIGS"} | create,
        ("topic", "shop.", True): {"READ", "WRITE", "DESCRIBE_CONFIGS", "DELETE"} | create,
        ("transactional-id", "shop.", True): {"WRITE"},
    }


def test_the_own_topics_are_asked_for_by_name() -> None:
    """Those of this application, with the changelogs of its stateful handlers; trimmed is the offset log alone."""
    rights = rights_of_shop(creates=False)
    own = reserved_topics("shop", ["orders"])
    assert {right.name for right in rights} == {"orders", "bills", "orders.dead", "shop.", *own}
    assert [right.name for right in rights if right.operation == "DELETE"] == ["shop.offsets"]
    assert not any(right.is_prefix for right in rights)


def test_what_is_missing_of_own_names_is_told_as_the_one_acl_that_grants_it() -> None:
    """Also of a transactional id. A topic of users that happens to begin like them is theirs."""
    own = [Right("topic", name, "READ") for name in sorted(reserved_topics("shop", ["orders"]))]
    theirs = [Right("topic", name, "READ") for name in ("shop.bills", "orders", "shop")]
    mine = Right("transactional-id", "shop.28.a1b2.3", "WRITE")
    assert as_granted([*own, *theirs, mine], "shop") == [
        Right("topic", "shop.", "READ", is_prefix=True),
        *theirs,
        Right("transactional-id", "shop.", "WRITE", is_prefix=True),
    ]
    assert as_granted([*own, mine], "") == [*own, mine]


PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"
NAMES = {
    "each source": ["orders", "bills"],
    "each output and dead-letter topic": ["bills", "orders.dead"],
    "`<app>.`": ["shop."],
}


def page(part: str) -> list[list[str]]:
    """The cells of a table in docs/security.md."""
    text = PAGE.read_text(encoding="utf-8").partition(f"<!-- {part}: begin -->")[2].partition(f"<!-- {part}: end -->")
    return [row.strip("| ").split(" | ") for row in text[0].strip().splitlines()[2:]]


@pytest.mark.parametrize("creates", [True, False])
def test_the_page_lists_them(creates: bool) -> None:
    """Row for row of the table in docs/security.md."""
    found: Table = {}
    for resource, name, pattern, operations in page("rights"):
        said = operations if creates else operations.partition(";")[0]
        for one in NAMES[name.partition(" (")[0]]:
            key = (resource.replace(" ", "-"), one, pattern == "prefixed")
            found.setdefault(key, set()).update(re.findall(r"[A-Z_]{4,}", said))
    assert found == table(as_granted(rights_of_shop(creates=creates), "shop"))
