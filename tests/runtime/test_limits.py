"""Limits in the settings leave room for those within them: who waits for a call waits longer than it may take."""

import pytest

from keylanes import Settings, SettingsError


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"transaction_timeout_ms": 5_000},
            "set request_timeout_ms=2500 or less, or transaction_timeout_ms=8000 or more",
        ),
        ({"request_timeout_ms": 5_001}, "at most half of transaction_timeout_ms=10000.*seen 5001"),
        ({"default_api_timeout_ms": 3_999}, "at least request_timeout_ms=4000; seen 3999"),
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
    [{}, {"transaction_timeout_ms": 5_000, "request_timeout_ms": 2_500}, {"request_timeout_ms": 5_000}],
)
def test_limits_leave_room(values: dict[str, int]) -> None:
    """The defaults do: a transaction of 10 s and one of 5 s bear a broker that says nothing for an attempt."""
    settings = Settings(**values)  # type: ignore[arg-type]  # by name
    assert 2 * settings.request_timeout_ms <= settings.transaction_timeout_ms
    assert settings.call_limit_ms > settings.default_api_timeout_ms
    assert settings.transaction_limit_ms > settings.transaction_timeout_ms + settings.default_api_timeout_ms
