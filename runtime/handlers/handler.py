"""Declarations of handlers, checked before anything starts."""

import collections.abc
import inspect
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import msgspec

from ...brokers.options import Options
from ...errors import SettingsError
from ...offsets.event_values import RATE_PER_S_MAX
from .annotations import classes_in, is_union, without_none
from .context import Context
from .functions import function_wrapped, hints_of, is_async
from .start import FROM_EARLIEST, Start
from .store_declarations import declare_store, is_store
from .stores import StoreDeclaration
from .values import Codec, JsonCodec, MsgpackCodec, check_codec, is_pydantic, value_decoder

PARALLELISING_FACTOR = 256
PARALLELISING_FACTOR_MAX = 16_384
IN_FLIGHT_MAX = 1_000_000
TIMEOUT_MS_MAX = 86_400_000
RATE_PER_S_MIN = 0.001
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
Timestamps = Literal["record", "now"]
"""The time of an output without a timestamp: the time of its record, or the time of sending."""


class Retry(Options, frozen=True):
    """How often a failed record is tried, and how long to wait between two attempts.

    ``attempts`` includes the first attempt. The wait begins at ``backoff_ms`` and doubles up to ``backoff_ms_max``. The
    other records of the worker's key range wait meanwhile, to preserve the order; other workers go on. Raises
    SettingsError.
    """

    attempts: int = 3
    backoff_ms: int = 100
    backoff_ms_max: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.attempts <= 1_000_000:
            raise SettingsError(f"Retry.attempts is 1 to 1000000; seen {self.attempts}: 1 is no second attempt")
        if not 0 <= self.backoff_ms <= self.backoff_ms_max <= 3_600_000:
            raise SettingsError(
                "Retry needs 0 <= backoff_ms <= backoff_ms_max <= 3600000; seen "
                f"{self.backoff_ms} and {self.backoff_ms_max}: lower the first or raise the other"
            )

    def wait_ms(self, attempt: int) -> int:
        """The wait after attempt number ``attempt`` (from 1) failed."""
        return min(self.backoff_ms << min(attempt - 1, 31), self.backoff_ms_max)


class DeadLetter(Options, frozen=True):
    """Send a record that failed for good to ``topic``, with the cause in headers, in the same transaction."""

    topic: str


class Stop(Options, frozen=True):
    """Stop the application when a record failed for good. The record is tried again after a restart."""


