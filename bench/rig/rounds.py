"""Rounds of arms: every arm runs once in each, so that a machine that changes its speed changes it for all of them."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

Figures = dict[str, Any]


def arguments(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=("kafka", "embedded"), default="kafka", help="default: a real Kafka")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"how often each arm runs (default {rounds})")
    parser.add_argument("--full", action="store_true", help="larger, longer, more arms")
    return parser


def run_rounds(
    count: int,
    arms: Sequence[str],
    run: Callable[[str, str], Figures],
    said: Callable[[Figures], str],
    *,
    turned: bool = False,
) -> list[Figures]:
    """The figures of every run, with its round and its arm, in the order in which they ran.

    ``run`` gets the arm and a suffix that no other run has. ``said``: the figures, for a person. ``turned``: every
    other round begins with the last arm.
    """
    rounds: list[Figures] = []
    for number in range(count):
        for arm in arms[::-1] if turned and number % 2 else arms:
            figures = run(arm, f"{number}-{arms.index(arm)}")
            rounds.append({"round": number, "arm": arm, **figures})
            print(f"  round {number}: {arm}: {said(figures)}", flush=True)
    return rounds


def rate_said(figures: Figures) -> str:
    """The rate of a run, for a person."""
    return f"{figures['per_second']:,.0f} records/s"
