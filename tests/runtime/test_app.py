"""What users declare: handlers, retries, settings, names; wrong ones are refused in words when they are declared.

How handlers run is in test_handlers_running.py.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest

from keylanes import (
    App,
    Context,
    DeadLetter,
    MsgpackCodec,
    Record,
    Retry,
    Secret,
    Security,
    Settings,
    SettingsError,
    State,
    Stop,
    Store,
)
from keylanes.brokers.partitioner import partition_of_key, partition_without_key
from keylanes.brokers.protocol import Outgoing, TopicDescription
from keylanes.brokers.simulated.broker import SimulatedRecord
from keylanes.errors import OutputRefused
from keylanes.runtime.handlers.context import Output
from keylanes.runtime.handlers.handler import Handler, declare
from keylanes.runtime.handlers.outputs import (
    build,
    build_dead_letter,
    build_one,
    destination_of,
    outputs_returned,
    place_of,
)


async def plain(value: bytes) -> None:
    """A handler that is all right."""


def app_of(name: str = "app", broker: str = "embedded:./never-opened") -> App:
    """Nothing is opened by declaring."""
    return App(name, broker=broker)


# --- handlers ------------------------------------------------------------------------------------------------------


class Callee:
    """An object that is called."""

    async def __call__(self, value: str, ctx: Context) -> None:
        """As a handler."""


def sync(value: bytes, ctx: Context, extra: int = 5) -> None:
    """A sync handler with a default of its own."""


class Service:
    """Its handler is a method."""

    def on_order(self, value: bytes) -> None:
        """Of an object."""


async def bound(factor: int, value: bytes, ctx: Context) -> None:
    """Its first argument is given before."""


def unannotated(value, ctx):  # type: ignore[no-untyped-def]  # as users may write it
    """Gets bytes and the context."""


@pytest.mark.parametrize(
    ("function", "is_async", "takes_context"),
    [
        (plain, True, False),
        (sync, False, True),
        (Callee(), True, True),
        (unannotated, False, True),
        (Service().on_order, False, False),
        (partial(bound, 3), True, True),
    ],
    ids=["async", "sync", "object", "unannotated", "method", "partial"],
)
def test_handlers_may_be_written_in_many_ways(
    function: Callable[..., Any], is_async: bool, takes_context: bool
) -> None:
    """Async or sync, with or without the context, functions, objects or methods; of a partial function what is left."""
    handler = declare(function, "t")
    assert (handler.is_async, handler.takes_context) == (is_async, takes_context)
    assert isinstance(handler.on_failure, Stop)
    assert handler.retry == Retry()


def returns_text(value: bytes) -> str:
    """Needs a place to send to."""
    return ""


def no_argument() -> None:
    """Takes nothing."""


def three(value: bytes, ctx: Context, more: int) -> None:
    """Takes too much."""


def keyword_only(value: bytes, *, ctx: Context) -> None:
    """Is called by position."""


def other_second(value: bytes, ctx: int) -> None:
    """The second is always the context."""


def lost_annotation(value: "NoSuchName") -> None:  # type: ignore[name-defined]  # noqa: F821  # that is the point
    """Its annotation names nothing."""


def impossible(value: Callable[[], None]) -> None:
    """No value can be decoded as this."""


class Inner(msgspec.Struct):
    """Holds what is no data, deep inside, and itself."""

    more: list["Inner"]
    what: dict[str, set[complex]] | None = None


def impossible_inside(value: Inner) -> None:
    """No value can be decoded as this, either."""


def generator(value: bytes) -> Iterator[bytes]:
    """A handler returns."""
    yield b""


async def async_generator(value: bytes) -> AsyncIterator[bytes]:
    """A handler returns."""
    yield b""


def own_codec(value: bytes, seen: Annotated[State[int], Store(codec="avro")]) -> None:
    """Its codec is a name."""


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (returns_text, {}, "there is no to="),
        (no_argument, {}, "seen 0 arguments"),
        (three, {}, "seen more: <class 'int'>"),
        (keyword_only, {}, "takes \\(value\\), then"),
        (other_second, {}, "seen ctx: <class 'int'>"),
        (lost_annotation, {}, "annotations can't be read"),
        (impossible, {}, "can't be decoded as"),
        (impossible_inside, {}, "complex.* is no type of data"),
        (generator, {}, "a generator is not allowed"),
        (async_generator, {}, "a generator is not allowed"),
        (plain, {"parallelising_factor": 0}, "1 to 16384; seen 0"),
        (plain, {"parallelising_factor": 16_385}, "seen 16385"),
        (plain, {"to": "no spaces"}, "seen 'no spaces'"),
        (plain, {"to": ""}, "seen ''"),
        (plain, {"on_failure": DeadLetter("naïve")}, "DeadLetter.topic"),
        (plain, {"on_failure": "t.dead"}, r"seen 't.dead': write on_failure=DeadLetter\(\"t.dead\"\)"),
        (plain, {"on_failure": Stop}, r"on_failure=Stop\(\) to stop"),
        (plain, {"retry": 5}, r"seen 5: write retry=Retry\(attempts=5\)"),
        (plain, {"parallelising_factor": "8"}, "seen '8': write parallelising_factor=8"),
        (plain, {"parallelising_factor": True}, "seen True: write parallelising_factor=256"),
        (plain, {"codec": "avro"}, r"JsonCodec\(\), MsgpackCodec\(\) or one of your own; seen 'avro'"),
        (plain, {"codec": "json"}, r"write codec=JsonCodec\(\)"),
        (plain, {"codec": MsgpackCodec}, r"write codec=MsgpackCodec\(\)"),
        (own_codec, {}, r"store 'seen': codec is an object .* seen 'avro': write codec=MyCodec\(\)"),
        (Service.on_order, {}, r"seen self: .* app.handler\(…\)\(service.on_order\)"),
    ],
)
def test_a_wrong_handler_is_refused_when_it_is_declared(
    function: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    """The error names the handler, what is wrong and what was seen."""
    with pytest.raises(SettingsError, match=says) as refused:
        app_of().handler("t", **options)(function)
    assert function.__name__ in str(refused.value)


def test_a_handler_without_parentheses_is_refused_at_once() -> None:
    """It would be a declaration of nothing."""
    app = app_of()
    with pytest.raises(SettingsError, match=r"seen 'plain' in place of a topic: write @app.handler\(\"orders\"\)"):
        app.handler(plain)  # type: ignore[arg-type]  # as users may write it
    assert app.handlers == {}


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "x" * 250])
def test_topics_have_names_that_kafka_allows(topic: str) -> None:
    """Others are refused before anything is asked of a broker."""
    with pytest.raises(SettingsError, match="a topic name has"):
        app_of().handler(topic)(plain)


def test_a_topic_has_one_handler() -> None:
    """The second one is refused, naming the first."""
    app = app_of()
    app.handler("t")(plain)
    with pytest.raises(SettingsError, match="has the handler plain"):
        app.handler("t")(sync)


@pytest.mark.parametrize("broker", ["", "localhost:9092", "kafka://", "embedded:", "http://x"])
def test_a_broker_is_named_in_full(broker: str) -> None:
    """A wrong address is told when the application is made."""
    with pytest.raises(SettingsError, match="the broker's address is kafka://"):
        app_of(broker=broker)


def test_the_broker_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given goes before it, and what it says is checked at once."""
    monkeypatch.setenv("KEYLANES_BROKER", "embedded:./elsewhere")
    assert App("a").broker == "embedded:./elsewhere"
    assert App("a", broker="embedded:./here").broker == "embedded:./here"
    monkeypatch.setenv("KEYLANES_BROKER", "elsewhere")
    with pytest.raises(SettingsError, match="the broker's address is kafka://"):
        App("a")