class Handler(msgspec.Struct, frozen=True):
    """A checked declaration. ``decode`` turns a value into the first argument and raises DecodeFailed.

    ``further``: the declared arguments behind the value, None for the context. ``returns_arrays``: the handler may
    return a tuple or set as a value. ``is_decorated``: the function is async below a decorator with a plain def.
    ``own_task``: each attempt has its own task. ``keeps_time``: an output has the time of its record; False: the time
    of sending.
    ``sends``: see ``App.handler``. ``max_in_flight``: how many records of the handler may run at once in a process,
    over all partitions; None: as many as the process has workers. ``timeout_ms``: the limit of an attempt; None: the
    setting ``handler_timeout_ms`` applies. ``rate_per_s``: how many attempts may begin in a second, over all processes
    of the application; None: no limit.
    """

    topic: str
    function: Callable[..., Any]
    is_async: bool
    is_decorated: bool
    further: tuple[StoreDeclaration | None, ...]
    returns_arrays: bool
    to: str | None
    parallelising_factor: int
    retry: Retry
    on_failure: DeadLetter | Stop
    codec: Codec
    decode: Callable[[bytes | None], Any]
    name: str
    max_in_flight: int | None
    timeout_ms: int | None
    start: Start
    rate_per_s: float | None
    keeps_time: bool
    own_task: bool
    sends: tuple[str, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the handler runs on the loop and takes nothing but the value and stores."""
        return self.is_async and not self.takes_context

    @property
    def takes_context(self) -> bool:
        """Whether the handler takes the context."""
        return None in self.further

    @property
    def dead_letters(self) -> str | None:
        """The topic of the handler's dead letters, if ``on_failure`` names a topic."""
        return self.on_failure.topic if isinstance(self.on_failure, DeadLetter) else None

    @property
    def outputs(self) -> tuple[str, ...]:
        """The topics declared for results and for ``Context.send``."""
        return self.sends if self.to is None else (self.to, *self.sends)

    @property
    def stores(self) -> tuple[StoreDeclaration, ...]:
        """The stores among the handler's arguments."""
        return tuple(declared for declared in self.further if declared is not None)


def codec_of_topic(topic: str, handlers: collections.abc.Mapping[str, Handler]) -> Codec:
    """The codec of the handler that reads a topic, else of a handler that writes the topic, else JSON.

    ``handlers``: by topic. A handler writes its results, and its dead letters with the unchanged values of its source.
    """
    if topic in handlers:
        return handlers[topic].codec
    writers = [h.codec for h in handlers.values() if topic in h.outputs or topic == h.dead_letters]
    return writers[0] if writers else JsonCodec()


def declare(
    function: Callable[..., Any],
    topic: str,
    *,
    to: str | None = None,
    sends: Sequence[str] = (),
    parallelising_factor: int = PARALLELISING_FACTOR,
    retry: Retry | None = None,
    on_failure: DeadLetter | Stop | None = None,
    codec: Codec | None = None,
    max_in_flight: int | None = None,
    timeout_ms: int | None = None,
    start: Start = FROM_EARLIEST,
    rate_per_s: float | None = None,
    own_task: bool = False,
    timestamps: Timestamps = "record",
) -> Handler:
    """Check a handler's declaration. Raises SettingsError, with the fault and the allowed values."""
    name = getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]
    where = f"handler {name} of topic {topic!r}"
    _check_factor(where, parallelising_factor)
    _check_policies(where, topic, retry, on_failure, timestamps)
    check_codec(where, codec)
    _check_topics(where, topic, to, sends, on_failure)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise SettingsError(f"{where}: a handler returns its outputs; a generator is not allowed")
    hints = hints_of(function, where)
    value_annotation, further = _arguments(function, hints, where)
    returns = hints.get("return", inspect.Parameter.empty)
    if to is None and not sends and not _returns_nothing(returns):
        raise SettingsError(
            f"{where}: it is annotated to return {returns!r}, but there is no to= to send it to; give to=, or -> None"
        )
    codec = codec or JsonCodec()
    _check_values(where, value_annotation, returns, codec)
    is_decorated = not is_async(function) and is_async(function_wrapped(function))
    if own_task and not (is_async(function) or is_decorated):
        raise SettingsError(f"{where}: own_task is for an async handler; seen a def, which runs on a thread")
    return Handler(
        topic=topic,
        function=function,
        is_async=is_async(function) or is_decorated,
        is_decorated=is_decorated,
        own_task=own_task,
        further=further,
        returns_arrays=_returns_arrays(returns),
        to=to,
        sends=tuple(sends),
        parallelising_factor=parallelising_factor,
        retry=retry or Retry(),
        on_failure=on_failure or Stop(),
        codec=codec,
        decode=value_decoder(value_annotation, codec, where),
        name=name,
        max_in_flight=_limit(max_in_flight, IN_FLIGHT_MAX, f"{where}: max_in_flight", "the workers are the limit"),
        timeout_ms=_limit(timeout_ms, TIMEOUT_MS_MAX, f"{where}: timeout_ms", "handler_timeout_ms holds"),
        start=start,
        rate_per_s=_rate(rate_per_s, where),
        keeps_time=timestamps == "record",
    )


def _check_topics(where: str, topic: str, to: str | None, sends: object, on_failure: DeadLetter | Stop | None) -> None:
    """Raises SettingsError for wrong topic names, and for dead letters that would come back to their handler."""
    if not isinstance(sends, tuple | list):
        meant = sends if isinstance(sends, str) else "audit"
        raise SettingsError(f'{where}: sends is a tuple of topics; seen {sends!r}: write sends=("{meant}",)')
    for label, given in (("topic", topic), ("to", to), *(("sends", one) for one in sends)):
        if given is not None or label == "sends":
            check_topic_name(given, f"{where}: {label}")
    if isinstance(on_failure, DeadLetter):
        check_topic_name(on_failure.topic, f"{where}: DeadLetter.topic")
        if on_failure.topic == topic:
            raise SettingsError(f"{where}: its dead letters would come back to it; give DeadLetter another topic")


