"""``keylanes state``: what is printed of a folder of local copies and of an embedded broker's, and what is refused."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pytest
from msgspec.structs import replace

from keylanes import App, Context, MapState, State
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import Outgoing, TopicSpec
from keylanes.cli.commands import run_command
from keylanes.keyrange.hashing import HASH_NAME, SPACE_END, point_of_key
from keylanes.keyrange.ranges import WHOLE, KeyRange
from keylanes.offsets.codec import encode
from keylanes.offsets.control_events import AppCreated, ControlEvent
from keylanes.offsets.event_values import Band
from keylanes.offsets.events import WorkersCut
from keylanes.runtime.handlers.store_declarations import Store
from keylanes.runtime.handlers.values import MsgpackCodec
from keylanes.state.changelog import encode_stored
from keylanes.state.copies import check_copies, open_copies
from keylanes.state.keys import encode_map_key, state_key
from keylanes.state.rocks import open_rocks
from keylanes.state.subfolders import Claimed, claim
from keylanes.state.tables import Marker, StoreInfo

from ..stage.appending import append
from ..stage.log_events import (
    coordinator_elected,
    in_turn,
    member_expelled,
    member_joined,
    partition_started,
    ranges_granted,
    store_declared,
)

STORES = [
    StoreInfo(0, "seen", "orders", "value", "", "int", "json"),
    StoreInfo(1, "by_day", "orders", "map", "str", "float", "json"),
    StoreInfo(2, "raw", "orders", "map", "bytes", "bytes", "json"),
    StoreInfo(3, "packed", "orders", "map", "int", "object", "msgpack"),
    StoreInfo(4, "own", "orders", "value", "", "object", "Protobuf"),
    StoreInfo(5, "name", "orders", "value", "", "str", "json"),
]


class Answer:
    """What a command printed, and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> None:
        capsys.readouterr()
        self.code = run_command(list(arguments))
        said = capsys.readouterr()
        self.entries = [json.loads(line) for line in said.out.splitlines()]
        self.errors = said.err


def key_below(other: str) -> str:
    """A key whose point lies below that of another one."""
    return next(f"k{i}" for i in range(100) if point_of_key(b"k%d" % i) < point_of_key(other.encode()))


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """A folder of copies: two partitions of a topic, the second one restored for its upper half only."""
    opened = open_copies(tmp_path / "state", app="shop", birth="b")
    opened.declare(STORES)

    def at(store: int, key: bytes, map_key: bytes = b"") -> bytes:
        return state_key(point_of_key(key), store, key) + map_key

    opened.copy("orders", 0).write(
        [
            (at(0, b"anna"), encode_stored(b"3")),
            (at(0, b"both"), encode_stored(b"1")),
            (at(1, b"anna", b"mon"), encode_stored(b"1.5")),
            (at(1, b"anna", b"tue"), encode_stored(b"2.5", 1_700)),
            (at(2, b"\xff", b"\xfe"), encode_stored(b"\x00\x01")),
            (at(3, b"anna", encode_map_key(-7, "int")), encode_stored(MsgpackCodec().encode({"a": [1]}))),
            (at(4, b"anna"), encode_stored(b"\x08\x01")),
            (at(5, b"anna"), encode_stored(b"Anna")),
        ],
        [(0, SPACE_END, Marker(9, 0))],
    )
    upper = point_of_key(b"both")
    left_over = key_below("both").encode()
    opened.copy("orders", 1).write(
        [(at(0, b"both"), encode_stored(b"2")), (at(0, left_over), encode_stored(b"666"))],
        [(upper, SPACE_END, Marker(4, 0))],
    )
    opened.close()
    return tmp_path / "state"


