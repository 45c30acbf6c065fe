"""The report of an audit: named verdicts with exact examples, figures, a table for people and JSON for programs."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from ..offsets.starts import EARLIEST
from .group_report import GroupFigures
from .plane_tiles import NO_PLANE, PlaneLog

Example: TypeAlias = dict[str, Any]

SPLIT_KEYS = "state-partition"
"""The statement on the writers of the sources. Where only this statement fails, each record was processed once."""

OWNERSHIP = {
    "decision-turn": "decisions",
    "grant-owner": "grants",
    "grant-free": "ranges handed over",
    "grant-edge": "edges where a grant begins",
    "release-edge": "edges where a release ends",
    "release-last": "releases",
    "fence-last": "expulsions",
}
"""The statements on owners of points, each with the name of the counted things."""
COPYING = {
    "copy-asked": "copies",
    "copy-first": "releases behind a copy",
    "copy-once": "learners",
    "copy-ended": "copies that were ended",
}
"""The statements on copies of state, each with the name of the counted things. Where only statements on copies fail,
each record was processed once: copies only make moves short."""
_LOOKED_AT = OWNERSHIP | COPYING


@dataclass(frozen=True, slots=True)
class Check:
    """One statement, with its verdict. ``checked`` counts the things looked at, ``violations`` the contradictions.

    ``examples`` are the first contradictions: exact rectangles, places and positions.
    """

    name: str
    statement: str
    checked: int
    violations: int
    examples: tuple[Example, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the statement."""
        return self.violations == 0


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """One source partition: offsets, and numbers of records.

    ``start`` is the least left edge of the audit, ``frontier`` the least right edge of a band, ``edge_max`` the
    greatest. ``started_from``: the declared start of the partition; ``started_at``: the offset of the declared start.
    Records below ``started_at`` were never the application's. ``records`` counts the existing records from ``start``
    on, ``done`` the records in a counted tile, ``waiting`` the rest: records beyond the edge of their band.
    """

    topic: str
    partition: int
    start: int
    frontier: int
    edge_max: int
    source_start: int
    source_end: int
    records: int
    done: int
    waiting: int
    started_from: str = EARLIEST
    started_at: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict over one application."""

    app: str
    broker: str
    checks: tuple[Check, ...]
    sources: tuple[SourceFigures, ...]
    figures: dict[str, int]
    destinations: dict[str, int]
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    plane: PlaneLog = NO_PLANE
    group: GroupFigures | None = None
    not_looked_at: tuple[str, ...] = ()
    """The parts of the application that no statement judges, in sentences."""

    @property
    def proven(self) -> bool:
        """Whether every statement holds."""
        return all(check.holds for check in self.checks)

    @property
    def exit_code(self) -> int:
        """0 if proven, else 1."""
        return 0 if self.proven else 1

    def check(self, name: str) -> Check:
        """The check called ``name``; raises KeyError."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def violated_checks(self) -> list[str]:
        """The names of the checks that do not hold."""
        return [check.name for check in self.checks if not check.holds]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the plane, as a dict for JSON."""
        group = {} if self.group is None else {"group": {**self.group.to_dict(), "proved": self._proved_counts()}}
        return {
            "app": self.app,
            "broker": self.broker,
            "proven": self.proven,
            "figures": self.figures,
            **group,
            "destinations": self.destinations,
            "sources": [asdict(source) for source in self.sources],
            "checks": [{**asdict(check), "holds": check.holds} for check in self.checks],
            "notes": list(self.notes),
            "not_looked_at": list(self.not_looked_at),
            "seconds": self.seconds,
        }

    def _proved_counts(self) -> dict[str, int]:
        """The number of things looked at, for each statement on the group that holds."""
        return {c.name: c.checked for c in self.checks if c.name in _LOOKED_AT and c.holds}

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), default=_plain)

    def to_text(self) -> str:
        """The verdict as a table."""
        lines = [f"audit of {self.app} at {self.broker}", ""]
        width = max(len(check.name) for check in self.checks)
        for check in self.checks:
            mark = "ok  " if check.holds else "FAIL"
            lines.append(f"  {mark}  {check.name:<{width}}  {check.checked:>12,}  {check.statement}")
            if not check.holds:
                lines.append(f"        {'':<{width}}  {check.violations:>12,}  violations, for example:")
                lines += [f"        {'':<{width}}  {'':>12}  {_example(example)}" for example in check.examples]
        lines.append("")
        for s in self.sources:
            lines.append(
                f"  {s.topic}[{s.partition}]: offsets {s.start:,} to {s.source_end:,}, frontier {s.frontier:,}; "
                f"{s.records:,} records, {s.done:,} done, {s.waiting:,} waiting"
                + ("" if s.started_from == EARLIEST else f"; started from {s.started_from} at {s.started_at:,}")
            )
        lines.append("  " + ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in self.figures.items()))
        if self.group is not None:
            proved = ", ".join(f"{_LOOKED_AT[name]} {n:,}" for name, n in self._proved_counts().items())
            lines += ["", *(f"  {line}" for line in self.group.to_lines()), f"    proved: {proved or 'nothing'}"]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  not looked at: {what}" for what in self.not_looked_at]
        return "\n".join([*lines, "", self._verdict()])

    def _verdict(self) -> str:
        """The verdict in a sentence. Split keys, and wrong requests of copies, leave each record processed once."""
        if self.proven:
            return "exactly once: proven" + (", of all that was looked at" if self.not_looked_at else "")
        violated = self.violated_checks()
        if violated == [SPLIT_KEYS]:
            return (
                "exactly once, but STATE IS SPLIT: keys have state in several partitions, because their records lie "
                "there. The topic has writers with different partitioners, or got more partitions: docs/partitioners.md"
            )
        failed = f"{len(violated)} of {len(self.checks)} statements fail"
        if set(violated) <= COPYING.keys():
            return f"exactly once, but COPIES ARE WRONGLY ASKED FOR: {failed}"
        return f"NOT exactly once: {failed}"


def _example(example: Example) -> str:
    shown = {
        name: f"{value:08x}" if name in _POINTS and isinstance(value, int) else _plain(value)
        for name, value in example.items()
    }
    return " ".join(f"{name}={value}" for name, value in shown.items() if example[name] is not None)


_POINTS = ("first", "end", "point")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="backslashreplace")
    return value
