"""examples/fastapi_service.py with one worker of a real server, and with two."""

import asyncio
from pathlib import Path

import pytest

from keylanes import LogError
from keylanes.brokers.kafka.broker import KafkaBroker
from keylanes.brokers.protocol import Outgoing

from ..stage.appending import append
from ..tiers.brokers import SharedKafka
from .test_workers import WAIT_S, make_topics, serving, until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


@pytest.mark.parametrize("workers", [1, 2])
async def test_orders_are_taken_and_counted_until_a_fatal_error_ends_the_server(
    kafka_server: SharedKafka, tmp_path: Path, workers: int
) -> None:
    """Whichever worker takes an order, the one that has the customer counts it. Each worker ends with the error."""
    await make_topics(kafka_server.bootstrap)
    app = f"{tmp_path.name}-{workers}"
    async with serving(
        tmp_path, kafka_server, name="fastapi_service", workers=workers, SHOP=app, KEYLANES_LEAVE_MS="0"
    ) as service:

        async def works() -> bool:
            found = await service.ask("/statistics")
            shares = {tuple(p["partition"] for p in seen["partitions"]) for status, seen in found if status == 200}
            return len(shares) == workers and () not in shares

        await until(works)
        assert {(status, seen["state"]) for status, seen in await service.ask("/health")} == {(200, "running")}
        for number in range(40):
            assert (await service.get(f"/orders/{app}-{number % 4}?item=tea&pieces=2", "POST"))[0] == 202
        assert (await service.get(f"/orders/{app}?item=tea&pieces=many", "POST"))[0] == 422

        async def counted() -> bool:
            found = [await service.ask(f"/orders/{app}-{number}") for number in range(4)]
            return all({(200, 20)} == {one for one in answers if one[0] != 421} for answers in found)

        await until(counted)
        broker = KafkaBroker(kafka_server.bootstrap)
        await broker.open()
        await append(broker, [Outgoing(f"{app}.control", 0, None, b"of somebody else")])
        await broker.close()
        code = await asyncio.to_thread(service.parent.wait, WAIT_S)
        assert code == (LogError.exit_code if workers == 1 else 0)  # 0 is uvicorn's, when no worker can start
        assert f"{app} stops: " in service.log()
        assert f"{app}.control" in service.log().partition(f"{app} stops: ")[2].partition("\n")[0]
