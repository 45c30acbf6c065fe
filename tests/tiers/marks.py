"""The tier of a test: which command runs it.

    check   ``make check``: fast tests, on the sources
    test    ``make test``: what a change has to pass; those of `check`, too
    proof   ``make proof``: everything else, in parts of some minutes (parts.py)

A file names its tier: ``pytestmark = tier("check")``. A file without a mark is in `test`. A test of another tier than
its file has a mark of its own.
"""

from typing import Final

import pytest

CHECK: Final = "check"
TEST: Final = "test"
PROOF: Final = "proof"
TIERS: Final = {CHECK: {CHECK}, TEST: {CHECK, TEST}, PROOF: {PROOF}}
"""The tiers, each with those whose tests its command runs."""


def tier(name: str, part: str = "") -> pytest.MarkDecorator:
    """The mark of a tier. ``part``: of the proof, as parts.py names it. Raises ValueError for an unknown tier."""
    if name not in TIERS:
        raise ValueError(f"a tier is one of {', '.join(TIERS)}; seen {name!r}")
    if (name == PROOF) != bool(part):
        raise ValueError(f"a test of the proof names its part, no other one does; seen {name!r}, {part!r}")
    return pytest.mark.tier(name, part)


def tier_of(item: pytest.Item) -> tuple[str, str]:
    """The tier of a test, and its part of the proof or ""."""
    mark = item.get_closest_marker("tier")
    return (mark.args[0], mark.args[1]) if mark else (TEST, "")