async def test_an_application_without_a_broker_can_be_tested_and_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests need none; a run says where one can be named."""
    monkeypatch.delenv("KEYLANES_BROKER", raising=False)
    app = App("a")
    app.handler("in", to="out")(lambda value: value)
    async with app.test() as simulated:
        await simulated.send("in", b"1")
        assert await simulated.read("out") == [b"1"]
    with pytest.raises(SettingsError, match=r"has no broker: .* give App\(broker=…\), or set KEYLANES_BROKER"):
        async with app:
            pass


def test_an_application_name_stands_in_topics() -> None:
    """So it keeps to their rules."""
    with pytest.raises(SettingsError, match="application name 'my app'"):
        app_of("my app")


def test_an_application_without_handlers_does_not_run() -> None:
    """There is nothing to do, nor to test."""
    with pytest.raises((SettingsError, SystemExit)):
        app_of().run()
    with pytest.raises(SettingsError, match="has no handler"):
        app_of().test()


# --- retries and settings --------------------------------------------------------------------------------------------


def test_waits_double_up_to_their_limit() -> None:
    """Also after attempts without number."""
    retry = Retry(attempts=1_000_000, backoff_ms=100, backoff_ms_max=1_000)
    assert [retry.wait_ms(n) for n in (1, 2, 3, 4, 5, 6, 999_999)] == [100, 200, 400, 800, 1_000, 1_000, 1_000]
    assert Retry(backoff_ms=0).wait_ms(50) == 0


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"backoff_ms": -1}, {"backoff_ms": 20_000}, {"backoff_ms_max": 3_600_001}]
)
def test_a_wrong_retry_is_refused(options: dict[str, int]) -> None:
    """At least one attempt; waits from nothing to an hour, the first at most the longest."""
    with pytest.raises(SettingsError, match="Retry"):
        Retry(**options)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"commit_interval_ms": 0}, "commit_interval_ms"),
        ({"commit_interval_ms": "soon"}, "commit_interval_ms"),
        ({"compression_type": "rar"}, "seen 'rar'"),
        ({"threads": 2_000}, "threads"),
        ({"state_folder": " "}, "state_folder names a folder; seen ' '"),
        ({"session_timeout_ms": 0}, "session_timeout_ms"),
        ({"memory_bytes_max": 33_554_431}, "memory_bytes_max is a whole number, 33554432 or more; seen 33554431"),
        ({"no_such_setting": 1}, "no_such_setting"),
    ],
)
def test_a_wrong_setting_is_refused(values: dict[str, Any], says: str) -> None:
    """The error names the field and what was seen."""
    with pytest.raises(SettingsError, match=says):
        Settings.of(**values)


def test_settings_made_directly_are_checked_too() -> None:
    """Types and ranges hold however they are made."""
    with pytest.raises(SettingsError, match="copies_max"):
        Settings(copies_max=0)


def test_settings_come_from_the_environment() -> None:
    """Numbers, truth and nothing from text; variables of others are left alone; security stands beside the rest."""
    environ = {
        "KEYLANES_COMMIT_INTERVAL_MS": "250",
        "KEYLANES_CREATE_TOPICS": "false",
        "KEYLANES_COMPRESSION_TYPE": "none",
        "KEYLANES_SECURITY_PROTOCOL": "SASL_SSL",
        "KEYLANES_SASL_PLAIN_USERNAME": "ali",
        "KEYLANES_SASL_PLAIN_PASSWORD": "none",
        "KEYLANES_BROKER": "kafka://elsewhere:9092",
        "PATH": "/bin",
    }
    settings = Settings.from_env(environ)
    assert (settings.commit_interval_ms, settings.create_topics, settings.compression_type) == (250, False, None)
    assert settings.security.security_protocol == "SASL_SSL"
    assert settings.security.sasl_plain_password == Secret("none"), "a password is what it is"
    assert settings.threads == Settings().threads


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("KEYLANES_THREADS", "many"),
        ("KEYLANES_THREADS", "0"),
        ("KEYLANES_THREADS", ""),
        ("KEYLANES_SPLIT_HOT_RANGES", "nope"),
        ("KEYLANES_ALLOW_PLAINTEXT", "2"),
        ("KEYLANES_GROUP_INSTANCE_ID", "a b"),
        ("KEYLANES_EXIT_ON_EXPULSION", "perhaps"),
    ],
)
def test_a_wrong_variable_is_refused(name: str, text: str) -> None:
    """A value that is none is not passed over, and its variable is named."""
    with pytest.raises(SettingsError, match="(?i)" + name.removeprefix("KEYLANES_")):
        Settings.from_env({name: text})


@pytest.mark.parametrize(("text", "means"), [("yes", True), ("No", False), ("ON", True), ("off", False), ("0", False)])
def test_truth_may_be_written_in_words(text: str, means: bool) -> None:
    """In any case of letters."""
    assert Settings.from_env({"KEYLANES_SPLIT_HOT_RANGES": text}).split_hot_ranges is means
    assert Settings.of(split_hot_ranges=text).split_hot_ranges is means


def test_variables_that_name_no_setting_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Those of a service of Kubernetes that is named like us, and a slip, of which the setting is named."""
    environ = {
        "KEYLANES_ORDERS_SERVICE_HOST": "10.0.0.1",
        "KEYLANES_ORDERS_PORT": "tcp://10.0.0.1:80",
        "KEYLANES_COMIT_INTERVAL_MS": "250",
        "KEYLANES_COMMIT_INTERVAL": "250",
        "KEYLANES_THREADS": "3",
    }
    assert Settings.from_env(environ) == Settings(threads=3)
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert "KEYLANES_COMIT_INTERVAL_MS (did you mean KEYLANES_COMMIT_INTERVAL_MS?)" in caplog.text
    assert "KEYLANES_COMMIT_INTERVAL (did you mean KEYLANES_COMMIT_INTERVAL_MS?)" in caplog.text
    assert "KEYLANES_ORDERS_PORT, KEYLANES_ORDERS_SERVICE_HOST" in caplog.text
    assert "KEYLANES_THREADS" not in caplog.text


