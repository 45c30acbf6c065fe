"""Commands on a Kafka that asks who is there: the table of docs/security.md is enough, and what is missing is named."""

import asyncio
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from keylanes.brokers.rights import Right, as_granted
from keylanes.cli.commands import run_command
from keylanes.cli.rights import to_ask, to_create, to_find_owner, to_look
from keylanes.devkafka.admin import Acl
from keylanes.devkafka.properties import CLIENTS

from ..stage.guarded import LIMITS, Place, acls_named
from ..stage.waiting import reached
from ..tiers.brokers import SharedKafka

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

USER = "other"
MODULE = """
from keylanes import App, Settings, State
app = App({name!r}, settings=Settings.from_env())
@app.handler({source!r}, to={out!r})
async def look(value: int, seen: State[int]) -> int: ...
"""


@pytest.fixture
def place(guarded: SharedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Commands are those of a user that has no rights yet; the application has all of its own."""
    for name, value in {**guarded.access.client(USER), **LIMITS}.items():
        monkeypatch.setenv(f"KEYLANES_{name.upper()}", str(value))
    monkeypatch.setenv("KEYLANES_BROKER", f"kafka://{guarded.bootstrap_at(CLIENTS)}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return Place(guarded, tmp_path / "state")


Said = Callable[..., tuple[int, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """A command's exit code, and what it says of what goes wrong."""

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        return run_command([*words]), capsys.readouterr().err

    return run


def check(place: Place, said: Said, words: tuple[str, ...], rights: Iterable[Right]) -> None:
    """Without any right all are named at once, and each that is missing alone. To allow what was named is enough."""
    access = place.cluster.access
    ended, text = said(*words)
    acls = acls_named(text)
    assert (ended, acls) == (2, sorted(acl_of(right) for right in rights)), text
    access.allow(*acls)
    for acl in acls:
        access.remove(acl)
        ended, text = said(*words)
        assert (ended, acls_named(text)) == (2, [acl]), text
        access.allow(*acls_named(text))
    ended, text = said(*words)
    assert (ended, acls_named(text)) == (0, []), text
    access.remove(*acls)


def acl_of(right: Right) -> Acl:
    """That allows it."""
    pattern = "prefixed" if right.is_prefix else "literal"
    return Acl(USER, right.operation.lower(), right.resource, right.name, pattern)


def test_topics_are_created(place: Place, said: Said, tmp_path: Path) -> None:
    """Nothing is created before all rights are there."""
    module = f"module_of_{place.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(MODULE.format(name=place.name, source=place.source, out=place.out))
    words = ("topics", f"{module}:app", "--partitions", "1", "--create")
    assert said(*words)[0] == 2
    assert not place.made()
    handlers = list(sys.modules[module].app.handlers.values())
    check(place, said, words, as_granted(to_create(place.name, handlers), place.name))
    assert place.made()


async def test_a_group_is_looked_at_and_asked(place: Place, said: Said) -> None:
    """And the state of a key, while the application runs."""
    await asyncio.to_thread(place.fill, [b"1"])
    await asyncio.to_thread(place.cluster.access.allow, *place.rights())
    name, state = place.name, ("state", "get", str(place.folder), "seen", "k", "--broker")
    of = ("--app", name, "--broker", f"kafka://{place.cluster.bootstrap}")
    async with place.app() as app:
        await reached(lambda: app.statistics().records_done == 1)
        for words, rights in (
            (("group", *of), to_look(name)),
            (("group", "history", *of), to_look(name)),
            (("group", "move", place.source, "0", "--to", "any", *of), to_ask(name)),
            ((*state, of[-1]), to_find_owner(name, None)),
            ((*state, of[-1], "--copy"), to_find_owner(name, place.source)),
            (("group", "expel", "1", *of), to_ask(name)),
        ):
            await asyncio.to_thread(check, place, said, words, rights)
