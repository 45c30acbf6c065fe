"""What a planted defect is: a change of the running code, and what finds it.

Most are found by the seeds of the simulation. Where an interleaving needs what no seed has (a damaged topic, a folder
of RocksDB, a key at the end of the hash space) a test of another suite is named. The defects themselves are in
``plants_*.py``, by what they are about; ``test_planted.py`` runs them.

Two defects are not planted, because nothing shows them: a process that takes its fence for an abort, and one that reads
the logs before it makes a new producer and not after. They would have to commit between their expulsion and the moment
at which they read of it. What both would lead to is planted as "fenced process goes on" and "INIT without READ".
"""

import asyncio
import functools
import inspect
import itertools
import random
import re
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from ..stage.ground import Ground
from ..stage.planting import Put, finding, said_of
from .plan import KINDS, KINDS_MADE, RANGE_KINDS, Happening, Plan, draw_plan
from .steps import STRIKES

Test: TypeAlias = Callable[[], object]
"""A test that needs no fixture: it raises when it finds something."""
HAPPENINGS = 12
"""Of the kinds that a plant asks for, in each of its plans."""

# What a finding says, for ``Plant.finding``; the words are those of watch.py, process.py and state_checker.py.
DOUBLED = r"is committed by Holder.* belongs to Holder|is covered twice in|stands behind|begins at \d+ where"
AGAIN = f"is run after|run at once|{DOUBLED}"
LOST = r"led to \[\], right is|is not covered in|the changelog has nothing"
LEFT_OUT = rf"calls itself \[\]|counts wrongly|{LOST}"
LED_TO = r"led to \[(?:(?!, right is ).)*"
"""Goes on with something that came of a record: what should have come of it is named behind that."""
NO_DEAD_LETTER = r"led to \[\], right is .*topic='dead'"
OUTSIDE = "lies outside what was granted"


@dataclass(frozen=True)
class Plant:
    """One defect.

    ``finding``: a pattern for what is said of it, so that nothing else that goes wrong counts. ``raised``: what raises
    it, where that is neither an assertion nor an error of ours.

    ``found_by``: tests that fail with it, each by itself; none: seeds, that is plans; with nothing but happenings of
    ``kinds``, where it takes a rare meeting; ``stateful``: those with state.
    """

    name: str
    put: Put
    found_by: tuple[Test, ...] = ()
    kinds: tuple[str, ...] = ()
    stateful: bool = False
    finding: str = field(kw_only=True)
    raised: type[Exception] | None = None

    def found(self, test: Test) -> str:
        """What a test or a plan finds of it; empty: nothing, or something else."""
        try:
            test()
        except (Exception, asyncio.CancelledError, pytest.fail.Exception) as error:  # noqa: BLE001  # a defect may raise anything
            said = finding(error) or (said_of(error) if self.raised and type(error) is self.raised else "")
            return said if re.search(self.finding, said, re.DOTALL) else ""
        return ""

    def plans(self, known: int | None = None) -> Iterator[Plan]:
        """The plans that are to find it: first that of the seed which is known to, then from seed 0 on."""
        for seed in itertools.chain([] if known is None else [known], itertools.count()):
            plan = draw_plan(seed)
            if self.stateful and not plan.mix.stateful:
                continue
            yield focused(plan, self.kinds) if self.kinds else plan


def focused(plan: Plan, kinds: tuple[str, ...]) -> Plan:
    """A plan with nothing but happenings of these kinds, and many of them."""
    assert set(kinds) <= {*KINDS, *RANGE_KINDS, *KINDS_MADE, *STRIKES}, f"{kinds} are not all known"
    rng = random.Random(f"focused {plan.seed}")
    times = sorted(rng.random() * 1.5 * plan.mix.span_s for _ in range(HAPPENINGS))
    happenings = tuple(Happening(at_s, rng.choice(kinds), rng.getrandbits(32)) for at_s in times)
    return msgspec.structs.replace(plan, happenings=happenings)


def on_ground(test: Callable[[Ground], Any]) -> Test:
    """A test of a running application, on an embedded broker of its own."""

    @functools.wraps(test)
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            result = test(Ground(f"embedded:{folder}/data"))
            if inspect.iscoroutine(result):
                asyncio.run(result)

    return run


def awaited(test: Callable[[], Coroutine[Any, Any, None]]) -> Test:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def in_folder(test: Callable[[Path], None]) -> Test:
    """A test that wants an empty folder."""

    @functools.wraps(test)
    def run() -> None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a test that fails leaves files open
            test(Path(folder))

    return run


def each(test: Callable[..., None]) -> Test:
    """A test with parameters, with one set after the other."""

    @functools.wraps(test)
    def run() -> None:
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        assert len(marks) == 1, "one list of parameters"
        names, values = marks[0].args[:2]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        for value in values:
            given = getattr(value, "values", value)
            test(**dict(zip(names, given if len(names) > 1 or hasattr(value, "values") else (given,), strict=True)))

    return run


def label(test: Test) -> str:
    """A test as a person looks it up."""
    known = inspect.unwrap(test)
    path = Path(inspect.getfile(known))
    return f"{'/'.join(path.parts[path.parts.index('tests') :])}::{known.__name__}"
