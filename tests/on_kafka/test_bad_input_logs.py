"""What does not belong in our own logs: refused, or passed over by rule. Rows of docs/bad-input.md.

The proof runs all of it on a real Kafka, too.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from keylanes import App, Context, DeadLetter, Retry
from keylanes.brokers.protocol import Outgoing
from keylanes.errors import FencedError, LogError, SettingsError, SourceError
from keylanes.keyrange.hashing import HASH_NAME, SPACE_END
from keylanes.offsets.codec import decode, encode
from keylanes.offsets.control_events import AppCreated, ControlEvent, CoordinatorElected, MemberExpelled
from keylanes.offsets.event_values import Band, Tile
from keylanes.offsets.events import (
    Committed,
    Event,
    LogOpened,
    StateChanged,
    WorkersCut,
    WorkersMerged,
    WorkerSplit,
)

from ..stage.feeding import marks, passing_on, stops_with, trim, write
from ..stage.ground import Ground
from ..stage.log_events import (
    NO_NUMBER,
    coordinator_elected,
    in_turn,
    member_expelled,
    member_fenced,
    member_joined,
    partition_started,
    range_released,
    ranges_granted,
    source_identified,
)
from ..stage.stateful import administer, delete_topics
from ..stage.waiting import reached
from ..tiers.marks import tier
from .conftest import ground_of

ON_KAFKA = [pytest.mark.broker, tier("proof", "bad-input-logs")]

ON_KAFKA_ALONE = pytest.mark.parametrize("ground", [pytest.param("kafka", marks=ON_KAFKA)], indirect=True)
"""The embedded broker has no topics that can be deleted or get more partitions."""
LIMIT_S = 60.0
SHORT_SESSION = {
    "session_timeout_ms": 3_000, "heartbeat_interval_ms": 300, "transaction_timeout_ms": 3_000,
    "request_timeout_ms": 1_500,
}  # fmt: skip


def fill(ground: Ground, *values: int) -> None:
    """Numbers under three keys, to the source."""
    ground.fill([(b"k%d" % (value % 3), b"%d" % value) for value in values])


def numbers(ground: Ground) -> list[int]:
    """What was published, sorted."""
    return sorted(int(value or b"") for value in ground.values(ground.late))


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=ON_KAFKA)])
def ground(request: pytest.FixtureRequest) -> Ground:
    """Both brokers, one after the other, with a folder for the state."""
    return ground_of(request)


@pytest.fixture
def ran(ground: Ground) -> Ground:
    """An application that ran once, as incarnation 1 in term 1 at epoch 1, and processed 0 to 3."""
    fill(ground, 0, 1, 2, 3)
    passing_on(ground).run(until="level")
    return ground


def put(ground: Ground, log: str, *events: Event | bytes | None) -> None:
    """Append to a log of ours what it should not hold: decisions with the numbers that would be theirs."""
    if log == "control" and all(isinstance(event, ControlEvent) for event in events):
        held = [event for event in read_events(ground, log) if isinstance(event, ControlEvent)]
        birth = next((event.app_birth for event in held if isinstance(event, CoordinatorElected)), "")
        events = tuple(in_turn([event for event in events if isinstance(event, ControlEvent)], birth, behind=held))
    values = [event if isinstance(event, bytes | None) else encode(event) for event in events]
    write(ground, [Outgoing(f"{ground.name}.{log}", 0, None, value) for value in values])


def read_events(ground: Ground, log: str) -> list[Event]:
    """What a log of ours holds."""
    return [decode(record.value or b"") for record in ground.read(f"{ground.name}.{log}")]


def goes_on(ground: Ground) -> None:
    """The next start takes up the work, and everything is there once."""
    fill(ground, 4, 5)
    passing_on(ground).run(until="level")
    assert numbers(ground) == [0, 1, 2, 3, 4, 5]


def commit(ground: Ground, *tiles: tuple[int, int, int, int], epoch: int = 1, incarnation: int = 1) -> Committed:
    """A commit of the source with tiles (first, end, from, to)."""
    made = tuple(Tile(0, 1, *tile) for tile in tiles)
    return Committed(incarnation, 99, 0, 1, epoch, ground.source, 0, made, 0, 0, 0)


# --- events that nobody can read -------------------------------------------------------------------------------------

OPENED = encode(LogOpened("x", "y", 0, 1, 1, 1))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (OPENED.replace(b"log_opened/1", b"log_opened/2"), "unknown version of an event: seen 'log_opened/2', known"),
        (OPENED.replace(b"log_opened/1", b"log_closed/1"), "unknown kind of event: seen 'log_closed/1'"),
        (msgspec.msgpack.encode(["state_changed/1", 1]), "kind state_changed/1 was written before the first release"),
        (b"\xc1 this is text", "14 bytes are no msgpack"),
        (b"", "0 bytes are no msgpack"),
        (None, "0 bytes are no msgpack"),
        (msgspec.msgpack.encode({"tag": "log_opened/1"}), "an event is an array that starts with its kind; seen dict"),
        (OPENED[:-1] + b"\xa1z", "damaged event of kind log_opened/1"),
        (OPENED[:-1], "bytes are no msgpack"),
    ],
    ids=["newer", "unknown", "before-release", "text", "empty", "null", "no-event", "wrong-type", "cut-off"],
)
@pytest.mark.parametrize("log", ["control", "offsets"])
def test_an_event_that_cannot_be_read(ran: Ground, log: str, value: bytes | None, says: str) -> None:
    """Refused at the start, naming log, position and what was seen; it is never passed over."""
    position = ran_to(ran, log)
    put(ran, log, value)
    stops_with(LogError, passing_on(ran), f"{ran.name}.{log}[0] at position {position}: ", says)


def ran_to(ground: Ground, log: str) -> int:
    """The position behind the last record of a log, markers too."""
    return marks(ground, f"{ground.name}.{log}").high


# --- commits that do not count ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tiles",
    [
        [(7, 7, 4, 5)],
        [(9, 3, 4, 5)],
        [(SPACE_END - 5, 5, 4, 5)],
        [(0, SPACE_END + 1, 4, 5)],
        [(-1, 5, 4, 5)],
        [(0, 100, 4, 5), (50, 200, 4, 5)],
        [(0, SPACE_END, 0, 4)],
        [(0, SPACE_END, 6, 7)],
        [(0, 100, 4, 4)],
        [(0, 100, 5, 4)],
    ],
    ids=[
        "empty-range",
        "inverted-range",
        "wrapping-range",
        "beyond-the-space",
        "negative-point",
        "overlapping-tiles",
        "done-before",
        "gap",
        "no-offsets",
        "backwards",
    ],
)
def test_a_commit_with_an_impossible_range(ran: Ground, tiles: list[tuple[int, int, int, int]]) -> None:
    """It would be visible and counts for nothing: refused at the start, with partition and epoch."""
    put(ran, "offsets", commit(ran, *tiles))
    stops_with(LogError, passing_on(ran), f"{ran.source}[0]: a commit of epoch 1 lies outside what was granted")
    assert numbers(ran) == [0, 1, 2, 3]


def test_a_duplicate_commit(ran: Ground) -> None:
    """The same commit twice is the same work twice: refused at the start."""
    again = [event for event in read_events(ran, "offsets") if isinstance(event, Committed)]
    put(ran, "offsets", again[-1])
    stops_with(LogError, passing_on(ran), "a commit of epoch 1 lies outside what was granted")


def test_a_stale_commit(ran: Ground) -> None:
    """One of an owner whose grant is over: refused at the start."""
    fill(ran, 4)
    passing_on(ran).run(until="level")
    put(ran, "offsets", commit(ran, (0, SPACE_END, 5, 6)))
    stops_with(LogError, passing_on(ran), "a commit of epoch 1 lies outside what was granted")


def test_a_commit_of_another_incarnation(ran: Ground) -> None:
    """One at the right epoch by somebody who does not hold it: refused at the start."""
    put(ran, "offsets", commit(ran, (0, SPACE_END, 4, 5), incarnation=2))
    stops_with(LogError, passing_on(ran), "a commit of epoch 1 lies outside what was granted")


def test_a_commit_of_an_epoch_that_was_never_granted(ran: Ground) -> None:
    """Refused at the start: the two logs do not belong together."""
    put(ran, "offsets", commit(ran, (0, SPACE_END, 4, 5), epoch=77))
    stops_with(LogError, passing_on(ran), f"{ran.source}[0]: commits of epoch 77, which the control log does not know")


def test_a_commit_beyond_the_end_of_the_source(ran: Ground) -> None:
    """It says that records were processed that there never were: refused at the start, with both offsets."""
    put(ran, "control", member_joined(1, 2, "b", f"{ran.name}.b"))
    put(ran, "control", ranges_granted(1, 2, 2, ran.source, 0, (Band(0, SPACE_END, 4),)))
    put(ran, "control", member_expelled(1, 2), member_fenced(1, 2))
    put(ran, "offsets", commit(ran, (0, SPACE_END, 4, 900), epoch=2, incarnation=2))
    says = f"{ran.source}[0] ends at offset 4, but records up to 900 were processed"
    stops_with(SourceError, passing_on(ran), says)


def test_a_commit_while_it_runs(ran: Ground) -> None:
    """What a stranger writes to the offset log while the application runs is found by the next start at the latest."""
    app = passing_on(ran)
    with contextlib.suppress(LogError):  # found while it stops
        alongside(ran, app, lambda: put(ran, "offsets", commit(ran, (0, SPACE_END, 4, 5))))
    stops_with(LogError, passing_on(ran), "lies outside what was granted")
    assert numbers(ran) == [0, 1, 2, 3, 4, 5]


def test_a_worker_of_the_whole_space(ground: Ground) -> None:
    """One worker for all points: its commits are tiles of the full range, and they count."""
    fill(ground, *range(50))
    for _ in range(2):
        app = ground.app()

        @app.handler(ground.source, to=ground.late, parallelising_factor=1)
        async def publish(value: int) -> int:
            return value

        app.run(until="level")
    tiles = [tile for event in read_events(ground, "offsets") if isinstance(event, Committed) for tile in event.tiles]
    assert {(tile.first, tile.end) for tile in tiles} == {(0, SPACE_END)}
    assert numbers(ground) == list(range(50))


# --- events that are passed over by rule -----------------------------------------------------------------------------


def test_ranges_of_workers_that_are_impossible(ran: Ground) -> None:
    """What workers are called decides nothing: cuts, splits, merges and releases of no points are passed over."""
    place = (1, 98, 1, ran.source, 0)
    put(
        ran,
        "offsets",
        WorkersCut(*place, 50, (9, 3, 3, 12, SPACE_END + 9)),
        WorkersCut(*place, 60, ()),
        WorkerSplit(*place, 77, 0, 78),
        WorkerSplit(*place, 0, SPACE_END + 5, 80),
        WorkersMerged(*place, 70, 71, 72),
        range_released(*place, 5, 5),
        range_released(*place, 9, 3),
        range_released(*place, -4, SPACE_END + 4),
        LogOpened(ran.name, HASH_NAME, 0, 1, 1, 1),
        StateChanged(1, 98, "nowhere", 3, 5, ()),
    )
    goes_on(ran)


def test_a_release_of_the_full_range(ran: Ground) -> None:
    """A process that gave up everything: the next start takes it up where it was left."""
    put(ran, "offsets", range_released(1, 98, 1, ran.source, 0, 0, SPACE_END))
    goes_on(ran)


def test_a_control_log_twice(ran: Ground) -> None:
    """Every event of it once more, as a writer does that had no answer: nothing changes."""
    put(ran, "control", *read_events(ran, "control"))
    goes_on(ran)


def test_stale_control_events(ran: Ground) -> None:
    """Events of a term that is over are passed over, while the application runs and after."""
    app = passing_on(ran)
    stale: Sequence[Event] = (
        member_expelled(1, 2),
        member_fenced(1, 2),
        coordinator_elected(2, "late"),
        ranges_granted(1, 9, 3, ran.source, 0, (Band(0, SPACE_END, 0),)),
        partition_started(1, ran.source, 0, 4, "earliest", 1),
        source_identified(1, ran.source, "another"),
    )
    alongside(ran, app, lambda: put(ran, "control", *stale))
    assert numbers(ran) == [0, 1, 2, 3, 4, 5]
    fill(ran, 6)
    passing_on(ran).run(until="level")
    assert numbers(ran) == list(range(7))


def test_control_events_about_nobody(ran: Ground) -> None:
    """Of members that never joined, partitions and topics that are known otherwise: passed over."""
    put(
        ran,
        "control",
        member_expelled(1, 55),
        member_fenced(1, 56),
        partition_started(1, ran.source, 0, 2, "earliest", 1),
        partition_started(1, "nowhere", -7, 3, "earliest", 1),
        source_identified(1, ran.source, "another"),
        coordinator_elected(-5, "below"),
    )
    goes_on(ran)


@pytest.mark.parametrize(
    "bands",
    [
        (Band(7, 7, 0), Band(9, 3, 0), Band(SPACE_END - 5, 5, 0), Band(-1, 4, 0), Band(0, SPACE_END + 1, 0)),
        (),
        (Band(0, 3 << 30, 4), Band(1 << 30, SPACE_END, 4)),
        (Band(0, SPACE_END, 4),),
    ],
    ids=["impossible", "none", "overlapping", "full"],
)
def test_grants_with_odd_ranges(ran: Ground, bands: tuple[Band, ...]) -> None:
    """Bands of no points are passed over, each point of overlapping ones is granted once; the next start goes on."""
    put(ran, "control", member_joined(1, 2, "b", f"{ran.name}.b"), ranges_granted(1, 2, 2, ran.source, 0, bands))
    goes_on(ran)


# --- other processes -------------------------------------------------------------------------------------------------


def alongside(ground: Ground, app: App, work: Any) -> None:
    """Run the application as a service, do something meanwhile, then give it two records to process."""

    async def run() -> None:
        async with app:
            await asyncio.to_thread(work)
            await asyncio.to_thread(fill, ground, 4, 5)
            await reached(lambda: app.statistics().records_done >= 2)

    asyncio.run(run())


def expelled_as(ground: Ground, cause: str) -> None:
    """The process that is at work, as incarnation 2 in term 2, is out."""
    put(ground, "control", MemberExpelled(2, NO_NUMBER, 2, cause, 0))


@pytest.mark.parametrize(("cause", "exits"), [("superseded", False), ("silent", True)])
def test_an_application_that_is_idle_and_out_of_office(ran: Ground, cause: str, *, exits: bool) -> None:
    """Superseded, or told to exit when it is expelled: it stops within a second, without work to show it."""

    async def run() -> None:
        app, ended = passing_on(ran, exit_on_expulsion=exits), asyncio.Event()
        app.on_fatal = lambda error: ended.set()
        async with app:
            await asyncio.to_thread(expelled_as, ran, cause)
            async with asyncio.timeout(LIMIT_S):
                await ended.wait()

    with pytest.raises(FencedError, match=rf"was expelled \({cause}\): others have its ranges"):
        asyncio.run(run())
    goes_on(ran)


def test_an_idle_application_comes_back(ran: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """Expelled as silent, it joins again under another number and works on; nothing doubles."""
    app = passing_on(ran)
    alongside(ran, app, lambda: expelled_as(ran, "silent"))
    assert "was expelled (silent): others have its ranges; it joins again in 1 s" in caplog.text
    assert numbers(ran) == [0, 1, 2, 3, 4, 5]


def test_somebody_else_is_elected(ran: Ground) -> None:
    """It works on as a member; nothing is heard of the other one for a session, and it stands again."""
    app = passing_on(ran, **SHORT_SESSION)

    def is_coordinated_again() -> bool:
        elected = [event for event in read_events(ran, "control") if isinstance(event, CoordinatorElected)]
        return elected[-1].term == 4 and elected[-1].birth != "somebody-else"

    async def run() -> None:
        async with app, asyncio.timeout(LIMIT_S):
            await asyncio.to_thread(put, ran, "control", coordinator_elected(3, "somebody-else"))
            await asyncio.to_thread(fill, ran, 4, 5)
            await reached(lambda: app.statistics().records_done >= 2)
            while not await asyncio.to_thread(is_coordinated_again):  # noqa: ASYNC110  # what is waited for has no event
                await asyncio.sleep(0.1)

    asyncio.run(run())
    passing_on(ran).run(until="level")
    assert numbers(ran) == [0, 1, 2, 3, 4, 5]


# --- logs that are gone, or are not ours -----------------------------------------------------------------------------


def test_a_control_log_of_another_application(ground: Ground) -> None:
    """Refused at the start, with both names; nothing is written."""
    fill(ground, 0)
    ground.create(f"{ground.name}.control", retention_ms="-1")
    put(ground, "control", AppCreated("other", HASH_NAME, 1))
    says = f"{ground.name}.control holds the events of application 'other'; this is application '{ground.name}'"
    stops_with(LogError, passing_on(ground), says)
    assert len(read_events(ground, "control")) == 1


def test_logs_of_another_hash_function(ground: Ground) -> None:
    """Refused at the start: points would mean something else."""
    fill(ground, 0)
    ground.create(f"{ground.name}.control", retention_ms="-1")
    put(ground, "control", AppCreated(ground.name, "md5", 1))
    stops_with(
        LogError, passing_on(ground), f"was written with the hash function 'md5'; this version uses '{HASH_NAME}'"
    )


@ON_KAFKA_ALONE
def test_a_control_log_that_was_deleted(ran: Ground) -> None:
    """Refused at the start, again and again: an empty one is not taken for a new application's."""
    delete_topics(ran, f"{ran.name}.control")
    for _ in range(2):
        stops_with(LogError, passing_on(ran), f"{ran.name}.control is empty, but {ran.name}.offsets is not")


