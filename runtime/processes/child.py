"""A process as one of several that a parent keeps: its number, and the line to the parent.

The parent starts the program that it runs itself once more for each, from its beginning, with ``KEYLANES_PROCESS`` in
the environment: the number of the process, how many there are, and the line, an inherited socket. Over it the parent is
told under which birth the process runs, and the process to stop: not by a signal, for a supervisor may send one to each
process by itself, and a second one hurries. When the parent is gone the process sees that, and stops in order.
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

from ..logs.office import Expelled
from ..settings import Settings

logger = logging.getLogger("keylanes")

VARIABLE: Final = "KEYLANES_PROCESS"
STOP: Final = b"s"
AT_ONCE: Final = b"o"
ABORT: Final = b"a"
"""What the parent says, in this order."""
COMES_BACK: Final = "="
"""What a process says that was expelled, and may be started again; no birth is like it."""
CAUSE: Final = "!"
"""Before the error that ends a process, as JSON of one line."""
CAUSE_MAX: Final = 8_000
"""So many characters of it are told."""


def _start_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # removed, or not to be read: those that are started inherit it
        return None


START_FOLDER: Final = _start_folder()
"""In which the program was started: it is found from there again. None: it is not known."""


class Sibling:
    """The process, number ``number`` of ``of``, from 1 on."""

    def __init__(self, number: int, of: int, line: socket.socket) -> None:
        self.number, self.of, self._line = number, of, line
        self._has_begun = False

    def settings(self, settings: Settings) -> Settings:
        """Those of this process: its name ends with its number."""
        name = settings.group_instance_id
        return (
            settings if name is None else msgspec.structs.replace(settings, group_instance_id=f"{name}-{self.number}")
        )

    def sign(self) -> None:
        """Say in all that is logged who it is."""
        if not self._has_begun:
            self._has_begun = True
            multiprocessing.current_process().name = f"keylanes-{self.number}"
            logger.addFilter(self._signed)

    def obey(self, stop: Callable[[], object], at_once: Callable[[], object], abort: Callable[[], object]) -> None:
        """Call these, in a thread, when the parent says so, or is gone."""
        calls = {STOP: stop, AT_ONCE: at_once, ABORT: abort}
        Thread(target=self._listen, args=(calls,), name="keylanes-parent", daemon=True).start()

    def tell(self, birth: str) -> None:
        """The parent shall know under which birth this process runs now."""
        self._say(birth)

    def ends(self, error: BaseException) -> None:
        """The parent shall know by which error this process ends, and whether it may be started again because of it."""
        if isinstance(error, Expelled) and error.comes_back:
            self._say(COMES_BACK)
        self._say(CAUSE + json.dumps(str(error)[:CAUSE_MAX]))

    def _say(self, line: str) -> None:
        with contextlib.suppress(ConnectionError):  # the parent is gone
            self._line.sendall(f"{line}\n".encode())

    def _signed(self, record: logging.LogRecord) -> bool:
        record.msg = f"[{self.number}/{self.of}] {record.msg}"
        return True

    def _listen(self, calls: Mapping[bytes, Callable[[], object]]) -> None:
        while said := self._line.recv(1):
            calls[said]()
        logger.warning("the process that started this one is gone: stopping in order")
        calls[STOP]()


def sibling_in(environ: MutableMapping[str, str]) -> Sibling | None:
    """The process by the variable, which is taken out: what is started from here is none of the siblings."""
    value = environ.pop(VARIABLE, None)
    if value is None:
        return None
    number, of, line = (int(part) for part in value.split("/"))
    return Sibling(number, of, socket.socket(fileno=line))


SIBLING: Final = sibling_in(os.environ)
"""None: this process was started by nobody of us."""
