"""What may be written from outside in ``runtime/``: records of state, by the names under which they are written."""

from typing import Final

RECORDS: Final = frozenset(
    [
        *("worker", "other", "part", "heir", "left", "right", "load"),  # workers, and their loads
        *("dispatch", "run", "route", "blocked", "permit", "limit"),  # a partition on its way through its workers
        *("going", "call", "outcome", "done", "failed", "failures", "_failures"),  # attempts at records
        *("_attempts", "_gate", "_lanes", "_straight"),  # figures and limits of the parts of the slots
        *("stretch", "_stretch", "tally", "share", "shares", "piece", "generation", "parts", "reshaped", "leaving"),
        *("ledger", "logs", "_own_transactions"),  # folds of logs, and positions in them
        *("held", "_memory", "memory", "heard", "beats"),  # the memory of decisions
        *("alarm", "progress", "_log", "sought", "_threads", "_state_threads"),  # figures of long work
        *("one", "new", "passes", "followed", "asked"),  # copies, and their passes
        *("queries",),  # whether queries are answered
        *("error", "record", "current_process()"),  # of Python itself
    ]
)
"""Values that the code of another file writes. They hold no part that calls back."""
SET_LATER: Final = frozenset([("runtime/testing.py", "self._loop.before_waiting")])
"""Parts that are still set from outside, and callbacks with a default: to become constructor arguments."""
