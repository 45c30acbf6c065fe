"""What the client library may log: nothing of records, little of itself, and what the user asked for."""

import logging
from collections.abc import Iterator

import pytest

from keylanes.brokers.kafka.client_logs import quieten_client_logs

from ..tiers.marks import tier

pytestmark = tier("check")

WHOLE, PART = "aiokafka", "aiokafka.consumer.fetcher"


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    """As nobody has set them, and as they were."""
    loggers = [logging.getLogger(name) for name in ("", WHOLE, PART)]
    before = [one.level for one in loggers]
    for one in loggers[1:]:
        one.setLevel(logging.NOTSET)
    yield
    for one, level in zip(loggers, before, strict=True):
        one.setLevel(level)


@pytest.mark.parametrize("root", [logging.DEBUG, logging.INFO, logging.WARNING])
def test_it_is_at_warning_unless_a_level_was_set(root: int) -> None:
    """Whatever the root logger lets through."""
    logging.getLogger().setLevel(root)
    quieten_client_logs()
    quieten_client_logs()
    assert [logging.getLogger(name).getEffectiveLevel() for name in (WHOLE, PART)] == [logging.WARNING] * 2


def test_a_root_logger_that_lets_less_through_holds() -> None:
    """Errors only stay errors only."""
    logging.getLogger().setLevel(logging.ERROR)
    quieten_client_logs()
    assert logging.getLogger(PART).getEffectiveLevel() == logging.ERROR


@pytest.mark.parametrize("name", [WHOLE, PART])
@pytest.mark.parametrize(
    ("asked", "has"),
    [(logging.DEBUG, logging.INFO), (logging.INFO, logging.INFO), (logging.CRITICAL, logging.CRITICAL)],
)
def test_a_level_of_its_own_holds_but_for_records(name: str, asked: int, has: int) -> None:
    """At DEBUG it prints keys and values."""
    logging.getLogger(name).setLevel(asked)
    quieten_client_logs()
    assert logging.getLogger(name).getEffectiveLevel() == has
