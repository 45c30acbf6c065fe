"""Which slot runs which worker. For now round-robin by the worker's place; measured placement takes its place later."""

from collections.abc import Sequence


def round_robin(workers: Sequence[int], slots: int) -> dict[int, int]:
    """Worker number to slot index in ``[0, slots)``, in order of the sequence; raises ValueError for no slots."""
    if slots < 1:
        raise ValueError(f"workers need at least one slot; seen {slots}")
    return {worker: i % slots for i, worker in enumerate(workers)}
