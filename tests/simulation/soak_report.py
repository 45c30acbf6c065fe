"""The soak's figures as Markdown, for the page that shows them: generated, never typed."""

from collections.abc import Sequence

from .soak_book import BROKER, CLUSTER, GROUP, PARTS, SIMULATION, Book, Slice
from .soak_broker import STOPPED

WANTED = {
    SIMULATION: {"seeds": 20_000},
    BROKER: {"kills": 200, "records": 2_000_000},
    CLUSTER: {"seeds": 20, "records": 1_000_000},
    GROUP: {"seeds": 20},
}
"""What the soak is to reach, by part."""
BAR = ("lost", "doubled", "out of order", "torn", "state differences", "wrong")
"""What the audit may not find; it is counted in rounds that fail too."""


def report(book: Book, parts: Sequence[str] = PARTS) -> str:
    """All parts: what was wanted and done, what it met, and which code and machine it belongs to."""
    return "\n\n".join(_part(book, part) for part in parts)


def is_complete(book: Book, wanted: dict[str, dict[str, int]]) -> bool:
    """Whether all is done that is wanted, and nothing fails."""
    return not missing(book, wanted) and not any(book.failing(part) for part in wanted)


def missing(book: Book, wanted: dict[str, dict[str, int]]) -> str:
    """What is still to be done of what is wanted, in words; empty: nothing."""
    left = [(name, count - book.total(part)[name]) for part, all_ in wanted.items() for name, count in all_.items()]
    return ", ".join(f"{count:,} {name}" for name, count in left if count > 0)


def _part(book: Book, part: str) -> str:
    slices = book.of(part)
    if not slices:
        return f"**{part.capitalize()}**: not run yet."
    total, wanted = book.total(part), WANTED[part]
    rows = [(name, f"{total[name]:,}", f"{count:,}") for name, count in wanted.items()]
    if part == SIMULATION:
        rows.append(("faults", f"{total['faults']:,}", ""))
    else:
        others = {name for name in total if not name.startswith(STOPPED)} | {"faults"}
        more = sorted(others - wanted.keys() - set(BAR) - {"seeds"})
        rows = [("rounds" if name == "seeds" else name, done, count) for name, done, count in rows]
        rows += [] if "seeds" in wanted else [("rounds", f"{total['seeds']:,}", "")]
        rows += [(name, f"{total[name]:,}", "") for name in more]
        rows += [(name, f"{total[name]:,}", "0") for name in BAR]
    failing = {found.seed for found in book.failing(part)}
    rows.append(("failures", f"{len(failing):,}", "0"))
    if mended := {found.seed for piece in slices for found in piece.failures} - failing:
        rows.append(("failures of earlier versions, mended and run again", f"{len(mended):,}", ""))
    told = [f"**{part.capitalize()}**: {_belongs_to(slices)}", _table(("", "done", "wanted"), rows)]
    faults = book.faults(part)
    if part in (CLUSTER, GROUP) and faults:
        head = ("fault", "times", "seconds without progress, mean")
        means = [(kind, f"{n:,}", f"{total[STOPPED + kind] / n / 1000:.1f}") for kind, n in sorted(faults.items())]
        told.append(_table(head, means))
    elif faults:
        told.append(_table(("fault", "times"), [(kind, f"{count:,}") for kind, count in faults.most_common()]))
    if part == SIMULATION:
        told.append(f"A seed fails at the first thing that is {', '.join(BAR[:-2])} or otherwise wrong.")
        told.append(
            "Came across: " + ", ".join(f"{name} {total[name]:,}" for name in sorted(_came_across(slices))) + "."
        )
    return "\n\n".join(told)


def _came_across(slices: Sequence[Slice]) -> set[str]:
    """What the application did and met beside faults."""
    return {name for piece in slices for name in piece.counts if name and name not in piece.faults}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _belongs_to(slices: Sequence[Slice]) -> str:
    """When, how long, which code, which machine."""
    hours = sum(piece.seconds for piece in slices) / 3600
    codes = list(dict.fromkeys(piece.where.code for piece in slices))
    commits = list(dict.fromkeys(_commit(piece) for piece in slices))
    days = sorted({piece.began[:10] for piece in slices})
    machines = {f"{piece.where.cores} cores of {piece.where.processor}, {piece.where.system}" for piece in slices}
    pythons = {f"Python {piece.where.python}" for piece in slices}
    kafkas = {f"Apache Kafka {piece.where.kafka}" for piece in slices if piece.where.kafka}
    code = f"one version of the code ({codes[0]})" if len(codes) == 1 else f"{len(codes)} versions of the code"
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    return (
        f"{hours:.2f} hours in {_count(len(slices), 'slice')}, {when}; {code}, "
        f"commit {', '.join(commits)}; {'; '.join(sorted(machines))}; {', '.join(sorted(pythons | kafkas))}."
    )


def _commit(piece: Slice) -> str:
    return (piece.where.commit or "unknown") + (" with changes" if piece.where.has_changes else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
