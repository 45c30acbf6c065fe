"""The whole runtime, seed by seed: whatever happens to it, every record is processed exactly once, in order of its key.

A failing seed is in the name of its test: ``python -m pytest tests/simulation --first-seed N --seeds 1`` runs it again.
"""

from collections import Counter

import pytest

from .world import run_seed

reached: Counter[str] = Counter()
traces: dict[int, str] = {}

MUST_BE_REACHED = (
    "dropped",
    "caught up",
    "trimmed",
    "out",
    "audit",
    "dead",
    "SnapshotTaken",
    "RangeReleased",
    "range passed on",
    "WorkerSplit",
    "WorkersMerged",
    "StateChanged",
    "entries in copies",
    "died at write",
    "compact",
    "NoKey",
    "ValueError",
    "DecodeFailed",
    "HandlerTimeout",
    "OutputRefused",
    "TransactionRefused",
    "ended with FencedError",
    "ended with BrokerUnavailable",
    "ended with NoneType",
)


def test_every_record_is_processed_exactly_once(seed: int) -> None:
    """Crashes, stops, rivals, faults, changed cuts: the logs are right in the end, and nothing is left to be done."""
    traces[seed], came_across = run_seed(seed)
    reached.update(came_across)


@pytest.mark.parametrize("repeated", range(5))
def test_the_same_seed_gives_the_same_bytes(repeated: int) -> None:
    """Every offset of every log, and the time at the end, come from the seed alone."""
    first = traces.get(repeated) or run_seed(repeated)[0]
    assert run_seed(repeated)[0] == first


def test_the_seeds_reach_everything(pytestconfig: pytest.Config) -> None:
    """A mix that never drops, merges, trims or times out would prove nothing about it."""
    if len(traces) < 100:
        pytest.skip("with few seeds some things may not happen")
    missing = [what for what in MUST_BE_REACHED if not reached[what]]
    assert not missing, f"no seed reached {missing}"
