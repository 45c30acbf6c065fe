"""The address of a Kafka cluster, and the conditions for a connection: ports, and encryption."""

import ipaddress
from typing import Final

from ...errors import SettingsError
from ..security import Security, address_without_login

PORT_MAX: Final = 65_535
FORM: Final = "kafka://host:port[,host:port…]"
ALLOWING_PLAINTEXT: Final = (
    "use SSL or SASL_SSL, or give Settings(security=Security(allow_plaintext=True)), or KEYLANES_ALLOW_PLAINTEXT=1 for "
    "Settings.from_env()"
)
"""The remedy where a connection is not encrypted."""


def hosts_of(bootstrap: str) -> list[str]:
    """The hosts of ``host:port[,host:port…]``. Raises SettingsError for a missing port, for an impossible port, and for
    a user or a password in the address. The error shows neither user nor password.
    """
    if "@" in bootstrap:
        raise SettingsError(
            f"the broker's address is {FORM}, without a user and a password; seen "
            f"{address_without_login(bootstrap)!r}: leave out what stands before the @, and give "
            "Settings(security=Security(sasl_plain_username=…, sasl_plain_password=…)), "
            "or KEYLANES_SASL_PLAIN_USERNAME and KEYLANES_SASL_PLAIN_PASSWORD for Settings.from_env()"
        )
    hosts = []
    for server in (part.strip() for part in bootstrap.split(",")):
        host, colon, port = server.rpartition(":")
        if "://" in server:
            raise SettingsError(
                f"the broker's address is {FORM}; seen {server!r} in it: name the scheme once, at the beginning"
            )
        if not colon or server.endswith("]"):  # of an address of IPv6
            raise SettingsError(
                f"the broker's address is {FORM}; seen {server!r}, which has no port: add the one that it listens on, "
                f"as in {server or 'localhost'}:9092; none is guessed"
            )
        if not host:
            raise SettingsError(f"the broker's address is {FORM}; seen {server!r}, which has no host: add one")
        if not (port.isascii() and port.isdigit() and 1 <= int(port) <= PORT_MAX):
            raise SettingsError(
                f"the broker's address is {FORM}, a port being a number from 1 to {PORT_MAX}; seen {port!r} in "
                f"{server!r}: correct the port"
            )
        hosts.append(host.strip("[]"))
    return hosts


def refuse_plaintext(hosts: list[str], security: Security) -> None:
    """Raises SettingsError for an unencrypted connection to another machine without permission. A host name proves
    nothing: connection.py looks where each connection leads.
    """
    if security.allow_plaintext or security.security_protocol not in ("PLAINTEXT", "SASL_PLAINTEXT"):
        return
    for host in hosts:
        if is_elsewhere(host):
            raise SettingsError(
                f"security_protocol {security.security_protocol} to {host!r} is not encrypted, which is allowed to "
                f"this machine only; {ALLOWING_PLAINTEXT}"
            )


def is_elsewhere(host: str) -> bool:
    """Whether an address leads to another machine. False for a name: nobody knows where a name leads."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)  # ::ffff:127.0.0.1
    return not (mapped or found).is_loopback
