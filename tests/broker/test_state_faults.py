"""The rows of docs/bad-input.md about state: a clear error, or a copy made anew; never state that is silently wrong."""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from keylanes import App, Context, DeadLetter, MapState, Retry, State
from keylanes.runtime.brokers.protocol import Broker, Outgoing, Record, TopicPartition
from keylanes.runtime.commands import run_command
from keylanes.runtime.errors import FencedError, KeylanesError, SettingsError, SourceError, StateError, StoreError
from keylanes.runtime.kafka_server import KafkaServer
from keylanes.runtime.stores import Store
from keylanes.runtime.values import MsgpackCodec
from keylanes.state.changelog import BEACON_KEY, CHANGELOG_CONFIG, Beacon, changelog_topic, decode_stored, encode_beacon
from keylanes.state.keys import parse_key
from keylanes.state.rocks import open_rocks

from .ground import Ground


@pytest.fixture
def kafka(kafka_server: KafkaServer, tmp_path: Path) -> Ground:
    """A real Kafka, and a folder for the state."""
    return Ground(f"kafka://{kafka_server.bootstrap}", tmp_path / "state")


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.broker)])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """Both brokers, one after the other."""
    if request.param == "embedded":
        return Ground(f"embedded:{tmp_path / 'data'}")
    found: Ground = request.getfixturevalue("kafka")
    return found


def counting(ground: Ground, **settings: object) -> App:
    """An application that counts the records of each key."""
    app = ground.app(None, **settings)

    @app.handler(ground.source, to=ground.late, parallelising_factor=4)
    async def count(value: int, seen: State[int]) -> int:
        seen.put((seen.get() or 0) + 1)
        return seen.get() or 0

    return app


def fill(ground: Ground, times: int = 4) -> None:
    """So many records more of each of three keys."""
    ground.fill([(b"k%d" % (i % 3), b"%d" % i) for i in range(3 * times)])


def counts(ground: Ground) -> dict[bytes, int]:
    """What is kept, of the first store."""
    kept = [(parse_key(key), json.loads(decode_stored(value).payload)) for (_, key), value in ground.kept(1).items()]
    return {place.key: value for place, value in kept if place.store == 0}


def all_at(times: int) -> dict[bytes, int]:
    """Each key was seen so often."""
    return {b"k%d" % i: times for i in range(3)}


def stops_with(kind: type[KeylanesError], app: App, says: str) -> None:
    """Run the application: it ends with an error of this kind, whose exit code the process would have."""
    with pytest.raises(SystemExit) as ended:
        app.run(until="level")
    assert isinstance(ended.value.__cause__, kind), ended.value.__cause__
    assert ended.value.code == getattr(kind, "exit_code", None)
    assert says in str(ended.value.__cause__)


def changelog_of(ground: Ground) -> str:
    """The name of the changelog of the source."""
    return changelog_topic(ground.name, ground.source)


def append(ground: Ground, topic: str, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
    """Write to partition 0 of a topic that exists."""

    async def write() -> None:
        broker: Broker = ground.connect()
        await broker.open()
        await broker.append([Outgoing(topic, 0, key, value) for key, value in records])
        await broker.close()

    asyncio.run(write())


def administer(ground: Ground, work: Callable[[AIOKafkaAdminClient], Any]) -> None:
    """Do something to a Kafka that only people do."""

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=ground.address.removeprefix("kafka://"))
        await admin.start()
        try:
            await work(admin)
        finally:
            await admin.close()

    asyncio.run(run())


def delete_topics(ground: Ground, *topics: str) -> None:
    """Delete topics; returns when they are gone."""

    async def delete(admin: AIOKafkaAdminClient) -> None:
        await admin.delete_topics(list(topics))
        async with asyncio.timeout(30):
            while set(topics) & set(await admin.list_topics()):  # noqa: ASYNC110  # what is waited for has no event
                await asyncio.sleep(0.02)

    administer(ground, delete)


def configure(ground: Ground, topic: str, **config: str) -> None:
    """Set the settings of a changelog; underscores stand for dots."""
    settings = {**CHANGELOG_CONFIG, **{name.replace("_", "."): value for name, value in config.items()}}

    async def alter(admin: AIOKafkaAdminClient) -> None:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, settings)])

    administer(ground, alter)


def make_changelog(ground: Ground, records: Sequence[Record] = (), partitions: int = 1) -> None:
    """The changelog anew, with these records."""
    ground.create(changelog_of(ground), partitions, **CHANGELOG_CONFIG)
    if records:
        append(ground, changelog_of(ground), [(record.key, record.value) for record in records])


