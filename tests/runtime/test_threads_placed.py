"""Workers of sync handlers are placed on threads by what they cost."""

import threading
from pathlib import Path

from keylanes.keyrange.hashing import SPACE_END, point_of

from ..broker.ground import Ground

FACTOR = 4
WAIT_S = 0.05
RECORDS = 400


def key_of_worker(worker: int) -> bytes:
    """A key whose point lies in the range of this worker of four."""
    keys = (b"key-%d" % i for i in range(1_000))
    return next(key for key in keys if point_of(key, 0, 0) * FACTOR // SPACE_END == worker)


def test_two_busy_workers_of_one_thread_are_parted(tmp_path: Path) -> None:
    """Dealt out without knowing their load, workers 0 and 2 share a thread of two; soon they run at the same time."""
    ground = Ground(f"embedded:{tmp_path / 'data'}")
    keys = (key_of_worker(0), key_of_worker(2))
    ground.fill([(keys[i % 2], b"%d" % i) for i in range(RECORDS)])
    app = ground.app(threads=2, placement_interval_ms=100)
    inside: set[str] = set()
    met, handled = threading.Event(), []
    change = threading.Condition()

    @app.handler(ground.source, parallelising_factor=FACTOR)
    def meet(value: int) -> None:
        with change:
            inside.add(threading.current_thread().name)
            change.notify_all()
            if not met.is_set() and change.wait_for(lambda: len(inside) == 2, WAIT_S):
                met.set()
            inside.discard(threading.current_thread().name)
            handled.append(value)

    app.run(until="level")
    assert met.is_set()
    assert sorted(handled) == list(range(RECORDS)), "nothing is lost or run twice by it"
    for parity in (0, 1):
        own = [value for value in handled if value % 2 == parity]
        assert own == sorted(own)
