"""``keylanes group``: how a group stands and stood, and what happened to it, from its logs, also while nobody runs."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import TopicSpec
from keylanes.cli.commands import run_command
from keylanes.keyrange.hashing import HASH_NAME, SPACE_END
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import AppCreated, ControlEvent, LevelRaised, PlanMade, RangesGranted
from keylanes.offsets.event_values import Band, PlannedMove
from keylanes.offsets.events import LogOpened, OffsetEvent, WorkersCut
from keylanes.state.topics import NewRecord, TopicStore

from ..stage.log_events import (
    NO_NUMBER,
    coordinator_elected,
    in_turn,
    member_expelled,
    member_fenced,
    member_joined,
    partition_started,
    range_released,
)
from .test_commands import folder, keylanes, started

__all__ = ["folder"]

SHOP = ("--app", "shop", "--broker", "embedded:data")
GRANTED = ("2026-11-25T14:58:33.922Z", "2026-11-25T14:58:35.312Z")
"""When two processes, one after the other, were granted both partitions."""
BEGUN_MS: Final = 1_795_618_713_918
"""The time of the first event: 2026-11-25T14:58:33.918Z."""


class Said(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


Group = Callable[..., Said]


def granted(term: int, move: int, at_ms: int) -> list[tuple[int, ControlEvent]]:
    """A plan that gives both partitions to the incarnation of this term's number, and the grants, one ms later."""
    moves = [PlannedMove(move + p, "orders", p, 0, SPACE_END, term - 1, term, 0, 0.0, 0) for p in range(2)]
    bands = (Band(0, SPACE_END, 0),)
    grants = [RangesGranted(term, NO_NUMBER, m.move, term, term, "orders", m.partition, bands, (), ()) for m in moves]
    plan = PlanMade(term, NO_NUMBER, term, term, "change", 0, 0, 1, tuple(moves))
    return [(at_ms - 1, plan), *((at_ms, grant) for grant in grants)]


CONTROL: Final[list[tuple[int, ControlEvent]]] = [
    (0, AppCreated("shop", HASH_NAME, 2)),
    (0, coordinator_elected(1, "shop-a")),
    (1, LevelRaised(1, NO_NUMBER, 1)),
    (1, member_joined(1, 1, "shop-a", "shop.1")),
    *((2, partition_started(1, "orders", p, 0, "earliest", 2)) for p in range(2)),
    *granted(1, 1, at_ms=4),
    (1_383, coordinator_elected(2, "shop-b")),
    (1_384, member_expelled(2, 1)),
    (1_386, member_fenced(2, 1)),
    (1_387, member_joined(2, 2, "shop-b", "shop.2")),
    *granted(2, 3, at_ms=1_394),
]
"""Events of the control log: how many ms after the first one."""
OFFSETS: Final[list[tuple[int, int, OffsetEvent]]] = [
    *((3, p, LogOpened("shop", HASH_NAME, p, 2, 1, 1)) for p in range(2)),
    *((12, p, WorkersCut(1, 2, 1, "orders", p, 0, (0, SPACE_END))) for p in range(2)),
    *((1_434, p, WorkersCut(2, 1, 2, "orders", p, 0, (0, SPACE_END))) for p in range(2)),
    (4_000, 1, range_released(2, 2, 2, "orders", 1, 0, SPACE_END, 0)),
]
"""Events of the offset log: how many ms after the first event of all, and in which partition."""


@pytest.fixture
def old(folder: Path) -> Path:
    """A folder with an application and its logs: the second process took over, and has released a partition."""
    store = TopicStore.open(folder / "data")
    for topic, partitions in (("orders", 2), ("shop.control", 1), ("shop.offsets", 2)):
        store.create(topic, partitions, {})
    times, events = zip(*CONTROL, strict=True)
    for ms, event in zip(times, in_turn(events), strict=True):
        store.append([NewRecord("shop.control", 0, None, encode(event), (), BEGUN_MS + ms)])
    for ms, partition, written in OFFSETS:
        store.append([NewRecord("shop.offsets", partition, None, encode(written), (), BEGUN_MS + ms)])
    store.close()
    return folder


@pytest.fixture
def group(old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Group:
    """``keylanes group`` in this process, of those logs unless something else is named."""
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
    assert (now["at"], now["members"][0]["incarnation"]) == (None, 2)


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
    assert lines[1] == "2026-11-25 14:58:33.918  incarnation 1 shop-a coordinates (term 1)"
    at = next(i for i, line in enumerate(lines) if line.startswith("2026-11-25 14:58:35.312"))
    assert lines[at - 3].endswith("incarnation 1 shop-a is expelled: superseded (term 2)")
    assert " ".join(lines[at].split()[2:]) == "orders[0] 1 shop-a -> 2 shop-b, superseded (plan 2, move 3, term 2)"
    assert " ".join(lines[at + 1].split()) == (
        "expelled 14:58:35.302 fenced 14:58:35.304 (0.002 s) granted 14:58:35.312 (0.008 s) "
        "taken up 14:58:35.352 (0.040 s) stood still at least 0.048 s"
    )
    assert "-> ?, left (term 2)" in lines[-2]
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
        "from": {"incarnation": 1, "instance": "shop-a", "host": "host"},
        "to": {"incarnation": 2, "instance": "shop-b", "host": "host"},
        "cause": "superseded",
        "plan": 2,
        "move": 3,
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
    assert [entry["to"]["incarnation"] for entry in some if entry["kind"] == "move"] == [2, 2]
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
        assert (json.loads(first)["members"][0]["incarnation"], rest) == (2, "")
    else:
        assert (first + rest).splitlines() == told.splitlines()
