"""The digest of a planted defect changes with the code that the defect touches, and with nothing else."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from ..tiers.marks import tier
from . import digests
from .digests import UNKNOWN, Recording, digest_of, syntax, syntax_of
from .planting import Planting, Put, changed, everywhere
from .test_planting import Lane

pytestmark = tier("check")

BEFORE = '''
    @cached
    def edge(self, record: bytes | None = None) -> int:
        """Where it ends."""
        if record is not None and self.queue:  # it waits
            return f"{self.queue[0]:>{WIDTH}}"
        return self.at
'''


def rewritten(*pieces: tuple[str, str]) -> str:
    """The source above with pieces of it replaced."""
    source = BEFORE
    for old, new in pieces:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


@pytest.mark.parametrize(
    "source",
    [
        rewritten(("Where it ends.", "The first offset that is not done.")),
        rewritten(('        """Where it ends."""\n', "")),
        rewritten(("  # it waits", "")),
        rewritten(("  # it waits", "\n            # it waits, and\n            # has waited")),
        rewritten(("record: bytes | None = None", "\n        record: (bytes | None) = None,\n    ")),
        rewritten(("        return self.at", '        """Told as it is."""\n\n\n        return (self.at)')),
        rewritten(('f"{self.queue[0]:>{WIDTH}}"', "f'{self.queue[0]:>{WIDTH}}'")),
        BEFORE.replace("    ", "  "),
    ],
)
def test_words_change_no_digest(source: str) -> None:
    """Comments, docstrings, places, brackets and quotes may be others."""
    assert source != BEFORE
    assert syntax(source) == syntax(BEFORE)


@pytest.mark.parametrize(
    "source",
    [
        rewritten(("is not None and", "is None and")),
        rewritten(("is not None and", "is not None or")),
        rewritten(("self.queue[0]", "self.queue[1]")),
        rewritten(("return self.at", "return self.at + 1")),
        rewritten(("return self.at", 'return "Where it ends."')),
        rewritten(("bytes | None = None", "bytes | None = b''")),
        rewritten(("@cached\n", "@shared\n")),
        rewritten(("    def", "    async def")),
    ],
)
def test_another_condition_is_another_digest(source: str) -> None:
    """Whatever may be done in another way is seen."""
    assert syntax(source) != syntax(BEFORE)


def small(record: bytes) -> bool:
    """Whether it is."""
    return len(record) < Lane.width


def large(record: bytes) -> bool:
    """Whether it is."""
    return len(record) > Lane.width


class TableLane(Lane):
    """What defects are planted into."""

    rows = (small, large)
    others: tuple[object, ...] = (object(),)

    @functools.cache  # noqa: B019  # it is never called
    def kept(self) -> int:
        """Wrapped."""
        return 5

    @functools.cached_property
    def first(self) -> int:
        """Read once."""
        return 6


def set_to(name: str, new: Any) -> Put:
    """A defect that gives an attribute of the lane another value."""
    return lambda patch: patch.setattr(TableLane, name, new)


@pytest.mark.parametrize(
    ("name", "number"), [("begin", 1), ("end", 2), ("of", 3), ("edge", 4), ("kept", 5), ("first", 6)]
)
def test_methods_of_every_kind_have_a_syntax(name: str, number: int) -> None:
    """A static method, a property and what a decorator wraps are looked into."""
    assert f"Return(value=Constant(value={number}))" in syntax_of(inspect.getattr_static(TableLane, name))


def test_a_recording_notes_what_is_touched() -> None:
    """The first value of an attribute and its last; what is planted is planted, and undone."""

    def twice(patch: Planting) -> None:
        changed(Lane, "begin", ("return 1", "return 10"))(patch)
        patch.setattr(Lane, "width", 4)
        patch.setattr(Lane, "width", 5)
        assert (Lane().begin(b""), Lane.width) == (10, 5)

    with pytest.MonkeyPatch.context() as patch:
        recording = Recording(patch)
        before = vars(Lane)["begin"]
        twice(recording)
    assert recording.touched[Lane, "width"] == (3, 5)
    assert recording.touched[Lane, "begin"][0] is before
    assert (Lane().begin(b""), Lane.width) == (1, 3)


def test_a_digest_is_of_what_is_touched_and_put() -> None:
    """Each method, each replacement and each constant is another; the same defect is the same every time."""
    puts = [
        changed(Lane, "begin", ("return 1", "return 10")),
        changed(Lane, "begin", ("return 1", "return 11")),
        changed(Lane, "end", ("return 2", "return 10")),
        set_to("begin", lambda self, record, *, again=False: 10),
        set_to("width", 4),
        set_to("rows", (small, small)),
        lambda patch: everywhere(patch, small, large),
    ]
    seen = [digest_of(put) for put in puts]
    assert UNKNOWN not in seen
    assert len(set(seen)) == len(puts)
    assert seen == [digest_of(put) for put in puts]


def test_of_a_table_only_the_rows_that_differ_count() -> None:
    """A change of another row makes no defect stale."""
    put = set_to("rows", (small, small))
    before = digest_of(put)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableLane, "rows", (Lane.begin, large))
        assert digest_of(set_to("rows", (Lane.begin, small))) == before


def misfit(patch: Planting) -> None:
    """A defect of a method that is called in another way now."""
    patch.setattr(Lane, "begin", lambda self: 1)


@pytest.mark.parametrize("put", [misfit, set_to("others", (1,)), lambda patch: None])
def test_what_can_not_be_known_equals_nothing(put: Put) -> None:
    """A defect that does not fit, that touches what has no source, or that touches nothing has no digest."""
    assert digest_of(put) == UNKNOWN


@pytest.mark.parametrize(
    ("name", "blind"), [("_is_prose", lambda part: False), ("_is_prose", lambda part: True), ("_text", lambda part: "")]
)
def test_a_digest_that_is_blind_is_found(
    name: str, blind: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a digest that minds docstrings, and two that mind no code, fail the tests above."""
    Planting(monkeypatch).setattr(digests, name, blind)
    minds_words = syntax(rewritten(('        """Where it ends."""\n', ""))) != syntax(BEFORE)
    minds_code = syntax(rewritten(("is not None and", "is None and"))) != syntax(BEFORE)
    assert minds_words or not minds_code