def check_beside(declared: Handler, others: collections.abc.Iterable[Handler]) -> None:
    """Raises SettingsError where another handler of the application has the same topic, or a store of the same name."""
    names = {store.name for store in declared.stores}
    for other in others:
        if other.topic == declared.topic:
            raise SettingsError(
                f"topic {other.topic!r} has the handler {other.name}; a topic has one handler, seen also "
                f"{declared.name}: call both from one, or give them topics of their own"
            )
        for store in other.stores:
            if store.name in names:
                raise SettingsError(
                    f"handler {declared.name} of topic {declared.topic!r}: store {store.name!r} belongs to the "
                    f"handler of {other.topic!r}; a store has one handler, and its name is unique in an application"
                )


def check_declared(app: str, handlers: collections.abc.Mapping[str, Handler]) -> None:
    """Raise SettingsError for an application without a handler."""
    if not handlers:
        raise SettingsError(
            f"application {app!r} has no handler; seen none, it needs one or more: declare a function with "
            '@app.handler("topic"), or import the module that does'
        )


def check_called(topic: object) -> None:
    """Raises SettingsError for ``@app.handler`` without a topic."""
    if not isinstance(topic, str):
        name = getattr(topic, "__qualname__", repr(topic)).rpartition("<locals>.")[2]
        raise SettingsError(
            f"@app.handler is written with the topic whose records it handles; seen {name!r} in place of a topic: "
            'write @app.handler("orders") above the function'
        )


def _check_factor(where: str, factor: object) -> None:
    if not isinstance(factor, int) or isinstance(factor, bool):
        raise SettingsError(
            f"{where}: parallelising_factor is a whole number from 1 to {PARALLELISING_FACTOR_MAX}; seen {factor!r}: "
            f"write parallelising_factor={_number_in(factor, PARALLELISING_FACTOR)}"
        )
    if not 1 <= factor <= PARALLELISING_FACTOR_MAX:
        raise SettingsError(
            f"{where}: parallelising_factor is 1 to {PARALLELISING_FACTOR_MAX}; seen {factor}: give the records of one "
            "partition that are handled at once"
        )


def _check_policies(where: str, topic: str, retry: object, on_failure: object, timestamps: object) -> None:
    if retry is not None and not isinstance(retry, Retry):
        raise SettingsError(
            f"{where}: retry is a keylanes.Retry or None; seen {retry!r}: write "
            f"retry=Retry(attempts={_number_in(retry, Retry().attempts)})"
        )
    if on_failure is not None and not isinstance(on_failure, DeadLetter | Stop):
        letters = on_failure if isinstance(on_failure, str) else f"{topic}.dead"
        raise SettingsError(
            f"{where}: on_failure is a keylanes.DeadLetter or keylanes.Stop; seen {on_failure!r}: write "
            f'on_failure=DeadLetter("{letters}") to send failed records there, on_failure=Stop() to stop at one'
        )
    if timestamps not in get_args(Timestamps):
        raise SettingsError(f"{where}: timestamps is 'record' or 'now'; seen {timestamps!r}: the time of its outputs")


def _number_in(value: object, default: int) -> int:
    """The number that the user probably meant: ``value`` as a number, else ``default``."""
    is_number = isinstance(value, int | str) and not isinstance(value, bool) and str(value).isascii()
    return int(str(value)) if is_number and str(value).isdigit() else default


def _limit(given: int | None, most: int, what: str, without: str) -> int | None:
    """Check a limit and return the limit; raises SettingsError."""
    if given is not None and (type(given) is not int or not 1 <= given <= most):
        raise SettingsError(f"{what} is a whole number from 1 to {most}; seen {given!r}; leave it out, and {without}")
    return given


