"""``keylanes group``: how a group stands and stood, and what happened to it, from its logs, also while nobody runs."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import TopicSpec

from ..offsets import golden_logs
from .test_commands import folder, keylanes, started

__all__ = ["folder"]

OLD = Path(golden_logs.__file__).parent / "golden" / "logs-0.1.txt"
"""Two partitions; five processes, one after the other. Their grants are of these times:"""
GRANTED = ("2026-11-25T14:58:33.922Z", "2026-11-25T14:58:35.312Z")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with the logs of an older version."""
    golden_logs.load(OLD, tmp_path / "data", by_key=True)
    return tmp_path


def of_old(old: Path, *arguments: str) -> Any:
    """What a command says of these logs, as JSON."""
    answer = keylanes(old, "group", *arguments, "--app", "shop", "--broker", "embedded:data", "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


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


# --- how it stood ----------------------------------------------------------------------------------------------------


def test_how_a_group_stood_between_two_grants(old: Path) -> None:
    """Who had been granted the partitions last had them; the command shows it as it shows how the group stands."""
    for at, incarnation in zip(("2026-11-25T14:58:34Z", "2026-11-25T15:58:35.5+01:00"), (1, 2), strict=True):
        told = of_old(old, "--at", at)
        (member,) = told["members"]
        assert (member["incarnation"], member["share"], told["state"]) == (incarnation, 1.0, "RUNNING")
        assert told["at"][:19] in ("2026-11-25T14:58:34", "2026-11-25T14:58:35")
    now = of_old(old)
    assert (now["at"], now["members"][0]["incarnation"]) == (None, 5)


def test_a_moment_is_after_what_was_written_at_it(old: Path) -> None:
    """At the ms of a grant it has been granted, and a ms before it has not."""
    assert of_old(old, "--at", GRANTED[0])["state"] == "SYNC"
    assert of_old(old, "--at", GRANTED[0].replace("922Z", "921Z"))["state"] == "IN_REBALANCE"
    assert [m["standing"] for m in of_old(old, "--at", GRANTED[1])["members"]] == ["member"]


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (
            "2026-11-25T14:58:33.917Z",
            "is before the application began: shop.control begins at 2026-11-25T14:58:33.918Z",
        ),
        ("2226-01-01T00:00:00Z", "2226-01-01T00:00:00.000Z is to come"),
        ("2026-11-25T14:58:34", "has no time zone"),
        ("yesterday", "'yesterday' is no moment"),
    ],
)
def test_a_moment_of_which_nothing_is_known_is_refused(old: Path, at: str, why: str) -> None:
    """With what is allowed; exit code 2."""
    answer = keylanes(old, "group", "--app", "shop", "--broker", "embedded:data", "--at", at)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("keylanes: --at: ")
    assert why in answer.stderr


# --- what happened ---------------------------------------------------------------------------------------------------


def test_the_history_of_a_group_that_is_down(old: Path) -> None:
    """For people: who took part, in one line each, and each move in two. Durations are those between the times."""
    answer = keylanes(old, "group", "history", "--app", "shop", "--broker", "embedded:data")
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
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
    again = keylanes(old, "group", "history", "--app", "shop", "--broker", "embedded:data").stdout.splitlines()
    assert again[1:-1] == lines[1:-1], "it changes nothing"


def test_the_history_for_programs(old: Path) -> None:
    """All of it has one shape: docs/group.md."""
    told = of_old(old, "history")
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
    page = (Path(__file__).resolve().parents[2] / "docs" / "group.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in [*told, *whole])
    changes = [entry for entry in told["entries"] if entry["kind"] != "move"]
    assert all(f"`{name}`" in page for change in changes for name in change)


def test_the_history_of_some_time_or_place(old: Path) -> None:
    """From and up to a moment; of a topic or a partition the moves alone."""
    some = of_old(old, "history", "--since", "2026-11-25T14:58:35Z", "--until", "2026-11-25T14:58:36Z")["entries"]
    assert [entry.get("at", "") for entry in some if entry["kind"] == "elected"] == ["2026-11-25T14:58:35.301Z"]
    assert [entry["to"]["incarnation"] for entry in some if entry["kind"] == "move"] == [2, 2, 2]
    own = of_old(old, "history", "--partition", "1")["entries"]
    assert {(entry["kind"], entry["partition"]) for entry in own} == {("move", 1)}
    assert of_old(old, "history", "--topic", "bills")["entries"] == []
    nothing = keylanes(old, "group", "history", "--app", "shop", "--broker", "embedded:data", "--topic", "bills")
    assert nothing.stdout.splitlines()[1:] == ["  nothing of what was asked for"]


def test_what_can_not_be_told_of_a_history_is_said(folder: Path) -> None:
    """An application that never ran there, no application, a moment that is none: exit code 2."""
    asyncio.run(_sources(folder / "data"))
    for arguments, why in (
        (("--app", "parcels", "--broker", "embedded:data"), "there is no application 'parcels' on this broker"),
        (("--app", "parcels"), "group history: the broker's address is not known; give --broker ADDRESS"),
        ((), "group history: give either MODULE:APP, or --app NAME"),
        (("shop:app", "--since", "noon"), "--since: 'noon' is no moment"),
    ):
        answer = keylanes(folder, "group", "history", *arguments)
        assert (answer.returncode, why in answer.stderr) == (2, True), answer.stderr


# --- as it goes on ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [False, True])
def test_a_group_is_watched_until_it_is_interrupted(old: Path, as_json: bool) -> None:
    """Off a terminal: a block, and no more of them while nothing changes. Ctrl+C is its end in order."""
    arguments = ("--app", "shop", "--broker", "embedded:data", *(("--json",) if as_json else ()))
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


def test_what_goes_on_has_no_moment(old: Path) -> None:
    """One of the two is meant: exit code 2."""
    answer = keylanes(old, "group", "--app", "shop", "--broker", "embedded:data", "--watch", "--at", "-1m")
    assert (answer.returncode, "group: --at shows a moment that has passed" in answer.stderr) == (2, True)


# --- what is asked for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("move", "orders", "0", "--to", "1"), "no process of the application runs"),
        (("expel", "shop-a"), "no process of the application runs"),
        (("move", "orders", "--to", "1"), "group move: give TOPIC PARTITION; seen orders"),
        (("move", "orders", "first", "--to", "1"), "group move: PARTITION is a whole number, 0 or more; seen 'first'"),
        (("expel", "shop-a", "shop-b"), "group expel: one member at a time; seen shop-a shop-b"),
        (("move", "shop:app", "orders", "0", "--to", "1"), "group move: give either MODULE:APP, or --app NAME"),
    ],
)
def test_what_can_not_be_asked_for_is_said(old: Path, arguments: tuple[str, ...], why: str) -> None:
    """What is wrong with the words, and that nobody runs who could do it: exit code 2."""
    answer = keylanes(old, "group", *arguments, "--app", "shop", "--broker", "embedded:data")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"keylanes: {why}" in answer.stderr