def test_no_variable_of_ours_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """Each that the sources, the scripts and the documentation name is a setting, or known to be none."""
    root = Path(__file__).parents[2]
    rooms = ("asgi", "brokers", "cli", "devkafka", "runtime", "spark", "examples")
    paths = [*root.glob("*.py"), root / "Makefile", root / "README.md", *root.glob("docs/[!m]*.md")]  # not mistakes.md
    paths += [path for room in rooms for path in (root / room).rglob("*.py")]
    named = {name for path in paths for name in re.findall(r"KEYLANES_[A-Z][A-Z_]*[A-Z]\b(?!_)", path.read_text())}
    assert {"KEYLANES_INTERPRETED", "KEYLANES_BROKER", "KEYLANES_CACHE"} <= named
    for name in named:
        with contextlib.suppress(SettingsError):
            Settings.from_env({name: "1"})
    assert caplog.text == ""


SASL = {"security_protocol": "SASL_SSL", "sasl_plain_username": "ali", "sasl_plain_password": "hunter2"}


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        (Settings, {"commit_interval": 100}, r"'commit_interval'; did you mean commit_interval_ms\?"),
        (Settings, {"no_such_setting": 1}, "its fields are listed in docs/settings.md; leave no_such_setting out"),
        (Security, {"ssl_ca_file": "ca.pem"}, r"'ssl_ca_file'; did you mean ssl_cafile\?"),
        (Retry, {"attempt": 5}, r"'attempt'; did you mean attempts\?"),
        (DeadLetter, {}, "DeadLetter: Missing required argument 'topic'; its fields are given by name"),
        (Settings, {"security": "hunter2"}, "Settings.security is a Security; seen a str"),
        (Settings.of, {"security": "hunter2"}, "Settings.of: security is a Security; seen a str"),
        (Settings, {"security": {"sasl_plain_password": "hunter2"}}, "seen a dict"),
        (Retry, {"attempts": "5"}, "Retry.attempts is a whole number; seen '5'"),
        (Store, {"ttl": 5}, r"'ttl'; did you mean ttl_ms\?"),
        (Store, {"ttl_ms": "5"}, "Store.ttl_ms is a whole number, or None; seen '5'"),
        (Security, {"ssl_keyfile": "key.pem"}, "seen ssl_keyfile='key.pem' and no ssl_certfile: give both"),
        (Security, {"security_protocol": "ssl"}, r"seen 'ssl'; did you mean SSL\?"),
        (Security, {"security_protocol": "SASL_SSL"}, "seen no sasl_plain_username and no sasl_plain_password"),
        (Security, {**SASL, "sasl_mechanism": "SCRAM-512"}, r"seen 'SCRAM-512'; did you mean SCRAM-SHA-512\?"),
        (Security, {**SASL, "sasl_mechanism": "OAUTHBEARER"}, "'OAUTHBEARER' needs a provider of tokens"),
    ],
)
def test_wrong_fields_of_structures_are_refused(kind: Callable[..., object], fields: dict[str, Any], says: str) -> None:
    """A field that is none with the near name, a value of another type, and what does not go together."""
    with pytest.raises(SettingsError, match=says) as refused:
        kind(**fields)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("address", ["kafka://u:hunter2@h:1", "kafka://a:1,u:hunter2@h", "u:hunter2@h:1", "hunter2@h"])
