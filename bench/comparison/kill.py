"""W6: one record is stuck for good, the others are handled, then kill -9 and a restart, twice.

The handlers count in shared memory, which survives the kill: a record whose counter grows from more than 0 afterwards
was run again. A stuck record never ends: drivers count it when it begins, so that a restart which leaves it out is
seen. The first kill comes at full speed, when ``KILL_SHARE`` of all is handled: what was done since the last commit is
not committed yet. The second one comes when all is handled, after a quiet time in which all commits are through: then
the stuck one alone may begin again.
"""

import asyncio
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from comparison.arms import ARMS, driver
from comparison.rate import OUTPUT_SETTINGS, RESULT_SECONDS_MAX, order_of
from comparison.workloads import PC, Workload
from keylanes import Settings
from keylanes.keyrange.hashing import point_of_key
from keylanes.offsets.codec import decode
from keylanes.offsets.event_values import Tile
from keylanes.offsets.events import Committed
from rig.counts import read_counts, write_counts
from rig.drivers import READY_SECONDS_MAX, Driver
from rig.errors import WrongRun
from rig.ground import Ground
from rig.outputs import COMMIT_MS, WRONG_OUTPUTS, read_output
from rig.records import key_bytes

KILL_SHARE = 0.75
POLL_S = 0.01
POLL_FAR_S = 0.1
"""Between two looks at the counters, near the end and while a tenth is still missing: to look costs time too."""
FAR_SHARE = 0.1
AGAIN_SECONDS_MAX = 60.0
"""The neighbours of a stuck key wait until their range is split."""
STILL_S = 5.0
"""Counters that have not grown for so long, after a restart, will grow no more."""
QUIET_S = 7.0
"""Far longer than the commit interval of every arm."""


class Counters:
    """How often each record was handled, and how often the stuck one began."""

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> "array[int]":
        """A copy of them as they are now."""
        return read_counts(self.path)

    def wait_handled(self, wanted: int, seconds_max: float, running: Driver) -> float:
        """Wait until so many records are handled, and the stuck one has begun if it is all; the seconds since the first
        one was.

        Raises WrongRun.
        """
        deadline, began_s = time.monotonic() + seconds_max, 0.0
        while (missing := wanted - self.handled()) > 0:
            if not began_s and missing < wanted:
                began_s = time.monotonic()
            if time.monotonic() > deadline or running.process.poll() is not None:
                raise WrongRun(f"{missing} records were not handled: {running.last_words()}")
            is_far = began_s > 0 and missing > FAR_SHARE * wanted
            time.sleep(POLL_FAR_S if is_far else POLL_S)
        return time.monotonic() - began_s

    def handled(self) -> int:
        """How many have been counted."""
        counts = self.read()
        return len(counts) - counts.count(0)

    def wait_again(self, before: "array[int]", committed: Sequence[bool], running: Driver) -> None:
        """Wait until every record that was not committed has been run again. Raises WrongRun."""
        deadline = time.monotonic() + AGAIN_SECONDS_MAX
        places = [place for place, done in enumerate(committed) if not done]
        while missing := sum(now[place] == before[place] for now in [self.read()] for place in places):
            if time.monotonic() > deadline or running.process.poll() is not None:
                raise WrongRun(f"{missing} records were neither committed before the kill nor run again after it")
            time.sleep(POLL_FAR_S)

    def wait_still(self, running: Driver) -> "array[int]":
        """Wait until none has grown for a while."""
        seen, since_s = self.read(), time.monotonic()
        while time.monotonic() - since_s < STILL_S:
            if running.process.poll() is not None:
                raise WrongRun(f"ended by itself after a restart: {running.last_words()}")
            time.sleep(POLL_S * 5)
            if (now := self.read()) != seen:
                seen, since_s = now, time.monotonic()
        return seen


