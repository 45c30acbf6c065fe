"""What ends an application that this machine can't run: one sentence, what to do, and exit code 2."""

import logging
import threading
from typing import Any

import pytest

from keylanes import App
from keylanes.errors import HandlerFailed, MachineError, shortage_in

from ..stage.ground import Ground


def last_line(app: App, caplog: pytest.LogCaptureFixture) -> str:
    """Run it until it ends; its last words, which have no traceback."""
    caplog.clear()
    with pytest.raises(SystemExit) as ended:
        app.run(until="level")
    assert ended.value.code == MachineError.exit_code == 2
    last = [record for record in caplog.records if record.levelno == logging.CRITICAL][-1]
    assert not last.exc_info
    return last.getMessage()


@pytest.mark.broker
def test_clocks_that_differ(kafka: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """The broker refuses what is stamped by our clock: the clock is named, and what to do.

    Here the broker takes nothing that is older than its own now, so that no clock has to be set wrong.
    """
    kafka.create(f"{kafka.name}.control", 1, retention_ms="-1", message_timestamp_before_max_ms="0")
    kafka.fill([(b"k", b"1")])
    app = kafka.app()
    app.handler(kafka.source)(lambda value: None)
    said = last_line(app, caplog)
    assert "the clocks of this machine and of the broker differ: here it is 20" in said
    assert "INVALID_TIMESTAMP" in said
    assert "message.timestamp.after.max.ms, an hour by default" in said
    assert said.endswith("Set the clock right and start again")


def test_no_threads_left(tmp_path: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler needs a thread, and the system gives none."""
    ground = Ground(f"embedded:{tmp_path / 'data'}")
    ground.fill([(b"k", b"1")])
    app = ground.app()

    @app.handler(ground.source)
    def handle(value: int) -> None: ...

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("keylanes"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    said = last_line(app, caplog)
    assert "no more threads" in said
    assert "ulimit" in said


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "threads"),
        (RuntimeError("something else"), None),
        (HandlerFailed("of a handler's own"), None),
    ],
)
def test_which_errors_are_a_shortage(error: BaseException, what: str | None) -> None:
    """Also those behind another error; what a handler has met is the handler's."""
    try:
        raise ValueError from error
    except ValueError as outer:
        for found in (shortage_in(error), shortage_in(outer)):
            assert (found is None) == (what is None)
            assert what is None or f"no more {what}" in str(found)
    handlers = HandlerFailed("it failed")
    handlers.__cause__ = error
    assert shortage_in(handlers) is None