def test_a_value_is_printed_with_where_it_lies(copies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values of codecs that are known are decoded; what is no text is base64; a deadline is there when there is one."""
    get = ("state", "get", str(copies))
    anna = {"partition": 0, "key": "anna"}
    for arguments, entries in (
        (("seen", "anna"), [{**anna, "value": 3}]),
        (("name", "anna"), [{**anna, "value": "Anna"}]),
        (("by_day", "anna", "--map-key", "mon"), [{**anna, "map_key": "mon", "value": 1.5}]),
        (("packed", "anna", "--map-key", "-7"), [{**anna, "map_key": -7, "value": {"a": [1]}}]),
        (("own", "anna"), [{**anna, "value_base64": "CAE="}]),
        (
            ("raw", "/w==", "--base64"),
            [{"partition": 0, "key_base64": "/w==", "map_key_base64": "/g==", "value_base64": "AAE="}],
        ),
        (
            ("by_day", "anna"),
            [
                {**anna, "map_key": "mon", "value": 1.5},
                {**anna, "map_key": "tue", "value": 2.5, "deadline_ms": 1_700},
            ],
        ),
        (("seen", "both", "--partition", "1"), [{"partition": 1, "key": "both", "value": 2}]),
    ):
        answer = Answer(capsys, (*get, *arguments))
        assert (answer.code, answer.entries) == (0, entries), answer.errors
    nothing = Answer(capsys, (*get, "seen", "nobody", "--partition", "0"))
    assert (nothing.code, nothing.entries) == (1, [])
    assert "store 'seen' has nothing for this key" in nothing.errors


def test_a_scan_prints_what_is_held(copies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All partitions or one, at most so many; what lies in a range that is not restored is left over and not shown."""
    scan = ("state", "scan", str(copies), "seen")
    everything = Answer(capsys, scan).entries
    assert sorted((e["partition"], e["key"], e["value"]) for e in everything) == [
        (0, "anna", 3), (0, "both", 1), (1, "both", 2),
    ]  # fmt: skip
    assert [e["partition"] for e in Answer(capsys, (*scan, "--partition", "1")).entries] == [1]
    assert Answer(capsys, (*scan, "--limit", "1")).entries == everything[:1]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("get", "STATE", "sen", "anna"), 2, "application 'shop' has no store 'sen' here; it has ['by_day', 'name', "),
        (("scan", "STATE", "sen"), 2, "no store 'sen'"),
        (("get", "STATE", "seen", "both"), 2, "partitions [0, 1] of 'orders' have this key; name one with --partition"),
        (
            ("get", "STATE", "seen", "anna", "--partition", "7"),
            2,
            "partition 7 of 'orders' is not here; there are [0, 1]",
        ),
        (("get", "STATE", "seen", "k", "--map-key", "a"), 2, "--map-key: store 'seen' has one value for each key"),
        (("get", "STATE", "packed", "k", "--map-key", "a"), 2, "--map-key: the keys of 'packed' are int: "),
        (("get", "STATE", "seen", "?", "--base64"), 2, "--base64: '?' is none"),
        (("get", "STATE", "seen", "anna", "--app", "other"), 8, "holds the state of application 'shop'"),
        (("get", "FOREIGN", "seen", "anna"), 8, "was not made by keylanes"),
        (("scan", "NONE", "seen"), 8, "does not exist or is not a folder"),
        (("scan", "NEWER", "seen"), 8, "has format 2; this version of keylanes reads format 1"),
        (("scan", "EMPTY", "seen"), 2, "no application keeps state here"),
        (("scan", "YOUNG", "seen"), 2, "no application keeps state here"),
        (("get", "STATE", "seen", "BELOW", "--partition", "1"), 2, "it is not restored"),
    ],
)
def test_what_can_not_be_read_is_told_in_words(
    copies: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, says: str
) -> None:
    """No such store, key, partition or folder: a sentence that names what there is, and the code of errors.py. Where a
    partition holds nothing of a point, it is not said that there is no value.
    """
    places = {name: copies.parent / name.lower() for name in ("FOREIGN", "NONE", "NEWER", "EMPTY", "YOUNG")}
    places["FOREIGN"].mkdir()
    (places["FOREIGN"] / "precious").touch()
    open_rocks(places["NEWER"], "state", 2).close()
    open_rocks(places["EMPTY"], "topics", 1).close()
    claim(places["YOUNG"], "shop").lock.close()
    words = {name: str(place) for name, place in places.items()} | {"STATE": str(copies), "BELOW": key_below("both")}
    answer = Answer(capsys, ("state", *(words.get(argument, argument) for argument in arguments)))
    assert answer.code == code, answer.errors
    assert says in answer.errors
    assert answer.entries == []


