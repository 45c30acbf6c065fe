"""PURE. What came of a refused output, as a table of Markdown: a row for each arm, from the facts of its run."""

from collections.abc import Mapping
from typing import Any

COLUMNS = (
    "arm", "process", "errors it names", "other keys meanwhile", "the refused record", "restart, same limit",
    "restart, limit raised", "outputs lost", "outputs doubled", "changes of state without output",
)  # fmt: skip


def markdown(facts: Mapping[str, Any], titles: Mapping[str, str], skipped: Mapping[str, str]) -> str:
    """The table; arms that could not run say why."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for arm, title in titles.items():
        if arm in facts:
            lines.append(f"| {' | '.join(row(title, facts[arm]))} |")
        elif arm in skipped:
            lines.append(f"| {title} | skipped: {_cell(skipped[arm])}{' |' * (len(COLUMNS) - 1)}")
    return "\n".join(lines)


def row(title: str, facts: Mapping[str, Any]) -> list[str]:
    """The cells of an arm."""
    first = facts["first"]
    lost = facts["missing"] - (not facts["refused_is_visible"] and facts["dead"] > 0)
    return [
        title,
        standing(first),
        ", ".join(f"`{name}`" for name in first["errors"]) or "none",
        f"{facts['others']} of {facts['others_sent']}",
        fate(facts),
        f"{standing(facts['again'])}; outputs more: {facts['again']['more']}",
        standing(facts["raised"]),
        f"{lost} ({facts['missing_others']} of other keys)" if lost else "0",
        str(facts["doubled"]),
        "no state" if facts["ahead_at_last"] is None else str(facts["ahead_at_last"]),
    ]


def standing(settled: Mapping[str, Any]) -> str:
    """Whether a process goes on."""
    return "goes on" if settled["code"] is None else f"ends with code {settled['code']}"


def fate(facts: Mapping[str, Any]) -> str:
    """What became of the record whose output was refused, in the end."""
    if facts["dead"]:
        return "a dead letter"
    if facts["refused_is_visible"]:
        return "kept, published when the limit is raised"
    is_committed = facts["offset"] > facts["refused_offset"]
    return "**lost**: its offset was committed" if is_committed else "**lost**"


def loses(facts: Mapping[str, Any]) -> bool:
    """Whether an output is missing that is no dead letter, one is doubled, or the state is ahead of what is visible."""
    lost = facts["missing"] - (not facts["refused_is_visible"] and facts["dead"] > 0)
    return bool(lost or facts["doubled"] or facts["ahead_at_last"])


def _cell(text: str) -> str:
    return text.replace("|", "/")