def test_a_password_in_an_address_is_not_shown(address: str) -> None:
    """It is refused, with what stands behind the @."""
    with pytest.raises(SettingsError, match=r"seen '\*\*\*@h") as refused:
        App("shop", broker=address)
    assert "hunter2" not in str(refused.value)


# --- outputs ---------------------------------------------------------------------------------------------------------

SOURCE = SimulatedRecord(7, 1_000, b"key", b"value", (("h", b"1"),))
PLACE = place_of("source", 2, b"shop app")
TOPIC = TopicDescription("out", 4, {"cleanup.policy": "delete", "max.message.bytes": "1000"})
KNOWN = {"out": destination_of(TOPIC)}
to_out: Handler = declare(plain, "source", to="out")


def test_what_is_returned_may_be_nothing_one_or_a_list() -> None:
    """None is no output, also in a list; values and records may be mixed."""
    assert outputs_returned(None, to_out) == []
    assert outputs_returned([], to_out) == []
    assert outputs_returned(b"x", to_out) == [Output(value=b"x")]
    assert [o.value for o in outputs_returned([b"x", None, Record(None)], to_out)] == [b"x", None]
    nowhere = declare(plain, "source")
    assert outputs_returned(Record(1, topic="out"), nowhere)[0].topic == "out"
    with pytest.raises(OutputRefused, match="no to="):
        outputs_returned(b"x", nowhere)


