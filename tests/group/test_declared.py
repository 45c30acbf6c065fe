"""Members that handle different topics: said once for each pair of declarations, of those that live."""

from keylanes.group.declarations import Declared

from ..tiers.marks import tier
from .stage import Group

pytestmark = tier("check")

MANY = [f"m{number}" for number in range(8)]
ADVICE = ". Two programs need two application names; where a new version replaces an old one, this passes"


def group(*commands: str) -> Group:
    """After these commands."""
    made = Group()
    for topic in ("orders", "returns", "bills", *MANY):
        made.run(f"topic {topic} 1")
    for command in commands:
        made.run(command)
    return made


def said(declared: Declared, told: Group, *commands: str) -> list[str]:
    """What is said while these are done."""
    found = list[str]()
    for command in commands:
        told.run(command)
        found += declared.differences(told.view())
    return found


def test_each_pair_of_declarations_is_said_once() -> None:
    """With names, hosts and what differs; not again for a third process, nor in the next term."""
    declared, told = Declared(), group()
    assert said(declared, told, "ask a orders,returns as web on one", "pass 2s", "ask b bills,orders on two") == []
    assert said(declared, told, "pass 1s", "pass 1s") == [
        "members handle different topics: incarnation 1 (web) on one handles returns, and incarnation 2 does not; "
        "incarnation 2 on two handles bills, and incarnation 1 does not" + ADVICE
    ]
    assert (
        said(declared, told, "ask c orders,bills", "pass 2s", "expel b", "pass 2s", "coordinator is c", "pass 2s") == []
    )
    assert [text.partition(" and")[0] for text in said(declared, told, "ask d orders", "pass 2s")] == [
        "members handle different topics: incarnation 1 (web) on one handles returns,",
        "members handle different topics: incarnation 3 on host-c handles bills,",
    ]


def test_who_declares_the_same_is_not_told_of() -> None:
    """In whatever order."""
    assert said(Declared(), group(), "ask a orders,returns", "ask b returns,orders", "pass 2s", "pass 2s") == []


def test_only_the_living_are_compared() -> None:
    """Not who fell silent before another one joined, and is not expelled yet; nor who leaves."""
    told = group("ask a orders", "ask b orders,bills", "pass 2s", "silent b")
    assert said(Declared(), told, "ask c orders", "pass 2s", "pass 2s") == []
    assert len(told.view().living_members) == 3
    assert len(said(Declared(), told, "beats b", "pass 1s", "pass 1s")) == 1
    told = group("ask a orders", "ask b bills", "pass 2s")
    assert said(Declared(), told, "leave b", "pass 2s", "pass 2s") == []


def test_of_many_topics_some_are_named() -> None:
    """A line stays a line."""
    (line,) = said(Declared(), group(), "ask a m0", f"ask b {','.join(MANY)}", "pass 2s")
    assert "incarnation 2 on host-b handles m1, m2, m3, m4, m5 and 2 more, and incarnation 1 does not" in line
