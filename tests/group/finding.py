"""How defects are planted in this room, and whether a property finds one."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import Phase, settings

from keylanes.group import coordinator

from ..stage.planting import Planting, Put, mutated

_SETTINGS = "_hypothesis_internal_use_settings"
"""Where Hypothesis keeps those of a test: it has no other way to run one with others."""


def is_found(test: Callable[[], None]) -> None:
    """The property fails. It is not asked for the smallest example, which takes most of the time."""
    before = vars(test)[_SETTINGS]
    vars(test)[_SETTINGS] = settings(before, phases=[Phase.generate], report_multiple_bugs=False, max_examples=300)
    try:
        with pytest.raises(AssertionError):
            test()
    finally:
        vars(test)[_SETTINGS] = before


def each_is_found(planted: Mapping[str, tuple[Put, Callable[[], None]]]) -> Callable[..., None]:
    """A test that finds each defect by the property that it breaks."""

    @pytest.mark.parametrize(("put", "found_by"), planted.values(), ids=planted.keys())
    def test(put: Put, found_by: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
        put(Planting(monkeypatch))
        is_found(found_by)

    return test


def row(module: object, name: str, *pieces: tuple[str, str]) -> Put:
    """A changed row of the coordinator's table, as a defect."""

    def put(patch: Planting) -> None:
        before = getattr(module, name)
        after = mutated(before, *pieces)
        patch.setattr(coordinator, "ROWS", tuple(after if one is before else one for one in coordinator.ROWS))

    return put
