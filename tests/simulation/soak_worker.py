"""A process that runs plans for others: a task on each line that comes in, an answer on each line that goes out.

It is told how long a task may take on the clock on the wall. A plan that does not come to its end (a loop that never
waits stands still in virtual time for ever) ends the process, with the place where it hangs on its standard error.
"""

import faulthandler
import logging
import os
import sys
import time
import traceback
from typing import BinaryIO

import msgspec

from .plan import Plan, draw_plan
from .shrink import kind_of
from .world import run_plan


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A seed to run, or a plan. ``name``: for whoever asks; it comes back with the answer."""

    seed: int
    name: str = ""
    plan: str = ""
    """As JSON; empty: the seed's own."""
    tells: bool = False
    """Whether the story is wanted also when all went well."""


class Failure(msgspec.Struct, frozen=True):
    """How a plan failed. ``kind``: see ``shrink.kind_of``; ``text``: the whole of it; ``story``: what came before."""

    kind: str
    text: str
    story: list[str] = []


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a task. ``trace``: a hash over all that the simulated cluster holds in the end."""

    seed: int
    seconds: float
    name: str = ""
    trace: str = ""
    faults: dict[str, int] = {}
    """By kind; ``reached``: whatever else it came across."""
    reached: dict[str, int] = {}
    plan: str = ""
    """The plan that was run, as JSON, when it failed or was asked for."""
    failure: Failure | None = None
    story: list[str] = []


def run_task(task: Task) -> Answer:
    """Run it here, in this process."""
    began_s = time.perf_counter()
    plan = decode(task.plan) if task.plan else draw_plan(task.seed)
    try:
        outcome = run_plan(plan)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is a failure of this plan
        story = take_story(error)
        failure = Failure(kind_of(error), "".join(traceback.format_exception(error)), story)
        seconds = time.perf_counter() - began_s
        return Answer(task.seed, seconds, task.name, plan=encode(plan), failure=failure)
    return Answer(
        task.seed,
        time.perf_counter() - began_s,
        task.name,
        outcome.trace,
        dict(+outcome.faults),
        dict(+outcome.reached),
        encode(plan) if task.tells else "",
        story=list(outcome.story) if task.tells else [],
    )


def take_story(error: BaseException) -> list[str]:
    """What the world saw until then: it stands in the error's notes, and is taken from there."""
    notes: list[str] = getattr(error, "__notes__", [])
    story = "\n".join(notes).splitlines()
    notes.clear()
    return story


def encode(plan: Plan) -> str:
    """A plan as JSON."""
    return msgspec.json.encode(plan).decode()


def decode(plan: str) -> Plan:
    """A plan from JSON."""
    return msgspec.json.decode(plan, type=Plan)


def serve(tasks: BinaryIO, answers: BinaryIO, limit_s: float) -> None:
    """Until no more tasks come."""
    decoder = msgspec.json.Decoder(Task)
    for line in tasks:
        faulthandler.dump_traceback_later(limit_s, exit=True)
        answer = run_task(decoder.decode(line))
        faulthandler.cancel_dump_traceback_later()
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


def main() -> None:
    """``soak_worker LIMIT_S``. What the code under test prints goes to standard error."""
    logging.disable()  # the story tells what happened; without end, lines would only fill the file of errors
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers, float(sys.argv[1]))


if __name__ == "__main__":
    main()
