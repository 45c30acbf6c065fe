"""Which code a planted defect touches, and a digest of that code: a change of words leaves the digest as it is."""

import ast
import functools
import hashlib
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from .planting import Planting, Put

UNKNOWN = ""
"""The digest of a defect that touches something without source, or that does not fit. It equals no digest."""
DIGEST_CHARACTERS = 12


class Recording(Planting):
    """Plants a defect, and notes of each attribute its value of before and the value in its place."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        self.touched: dict[tuple[Any, str], tuple[Any, Any]] = {}

    def _put(self, owner: Any, name: str, new: Any) -> None:
        before, _ = self.touched.get((owner, name), (inspect.getattr_static(owner, name), None))
        self.touched[owner, name] = before, new
        super()._put(owner, name, new)


def digest_of(put: Put) -> str:
    """A digest of the functions that a defect replaces and of the functions in their place, or ``UNKNOWN``."""
    with pytest.MonkeyPatch.context() as patch:
        recording = Recording(patch)
        try:
            put(recording)
        except Exception:  # noqa: BLE001  # a defect that does not fit raises anything
            return UNKNOWN
    # A set: how often a function is imported, and in which order, says nothing of it.
    pairs = {
        (syntax_of(old), "" if isinstance(new, str) else syntax_of(new))  # a text may hold paths of this machine
        for touched in recording.touched.values()
        for old, new in _pieces(*touched)
    }
    if not pairs or any(old == UNKNOWN for old, _ in pairs):
        return UNKNOWN
    return hashlib.sha256("\n".join(map("\n".join, sorted(pairs))).encode()).hexdigest()[:DIGEST_CHARACTERS]


def _pieces(old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
    """A replaced value and its replacement; of a table, the rows that differ."""
    if isinstance(old, tuple) and isinstance(new, tuple):
        yield from (pair for pair in itertools.zip_longest(old, new) if pair[0] is not pair[1])
    else:
        yield old, new


def syntax_of(value: Any) -> str:
    """The syntax of a function, method, property or class, or the text of a constant; ``UNKNOWN``: of none of these."""
    if isinstance(value, property):
        return "\n".join(syntax_of(one) for one in (value.fget, value.fset, value.fdel) if one is not None)
    if isinstance(value, staticmethod | classmethod):
        return syntax_of(value.__func__)
    if isinstance(value, functools.partial | functools.cached_property):
        return syntax_of(value.func)
    if inspect.isroutine(value) or inspect.isclass(value):
        try:
            return syntax(inspect.getsource(inspect.unwrap(value)))
        except (OSError, TypeError, SyntaxError):  # it is written in C, or stands within an expression
            return repr(value) if inspect.isclass(value) else UNKNOWN
    return UNKNOWN if " at 0x" in repr(value) else repr(value)


def syntax(source: str) -> str:
    """The syntax tree of a source without comments, docstrings and places, alike in every version of Python."""
    return _text(ast.parse(textwrap.dedent(source)))


def _text(part: Any) -> str:
    if isinstance(part, ast.AST):
        # Fields that are empty are left out: a newer Python has more of them.
        fields = [(name, value) for name, value in ast.iter_fields(part) if value not in (None, [])]
        return f"{type(part).__name__}({', '.join(f'{name}={_text(value)}' for name, value in fields)})"
    if isinstance(part, list):
        return f"[{', '.join(_text(each) for each in part if not _is_prose(each))}]"
    return repr(part)


def _is_prose(part: Any) -> bool:
    """Whether a statement is nothing but a string: a docstring, of whatever it may be."""
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)
