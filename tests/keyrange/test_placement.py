"""Placement of workers on slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylanes.keyrange.placement import round_robin


@given(st.lists(st.integers(0, 10_000), unique=True, max_size=60), st.integers(1, 9))
def test_round_robin_deals_workers_out_like_cards(workers: list[int], slots: int) -> None:
    """The dumb twin takes a slot from the front of a queue for each worker and puts it back at the end."""
    queue, dealt = list(range(slots)), {}
    for worker in workers:
        dealt[worker] = queue.pop(0)
        queue.append(dealt[worker])
    placed = round_robin(workers, slots)
    assert placed == dealt
    assert list(placed) == workers
    loads = [list(placed.values()).count(slot) for slot in range(slots)]
    assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("slots", [0, -1])
def test_workers_need_a_slot(slots: int) -> None:
    """No slots is an error that names what was seen, also when there is no worker."""
    with pytest.raises(ValueError, match=f"seen {slots}"):
        round_robin([], slots)
