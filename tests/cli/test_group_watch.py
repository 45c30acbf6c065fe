"""A group that is watched: on a simulated cluster in virtual time."""

import asyncio
import io
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Self

from rich.console import Console

from keylanes.cli.group_logs import GroupMoment
from keylanes.cli.group_text import group_json, group_text
from keylanes.cli.group_watch import changes_shown, picture, watch
from keylanes.group.loads import PointsCost

from ..stage.engine import SOURCE
from ..stage.virtual import virtual
from .test_group_logs import Group, now_ms, runs_with
from .test_group_requests import asked, move, owners

INTERVAL_MS = 500


class Watched:
    """What was shown, with the loop's time of each."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.seen: list[tuple[float, GroupMoment]] = []

    async def __aenter__(self) -> Self:
        logs = await self.group.logs()
        self.task = asyncio.create_task(watch(logs, now_ms, INTERVAL_MS, self.show))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.task.cancelled(), "it goes on until it is interrupted"

    def show(self, stands: GroupMoment) -> None:
        """As a screen would."""
        self.seen.append((asyncio.get_running_loop().time(), stands))

    async def until(self, holds: Callable[[GroupMoment], bool]) -> GroupMoment:
        """Wait for one that is so."""
        async with asyncio.timeout(60):
            while not self.seen or not holds(self.seen[-1][1]):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.1)
        return self.seen[-1][1]


@virtual
async def test_a_group_is_followed_as_it_changes() -> None:
    """Who joins and what moves is seen within a moment, and never more often than it was asked for."""
    group = Group()
    first = await group.start("a")
    async with Watched(group) as watched:
        await watched.until(runs_with("a"))
        second = await group.start("b")
        await watched.until(runs_with("a", "b"))
        await asyncio.sleep(5)
        stands = watched.seen[-1][1]
        assert stands.heard is not None
        assert all(stands.now_ms - ms <= 2_000 for ms in stands.heard.last_ms.values())
        times = [at for at, _ in watched.seen]
        assert min(b - a for a, b in pairwise(times)) >= INTERVAL_MS / 1000 - 1e-6
        assert times[-1] >= asyncio.get_running_loop().time() - 2
        await second.stop()
        await watched.until(runs_with("a"))
    await first.stop()


@virtual
async def test_what_ranges_cost_is_shown() -> None:
    """Once there is somebody to share them with; when nobody watches, too."""
    group = Group()
    first, second = await group.start("a"), await group.start("b")
    await group.until(runs_with("a", "b"))
    async with Watched(group) as watched:
        stands = await watched.until(lambda stands: len(stands.costs) == 2)
    assert stands.costs[1] == PointsCost(0, 0, 0, 0)
    still = await group.stands()
    assert still.costs.keys() == stands.costs.keys()
    assert "busy 0.00 s/s)" in group_text("app", still)
    told = json.loads(group_json("app", still))
    assert told["members"][0]["load"] == PointsCost(0, 0, 0, 0)._asdict()
    assert json.loads(group_json("app", still._replace(costs={})))["members"][0]["load"] is None
    for engine in (second, first):
        await engine.stop()


@virtual
async def test_moves_are_shown_with_what_they_wait_for() -> None:
    """An owner that is dead releases nothing; when it is expelled its range goes over."""
    group = Group()
    first, second = await group.start("a"), await group.start("b")
    await group.until(runs_with("a", "b"))
    assert first.member.group.coordinating.is_coordinator
    partition = next(p for p in range(4) if owners(group, p)[0][2] == 2)
    await second.crash()
    async with Watched(group) as watched:
        asking = asyncio.create_task(asked(group, move(partition, "a")))
        stands = await watched.until(lambda stands: bool(stands.group.moves))
        (one,) = stands.group.moves
        text = group_text("app", stands)
        assert f"; move {one.move}: from 2 to 1 waits for incarnation 2 to release it" in text
        assert f"move {one.move}: {SOURCE}[{partition}] from 2 to 1 waits" in group_text("app", stands, is_all=True)
        assert "incarnation 2 to release it" in screen(stands)
        told = json.loads(group_json("app", stands))
        assert told["moves"][0]["waits_for"] == "incarnation 2 to release it"
        await watched.until(runs_with("a"))
        assert not watched.seen[-1][1].group.moves
        await asking
    await first.stop()


@virtual
async def test_a_picture_has_all_of_it() -> None:
    """Members and what waits for what, each in a row."""
    group = Group()
    first, second = await group.start("a"), await group.start("b")
    told = screen(await group.until(runs_with("a", "b")))
    assert "app: RUNNING, term 1" in told
    assert "1 a" in told
    assert "2 b" in told
    assert "coordinates" in told
    assert told.count("50%") == 2
    for engine in (second, first):
        await engine.stop()
    told = screen(await group.stands())
    assert "no member" in told
    assert f"{SOURCE}[3]: waits for a capable member" in told


def screen(stands: GroupMoment) -> str:
    """What a terminal shows."""
    console = Console(file=io.StringIO(), width=150)
    console.print(picture("app", stands))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@virtual
async def test_off_a_terminal_a_change_is_one_block() -> None:
    """Beats and loads alone are none."""
    group, blocks = Group(), list[str]()
    first = await group.start("a")
    one = await group.until(runs_with("a"))
    second = await group.start("b")
    both = await group.until(runs_with("a", "b"))
    show = changes_shown("app", group_text, blocks.append)
    for stands in (
        one,
        one._replace(now_ms=one.now_ms + 1),
        one._replace(costs={1: PointsCost(1, 1, 1, 1)}),
        both,
        one,
    ):
        show(stands)
    assert blocks == [group_text("app", stands) for stands in (one, both, one)]
    for engine in (second, first):
        await engine.stop()
