"""Files of counts, which a driver and the harness both see."""

from array import array
from pathlib import Path


def write_counts(path: Path, counts: "array[int]") -> str:
    """A file of u32; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(counts.tobytes())
    return str(path)


def read_counts(path: str | Path) -> "array[int]":
    """What ``write_counts`` wrote, as it is now."""
    return array("I", Path(path).read_bytes())
