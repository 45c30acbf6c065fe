"""``keylanes group``: the present and past group of an application, and its history, from its logs alone."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from ..errors import SettingsError
from ..group.history import History
from ..group.history_entries import select_entries
from ..group.requests import ANYBODY, Expulsion, MoveRequest, Request, make_expulsion, make_move_request
from ..offsets.control import Control
from ..runtime.outside_requests import requester_text, send_request
from .application import Named, application_of
from .codes import epilog
from .group_logs import group_at, open_group_logs, read_history
from .group_text import group_json, group_text, history_json, history_text
from .group_watch import INTERVAL_MS, Show, shown_on_screen
from .group_watch import watch as watched
from .moments import MOMENT, optional_ms
from .rights import to_ask, to_look

DEFAULT_COMMAND: Final = "show"
"""The command that runs when the arguments name no command."""
COMES_BACK: Final = (
    "If its process is alive it joins again in about a second, as a new incarnation; one with exit_on_expulsion ends "
    "with exit code 3 instead. Stop the process to keep it out"
)

A = TypeVar("A", bound=Request)


class _Commands(TyperGroup):
    """``keylanes group MODULE:APP`` is ``keylanes group show MODULE:APP``. The context is ``Any``: typer's version
    decides about the class.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [DEFAULT_COMMAND, *args]
        return list(super().parse_args(ctx, args))


group = typer.Typer(name="group", cls=_Commands, no_args_is_help=True)

Target = Annotated[str | None, typer.Argument(metavar="[MODULE:APP]", help="where the App is")]
AppName = Annotated[str | None, typer.Option("--app", help="or the application's name, with --broker")]
Address = Annotated[str | None, typer.Option("--broker", help="its address; default: that of MODULE:APP")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output")]


@group.callback(epilog=epilog(0, 2, 4, 6))
def about() -> None:
    """Show the group of an application: from its logs alone, also while the application is down.

    `keylanes group MODULE:APP` is short for `keylanes group show MODULE:APP`.
    """


@group.command(DEFAULT_COMMAND, epilog=epilog(0, 2, 4, 6))
def show(
    target: Target = None,
    app: AppName = None,
    broker: Address = None,
    at: Annotated[str | None, typer.Option(metavar="MOMENT", help=f"as it stood then: {MOMENT}")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="live, until Ctrl+C; elsewhere than on a terminal a block for each change")
    ] = False,
    interval_ms: Annotated[int, typer.Option(min=50, help="of --watch: between two looks")] = INTERVAL_MS,
    is_all: Annotated[
        bool, typer.Option("--all", help="each range that waits, each move and each copy in a line of its own")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the members of an application, the owners of its ranges, and the reasons of waits."""
    application = application_of("group", target, app, broker)
    if watch:
        if at is not None:
            raise SettingsError(
                "group: --at shows a moment that has passed, and --watch what goes on: give one of them"
            )
        _watch(application, interval_ms, as_json=as_json, is_all=is_all)
        return
    at_ms = optional_ms("--at", at, _now_ms())

    stands = asyncio.run(group_at(application, at_ms, _now_ms))
    told = group_json(application.app, stands) if as_json else group_text(application.app, stands, is_all=is_all)
    sys.stdout.write(f"{told}\n")


@group.command(epilog=epilog(0, 2, 4, 6))
def history(
    target: Target = None,
    app: AppName = None,
    broker: Address = None,
    since: Annotated[str | None, typer.Option(metavar="MOMENT", help=f"nothing that was over before: {MOMENT}")] = None,
    until: Annotated[str | None, typer.Option(metavar="MOMENT", help="nothing that began later")] = None,
    topic: Annotated[str | None, typer.Option(help="only the moves of this source topic")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="only the moves of this source partition")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the members over time, and how each range changed hands: asked, released, granted, taken up."""
    application, now_ms = application_of("group history", target, app, broker), _now_ms()
    since_ms, until_ms = optional_ms("--since", since, now_ms), optional_ms("--until", until, now_ms)

    async def read() -> History:
        async with open_group_logs(application, to_look(application.app)) as logs:
            return await read_history(logs)

    found = asyncio.run(read())
    entries = select_entries(found.entries(), since_ms, until_ms, topic, partition)
    told = history_json if as_json else history_text
    sys.stdout.write(told(application.app, found, entries, now_ms) + "\n")


TimeoutS = Annotated[float, typer.Option("--timeout-s", min=0.001, help="how long it is waited for")]
_NOT_IN_TIME = {"code_1": "not done in time: it may still be done"}


@group.command(epilog=epilog(0, 2, 4, 6, **_NOT_IN_TIME))
def move(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODULE:APP] TOPIC PARTITION [FIRST END]",
            help="a source partition, and of it the points in [FIRST, END), as keylanes group shows them; else all",
        ),
    ],
    to: Annotated[str, typer.Option(metavar="MEMBER", help=f"an incarnation, a group_instance_id, or {ANYBODY}")],
    cells: Annotated[
        str | None, typer.Option(metavar="A..B", help="or these cells of the declared cut, from 0 on, both included")
    ] = None,
    app: AppName = None,
    broker: Address = None,
    timeout_s: TimeoutS = 60.0,
    as_json: AsJson = False,
) -> None:
    """Ask for a move of a source partition, or of some points, to another member; wait until the move is done."""
    target, (topic, partition, *points) = _split_words("move", words, "TOPIC PARTITION", 2)
    if not (partition.isascii() and partition.isdecimal()):
        raise SettingsError(f"group move: PARTITION is a whole number, 0 or more; seen {partition!r}")
    request, by = os.urandom(8).hex(), requester_text("keylanes group")

    def make(control: Control) -> MoveRequest:
        return make_move_request(control, request, by, (topic, int(partition)), to, points=points, cells=cells)

    moved, said = _ask_application(application_of("group move", target, app, broker), make, request, timeout_s)
    if as_json:
        place = {"topic": topic, "partition": int(partition), "first": moved.within.first, "end": moved.within.end}
        said = json.dumps({"request": request, **place, "to": moved.target or None, "outcome": said})
    sys.stdout.write(f"{said}\n")


