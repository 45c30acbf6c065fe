"""Topics that handlers declare by ``sends=``, and those that nobody declares."""

import asyncio
import logging
from typing import Any

import pytest

from keylanes import App, Context, DeadLetter, MsgpackCodec, OutputRefused, Record, Retry, SettingsError, Stop
from keylanes.brokers.rights import Right
from keylanes.brokers.simulated.broker import Latency
from keylanes.errors import HandlerFailed
from keylanes.runtime.engine.destinations import ASK_AGAIN_MS, MISSING_MS, Destinations
from keylanes.runtime.handlers.handler import codec_of_topic
from keylanes.runtime.logs.rights import rights_needed
from keylanes.runtime.membership.offer import SOMEWHERE, offer_of
from keylanes.runtime.settings import Settings

from ..stage.cluster import Cluster
from ..stage.engine import DEAD, OUT, SOURCE, Engine, application
from ..stage.passing import Passing
from ..stage.virtual import virtual


def shop(topic: str = "audit", on_failure: DeadLetter | Stop | None = None, **declared: Any) -> App:
    """Sends each order to a topic."""
    app = App("shop", broker="embedded:never-opened")

    @app.handler("orders", retry=Retry(attempts=1), on_failure=on_failure, **declared)
    async def look(value: int, ctx: Context) -> None:
        ctx.send(topic, value, key=ctx.key)

    return app


@pytest.mark.parametrize(
    ("sends", "says"),
    [
        ("audit", r'sends is a tuple of topics; seen \'audit\': write sends=\("audit",\)'),
        (5, "sends is a tuple of topics; seen 5"),
        (("audit", "no topic!"), "sends: a topic name has .*; seen 'no topic!'"),
        ((None,), "sends: a topic name has .*; seen None"),
        ([["audit"]], "sends: a topic name has"),
    ],
)
def test_what_sends_may_be(sends: Any, says: str) -> None:
    """Names of topics, in a tuple or a list: a text would be its letters."""
    with pytest.raises(SettingsError, match=f"handler look of topic 'orders': {says}"):
        shop(sends=sends)


def test_what_is_sent_to_is_an_output_wherever_outputs_are_looked_at() -> None:
    """In what a member says of itself and in the rights of the application; its codec is that of the handler."""
    app = shop(sends=("audit", "bills"), codec=MsgpackCodec())
    handlers = list(app.handlers.values())
    assert offer_of(handlers, [], SOMEWHERE, Settings(), until_level=False).writes == ("audit", "bills")
    for topic in ("audit", "bills"):
        assert {Right("topic", topic, "WRITE"), Right("topic", topic, "CREATE")} <= {
            *rights_needed("shop", handlers, creates=True)
        }
        assert type(codec_of_topic(topic, app.handlers)) is MsgpackCodec


async def test_what_is_declared_is_there_at_the_start() -> None:
    """With the partitions of the source; in a test with those that are asked for."""
    async with shop(sends=("audit",)).test(partitions={"audit": 5}) as broker:
        await broker.send("orders", 1, key="k")
        assert await broker.read("audit", int) == [1]


@virtual
async def test_each_topic_that_is_made_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each, at the start that makes it."""
    caplog.set_level(logging.INFO, "keylanes")
    app = application()
    app.handler(SOURCE, to="bills", sends=("audit", OUT), on_failure=DeadLetter("letters"))(lambda value: None)
    engine = Engine(app, partitions=3)

    def made() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if "created topic" in record.getMessage()]
        caplog.clear()
        return sorted(lines)

    await engine.start()
    await engine.stop()
    assert made() == [
        "app: created topic app.control with 1 partition",
        "app: created topic app.offsets with 3 partitions",
        "app: created topic app.signals with 5 partitions",
        "app: created topic audit with 3 partitions",
        "app: created topic bills with 3 partitions",
        "app: created topic letters with 3 partitions",
    ]
    await engine.start()
    await engine.stop()
    assert made() == []


# --- what nobody declares --------------------------------------------------------------------------------------------


def passing_on(topic: str, **declared: Any) -> Engine:
    """A process that sends and returns to a topic that it does not declare, on brokers that make topics on demand. It
    may be annotated to return something, for it declares another one.
    """
    app = application()

    @app.handler(SOURCE, sends=(OUT,), retry=Retry(attempts=1), **declared)
    async def pass_on(value: int, ctx: Context) -> Record | None:
        if value % 2:
            return Record(value, topic=topic)
        ctx.send(topic, value)
        return None

    engine = Engine(app, cluster=Cluster(0, Latency(), auto_create=True))
    for value in range(100):
        engine.send(b"k%d" % value, b"%d" % value)
    return engine


@virtual
async def test_a_record_fails_whose_output_has_no_topic() -> None:
    """After some seconds of asking, all that wait for it together, and nobody makes it; others are not held up."""
    loop = asyncio.get_running_loop()
    engine = passing_on("audti", on_failure=DeadLetter(DEAD))
    began_s = loop.time()
    await engine.start()
    await engine.level()
    assert MISSING_MS / 1000 <= loop.time() - began_s < 4 * MISSING_MS / 1000, "some keys share a worker"
    assert "audti" not in engine.cluster.topics()
    errors = [dict(letter.headers)["kl-error"] for letter in engine.cluster.committed_records(DEAD)]
    said = (
        b"OutputRefused: topic 'audti' does not exist; a handler makes no topic while it runs: declare it, as by "
        b"sends=('audti',), create it, or correct the name"
    )
    assert errors == [said] * 100


@virtual
async def test_the_application_stops_where_there_are_no_dead_letters() -> None:
    """As for any record that fails for good."""
    engine = passing_on("audti")
    await engine.start()
    await engine.fails(HandlerFailed, "OutputRefused: topic 'audti' does not exist")


@virtual
async def test_a_topic_that_is_made_in_time_is_written_to() -> None:
    """A broker may hear of it later than others."""
    engine = passing_on("late")
    await engine.start()
    await asyncio.sleep(MISSING_MS / 1000 - 1)
    engine.cluster.create_topic("late", 3)
    await engine.level()
    assert sorted(int(record.value or b"") for record in engine.cluster.committed_records("late")) == [*range(100)]


class Counting(Passing):
    """A connection that counts how often topics were asked for."""

    asked = 0

    async def describe(self, topics: Any) -> Any:
        """See the protocol."""
        self.asked += 1
        return await self.real.describe(topics)


@virtual
async def test_one_record_asks_for_all() -> None:
    """However many wait for a topic; and the next one asks anew."""
    broker: Any = Counting(Cluster(0, Latency()).connect("x"))
    destinations = Destinations(broker, Settings())
    for rounds in (1, 2):
        looked = [destinations.look_up("audti") for _ in range(100)]
        refused = await asyncio.gather(*looked, return_exceptions=True)
        assert all(isinstance(error, OutputRefused) for error in refused)
        assert broker.asked == rounds * (MISSING_MS // ASK_AGAIN_MS + 1)


async def test_send_raises_to_its_caller() -> None:
    """The application goes on, in a test as elsewhere."""
    app = shop(sends=("audit",))
    async with app.test() as broker:
        with pytest.raises(OutputRefused, match="topic 'audti' does not exist, and nothing was sent"):
            await app.send("audti", 1)
        await app.send("orders", 1)
        assert await broker.read("audit", int) == [1]


async def test_a_handler_under_test_does_as_elsewhere() -> None:
    """The test says what stopped it."""
    async with shop("audti").test() as broker:
        await broker.send("orders", 1)
        with pytest.raises(HandlerFailed, match="topic 'audti' does not exist"):
            await broker.read("orders")
