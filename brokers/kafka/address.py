"""Where a Kafka cluster is, and what has to hold before anything is connected: ports, encryption, files."""

import importlib.util
import ipaddress
import os
import ssl
from typing import Final

from aiokafka.helpers import create_ssl_context

from ...errors import SettingsError
from ..security import Security

PORT_MAX: Final = 65_535
FORM: Final = "kafka://host:port[,host:port…]"
FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")


def hosts_of(bootstrap: str) -> list[str]:
    """The hosts of ``host:port[,host:port…]``; raises SettingsError for one without a port, or with another number."""
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
    """Raises SettingsError for an unencrypted connection to another machine that is not allowed."""
    if security.allow_plaintext or security.security_protocol not in ("PLAINTEXT", "SASL_PLAINTEXT"):
        return
    for host in hosts:
        if not _is_loopback(host):
            raise SettingsError(
                f"security_protocol {security.security_protocol} to {host!r} is not encrypted, which is allowed to "
                "this machine only; use SSL or SASL_SSL, or give Settings(security=Security(allow_plaintext=True)), "
                "or KEYLANES_ALLOW_PLAINTEXT=1 for Settings.from_env()"
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def encryption(security: Security) -> ssl.SSLContext | None:
    """What encrypts a connection, from the files that are named; None: nothing does. Raises SettingsError."""
    is_kerberos = security.security_protocol.startswith("SASL_") and security.sasl_mechanism == "GSSAPI"
    if is_kerberos and importlib.util.find_spec("gssapi") is None:
        raise SettingsError(
            "sasl_mechanism 'GSSAPI' needs the package gssapi, which is not installed: pip install gssapi, or use "
            "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
        )
    if security.security_protocol not in ("SSL", "SASL_SSL"):
        return None
    for name in FILES:
        _refuse_unreadable(name, getattr(security, name))
    password = "" if security.ssl_password is None else security.ssl_password.reveal()  # None: OpenSSL would ask for it
    named = [name for name in FILES if getattr(security, name) is not None]
    try:
        context: ssl.SSLContext = create_ssl_context(
            cafile=security.ssl_cafile, certfile=security.ssl_certfile, keyfile=security.ssl_keyfile, password=password
        )
    except (OSError, ValueError) as error:  # ssl's own are OSErrors
        seen = ", ".join(f"{name}={getattr(security, name)!r}" for name in named)
        raise SettingsError(
            f"the certificates can't be used: {error}; seen {seen}: {' and '.join(named) or 'each'} holds PEM, a key "
            "fits its certificate, and ssl_password its key"
        ) from None
    return context


def _refuse_unreadable(name: str, path: str | None) -> None:
    if path is None:
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise SettingsError(
            f"{name} names a file in PEM that can be read; seen {path!r}: {os.strerror(error.errno or 0)}; "
            "name one that is there"
        ) from None
