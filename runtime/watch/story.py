"""The story of a run at INFO: the text of each line, and when a line is due. run_log.py logs the lines."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

REPORT_INTERVAL_MS: Final = 60_000
"""Between two lines about the work."""
PARTITIONS_SHOWN_MAX: Final = 16
"""How many partitions of a topic are shown with their offsets; the others are shown as the least and the greatest."""

OLD_ENDS_S: Final = 30.0
"""Above this age of the sources' ends, the line shows the age."""

_CREDENTIALS: Final = re.compile(r"[^/,@]*@")


class Figures(NamedTuple):
    """The numbers of a line about the work. All but ``lag`` and ``ends_age_s`` count from the start of the run."""

    records: int = 0
    commits: int = 0
    failures: int = 0
    retries: int = 0
    dead_letters: int = 0
    splits: int = 0
    merges: int = 0
    lag: int = 0
    ends_age_s: float = 0.0


class Interval:
    """When a line about the work is due, and its text: no line while nothing is done and nothing is left to do."""

    def __init__(self, now_s: float) -> None:
        self._looked_s = now_s
        self._before = Figures()

    def is_due(self, now_s: float) -> bool:
        """Whether the interval is over."""
        return now_s - self._looked_s >= REPORT_INTERVAL_MS / 1000

    def look(self, now_s: float, figures: Figures) -> str | None:
        """The line about the time since the last look; None: no line is needed."""
        before, seconds = self._before, now_s - self._looked_s
        self._before, self._looked_s = figures, now_s
        done = figures.records - before.records
        failures = figures.failures - before.failures
        dead_letters = figures.dead_letters - before.dead_letters
        reshaped = _reshaping_text(figures.splits - before.splits, figures.merges - before.merges)
        if not (done or failures or dead_letters or reshaped or figures.lag):
            return None
        rate = f"{done / max(seconds, 1e-3):,.0f}/s"
        failed = _failures_text(failures, figures.retries - before.retries, dead_letters)
        return f"{done:,} records done in {seconds:.0f} s ({rate}), {_lag(figures)}{failed}{reshaped}"


def start_text(version: str, broker: str, *, is_compiled: bool) -> list[str]:
    """The first line; a second line when the hot modules run interpreted."""
    kind = "compiled" if is_compiled else "interpreted"
    lines = [f"starting: keylanes {version}, {kind}, on {without_credentials(broker)}"]
    if not is_compiled:
        lines.append(
            "interpreted: a record costs about twice the processor time that it does compiled. To have it compiled, "
            "install keylanes where there is a C compiler: docs/deployment.md"
        )
    return lines


def work_text(topic: str, offsets: Mapping[int, int], workers: int, lag: int) -> str:
    """The line about the work on a topic. ``offsets``: by partition; every record below is done."""
    partitions = count_text(len(offsets), "partition")
    return f"working on {topic}: {partitions}, {count_text(workers, 'worker')}, from {places(offsets)}; {lag:,} behind"


def places(offsets: Mapping[int, int]) -> str:
    """Offsets by partition, shortened for many partitions."""
    shown = sorted(offsets)[:PARTITIONS_SHOWN_MAX]
    text = ", ".join(f"[{partition}] at {offsets[partition]}" for partition in shown)
    if more := [offset for partition, offset in offsets.items() if partition not in shown]:
        text += f", and {len(more):,} more at {min(more)} to {max(more)}"
    return text


def level(records: int, seconds: float) -> str:
    """The line that the process has caught up: its ranges are committed up to the ends that the sources had when the
    process took its ranges up.
    """
    what = "level with what its sources held at the start, of what this process holds"
    return f"{what}: {count_text(records, 'record')} done in {seconds:.1f} s"


def leave_text(leave_ms: int) -> str:
    """The line that the process works on during a stop."""
    return f"stopping: others copy its state first, for at most {leave_ms / 1000:g} s; told again, it releases at once"


def left_early(leave_ms: int) -> str:
    """The line that the process stops although others have not copied all of its state."""
    return f"others had not copied all of its state within {leave_ms / 1000:g} s (leave_ms): they restore the rest"


def stop_text(why: str, running: int, drain_ms: int) -> str:
    """The line that the process reads no more, and that running records have some time left."""
    have = "has" if running == 1 else "have"
    return f"stopping: {why}; {count_text(running, 'running record')} {have} at most {drain_ms / 1000:g} s to end"


def cut_off(running: int, drain_ms: int | None) -> str:
    """The line about running records that were dropped. ``drain_ms``: the limit of the drain; None: without a drain."""
    were = "was" if running == 1 else "were"
    again = "it runs" if running == 1 else "they run"
    late = "" if drain_ms is None else f" did not end within {drain_ms / 1000:g} s (drain_timeout_ms) and"
    dropped = f"{count_text(running, 'running record')}{late} {were} dropped"
    return f"{dropped}: nothing of that is kept, {again} again at the next start"


def cut_short(unclosed: int, close_ms: int) -> str:
    """The line that no time was left to close some parts."""
    parts = count_text(unclosed, "part")
    return f"the stop was cut short: {close_ms / 1000:g} s (close_timeout_ms) were over before {parts} closed"


def end_text(how: str, figures: Figures, seconds: float) -> str:
    """The last line. ``how``: how the run ended."""
    failed = _failures_text(figures.failures, figures.retries, figures.dead_letters)
    reshaped = _reshaping_text(figures.splits, figures.merges)
    done = f"{count_text(figures.records, 'record')} done in {seconds:.1f} s, {count_text(figures.commits, 'commit')}"
    return f"stopped {how}: {done}, {_lag(figures)}{failed}{reshaped}"


def stopped_early(how: str) -> str:
    """The last line of a run that ended before its work began."""
    return f"stopped {how}, before it had started to work"


def without_credentials(address: str) -> str:
    """An address without its credentials."""
    return _CREDENTIALS.sub("***@", address)


def count_text(number: int, what: str) -> str:
    """A number of things, for people."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _lag(figures: Figures) -> str:
    age = f" (as of {figures.ends_age_s:.0f} s ago)" if figures.ends_age_s > OLD_ENDS_S else ""
    return f"{figures.lag:,} behind{age}"


def _failures_text(failures: int, retries: int, dead_letters: int) -> str:
    if not (failures or dead_letters):
        return ""
    letters = count_text(dead_letters, "dead letter")
    return f"; {count_text(failures, 'failed attempt')}, {retries:,} tried again, {letters}"


def _reshaping_text(splits: int, merges: int) -> str:
    """The part of a line about automatic splits and merges."""
    return f"; ranges: {count_text(splits, 'split')}, {count_text(merges, 'merge')}" if splits or merges else ""
