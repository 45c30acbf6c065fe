"""A password that is given to an application shows nowhere: not in logs at DEBUG, settings, errors or tracebacks."""

import json
import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from keylanes import App, Secret, Security, Settings, SettingsError
from keylanes.errors import AccessRefused, BrokerUnavailable

from ..tiers.brokers import SharedKafka

PASSWORD = "open-sesame-4711"


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Every logger there is, down to DEBUG."""
    loggers = [logging.getLogger(name) for name in ("keylanes", "aiokafka", "asyncio", "")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.DEBUG)
    with caplog.at_level(logging.DEBUG):
        yield caplog
    for one, level in zip(loggers, levels, strict=True):
        one.setLevel(level)


def settings(**more: int) -> Settings:
    """With the password in every field that takes one, as the environment would give it."""
    environment = {
        "KEYLANES_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KEYLANES_SASL_PLAIN_USERNAME": "ali",
        "KEYLANES_SASL_PLAIN_PASSWORD": PASSWORD,
        "KEYLANES_SSL_PASSWORD": PASSWORD,
        **{f"KEYLANES_{name.upper()}": str(value) for name, value in more.items()},
    }
    return Settings.from_env(environment)


def test_settings_show_no_password() -> None:
    """However they are printed; and the client still gets it."""
    made = settings()
    for text in (repr(made), str(made), f"{made}", f"{made.security}", repr(msgspec.structs.asdict(made.security))):
        assert PASSWORD not in text
        assert "'***'" in text
    password = made.security.sasl_plain_password
    assert isinstance(password, Secret)
    assert password.reveal() == PASSWORD
    assert PASSWORD not in f"{password} {password!s} {password!r} {password:>40}" + "%s" % password  # noqa: UP031  # all ways to print
    assert PASSWORD not in repr([password]) + repr({"a": password})
    assert isinstance(msgspec.structs.replace(made, threads=3).security.sasl_plain_password, Secret)


def test_secrets_are_not_written_out() -> None:
    """JSON of settings is refused, or hides the password."""
    made = settings()
    assert PASSWORD not in msgspec.json.encode(made, enc_hook=str).decode()
    with pytest.raises(TypeError):
        msgspec.json.encode(made)
    assert PASSWORD not in json.dumps(msgspec.structs.asdict(made.security), default=str)
    assert pickle.loads(pickle.dumps(made)) == made, "another process gets it"  # noqa: S301  # our own bytes


@pytest.mark.parametrize("field", ["sasl_plain_password", "ssl_password"])
def test_refused_settings_show_no_password(field: str) -> None:
    """A mistake beside the password, or in it, is told without it."""
    with pytest.raises(SettingsError) as wrong:
        Settings.from_env({f"KEYLANES_{field.upper()}": PASSWORD, "KEYLANES_THREADS": "none of these"})
    assert PASSWORD not in "".join(traceback.format_exception(wrong.value))
    with pytest.raises(SettingsError) as wrong:
        Settings.of(security={field: [PASSWORD]})
    assert PASSWORD not in "".join(traceback.format_exception(wrong.value))
    with pytest.raises(SettingsError) as wrong:
        Settings.from_env({f"KEYLANES_{field.upper()}": PASSWORD, "KEYLANES_SECURITY_PROTOCOL": "SMOKE"})
    assert PASSWORD not in "".join(traceback.format_exception(wrong.value))


def test_plain_text_becomes_a_secret() -> None:
    """Who gives a password as plain text in code has it hidden, too."""
    security = Security(sasl_plain_password=PASSWORD)  # type: ignore[arg-type]  # what people do
    assert PASSWORD not in repr(Settings(security=security))
    assert security.sasl_plain_password == Secret(PASSWORD)
    assert Settings.of(security=security, threads=2).security == security


def run_with_password(address: str, refused_by: type[Exception]) -> BaseException:
    """Run an application that can't get in; what ended it."""
    limits = {"request_timeout_ms": 1_000, "default_api_timeout_ms": 1_000, "start_timeout_ms": 3_000}
    app = App("secret", broker=address, settings=settings(**limits))
    app.handler("any")(lambda value: None)
    with pytest.raises(SystemExit) as ended:
        app.run(until="level")
    assert isinstance(ended.value.__cause__, refused_by)
    assert PASSWORD not in repr(app.__dict__)
    return ended.value


def test_password_shows_nowhere_when_nobody_answers(everything_logged: pytest.LogCaptureFixture) -> None:
    """Logs and tracebacks of a broker that is not there."""
    error = run_with_password("kafka://127.0.0.1:1", BrokerUnavailable)
    assert everything_logged.records
    assert PASSWORD not in everything_logged.text
    assert PASSWORD not in "".join(traceback.format_exception(error))


@pytest.mark.broker
def test_password_shows_nowhere_when_it_is_refused(
    kafka_server: SharedKafka, everything_logged: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Logs and tracebacks of a broker that does not want to hear it."""
    error = run_with_password(f"kafka://{kafka_server.bootstrap}", AccessRefused)
    assert everything_logged.records
    assert PASSWORD not in everything_logged.text
    assert PASSWORD not in "".join(traceback.format_exception(error))
