"""A process to be stopped: an application on the command line, which prints one line for each thing it does.

Arguments: address, name, source, output topic, what the handler does, settings as JSON, ``level`` or ``on``.
"""

import asyncio
import json
import logging
import sys
import threading
from typing import TYPE_CHECKING

from keylanes import App, Context

STUCK = b"stuck"


def say(what: str) -> None:
    """One line at once, whoever else prints."""
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def declare(app: App, source: str, late: str, kind: str) -> None:
    """A handler that publishes its value after 3 ms; with the key ``stuck`` it does what ``kind`` says."""

    async def never(ctx: Context) -> None:
        say("stuck")
        while True:
            try:
                if kind == "thread-awaited":
                    await asyncio.to_thread(threading.Event().wait)
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if kind != "stubborn":
                    raise

    async def on_loop(value: int, ctx: Context) -> int:
        if ctx.key == STUCK and kind != "plain":
            await never(ctx)
        await asyncio.sleep(0.003)
        say(f"handled {value}")
        return value

    def on_thread(value: int, ctx: Context) -> int:
        if ctx.key == STUCK:
            say("stuck")
            threading.Event().wait()
        say(f"handled {value}")
        return value

    app.handler(source, to=late, parallelising_factor=16)(on_thread if kind == "thread" else on_loop)


def main() -> None:
    """Run as the arguments say."""
    if TYPE_CHECKING:
        from .limited import settings_of
    else:
        from limited import settings_of  # this is run as a script

    address, name, source, late, kind, settings, until = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    app = App(name, broker=address, settings=settings_of(**json.loads(settings)))
    declare(app, source, late, kind)
    app.run(until="level" if until == "level" else None, on_step=lambda step: say(f"step {step}"))


if __name__ == "__main__":
    main()
