"""Failures are said in a sample: the first of a kind, one in an interval, and none is lost from the counts."""

from hypothesis import given
from hypothesis import strategies as st

from keylanes.runtime.watch.failures import FailureKind, FailureSample, and_more

from ...tiers.marks import tier

pytestmark = tier("check")

INTERVAL_S = 10
KINDS = [
    FailureKind(handler, error, then) for handler in "ab" for error in ("KeyError", "OSError") for then in ("", "dead")
]

failing = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 6)), max_size=60)
"""Kinds, each with the seconds since the one before."""


def twin(failures: list[tuple[FailureKind, int]]) -> list[int | None]:
    """What should be said of each failure, from all that came before it."""
    found: list[int | None] = []
    for i, (kind, now_s) in enumerate(failures):
        own = [j for j in range(i) if failures[j][0] == kind]
        said = [j for j in own if found[j] is not None]
        if said and now_s - failures[said[-1]][1] < INTERVAL_S:
            found.append(None)
        else:
            found.append(sum(1 for j in own if not said or j > said[-1]))
    return found


@given(failing)
def test_what_is_said_is_what_a_list_of_all_failures_says(steps: list[tuple[FailureKind, int]]) -> None:
    """Kinds do not disturb each other, and what was said and counted is all there was."""
    failures: list[tuple[FailureKind, int]] = []
    now_s = 0
    for kind, pause_s in steps:
        now_s += pause_s
        failures.append((kind, now_s))
    sample = FailureSample(INTERVAL_S)
    said = [sample.look(kind, now_s) for kind, now_s in failures]
    assert said == twin(failures)
    for kind in KINDS:
        own = [more for (other, _), more in zip(failures, said, strict=True) if other == kind]
        last = max((i for i, more in enumerate(own) if more is not None), default=-1)
        assert sum(1 + more for more in own if more is not None) == last + 1
        assert len(own) == 0 or own[0] == 0


def test_kinds_that_are_remembered_are_bounded() -> None:
    """Of too many the one that was said longest ago is forgotten; the others are not said again too early."""
    sample = FailureSample(INTERVAL_S, kinds_max=2)
    first, second, third, *_ = KINDS
    assert [sample.look(kind, at) for at, kind in enumerate((first, second, first, third))] == [0, 0, None, 0]
    assert sample.look(second, 4) is None
    assert sample.look(first, 5) == 0


def test_what_stands_behind_the_line() -> None:
    """Nothing behind the first one."""
    assert and_more(0) == ""
    assert and_more(1_312) == " (and 1,312 more like it)"
