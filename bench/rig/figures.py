"""PURE. A book's content, and one figure of the runs in it."""

from typing import Any

Content = dict[str, Any]
"""A book: see ``rig/book.py``."""


def values(content: Content, workload: str, arm: str, name: str = "per_second") -> dict[int, float]:
    """One figure of an arm's runs, by round; empty when it has none."""
    return {
        run["round"]: run["figures"][name]
        for run in content["runs"]
        if run["workload"] == workload and run["arm"] == arm and run.get("figures", {}).get(name) is not None
    }
