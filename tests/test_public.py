"""What users import: whatever stands in a public signature can be imported from keylanes and has a docstring; type
checkers know what calls return.
"""

import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from typing import Any, assert_type

import pytest

import keylanes
from keylanes import (
    App,
    CommittedRecord,
    KeyRange,
    PartitionStatistics,
    Record,
    SettingsError,
    State,
    StoreEntry,
    StoreView,
)

from .reference_page import GIVEN, INSIDE, OPAQUE
from .tiers.marks import tier

pytestmark = tier("check")


def public_functions(kind: type) -> Iterator[tuple[str, Any]]:
    """The functions that a user of a class may call, or look at as properties."""
    for name, found in vars(kind).items():
        if isinstance(found, property):
            found = found.fget
        found = inspect.unwrap(getattr(found, "__func__", found))
        is_made = name == "__init__" and kind.__name__ not in GIVEN
        is_entered = name in ("__aenter__", "__aexit__")
        if (
            f"{kind.__name__}.{name}" not in INSIDE
            and callable(found)
            and not isinstance(found, type)
            and (is_made or is_entered or name[0] != "_")
        ):
            yield name, found


def annotations_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Each annotation in the public signatures of a class or function, with where it stands."""
    if not isinstance(thing, type):
        return
    for name, annotation in typing.get_type_hints(thing, include_extras=True).items():
        if not name.startswith("_"):
            yield f"{thing.__name__}.{name}", annotation
    for name, function in public_functions(thing):
        for argument, annotation in hints_of(function).items():
            yield f"{thing.__name__}.{name}({argument})", annotation
        for overload in typing.get_overloads(function):
            for argument, annotation in hints_of(overload).items():
                yield f"{thing.__name__}.{name}({argument})", annotation


def hints_of(function: Any) -> dict[str, Any]:
    """The annotations of a function; of a compiled one those that its source has."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except TypeError:
        return {}


def ours_in(annotation: Any) -> Iterator[type]:
    """The classes of keylanes in a type."""
    if isinstance(annotation, type) and not typing.get_origin(annotation):
        if annotation.__module__.startswith("keylanes"):
            yield annotation
        return
    parts = [typing.get_origin(annotation), *typing.get_args(annotation)]
    for part in parts:
        for inner in part if isinstance(part, list) else [part]:
            if inner is not None and inner is not annotation:
                yield from ours_in(inner)


def missing(exported: dict[str, Any]) -> list[str]:
    """What stands in the signatures of what is exported and is not exported itself."""
    found = []
    for name, thing in exported.items():
        for where, annotation in () if name in OPAQUE else annotations_of(thing):
            kinds = [kind for kind in ours_in(annotation) if exported.get(kind.__name__) is not kind]
            found += [f"{where}: {kind.__name__}" for kind in kinds]
    return found


def exported() -> dict[str, Any]:
    """All that ``keylanes`` exports."""
    return {name: getattr(keylanes, name) for name in keylanes.__all__}


@pytest.mark.interpreted  # the compiler keeps neither annotations nor docstrings
def test_what_stands_in_a_public_signature_is_exported() -> None:
    """Nobody has to import from inside to annotate what a call takes or gives."""
    assert missing(exported()) == []


@pytest.mark.interpreted  # the compiler keeps neither annotations nor docstrings
@pytest.mark.parametrize("name", ["KeyRange", "StoreEntry", "StoreView", "PartitionStatistics", "Broker", "Retry"])
def test_what_is_not_exported_is_noticed(name: str) -> None:
    """Whether it is taken, given, or a part of what is given."""
    left = {key: thing for key, thing in exported().items() if key != name}
    assert any(complaint.endswith(f": {name}") for complaint in missing(left))


def test_a_name_is_imported_when_it_is_used() -> None:
    """Who needs one part of the package does not load the others; a name that nothing has is refused as ever."""
    code = """if True:
    import sys, keylanes
    assert "keylanes.runtime.app" not in sys.modules
    assert {*keylanes.__all__} <= {*dir(keylanes)}
    assert keylanes.App is keylanes.App and "keylanes.runtime.app" in sys.modules
    keylanes.app
    """
    answer = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert answer.stderr.splitlines()[-1].startswith("AttributeError: module 'keylanes' has no attribute 'app'")


@pytest.mark.interpreted  # the compiler keeps neither annotations nor docstrings
def test_what_is_exported_is_listed_in_order_and_described() -> None:
    """Once each; every class and function says in its docstring what it is."""
    assert keylanes.__all__ == sorted(set(keylanes.__all__), key=lambda name: (not name.isupper(), name))
    for name, thing in exported().items():
        assert not isinstance(thing, type) or (thing.__doc__ or "").strip(), name


def test_what_is_opaque_is_exported() -> None:
    """And its entry says why."""
    assert all(hasattr(keylanes, name) and len(reason) > 20 for name, reason in OPAQUE.items())
    assert all(hasattr(keylanes, name) for name in GIVEN)
    for name, reason in INSIDE.items():
        kind, _, method = name.partition(".")
        assert hasattr(getattr(keylanes, kind), method), name
        assert len(reason) > 20


async def test_types_of_what_calls_return() -> None:
    """mypy, which checks this file, and the run agree: a record or none, values of a kind, a view of a store."""
    app = App("typed", broker="embedded:never-opened")

    @app.handler("in", to="out")
    async def total(value: int, seen: State[int]) -> Record | None:
        now = (seen.get() or 0) + value
        seen.put(now)
        return Record(now, key=None) if now > 1 else None

    async with app.test() as broker:
        for value in (1, 2, 3):
            await broker.send("in", value, key="k")
        read = assert_type(await broker.read("out", int), list[int])
        assert sorted(read) == [3, 6]
        assert sorted(assert_type(await broker.read("out"), list[bytes])) == [b"3", b"6"]
        assert_type(await broker.read("out", int | None), list[Any])
        (record, _) = assert_type(await broker.records("out"), list[CommittedRecord])
        assert record.key is None
        view = assert_type(app.store("seen", int), StoreView[int])
        assert assert_type(view.get("k"), int | None) == 6
        (entry,) = assert_type(list(view.scan(within=KeyRange(0, 2**32))), list[StoreEntry[int]])
        assert entry.value == 6
        with pytest.raises(SettingsError, match="values of store 'seen' are declared as int; seen <class 'str'>"):
            app.store("seen", str)
        assert_type(app.statistics().partitions, tuple[PartitionStatistics, ...])


async def test_a_range_is_released_and_granted_with_what_is_exported() -> None:
    """Nothing from inside is needed for the public calls. A process alone gets back what it has released."""
    app, everything = App("ranges", broker="embedded:never-opened"), KeyRange(0, 2**32)

    @app.handler("in", to="out", parallelising_factor=4)
    async def same(value: int) -> int:
        return value

    async with app.test(partitions=1) as broker:
        await app.release("in", 0, everything)
        await app.grant("in", 0, everything)
        await broker.send("in", 1, key="k")
        assert await broker.read("out", int) == [1]
        await app.merge("in", 0, everything)
        assert app.statistics().partitions[0].workers == 1


def test_a_record_is_a_class() -> None:
    """With the value by place and all else by name; what is not given is told from None."""
    assert isinstance(Record(1), Record)
    assert Record(1) == Record(value=1) != Record(1, key=None)
    with pytest.raises(TypeError):
        Record(1, "topic")  # type: ignore[call-arg]  # as users may write it
