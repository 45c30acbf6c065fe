"""``keylanes group move``, ``expel`` and ``--watch`` as their own processes, beside two members on a real broker."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from keylanes import App
from keylanes.keyrange.hashing import SPACE_END

from ..stage.ground import Ground

WAIT_S = 60.0
FACTOR = 4

pytestmark = pytest.mark.broker


def member(ground: Ground, name: str) -> App:
    """A process of the application, with a handler that does nothing."""
    app = App(
        ground.name,
        broker=ground.address,
        settings=ground.app(group_instance_id=name, heartbeat_interval_ms=200, load_interval_ms=500).settings,
    )

    @app.handler(ground.source, parallelising_factor=FACTOR)
    async def look(value: bytes) -> None:
        """Nothing."""

    return app


async def command(ground: Ground, *arguments: str) -> asyncio.subprocess.Process:
    """``keylanes group`` on this application, which runs on."""
    code = "import sys; from keylanes.cli.entry import main; sys.exit(main())"
    named = ("--app", ground.name, "--broker", ground.address)
    pipe = asyncio.subprocess.PIPE
    words = (sys.executable, "-P", "-c", code, "group", *arguments, *named)
    return await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)


async def answer(ground: Ground, *arguments: str) -> tuple[int | None, str, str]:
    """Its exit code, and what it says."""
    process = await command(ground, *arguments)
    async with asyncio.timeout(WAIT_S):
        said, told = await process.communicate()
    return process.returncode, said.decode(), told.decode()


@contextlib.asynccontextmanager
async def working(*apps: App) -> AsyncIterator[None]:
    """These while they run."""
    async with contextlib.AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app)
        yield


async def held(ground: Ground) -> dict[str, list[tuple[int, int]]]:
    """What each member has of the one partition."""
    code, said, told = await answer(ground, "--json")
    assert code == 0, told
    return {
        one["instance"]: [(band["first"], band["end"]) for band in one["held"]] for one in json.loads(said)["members"]
    }


def test_an_operator_moves_cells_watches_and_expels(kafka: Ground) -> None:
    """Each command ends when the control log has it; an expelled process is back as a new incarnation."""
    kafka.create(kafka.source, 1)

    async def story() -> None:
        async with working(member(kafka, "a"), member(kafka, "b")):
            watching = await command(kafka, "--watch", "--json")
            assert watching.stdout is not None
            first = json.loads(await watching.stdout.readline())
            assert {one["instance"] for one in first["members"]} == {"a", "b"}

            (owner,) = [name for name, bands in (await held(kafka)).items() if bands]
            other = {"a": "b", "b": "a"}[owner]
            code, said, told = await answer(kafka, "move", kafka.source, "0", "--cells", "0..1", "--to", other)
            assert (code, said) == (
                0,
                f"{kafka.source}[0] 00000000-80000000 belongs to incarnation {said.split()[-2]} {other}\n",
            ), told
            now = await held(kafka)
            assert now[other] in ([(0, SPACE_END // 2)], [(0, SPACE_END // 4), (SPACE_END // 4, SPACE_END // 2)])

            code, said, told = await answer(kafka, "move", kafka.source, "0", "--to", "nobody")
            assert (code, said) == (2, "")
            assert "'nobody' is no member; there are incarnation" in told

            code, said, told = await answer(kafka, "expel", other, "--json")
            assert code == 0, told
            gone = json.loads(said)["incarnation"]
            async with asyncio.timeout(WAIT_S):
                while True:
                    line = json.loads(await watching.stdout.readline())
                    there = {
                        one["instance"]: one["incarnation"] for one in line["members"] if one["standing"] == "member"
                    }
                    if there.get(other, gone) != gone:
                        break
            watching.send_signal(signal.SIGINT)
            assert await watching.wait() == 0

    asyncio.run(story())
