"""Requests to a group from a process that is no member: sent as signals, until the control log shows the outcome.

A signal may be lost. The process sends the request again, with the same id, until the coordinator has begun to act.
"""

import asyncio
import platform
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from ..brokers.patience import close_within, within_limit
from ..brokers.protocol import Appender, Broker, Outgoing
from ..errors import KeylanesError, SettingsError
from ..group.requests import Request
from ..group.signals_fold import partition_of
from ..offsets.codec import encode
from ..offsets.control import Control
from ..offsets.ledger import Ledger
from ..offsets.signals import Signal
from .logs.reader import LogReader, control_topic, offsets_topic, signals_topic
from .settings import Settings

LOOK_MS: Final = 200
"""The time between two reads of the control log."""
AGAIN_S: Final = 5.0
"""The time until a request is sent again."""

A = TypeVar("A", bound=Request)


class GroupLogs(NamedTuple):
    """The logs of an application, on an open broker. ``log_partitions``: the number of the offset log's partitions."""

    app: str
    broker: Broker
    settings: Settings
    log_partitions: int
    has_signals: bool

    @classmethod
    async def of(cls, app: str, broker: Broker, settings: Settings, *, hears: bool = True) -> "GroupLogs":
        """Look up the logs. ``hears``: whether to look for the signals, too. Raises SettingsError without the logs."""
        names, signals = [control_topic(app), offsets_topic(app)], signals_topic(app)
        found = await broker.partitions([*names, *([signals] if hears else [])])
        if missing := [name for name in names if name not in found]:
            raise SettingsError(
                f"there is no application {app!r} on this broker: {', '.join(missing)} does not exist. Name one that "
                "has run there"
            )
        return cls(app, broker, settings, found[names[1]], signals in found)


class NotDone(KeylanesError):
    """A request was not done in time; the group may still do it."""


def requester_text(what: str) -> str:
    """The origin of a request, in words: the kind of process and the machine."""
    return f"{what} on {platform.node() or 'an unnamed machine'}"


async def send_request(
    group: GroupLogs,
    make: Callable[[Control], A],
    request_id: str,
    timeout_s: float,
    show: Callable[[str], None],
    *,
    also: Sequence[int] = (),
) -> A:
    """Send the request that ``make`` makes from the control log; returns when the control log shows the request as
    done. ``show`` is called with each new stage, in words. ``also``: further signal partitions for the request. Raises
    SettingsError for an impossible request, NotDone when ``timeout_s`` is over, LogError, BrokerError.
    """
    if group.broker.is_alone:
        raise SettingsError("no process of the application runs: this broker's folder is open here alone")
    if not group.has_signals:
        raise SettingsError(f"{signals_topic(group.app)} does not exist: no process of this version has run")
    logs = LogReader(group.app, group.broker, group.settings, group.log_partitions)
    appender = group.broker.appender()
    stage = "it was not said yet"
    try:
        async with asyncio.timeout(timeout_s):
            ledger = await logs.read_control(Ledger())
            request = make(ledger.control)
            again_s = 0.0
            while not (now := request.stage(ledger.control)).is_done:
                if now.words != stage:
                    stage = now.words
                    show(stage)
                now_s = asyncio.get_running_loop().time()
                if not now.has_begun and now_s >= again_s:
                    for partition in (partition_of("", request_id), *also):
                        await _append_signal(group, appender, partition, request.signal)
                    again_s = now_s + AGAIN_S
                await asyncio.sleep(LOOK_MS / 1000)
                ledger = await logs.read_control(ledger)
            show(now.words)
            return request
    except TimeoutError:
        raise NotDone(
            f"not done after {timeout_s:g} s: {stage}. It may still be done: see keylanes group, or wait for longer"
        ) from None
    finally:
        await logs.close()
        await close_within(group.settings.close_timeout_ms, appender.close(), "closing an appender of signals")


async def _append_signal(group: GroupLogs, appender: Appender, partition: int, signal: Signal) -> None:
    record = Outgoing(signals_topic(group.app), partition, None, encode(signal))
    await within_limit(appender.append([record]), group.settings.call_limit_ms, "asking")
