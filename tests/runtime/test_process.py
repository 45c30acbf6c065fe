"""What a process that runs an application gives back to the system, told by the pages that it has to be given again."""

import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator has ways of its own")

ROUNDS, BLOCKS = 50, 8
FRESH_PAGES = ROUNDS * BLOCKS * 1024**2 // 4096
"""When every block is given back and asked for again."""

PROGRAM = f"""
    import asyncio, resource
    from keylanes import App
    from keylanes.brokers.embedded import EmbeddedBroker
    from keylanes.brokers.protocol import TopicSpec

    async def topic():
        broker = EmbeddedBroker("data")
        await broker.open()
        await broker.create([TopicSpec("orders", 1, {{}})])
        await broker.close()

    def pages():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range({ROUNDS}):
            blocks = [b"x" * 1024**2 for _ in range({BLOCKS})]
            del blocks
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    asyncio.run(topic())
    app = App("shop", broker="embedded:data")

    @app.handler("orders")
    async def handle(value: bytes) -> None:
        pass

    app.run(until="level")
    print(pages())
"""


def pages_of(folder: Path, **environment: str) -> int:
    """Pages that such a process is given while it works on 50 times 8 MiB, after ``run``."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(PROGRAM)]
    told = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, check=True)
    return int(told.stdout)


def test_memory_is_kept_for_the_next_answer(tmp_path: Path) -> None:
    """Blocks as large as answers come from what the process has already."""
    assert pages_of(tmp_path) < FRESH_PAGES / 10


@pytest.mark.parametrize(
    "wish", [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}]
)
def test_what_the_environment_says_is_left_as_it_is(tmp_path: Path, wish: dict[str, str]) -> None:
    """Whoever wants memory back at once has it."""
    assert pages_of(tmp_path, **wish) > FRESH_PAGES / 2
