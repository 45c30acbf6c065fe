"""Limits in the settings leave room for those within them: who waits for a call waits longer than it may take."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from keylanes import Settings, SettingsError
from keylanes.runtime.limits import GENERATION_BYTES_MAX, MIB

from ..stage.limited import LIMITS, settings_of


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"transaction_timeout_ms": 3_000},
            "set request_timeout_ms=1500 or less, or transaction_timeout_ms=5000 or more",
        ),
        ({"request_timeout_ms": 2_501}, "at most half of transaction_timeout_ms=5000.*seen 2501"),
        (
            {"transaction_timeout_ms": 10_001},
            "session_timeout_ms=10000.*seen 10001: set transaction_timeout_ms=10000 or less, or .*=10001 or more",
        ),
        (
            {"heartbeat_interval_ms": 3_334},
            "a third of session_timeout_ms=10000.*3334: set heartbeat_interval_ms=3333 or less, or .*=10002 or more",
        ),
        (
            {"session_timeout_ms": 2_000, "transaction_timeout_ms": 2_000, "request_timeout_ms": 500},
            "at most a third of session_timeout_ms=2000.*seen 1000",
        ),
        ({"default_api_timeout_ms": 2_499}, "at least request_timeout_ms=2500; seen 2499"),
        ({"broker_retry_ms": 10_000}, "broker_retry_ms is at least default_api_timeout_ms=30000.*seen 10000: set"),
        ({"start_timeout_ms": 29_999}, "start_timeout_ms is at least default_api_timeout_ms=30000.*seen 29999"),
    ],
)
def test_limits_that_do_not_fit_into_each_other_are_refused(values: dict[str, int], says: str) -> None:
    """The error says which two, what was seen, and what to set."""
    with pytest.raises(SettingsError, match=says):
        Settings(**values)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"transaction_timeout_ms": 10_000, "request_timeout_ms": 5_000},
        {"session_timeout_ms": 3_000, "transaction_timeout_ms": 3_000, "request_timeout_ms": 1_500},
    ],
)
def test_limits_leave_room(values: dict[str, int]) -> None:
    """The defaults do: a transaction bears a broker that says nothing for an attempt, and a group one open transaction
    and two beats that were lost.
    """
    settings = Settings(**values)  # type: ignore[arg-type]  # by name
    assert 2 * settings.request_timeout_ms <= settings.transaction_timeout_ms
    assert settings.transaction_timeout_ms <= settings.session_timeout_ms
    assert 3 * settings.heartbeat_interval_ms <= settings.session_timeout_ms
    assert settings.call_limit_ms > settings.default_api_timeout_ms
    assert settings.transaction_limit_ms > settings.transaction_timeout_ms + settings.default_api_timeout_ms


def test_memory_is_divided_into_shares() -> None:
    """Their sum is no more than the memory, and a transaction does not grow with it."""
    for mib in (32, 100, 512, 4_096):
        limits = Settings(memory_bytes_max=mib * MIB).limits
        shares = [getattr(limits, name) for name in LIMITS if "bytes" in name]
        assert len(shares) == 7
        assert min(shares) >= MIB
        assert mib * MIB - GENERATION_BYTES_MAX * mib // 512 <= sum(shares) <= mib * MIB
        assert limits.generation_bytes_max == min(mib * MIB // 16, GENERATION_BYTES_MAX)
    assert settings_of(buffer_bytes_max=1).limits == replace(Settings().limits, buffer_bytes_max=1)


@pytest.mark.parametrize("name", Settings.removed)
def test_a_removed_setting_is_refused_with_what_took_its_place(name: str) -> None:
    """However it is given."""
    by_name: Any = Settings
    given: dict[str, Callable[[], object]] = {
        f"Settings.{name}": lambda: by_name(**{name: 1}),
        f"Settings.of: {name}": lambda: Settings.of(**{name: "1"}),
        f"the environment variable KEYLANES_{name.upper()}": lambda: Settings.from_env(
            {f"KEYLANES_{name.upper()}": ""}
        ),
    }
    for where, give in given.items():
        with pytest.raises(SettingsError) as refused:
            give()
        assert str(refused.value) == f"{where} is no setting any more: {Settings.removed[name]}; leave it out"
        assert refused.value.exit_code == 2
    assert name not in Settings.__struct_fields__


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.nan, math.inf, 1_000_001.0, "a lot"])
def test_a_capacity_that_none_can_have_is_refused(capacity: float | str) -> None:
    """The error says what is allowed."""
    with pytest.raises(SettingsError, match=r"capacity is a number above 0, up to 1000000; seen .*; leave it out for"):
        Settings.of(capacity=capacity)


def test_a_capacity_may_come_from_the_environment() -> None:
    """As text."""
    assert Settings.from_env({"KEYLANES_CAPACITY": "2.5"}).capacity == 2.5


@pytest.mark.parametrize("endpoint", ["", "host:80", "http://[::1]:80/a@b", "https://orders-1.internal/state?x=1"])
def test_an_endpoint_is_taken_as_it_is(endpoint: str) -> None:
    """From the environment, too."""
    assert Settings(endpoint=endpoint).endpoint == endpoint
    assert Settings.from_env({"KEYLANES_ENDPOINT": endpoint}).endpoint == endpoint


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("me:secret@host:80", "no user and no password"),
        ("http://me:secret@host:80/x", "no user and no password"),
        ("host\n:80", "control characters; seen 'host"),
        ("host :80", "without spaces"),
        ("h" * 513, r"at most 512 characters.*\(513 characters\)"),
    ],
)
def test_an_endpoint_that_others_can_not_be_told(endpoint: str, says: str) -> None:
    """It is refused, and a password in it is not shown."""
    with pytest.raises(SettingsError, match=says) as refused:
        Settings(endpoint=endpoint)
    assert "secret" not in str(refused.value)