@group.command(epilog=epilog(0, 2, 4, 6, **_NOT_IN_TIME))
def expel(
    words: Annotated[
        list[str], typer.Argument(metavar="[MODULE:APP] MEMBER", help="an incarnation, or a group_instance_id")
    ],
    app: AppName = None,
    broker: Address = None,
    timeout_s: TimeoutS = 60.0,
    as_json: AsJson = False,
) -> None:
    """Ask for the expulsion of a member: others get its ranges. Its process joins again, as a new incarnation."""
    target, (who, *more) = _split_words("expel", words, "MEMBER", 1)
    if more:
        raise SettingsError(f"group expel: one member at a time; seen {' '.join((who, *more))}")
    request, by = os.urandom(8).hex(), requester_text("keylanes group")

    def make(control: Control) -> Expulsion:
        return make_expulsion(control, request, by, who)

    gone, said = _ask_application(application_of("group expel", target, app, broker), make, request, timeout_s)
    if as_json:
        said = json.dumps({"request": request, "incarnation": gone.incarnation, "outcome": said})
    else:
        said = f"{said}\n{COMES_BACK}"
    sys.stdout.write(f"{said}\n")


def _watch(application: Named, interval_ms: int, *, as_json: bool, is_all: bool) -> None:
    """Show the group until an interrupt, which is the regular end."""

    async def run(show: Show) -> None:
        async with open_group_logs(application, to_look(application.app)) as logs:
            await watched(logs, _now_ms, interval_ms, show)

    with (
        contextlib.suppress(KeyboardInterrupt),
        shown_on_screen(application.app, as_json=as_json, is_all=is_all) as show,
    ):
        asyncio.run(run(show))


def _split_words(command: str, words: Sequence[str], wanted: str, least: int) -> tuple[str | None, Sequence[str]]:
    """MODULE:APP, if the first word is one, and the other words. Raises SettingsError for less than ``least`` words.

    A colon tells MODULE:APP: no topic and no name has a colon.
    """
    target, rest = (words[0], words[1:]) if ":" in words[0] else (None, words)
    if len(rest) < least:
        raise SettingsError(f"group {command}: give {wanted}; seen {' '.join(rest) or 'nothing'}")
    return target, rest


def _ask_application(application: Named, make: Callable[[Control], A], request: str, timeout_s: float) -> tuple[A, str]:
    """Make a request and wait; returns the request and its outcome in words. Earlier words go to standard error."""
    told: list[str] = []

    def say(words: str) -> None:
        if told:
            sys.stderr.write(f"{told[-1]}\n")
        told.append(words)

    async def run() -> A:
        async with open_group_logs(application, to_ask(application.app)) as logs:
            return await send_request(logs, make, request, timeout_s, say)

    return asyncio.run(run()), told[-1]


def _now_ms() -> int:
    return int(time.time() * 1000)
