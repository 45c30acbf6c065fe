"""The loader: it may be stopped at any point, and each row is there once, in its order."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flights import source_rows
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import Outgoing, TopicSpec
from keylanes.errors import FencedError, LogError
from loader import PROGRESS, ROWS_PER_TRANSACTION, SOURCE, Loader
from logbook import read_topic

from ...stage.appending import append

ROWS = 4 * ROWS_PER_TRANSACTION + 7


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """An empty embedded broker."""
    broker = EmbeddedBroker(tmp_path / "data")
    await broker.open()
    yield broker
    await broker.close()


async def assert_loaded(broker: EmbeddedBroker) -> None:
    """Each of the rows is in its partition once, in the order of the rows."""
    loaded: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    async for batch in read_topic(broker, SOURCE):
        loaded.setdefault(batch.source.partition, []).extend((record.key, record.value) for record in batch.records)
    rows = list(source_rows(0, ROWS))
    for partition, records in loaded.items():
        assert records == [(row.key, row.value) for row in rows if row.partition == partition]
    assert sum(map(len, loaded.values())) == ROWS


async def test_loading_twice_is_loading_once(broker: EmbeddedBroker) -> None:
    """A loader that finds everything there writes nothing, and says how much there is."""
    await Loader(broker, ROWS).run()
    heard: list[int] = []
    await Loader(broker, ROWS, on_progress=heard.append).run()
    assert heard == [ROWS]
    await assert_loaded(broker)


@pytest.mark.parametrize("step", ["load transact", "load committed"])
async def test_a_loader_that_stops_at_a_step_is_followed_by_one_that_goes_on(broker: EmbeddedBroker, step: str) -> None:
    """Cut off before and after a transaction, the next loader begins behind the last one that was committed."""
    heard: list[str] = []

    def cut_off(at: str) -> None:
        heard.append(at)
        if heard.count(step) == 2 and at == step:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Loader(broker, ROWS, on_step=cut_off).run()
    begins: list[int] = []
    await Loader(broker, ROWS, on_progress=begins.append).run()
    assert begins[0] == (1 if step == "load transact" else 2) * ROWS_PER_TRANSACTION
    await assert_loaded(broker)


async def test_of_two_loaders_one_goes_on(broker: EmbeddedBroker) -> None:
    """A second loader fences the first, which stops and says why; the rows are there once."""
    others: list[asyncio.Task[None]] = []

    def start_another(step: str) -> None:
        if not others:
            others.append(asyncio.create_task(Loader(broker, ROWS).run()))

    with pytest.raises(FencedError, match="another loader"):
        await Loader(broker, ROWS, on_step=start_another).run()
    await others[0]
    await assert_loaded(broker)


async def test_a_foreign_record_among_the_progress_is_refused(broker: EmbeddedBroker) -> None:
    """What no loader of ours wrote stops the loader instead of being taken for zero."""
    await broker.create([TopicSpec(PROGRESS.topic, 1, {})])
    await append(broker, [Outgoing(*PROGRESS, None, b"hello")])
    with pytest.raises(LogError, match="no loader of ours"):
        await Loader(broker, ROWS).run()
