"""The files for TLS, read and tried: the trusted certificates, the client's own certificate, and the key.

Each file is tried by itself, so an error names the setting and the file. No error shows a passphrase.
"""

import os
import ssl
from typing import Final

from ..errors import SettingsError

NO_PASSWORD: Final = ""
"""The passphrase for a key without encryption. With None OpenSSL would ask the terminal."""


def tls_context(cafile: str | None, certfile: str | None, keyfile: str | None, password: str | None) -> ssl.SSLContext:
    """A context that encrypts connections and checks certificates and host names; raises SettingsError.

    ``cafile`` None: the context trusts the certificates of the system. ``keyfile`` None: the key is in ``certfile``.
    """
    files = {"ssl_cafile": cafile, "ssl_certfile": certfile, "ssl_keyfile": keyfile}
    for name, path in files.items():
        if path is not None:
            _refuse_unreadable(name, path)
    context = _context_for(cafile)
    if certfile is not None:
        _load_certificate(context, certfile, keyfile, password)
    return context


def _context_for(cafile: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cafile)
    except (OSError, ValueError) as error:  # ssl's own are OSErrors
        raise SettingsError(
            f"ssl_cafile holds certificates in PEM of who may sign for the brokers; seen {cafile!r}, which can't be "
            f"used: {_text_of_error(error)}; name a file with -----BEGIN CERTIFICATE----- in it"
        ) from None


def _load_certificate(context: ssl.SSLContext, certfile: str, keyfile: str | None, password: str | None) -> None:
    """Load a certificate into a context, for brokers that ask clients for a certificate."""
    was_asked = False

    def passphrase() -> str:
        nonlocal was_asked
        was_asked = True
        return NO_PASSWORD if password is None else password

    seen = f"ssl_certfile={certfile!r}" + (f", ssl_keyfile={keyfile!r}" if keyfile is not None else "")
    try:
        context.load_cert_chain(certfile, keyfile, passphrase)
    except (OSError, ValueError) as error:
        where = f"ssl_keyfile {keyfile!r}" if keyfile is not None else f"ssl_certfile {certfile!r}"
        reason = getattr(error, "reason", None) or ""
        if "KEY_VALUES_MISMATCH" in reason:
            raise SettingsError(
                f"the key is not that of the certificate; seen {seen}: ssl_keyfile is the key that ssl_certfile was "
                "made for; name the two that belong together"
            ) from None
        if was_asked:
            given = "ssl_password does not open it" if password else "no ssl_password is given"
            raise SettingsError(
                f"the key in {where} is encrypted, and {given}: ssl_password is the passphrase of that key; give "
                "Security(ssl_password=Secret(…)), or set KEYLANES_SSL_PASSWORD"
            ) from None
        raise SettingsError(
            f"ssl_certfile holds a certificate in PEM, and ssl_keyfile its key, if that is another file; seen {seen}, "
            f"which can't be used: {_text_of_error(error)}; name files with -----BEGIN CERTIFICATE----- and "
            "-----BEGIN PRIVATE KEY----- in them"
        ) from None


def _text_of_error(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return f"OpenSSL says {reason}" if reason else str(error)


def _refuse_unreadable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise SettingsError(
            f"{name} names a file in PEM that can be read; seen {path!r}: {os.strerror(error.errno or 0)}; "
            "name one that is there"
        ) from None
