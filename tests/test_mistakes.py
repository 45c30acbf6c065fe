"""docs/mistakes.md against the code: each mistake is made here, and says what the page says."""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from keylanes import (
    App,
    DeadLetter,
    KeylanesError,
    MsgpackCodec,
    Retry,
    Security,
    Settings,
)
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.partitioner import partition_of_key
from keylanes.brokers.protocol import Outgoing, TopicSpec
from keylanes.brokers.simulated.broker import SimulatedBroker

from .stage import mistaken
from .stage.appending import append
from .stage.limited import settings_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "mistakes.md").read_text(encoding="utf-8")
SAID_LIMIT_S = 10.0
MISTAKES_MIN = 40


class Stage(NamedTuple):
    """What a mistake may be made with."""

    folder: Path
    logged: pytest.LogCaptureFixture


class Parts(NamedTuple):
    """What has to stand in a message: what is wrong, the value seen, what is allowed, what to do."""

    what: str
    seen: str
    allowed: str
    to_do: str


class Mistake(NamedTuple):
    """``make`` raises an error, or answers with what was said of it otherwise."""

    make: Callable[[Stage], str | None]
    parts: Parts | None = None


# --- ways to make one ------------------------------------------------------------------------------------------------


async def plain(value: bytes) -> None:
    """A handler that is all right."""


def app(**options: Any) -> App:
    """One that opens nothing."""
    return App("shop", **{"broker": "embedded:./never-opened", **options})


def declared(function: Callable[..., Any] = plain, **options: Any) -> Callable[[Stage], None]:
    """A handler of ``orders`` is declared."""
    return made(lambda: app().handler("orders", **options)(function))


def environment(**variables: str) -> Callable[[Stage], str]:
    """Settings are read from it; what was logged."""

    def make(stage: Stage) -> str:
        Settings.from_env(variables)
        return str(stage.logged.records[-1].getMessage())

    return make


def made(what: Callable[[], object]) -> Callable[[Stage], None]:
    """Something is made."""

    def make(stage: Stage) -> None:
        what()

    return make


def failed(function: Callable[..., Any], key: str | None = "k") -> Callable[[Stage], str]:
    """The handler gets a record; the cause in its dead letter."""

    async def run() -> str:
        made = app()
        made.handler("orders", to="out", on_failure=DeadLetter("dead"), retry=Retry(attempts=1))(function)
        async with made.test() as broker:
            await broker.send("orders", b"1", key=key)
            (letter,) = await broker.records("dead")
            return (dict(letter.headers)["kl-error"] or b"").decode()

    return lambda stage: asyncio.run(run())


def stopped(function: Callable[..., Any]) -> Callable[[Stage], None]:
    """The handler gets a record, which stops the application."""

    async def run() -> None:
        made = app()
        made.handler("orders", to="out")(function)
        async with made.test() as broker:
            await broker.send("orders", b"1", key="k")
            await broker.read("out")

    return lambda stage: asyncio.run(run())


def with_handler() -> App:
    """One with a handler."""
    made = app()
    made.handler("orders")(plain)
    return made


def under_test(function: Callable[..., Any]) -> Callable[[Stage], None]:
    """The handler gets a record under ``app.test()``, and the test reads."""

    async def run() -> None:
        made = app()
        made.handler("orders", on_failure=DeadLetter("dead"))(function)
        async with made.test() as broker:
            await broker.send("orders", b"1", key="k")
            await broker.read("dead")

    return lambda stage: asyncio.run(run())


def warned(function: Callable[..., Any]) -> Callable[[Stage], str]:
    """The handler gets records under ``app.test()``; what is logged of it."""

    async def run() -> None:
        made = app(settings=settings_of(loop_lag_ms=100))
        made.handler("orders")(function)
        async with made.test() as broker:
            for _ in range(2):
                await broker.send("orders", b"1", key="k")
            await broker.read("orders")

    def make(stage: Stage) -> str:
        asyncio.run(run())
        (said,) = [text.getMessage() for text in stage.logged.records if text.levelname != "INFO"]
        return said

    return make


def misspelt(stage: Stage) -> None:
    """A test reads a topic that nobody writes."""

    async def run() -> None:
        async with with_handler().test() as broker:
            await broker.read("order")

    asyncio.run(run())


def run(made: Callable[[Stage], App]) -> Callable[[Stage], None]:
    """The application is run to its end; what ended it."""

    def make(stage: Stage) -> None:
        application = made(stage)
        application.handler("orders")(plain)
        ended(application)

    return make


