"""The rows of docs/bad-input.md about state: a clear error, or a copy made anew; never state that is silently wrong."""

import asyncio
import json
import logging
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from keylanes import App, Context, DeadLetter, MapState, Retry, State
from keylanes.cli.commands import run_command
from keylanes.errors import FencedError, SettingsError, StateError, StoreError
from keylanes.runtime.handlers.store_declarations import Store
from keylanes.runtime.handlers.values import MsgpackCodec
from keylanes.state.changelog import decode_stored
from keylanes.state.keys import parse_key
from keylanes.state.rocks import open_rocks

from ..stage.feeding import stops_with
from ..stage.ground import Ground
from ..stage.stateful import all_at, changelog_of, counting, counts, delete_topics, fill
from ..stage.waiting import reached

# --- declarations and settings ---------------------------------------------------------------------------------------


@pytest.mark.broker
def test_state_on_kafka_without_a_folder(kafka: Ground) -> None:
    """The start is refused, naming the setting."""
    fill(kafka)
    kafka.state_folder = None
    stops_with(SettingsError, counting(kafka), "give Settings.state_folder, a local folder that the processes of one")


def changed(ground: Ground, kind: str) -> App:
    """The application, its store declared in another way."""
    app = ground.app()
    if kind == "codec":

        @app.handler(ground.source)
        async def packed(value: int, seen: Annotated[State[int], Store(codec=MsgpackCodec())]) -> None:
            seen.put(1)

    elif kind == "type":

        @app.handler(ground.source)
        async def text(value: int, seen: State[str]) -> None:
            seen.put("1")

    elif kind == "kind":

        @app.handler(ground.source)
        async def mapped(value: int, seen: MapState[str, int]) -> None:
            seen.put("1", 1)

    else:
        ground.create("another")

        @app.handler("another")
        async def elsewhere(value: int, seen: State[int]) -> None:
            seen.put(1)

    return app


def test_a_store_that_was_changed(either: Ground) -> None:
    """Another codec, type, kind or topic under an old name is refused at the start; as it was, it goes on."""
    fill(either)
    counting(either).run(until="level")
    for kind in ("codec", "type", "kind", "topic"):
        stops_with(SettingsError, changed(either, kind), "store 'seen' was a value of int for")
    fill(either)
    counting(either).run(until="level")
    assert counts(either) == all_at(8)


def test_a_store_that_is_gone(either: Ground) -> None:
    """A store that no handler asks for any more is no fault; whoever asks for it again finds what it held."""
    fill(either)
    counting(either).run(until="level")
    fill(either)
    without = either.app()

    @without.handler(either.source)
    async def pass_by(value: int) -> None:
        """Keeps nothing."""

    without.run(until="level")
    fill(either, 1)
    counting(either).run(until="level")
    assert counts(either) == all_at(5)


def test_a_state_value_that_is_too_large(either: Ground) -> None:
    """Its record is dead-lettered and the state is as it was; the others go on."""
    either.fill([(b"a", b"3"), (b"a", b"3000000"), (b"a", b"4"), (b"b", b"5")])
    app = either.app()

    @app.handler(
        either.source,
        to=either.late,
        parallelising_factor=4,
        retry=Retry(attempts=2, backoff_ms=1),
        on_failure=DeadLetter(either.dead),
    )
    async def grow(size: int, ctx: Context, kept: State[str]) -> int:
        before = len(kept.get() or "")
        kept.put("x" * size)
        return before

    app.run(until="level")
    assert sorted(value or b"" for value in either.values(either.late)) == [b"0", b"0", b"3"]
    (letter,) = either.read(either.dead)
    assert letter.value == b"3000000"
    assert (dict(letter.headers)["kl-error"] or b"").decode().startswith("StateValueTooLarge: ")


class Place(msgspec.Struct):
    """What one version of an application keeps."""

    gate: int


