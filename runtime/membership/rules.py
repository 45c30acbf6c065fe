"""From the settings of a process to the rules of a coordinator."""

from typing import Final

from ...group.view import Rules
from ..settings import Settings

START_WINDOW_MS: Final = 1_000
PLAN_INTERVAL_MS: Final = 1_000
RELEASE_MS: Final = 30_000


def rules_of(settings: Settings) -> Rules:
    """The rules of a coordinator with ``settings``."""
    stop_ms = settings.leave_ms + settings.drain_timeout_ms + settings.close_timeout_ms
    return Rules(
        session_ms=settings.session_timeout_ms,
        interval_ms=settings.heartbeat_interval_ms,
        start_window_ms=min(START_WINDOW_MS, settings.session_timeout_ms),
        plan_interval_ms=min(PLAN_INTERVAL_MS, settings.session_timeout_ms),
        release_ms=RELEASE_MS,
        stop_ms=stop_ms + max(settings.drain_timeout_ms, settings.close_timeout_ms),
        load_interval_ms=settings.load_interval_ms,
        moves_per_minute=settings.moves_per_minute,
        leave_ms=settings.leave_ms,
        return_ms=settings.return_ms,
        standbys=settings.standbys,
        copies_max=settings.copies_max,
        copy_bytes_per_s=settings.copy_bytes_per_s,
    )
