"""What takes the place of something is called alike, or it is not planted."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from keylanes.runtime.handlers.partition_state import Scope

from ..tiers.marks import tier
from .planting import Misfit, Planting, Tripping

pytestmark = tier("check")


class Lane:
    """What is planted into."""

    width = 3

    def begin(self, record: bytes, *, again: bool = False) -> int:
        """Called."""
        return 1

    async def end(self, record: bytes) -> int:
        """Awaited."""
        return 2

    @staticmethod
    def of(record: bytes) -> int:
        """Called without itself."""
        return 3

    @classmethod
    def made(cls, record: bytes) -> "Lane":
        """Called on the class."""
        return cls()

    @property
    def edge(self) -> int:
        """Read."""
        return 4


async def _later(self: Lane, record: bytes) -> int:
    return 2


def _made(record: bytes, kind: type[Lane]) -> Lane:
    return kind()


FITS: list[tuple[str, Any]] = [
    ("begin", lambda self, record, *, again=False: None),
    ("begin", lambda lane, record, *, again=True: None),
    ("begin", staticmethod(lambda record, *, again=False: None)),
    ("end", _later),
    ("of", staticmethod(lambda record: 7)),
    ("of", partial(lambda lane, record: 7, None)),
    ("made", classmethod(lambda cls, record: cls())),
    ("made", staticmethod(lambda record: Lane())),
    ("edge", property(lambda self: 1)),
    ("width", 4),
]
DIFFERS: list[tuple[str, Any]] = [
    ("begin", lambda self, offset, timestamp_ms: None),
    ("begin", lambda self, data, *, again=False: None),
    ("begin", lambda self, record, again=False: None),
    ("begin", lambda self, record, *, again: None),
    ("begin", lambda self, record: None),
    ("begin", lambda self, *arguments, **named: None),
    ("begin", partial(lambda lane, record, *, again=False: None)),
    ("begin", None),
    ("end", lambda self, record: None),
    ("of", lambda record: 7),
    ("of", partial(lambda record: 7, b"")),
    ("made", lambda cls, record: cls()),
    ("made", partial(_made, kind=Lane)),
    ("edge", lambda self: 1),
]


@pytest.mark.parametrize(("name", "new"), FITS)
def test_what_is_called_alike_is_planted(name: str, new: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, kinds and defaults are those of before, as whoever calls it sees them; a value may be any."""
    Planting(monkeypatch).setattr(Lane, name, new)
    assert vars(Lane)[name] is new


@pytest.mark.parametrize(("name", "new"), DIFFERS)
def test_what_is_called_in_another_way_is_refused(name: str, new: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter less, more, or of another name or kind; a function that is not awaited as before; no function."""
    before = vars(Lane)[name]
    with pytest.raises(Misfit, match=rf"^Lane\.{name} is "):
        Planting(monkeypatch).setattr(Lane, name, new)
    assert vars(Lane)[name] is before


@pytest.mark.interpreted
def test_an_outdated_signature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of the time when an attempt began with an offset and a timestamp; today it begins with a record."""

    def begin_now(self: Scope, offset: int, timestamp_ms: int) -> None: ...

    said = r"^Scope\.begin is called on an instance with record \(.*\); the defect .*begin_now.* with offset \("
    with pytest.raises(Misfit, match=said):
        Planting(monkeypatch).setattr("keylanes.runtime.handlers.partition_state.Scope", "begin", begin_now)


@pytest.mark.parametrize("call", [Lane().begin, Lane.of, Lane.made])
def test_what_trips_raises_where_it_is_called(call: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A TypeError, whatever it is given."""
    name = call.__name__
    Tripping(monkeypatch).setattr(Lane, name, vars(Lane)[name])
    with pytest.raises(TypeError, match="arguments"):
        getattr(Lane(), name)(b"")


async def test_what_trips_raises_where_it_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine raises when it runs."""
    Tripping(monkeypatch).setattr(Lane, "end", _later)
    ending = Lane().end(b"")
    with pytest.raises(TypeError, match="arguments"):
        await ending
