"""The report of the demo: the figures and the verdict, for people and for programs."""

from collections.abc import Mapping
from typing import Any

import msgspec

from application import PARALLELISING_FACTOR
from figures import ActFigures, Collected, Counts, GroupFigures, ScalingFigures
from flights import PARTITIONS


def differences(seen: Counts, expected: Counts, audited: Mapping[str, int] | None) -> list[str]:
    """The figures that are wrong, a line for each. ``audited``: the figures of the audit; None: no audit was made."""
    wrong = [
        f"{name.replace('_', ' ')}: {value:,}, expected are {getattr(expected, name):,}"
        for name, value in msgspec.structs.asdict(seen).items()
        if value != getattr(expected, name)
    ]
    if audited is None:
        return wrong
    wanted = {
        "records_done": expected.records + expected.arrivals,
        "outputs": expected.late + expected.arrivals,
        "dead_letters": expected.dead_letters,
    }
    return wrong + [
        f"{name}: the audit counts {audited[name]:,}, expected are {want:,}"
        for name, want in wanted.items()
        if audited[name] != want
    ]


def verdict_of(audit: Mapping[str, Any] | None) -> str:
    """The verdict of the audit in words."""
    return "not audited" if audit is None else "exactly once: proven" if audit["proven"] else "NOT proven"


def text_of(collected: Collected, audit: Mapping[str, Any] | None, run: Mapping[str, Any]) -> str:
    """The report for people, a line for each figure. ``run``: the facts about the run beside the figures."""
    figures, counts = collected.figures, collected.figures.counts
    lines = [
        ("flights processed", f"{counts.records:,}"),
        ("late, published by aircraft", f"{counts.late:,}"),
        ("left and never arrived: dead letters", f"{counts.dead_letters:,}"),
        ("cancelled, no output", f"{counts.cancelled:,}"),
        ("arrivals, handled by destination", f"{counts.arrivals:,}"),
        ("workers", f"{figures.workers:,} on {PARTITIONS} partitions, {run['handler_ms']:g} ms a record"),
        ("throughput", f"{figures.records_per_s:,.0f} records/s in {figures.seconds:.1f} s of processing"),
        ("tiles", f"{figures.tiles:,} in {figures.commits:,} commits"),
        ("ranges, while it ran", ", ".join(f"{n} {kind}s" for kind, n in figures.changes.items())),
        ("offset log", f"{figures.log_bytes_per_record:.1f} bytes a record"),
        *(group_lines(collected.group, audit) if collected.group is not None else []),
        ("the plane", run["picture"]),
    ]
    if audit is not None:
        lines.append(("state: running totals", _state_verdict(audit)))
    lines.append(("verdict", verdict_of(audit)))
    lines += [("WRONG", difference) for difference in run["wrong"]]
    return "\n".join(f"  {name:<38}{value}" for name, value in lines)


def document_of(collected: Collected, audit: Mapping[str, Any] | None, run: Mapping[str, Any]) -> bytes:
    """The report for programs, as JSON."""
    figures = collected.figures
    document = {
        **run,
        "verdict": verdict_of(audit),
        "figures": {
            **msgspec.structs.asdict(figures),
            "records_per_s": figures.records_per_s,
            "log_bytes_per_record": figures.log_bytes_per_record,
        },
        "group": collected.group,
        "workers_per_partition": PARALLELISING_FACTOR,
        "audit": audit,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def group_lines(group: GroupFigures, audit: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The lines on the processes of a run, each with its label."""
    shares = ", ".join(f"{member.name} {member.records:,} ({member.share:.0%})" for member in group.members)
    lines = [("members, records (about)", shares)]
    acts = [("killed", group.killed), ("paused", group.paused), ("added", group.joined)]
    lines += [(label, _act_line(one)) for label, found in acts for one in found]
    lines += [("scaled", _scaling_line(one)) for one in group.scaled]
    if group.scaled:
        lines.append(("who is no member any more, and why", _counted(group.expelled) or "nobody"))
    if group.missed:
        lines.append(("not reached, the run was too short", ", ".join(group.missed)))
    moved = {} if audit is None else (audit.get("group") or {}).get("moves", {})
    told = f" ({_counted(moved)})" if moved else ""
    lines.append(("ranges that changed hands", f"{group.moves:,}{told}, in {group.elections:,} terms of coordinators"))
    return lines


def _counted(causes: Mapping[str, int]) -> str:
    return ", ".join(f"{cause} {count:,}" for cause, count in causes.items())


def _scaling_line(scaled: ScalingFigures) -> str:
    """A scaling in words: the number of processes, the time until rest, the moved ranges, the time without owner."""
    said = f"{scaled.sign} to {scaled.processes} ({', '.join(scaled.names)}) at {scaled.share:.0%}"
    if scaled.settled_s is None:
        said += ", was not balanced before the end or the next step"
    else:
        said += f", balanced after {scaled.settled_s:.1f} s"
    said += f"; {scaled.moves:,} ranges with {scaled.state_bytes / 1000:,.0f} kB of state moved"
    if scaled.copied_s is not None:
        said += f", {scaled.copies:,} copied before, each within {scaled.copied_s:.1f} s"
    if scaled.unowned_s is None:
        return said
    said += f"; a range had no owner for {scaled.unowned_s:.2f} s at most"
    if scaled.still_s is None:
        return said
    return f"{said}, and the next commit in it came after {scaled.still_s:.2f} s at most"


def _act_line(act: ActFigures) -> str:
    """A kill, a pause or an added process in words, with the consequences."""
    said = f"{act.name} ({act.role}) at {act.share:.0%}" + (f" for {act.seconds:.0f} s" if act.seconds else "")
    moments = {"last commit": act.last_commit_s, "expelled": act.expelled_s, "joined": act.joined_s}
    spans = {"its ranges had no owner for": act.unowned_s, "the next commit in them came after": act.still_s}
    found = [f"{what} at {when_s:.1f} s" for what, when_s in moments.items() if when_s is not None]
    found += [f"{what} {_span(span)}" for what, span in spans.items() if span is not None]
    return "; ".join([said, *found])


def _span(seconds: tuple[float, float]) -> str:
    least, most = (f"{each:.1f}" for each in seconds)
    return f"{least} s" if least == most else f"{least} to {most} s"


def _state_verdict(audit: Mapping[str, Any]) -> str:
    keys = audit["figures"].get("state_keys", 0)
    unlike = next((check["violations"] for check in audit["checks"] if check["name"] == "state"), 0)
    if unlike:
        return f"{unlike:,} of {keys:,} keys DIFFER from what Spark computes from the flights"
    return f"{keys:,} keys, each equal to what Spark computes from the flights"
