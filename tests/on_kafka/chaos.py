"""A round of chaos: a real Kafka, processes of one application with state, and everything that may happen to them.

Processes and broker are killed and suspended, two processes run at once, connections are cut and commits arrive late,
while a client that is not ours fills the source. Then all is healed, the application works until it is level, and Spark
proves from the logs that nothing was lost, doubled, out of order or torn, and that every value of state is right.

What happens is in chaos_plan.py, how it is done in chaos_world.py, what is found in chaos_audit.py.
"""

from collections.abc import Callable
from pathlib import Path

from .chaos_audit import Figures
from .chaos_plan import Round
from .chaos_process import ChaosError
from .chaos_stage import Hear
from .chaos_world import World

__all__ = ["ChaosError", "Figures", "Round", "run_round"]


def run_round(round_: Round, folder: Path, tell: Callable[[str], None], hear_found: Hear = dict) -> Figures:
    """Run a round in a folder of its own: see ``ChaosStage.play``. ``tell`` hears one line about each thing."""
    world = World(round_, folder, tell)
    return world.play(round_, world.figures, world.judge, hear_found)