class PlaceRenamed(msgspec.Struct):
    """What the next one takes it for: an object as well, so that the declaration tells no difference."""

    gate_name: str


def test_a_state_value_of_other_code(either: Ground) -> None:
    """One that can't be decoded as declared stops the application; the code that wrote it goes on."""
    fill(either)

    def build(kind: Any) -> App:
        app = either.app()

        async def keep(value: int, place: State[Any]) -> None:
            place.get()
            place.put(Place(value))

        keep.__annotations__["place"] = State[kind]
        app.handler(either.source, parallelising_factor=4, on_failure=DeadLetter(either.dead))(keep)
        return app

    build(Place).run(until="level")
    fill(either)
    stops_with(StateError, build(PlaceRenamed), "a value of store 'place' (10 bytes) can't be decoded as declared")
    build(Place).run(until="level")
    assert either.values(either.dead) == []


# --- the folder ------------------------------------------------------------------------------------------------------


@pytest.mark.broker
def test_a_state_folder_that_is_not_ours(kafka: Ground, tmp_path: Path) -> None:
    """Another application's, one of the same name with other logs, an embedded broker's, a newer one's, a stranger's:
    refused, and left as it is.
    """
    fill(kafka)
    counting(kafka).run(until="level")
    topics, newer, foreign = tmp_path / "topics", tmp_path / "newer", tmp_path / "foreign"
    open_rocks(topics, "topics", 1).close()
    open_rocks(newer, "state", 2).close()
    foreign.mkdir()
    (foreign / "precious").write_text("not a database")
    for folder, says in (
        (topics, "holds keylanes topics, not subfolders"),
        (newer, "holds keylanes state, not subfolders"),
        (foreign, "was not made by keylanes"),
    ):
        stops_with(StoreError, counting(kafka, state_folder=str(folder)), says)
    assert [path.name for path in foreign.iterdir()] == ["precious"]
    first, mine = kafka.name, kafka.copies().parent
    kafka.name = f"{first}-other"
    mine.rename(kafka.copies().parent)
    stops_with(StoreError, counting(kafka), f"holds the state of application '{first}', born ")
    kafka.copies().parent.rename(mine)
    kafka.name = first
    delete_topics(kafka, f"{first}.control", f"{first}.offsets", changelog_of(kafka))
    for says in (f"this is application '{first}', born ", "nothing of what the folder holds can be had from them"):
        stops_with(StoreError, counting(kafka), says)
    assert counts(kafka) == all_at(4)


