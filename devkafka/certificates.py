"""Certificates for a development broker: an authority of its own, and signed certificates, made by ``openssl``.

Everything lies in one private folder as PEM. Keys are on the curve P-256. Bad certificates for tests can be made, too:
expired, for another host, of another authority.
"""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .folder import make_private
from .jars import KafkaServerError

DAYS = 825
HOSTS = "DNS:localhost,IP:127.0.0.1"
OTHER_HOSTS = "DNS:elsewhere.invalid,IP:192.0.2.1"
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
_REQUEST = """\
[req]
distinguished_name=name
x509_extensions=authority
[name]
[authority]
basicConstraints=critical,CA:TRUE
keyUsage=critical,keyCertSign,cRLSign
subjectKeyIdentifier=hash
"""
_EXTENSIONS = """\
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
subjectAltName={hosts}
"""
_SIGNING = """\
[ca]
default_ca=one
[one]
database={work}/index
new_certs_dir={work}
certificate={certificate}
private_key={key}
rand_serial=yes
default_md=sha256
unique_subject=no
policy=any
[any]
commonName=supplied
"""
OPENSSL_SECONDS_MAX = 30.0


class Authority:
    """A signing authority. ``name`` tells authorities of one folder apart; existing files are used again."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = folder / f"{name}.key"
        self.certificate = folder / f"{name}.pem"
        """The authority that clients have to trust: ``ssl_cafile``."""
        make_private(folder)
        if not (self._key.exists() and self.certificate.exists()):
            with _work(folder) as work:
                files = ("-keyout", str(self._key), "-out", str(self.certificate))
                subject = ("-subj", f"/CN=keylanes development {name}", "-config", _written(work / "config", _REQUEST))
                _openssl("req", "-x509", "-nodes", *_CURVE, "-days", str(DAYS), *subject, *files)

    def sign(
        self, name: str, common_name: str, *, hosts: str = HOSTS, is_expired: bool = False, password: str = ""
    ) -> Path:
        """A certificate with its key behind it, in ``<name>.pem`` of the folder; made anew each time.

        ``password``: encrypts the key.
        """
        path = self._folder / f"{name}.pem"
        with _work(self._folder) as work:
            key, request = work / "key", work / "request"
            subject = ("-subj", f"/CN={common_name}", "-config", _written(work / "config", _REQUEST))
            _openssl("req", "-new", "-nodes", *_CURVE, *subject, "-keyout", str(key), "-out", str(request))
            signed = self._sign_request(work, hosts, is_expired=is_expired)
            if password:
                encrypted = work / "encrypted"
                files = ("-in", str(key), "-out", str(encrypted))
                _openssl("pkcs8", "-topk8", *files, "-passout", "stdin", given=password)
                key = encrypted
            made = work / "made"
            made.touch(mode=0o600)
            made.write_bytes(signed.read_bytes() + key.read_bytes())
            made.replace(path)
        return path

    def _sign_request(self, work: Path, hosts: str, *, is_expired: bool) -> Path:
        """Sign the request in a folder; returns the certificate. The reason for ``openssl ca``: every version lets the
        caller choose both dates.
        """
        (work / "index").touch()
        settings = _SIGNING.format(work=work, certificate=self.certificate, key=self._key)
        dates = ("-startdate", "20200101000000Z", "-enddate", "20200201000000Z") if is_expired else ("-days", str(DAYS))
        options = ("-batch", "-notext", "-config", _written(work / "signing", settings))
        extensions = ("-extfile", _written(work / "extensions", _EXTENSIONS.format(hosts=hosts)))
        _openssl("ca", *options, *extensions, *dates, "-in", str(work / "request"), "-out", str(work / "signed"))
        return work / "signed"


@contextlib.contextmanager
def _work(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sign-", dir=folder) as work:
        yield Path(work)


def _written(path: Path, content: str) -> str:
    path.write_text(content, encoding="utf-8")
    return str(path)


def _openssl(*arguments: str, given: str = "") -> None:
    program = shutil.which("openssl")
    if program is None:
        raise KafkaServerError(
            "TLS needs the program openssl to make certificates, which is not on the path: install it (Debian: "
            "apt-get install openssl), or start the broker without TLS"
        )
    try:
        done = subprocess.run(
            [program, *arguments], input=given, capture_output=True, text=True, check=False,
            timeout=OPENSSL_SECONDS_MAX,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KafkaServerError(f"openssl {arguments[0]} failed: {error}") from error
    if done.returncode:
        raise KafkaServerError(f"openssl {arguments[0]} failed: {done.stderr.strip()[-500:]}")
