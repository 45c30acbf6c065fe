"""A picture for each part of a book: see ``handover.py``."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from handing_over.balance import EVEN
from handing_over.sizes import MEMBERS, TIMES
from handing_over.verdicts import EVEN_S_MAX, GAP_FREE_S, JOIN_S_MAX, STOOD_MS, figures, groups_of
from rig.figures import Content
from rig.panels import panels_of, plain, saved

PANEL_INCHES = (5.2, 3.2)
COLOURS = ("#0b6e4f", "#b3541e", "#3b6fb6", "#8a6fae")
BAR_COLOUR = "#9aa5b1"


def draw(content: Content, path: Path) -> Path:
    """Write the PNGs of all parts that were run; the path of the last one."""
    written = path
    for part, panels in PANELS.items():
        if figures(content, part):
            figure, axes = panels_of(1, len(panels), PANEL_INCHES)
            for axis, panel in zip(axes.flat, panels, strict=True):
                panel(axis, content)
                plain(axis)
            size, cores = content["settings"]["size"], content["machine"]["cores"]
            figure.suptitle(f"Hand-over, {part}: {size} sizes, {cores} cores")
            written = saved(figure, path.with_name(f"{path.stem}-{part}.png"))
    return written


def _by_members(name: str, label: str, *, is_shared: bool = False) -> Callable[[Any, Content], None]:
    def panel(axis: Any, content: Content) -> None:
        for colour, handler in zip(COLOURS, ("wait", "spin"), strict=False):
            found = {n: figures(content, "amplification", f"{handler}, {n}") for n in MEMBERS}
            ys = {n: median(run[name] for run in runs) for n, runs in found.items() if runs}
            if ys:
                axis.plot(ys.keys(), ys.values(), marker="o", markersize=4, color=colour, label=handler)
        if is_shared:
            axis.plot(MEMBERS, MEMBERS, color=BAR_COLOUR, linewidth=1, linestyle="--")
        axis.margins(y=0.2)
        axis.set_xscale("log", base=2)
        axis.set_xticks(MEMBERS, [str(n) for n in MEMBERS])
        axis.set_ylim(0, None)
        axis.set_xlabel("members on one partition", fontsize=8)
        axis.set_title(label, fontsize=9, loc="left")
        axis.legend(fontsize=7)

    return panel


def _stood(axis: Any, content: Content) -> None:
    """The share of moves that were through within a time."""
    for colour, arm in zip(COLOURS, groups_of(content), strict=False):
        stood = sorted(move["stood_ms"] for run in figures(content, "moves", arm) for move in run["moves"])
        if stood:
            shares = [(n + 1) / len(stood) for n in range(len(stood))]
            axis.step(stood, shares, where="post", color=colour, label=f"{arm}, {len(stood)} moves")
    for name, (share, most, goal) in STOOD_MS.items():
        axis.plot([goal, most], [share, share], color=BAR_COLOUR, marker="|", linewidth=1)
        axis.text(most, share, f" {name}: goal, bar", fontsize=7, va="center")
    axis.set_xscale("log")
    axis.set_xlabel("ms", fontsize=8)
    axis.set_title("share of ranges that stood still no longer", fontsize=9, loc="left")
    axis.legend(fontsize=7, loc="lower right")


def _times(axis: Any, content: Content) -> None:
    """When each part of a move came."""
    for place, time in enumerate(reversed(TIMES)):
        found = [move[time] for run in figures(content, "moves") for move in run["moves"] if move[time] is not None]
        if found:
            axis.boxplot(found, positions=[place], orientation="horizontal", widths=0.6, showfliers=False)
    axis.set_yticks(range(len(TIMES)), list(reversed(TIMES)), fontsize=8)
    axis.set_xlabel("ms behind the last record of the old owner", fontsize=8)
    axis.set_title("parts of a hand-over", fontsize=9, loc="left")


def _gaps(axis: Any, content: Content) -> None:
    """Gaps between commits of ranges that stay."""
    for colour, name, label in zip(COLOURS, ("calm", "busy"), ("without moves", "beside moves"), strict=False):
        found = sorted(gap * 1e3 for run in figures(content, "moves") for gap in run[f"gaps_{name}_s"])
        if found:
            rest = [1 - n / len(found) for n in range(len(found))]
            axis.step(found, rest, where="post", color=colour, label=label)
    axis.axvline(GAP_FREE_S * 1e3, color=BAR_COLOUR, linewidth=1, linestyle="--")
    axis.set_yscale("log")
    axis.set_xlabel("ms", fontsize=8)
    axis.set_title("ranges that stay: share of longer gaps between commits", fontsize=9, loc="left")
    axis.legend(fontsize=7)


def _skewed(arm: str) -> Callable[[Any, Content], None]:
    def panel(axis: Any, content: Content) -> None:
        for run in figures(content, "skew", arm):
            axis.plot(*zip(*run["looks"], strict=True), color=COLOURS[0], linewidth=1)
            axis.axhline(run["allowed"], color=BAR_COLOUR, linewidth=1, linestyle="--")
        axis.axhline(EVEN, color=BAR_COLOUR, linewidth=1, linestyle="--")
        axis.set_ylim(0.9, None)
        axis.set_xlabel(f"s since the traffic is skewed; it shall be even within {EVEN_S_MAX:g}", fontsize=8)
        axis.set_title(f"skewed to {arm}: greatest load of a member in 4 s, in mean loads", fontsize=9, loc="left")

    return panel


def _joined(axis: Any, content: Content) -> None:
    for colour, name, label in zip(COLOURS, ("joined_s", "started_s"), ("JOINED", "start"), strict=False):
        found = sorted(one for run in figures(content, "join") for one in run[name])
        axis.plot(range(1, len(found) + 1), found, color=colour, marker="o", markersize=4, label=f"behind its {label}")
    axis.axhline(JOIN_S_MAX, color=BAR_COLOUR, linewidth=1, linestyle="--")
    axis.set_ylim(0, None)
    axis.set_xlabel("joins, in order of their time", fontsize=8)
    axis.set_title("s until the first record of a member that joins", fontsize=9, loc="left")
    axis.legend(fontsize=7)


def _kept(name: str, label: str) -> Callable[[Any, Content], None]:
    def panel(axis: Any, content: Content) -> None:
        for run in figures(content, "held"):
            xs, ys = [one["moves"] for one in run["points"]], [one[name] for one in run["points"]]
            axis.plot(xs, ys, color=COLOURS[0], marker="o", markersize=4)
        axis.set_ylim(0, None)
        axis.set_xlabel("moves beside a range that is held", fontsize=8)
        axis.set_title(label, fontsize=9, loc="left")

    return panel


PANELS: dict[str, tuple[Callable[[Any, Content], None], ...]] = {
    "amplification": (
        _by_members("per_second", "records/s"),
        _by_members("amplification", "records read by all members, per record", is_shared=True),
        _by_members("cpu_us_per_record", "µs of processor time of all members, per record"),
    ),
    "moves": (_stood, _times, _gaps),
    "skew": (_skewed("partition"), _skewed("keys")),
    "join": (_joined,),
    "held": (_kept("snapshot_bytes", "bytes of a snapshot"), _kept("start_seconds", "seconds of a start")),
}
"""By part, its panels from left to right."""
