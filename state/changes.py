"""PURE. What a transaction changes of one partition's state."""

from dataclasses import dataclass, field

from .overlay import Changes, Layer


@dataclass(slots=True)
class StateChanges:
    """What a transaction changes of the state of one source partition (``place``): of each key the last value; the
    layers of the overlay that it was in, and about how many bytes these have.
    """

    place: tuple[str, int]
    last: Changes = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    size: int = 0

    def add(self, layer: Layer, size: int) -> None:
        """One layer more, behind the others."""
        self.last.update(zip(layer.cells, layer.values, strict=True))
        self.layers.append(layer)
        self.size += size