class Pair(NamedTuple):
    """A type of values."""

    left: int
    right: int


def unannotated_pair(value):  # type: ignore[no-untyped-def]  # as users may write it
    """Returns what looks like a topic and a value."""
    return "other", value


async def annotated_pair(value: bytes) -> tuple[str, bytes] | None:
    """Returns an array."""
    return "other", value


def listed_sets(value: bytes) -> list[set[int]]:
    """Returns several arrays."""
    return [{1}]


@pytest.mark.parametrize("result", [("other", b"x"), {1, 2}, frozenset({1}), [("other", b"x")], [b"fine", {1}]])
def test_a_tuple_or_a_set_is_a_value_only_where_it_is_said_to_be_one(result: Any) -> None:
    """It looks like a topic and a value, or like several outputs, and would be sent as one array."""
    for function in (plain, unannotated_pair):
        handler = declare(function, "source", to="out")
        assert build_one(result, SOURCE, handler, PLACE, KNOWN) is None, "the quick way leaves it to this one"
        with pytest.raises(OutputRefused, match=r"which would be sent as one array; .* Record\(value, topic=…\)"):
            outputs_returned(result, handler)
    for said in (annotated_pair, listed_sets):
        items = result if isinstance(result, list) else [result]
        assert [output.value for output in outputs_returned(result, declare(said, "source", to="out"))] == items


def test_a_named_tuple_is_a_value() -> None:
    """As a struct is."""
    assert outputs_returned(Pair(1, 2), to_out) == [Output(Pair(1, 2))]
    assert build_one(Pair(1, 2), SOURCE, to_out, PLACE, KNOWN) is not None


def test_what_was_not_awaited_is_told_so() -> None:
    """By the name of what was called; Python does not warn again."""

    async def fetch() -> bytes:
        return b""

    with pytest.raises(OutputRefused, match=r"output 1 of 1 is a coroutine, seen fetch\(…\), .* return await fetch"):
        build(outputs_returned(fetch(), to_out), SOURCE, to_out, PLACE, KNOWN)