def ended(application: App) -> None:
    """Raises what ended it."""
    with pytest.raises(SystemExit) as end:
        application.run(until="level")
    raise end.value.__cause__ or AssertionError("it gives its cause")


def filled(stage: Stage, partitions: int = 1, keys: Mapping[bytes, int] = {b"k": 0}) -> str:
    """The address of a folder with a record of ``orders`` for each key, in the partition of each, and another topic."""
    address = f"embedded:{stage.folder / 'data'}"

    async def fill() -> None:
        broker = EmbeddedBroker(address.removeprefix("embedded:"))
        await broker.open()
        await broker.create([TopicSpec("orders", partitions, {}), TopicSpec("unique", 1, {})])
        await append(broker, [Outgoing("orders", place, key, b"1") for key, place in keys.items()])
        await broker.close()

    asyncio.run(fill())
    return address


def added_partitions(stage: Stage) -> None:
    """A topic had two partitions, and has four when its state begins."""
    keys = {b"customer %d" % n: partition_of_key(b"customer %d" % n, 2) for n in range(100)}
    made = app(broker=filled(stage, 4, keys))
    made.handler("orders")(mistaken.counts)
    ended(made)


def started_anew(stage: Stage) -> None:
    """A new name on a topic of its own that holds what the old application wrote."""
    address = filled(stage)
    for name in ("shop-1", "shop"):
        made = App(name, broker=address)
        made.handler("orders", to="unique")(mistaken.passes_on)
        made.handler("unique")(plain)
        if name == "shop-1":
            made.run(until="level")
    ended(made)


def without_call(stage: Stage) -> None:
    """The decorator gets the function in place of a topic."""
    app().handler(plain)  # type: ignore[arg-type]  # as users may write it


def declared_twice(stage: Stage) -> None:
    """Two handlers of one topic."""
    made = app()
    made.handler("orders")(plain)
    made.handler("orders")(mistaken.counts)


def without_folder(stage: Stage) -> None:
    """State on a broker that keeps none."""
    cluster = SimulatedBroker(0)
    cluster.create_topic("orders", 1)
    made = app(broker=cluster.connect("shop"))
    made.handler("orders")(mistaken.counts)

    async def enter() -> None:
        async with made:
            pass

    asyncio.run(enter())


def blocked(stage: Stage) -> str:
    """An async handler keeps the loop; what is logged of it."""
    made = app(broker=filled(stage), settings=settings_of(loop_lag_ms=100))
    said: list[str] = []

    @made.handler("orders")
    async def block(value: bytes) -> None:
        until = time.monotonic() + SAID_LIMIT_S
        while not said and time.monotonic() < until:
            said.extend(text for text in stage.logged.messages if "the async handler" in text)

    made.run(until="level")
    return said[0]


# --- all of them -----------------------------------------------------------------------------------------------------

