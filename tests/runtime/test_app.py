"""What users declare: handlers, retries, settings, names; wrong ones are refused in words when they are declared.

How handlers run is in test_handlers_running.py.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from keylanes import App, Context, DeadLetter, Record, Retry, Settings, SettingsError, Stop
from keylanes.brokers.partitioner import murmur2, partition_of_key, partition_without_key
from keylanes.brokers.protocol import Outgoing, TopicDescription
from keylanes.brokers.simulated.broker import SimulatedRecord
from keylanes.errors import OutputRefused
from keylanes.runtime.handlers.context import Output
from keylanes.runtime.handlers.handler import Handler, declare
from keylanes.runtime.handlers.outputs import (
    build,
    build_dead_letter,
    destination_of,
    place_of,
    returned,
    stamped_anew,
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


def unannotated(value, ctx):  # type: ignore[no-untyped-def]  # as users may write it
    """Gets bytes and the context."""


@pytest.mark.parametrize(
    ("function", "is_async", "takes_context"),
    [(plain, True, False), (sync, False, True), (Callee(), True, True), (unannotated, False, True)],
    ids=["async", "sync", "object", "unannotated"],
)
def test_handlers_may_be_written_in_many_ways(
    function: Callable[..., Any], is_async: bool, takes_context: bool
) -> None:
    """Async or sync, with or without the context, functions or objects."""
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
    ],
)
def test_a_wrong_handler_is_refused_when_it_is_declared(
    function: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    """The error names the handler, what is wrong and what was seen."""
    with pytest.raises(SettingsError, match=says) as refused:
        app_of().handler("t", **options)(function)
    assert function.__name__ in str(refused.value)


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


def test_an_application_name_stands_in_topics() -> None:
    """So it keeps to their rules."""
    with pytest.raises(SettingsError, match="application name 'my app'"):
        app_of("my app")


def test_an_application_without_handlers_does_not_run() -> None:
    """There is nothing to do."""
    with pytest.raises((SettingsError, SystemExit)):
        app_of().run()


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
        ({"commit_interval_ms": 20}, "commit_lead_ms must be below commit_interval_ms=20; seen 20"),
        ({"compression_type": "rar"}, "seen 'rar'"),
        ({"threads": 2_000}, "threads"),
        ({"state_folder": " "}, "state_folder names a folder; seen ' '"),
        ({"state_cache_bytes_max": 0}, "state_cache_bytes_max"),
        ({"no_such_setting": 1}, "no_such_setting"),
    ],
)
def test_a_wrong_setting_is_refused(values: dict[str, Any], says: str) -> None:
    """The error names the field and what was seen."""
    with pytest.raises(SettingsError, match=says):
        Settings.of(**values)


def test_settings_made_directly_are_checked_too() -> None:
    """Types and ranges hold however they are made."""
    with pytest.raises(SettingsError, match="fetch_records_max"):
        Settings(fetch_records_max=0)


def test_settings_come_from_the_environment() -> None:
    """Numbers, truth and nothing from text; variables of others are left alone; security stands beside the rest."""
    environ = {
        "KEYLANES_COMMIT_INTERVAL_MS": "250",
        "KEYLANES_CREATE_TOPICS": "false",
        "KEYLANES_COMPRESSION_TYPE": "none",
        "KEYLANES_SECURITY_PROTOCOL": "SASL_SSL",
        "KEYLANES_BROKER": "kafka://elsewhere:9092",
        "PATH": "/bin",
    }
    settings = Settings.from_env(environ)
    assert (settings.commit_interval_ms, settings.create_topics, settings.compression_type) == (250, False, None)
    assert settings.security.security_protocol == "SASL_SSL"
    assert settings.fetch_records_max == Settings().fetch_records_max


@pytest.mark.parametrize(
    ("name", "text"), [("KEYLANES_COMIT_INTERVAL_MS", "250"), ("KEYLANES_THREADS", "many"), ("KEYLANES_THREADS", "0")]
)
def test_a_wrong_variable_is_refused(name: str, text: str) -> None:
    """A name that is no setting, or a value that is none, is not passed over."""
    with pytest.raises(SettingsError, match="(?i)" + name.removeprefix("KEYLANES_")):
        Settings.from_env({name: text})


# --- outputs ---------------------------------------------------------------------------------------------------------

SOURCE = SimulatedRecord(7, 1_000, b"key", b"value", (("h", b"1"),))
PLACE = place_of("source", 2)
TOPIC = TopicDescription("out", 4, {"cleanup.policy": "delete", "max.message.bytes": "1000"})
KNOWN = {"out": destination_of(TOPIC, None)}
to_out: Handler = declare(plain, "source", to="out")


def test_what_is_returned_may_be_nothing_one_or_a_list() -> None:
    """None is no output, also in a list; values and records may be mixed."""
    assert returned(None, to_out) == []
    assert returned([], to_out) == []
    assert returned(b"x", to_out) == [Output(value=b"x")]
    assert [o.value for o in returned([b"x", None, Record(None)], to_out)] == [b"x", None]
    nowhere = declare(plain, "source")
    assert returned(Record(1, topic="out"), nowhere)[0].topic == "out"
    with pytest.raises(OutputRefused, match="no to="):
        returned(b"x", nowhere)


def test_outputs_carry_key_time_and_origin() -> None:
    """The record's own, where the output says nothing; i of n in the header; the digest is the sum of all."""
    done = build([Output(value=b"x"), Output(value={"a": 1}, key=None, keep_key=False)], SOURCE, to_out, PLACE, KNOWN)
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
        (Output(value=b"", key=5, keep_key=False), "a key is bytes, str or None; seen int"),  # type: ignore[arg-type]  # as users may write it
    ],
)
def test_an_impossible_output_is_refused_at_once(output: Output, says: str) -> None:
    """When the handler returns, not when the transaction is sent; the message counts which output it is."""
    with pytest.raises(OutputRefused, match=says) as refused:
        build([Output(value=b"fine"), output], SOURCE, to_out, PLACE, KNOWN)
    assert "output 2" in str(refused.value)


