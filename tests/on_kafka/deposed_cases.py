"""The matrix of the deposed leader: cases, variants, outcomes of runs, and the table. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, get_args

import msgspec

Led = Literal["control", "offsets", "changelog", "signals", "sources", "outputs", "transactions", "control-offsets"]
"""The log led by broker 1 when the peers lose broker 1. ``transactions`` is ``__transaction_state``."""
Fate = Literal["killed", "suspended", "rack"]
"""What happens to member A:

    killed       SIGKILL, some seconds after the cut
    suspended    SIGSTOP just before the cut, SIGCONT when its ranges are granted anew
    rack         cut off together with broker 1; A's own link comes back first, when its ranges are granted anew
"""
Version = Literal[1, 2]
"""The cluster's feature ``transaction.version``."""

LOGS: Final[tuple[Led, ...]] = get_args(Led)
FATES: Final[tuple[Fate, ...]] = get_args(Fate)
VERSIONS: Final[tuple[Version, ...]] = get_args(Version)


class Case(NamedTuple):
    """One cell of the matrix."""

    led: Led
    fate: Fate
    version: Version

    @property
    def name(self) -> str:
        """In words, as the table has it."""
        return f"{self.led} × {self.fate}, version {self.version}"

    @property
    def drops(self) -> bool:
        """Whether connections to the coordinator are dropped between AddPartitions and EndTxn."""
        return self.led == "transactions"

    @property
    def loads_only_a(self) -> bool:
        """Whether only A's keys get records after the cut. Then only A hears that broker 1 leads no more."""
        return self.fate == "killed" and not self.drops


MATRIX: Final = tuple(Case(led, fate, version) for version in VERSIONS for led in LOGS for fate in FATES)
"""Every case. Cases of one version stand together, since each version has a cluster of its own."""


def chosen(led: Iterable[Led], fates: Iterable[Fate], versions: Iterable[Version]) -> list[Case]:
    """The cases of these rows and columns; no row or no column given means all of them."""
    logs, columns, kinds = list(led) or LOGS, list(fates) or FATES, list(versions) or VERSIONS
    return [case for case in MATRIX if case.led in logs and case.fate in columns and case.version in kinds]


class Variant(NamedTuple):
    """The differences between runs. ``is_quiet``: no record comes around the cut, and no transaction is open."""

    is_quiet: bool
    is_stateful: bool

    @property
    def name(self) -> str:
        """In words."""
        return f"{'stateful' if self.is_stateful else 'plain'}, {'quiet' if self.is_quiet else 'busy'}"


VARIANTS: Final = (Variant(True, True), Variant(True, False), Variant(False, True))
"""Of the first run, the second, the third; then again. A changelog may tell that an offset log was read too early."""


def variant(case: Case, run: int) -> Variant:
    """The variant of a run. Runs count from 1.

    A changelog needs a stateful application. Where connections are dropped no transaction may be open at the cut, not
    one of a move either: the producers would have new epochs.
    """
    quiet, stateful = VARIANTS[(run - 1) % len(VARIANTS)]
    return Variant(quiet or case.drops, stateful or case.led == "changelog")


UNTRUE: Final = (1, 2, 4, 5, 7, 8, 9, 70)
"""Exit codes of members that say what is not so: nothing is damaged, no topic is gone, no declaration is wrong."""


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of one run of a case."""

    run: int
    variant: str = ""
    records: int = 0
    outputs: int = 0
    doubled: int = 0
    lost: int = 0
    misordered: int = 0
    """Outputs that stand behind an output of a later record of the same key."""
    miscounted: int = 0
    """Outputs whose count is not the rank of their record among the records of the key."""
    silent_s: float = 0.0
    """The longest time without a commit, from when others lead and records come until the mending."""
    during: bool = False
    """Whether there were commits at the end of the cut."""
    after: bool = False
    """Whether the application processed all there was, after the mending."""
    codes: dict[str, int | None] = msgspec.field(default_factory=dict)
    """Exit codes by member; None: it had to be killed at the end."""
    again: int | None = None
    """The exit code of a process that was started at the end, to run until it is level; None: it did not get there."""
    failed: str = ""
    """What spoiled the run, which then found nothing."""
    notes: list[str] = msgspec.field(default_factory=list)
    """What did not come as planned, and what was seen on the way."""

    @property
    def faults(self) -> list[str]:
        """The broken promises, in words; empty when all is well."""
        if self.failed:
            return [f"the run failed: {self.failed}"]
        counts = {
            "doubled": self.doubled,
            "lost": self.lost,
            "out of order": self.misordered,
            "wrong count": self.miscounted,
        }
        found = [f"{count} {what}" for what, count in counts.items() if count]
        found += [f"{name} ended with exit code {code}" for name, code in self.codes.items() if code in UNTRUE]
        found += [] if self.during else ["did not go on during the cut"]
        found += [] if self.after else ["did not go on after it"]
        return found + ([] if self.again == 0 else [f"did not start again ({shown(self.again)})"])


HEAD: Final = (
    "case", "runs", "doubled", "lost", "out of order", "wrong count", "s without a commit", "during", "after",
    "exit codes", "starts again",
)  # fmt: skip


def table(found: Sequence[tuple[Case, Sequence[Outcome]]]) -> str:
    """The cases and the outcomes of the runs, as Markdown. Runs are separated by " / "."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    return "\n".join([*lines, *(f"| {' | '.join(_row(case, runs))} |" for case, runs in found if runs)])


def _row(case: Case, runs: Sequence[Outcome]) -> list[str]:
    columns = [
        [str(one.doubled) for one in runs],
        [str(one.lost) for one in runs],
        [str(one.misordered) for one in runs],
        [str(one.miscounted) for one in runs],
        [f"{one.silent_s:.1f}" for one in runs],
        ["yes" if one.during else "NO" for one in runs],
        ["yes" if one.after else "NO" for one in runs],
        [" ".join(f"{name}:{shown(code)}" for name, code in sorted(one.codes.items())) for one in runs],
        ["yes" if one.again == 0 else f"NO ({shown(one.again)})" for one in runs],
    ]
    for column in columns:
        column[:] = ["failed" if one.failed else cell for one, cell in zip(runs, column, strict=True)]
    return [case.name, str(len(runs)), *(" / ".join(column) for column in columns)]


def shown(code: int | None) -> str:
    """An exit code as the table has it."""
    return "hung" if code is None else str(code)