def test_what_is_no_state_is_told(copies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key or a value in the place of state that is none: an error; a value of other code: base64."""
    opened = open_copies(copies, app="shop", birth="b")
    at = state_key(point_of_key(b"anna"), 0, b"anna")
    for stored, says in ((b"", "the state of store 'seen' is damaged: "), (b"\x07", "damaged: ")):
        opened.copy("orders", 0).write([(at, stored)])
        answer = Answer(capsys, ("state", "get", str(copies), "seen", "anna"))
        assert (answer.code, says in answer.errors) == (9, True), answer.errors
    opened.copy("orders", 0).write([(at, encode_stored(b"{"))])
    (entry,) = Answer(capsys, ("state", "get", str(copies), "seen", "anna")).entries
    assert entry["value_base64"] == "ew=="
    opened.copy("orders", 0).write([(b"stray", b"1")])
    opened.close()
    answer = Answer(capsys, ("state", "scan", str(copies), "seen"))
    assert (answer.code, "holds the key b'stray', which is none of a state" in answer.errors) == (9, True)


# State folders with several subfolders


def one_of(
    parent: Path, app: str, name: str | None, values: dict[str, int], within: KeyRange = WHOLE, birth: str = ""
) -> Claimed:
    """A process's subfolder with values of the store ``seen`` and a marker for a range; it is held."""
    claimed = claim(parent, app, name, birth=birth)
    opened = open_copies(claimed.folder, app=app, birth="b")
    opened.declare(STORES[:1])
    stored = {key.encode(): encode_stored(b"%d" % value) for key, value in values.items()}
    changes = [(state_key(point_of_key(key), 0, key), value) for key, value in stored.items()]
    opened.copy("orders", 0).write(changes, [(within.first, within.end, Marker(9, 0))])
    opened.close()
    return claimed


def test_all_subfolders_are_looked_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also while their processes live; each entry names its own, and one of them may be asked for alone."""
    state = tmp_path / "state"
    low, high = KeyRange(0, point_of_key(b"both")), KeyRange(point_of_key(b"both"), SPACE_END)
    below = key_below("both")
    held = [
        one_of(state, "shop", None, {below: 1}, low),
        one_of(state, "shop", "a", {"both": 2}, high),
        claim(state, "shop", "starting"),
        claim(state, "shop", "young"),
    ]
    check_copies(held[-1].folder, app="shop")
    one, two = {"partition": 0, "key": below, "value": 1}, {"partition": 0, "key": "both", "value": 2}
    for folder, arguments, entries in (
        (state, ("scan", "seen"), [{"folder": "0", **one}, {"folder": "a", **two}]),
        (state / "shop", ("scan", "seen", "--limit", "1"), [{"folder": "0", **one}]),
        (state / "shop", ("get", "seen", "both"), [{"folder": "a", **two}]),
        (state / "shop" / "a", ("get", "seen", "both"), [two]),
        (state / "shop" / "0", ("scan", "seen"), [one]),
    ):
        answer = Answer(capsys, ("state", arguments[0], str(folder), *arguments[1:]))
        assert (answer.code, answer.entries) == (0, entries), answer.errors
    for claimed in held:
        claimed.lock.close()


def test_what_a_process_left_behind_is_told_from_what_another_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that is in two subfolders is printed for each; one that is in none is told as before."""
    for name, value in ((None, 1), ("a", 2)):
        one_of(tmp_path, "shop", name, {"anna": value}).lock.close()
    answer = Answer(capsys, ("state", "get", str(tmp_path), "seen", "anna"))
    assert [(e["folder"], e["value"]) for e in answer.entries] == [("0", 1), ("a", 2)]
    nothing = Answer(capsys, ("state", "get", str(tmp_path), "seen", "nobody"))
    assert (nothing.code, nothing.entries) == (1, [])
    for arguments, says in (
        (("scan", str(tmp_path), "sen"), "application 'shop' has no store 'sen' here; it has ['seen']"),
        (("scan", str(tmp_path), "seen", "--partition", "7"), "partition 7 of 'orders' is not here; there are [0]"),
        (
            ("get", str(tmp_path), "seen", "anna", "--map-key", "a"),
            "--map-key: store 'seen' has one value for each key",
        ),
    ):
        answer = Answer(capsys, ("state", *arguments))
        assert (answer.code, answer.entries) == (2, [])
        assert says in answer.errors


def test_one_of_several_applications_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a state folder has several."""
    for app, value in (("shop", 1), ("other", 2)):
        one_of(tmp_path / "state", app, None, {"anna": value}).lock.close()
    get = ("state", "get", str(tmp_path / "state"), "seen", "anna")
    answer = Answer(capsys, get)
    assert answer.code == 2
    assert "the applications that keep state here are ['other', 'shop']; name one with --app" in answer.errors
    assert "seen --app none" in Answer(capsys, (*get, "--app", "none")).errors
    assert Answer(capsys, (*get, "--app", "shop")).entries == [
        {"folder": "0", "partition": 0, "key": "anna", "value": 1}
    ]


# The present owner


async def logs_of(
    folder: Path, owners: Sequence[tuple[int, KeyRange]], expelled: Sequence[int] = (), *, are_at_work: bool = True
) -> str:
    """The address of a broker with the logs of a group of three, and a changelog of nine records; who owns what, and
    whether they have taken it up.
    """
    events: list[ControlEvent] = [
        AppCreated("shop", HASH_NAME, 1),
        coordinator_elected(1, "first"),
        *(
            replace(member_joined(1, i, birth, birth), host=f"host-{i}", endpoint=endpoint)
            for i, birth, endpoint in ((1, "first", ""), (2, "second", "http://two:80"), (3, "third", ""))
        ),
        store_declared(1, 0, "seen", "orders", "value", "", "int", "json"),
        partition_started(1, "orders", 0, 0, "earliest", 1),
        *(
            ranges_granted(1, incarnation, epoch, "orders", 0, (Band(within.first, within.end, 0),))
            for epoch, (incarnation, within) in enumerate(owners, 1)
        ),
        *(member_expelled(1, incarnation) for incarnation in expelled),
    ]
    broker = EmbeddedBroker(folder)
    await broker.open()
    topics = ("shop.control", "shop.offsets", "shop.changelog.orders")
    await broker.create([TopicSpec(topic, 1, {}) for topic in topics])
    await append(broker, [Outgoing("shop.control", 0, None, encode(event)) for event in in_turn(events)])
    for epoch, (incarnation, within) in enumerate(owners, 1):
        cut = WorkersCut(incarnation, 1, epoch, "orders", 0, 0, (within.first, within.end if are_at_work else 1))
        await append(broker, [Outgoing("shop.offsets", 0, None, encode(cut))])
    await append(broker, [Outgoing("shop.changelog.orders", 0, b"k", b"v") for _ in range(9)])
    await broker.close()
    return f"embedded:{folder}"


def test_the_folder_of_the_present_owner_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the control log, whatever else has the key here; of what another machine has, it is said where. ``--copy``
    takes every folder, and says how far each is.
    """
    edge = point_of_key(b"both")
    low, high = KeyRange(0, edge), KeyRange(edge, SPACE_END)
    below, none = (f"k{i}" for i in [i for i in range(100) if point_of_key(b"k%d" % i) < edge][:2])
    address = asyncio.run(logs_of(tmp_path / "data", [(3, WHOLE), (1, low), (2, high)]))
    state = tmp_path / "state"
    for name, birth, count in ((None, "first", 1), ("two", "an older one", 2), ("three", "third", 3)):
        one_of(state, "shop", name, {below: count, "both": count}, birth=birth).lock.close()
    get = ("state", "get", str(state), "seen")
    owned = Answer(capsys, (*get, below, "--broker", address))
    assert (owned.code, owned.entries) == (0, [{"folder": "0", "partition": 0, "key": below, "value": 1}]), owned.errors
    assert Answer(capsys, (*get, none, "--broker", address)).code == 1
    away = Answer(capsys, (*get, "both", "--broker", address))
    assert (away.code, away.entries) == (2, [])
    assert "orders[0]: incarnation 2 (second) on host-2 has it, ask it at http://two:80. --copy takes" in away.errors
    copies = Answer(capsys, (*get, "both", "--broker", address, "--copy"))
    far = {"partition": 0, "key": "both", "copied_to": 9}
    assert copies.entries == [
        {**far, "folder": folder, "value": value, "changelog_ends": 9}
        for folder, value in (("0", 1), ("three", 3), ("two", 2))
    ]
    alone = Answer(capsys, ("state", "get", str(state / "shop" / "0"), "seen", "both", "--copy"))
    assert alone.entries == [{**far, "value": 1}]


@pytest.mark.parametrize(
    ("expelled", "are_at_work", "says"),
    [
        ([], False, "incarnation 1 (first) was granted it and has not taken it up; ask again"),
        ([1], True, "nobody has it now"),
    ],
)
def test_who_is_no_owner_or_not_at_work_yet_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expelled: list[int], are_at_work: bool, says: str
) -> None:
    """It restores the range that it was granted, or was expelled: what its folder holds is old."""
    address = asyncio.run(logs_of(tmp_path / "data", [(1, WHOLE)], expelled, are_at_work=are_at_work))
    one_of(tmp_path / "state", "shop", None, {"anna": 1}, birth="first").lock.close()
    get = ("state", "get", str(tmp_path / "state"), "seen", "anna", "--broker", address)
    answer = Answer(capsys, get)
    assert (answer.code, answer.entries) == (2, [])
    assert f"orders[0]: {says}" in answer.errors
    assert [entry["value"] for entry in Answer(capsys, (*get, "--copy")).entries] == [1]


