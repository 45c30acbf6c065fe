"""Driver processes and what they work on: one arm run, from its order to its exit; topics made, filled and removed."""

import asyncio
import contextlib
import json
import queue
import shutil
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from _arms import ARMS, command
from _measure import WrongRun
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.group import LeaveGroupRequest

BENCH = Path(__file__).resolve().parent
READY_SECONDS_MAX = 90.0
CLOSE_SECONDS_MAX = 90.0
SAID_LINES = 12


class Driver:
    """A running driver. As a context: whatever happens, its process is gone afterwards."""

    def __init__(self, call: Sequence[str], order: Mapping[str, Any], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "spec.json"
        path.write_text(json.dumps(order, indent=1))
        self.said = folder / "stderr"
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self.said.open("a") as errors:
            self.process = subprocess.Popen(
                [*tied(), *call, str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # a library that prints
                found = json.loads(line)
                if isinstance(found, dict) and "event" in found:
                    self._events.put(found)
        self._events.put(None)

    def event(self, name: str, seconds_max: float, *others: str) -> dict[str, Any]:
        """The next event of that name, or one of the others. Raises WrongRun when it ends or the time is over."""
        deadline = time.monotonic() + seconds_max
        while True:
            try:
                found = self._events.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                raise WrongRun(f"no {name!r} within {seconds_max:g} s: {self.last_words()}") from None
            if found is None:
                raise WrongRun(f"ended with code {self.process.wait()} before {name!r}: {self.last_words()}")
            if found["event"] in (name, *others):
                return found

    def longest_transaction_s(self) -> float:
        """What a driver that has ended told of its commits."""
        longest = 0.0
        while (found := self._events.get(timeout=CLOSE_SECONDS_MAX)) is not None:
            longest = found.get("transaction_s_max", longest)
        return longest

    def end(self) -> None:
        """Wait until it has closed in order. Raises WrongRun."""
        try:
            code = self.process.wait(CLOSE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise WrongRun(f"did not close within {CLOSE_SECONDS_MAX:g} s: {self.last_words()}") from None
        if code != 0:
            raise WrongRun(f"ended with code {code}: {self.last_words()}")

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def last_words(self) -> str:
        """The end of what it said."""
        lines = self.said.read_text(errors="replace").splitlines() if self.said.exists() else []
        return " / ".join(line.strip() for line in lines[-SAID_LINES:] if line.strip())[-800:] or "(it said nothing)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def tied() -> list[str]:
    """What lets a command die with this process, where the system has it."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "KILL", "--"] if found else []


def driver(arm: str, order: Mapping[str, Any]) -> Driver:
    """Start an arm. The folder that its order names is its own; what the harness keeps is beside it."""
    own_folder = Path(order["folder"])
    own_folder.mkdir(parents=True, exist_ok=True)
    return Driver(command(ARMS[arm]), {**order, "arm": arm}, own_folder.parent)


def own(program: str, order: Mapping[str, Any], folder: Path) -> Driver:
    """Start a program of the harness itself."""
    return Driver([sys.executable, str(BENCH / program)], order, folder)


def checked(result: dict[str, Any]) -> dict[str, Any]:
    """A result whose records were all there and in order. Raises WrongRun."""
    wrong = {k: result[k] for k in ("out_of_order", "incomplete_keys", "wrong_states") if result.get(k)}
    if wrong:
        raise WrongRun(f"records were lost, doubled or reordered: {wrong}")
    if "incomplete_keys" not in result:
        raise WrongRun("the driver did not check that all records came")
    return result


# --- files that both sides see --------------------------------------------------------------------------------------


def write_counts(path: Path, counts: "array[int]") -> str:
    """A file of u32; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(counts.tobytes())
    return str(path)


def read_counts(path: str | Path) -> "array[int]":
    """What ``write_counts`` wrote, as it is now."""
    return array("I", Path(path).read_bytes())


# --- topics -------------------------------------------------------------------------------------------------------


@dataclass
class Ground:
    """A broker with the topics that are kept; everything else is removed after each run."""

    bootstrap: str
    folder: Path
    kept: set[str] = field(default_factory=set)

    def make(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Create a topic."""
        asyncio.run(self._with_admin(_create(topic, partitions, settings)))

    def fill(self, topic: str, order: Mapping[str, Any]) -> None:
        """Create a source topic and fill it, once. Raises WrongRun."""
        if topic in self.kept:
            return
        self.make(topic, order["partitions"])
        with self.loader({**order, "topic": topic}) as loader:
            loader.end()
        self.kept.add(topic)

    def loader(self, order: Mapping[str, Any]) -> Driver:
        """A running loader."""
        folder = self.folder / "loader"
        shutil.rmtree(folder, ignore_errors=True)
        return own("_loader.py", {**order, "bootstrap": self.bootstrap}, folder)

    def forget_members(self, group: str) -> None:
        """Take what was killed out of its consumer group at once: else its successor waits for the session's end."""
        asyncio.run(self._with_admin(_leave(group)))

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A folder for one run; it and all new topics are gone afterwards."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(Exception):  # the broker may be what failed; its folder is removed in any case
                asyncio.run(self._with_admin(_remove_others(self.kept)))

    async def _with_admin(self, work: Any) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            await work(admin)
        finally:
            await admin.close()


def _create(topic: str, partitions: int, settings: Mapping[str, str] | None) -> Any:
    async def work(admin: AIOKafkaAdminClient) -> None:
        made = NewTopic(topic, num_partitions=partitions, replication_factor=1, topic_configs=dict(settings or {}))
        await admin.create_topics([made])

    return work


def _leave(group: str) -> Any:
    async def work(admin: AIOKafkaAdminClient) -> None:
        coordinator = await admin.find_coordinator(group)
        for answer in await admin.describe_consumer_groups([group], group_coordinator_id=coordinator):
            for _, _, _, _, _, members, *_ in answer.groups:
                for member, *_ in members:
                    await admin._send_request(LeaveGroupRequest(group, member), coordinator)

    return work


def _remove_others(kept: set[str]) -> Any:
    async def work(admin: AIOKafkaAdminClient) -> None:
        others = [t for t in await admin.list_topics() if t not in kept and not t.startswith("__")]
        if others:
            await admin.delete_topics(others)

    return work
