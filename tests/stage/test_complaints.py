"""A test of many cases names every case that fails, and ends one that goes on for ever."""

import asyncio
import signal
import time
from contextlib import suppress
from typing import NamedTuple

import pytest

from ..tiers.marks import tier
from .complaints import Overdue, complaints, limited

pytestmark = tier("check")


class Case(NamedTuple):
    """What a check does with it."""

    name: str
    does: str


def check(case: Case, patch: pytest.MonkeyPatch) -> None:
    """Do it. Each case finds the attribute as it was before all of them."""
    assert Case.__doc__ == "What a check does with it."
    patch.setattr(Case, "__doc__", case.does)
    match case.does:
        case "waits":
            asyncio.run(asyncio.sleep(60))
        case "is busy":
            asyncio.run(busy())
        case "refuses":
            pytest.fail("refused")
        case "raises":
            raise KeyError(case.name)


async def busy() -> None:
    """Hold up the loop, and go on after any error of a program."""
    with suppress(Exception):
        time.sleep(60)  # noqa: ASYNC251  # the loop is to be held up
    raise ValueError("it went on")


def test_every_case_that_fails_is_named() -> None:
    """The first that fails doesn't hide the others, and those that pass aren't named."""
    cases = [Case("a", "raises"), Case("b", ""), Case("c", "refuses"), Case("d", "raises"), Case("e", "")]
    assert complaints(cases, check, 5) == ["a: KeyError: 'a'", "c: Failed: refused", "d: KeyError: 'd'"]


def test_each_case_has_its_own_time() -> None:
    """A case that never ends is stopped, waiting or not, and the next one is checked."""
    cases = [Case("a", "waits"), Case("b", "is busy"), Case("c", ""), Case("d", "raises")]
    overdue = "Overdue: it takes longer than 0.1 s"
    assert complaints(cases, check, 0.1) == [f"a: {overdue}", f"b: {overdue}", "d: KeyError: 'd'"]


def test_cleaning_up_is_limited_too() -> None:
    """What waits for ever when it is stopped is stopped again."""

    def stubborn() -> None:
        try:
            time.sleep(60)
        finally:
            time.sleep(60)

    began = time.monotonic()
    with pytest.raises(Overdue), limited(0.1):
        stubborn()
    assert time.monotonic() - began < 30


def test_the_limit_around_goes_on_behind() -> None:
    """A limit that is set around counts on from where it was."""
    with limited(5):
        for _ in range(3):
            with limited(4):
                time.sleep(0.5)
            assert 4 < signal.getitimer(signal.ITIMER_REAL)[0] < 5
        with pytest.raises(Overdue, match=r"than 0\.1 s"), limited(0.1):
            time.sleep(5)
    with pytest.raises(Overdue, match=r"than 0\.3 s"), limited(0.3):
        time.sleep(5)