@ON_KAFKA_ALONE
def test_an_offset_log_that_was_deleted(ran: Ground) -> None:
    """Refused at the start, again and again: progress that is lost is not taken for none."""
    delete_topics(ran, f"{ran.name}.offsets")
    for _ in range(2):
        stops_with(LogError, passing_on(ran), f"{ran.name}.offsets[0] is empty although the application has run before")


def test_an_offset_log_of_another_application(ran: Ground) -> None:
    """Refused at the start, with its name."""
    put(ran, "offsets", LogOpened("other", HASH_NAME, 0, 1, 1, 1))
    stops_with(LogError, passing_on(ran), "holds the events of application 'other'")


def test_an_offset_log_that_lost_everything(ran: Ground) -> None:
    """Trimmed to its end it is never taken for that of a new application."""
    trim(ran, marks(ran, f"{ran.name}.offsets").high, f"{ran.name}.offsets")
    stops_with(LogError, passing_on(ran), "is empty although the application has run before")


@ON_KAFKA_ALONE
def test_both_logs_deleted(ran: Ground) -> None:
    """Without any log it is a new application: the source is processed from its start, and outputs are there twice."""
    delete_topics(ran, f"{ran.name}.offsets", f"{ran.name}.control")
    passing_on(ran).run(until="level")
    assert numbers(ran) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_control_log_without_its_head(ran: Ground) -> None:
    """Refused at the start, with the position."""
    trim(ran, 2, f"{ran.name}.control")
    stops_with(LogError, passing_on(ran), f"{ran.name}.control starts at position 2, so its history is lost")