# --- declarations and settings ---------------------------------------------------------------------------------------


@pytest.mark.broker
def test_state_on_kafka_without_a_folder(kafka: Ground) -> None:
    """The start is refused, naming the setting."""
    fill(kafka)
    kafka.state_folder = None
    stops_with(SettingsError, counting(kafka), "Settings.state_folder")


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


def test_a_store_that_was_changed(ground: Ground) -> None:
    """Another codec, type, kind or topic under an old name is refused at the start; as it was, it goes on."""
    fill(ground)
    counting(ground).run(until="level")
    for kind in ("codec", "type", "kind", "topic"):
        stops_with(SettingsError, changed(ground, kind), "store 'seen' was a value of int for")
    fill(ground)
    counting(ground).run(until="level")
    assert counts(ground) == all_at(8)


def test_a_store_that_is_gone(ground: Ground) -> None:
    """A store that no handler asks for any more is no fault; whoever asks for it again finds what it held."""
    fill(ground)
    counting(ground).run(until="level")
    fill(ground)
    without = ground.app()

    @without.handler(ground.source)
    async def pass_by(value: int) -> None:
        """Keeps nothing."""

    without.run(until="level")
    fill(ground, 1)
    counting(ground).run(until="level")
    assert counts(ground) == all_at(5)


def test_a_state_value_that_is_too_large(ground: Ground) -> None:
    """Its record is dead-lettered and the state is as it was; the others go on."""
    ground.fill([(b"a", b"3"), (b"a", b"3000000"), (b"a", b"4"), (b"b", b"5")])
    app = ground.app()

    @app.handler(
        ground.source,
        to=ground.late,
        parallelising_factor=4,
        retry=Retry(attempts=2, backoff_ms=1),
        on_failure=DeadLetter(ground.dead),
    )
    async def grow(size: int, ctx: Context, kept: State[str]) -> int:
        before = len(kept.get() or "")
        kept.put("x" * size)
        return before

    app.run(until="level")
    assert sorted(value or b"" for value in ground.values(ground.late)) == [b"0", b"0", b"3"]
    (letter,) = ground.read(ground.dead)
    assert letter.value == b"3000000"
    assert dict(letter.headers)["kl-error"].decode().startswith("StateValueTooLarge: ")


# --- the folder ------------------------------------------------------------------------------------------------------


@pytest.mark.broker
def test_a_state_folder_that_is_not_ours(kafka: Ground, tmp_path: Path) -> None:
    """Another application's, one of the same name with other logs, an embedded broker's, a newer one's, a stranger's:
    refused, and left as it is.
    """
    fill(kafka)
    counting(kafka).run(until="level")
    state = kafka.state_folder
    assert state is not None
    topics, newer, foreign = tmp_path / "topics", tmp_path / "newer", tmp_path / "foreign"
    open_rocks(topics, "topics", 1).close()
    open_rocks(newer, "state", 2).close()
    foreign.mkdir()
    (foreign / "precious").write_text("not a database")
    for folder, says in (
        (topics, "holds keylanes topics, not state"),
        (newer, "has format 2; this version of keylanes reads format 1"),
        (foreign, "was not made by keylanes"),
    ):
        stops_with(StoreError, counting(kafka, state_folder=str(folder)), says)
    assert [path.name for path in foreign.iterdir()] == ["precious"]
    first = kafka.name
    kafka.name = f"{first}-other"
    stops_with(StoreError, counting(kafka), f"holds the state of application '{first}', born ")
    kafka.name = first
    delete_topics(kafka, f"{first}.control", f"{first}.offsets", changelog_of(kafka))
    stops_with(StoreError, counting(kafka), f"this is application '{first}', born ")
    assert counts(kafka) == all_at(4)