def test_outputs_carry_key_time_and_origin() -> None:
    """The record's own, where the output says nothing; i of n in the header; the digest is the sum of all."""
    done = build([Output(value=b"x"), Output(value={"a": 1}, key=None)], SOURCE, to_out, PLACE, KNOWN)
    first, second = done.outputs
    assert (first.topic, first.key, first.value, first.timestamp) == ("out", b"key", b"x", 1_000)
    assert first.partition == partition_of_key(b"key", 4)
    assert (second.key, second.value) == (None, b'{"a":1}')
    assert second.partition == partition_without_key(2, 7, 1, 4)
    singles = [build([Output(value=b"x")], SOURCE._replace(offset=7), to_out, PLACE, KNOWN).digest]
    assert singles[0] != done.digest
    assert not done.dead


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (Output(value=b"x" * 1_000), "takes at most 1000"),
        (Output(value=object()), "can't be encoded"),
        (Output(value=b"", partition=4), "partitions 0 to 3; seen 4"),
        (Output(value=b"", key=5), "a key is bytes, str or None; seen int"),  # type: ignore[arg-type]  # as users may write it
    ],
)
def test_an_impossible_output_is_refused_at_once(output: Output, says: str) -> None:
    """When the handler returns, not when the transaction is sent; the message counts which output it is."""
    with pytest.raises(OutputRefused, match=says) as refused:
        build([Output(value=b"fine"), output], SOURCE, to_out, PLACE, KNOWN)
    assert "output 2" in str(refused.value)


def test_a_compacted_topic_needs_keys() -> None:
    """Without one the broker would refuse the whole batch."""
    compacted = destination_of(TOPIC._replace(config={"cleanup.policy": "compact,delete"}))
    with pytest.raises(OutputRefused, match="is compacted and needs one"):
        build([Output(value=b"", key=None)], SOURCE, to_out, PLACE, {"out": compacted})


def test_a_dead_letter_is_the_record_with_its_cause() -> None:
    """Headers of an earlier dead letter are not piled up."""
    again = SOURCE._replace(headers=(("h", b"1"), ("kl-error", b"old"), ("kl", b"old")))
    done = build_dead_letter(again, "out", KNOWN["out"], PLACE, ValueError("no"), 3, 4)
    (letter,) = done.outputs
    assert isinstance(letter, Outgoing)
    headers = list(letter.headers)
    assert done.dead
    assert (letter.key, letter.value) == (b"key", b"value")
    assert headers[:3] == [("h", b"1"), ("kl-error", b"ValueError: no"), ("kl-attempts", b"3")]
    assert [name for name, _ in headers] == ["h", "kl-error", "kl-attempts", "kl-timestamp", "kl"]


def test_headers_that_are_passed_on() -> None:
    """Null values stay null and count nothing; ours, of the record that is passed on, are left out or replaced."""
    letters = (("kl-error", b"no"), ("kl-attempts", b"3"), ("kl-timestamp", b"5"))
    headers = (("a", None), ("kl", b"of another"), *letters, ("a", b"1"))
    (written,) = build([Output(value=b"x", headers=headers)], SOURCE, to_out, PLACE, KNOWN).outputs
    assert [*written.headers][:2] == [("a", None), ("a", b"1")]
    assert [name for name, _ in written.headers] == ["a", "a", "kl"]
    assert written.headers[2][1] != b"of another"


def test_a_dead_letter_tells_the_time_of_its_record() -> None:
    """It is stamped when it is sent, or retention would delete that of an old record at once."""
    done = build_dead_letter(SOURCE._replace(timestamp=1 << 62), "out", KNOWN["out"], PLACE, ValueError("no"), 1, 4)
    assert done.outputs[0].timestamp is None
    assert dict(done.outputs[0].headers)["kl-timestamp"] == b"%d" % (1 << 62)
    done = build_dead_letter(SOURCE._replace(timestamp=-1), "out", KNOWN["out"], PLACE, ValueError("no"), 1, 4)
    assert "kl-timestamp" not in dict(done.outputs[0].headers)


def test_an_output_has_the_time_of_its_record_or_of_its_sending() -> None:
    """As the handler declares; one that it names itself is kept."""
    now = declare(plain, "orders", to="out", timestamps="now")
    assert build([Output(value=b"x")], SOURCE, to_out, PLACE, KNOWN).outputs[0].timestamp == SOURCE.timestamp
    assert build([Output(value=b"x")], SOURCE, now, PLACE, KNOWN).outputs[0].timestamp is None
    one = build_one(b"x", SOURCE, now, PLACE, KNOWN)
    assert one is not None
    assert one[0].timestamp is None
    assert build([Output(value=b"x", timestamp=5)], SOURCE, now, PLACE, KNOWN).outputs[0].timestamp == 5
    with pytest.raises(SettingsError, match="timestamps is 'record' or 'now'; seen 'none'"):
        declare(plain, "orders", to="out", timestamps="none")  # type: ignore[arg-type]  # as users may write it
