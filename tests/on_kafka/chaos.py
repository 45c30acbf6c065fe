"""A round of chaos: a real Kafka, processes of one application with state, and everything that may happen to them.

Processes and broker are killed and suspended, two processes run at once, connections are cut and commits arrive late,
while a client that is not ours fills the source. Then all is healed, the application works until it is level, and Spark
proves from the logs that nothing was lost, doubled, out of order or torn, and that every value of state is right.

What happens is in chaos_plan.py, how it is done in chaos_world.py, what is found in chaos_audit.py.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from .chaos_audit import Figures, judge
from .chaos_plan import Round
from .chaos_process import ChaosError
from .chaos_world import World

__all__ = ["ChaosError", "Figures", "Round", "run_round"]


def run_round(
    round_: Round, folder: Path, tell: Callable[[str], None], hear_found: Callable[[dict[str, int]], object] = dict
) -> Figures:
    """Run a round in a folder of its own, which is deleted when it went well; raises ChaosError with what happened.

    ``tell`` hears one line about each thing that happens; ``hear_found`` what the audit of a round that failed has
    found. Broker and processes are ended in any case.
    """
    folder.mkdir(parents=True, exist_ok=True)
    world = World(round_, folder, tell)
    try:
        world.begin()
        for number, happening in enumerate(world.plan):
            world.say(f"{number + 1} of {len(world.plan)}: {happening.told()}")
            world.happen(happening)
        code = world.heal()
        judge(world, is_level=code == 0)
    except BaseException as error:
        hear_found(world.figures.found)
        for line in (f"{round_}", *world.story[-12:], world.tails()):
            error.add_note(line)
        raise
    finally:
        world.end()
    shutil.rmtree(folder, ignore_errors=True)
    return world.figures