@pytest.mark.broker
def test_a_state_folder_in_use(kafka: Ground) -> None:
    """Held by another process it is refused, naming the folder."""
    fill(kafka)
    counting(kafka).run(until="level")
    code = (
        "import sys; from pathlib import Path; from keylanes.state.rocks import open_rocks\n"
        "rocks = open_rocks(Path(sys.argv[1]), 'state', 1); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(kafka.state_folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        stops_with(StoreError, counting(kafka), f"{kafka.state_folder} is in use by another process")
    counting(kafka).run(until="level")


@pytest.mark.broker
async def test_a_second_process_takes_over_the_state(kafka: Ground, tmp_path: Path) -> None:
    """With a folder of its own it has the state that the first one committed; the folder of that is good later on."""
    records = [(b"k%d" % (i % 3), b"%d" % i) for i in range(900)]
    await asyncio.to_thread(kafka.fill, records)
    folders = [str(tmp_path / name) for name in ("first", "second")]
    started = asyncio.Event()

    def declared(folder: str) -> App:
        app = kafka.app(None, state_folder=folder, commit_interval_ms=10, commit_lead_ms=1)

        @app.handler(kafka.source, to=kafka.late, parallelising_factor=4)
        async def slow(value: int, seen: State[int]) -> int:
            await asyncio.sleep(0.002)
            seen.put((seen.get() or 0) + 1)
            if value == 300:
                started.set()
            return seen.get() or 0

        return app

    async def work_until_expelled(app: App) -> None:
        ended = asyncio.Event()
        app.on_fatal = lambda error: ended.set()
        async with app:
            await ended.wait()

    first, second = declared(folders[0]), declared(folders[1])
    running = asyncio.get_running_loop().create_task(work_until_expelled(first))
    await started.wait()
    async with second:
        with pytest.raises(FencedError):
            await running
    for folder in folders:
        await asyncio.to_thread(declared(folder).run, until="level")
        kafka.state_folder = Path(folder)
        assert await asyncio.to_thread(counts, kafka) == all_at(300)
    published = [int(value or b"") for value in await asyncio.to_thread(kafka.values, kafka.late)]
    assert sorted(published) == sorted(3 * list(range(1, 301)))


@pytest.mark.broker
async def test_a_start_that_can_not_keep_state_disturbs_nobody(kafka: Ground, tmp_path: Path) -> None:
    """Without a folder, with that of the running process or with a foreign one, a second process is refused before it
    takes over: the first goes on.
    """
    await asyncio.to_thread(fill, kafka)
    open_rocks(tmp_path / "topics", "topics", 1).close()
    first = counting(kafka)
    async with first:
        for folder, kind, says in (
            (None, SettingsError, "Settings.state_folder"),
            (str(kafka.state_folder), StoreError, "is already open in this process"),
            (str(tmp_path / "topics"), StoreError, "holds keylanes topics, not state"),
        ):
            await asyncio.to_thread(stops_with, kind, counting(kafka, state_folder=folder), says)
        await asyncio.to_thread(fill, kafka)
        async with asyncio.timeout(30):
            while [first.store("seen").get(b"k%d" % i) for i in range(3)] != [8, 8, 8]:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.01)
        assert first.health().is_good
    assert await asyncio.to_thread(counts, kafka) == all_at(8)


