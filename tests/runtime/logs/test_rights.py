"""What an application needs to be allowed, by its declarations."""

import re
from pathlib import Path

import pytest

from keylanes import App, DeadLetter, MapState
from keylanes.brokers.rights import Right
from keylanes.runtime.logs.rights import needed, told

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


def table(*, creates: bool) -> dict[tuple[str, str, bool], set[str]]:
    """Resource, name, whether it is a prefix → operations, as they are told."""
    found: dict[tuple[str, str, bool], set[str]] = {}
    for need in needed("shop", list(shop().handlers.values()), creates=creates):
        right = need.told
        found.setdefault((right.resource, right.name, right.is_prefix), set()).add(right.operation)
    return found


@pytest.mark.parametrize("creates", [True, False])
def test_the_table_of_rights_follows_from_the_declarations(creates: bool) -> None:
    """Sources are read, outputs written, own topics both; the offset log is trimmed, and ids fence."""
    create = {"CREATE"} if creates else set()
    assert table(creates=creates) == {
        ("topic", "orders", False): {"READ", "DESCRIBE_CONFIGS"},
        ("topic", "bills", False): {"READ", "WRITE", "DESCRIBE_CONFIGS"} | create,
        ("topic", "orders.dead", False): {"WRITE", "DESCRIBE_CONFIGS"} | create,
        ("topic", "shop.", True): {"READ", "WRITE", "DESCRIBE_CONFIGS", "DELETE"} | create,
        ("transactional-id", "shop.", True): {"WRITE"},
    }


def test_the_own_topics_are_asked_for_by_name() -> None:
    """Those of this application, with the changelogs of its stateful handlers; trimmed is the offset log alone."""
    needs = needed("shop", list(shop().handlers.values()), creates=False)
    own = [need.asked for need in needs if need.told.is_prefix and need.asked.resource == "topic"]
    assert {right.name for right in own} == {"shop.control", "shop.offsets", "shop.signals", "shop.changelog.orders"}
    assert [right.name for right in own if right.operation == "DELETE"] == ["shop.offsets"]
    assert not any(right.is_prefix for right in own)


def test_what_is_missing_of_many_own_topics_is_told_once() -> None:
    """As the one ACL that allows it."""
    needs = needed("shop", list(shop().handlers.values()), creates=False)
    lacking = [Right("topic", name, "READ") for name in ("shop.control", "shop.offsets", "orders")]
    assert told(needs, lacking) == [
        Right("topic", "orders", "READ"),
        Right("topic", "shop.", "READ", is_prefix=True),
    ]


PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"
NAMES = {
    "each source": ["orders", "bills"],
    "each output and dead-letter topic": ["bills", "orders.dead"],
    "`<app>.`": ["shop."],
}


@pytest.mark.parametrize("creates", [True, False])
def test_the_page_lists_them(creates: bool) -> None:
    """Row for row of the table in docs/security.md."""
    text = PAGE.read_text(encoding="utf-8").partition("<!-- rights: begin -->")[2].partition("<!-- rights: end -->")[0]
    found: dict[tuple[str, str, bool], set[str]] = {}
    for resource, name, pattern, operations in re.findall(
        r"^\| (\w.*) \| (.+) \| (\w+) \| ([A-Z].+) \|$", text, re.MULTILINE
    ):
        said = operations if creates else operations.partition(";")[0]
        for one in NAMES[name.partition(" (")[0]]:
            key = (resource.replace(" ", "-"), one, pattern == "prefixed")
            found.setdefault(key, set()).update(re.findall(r"[A-Z_]{4,}", said))
    assert found == table(creates=creates)