def _rate(given: float | None, where: str) -> float | None:
    """Check a limit of attempts per second and return the limit as a float; raises SettingsError."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if given is not None and not (is_number and RATE_PER_S_MIN <= given <= RATE_PER_S_MAX):
        raise SettingsError(
            f"{where}: rate_per_s is a number from {RATE_PER_S_MIN} to {RATE_PER_S_MAX:.0f}; seen {given!r}: give how "
            "many attempts may begin in a second over all processes, or leave it out, and nothing is held back"
        )
    return None if given is None else float(given)


def check_topic_name(topic: str, where: str) -> None:
    """Raises SettingsError for a topic name outside of Kafka's rules."""
    allowed = isinstance(topic, str) and TOPIC_NAME.fullmatch(topic) is not None
    if not allowed or topic in (".", ".."):
        raise SettingsError(f"{where}: a topic name has 1 to 249 of a-z A-Z 0-9 . _ -; seen {topic!r}: name one")


def _arguments(
    function: Callable[..., Any], hints: dict[str, Any], where: str
) -> tuple[Any, tuple[StoreDeclaration | None, ...]]:
    """The value's annotation, and the declared arguments behind the value."""

    def is_ours(name: str) -> bool:
        return hints.get(name) is Context or is_store(hints.get(name))

    listed = list(inspect.signature(function).parameters.values())
    parameters = [p for p in listed if p.default is p.empty or is_ours(p.name)]
    allowed = "a handler takes (value), then in any order ctx: Context and stores, as in seen: State[int]"
    if listed and listed[0].name == "self" and "self" not in hints:
        raise SettingsError(
            f"{where}: {allowed}; seen self: a method without its object: declare it on one, as in "
            f"app.handler(…)(service.{function.__name__})"
        )
    if not parameters or any(p.kind in (p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
        raise SettingsError(f"{where}: {allowed}; seen {len(parameters)} arguments")
    if listed[: len(parameters)] != parameters:
        skipped = next(p.name for p in listed if p not in parameters)
        raise SettingsError(f"{where}: {allowed}; {skipped} has a default of its own and has to come behind them")
    value, *rest = parameters
    further: list[StoreDeclaration | None] = []
    for i, parameter in enumerate(rest):
        annotation = hints.get(parameter.name, Context if i == 0 else None)
        if annotation is Context:
            further.append(None)
        elif is_store(annotation):
            further.append(declare_store(parameter.name, annotation, where))
        else:
            raise SettingsError(f"{where}: {allowed}; seen {parameter.name}: {annotation!r}")
    if further.count(None) > 1:
        raise SettingsError(f"{where}: {allowed}; the context is asked for {further.count(None)} times")
    names = [declared.name for declared in further if declared is not None]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{where}: store {name!r} is asked for {names.count(name)} times")
    return hints.get(value.name, bytes), tuple(further)


def _check_values(where: str, taken: Any, returned: Any, codec: Codec) -> None:
    """Raises SettingsError for types of arguments and results with which every record would fail."""
    wanted, _ = without_none(taken)
    if typing.get_origin(wanted) is list:
        (item,) = typing.get_args(wanted)
        name = item.__name__ if isinstance(item, type) and typing.get_origin(item) is None else str(item)
        raise SettingsError(
            f"{where}: a handler gets one record at a time; seen {taken!r}, which may mean two things: for records one "
            f"by one write {name}, for one record whose value is an array write tuple[{name}, ...]"
        )
    if not isinstance(codec, JsonCodec | MsgpackCodec):
        return
    for kind in classes_in(returned):
        if is_pydantic(kind):
            raise SettingsError(
                f"{where}: it returns {kind!r}: a model of pydantic needs a codec of its own: codec=, see "
                "docs/mistakes.md"
            )


def _returns_arrays(annotation: Any) -> bool:
    """Whether an annotation allows a tuple or a set, alone or in a list."""
    if isinstance(annotation, type) and not typing.get_origin(annotation):
        return annotation is object or issubclass(annotation, tuple | set | frozenset | collections.abc.Set)
    if annotation is Any or typing.get_origin(annotation) in (tuple, set, frozenset):
        return True
    abstract = getattr(typing.get_origin(annotation), "__module__", "") == "collections.abc"
    return abstract or any(_returns_arrays(part) for part in typing.get_args(annotation))


def _returns_nothing(annotation: Any) -> bool:
    """Whether a result is never an output: no annotation, or None."""
    if annotation in (inspect.Parameter.empty, None, type(None)):
        return True
    return is_union(annotation) and all(a is type(None) for a in typing.get_args(annotation))