@pytest.mark.broker
def test_a_state_folder_in_use(kafka: Ground) -> None:
    """The subfolder of a name that another process has is refused, naming both; one without a name has another one."""
    fill(kafka)
    counting(kafka, group_instance_id="a", return_ms=0).run(until="level")
    code = (
        "import sys; from keylanes.state.subfolders import claim\n"
        "claimed = claim(*sys.argv[1:]); print('mine', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(kafka.state_folder), kafka.name, "a"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        says = f"{kafka.copies('a')} is in use by another process (pid {holder.pid}), which has the name 'a', too"
        stops_with(FencedError, counting(kafka, group_instance_id="a"), says)
        counting(kafka).run(until="level")
        assert counts(kafka) == all_at(4)
    counting(kafka, group_instance_id="a").run(until="level")


@pytest.mark.broker
@pytest.mark.parametrize("names", [("a", "b"), (None, "b")])
async def test_a_second_process_takes_over_the_state(
    kafka: Ground, names: tuple[str | None, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Beside the first one's subfolder it has its own, with the state that the first one committed when that has left;
    that of the first is good later on. With names, and without.
    """
    caplog.set_level(logging.INFO, "keylanes")
    records = [(b"k%d" % (i % 3), b"%d" % i) for i in range(900)]
    await asyncio.to_thread(kafka.fill, records)
    half_way = asyncio.Event()

    def declared(name: str | None, *, is_gated: bool = False) -> App:
        times = {"commit_interval_ms": 10, "commit_lead_ms": 1, "drain_timeout_ms": 500, "return_ms": 0}
        app = kafka.app(None, group_instance_id=name, **times)

        @app.handler(kafka.source, to=kafka.late, parallelising_factor=4)
        async def count(value: int, seen: State[int]) -> int:
            if is_gated and value >= 450:
                half_way.set()
                await asyncio.Event().wait()
            seen.put((seen.get() or 0) + 1)
            return seen.get() or 0

        return app

    first, second = declared(names[0], is_gated=True), declared(names[1])
    async with AsyncExitStack() as later:
        async with first:
            await half_way.wait()
            await later.enter_async_context(second)
            assert not second.statistics().partitions, "the only partition stays where it is"
        await reached(lambda: second.statistics().records_done >= 450, 30)
    assert caplog.text.count(f"working on {kafka.source}: 1 partition") == 2
    for name in names:
        await asyncio.to_thread(declared(name).run, until="level")
        assert await asyncio.to_thread(counts, kafka, name or "0") == all_at(300)
    published = [int(value or b"") for value in await asyncio.to_thread(kafka.values, kafka.late)]
    assert sorted(published) == sorted(3 * list(range(1, 301)))


@pytest.mark.broker
async def test_a_start_that_can_not_keep_state_disturbs_nobody(kafka: Ground, tmp_path: Path) -> None:
    """Without a folder, with the name of the running process or with a foreign folder, a second process is refused
    before it joins: the first goes on.
    """
    await asyncio.to_thread(fill, kafka)
    open_rocks(tmp_path / "topics", "topics", 1).close()
    first = counting(kafka, group_instance_id="0")
    async with first:
        for folder, kind, says in (
            (None, SettingsError, "Settings.state_folder"),
            (str(kafka.state_folder), FencedError, "=0 is in use by this process"),
            (str(tmp_path / "topics"), StoreError, "holds keylanes topics, not subfolders"),
        ):
            second = counting(kafka, state_folder=folder, group_instance_id="0")
            await asyncio.to_thread(stops_with, kind, second, says)
        await asyncio.to_thread(fill, kafka)
        await reached(lambda: [first.store("seen").get(b"k%d" % i) for i in range(3)] == [8, 8, 8], 30)
        assert first.health().is_good
    assert await asyncio.to_thread(counts, kafka, "=0") == all_at(8)


@pytest.mark.broker
async def test_a_state_folder_is_read_beside_the_application(kafka: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    """`keylanes state` tells what the running application keeps, of its subfolder and of all that there are."""
    await asyncio.to_thread(fill, kafka)
    app = counting(kafka)
    async with app:
        await reached(lambda: [app.store("seen").get(b"k%d" % i) for i in range(3)] == [4, 4, 4], 30)
        await asyncio.sleep(0)
        said = []
        for command in (["get", str(kafka.copies()), "seen", "k1"], ["scan", str(kafka.state_folder), "seen"]):
            assert await asyncio.to_thread(run_command, ["state", *command]) == 0
            said.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert said[0] == [{"partition": 0, "key": "k1", "value": 4}]
    assert {entry["key"]: entry["value"] for entry in said[1]} == {f"k{i}": 4 for i in range(3)}
    assert {entry["folder"] for entry in said[1]} == {"one"}


def remembering(ground: Ground) -> App:
    """An application that keeps 200 bytes of noise for each key, and looks at them."""
    app = ground.app()

    @app.handler(ground.source, parallelising_factor=4)
    async def keep(value: bytes, kept: State[bytes]) -> None:
        assert kept.get() in (None, value)
        kept.put(value)

    return app


def noise(count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Records that nothing compresses."""
    return [
        (b"k%d" % i, b"".join(hash((i, j)).to_bytes(8, "big", signed=True) for j in range(25))) for i in range(count)
    ]


def damage_tables(folder: Path) -> None:
    """Overwrite a piece in the middle of each of RocksDB's tables."""
    tables = list(folder.glob("*.sst"))
    assert tables
    for table in tables:
        content = bytearray(table.read_bytes())
        content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
        table.write_bytes(content)


def test_a_damaged_table(either: Ground) -> None:
    """A read that meets damage stops the application; a folder of copies may be deleted then, and is made anew."""
    records = noise(400)
    either.fill(records)
    remembering(either).run(until="level")
    if either.is_embedded:
        damage_tables(Path(either.address.removeprefix("embedded:")))
        stops_with(StoreError, remembering(either), "is damaged")
        return
    folder = either.copies()
    damage_tables(folder)
    either.fill(records)
    stops_with(StoreError, remembering(either), f"{folder} is damaged")
    shutil.rmtree(folder)
    remembering(either).run(until="level")
    kept = {parse_key(key).key: decode_stored(value).payload for (_, key), value in either.kept(1).items()}
    assert kept == dict(records)


FULL = """
import os, sys
from pathlib import Path
from keylanes import App, Settings, State

address, name, source, disk = sys.argv[1:]
disk = Path(disk)
address = address or f"embedded:{disk / 'state'}"

def build():
    app = App(name, broker=address, settings=Settings(commit_interval_ms=40, state_folder=str(disk / "state")))
    @app.handler(source, parallelising_factor=4)
    async def grow(value: int, kept: State[bytes]) -> None:
        kept.put(os.urandom(40_000 + value))
    return app

if address.startswith("embedded:"):
    import asyncio
    from keylanes.runtime.connect import connect
    from keylanes.brokers.protocol import Outgoing, TopicSpec
    async def fill():
        broker = connect(address, Settings(), "filler")
        await broker.open()
        await broker.create([TopicSpec(source, 1, {})])
        appender = broker.appender()
        await appender.append([Outgoing(source, 0, b"k%d" % i, b"%d" % i) for i in range(1000)])
        await appender.close()
        await broker.close()
    asyncio.run(fill())
(disk / "ballast").write_bytes(bytes(140_000_000))
try:
    build().run(until="level")
except SystemExit as ended:
    print(ended.code, ended.__cause__)
(disk / "ballast").unlink()
app = build()
app.run(until="level")
print("level", app.health().state)
from keylanes.cli.state import open_folder, entries_of
with open_folder(disk / "state", None) as kept:
    keys = [b"k%d" % i for i in range(1000)]
    sizes = [len(e["value_base64"]) for key in keys for e, _ in entries_of(kept[0], "kept", key, None, None)]
print(sizes == [4 * ((40_000 + i + 2) // 3) for i in range(1000)])
"""


def test_a_full_disk(either: Ground, tmp_path: Path) -> None:
    """The application stops and says that the disk is full; with room it goes on, and nothing is missing."""
    shell = 'mount -t tmpfs -o size=170m keylanes "$0" || exit 77; exec "$1" -c "$2" "$3" "$4" "$5" "$0"'
    disk = tmp_path / "disk"
    disk.mkdir()
    address = "" if either.is_embedded else either.address
    if not either.is_embedded:
        either.fill([(b"k%d" % i, b"%d" % i) for i in range(1_000)])
    told = [str(disk), sys.executable, FULL, address, either.name, either.source]
    if shutil.which("unshare") is None:
        pytest.skip("no small disk can be made here: there is no `unshare`")
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", shell, *told]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    if answer.returncode == 77 or answer.stderr.startswith("unshare:"):
        pytest.skip(f"no small disk can be made here: {answer.stderr.strip()}")
    assert answer.returncode == 0, answer.stderr
    full, level, right = answer.stdout.splitlines()
    assert full.startswith(f"8 the disk that holds {disk / 'state'}")
    assert " is full; free some space" in full
    assert (level, right) == ("level stopped", "True")