SASL = {"security_protocol": "SASL_SSL", "sasl_plain_username": "ali", "sasl_plain_password": "sesame"}
WRONG_SETTINGS: Any = Settings
SHORT = Settings(request_timeout_ms=100, default_api_timeout_ms=100, start_timeout_ms=500)
MISTAKES: dict[str, Mistake] = {
    'broker="localhost:9092"': Mistake(made(lambda: app(broker="localhost:9092"))),
    'broker="kafka://localhost"': Mistake(
        made(lambda: app(broker="kafka://localhost")),
        Parts("has no port", "seen 'localhost'", "kafka://host:port", "add the one that it listens on"),
    ),
    'broker="kafka://localhost:abc"': Mistake(
        made(lambda: app(broker="kafka://localhost:abc")),
        Parts("the broker's address is", "seen 'abc'", "a number from 1 to 65535", "correct the port"),
    ),
    'broker="kafka://10.1.2.3:9092"': Mistake(
        made(lambda: app(broker="kafka://10.1.2.3:9092")),
        Parts(
            "not encrypted", "to '10.1.2.3'", "this machine only", "Settings(security=Security(allow_plaintext=True))"
        ),
    ),
    'broker="kafka://me:secret@host:9092"': Mistake(
        made(lambda: app(broker="kafka://me:secret@host:9092")),
        Parts("the broker's address is", "seen '***@host:9092'", "without a user and a password", "leave out what"),
    ),
    "no broker": Mistake(
        run(lambda stage: app(broker=None)),
        Parts("has no broker", "seen broker=None", "kafka://host:port", "give App(broker=…), or set KEYLANES_BROKER"),
    ),
    "the broker is away": Mistake(run(lambda stage: app(broker="kafka://127.0.0.1:1", settings=SHORT))),
    "the source topic is missing": Mistake(
        run(lambda stage: app(broker=f"embedded:{stage.folder / 'data'}")),
        Parts("does not exist", "'orders'", "sources are not created", "topics MODULE:APP --partitions N --create"),
    ),
    "no handler": Mistake(
        made(lambda: app().test()), Parts("has no handler", "seen none", "one or more", "declare a function")
    ),
    "Settings(commit_interval=100)": Mistake(
        made(lambda: WRONG_SETTINGS(commit_interval=100)),
        Parts("has no field", "'commit_interval'", "listed in docs/settings.md", "did you mean commit_interval_ms?"),
    ),
    "Settings(buffer_bytes_max=1)": Mistake(
        made(lambda: WRONG_SETTINGS(buffer_bytes_max=1)),
        Parts("is no setting any more", "Settings.buffer_bytes_max", "memory_bytes_max", "leave it out"),
    ),
    "Settings(threads=0)": Mistake(
        made(lambda: Settings(threads=0)), Parts("Settings.threads", "seen 0", "from 1 to 1024", "leave it out")
    ),
    'Settings(endpoint="http://me:secret@host:80")': Mistake(
        made(lambda: Settings(endpoint="http://me:secret@host:80")),
        Parts("endpoint", "seen one with @", "no user and no password", "leave out what stands before"),
    ),
    'Settings(endpoint="host a:80")': Mistake(
        made(lambda: Settings(endpoint="host a:80")),
        Parts("endpoint", "seen 'host a:80'", "at most 512 characters", "or leave it out"),
    ),
    "KEYLANES_THREADS=many": Mistake(
        environment(KEYLANES_THREADS="many"),
        Parts("KEYLANES_THREADS", "seen 'many'", "a whole number from 1 to 1024", "or correct it"),
    ),
    "KEYLANES_SPLIT_HOT_RANGES=maybe": Mistake(
        environment(KEYLANES_SPLIT_HOT_RANGES="maybe"),
        Parts(
            "KEYLANES_SPLIT_HOT_RANGES", "seen 'maybe'", "true or false (in text also true, yes, on", "or correct it"
        ),
    ),
    "KEYLANES_COMIT_INTERVAL_MS=250": Mistake(
        environment(KEYLANES_COMIT_INTERVAL_MS="250"),
        Parts("name no setting", "COMIT", "docs/settings.md lists", "did you mean KEYLANES_COMMIT_INTERVAL_MS?"),
    ),
    "a service of Kubernetes is named keylanes-orders": Mistake(
        environment(KEYLANES_ORDERS_SERVICE_HOST="10.0.0.1"),
        Parts(
            "name no setting", "seen KEYLANES_ORDERS_SERVICE_HOST", "lists the settings", "enableServiceLinks: false"
        ),
    ),
    'Security(ssl_cafile="/nowhere/ca.pem")': Mistake(
        made(lambda: Security(security_protocol="SSL", ssl_cafile="/nowhere/ca.pem")),
        Parts(
            "ssl_cafile", "'/nowhere/ca.pem': No such file", "a file in PEM that can be read", "name one that is there"
        ),
    ),
    'sasl_mechanism="SCRAM-512"': Mistake(
        made(lambda: Security(**{**SASL, "sasl_mechanism": "SCRAM-512"})),  # type: ignore[arg-type]  # all are text
        Parts("sasl_mechanism is", "seen 'SCRAM-512'", "PLAIN, SCRAM-SHA-256", "did you mean SCRAM-SHA-512?"),
    ),
    'sasl_mechanism="OAUTHBEARER"': Mistake(
        made(lambda: Security(**{**SASL, "sasl_mechanism": "OAUTHBEARER"})),  # type: ignore[arg-type]  # all are text
        Parts("needs a provider of tokens", "seen sasl_oauth", "an async function without arguments", "give Security("),
    ),
    'sasl_mechanism="GSSAPI" without its package': Mistake(
        made(lambda: Security(**{**SASL, "sasl_mechanism": "GSSAPI"})),  # type: ignore[arg-type]  # all are text
        Parts("which is not installed", "'GSSAPI'", "needs the package gssapi", "pip install gssapi, or use PLAIN"),
    ),
    'security_protocol="SASL_SSL", no user': Mistake(
        made(lambda: Security(security_protocol="SASL_SSL")),
        Parts("needs a user", "seen no sasl_plain_username", "with sasl_mechanism PLAIN", "give Security("),
    ),
    "@app.handler without parentheses": Mistake(
        without_call,
        Parts("in place of a topic", "seen 'plain'", "the topic whose records", 'write @app.handler("orders")'),
    ),
    "two handlers of one topic": Mistake(
        declared_twice, Parts("has the handler plain", "seen also counts", "one handler", "call both from one")
    ),
    'on_failure="orders.dead"': Mistake(
        declared(on_failure="orders.dead"),
        Parts("on_failure is", "seen 'orders.dead'", "DeadLetter or", 'write on_failure=DeadLetter("orders.dead")'),
    ),
    "retry=5": Mistake(
        declared(retry=5), Parts("retry is", "seen 5", "a keylanes.Retry or None", "write retry=Retry(attempts=5)")
    ),
    'parallelising_factor="8"': Mistake(
        declared(parallelising_factor="8"),
        Parts("parallelising_factor is", "seen '8'", "a whole number from 1 to 16384", "write parallelising_factor=8"),
    ),
    'codec="avro"': Mistake(
        declared(codec="avro"),
        Parts("codec is", "seen 'avro'", "an object with decoder() and encode()", "write codec=MyCodec()"),
    ),
    "codec=MsgpackCodec": Mistake(
        declared(codec=MsgpackCodec), Parts("codec is", "seen <class", "an object", "write codec=MsgpackCodec()")
    ),
    "value: Order, a class that is no data": Mistake(
        declared(mistaken.takes_order),
        Parts("values can't be decoded", "<class", "a codec of ours takes bytes", "use one of these, or a codec"),
    ),
    "value: Model, of pydantic": Mistake(
        declared(mistaken.takes_model),
        Parts("is no type of data", "Model", "a codec of ours takes", "a model of pydantic needs a codec of its own"),
    ),
    "orders: list[bytes], for a batch": Mistake(
        declared(mistaken.takes_batch),
        Parts("one record at a time", "seen list[bytes]", "may mean two things", "write bytes, for one record"),
    ),
    "-> Model, of pydantic": Mistake(declared(mistaken.returns_model, to="out")),
    "def f(value: bytes, v: int)": Mistake(declared(mistaken.takes_two)),
    "def on_order(self, value)": Mistake(
        declared(mistaken.Service.on_order),
        Parts(
            "a method without its object", "seen self", "a handler takes (value)", "app.handler(…)(service.on_order)"
        ),
    ),
    'sends="audit"': Mistake(declared(sends="audit"), Parts("sends is", "seen 'audit'", "a tuple", "write sends=")),
    "a generator": Mistake(declared(mistaken.yields)),
    "-> str without to=": Mistake(declared(mistaken.returns_text)),
    "dead letters to the source": Mistake(declared(on_failure=DeadLetter("orders"))),
    "seen: State": Mistake(declared(mistaken.bare_state)),
    "seen: State[int | None]": Mistake(declared(mistaken.optional_state)),
    "seen: MapState[tuple[int, int], int]": Mistake(declared(mistaken.map_of_tuples)),
    "state on Kafka without a folder": Mistake(without_folder),
    "partitions were added before state began": Mistake(
        added_partitions,
        Parts("had 2", "of 100 keys", "State is kept by partition and key", 'App(accept_moved_keys=("orders",))'),
    ),
    "a new name on a topic that the old application wrote": Mistake(
        started_anew,
        Parts("would be done twice", "unique is written", "another name", 'App(accept_outputs_of_others=("unique",))'),
    ),
    "state for a record without a key": Mistake(failed(mistaken.counts, key=None)),
    'seen.put("x") of a State[int]': Mistake(failed(mistaken.puts_text)),
    "seen.put(None)": Mistake(failed(mistaken.puts_none)),
    "return fetch(…) without await": Mistake(
        failed(mistaken.forgets_to_await),
        Parts("not awaited", "seen fetch(…)", "a value is what it returns", "await it, as in return await fetch(…)"),
    ),
    "a lambda, or a decorator without functools.wraps, around an async def": Mistake(
        stopped(mistaken.calls_async),
        Parts("nothing shows that it is async", "returned a coroutine", "declare the async def", "put functools.wraps"),
    ),
    'return float("nan")': Mistake(failed(mistaken.returns_nan)),
    'return "other", value': Mistake(
        failed(mistaken.returns_pair),
        Parts(
            "sent as one array", "returned a tuple", "a value, a Record, and a list", "return Record(value, topic=…)"
        ),
    ),
    "return {1, 2}": Mistake(
        failed(mistaken.returns_set),
        Parts("sent as one array", "returned a set", "allowed are a value", "annotate it with -> set[…]"),
    ),
    "Record(value, key=5)": Mistake(failed(mistaken.number_as_key)),
    'Record(value, headers=[("trace", "text")])': Mistake(failed(mistaken.text_in_header)),
    "Record(value, timestamp=datetime(…))": Mistake(failed(mistaken.datetime_as_timestamp)),
    "an async handler that computes or blocks": Mistake(blocked),
    "an async handler that connects, under app.test()": Mistake(
        under_test(mistaken.connects),
        Parts("waits for a connection", "'127.0.0.1', 1", "allowed are timers", "give the handler a fake client"),
    ),
    'app.test(partitions="8")': Mistake(
        made(lambda: with_handler().test(partitions="8")),  # type: ignore[arg-type]  # as users may write it
        Parts("the partitions", "seen '8'", "a whole number from 1 to 1000", "write partitions=8"),
    ),
    "an async handler that computes or blocks, under app.test()": Mistake(warned(mistaken.sleeps)),
    "seen.get().append(1), and no put": Mistake(warned(mistaken.changes_in_place)),
    'broker.read("order"), and the topic is orders': Mistake(
        misspelt, Parts("the topics of a test are", "seen 'order'", "declare, orders", "correct the name, or")
    ),
}


