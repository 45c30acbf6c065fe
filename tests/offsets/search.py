"""The breadth-first search that the models of this folder share: every reachable world once, the shortest way told."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from ..tiers.marks import tier

W = TypeVar("W")


@dataclass(frozen=True)
class Found(Generic[W]):
    """The end of a search: the worlds that were seen, and the shortest way to a wrong one, if there is any."""

    wrong: str
    path: tuple[tuple[str, W], ...]
    """the steps of that way, each with the world that it led to"""
    ends: tuple[W, ...]
    """the worlds in which nothing can happen any more"""
    came_from: dict[W, tuple[W, str] | None]
    """each world that was seen, with the one before it and the step between"""

    @property
    def worlds(self) -> int:
        """How many worlds were seen."""
        return len(self.came_from)

    @property
    def trace(self) -> tuple[str, ...]:
        """The steps of the shortest way to a wrong world."""
        return tuple(label for label, _ in self.path)

    def path_to(self, world: W) -> tuple[tuple[str, W], ...]:
        """The shortest way to a world that was seen."""
        steps: list[tuple[str, W]] = []
        while (step := self.came_from[world]) is not None:
            before, label = step
            steps.append((label, world))
            world = before
        return tuple(reversed(steps))

    def __str__(self) -> str:
        lines = [f"{i:2}. {line}" for i, line in enumerate(self.trace, 1)]
        return f"{self.wrong or 'nothing wrong'} among {self.worlds} worlds\n" + "\n".join(lines)


def search(
    start: W,
    successors: Callable[[W], Iterable[tuple[str, W]]],
    violations: Callable[[W], Iterable[str]],
    wanted: tuple[str, ...],
    worlds_max: int = 2_000_000,
) -> Found[W]:
    """Search breadth-first until a wanted violation is found or every reachable world was seen. Worlds are hashable."""
    came_from: dict[W, tuple[W, str] | None] = {start: None}
    queue = deque([start])
    ends = []
    while queue:
        world = queue.popleft()
        is_end = True
        for label, after in successors(world):
            is_end = False
            if after in came_from:
                continue
            came_from[after] = (world, label)
            wrong = [name for name in violations(after) if name in wanted]
            if wrong:
                return Found(wrong[0], Found("", (), (), came_from).path_to(after), (), came_from)
            queue.append(after)
        if is_end:
            ends.append(world)
        assert len(came_from) <= worlds_max, "the model is too large to be searched"
    return Found("", (), tuple(ends), came_from)


def stuck_worlds(
    start: W, successors: Callable[[W], Iterable[tuple[str, W]]], is_at_rest: Callable[[W], bool]
) -> list[W]:
    """The reachable worlds from which no way leads to a world at rest. Steps that repeat for ever don't hide them."""
    before: dict[W, list[W]] = {start: []}
    queue = deque([start])
    while queue:
        world = queue.popleft()
        for _, after in successors(world):
            if after not in before:
                before[after] = []
                queue.append(after)
            before[after].append(world)
    queue.extend(world for world in before if is_at_rest(world))
    reaching = set(queue)
    while queue:
        fresh = set(before[queue.popleft()]) - reaching
        reaching |= fresh
        queue.extend(fresh)
    return [world for world in before if world not in reaching]


WORLDS_MAX = 9_000
"""Of a search that is no part of the proof."""
LARGE = tier("proof", "protocol-models")


def params(table: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    """The rows of a table (a design, the number of its worlds, …) for pytest; large searches are part of the proof."""
    return [pytest.param(*row, id=name, marks=LARGE if row[1] > WORLDS_MAX else ()) for name, row in table.items()]
