"""What stands between ``async with app`` and its end: it ends when the run does."""

import asyncio
import contextlib


class Block:
    """The body of an ``async with app``: it is cancelled when the run fails while it is in there."""

    def __init__(self, running: asyncio.Task[None]) -> None:
        self._running = running
        self._body = asyncio.current_task()
        self._has_cancelled = False
        running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        if self._body is not None and not running.cancelled() and running.exception() is not None:
            self._has_cancelled = self._body.cancel()

    async def left(self) -> None:
        """Wait for the end of the run; raises what it failed with. A cancellation by somebody else stays one."""
        body, self._body = self._body, None
        if self._has_cancelled and body is not None and body is asyncio.current_task():
            body.uncancel()
            # A body that waited for nothing any more has its cancellation still ahead of it.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        await self._running
