"""How a service ends under uvicorn: its exit code, what ends first, and what is said."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keylanes import HandlerFailed, SourceError

from ..stage.ground import Ground

HERE = Path(__file__).parent
WAIT_S = 60.0
"""For anything, at most."""
WORKER = """
import uvicorn
from uvicorn.supervisors import Multiprocess

config = uvicorn.Config("failing_service:service", port=0)
Multiprocess(config, [config.bind_socket()]).run()
"""
"""uvicorn's parent of workers, with one: the embedded broker is for one process."""


class Served:
    """The service in a server, in a folder of its own."""

    def __init__(self, folder: Path, *, is_worker: bool, **env: str) -> None:
        self.said = folder / "said"
        command = [sys.executable, *(["-c", WORKER] if is_worker else ["-m", "uvicorn", "failing_service:service"])]
        command += [] if is_worker else ["--port", "0"]
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, "KEYLANES_BROKER": "embedded:data", **env}
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=subprocess.STDOUT)

    def log(self) -> str:
        """What it has said so far."""
        return self.said.read_text()

    def until(self, is_reached: Callable[[], bool]) -> None:
        """Look until it is so."""
        end = time.monotonic() + WAIT_S
        while not is_reached():
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)

    def order(self, value: int) -> tuple[str, bool]:
        """What is answered to an order."""
        self.until(lambda: all(one in self.log() for one in ("startup complete", "running on")))
        port = self.log().partition("running on http://127.0.0.1:")[2].partition(" ")[0]
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/orders/{value}", method="POST")
        with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
            state, is_open = json.load(answer)
            return state, is_open

    def code(self) -> int:
        """How it ended; a signal is below 0."""
        return self.process.wait(WAIT_S)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts it, on an embedded broker that has a topic or not."""
    begun: list[Served] = []

    def start(topic: str = "orders", *, is_worker: bool = False, **env: str) -> Served:
        Ground(f"embedded:{tmp_path / 'data'}").create(topic, 1)
        begun.append(Served(tmp_path, is_worker=is_worker, **env))
        return begun[0]

    yield start
    for served in begun:
        served.process.kill()
        served.process.wait()


def test_a_fatal_error_ends_the_server_in_order_and_with_its_own_code(serve: Callable[..., Served]) -> None:
    """What was asked is answered, then the service's own lifespan ends, nothing that waits in a buffer is lost, and the
    error is told once.
    """
    served = serve()
    assert served.order(-1) == ("failed", True)
    assert served.code() == HandlerFailed.exit_code
    log = served.log()
    assert (log.count("shop stops: "), log.count("Traceback"), "keylanes.errors" in log) == (1, 1, False)
    assert log.index('"POST /orders/-1 HTTP/1.1" 200') < log.index("Waiting for application shutdown")
    assert (log.count("then ends\n"), log.count("then has ended\n")) == (1, 1)


def test_a_start_that_fails_has_its_own_code(serve: Callable[..., Served]) -> None:
    """In one line, where the server would end with 3 and a traceback."""
    served = serve("others")
    assert served.code() == SourceError.exit_code
    log = served.log()
    assert ("'orders'" in log, log.count("shop stops: "), "Traceback" in log) == (True, 1, False)


@pytest.mark.parametrize("left", [{}, {"LEFT": "1"}], ids=["exits", "left to the server"])
def test_a_stop_from_outside_is_the_servers(serve: Callable[..., Served], left: dict[str, str]) -> None:
    """It ends by the signal, as it would without an application."""
    served = serve(**left)
    assert served.order(1) == ("running", True)
    served.process.send_signal(signal.SIGTERM)
    assert served.code() == -signal.SIGTERM
    assert "then ends" in served.log()


@pytest.mark.parametrize(("topic", "code"), [("orders", -signal.SIGTERM), ("others", 3)], ids=["fatal", "start"])
def test_an_end_that_is_left_to_the_server_has_the_servers_code(
    serve: Callable[..., Served], topic: str, code: int
) -> None:
    """With ``exits=False``: a fatal error ends it as a signal does, and a start that fails with 3."""
    served = serve(topic, LEFT="1")
    if topic == "orders":
        assert served.order(-1) == ("failed", True)
    assert served.code() == code
    assert "shop stops: " in served.log()


def test_a_worker_that_fails_is_started_again(serve: Callable[..., Served], tmp_path: Path) -> None:
    """In order, and the error is told once for each worker; the server goes on until it is stopped itself."""
    served = serve(is_worker=True)
    assert served.order(-1) == ("failed", True)
    served.until(lambda: " died" in served.log())
    (tmp_path / "mended").touch()
    served.until(lambda: served.log().rpartition(" died")[2].count("startup complete") == 1)
    served.process.send_signal(signal.SIGTERM)
    assert served.code() == 0
    log = served.log()
    assert log.count("shop stops: ") == log.count("Traceback") == log.count(" died")
    assert log.count("then ends") == log.count("startup complete")


def test_a_worker_that_can_not_start_ends_the_server(serve: Callable[..., Served]) -> None:
    """A server that started it again would do so for ever."""
    served = serve("others", is_worker=True)
    assert served.code() == 0  # that is uvicorn's
    assert "failed to start, stopping the parent process" in served.log()
