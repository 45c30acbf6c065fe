"""PURE. The changes that a transaction makes to the state of one partition."""

from dataclasses import dataclass, field

from .overlay import Changes, Layer


@dataclass(slots=True)
class StateChanges:
    """The changes of a transaction to the state of one source partition (``place``). ``last``: the last value of each
    key. ``layers``: the overlay's layers with these changes. ``size``: about the bytes of the layers.
    """

    place: tuple[str, int]
    last: Changes = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    size: int = 0

    def add(self, layer: Layer, size: int) -> None:
        """Add a layer behind the others."""
        self.last.update(zip(layer.entries, layer.values, strict=True))
        self.layers.append(layer)
        self.size += size
