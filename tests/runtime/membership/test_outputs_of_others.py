"""An application under a new name does not handle the outputs of the old one beside its own without a word."""

import logging
from typing import Any

import pytest

from keylanes import App, SettingsError
from keylanes.brokers.simulated.broker import Latency

from ...stage.cluster import Cluster
from ...stage.engine import Engine
from ...stage.virtual import virtual
from .group import until

PAYMENTS, UNIQUE, CONFIRMED = "payments", "payments.unique", "confirmed"
ACCEPTED = f'App(accept_outputs_of_others=("{UNIQUE}",))'


def shop(name: str, *, source: str = PAYMENTS, unique: str = UNIQUE, start: str = "earliest", **given: Any) -> App:
    """Two handlers, the second one on the outputs of the first."""
    app = App(name, broker="embedded:never-opened", **given)

    @app.handler(source, to=unique)
    async def once(value: bytes) -> bytes:
        return value

    @app.handler(unique, to=CONFIRMED, start=start)
    async def confirm(value: bytes) -> bytes:
        return value

    return app


class Street:
    """A cluster with payments, and processes of several applications on it."""

    def __init__(self, payments: int = 20) -> None:
        self.cluster = Cluster(1, Latency())
        self.engines: list[Engine] = []
        for topic in (UNIQUE, "payments.unique-2", CONFIRMED):
            self.cluster.create_topic(topic, 1)
        self.payments = payments

    async def opens(self, app: App) -> Engine:
        """The one process of an application, at work."""
        engine = Engine(
            app, cluster=self.cluster, sources=(PAYMENTS, "refunds"), name=f"{app.name}.{len(self.engines)}"
        )
        if not self.engines:
            for n in range(self.payments):
                engine.send(b"%d" % n, b"paid", topic=PAYMENTS)
        self.engines.append(engine)
        await engine.start()
        await engine.level()
        return engine

    async def closes(self) -> None:
        """All that are at work stop."""
        for engine in self.engines:
            if not engine.is_over:
                await engine.stop()

    def confirmations(self) -> int:
        """How many there are of each payment."""
        committed = self.cluster.committed_records(CONFIRMED)
        assert len(committed) % self.payments == 0
        return len(committed) // self.payments


@virtual
async def test_a_new_name_on_the_topics_of_an_old_one_is_refused() -> None:
    """With exit code 2, and nothing is written; each payment stays confirmed once."""
    street = Street()
    await street.opens(shop("shop"))
    await street.closes()
    with pytest.raises(SettingsError) as refused:
        await street.opens(shop("shop-2"))
    said = str(refused.value)
    assert refused.value.exit_code == 2
    assert f"{UNIQUE} is written and read by 'shop-2'" in said
    assert f"another application made of records of {PAYMENTS}, which this one handles, too" in said
    assert "docs/process-again.md" in said
    assert ACCEPTED in said
    assert street.cluster.committed_records("shop-2.control") == []
    assert street.confirmations() == 1


@virtual
async def test_with_a_topic_of_its_own_each_is_confirmed_once_more() -> None:
    """That is what the page says; the application itself is started again as often as one likes."""
    street = Street()
    await street.opens(shop("shop"))
    await street.closes()
    for _ in range(2):
        await street.opens(shop("shop-2", unique="payments.unique-2"))
        await street.closes()
    assert street.confirmations() == 2
    await street.opens(shop("shop"))
    await street.closes()


@virtual
async def test_what_is_accepted_is_handled(caplog: pytest.LogCaptureFixture) -> None:
    """Three confirmations of each: one of the old application, of its output another, and of the own."""
    street = Street()
    await street.opens(shop("shop"))
    await street.closes()
    await street.opens(shop("shop-2", accept_outputs_of_others=(UNIQUE,)))
    await until(lambda: len(street.cluster.committed_records(CONFIRMED)) == 3 * street.payments)
    await street.closes()
    assert "another application" not in caplog.text


@pytest.mark.parametrize("given", [{"start": "latest"}, {"source": "refunds"}], ids=["latest", "another source"])
@virtual
async def test_what_is_not_made_twice_is_no_finding(given: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """What lies there is not read, or comes from a source that is not handled here."""
    street = Street()
    await street.opens(shop("shop"))
    await street.closes()
    await street.opens(shop("shop-2", **given))
    await street.closes()
    assert "another application" not in caplog.text


@virtual
async def test_what_comes_later_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Both are started before there is an output: each says of the topic what it means."""
    caplog.set_level(logging.WARNING, "keylanes")
    street = Street()
    street.payments = 0
    for name in ("shop", "shop-2"):
        await street.opens(shop(name))
    for n in range(40):
        street.engines[0].send(b"%d" % n, b"paid", topic=PAYMENTS)
    await until(lambda: len(street.cluster.committed_records(CONFIRMED)) == 4 * 40)
    await street.closes()
    said = [r.getMessage() for r in caplog.records if "outputs that another application made" in r.getMessage()]
    assert len(said) == 2
    assert said[0].startswith(f"{UNIQUE} holds outputs that another application made of records of {PAYMENTS}")
    assert "docs/process-again.md" in said[0]


@pytest.mark.parametrize("given", ["payments.unique", [1], 7])
def test_what_is_no_list_of_topics_is_refused(given: Any) -> None:
    """It says how to write it."""
    for name in ("accept_outputs_of_others", "accept_moved_keys"):
        with pytest.raises(SettingsError, match=name):
            App("shop", broker="embedded:never-opened", **{name: given})
