"""What handlers may ask for as state, and what may be put there: a slip is said aloud before it can do harm."""

import enum
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import pytest

from keylanes import App, Context, DeadLetter, Retry, SettingsError, State, StateError, Store
from keylanes.runtime.handlers.handler import declare
from keylanes.runtime.handlers.store_declarations import declare_store, shape_of
from keylanes.runtime.handlers.stores import Binding

from ...tiers.marks import tier

pytestmark = tier("check")


class Late(enum.StrEnum):
    YES = "yes"


def binding(annotation: Any) -> Binding:
    """A store of values of a type."""
    return Binding(0, declare_store("seen", State[annotation], "here"))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, "text"),
        (Any, "5"),
        (str | int, "5"),
        (Literal["a", "b"], "a"),
        (Late, Late.YES),
        (Annotated[str, msgspec.Meta(max_length=9)], "text"),
        (Annotated[str, msgspec.Meta(title="a title")], "text"),
        (str, "5"),
        (bytes, b"5"),
        (float, 1),
    ],
)
def test_what_is_put_is_what_is_read(annotation: Any, value: Any) -> None:
    """A text is no number when it comes back, whatever else the store may hold."""
    store = binding(annotation)
    found = store.decode(store.encode(value))
    assert found == value
    assert isinstance(found, str) == isinstance(value, str)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float, float("nan")),
        (int, 1.5),
        (int, "x"),
        (Literal["a"], "b"),
        (str, 5),
        (str, b"x"),
        (bytes, "x"),
        (list[int], ["x"]),
    ],
)
def test_what_could_not_be_read_again_is_not_put(annotation: Any, value: Any) -> None:
    """Or the next record of the key would find damaged state, and the application would stop for ever."""
    with pytest.raises((TypeError, ValueError)):
        binding(annotation).encode(value)


async def test_a_value_of_a_wrong_type_fails_its_record_only() -> None:
    """It is a dead letter; the next record of the key sees the state as it was."""
    app = App("slip", broker="embedded:never-opened")

    @app.handler("in", to="out", retry=Retry(attempts=1), on_failure=DeadLetter("dead"))
    async def work(value: str, seen: State[float]) -> str:
        before = seen.get()
        seen.put(float(value))
        return str(before)

    async with app.test(seed=1) as broker:
        for value in ("1", "nan", "2"):
            await broker.send("in", value, key="k")
        assert await broker.read("out", str) == ["None", "1.0"]
        assert [record.value for record in await broker.records("dead")] == [b"nan"]


def test_a_plain_text_and_a_constrained_one_are_different_shapes() -> None:
    """The first is kept as it is, the second as JSON: one can't be read as the other."""
    assert shape_of(str) != shape_of(Annotated[str, msgspec.Meta(max_length=3)])
    assert shape_of(Annotated[int, msgspec.Meta(title="a title")]) == shape_of(int)


def test_partial_functions_are_asked_for_their_stores() -> None:
    """They run where the function that they call would run."""

    async def work(factor: int, value: bytes, seen: State[int]) -> None: ...

    declared = declare(partial(partial(work), 3), "t")
    assert declared.is_async
    assert [store.name for store in declared.stores] == ["seen"]


def test_a_store_is_always_there() -> None:
    """One that may be None would be None for ever."""

    async def work(value: bytes, seen: State[int] | None = None) -> None: ...

    with pytest.raises(SettingsError, match="'seen': a store is always there"):
        declare(work, "t")


def test_what_is_asked_for_comes_before_defaults_of_the_handler() -> None:
    """Arguments are given by place: one behind a default would take its place."""

    async def work(value: bytes, limit: int = 3, ctx: Context = None) -> None: ...  # type: ignore[assignment]  # what is tested

    with pytest.raises(SettingsError, match="limit has a default of its own"):
        declare(work, "t")


def test_a_time_to_live_is_a_whole_number() -> None:
    """A fraction of a millisecond could not be written down, and none at all is written None."""
    with pytest.raises(SettingsError, match=r"ttl_ms is a whole number, or None; seen 1\.5"):
        Store(ttl_ms=1.5)  # type: ignore[arg-type]  # what is tested

    async def work(value: bytes, seen: Annotated[State[int], Store(ttl_ms=0)]) -> None: ...

    with pytest.raises(SettingsError, match=r"ttl_ms is 1 to .*seen 0"):
        declare(work, "t")


def test_a_store_has_one_handler() -> None:
    """Two that share a name by chance are told when the second is declared."""
    app = App("slip", broker="embedded:never-opened")

    @app.handler("a")
    async def first(value: bytes, seen: State[int]) -> None: ...

    with pytest.raises(SettingsError, match="store 'seen' belongs to the handler of 'a'"):

        @app.handler("b")
        async def second(value: bytes, seen: State[int]) -> None: ...


def test_options_of_a_store_are_called() -> None:
    """The class in place of its options would be passed over, and with it what somebody meant to say."""

    def handler(value: int, seen: Annotated[State[int], Store]) -> None:
        """Forgot the parentheses."""

    with pytest.raises(SettingsError, match="Store is called"):
        declare(handler, "t")


class Before(msgspec.Struct):
    """A value as an older version kept it."""

    count: int


class After(msgspec.Struct):
    """The same, changed in a way that no old value fits."""

    count: str


@pytest.mark.parametrize("is_async", [True, False])
async def test_who_catches_everything_does_not_hide_a_state_that_cannot_be_read(is_async: bool) -> None:
    """The application stops: to go on as if there were no value would write a wrong one over it."""
    app = App("kept", broker="embedded:unused")
    options: dict[str, Any] = {"to": "out", "retry": Retry(attempts=1), "on_failure": DeadLetter("dead")}

    @app.handler("in", **options)
    async def keep(value: int, seen: State[Before]) -> int:
        seen.put(Before(value))
        return value

    def catch(value: int, seen: State[After]) -> int:
        try:
            seen.get()
        except Exception:  # noqa: BLE001  # that is what some handlers do
            seen.put(After("none"))
        return value

    async def catch_async(value: int, seen: State[After]) -> int:
        return catch(value, seen)

    async with app.test() as broker:
        await broker.send("in", 1, key="k")
        assert await broker.read("out", int) == [1]
        await broker.crash()
        app.handlers.clear()
        app.handler("in", **options)(catch_async if is_async else catch)
        await broker.restart()
        await broker.send("in", 2, key="k")
        with pytest.raises(StateError, match="can't be decoded as declared"):
            await broker.read("out", int)
        assert [record.value for record in await broker.visible("out")] == [b"1"]
