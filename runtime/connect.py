"""From a broker's address to its adapter. An adapter is imported at its first use."""

from ..brokers.protocol import Broker
from ..brokers.security import address_without_login
from ..errors import SettingsError
from .settings import Settings

THROTTLED_SHARE = 4
"""The requests of a process shall bring no throttling longer than a quarter of a session. Throttling delays beats, too,
and a third of a session without beats raises doubts.
"""
SCHEMES = "kafka://host:port[,host:port…] or embedded:folder"


def connect(address: str, settings: Settings, app: str, role: str = "", beside: Broker | None = None) -> Broker:
    """The unopened adapter for an address; raises SettingsError for an address of no broker. ``role``: the connecting
    part of the application; "" for a member. ``beside``: the broker in use on the running loop.
    """
    if address.startswith("kafka://"):
        servers = address.removeprefix("kafka://").rstrip("/")
        if not servers:
            raise _no_address(address)
        from ..brokers.kafka.broker import KafkaBroker

        return KafkaBroker(
            servers,
            security=settings.security,
            client_id=f"{app}-{role}" if role else app,
            app=app,
            request_timeout_ms=settings.request_timeout_ms,
            default_api_timeout_ms=settings.default_api_timeout_ms,
            close_timeout_ms=settings.close_timeout_ms,
            fetch_bytes_max=settings.limits.fetch_bytes_max,
            compression_type=settings.compression_type,
            throttled_ms_max=settings.session_timeout_ms // THROTTLED_SHARE,
            beside=beside if isinstance(beside, KafkaBroker) else None,
        )
    if address.startswith("embedded:"):
        folder = address.removeprefix("embedded:")
        if not folder:
            raise _no_address(address)
        from ..brokers.embedded import EmbeddedBroker

        return EmbeddedBroker(folder)
    raise _no_address(address)


def _no_address(address: str) -> SettingsError:
    return SettingsError(
        f"the broker's address is {SCHEMES}; seen {address_without_login(address)!r}: name the broker in this form"
    )
