"""What a benchmark shows and writes of its figures."""

import contextlib
import importlib
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rig.places import FOLDER, ROOT


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def write_result(name: str, result: dict[str, Any]) -> None:
    """Write ``.keylanes/bench/NAME.json``."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {path.relative_to(ROOT)}")


def picture(module: str, content: dict[str, Any], path: Path) -> None:
    """Draw it by the module of that name, where matplotlib is."""
    try:
        draw = importlib.import_module(module).draw
    except ImportError:
        print("no plot: matplotlib is missing")
        return
    print(f"drawn: {draw(content, path).relative_to(ROOT)}")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table for a person: the first column to the left, figures to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    print(title)
    with contextlib.suppress(ImportError):
        from rich.console import Console
        from rich.table import Table

        table = Table()
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in cells:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 160).print(table)
        return
    lines = [list(columns), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join([line[0].ljust(widths[0]), *(t.rjust(w) for t, w in zip(line[1:], widths[1:], strict=True))]))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def verdict(required: str, holds: bool) -> bool:
    """Say whether what is required holds."""
    print(f"{'holds' if holds else 'FAILS'}: {required}", flush=True)
    return holds
