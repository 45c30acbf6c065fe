"""Arguments for the audit of an application: its broker, its declared topics, its credentials."""

import asyncio
from typing import Final

from ..brokers.protocol import BrokerError
from ..brokers.security import Secret, Security
from ..errors import SettingsError
from ..runtime.app import App
from ..spark.access import Access
from ..spark.brokers import AuditError

ATTEMPT_MS: Final = 2_500
"""The limit of one attempt of ``look_at_brokers``. For an application the limit is a setting."""
ENCRYPTED: Final = ("SSL", "SASL_SSL")


def audit_arguments(app: App) -> list[str]:
    """The arguments of an application's audit; raises SettingsError for an application without an address of a broker.

    The arguments name the declared topics of outputs and dead letters. Handlers may send to other topics, too: with
    declared outputs the audit may search every topic (``--or-elsewhere``).
    """
    if app.broker is None:
        raise SettingsError(f"{app.name!r} has no broker: set KEYLANES_BROKER, or give --app and --broker ADDRESS")
    if not isinstance(app.broker, str):
        raise SettingsError(f"{app.name!r} was given a Broker object; the audit needs --app and --broker ADDRESS")
    outputs = sorted({topic for handler in app.handlers.values() for topic in handler.outputs})
    letters = sorted({letter for handler in app.handlers.values() if (letter := handler.dead_letters) is not None})
    arguments = ["--app", app.name, "--broker", app.broker]
    if app.broker.startswith("kafka:"):
        arguments += ["--default-api-timeout-ms", str(app.settings.default_api_timeout_ms)]
    arguments += [part for topic in outputs for part in ("--outputs", topic)]
    arguments += [part for topic in letters for part in ("--dead-letters", topic)]
    arguments += [part for topic in sorted(app.accepts.moved_keys) for part in ("--accept-moved-keys", topic)]
    return [*arguments, *(["--or-elsewhere"] if outputs else [])]


def look_at_brokers(access: Access, *, allow_plaintext: bool) -> None:
    """Connect to all brokers with the client of the runtime, before the audit connects. Raises AuditError.

    The runtime's client checks the address of each connection before it sends anything. The audit's client, librdkafka,
    would send a password to any advertised address. Encrypted connections need no look.
    """
    given = access.security
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if allow_plaintext or not access.url.startswith("kafka://") or protocol in ENCRYPTED:
        return
    try:
        security = Security(
            security_protocol=protocol,
            sasl_mechanism=given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "PLAIN",
            sasl_plain_username=given.get("sasl.username"),
            sasl_plain_password=Secret(given["sasl.password"]) if "sasl.password" in given else None,
        )
        asyncio.run(_reach_all(access, security))
    except (BrokerError, SettingsError) as error:
        raise AuditError(f"broker: {error}") from error


async def _reach_all(access: Access, security: Security) -> None:
    from ..brokers.kafka.broker import KafkaBroker  # here: the import takes long

    limit_ms = access.default_api_timeout_ms
    broker = KafkaBroker(
        access.url.removeprefix("kafka://").rstrip("/"),
        security=security,
        client_id="keylanes-audit",
        request_timeout_ms=min(ATTEMPT_MS, limit_ms),
        default_api_timeout_ms=limit_ms,
    )
    try:
        await broker.open()
        await broker.reach_all()
    finally:
        await broker.close()


def client_settings(security: Security) -> dict[str, str]:
    """The security settings in librdkafka's words. Secrets are in plain text. Raises SettingsError."""
    protocol = security.security_protocol
    if protocol == "PLAINTEXT":
        return {}
    settings = {"security.protocol": protocol}
    if protocol in ENCRYPTED:
        files = {
            "ssl.ca.location": security.ssl_cafile,
            "ssl.certificate.location": security.ssl_certfile,
            "ssl.key.location": security.ssl_keyfile or security.ssl_certfile,
        }
        settings |= {name: path for name, path in files.items() if path is not None}
        if security.ssl_password is not None:
            settings["ssl.key.password"] = security.ssl_password.reveal()
    if protocol.startswith("SASL_"):
        if security.sasl_mechanism == "OAUTHBEARER":
            raise SettingsError(
                "sasl_mechanism 'OAUTHBEARER': a provider of tokens can't be handed to Spark's workers; give --app, "
                "--broker and --client-settings FILE with sasl.oauthbearer.method=oidc"
            )
        settings["sasl.mechanism"] = security.sasl_mechanism
        if security.sasl_plain_username is not None:
            settings["sasl.username"] = security.sasl_plain_username
        if security.sasl_plain_password is not None:
            settings["sasl.password"] = security.sasl_plain_password.reveal()
    return settings
