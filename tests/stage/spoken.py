"""What a process says while it runs, line by line, for tests that wait for it."""

import subprocess
import threading
from collections.abc import Callable, Iterator


class Spoken:
    """Of a process whose outputs are pipes of text: its ``lines``, and those of its ``errors``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        assert process.stdout is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        self._pipes = (process.stdout, process.stderr)
        both = zip(self._pipes, (self.lines, self.errors), strict=True)
        self._readers = [threading.Thread(target=self._listen, args=pipe) for pipe in both]
        for reader in self._readers:
            reader.start()

    def _listen(self, pipe: Iterator[str], into: list[str]) -> None:
        for line in pipe:
            with self._changed:
                into.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_for(self, is_reached: Callable[[], bool], seconds_max: float) -> None:
        """Wait until what was said fulfils a condition."""
        with self._changed:
            assert self._changed.wait_for(is_reached, seconds_max), (self.lines[-3:], self.errors[-20:])

    def end(self, seconds_max: float) -> bool:
        """Hear it to the end, which comes when nobody has its pipes any more; whether that came in time."""
        for reader in self._readers:
            reader.join(seconds_max)
        if any(reader.is_alive() for reader in self._readers):
            return False
        for pipe in self._pipes:
            pipe.close()
        return True
