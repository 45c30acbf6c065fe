"""``keylanes group``: how the group of an application stands and stood, and what happened to it, by its logs alone."""

import asyncio
import sys
import time
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ..group.happened import selected
from ..group.history import History
from .application import named
from .codes import epilog
from .group_logs import opened, read_history, stands_of
from .group_text import group_json, group_text, history_json, history_text
from .moments import MOMENT, optional_ms

STANDS: Final = "show"
"""What is meant when no command is named."""


class _Commands(TyperGroup):
    """``keylanes group MODULE:APP`` is ``keylanes group show MODULE:APP``. The context is ``Any``: whose click it is of
    depends on typer's version.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [STANDS, *args]
        return list(super().parse_args(ctx, args))


group = typer.Typer(name="group", cls=_Commands, no_args_is_help=True)

Target = Annotated[str | None, typer.Argument(metavar="[MODULE:APP]", help="where the App is")]
AppName = Annotated[str | None, typer.Option("--app", help="or the application's name, with --broker")]
Address = Annotated[str | None, typer.Option("--broker", help="its address; default: that of MODULE:APP")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output")]


@group.callback(epilog=epilog(0, 2, 4, 6))
def about() -> None:
    """Show the group of an application: from its logs alone, also while it is down.

    `keylanes group MODULE:APP` is short for `keylanes group show MODULE:APP`.
    """


@group.command(STANDS, epilog=epilog(0, 2, 4, 6))
def show(
    target: Target = None,
    app: AppName = None,
    broker: Address = None,
    at: Annotated[str | None, typer.Option(metavar="MOMENT", help=f"as it stood then: {MOMENT}")] = None,
    as_json: AsJson = False,
) -> None:
    """Show who takes part in an application, who owns what, and what waits for what."""
    application = named("group", target, app, broker)
    at_ms = optional_ms("--at", at, _now_ms())

    stands = asyncio.run(stands_of(application, at_ms, _now_ms))
    sys.stdout.write((group_json if as_json else group_text)(application.app, stands) + "\n")


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
    """Show who took part when, and how each range changed hands: asked, released, granted, taken up."""
    application, now_ms = named("group history", target, app, broker), _now_ms()
    since_ms, until_ms = optional_ms("--since", since, now_ms), optional_ms("--until", until, now_ms)

    async def read() -> History:
        async with opened(application) as logs:
            return await read_history(logs)

    found = asyncio.run(read())
    entries = selected(found.entries(), since_ms, until_ms, topic, partition)
    told = history_json if as_json else history_text
    sys.stdout.write(told(application.app, found, entries, now_ms) + "\n")


def _now_ms() -> int:
    return int(time.time() * 1000)
