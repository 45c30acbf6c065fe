"""A child process of a parent with several: its number, and the line to the parent.

The parent starts its own program once more for each child, from the beginning, with ``KEYLANES_PROCESS`` in the
environment: the number of the child, the number of children, and the line, an inherited socket. Over the line the child
tells the parent each birth and the final error, a line of text each. The parent tells the child to stop, a byte for
each word. The parent sends no signal for a stop: a supervisor may also signal each process, and a second signal
hurries the stop. A child sees when the parent is gone, and stops in order.
"""

import contextlib
import json
import logging
import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from threading import Thread
from typing import Final

import msgspec

from ..logs.own_ledger import Expelled
from ..settings import Settings

logger = logging.getLogger("keylanes")

VARIABLE: Final = "KEYLANES_PROCESS"
STOP: Final = b"s"
AT_ONCE: Final = b"o"
ABORT: Final = b"a"
"""The words of the parent, in the order of their use."""
COMES_BACK: Final = "="
"""The line of an expelled child that may be started again; no birth has this text."""
CAUSE: Final = "!"
"""The beginning of a line with the error that ends a child, as JSON."""
CAUSE_MAX: Final = 8_000
"""How many characters of the error are told."""


def _start_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # the folder is removed, or not readable: the children inherit the folder
        return None


START_FOLDER: Final = _start_folder()
"""The folder in which the program was started; the parent starts the children there. None: the folder is unknown."""


class Sibling:
    """The own process as child ``number``, from 1 on, of ``count`` children. ``line``: the socket to the parent."""

    def __init__(self, number: int, of: int, line: socket.socket) -> None:
        self.number = number
        self.count = of
        self._line = line
        self._is_signed = False

    def settings(self, settings: Settings) -> Settings:
        """The settings of this process: the ``group_instance_id`` ends with the number of the child."""
        name = settings.group_instance_id
        return (
            settings if name is None else msgspec.structs.replace(settings, group_instance_id=f"{name}-{self.number}")
        )

    def number_log_lines(self) -> None:
        """Put the number of this process before all its log lines; further calls do nothing."""
        if not self._is_signed:
            self._is_signed = True
            multiprocessing.current_process().name = f"keylanes-{self.number}"
            logger.addFilter(self._add_number)

    def listen(self, stop: Callable[[], object], at_once: Callable[[], object], abort: Callable[[], object]) -> None:
        """From now on, call for each word of the parent the function of the word, in a thread of its own. When the
        parent is gone, call ``stop``.
        """
        calls = {STOP: stop, AT_ONCE: at_once, ABORT: abort}
        Thread(target=self._listen, args=(calls,), name="keylanes-parent", daemon=True).start()

    def tell_birth(self, birth: str) -> None:
        """Tell the parent the birth of the present run."""
        self._send_line(birth)

    def tell_end(self, error: BaseException) -> None:
        """Tell the parent the error that ends this process, and whether the parent may start the process again."""
        if isinstance(error, Expelled) and error.comes_back:
            self._send_line(COMES_BACK)
        self._send_line(CAUSE + json.dumps(str(error)[:CAUSE_MAX]))

    def _send_line(self, line: str) -> None:
        with contextlib.suppress(ConnectionError):  # the parent has ended
            self._line.sendall(f"{line}\n".encode())

    def _add_number(self, record: logging.LogRecord) -> bool:
        record.msg = f"[{self.number}/{self.count}] {record.msg}"
        return True

    def _listen(self, calls: Mapping[bytes, Callable[[], object]]) -> None:
        while said := self._line.recv(1):
            calls[said]()
        logger.warning("the process that started this one is gone: stopping in order")
        calls[STOP]()


def sibling_in(environ: MutableMapping[str, str]) -> Sibling | None:
    """The own process as a child, by the environment variable; None without the variable. Removes the variable: a
    program that this process starts is no child of the parent.
    """
    value = environ.pop(VARIABLE, None)
    if value is None:
        return None
    number, of, line = (int(part) for part in value.split("/"))
    return Sibling(number, of, socket.socket(fileno=line))


SIBLING: Final = sibling_in(os.environ)
"""None: no parent of keylanes started this process."""