@pytest.mark.broker
async def test_a_state_folder_is_read_beside_the_application(kafka: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    """`keylanes state` tells what the running application keeps."""
    await asyncio.to_thread(fill, kafka)
    app = counting(kafka)
    async with app:
        async with asyncio.timeout(30):
            while [app.store("seen").get(b"k%d" % i) for i in range(3)] != [4, 4, 4]:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        said = []
        for command in (["get", str(kafka.state_folder), "seen", "k1"], ["scan", str(kafka.state_folder), "seen"]):
            assert await asyncio.to_thread(run_command, ["state", *command]) == 0
            said.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert said[0] == [{"partition": 0, "key": "k1", "value": 4}]
    assert {entry["key"]: entry["value"] for entry in said[1]} == {f"k{i}": 4 for i in range(3)}


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


def test_a_damaged_table(ground: Ground) -> None:
    """A read that meets damage stops the application; a folder of copies may be deleted then, and is made anew."""
    records = noise(400)
    ground.fill(records)
    remembering(ground).run(until="level")
    if ground.is_embedded:
        damage_tables(Path(ground.address.removeprefix("embedded:")))
        stops_with(StoreError, remembering(ground), "is damaged")
        return
    folder = ground.state_folder
    assert folder is not None
    damage_tables(folder)
    ground.fill(records)
    stops_with(StoreError, remembering(ground), f"{folder} is damaged")
    shutil.rmtree(folder)
    remembering(ground).run(until="level")
    kept = {parse_key(key).key: decode_stored(value).payload for (_, key), value in ground.kept(1).items()}
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
    from keylanes.runtime.brokers.protocol import Outgoing, TopicSpec
    async def fill():
        broker = connect(address, Settings(), "filler")
        await broker.open()
        await broker.create([TopicSpec(source, 1, {})])
        await broker.append([Outgoing(source, 0, b"k%d" % i, b"%d" % i) for i in range(1000)])
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
from keylanes.runtime.state_commands import open_kept, entries_of
kept = open_kept(disk / "state", None)
sizes = [len(e["value_base64"]) for i in range(1000) for e in entries_of(kept, "kept", b"k%d" % i, None, None)]
kept.close()
print(sizes == [4 * ((40_000 + i + 2) // 3) for i in range(1000)])
"""


def test_a_full_disk(ground: Ground, tmp_path: Path) -> None:
    """The application stops and says that the disk is full; with room it goes on, and nothing is missing."""
    shell = 'mount -t tmpfs -o size=170m keylanes "$0" || exit 77; exec "$1" -c "$2" "$3" "$4" "$5" "$0"'
    disk = tmp_path / "disk"
    disk.mkdir()
    address = "" if ground.is_embedded else ground.address
    if not ground.is_embedded:
        ground.fill([(b"k%d" % i, b"%d" % i) for i in range(1_000)])
    told = [str(disk), sys.executable, FULL, address, ground.name, ground.source]
    if shutil.which("unshare") is None:
        pytest.skip("no small disk can be made here: there is no `unshare`")
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", shell, *told]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    if answer.returncode == 77 or answer.stderr.startswith("unshare:"):
        pytest.skip(f"no small disk can be made here: {answer.stderr.strip()}")
    assert answer.returncode == 0, answer.stderr
    full, level, right = answer.stdout.splitlines()
    assert full.startswith(f"8 the disk that holds {disk / 'state'} is full")
    assert (level, right) == ("level stopped", "True")


# --- the changelog ---------------------------------------------------------------------------------------------------


@pytest.mark.broker
@pytest.mark.parametrize("folder", ["kept", "deleted"])
def test_a_changelog_that_was_deleted(kafka: Ground, folder: str) -> None:
    """It is made anew, empty, and the start is refused: also with a folder that still has the state, which stays."""
    fill(kafka)
    counting(kafka).run(until="level")
    delete_topics(kafka, changelog_of(kafka))
    assert kafka.state_folder is not None
    if folder == "deleted":
        shutil.rmtree(kafka.state_folder)
    stops_with(
        SettingsError,
        counting(kafka, create_topics=False),
        f"topics are missing and create_topics is off: {changelog_of(kafka)}",
    )
    for _ in range(2):
        stops_with(StateError, counting(kafka), "it holds state up to no transaction, and the offset log says")
    if folder == "kept":
        assert counts(kafka) == all_at(4)


@pytest.mark.broker
def test_a_changelog_put_back(kafka: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """Part of it is refused. All of it, newest values only: a folder that is ahead of it is thrown away, said aloud."""
    fill(kafka)
    counting(kafka).run(until="level")
    early = kafka.read(changelog_of(kafka))
    fill(kafka)
    counting(kafka).run(until="level")
    newest = list({record.key: record for record in kafka.read(changelog_of(kafka))}.values())
    for records in (early, [record for record in newest if record.key != BEACON_KEY]):
        delete_topics(kafka, changelog_of(kafka))
        make_changelog(kafka, records)
        stops_with(StateError, counting(kafka), "it holds state up to")
        assert counts(kafka) == all_at(8)
    delete_topics(kafka, changelog_of(kafka))
    make_changelog(kafka, newest)
    fill(kafka, 1)
    counting(kafka).run(until="level")
    assert "is thrown away and made anew: it is at position" in caplog.text
    assert counts(kafka) == all_at(9)


@pytest.mark.broker
def test_a_changelog_that_may_lose_records(kafka: Ground) -> None:
    """One that is not only compacted is refused; so is one whose head was deleted, with or without a folder."""
    fill(kafka)
    counting(kafka).run(until="level")
    configure(kafka, changelog_of(kafka), cleanup_policy="compact,delete")
    stops_with(SettingsError, counting(kafka), "must have cleanup.policy=compact and nothing else")

    async def trim() -> None:
        broker: Broker = kafka.connect()
        await broker.open()
        await broker.trim({TopicPartition(changelog_of(kafka), 0): 2})
        await broker.close()

    asyncio.run(trim())
    configure(kafka, changelog_of(kafka))
    stops_with(StateError, counting(kafka), "it begins at position 2: records were deleted from its head")
    assert counts(kafka) == all_at(4)
    assert kafka.state_folder is not None
    shutil.rmtree(kafka.state_folder)
    stops_with(StateError, counting(kafka), "it begins at position 2: records were deleted from its head")


def test_a_changelog_with_other_partitions(ground: Ground) -> None:
    """It is refused at the start: state is kept by partition and key."""
    fill(ground)
    make_changelog(ground, partitions=3)
    stops_with(SettingsError, counting(ground), f"{changelog_of(ground)} has 3 partitions, its source 1")


@pytest.mark.broker
def test_a_source_with_state_that_has_grown(kafka: Ground) -> None:
    """Its changelog shows it at the next start; when that has grown, too, the logs do. Nothing is read."""
    fill(kafka)
    counting(kafka).run(until="level")
    for topic, kind, says in (
        (kafka.source, SettingsError, "has 1 partitions, its source 2"),
        (changelog_of(kafka), SourceError, "has 2 partitions now; its state was begun with 1"),
    ):

        async def grow(admin: AIOKafkaAdminClient, topic: str = topic) -> None:
            await admin.create_partitions({topic: NewPartitions(2)})

        administer(kafka, grow)
        stops_with(kind, counting(kafka), says)
    assert counts(kafka) == all_at(4)


@pytest.mark.broker
def test_a_foreign_record_in_a_changelog(kafka: Ground) -> None:
    """Whoever reads it refuses it: the folder that has it to come, and a new one."""
    fill(kafka)
    counting(kafka).run(until="level")
    append(kafka, changelog_of(kafka), [(b"customer-7", b"hello")])
    assert kafka.state_folder is not None
    for _ in range(2):
        stops_with(StateError, counting(kafka), "is no state: it has the key b'customer-7' of 10 bytes. Something else")
        shutil.rmtree(kafka.state_folder)
    fill(kafka)
    stops_with(StateError, counting(kafka), "is no state")


def forgetting(ground: Ground) -> App:
    """An application that counts the records of each key, and forgets it at every tenth value."""
    app = ground.app(commit_interval_ms=5, commit_lead_ms=1)

    @app.handler(ground.source, parallelising_factor=8)
    async def count(value: int, seen: State[int]) -> None:
        await asyncio.sleep(0.002)
        if value % 10 == 0:
            seen.delete()
        else:
            seen.put((seen.get() or 0) + 1)

    return app


def wait_for_cleaner(ground: Ground, records_max: int) -> None:
    """Wait until the changelog holds so few records."""
    until = time.monotonic() + 90
    while len(ground.read(changelog_of(ground))) > records_max:
        assert time.monotonic() < until, "the cleaner did not run"
        threading.Event().wait(0.5)  # it has no event for us


def test_a_changelog_of_something_else(ground: Ground) -> None:
    """When it ends at a transaction that the offset log does not know, nothing is worked with it."""
    fill(ground)
    counting(ground).run(until="level")
    append(ground, changelog_of(ground), [(BEACON_KEY, encode_beacon(Beacon(9, 9)))])
    stops_with(StateError, counting(ground), "it holds state up to transaction 9 of incarnation 9, and the offset log")
    append(ground, changelog_of(ground), [(BEACON_KEY, b"junk")])
    stops_with(StateError, counting(ground), "a beacon has 16 bytes; seen 4")


@pytest.mark.broker
def test_a_compacted_changelog(kafka: Ground) -> None:
    """When Kafka's cleaner has taken most records what is restored is the same state, deleted keys among the rest."""
    config = {"segment.ms": "50", "min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "50"}
    kafka.create(changelog_of(kafka), 1, **{**CHANGELOG_CONFIG, **config})
    values = [(i, b"k%d" % (i % 7)) for i in range(1_001)]
    kafka.fill([(key, b"%d" % i) for i, key in values])
    twin: dict[bytes, int] = {}
    for i, key in values:
        if i % 10 == 0:
            twin.pop(key, None)
        else:
            twin[key] = twin.get(key, 0) + 1
    assert len(twin) == 6
    forgetting(kafka).run(until="level")
    assert counts(kafka) == twin
    written = len(kafka.read(changelog_of(kafka)))
    assert written > 60
    kafka.fill([(b"k1", b"1")])
    forgetting(kafka).run(until="level")  # so that the segment before it is closed
    twin[b"k1"] += 1
    wait_for_cleaner(kafka, written // 2)
    assert kafka.state_folder is not None
    shutil.rmtree(kafka.state_folder)
    forgetting(kafka).run(until="level")
    assert counts(kafka) == twin
    assert kafka.logged(1) == kafka.kept(1)