def test_a_machine_without_state_of_the_application_says_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the broker and the application are named: there need be no folder. One without logs there is told."""
    address = asyncio.run(logs_of(tmp_path / "data", [(2, WHOLE)]))
    one_of(tmp_path / "state", "other", None, {"anna": 1}).lock.close()
    (tmp_path / "empty").mkdir()
    for folder in ("state", "none", "empty"):
        get = ("state", "get", str(tmp_path / folder), "seen", "anna", "--broker", address)
        answer = Answer(capsys, (*get, "--app", "shop"))
        assert (answer.code, answer.entries) == (2, [])
        assert "orders[0]: incarnation 2 (second) on host-2 has it, ask it at http://two:80" in answer.errors
    answer = Answer(capsys, ("state", "get", str(tmp_path / "state"), "seen", "anna", "--broker", address))
    assert (answer.code, "there is no application 'other' on this broker" in answer.errors) == (2, True)


# Embedded brokers


def stateful(name: str, folder: Path) -> App:
    """An application that counts and remembers, on an embedded broker."""
    app = App(name, broker=f"embedded:{folder}")

    @app.handler("orders")
    async def count(
        value: int, ctx: Context, seen: State[int], by: Annotated[MapState[str, int], Store(ttl_ms=1_000)]
    ) -> None:
        seen.put((seen.get() or 0) + 1)
        by.put(f"of {value % 2}", value)

    return app


async def fill(folder: Path, first: int) -> None:
    """Ten orders more of two customers, one in each partition."""
    broker = EmbeddedBroker(folder)
    await broker.open()
    await broker.create([TopicSpec("orders", 2, {})])
    values = range(first, first + 10)
    await append(broker, [Outgoing("orders", i % 2, b"c%d" % (i % 2), b"%d" % i, (), 5_000) for i in values])
    await broker.close()


async def test_the_folder_of_an_embedded_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables of changelogs are read while the application runs, too; with several applications one is named."""
    folder = tmp_path / "data"
    await fill(folder, 0)
    for name in ("shop", "other"):
        await asyncio.to_thread(stateful(name, folder).run, until="level")
    get = ("state", "get", str(folder), "seen", "c1")
    answer = await asyncio.to_thread(Answer, capsys, get)
    assert answer.code == 2
    assert "the applications that keep state here are ['other', 'shop']; name one with --app" in answer.errors
    assert "seen --app none" in (await asyncio.to_thread(Answer, capsys, (*get, "--app", "none"))).errors
    app = stateful("shop", folder)
    async with app:
        await fill(folder, 10)
        async with asyncio.timeout(20):
            while any(app.store("seen").get(b"c%d" % i) != 10 for i in range(2)):  # noqa: ASYNC110  # no event tells it
                await asyncio.sleep(0.01)
        entries = (await asyncio.to_thread(Answer, capsys, (*get, "--app", "shop"))).entries
        assert entries == [{"partition": 1, "key": "c1", "value": 10}]
        scan = ("state", "scan", str(folder), "by", "--app", "shop")
        entries = (await asyncio.to_thread(Answer, capsys, scan)).entries
    assert entries == [
        {"partition": p, "key": f"c{p}", "map_key": f"of {p}", "value": 18 + p, "deadline_ms": 6_000} for p in range(2)
    ]
