"""Rounds of arms: every arm runs once in each, so that a machine that changes its speed changes it for all of them."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

Figures = dict[str, Any]


def arguments(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """A parser with the option of all benchmarks that run in rounds."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"how often each arm runs (default {rounds})")
    return parser


def run_rounds(
    count: int, arms: Sequence[str], run: Callable[[str, str], Figures], said: Callable[[Figures], str]
) -> list[Figures]:
    """The figures of every run, with its round and its arm, in the order of the runs. Every other round begins with the
    last arm.

    ``run`` gets the arm and a suffix that no other run has. ``said``: the figures, for a person.
    """
    rounds: list[Figures] = []
    for number in range(count):
        for arm in arms[:: -1 if number % 2 else 1]:
            figures = run(arm, f"{number}-{arms.index(arm)}")
            rounds.append({"round": number, "arm": arm, **figures})
            print(f"  round {number}: {arm}: {said(figures)}", flush=True)
    return rounds
