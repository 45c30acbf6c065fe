"""An output or a changelog, read as a committed reader reads it, in a process of its own."""

from pathlib import Path
from typing import Any

from rig.drivers import run_module
from rig.errors import WrongRun
from rig.ground import Ground

READ_SECONDS_MAX = 120.0
WRONG_OUTPUTS = ("doubled", "missing", "out_of_order", "damaged")
"""What a reader counts, all of which should be 0."""
COMMIT_MS = 100
"""Between two commits of all that run exactly once."""
HEADERS = {"keylanes": "kl", "keylanes-2": "kl"}
"""What an arm's outputs must carry: keylanes' say where they come from."""


def check_output(
    order: dict[str, Any], distribution: str, ground: Ground, seconds_max: float = READ_SECONDS_MAX
) -> dict[str, Any]:
    """Read an arm's output as a committed reader. Raises WrongRun unless all is there once and in order."""
    seen = read_output(order, distribution, ground, seconds_max)
    wrong = {name: seen[name] for name in WRONG_OUTPUTS if seen.get(name)}
    if wrong:
        raise WrongRun(f"the committed output is wrong: {wrong}")
    return seen


def read_output(
    order: dict[str, Any], distribution: str, ground: Ground, seconds_max: float = READ_SECONDS_MAX
) -> dict[str, Any]:
    """What a committed reader sees of an arm's output; of a paced one by the turns of each key alone."""
    names = ("records", "keys", "stuck", "expected", "is_paced", "header")
    asked = {name: order[name] for name in names if name in order}
    return ask_reader({**asked, "topic": order["output"], "distribution": distribution}, order, ground, seconds_max)


def ask_reader(
    asked: dict[str, Any], order: dict[str, Any], ground: Ground, seconds_max: float = READ_SECONDS_MAX
) -> dict[str, Any]:
    """What the reader answers, for the topic that it is asked about. Raises WrongRun."""
    folder = Path(order["folder"]).with_name("check")
    with run_module("rig.reader", {**asked, "bootstrap": ground.bootstrap}, folder) as reader:
        found = reader.event("result", seconds_max)
        reader.end()
    return found
