"""Whether a property finds a planted defect; it is not asked for the smallest example, which takes most of the time."""

from collections.abc import Callable

import pytest
from hypothesis import Phase, settings

_SETTINGS = "_hypothesis_internal_use_settings"
"""Where Hypothesis keeps those of a test: it has no other way to run one with others."""


def is_found(test: Callable[[], None]) -> None:
    """The property fails, in its own words."""
    before = vars(test)[_SETTINGS]
    vars(test)[_SETTINGS] = settings(before, phases=[Phase.generate], report_multiple_bugs=False, max_examples=300)
    try:
        with pytest.raises(AssertionError):
            test()
    finally:
        vars(test)[_SETTINGS] = before
