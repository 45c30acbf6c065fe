"""``keylanes group``: how a group stands and stood, and what happened to it, from its logs, also while nobody runs."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import TopicSpec
from keylanes.cli.commands import run_command

from ..offsets import golden_logs
from .test_commands import folder, keylanes, started

__all__ = ["folder"]

SHOP = ("--app", "shop", "--broker", "embedded:data")
OLD = Path(golden_logs.__file__).parent / "golden" / "logs-0.1.txt"
"""Two partitions; five processes, one after the other. Their grants are of these times:"""
GRANTED = ("2026-11-25T14:58:33.922Z", "2026-11-25T14:58:35.312Z")


class Said(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


Group = Callable[..., Said]


@pytest.fixture
def old(folder: Path) -> Path:
    """A folder with an application and the logs of an older version."""
    golden_logs.load(OLD, folder / "data", by_key=True)
    return folder


@pytest.fixture
def group(old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Group:
    """``keylanes group`` in this process, of the older logs unless something else is named."""
    monkeypatch.chdir(old)
    monkeypatch.syspath_prepend(str(old))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, of: Sequence[str] = SHOP) -> Said:
        capsys.readouterr()
        code = run_command(["group", *arguments, *of])
        sys.modules.pop("shop", None)
        return Said(code, *capsys.readouterr())

    return run


def told_by(group: Group, *arguments: str) -> Any:
    """What it says as JSON."""
    said = group(*arguments, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


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
    assert "orders[0]: waits for a capable member" in first.stdout
    told = json.loads(keylanes(folder, "group", "--app", "shop", "--broker", "embedded:data", "--json").stdout)
    assert (told["state"], told["members"], len(told["waits"])) == ("EMPTY", [], 2)
    assert keylanes(folder, "group", "shop:app").stdout == first.stdout


REFUSED: dict[tuple[str, ...], str] = {
    ("--app", "parcels", "--broker", "embedded:data"): "there is no application 'parcels' on this broker",
    ("--app", "parcels"): "give --broker ADDRESS",
    (*SHOP, "--watch", "--at", "-1m"): "group: --at shows a moment that has passed",
    (*SHOP, "--at", "2026-11-25T14:58:33.917Z"): (
        "is before the application began: shop.control begins at 2026-11-25T14:58:33.918Z"
    ),
    (*SHOP, "--at", "2226-01-01T00:00:00Z"): "--at: 2226-01-01T00:00:00.000Z is to come",
    (*SHOP, "--at", "2026-11-25T14:58:34"): "--at: '2026-11-25T14:58:34' has no time zone",
    (*SHOP, "--at", "yesterday"): "--at: 'yesterday' is no moment",
    ("history", "--app", "parcels", "--broker", "embedded:data"): "there is no application 'parcels' on this broker",
    ("history", "--app", "parcels"): "group history: the broker's address is not known; give --broker ADDRESS",
    ("history",): "group history: give either MODULE:APP, or --app NAME",
    ("history", "shop:app", "--since", "noon"): "--since: 'noon' is no moment",
    ("move", "orders", "0", "--to", "1", *SHOP): "no process of the application runs",
    ("expel", "shop-a", *SHOP): "no process of the application runs",
    ("move", "orders", "--to", "1", *SHOP): "group move: give TOPIC PARTITION; seen orders",
    ("move", "orders", "first", "--to", "1", *SHOP): (
        "group move: PARTITION is a whole number, 0 or more; seen 'first'"
    ),
    ("expel", "shop-a", "shop-b", *SHOP): "group expel: one member at a time; seen shop-a shop-b",
    ("move", "shop:app", "orders", "0", "--to", "1", *SHOP): "group move: give either MODULE:APP, or --app NAME",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_what_can_not_be_told_or_asked_for_is_said(group: Group, arguments: tuple[str, ...]) -> None:
    """An application that never ran there, an address that nobody gave, a moment of which nothing is known, wrong
    words, and that nobody runs who could do it: exit code 2, with what is allowed.
    """
    said = group(*arguments, of=())
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("keylanes: ")
    assert REFUSED[arguments] in said.err


# --- how it stood ----------------------------------------------------------------------------------------------------


def test_how_a_group_stood_between_two_grants(group: Group) -> None:
    """Who had been granted the partitions last had them; the command shows it as it shows how the group stands."""
    for at, incarnation in zip(("2026-11-25T14:58:34Z", "2026-11-25T15:58:35.5+01:00"), (1, 2), strict=True):
        told = told_by(group, "--at", at)
        (member,) = told["members"]
        assert (member["incarnation"], member["share"], told["state"]) == (incarnation, 1.0, "RUNNING")
        assert told["at"][:19] in ("2026-11-25T14:58:34", "2026-11-25T14:58:35")
    now = told_by(group)
    assert (now["at"], now["members"][0]["incarnation"]) == (None, 5)


def test_a_moment_is_after_what_was_written_at_it(group: Group) -> None:
    """At the ms of a grant it has been granted, and a ms before it has not."""
    assert told_by(group, "--at", GRANTED[0])["state"] == "SYNC"
    assert told_by(group, "--at", GRANTED[0].replace("922Z", "921Z"))["state"] == "IN_REBALANCE"
    assert [m["standing"] for m in told_by(group, "--at", GRANTED[1])["members"]] == ["member"]


# --- what happened ---------------------------------------------------------------------------------------------------


def test_the_history_of_a_group_that_is_down(group: Group) -> None:
    """For people: who took part, in one line each, and each move in two. Durations are those between the times."""
    said = group("history")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0].startswith("shop: from 2026-11-25 14:58:33.918 to 2")
    assert lines[0].endswith(", all times in UTC")
    assert lines[1] == "2026-11-25 14:58:33.918  incarnation 1 77b429532f90ca29 coordinates (term 1)"
    at = next(i for i, line in enumerate(lines) if line.startswith("2026-11-25 14:58:35.312"))
    assert lines[at - 2].endswith("incarnation 1 77b429532f90ca29 is expelled: taken over (term 2)")
    assert " ".join(lines[at].split()[2:]) == "orders[0] 1 77b429532f90ca29 -> 2 de97ab3920210552, taken over (term 2)"
    assert " ".join(lines[at + 1].split()) == (
        "expelled 14:58:35.302 fenced 14:58:35.304 (0.002 s) granted 14:58:35.312 (0.008 s) "
        "taken up 14:58:35.352 (0.040 s) stood still at least 0.048 s"
    )
    assert "-> ?, given up (term 5)" in lines[-2]
    assert "released, not granted, for" in lines[-1]
    assert group("history").out.splitlines()[1:-1] == lines[1:-1], "it changes nothing"


def test_the_history_for_programs(group: Group) -> None:
    """All of it has one shape: docs/operating.md."""
    told = told_by(group, "history")
    assert list(told) == ["app", "first", "read", "offset_log_begins", "entries"]
    assert (told["app"], told["first"], told["offset_log_begins"]) == ("shop", "2026-11-25T14:58:33.918Z", {})
    moves = [entry for entry in told["entries"] if entry["kind"] == "move"]
    assert {entry["kind"] for entry in told["entries"]} == {"elected", "joined", "expelled", "fenced", "move"}
    whole = next(move for move in moves if move["from"])
    assert whole == {
        "kind": "move",
        "state": "moved",
        "topic": "orders",
        "partition": 0,
        "first": 0,
        "end": 2**32,
        "is_whole": True,
        "from": {"incarnation": 1, "instance": "77b429532f90ca29", "host": ""},
        "to": {"incarnation": 2, "instance": "de97ab3920210552", "host": ""},
        "cause": "taken over",
        "plan": None,
        "move": None,
        "term": 2,
        "epoch": 2,
        "asked": {"at": "2026-11-25T14:58:35.302Z", "by": "expelled"},
        "released": {"at": "2026-11-25T14:58:35.304Z", "by": "fenced"},
        "granted": "2026-11-25T14:58:35.312Z",
        "taken_up": "2026-11-25T14:58:35.352Z",
        "copy_asked": None,
        "planned": None,
        "withdrawn": None,
        "reason": None,
        "stood_still_s": 0.048,
    }
    page = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in [*told, *whole])
    changes = [entry for entry in told["entries"] if entry["kind"] != "move"]
    assert all(f"`{name}`" in page for change in changes for name in change)


def test_the_history_of_some_time_or_place(group: Group) -> None:
    """From and up to a moment; of a topic or a partition the moves alone."""
    some = told_by(group, "history", "--since", "2026-11-25T14:58:35Z", "--until", "2026-11-25T14:58:36Z")["entries"]
    assert [entry.get("at", "") for entry in some if entry["kind"] == "elected"] == ["2026-11-25T14:58:35.301Z"]
    assert [entry["to"]["incarnation"] for entry in some if entry["kind"] == "move"] == [2, 2, 2]
    own = told_by(group, "history", "--partition", "1")["entries"]
    assert {(entry["kind"], entry["partition"]) for entry in own} == {("move", 1)}
    assert told_by(group, "history", "--topic", "bills")["entries"] == []
    nothing = group("history", "--topic", "bills")
    assert nothing.out.splitlines()[1:] == ["  nothing of what was asked for"]


# --- as it goes on ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [False, True])
def test_a_group_is_watched_until_it_is_interrupted(old: Path, as_json: bool) -> None:
    """Off a terminal: a block, and no more of them while nothing changes. Ctrl+C is its end in order."""
    arguments = (*SHOP, *(("--json",) if as_json else ()))
    with started(old, "group", "--watch", "--interval-ms", "50", *arguments) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        first = watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        rest, said = watching.stdout.read(), watching.stderr.read()
        assert (watching.wait(60), said) == (0, "")
    told = keylanes(old, "group", *arguments).stdout
    if as_json:
        assert (json.loads(first)["members"][0]["incarnation"], rest) == (5, "")
    else:
        assert (first + rest).splitlines() == told.splitlines()