def message_of(name: str, stage: Stage) -> str:
    """What is said of a mistake."""
    try:
        said = MISTAKES[name].make(stage)
    except (KeylanesError, ValueError) as error:
        said = str(error)
    assert said, f"nothing is said of {name}"
    return said


def tabled() -> dict[str, str]:
    """The mistakes on the page, with what it says that they say."""
    cells = re.findall(r"^\| `(.+?)` \| `(.+)` \|$", PAGE.replace("\\|", "¦"), re.MULTILINE)
    return {mistake.replace("¦", "|"): message.replace("¦", "|") for mistake, message in cells}


def is_quoted(message: str, quote: str) -> bool:
    """Whether a message is what the page quotes; … stands for anything."""
    return re.fullmatch(re.escape(quote).replace("…", ".*"), message, re.DOTALL) is not None


def test_the_page_lists_all_of_them() -> None:
    """In the order of this file, each once."""
    assert list(tabled()) == list(MISTAKES)
    assert len(MISTAKES) >= MISTAKES_MIN


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_says_what_the_page_says(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word for word; and where it was once hard to understand: what is wrong, what was seen, what is allowed and what
    to do.
    """
    monkeypatch.delenv("KEYLANES_BROKER", raising=False)
    monkeypatch.chdir(tmp_path)
    message = message_of(name, Stage(tmp_path, caplog))
    assert is_quoted(message, tabled()[name]), message
    for part, text in zip(Parts._fields, MISTAKES[name].parts or (), strict=False):
        assert text in message, f"{part}: {message}"


def test_another_message_is_noticed() -> None:
    """A page that says something else is wrong, whatever its dots leave open."""
    assert is_quoted("seen 5: write it", "seen …: write it")
    assert not is_quoted("seen 5: write it", "seen …: wrote it")
    assert not is_quoted("seen 5: write it, or not", "seen …: write it")


def test_the_codec_of_the_page_reads_models() -> None:
    """The recipe for models of pydantic runs as it is printed."""
    (recipe,) = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(recipe, scope)  # noqa: S102  # what people copy
    codec = scope["PydanticCodec"]()

    class Model(msgspec.Struct):
        """With the methods of a model that the recipe uses."""

        n: int

        @classmethod
        def model_validate_json(cls, data: bytes) -> "Model":
            """As there."""
            return msgspec.json.decode(data, type=cls)

        def model_dump_json(self) -> str:
            """As there."""
            return msgspec.json.encode(self).decode()

    assert codec.decoder(Model)(codec.encode(Model(5))) == Model(5)
    with contextlib.suppress(ImportError):
        import pydantic

        real = pydantic.create_model("Real", n=(int, ...))
        assert codec.decoder(real)(codec.encode(real(n=5))) == real(n=5)
