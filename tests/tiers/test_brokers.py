"""Who keeps the brokers of a run: one answer for all who ask, and a sentence where there is no broker."""

from pathlib import Path

import pytest

from keylanes.devkafka.server import KafkaServer

from .brokers import KEEPER, OPEN, SECURED, Keeper, SharedKafka, shared


@pytest.mark.broker
def test_all_who_ask_are_told_of_one_kafka(kafka_server: SharedKafka) -> None:
    """It is started once."""
    assert shared(OPEN) == kafka_server


@pytest.mark.broker
def test_what_can_not_be_started_is_told_and_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test that wants it fails at once, with the reason; others get what they ask for."""
    wanted: list[str] = []

    def in_a_file(folder: Path) -> KafkaServer:
        wanted.append(folder.name)
        (tmp_path / folder.name).touch()
        return KafkaServer(tmp_path / folder.name)

    with Keeper({OPEN: in_a_file, SECURED: in_a_file}) as keeper:
        monkeypatch.setenv(KEEPER, keeper.address)
        for kind in (OPEN, OPEN, SECURED):
            with pytest.raises(pytest.fail.Exception, match=f"has no {kind} Kafka: can't use the broker's folder"):
                shared(kind)
    assert wanted == [OPEN, SECURED]


def test_a_keeper_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the run was ended and a test process still goes on."""
    with Keeper() as keeper:
        monkeypatch.setenv(KEEPER, keeper.address)
    with pytest.raises(pytest.fail.Exception, match="this run has no open Kafka: who keeps it does not answer"):
        shared(OPEN)
