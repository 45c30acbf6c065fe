"""A member of a group that notes each record that it handles, and what it costs: keylanes alone.

Called as ``python handover_app.py ORDER.json``. A note is u64 nanoseconds of the system's monotonic clock when the
record began and when it ended, u32 partition, u32 microseconds by which it ended behind its due time, u32 number of its
key, u32 its own number within the key, little-endian; notes lie in memory that a file holds, in the order in which
records ended, and a zero one ends them. Some times a second a sample is written: what this process has handled so far,
and what it has read of changelogs and copied of ranges that it did not own. SIGTERM ends it in order.

With ``entries`` the first record of a key fills a map; of the others one in ``change_every`` replaces a value, and the
rest read one. So many are those of a key in the ``heavy`` partition and points, one those of the others. Without
``entries`` the handler does nothing.
"""

import contextlib
import json
import logging
import mmap
import sys
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from struct import Struct
from typing import Any, cast

from keylanes import App, Context, MapState, Settings
from keylanes.brokers.protocol import Batch, Broker, Reader, TopicPartition
from keylanes.keyrange.hashing import point_of_key
from keylanes.runtime.connect import connect
from keylanes.state.changelog import changelog_topic

NOTE = Struct("<QQIIII")
PLACE = Struct("<IIQ")
LATE_US_MAX = (1 << 32) - 1
VALUE_BYTES = 100
"""Of an entry of the map."""
SAMPLE_S = 0.25


class Notes:
    """Those of one process, at most ``most``."""

    def __init__(self, path: str, most: int) -> None:
        with open(path, "w+b") as file:
            file.truncate(most * NOTE.size)
            self._memory = mmap.mmap(file.fileno(), most * NOTE.size)
        self.count = 0

    def add(self, began_ns: int, partition: int, value: bytes) -> None:
        """A record that began then has ended now."""
        ended_ns = time.monotonic_ns()
        key, number, due_ns = PLACE.unpack_from(value)
        late_us = min(max(ended_ns - due_ns, 0) // 1_000, LATE_US_MAX)
        NOTE.pack_into(self._memory, self.count * NOTE.size, began_ns, ended_ns, partition, late_us, key, number)
        self.count += 1


class CountingBroker:
    """A broker whose readers count the records of one topic and of its changelog; all else is the broker's own."""

    def __init__(self, broker: Broker, topic: str, changelog: str) -> None:
        self._broker, self.topic, self.changelog = broker, topic, changelog
        self.records_read = self.changelog_records = self.changelog_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def reader(self, positions: Mapping[TopicPartition, int]) -> "CountingReader":
        """See Broker."""
        return CountingReader(await self._broker.reader(positions), self)


class CountingReader:
    """One of its readers."""

    def __init__(self, reader: Reader, counts: CountingBroker) -> None:
        self._reader, self._counts = reader, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def fetch(self, sources: Collection[TopicPartition], *, records_max: int, wait_ms: int) -> list[Batch]:
        """See Reader."""
        batches = await self._reader.fetch(sources, records_max=records_max, wait_ms=wait_ms)
        counts = self._counts
        for batch in batches:
            if batch.source.topic == counts.topic:
                counts.records_read += len(batch.records)
            elif batch.source.topic == counts.changelog:
                counts.changelog_records += len(batch.records)
                counts.changelog_bytes += sum(len(one.key or b"") + len(one.value or b"") for one in batch.records)
        return batches


class Samples:
    """Written in a thread, so that what blocks the loop delays none."""

    def __init__(self, path: str, notes: Notes, counts: CountingBroker, app: App) -> None:
        self._file, self._notes, self._counts = open(path, "a"), notes, counts  # noqa: SIM115  # as long as the process
        self._app, self._copied_bytes = app, 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        due_s = time.monotonic()
        while True:
            self.write()
            due_s += SAMPLE_S
            time.sleep(max(due_s - time.monotonic(), 0.0))

    def write(self) -> None:
        """One more."""
        with (
            self._lock,
            contextlib.suppress(RuntimeError),
        ):  # the loop changes what is being counted: the next one has it
            copying = self._app.statistics().copying
            self._copied_bytes = copying.bytes_learner + copying.bytes_standby
        with self._lock:
            sample = {
                "records": self._notes.count,
                "changelog_records": self._counts.changelog_records,
                "changelog_bytes": self._counts.changelog_bytes,
                "copied_bytes": self._copied_bytes,
            }
            self._file.write(json.dumps(sample) + "\n")
            self._file.flush()


def run(order: dict[str, Any]) -> None:
    """Until SIGTERM."""
    settings = Settings(session_timeout_ms=order["session_ms"], group_instance_id=order["name"], **order["settings"])
    broker = connect(f"kafka://{order['bootstrap']}", settings, order["group"])
    counting = CountingBroker(broker, order["topic"], changelog_topic(order["group"], order["topic"]))
    notes = Notes(order["notes"], order["notes_max"])
    app = App(order["group"], broker=cast(Broker, counting), settings=settings)
    declared = app.handler(order["topic"], parallelising_factor=order["factor"])
    entries, change_every, heavy = order["entries"], order["change_every"], order["heavy"]
    clock = time.monotonic_ns

    async def work(value: bytes, ctx: Context) -> None:
        notes.add(clock(), ctx.partition, value)

    async def keep(value: bytes, ctx: Context, held: MapState[int, bytes]) -> None:
        began_ns = clock()
        entry, number, count = value[-VALUE_BYTES:], PLACE.unpack_from(value)[1], 1
        if heavy[0] in (ctx.partition, -1) and heavy[1] <= point_of_key(ctx.key or b"") < heavy[2]:
            count = entries
        if number % change_every:
            held.get(number % count)
        else:
            for place in [number // change_every % count] if number else range(count):
                held.put(place, entry)
        notes.add(began_ns, ctx.partition, value)

    declared(keep if entries else work)
    samples = Samples(order["samples"], notes, counting, app)
    app.run()
    samples.write()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    run(json.loads(Path(sys.argv[1]).read_text()))
