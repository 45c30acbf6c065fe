"""The body of an ``async with app``, which ends when the run fails."""

import asyncio
import contextlib


class Block:
    """The body of an ``async with app``. A run that fails cancels the body."""

    def __init__(self, running: asyncio.Task[None]) -> None:
        self._running = running
        self._body = asyncio.current_task()
        self._has_cancelled = False
        running.add_done_callback(self._cancel_body)

    def _cancel_body(self, running: asyncio.Task[None]) -> None:
        if self._body is not None and not running.cancelled() and running.exception() is not None:
            self._has_cancelled = self._body.cancel()

    async def wait_for_end(self) -> None:
        """Wait for the end of the run; raises the run's error. A cancellation by other code is passed on."""
        body, self._body = self._body, None
        if self._has_cancelled and body is not None and body is asyncio.current_task():
            body.uncancel()
            # asyncio raises a cancellation at the next await. A body that has awaited nothing since the failure has not
            # received the cancellation yet: this await takes it.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        await self._running