def test_a_compacted_topic_needs_keys() -> None:
    """Without one the broker would refuse the whole batch."""
    compacted = destination_of(TOPIC._replace(config={"cleanup.policy": "compact,delete"}), None)
    with pytest.raises(OutputRefused, match="is compacted and needs one"):
        build([Output(value=b"", key=None, keep_key=False)], SOURCE, to_out, PLACE, {"out": compacted})


def test_a_limit_of_ones_own_is_the_lower_one() -> None:
    """``output_bytes_max`` never raises what the topic allows."""
    assert destination_of(TOPIC, 500).bytes_max == 500
    assert destination_of(TOPIC, 5_000).bytes_max == 1_000


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
    assert [name for name, _ in headers] == ["h", "kl-error", "kl-attempts", "kl"]


def test_headers_that_are_passed_on() -> None:
    """Null values stay null and count nothing; ours, of the record that is passed on, is replaced."""
    headers = (("a", None), ("kl", b"of another"), ("a", b"1"))
    (written,) = build([Output(value=b"x", headers=headers)], SOURCE, to_out, PLACE, KNOWN).outputs
    assert [*written.headers][:2] == [("a", None), ("a", b"1")]
    assert [name for name, _ in written.headers] == ["a", "a", "kl"]
    assert written.headers[2][1] != b"of another"


def test_a_refused_dead_letter_is_stamped_anew_once() -> None:
    """Its own time goes into a header; refused again it is refused for something else, and what is no letter is not."""
    done = build_dead_letter(SOURCE._replace(timestamp=1 << 62), "out", KNOWN["out"], PLACE, ValueError("no"), 1, 4)
    anew = stamped_anew(done)
    assert anew is not None
    assert anew.outputs[0].timestamp is None
    assert dict(anew.outputs[0].headers)["kl-timestamp"] == b"%d" % (1 << 62)
    assert stamped_anew(anew) is None
    assert stamped_anew(build([Output(value=b"x")], SOURCE, to_out, PLACE, KNOWN)) is None


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_go_where_javas_clients_send_them(data: bytes, signed: int) -> None:
    """The vectors of Kafka's own test of murmur2; the partition is that of the positive hash."""
    assert murmur2(data) == signed & 0xFFFFFFFF
    assert partition_of_key(data, 7) == (signed & 0x7FFFFFFF) % 7


def test_partial_functions_are_handlers_too() -> None:
    """What is left of their arguments counts."""

    async def work(factor: int, value: bytes, ctx: Context) -> None: ...

    assert declare(partial(work, 3), "t").takes_context