def test_an_offset_log_without_its_head(ran: Ground) -> None:
    """Without a snapshot behind what is gone it is refused at the start."""
    trim(ran, 1, f"{ran.name}.offsets")
    stops_with(LogError, passing_on(ran), f"{ran.name}.offsets[0] starts at position 1 and holds no snapshot")


@ON_KAFKA_ALONE
def test_partitions_added_to_an_offset_log(ran: Ground) -> None:
    """Refused at the start, with both numbers."""

    async def grow(admin: AIOKafkaAdminClient) -> None:
        await admin.create_partitions({f"{ran.name}.offsets": NewPartitions(3)})

    administer(ran, grow)
    stops_with(LogError, passing_on(ran), f"{ran.name}.offsets was made with 1 partitions and has 3 now")


@pytest.mark.parametrize(
    ("config", "partitions", "says"),
    [
        ({"retention_ms": "1000"}, 1, "must have retention.ms=-1 (an idle log would empty itself); it has 1000"),
        ({"cleanup_policy": "compact"}, 1, "must have cleanup.policy=delete (compaction would eat history)"),
        ({"retention_ms": "-1"}, 2, "must have 1 partition; it has 2"),
    ],
    ids=["expires", "compacted", "partitions"],
)
def test_a_control_log_with_other_settings(ground: Ground, config: dict[str, str], partitions: int, says: str) -> None:
    """Refused at the start, with what it has and what it must have."""
    fill(ground, 0)
    ground.create(f"{ground.name}.control", partitions, **config)
    stops_with(SettingsError, passing_on(ground), f"{ground.name}.control {says}")


def test_a_handler_that_writes_to_our_logs(ground: Ground) -> None:
    """By ``to=`` refused at the start; by ``ctx.send`` its record is dead-lettered. The log stays as it is."""
    fill(ground, 0)
    app = ground.app()

    @app.handler(ground.source, to=f"{ground.name}.control")
    async def publish(value: int) -> int:
        return value

    stops_with(SettingsError, app, f"topic '{ground.name}.control' is a log of application '{ground.name}'")
    app = sending(ground, f"{ground.name}.offsets")
    app.run(until="level")
    (letter,) = ground.read(ground.dead)
    assert b"is a log of this application" in (dict(letter.headers)["kl-error"] or b"")
    assert read_events(ground, "offsets")


def sending(ground: Ground, topic: str) -> App:
    """Sends everything to a topic that its declaration does not name."""
    app = ground.app()

    @app.handler(ground.source, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
    async def send(value: int, ctx: Context) -> None:
        ctx.send(topic, value)

    return app
