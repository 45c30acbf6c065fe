"""Pictures of the moves of state, one for each part of a book: see ``moves.py``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from handing_over.plot import BAR_COLOUR, COLOURS, PANEL_INCHES
from handing_over.state_sizes import SCALED, WAYS
from handing_over.state_tables import MB, least_bytes, sizes_of, stood_ms
from handing_over.verdicts import figures
from rig.figures import Content
from rig.panels import panels_of, plain, saved

Panel = Callable[[Any, Content], None]


def draw(content: Content, path: Path) -> Path:
    """Write the PNGs of all parts that were run; the path of the last one."""
    written = path
    for part, panels in PANELS.items():
        if figures(content, part):
            figure, axes = panels_of(1, len(panels), PANEL_INCHES)
            for axis, panel in zip(axes.flat, panels, strict=True):
                panel(axis, content)
                plain(axis)
            _share_scale([axis for axis in axes.flat if axis.get_yscale() == "log"])
            size, cores = content["settings"]["size"], content["machine"]["cores"]
            figure.suptitle(f"Moves of state, {part}: {size} sizes, {cores} cores")
            written = saved(figure, path.with_name(f"{path.stem}-{part}.png"))
    return written


def _share_scale(axes: list[Any]) -> None:
    """Curves beside each other are to be compared by eye."""
    spans = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in spans), max(high for _, high in spans))


def _stood(axis: Any, content: Content) -> None:
    """The share of moves that were through within a time."""
    for colour, arm in zip(COLOURS, dict.fromkeys(sizes_of(content)), strict=False):
        stood = sorted(stood_ms(content, arm))
        shares = [(n + 1) / len(stood) for n in range(len(stood))]
        axis.step(stood, shares, where="post", color=colour, label=f"{arm}, {len(stood)} moves")
    axis.set_xlim(0, None)
    axis.set_xlabel("ms", fontsize=8)
    axis.set_title("share of moves that stood still no longer", fontsize=9, loc="left")
    axis.legend(fontsize=7)


def _asked(axis: Any, content: Content) -> None:
    """From the request to the new owner's work."""
    for colour, arm in zip(COLOURS, dict.fromkeys(sizes_of(content)), strict=False):
        took = [one["took_s"] for run in figures(content, "state", arm) for one in run["asked"]]
        axis.plot(range(1, len(took) + 1), took, color=colour, marker="o", markersize=4, label=arm)
    axis.set_yscale("log")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("moves, in order", fontsize=8)
    axis.set_title("s from the request to the new owner's work", fontsize=9, loc="left")
    axis.legend(fontsize=7)


def _curve(way: str) -> Panel:
    def panel(axis: Any, content: Content) -> None:
        for run in figures(content, "curves", way)[:1]:
            _late(axis, run["curve"])
            axis.axvspan(0, run["took_s"], color=BAR_COLOUR, alpha=0.2)
        axis.set_title(f"{way}: ms behind the due time; grey: it moves", fontsize=9, loc="left")

    return panel


def _late(axis: Any, curve: list[list[float]]) -> None:
    xs = [late[0] for late in curve]
    for colour, place, label in zip(COLOURS, (2, 3, 4), ("p50", "p99", "latest"), strict=False):
        axis.plot(xs, [late[place] for late in curve], color=colour, linewidth=1, label=label)
    axis.set_yscale("log")
    axis.set_xlabel("s at which records were due", fontsize=8)
    axis.legend(fontsize=7)


def _scaled(arm: str) -> Panel:
    def panel(axis: Any, content: Content) -> None:
        for run in figures(content, "scaling", arm)[:1]:
            _late(axis, run["curve"])
            zero_s = run["steps"][0]["span"][0]
            for step in run["steps"]:
                began_s = step["span"][0] - zero_s
                axis.axvspan(began_s, began_s + step["even_s"], color=BAR_COLOUR, alpha=0.2)
        axis.set_title(f"{arm}: ms behind the due time; grey: not even", fontsize=9, loc="left")

    return panel


def _read(axis: Any, content: Content) -> None:
    for place, arm in enumerate(SCALED):
        for run in figures(content, "scaling", arm)[:1]:
            xs = [number + place * 0.25 for number in range(len(run["steps"]))]
            axis.bar(xs, [step["read_bytes"] / MB for step in run["steps"]], 0.22, color=COLOURS[place], label=arm)
            least = [least_bytes(run, step) / MB for step in run["steps"]]
            axis.scatter(xs, least, color=BAR_COLOUR, zorder=3, marker="_")
            axis.set_xticks(
                [x + 0.25 for x in range(len(xs))], [f"{step['before']} to {step['after']}" for step in run["steps"]]
            )
    axis.set_title("MB read of changelogs; marks: the least", fontsize=9, loc="left")
    axis.legend(fontsize=7)


def _returned(part: str, name: str) -> Panel:
    def panel(axis: Any, content: Content) -> None:
        found = [one["works_s"] for run in figures(content, part) for one in run[name]]
        axis.plot(range(1, len(found) + 1), found, color=COLOURS[0], marker="o", markersize=4)
        axis.set_ylim(0, None)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_xlabel("in order", fontsize=8)
        axis.set_title("s until it works again", fontsize=9, loc="left")

    return panel


PANELS: dict[str, tuple[Panel, ...]] = {
    "state": (_stood, _asked),
    "curves": tuple(_curve(way) for way in WAYS),
    "scaling": (*map(_scaled, SCALED), _read),
    "crash": (_returned("crash", "crashes"),),
    "rollout": (_returned("rollout", "restarts"),),
}
"""By part, its panels from left to right."""
