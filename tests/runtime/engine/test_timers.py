"""Time limits of handlers that run side by side."""

import asyncio

from keylanes import DeadLetter, Retry

from ...stage.engine import DEAD, OUT, SOURCE, application, started
from ...stage.virtual import virtual

LIMIT_MS = 250
WORK_S = 0.2
"""Within the limit, and long enough for some to run at any time."""
RECORDS = 40


@virtual
async def test_each_handler_has_its_own_time() -> None:
    """One that hangs is cancelled at its limit, again and again; all others end in their first attempt."""
    app = application(handler_timeout_ms=LIMIT_MS)
    begun: list[int] = []

    @app.handler(SOURCE, to=OUT, parallelising_factor=8, retry=Retry(attempts=1), on_failure=DeadLetter(DEAD))
    async def work(value: int) -> int:
        begun.append(value)
        await asyncio.sleep(3_600 if value % 10 == 0 else WORK_S)
        return value

    engine = await started(app)
    for value in range(RECORDS):
        engine.send(b"k%d" % value, b"%d" % value)
        await asyncio.sleep(LIMIT_MS / 7_000)
    await engine.level()
    dead = sorted(int(value or b"") for values in engine.values(DEAD).values() for value in values)
    done = sorted(int(value or b"") for values in engine.values().values() for value in values)
    assert dead == [value for value in range(RECORDS) if value % 10 == 0]
    assert done == [value for value in range(RECORDS) if value % 10]
    assert sorted(begun) == list(range(RECORDS))