def run(workload: Workload, arm: str, size: str, ground: Ground) -> dict[str, Any]:
    """What was run again after each kill. Raises WrongRun."""
    with ground.scratch(f"{workload.name}-{arm}") as folder:
        order = order_of(workload, arm, size, ground, folder)
        order["stuck"] = workload.stuck
        order["counters"] = write_counts(folder / "counters", array("I", bytes(4 * order["records"])))
        if ARMS[arm].is_exactly_once:
            order["output"] = f"{order['group']}-output"
            ground.make(order["output"], settings=OUTPUT_SETTINGS)
        counters = Counters(order["counters"])
        with driver(arm, order) as first:
            first.event("ready", READY_SECONDS_MAX)
            seconds = counters.wait_handled(int(KILL_SHARE * order["records"]), RESULT_SECONDS_MAX[size], first)
            first.kill()
            transaction_s = first.longest_transaction_s()
        if arm in PC:
            ground.forget_members(order["group"])
        figures = {"records": counters.handled(), "seconds": seconds}
        figures["per_second"] = figures["records"] / seconds
        figures |= _restart(order, counters, ground, arm, size)
        if arm == "keylanes":
            bound_s = (COMMIT_MS + Settings().limits.commit_lead_ms) / 1_000 + transaction_s
            figures |= {"transaction_s_max": transaction_s, "bound": figures["per_second"] * bound_s}
        if order["output"]:
            seen = read_output(order, workload.distribution, ground)
            figures |= {f"outputs_{name}": seen[name] for name in WRONG_OUTPUTS}
    return figures


def _restart(order: dict[str, Any], counters: Counters, ground: Ground, arm: str, size: str) -> dict[str, Any]:
    """Start again after the kill, then after a kill on a quiet log; how many records ran again. Raises WrongRun."""
    before, stuck = counters.read(), order["stuck"]
    committed = committed_records(order, ground) if arm == "keylanes" else None
    if committed is not None and not any(times and not done for times, done in zip(before, committed, strict=True)):
        raise WrongRun("the kill met nothing that was handled and not committed: it says nothing")
    with driver(arm, order) as second:
        second.event("ready", READY_SECONDS_MAX)
        counters.wait_handled(order["records"], RESULT_SECONDS_MAX[size], second)
        if committed is not None:
            counters.wait_again(before, committed, second)
        after = counters.wait_still(second)
        time.sleep(max(QUIET_S - STILL_S, 0.0))
        second.kill()
    if arm in PC:
        ground.forget_members(order["group"])
    with driver(arm, order) as third:
        third.event("ready", READY_SECONDS_MAX)
        last = counters.wait_still(third)
        third.kill()
    again, again_quiet = grown(before, after), grown(after, last)
    found = {"again": len(again), "again_quiet": len(again_quiet)}
    found["stuck_left_out"] = (stuck not in again) + (stuck not in again_quiet)
    if committed is not None:
        found |= {"committed_at_kill": sum(committed), "committed_again": sum(committed[place] for place in again)}
    return found


def grown(before: Sequence[int], after: Sequence[int]) -> set[int]:
    """The records that had been counted, and were counted again."""
    return {place for place, (then, now) in enumerate(zip(before, after, strict=True)) if now > then > 0}


def committed_records(order: dict[str, Any], ground: Ground) -> list[bool]:
    """Which records lie inside committed tiles: by the offset log and the keys' points. Offsets are indexes here."""
    points = [point_of_key(key_bytes(key)) for key in range(order["records"])]  # all keys are distinct: key = index
    return covered(points, asyncio.run(committed_tiles(ground.bootstrap, f"{order['group']}.offsets")))


async def committed_tiles(bootstrap: str, topic: str) -> list[Tile]:
    """Those of the events in an offset log, up to the transaction that the kill left open."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, isolation_level="read_committed")
    await consumer.start()
    tiles: list[Tile] = []
    try:
        places = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
        consumer.unsubscribe()
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(places)  # the last stable ones, as it reads committed records only
        while any([await consumer.position(place) < end for place, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=50)).values():
                events = [decode(record.value) for record in records]
                tiles += [tile for event in events if isinstance(event, Committed) for tile in event.tiles]
    finally:
        await consumer.stop()
    return tiles


def covered(points: Sequence[int], tiles: Sequence[Tile]) -> list[bool]:
    """For each offset, whether a tile covers it at its point."""
    by_point = sorted((point, offset) for offset, point in enumerate(points))
    found = [False] * len(points)
    for tile in tiles:
        for place in range(bisect_left(by_point, (tile.first, 0)), bisect_left(by_point, (tile.end, 0))):
            offset = by_point[place][1]
            if tile.offset_from <= offset < tile.offset_to:
                found[offset] = True
    return found
