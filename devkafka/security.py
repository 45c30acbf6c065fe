"""A development broker that authenticates clients: TLS, passwords, certificates of clients, access lists.

Nodes talk to each other on listeners of their own, with a password in the private folder ``security``; so the owner of
the folder is the only super user, ``admin``. The folder:

    ca.pem, ca.key, server.pem   the authority, and what the nodes show       client-<user>.pem   certificates of users
    passwords.json               of all users
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import StoreError
from .admin import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS,
    Acl,
    create_acls,
    delete_acls,
    has_acl,
    iterations_of,
    set_password,
)
from .certificates import OTHER_HOSTS, Authority
from .folder import POLL_SECONDS, make_private
from .jars import KafkaServerError
from .properties import CLIENTS, CONTROLLER
from .wire import Login

ADMIN, INTERNAL = "admin", "INTERNAL"
PLAIN = "PLAIN"
EXPIRED, OTHER_HOST, OTHER_CA = "EXPIRED", "OTHERHOST", "OTHERCA"
BAD = (EXPIRED, OTHER_HOST, OTHER_CA)
"""More listeners, each with a certificate that a client has to refuse."""
MUTUAL = "MUTUAL"
"""A further listener that demands the certificate of a client and no password."""
CHANGE_SECONDS_MAX = 20.0
_USER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LOGIN = "org.apache.kafka.common.security"


@dataclass(frozen=True, kw_only=True)
class ClusterSecurity:
    """The nodes' demands on clients. ``sasl``: mechanisms, PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.

    ``mutual``: clients show a certificate; without ``sasl`` the certificate names the user. ``acl``: the access list
    must allow every operation. ``users`` exist from the start. ``by_certificate``, ``bad_certificates``: open the
    listeners ``MUTUAL`` and ``BAD`` as well, for tests.
    Raises ValueError for settings that do not go together.
    """

    tls: bool = False
    sasl: Sequence[str] = ()
    mutual: bool = False
    acl: bool = False
    users: Sequence[str] = ("app",)
    by_certificate: bool = False
    bad_certificates: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.sasl, str):
            object.__setattr__(self, "sasl", (self.sasl,))
        unknown = [name for name in self.sasl if name not in (PLAIN, *MECHANISMS)]
        if unknown:
            raise ValueError(f"sasl: seen {unknown[0]!r}; allowed are {', '.join((PLAIN, *MECHANISMS))}")
        if (self.mutual or self.by_certificate or self.bad_certificates) and not self.tls:
            raise ValueError("certificates are shown over TLS only: say tls, too")
        if self.acl and not (self.sasl or self.mutual):
            raise ValueError("an access list needs users who say who they are: say sasl or mutual, too")
        for user in self.users:
            _check_user_name(user)

    @property
    def protocol(self) -> str:
        """Kafka's name of the protocol, ``security_protocol``."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")


class ClusterUsers:
    """The users of a running cluster, their secrets and rights. ``ports``: the ports of running nodes for the admin."""

    def __init__(self, folder: Path, security: ClusterSecurity, ports: Callable[[], list[int]]) -> None:
        self.folder = folder
        self.security = security
        self._ports = ports
        self._passwords: dict[str, str] = {}
        self._iterations = ITERATIONS_MIN
        self._authority: Authority | None = None

    @property
    def ca(self) -> Path:
        """The certificate of the authority that clients have to trust (PEM)."""
        return self.folder / "ca.pem"

    @property
    def passwords(self) -> Path:
        """The file with the passwords of all users, as JSON."""
        return self.folder / "passwords.json"

    @property
    def admin(self) -> Login:
        """The super user."""
        return Login(ADMIN, self._passwords[ADMIN])

    # --- for the cluster ---------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Read the users of a cluster, also of a cluster of another program."""
        self._passwords = self._read_passwords()
        if self.security.tls:
            self._authority = Authority(self.folder)

    def prepare(self) -> None:
        """Make missing passwords and certificates."""
        make_private(self.folder)
        self.join()
        for user in (ADMIN, *self.security.users):
            self._passwords.setdefault(user, secrets.token_urlsafe(18))
        self._write_passwords()
        if self._authority is not None:
            self._authority.sign("server", "server")
            if self.security.bad_certificates:
                self._authority.sign(EXPIRED, "server", is_expired=True)
                self._authority.sign(OTHER_HOST, "server", hosts=OTHER_HOSTS)
                Authority(self.folder, "other-ca").sign(OTHER_CA, "server")

    def listeners(self) -> dict[str, str]:
        """The further listeners, beside those of clients and controllers, with their protocols."""
        bad = BAD if self.security.bad_certificates else ()
        mutual = {MUTUAL: "SSL"} if self.security.by_certificate else {}
        return {INTERNAL: "SASL_PLAINTEXT", **mutual, **dict.fromkeys(bad, self.security.protocol)}

    def settings(self, names: Collection[str]) -> dict[str, str]:
        """Settings of a node with these listeners for clients."""
        found = {
            "inter.broker.listener.name": INTERNAL,
            "sasl.mechanism.inter.broker.protocol": PLAIN,
            "sasl.mechanism.controller.protocol": PLAIN,
            "ssl.principal.mapping.rules": "RULE:^CN=([A-Za-z0-9_]+)$/$1/,DEFAULT",
            "super.users": f"User:{ADMIN}",
        }
        if self.security.acl:
            found["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        # A listener of the nodes both logs in as the admin and lets the admin in.
        own = f'username="{ADMIN}" password="{self.admin.password}" user_{ADMIN}="{self.admin.password}"'
        for name in (INTERNAL, CONTROLLER):
            found |= self._sasl(name, {PLAIN: own})
        users = " ".join(f'user_{user}="{password}"' for user, password in self._passwords.items())
        for name in names:
            if self.security.sasl and name != MUTUAL:
                found |= self._sasl(name, {one: users if one == PLAIN else "" for one in self.security.sasl})
            if self.security.tls:
                found |= self._tls(name)
        return found

    def set_up(self) -> None:
        """Make the users that the running cluster itself stores: those with a SCRAM password."""
        for user in self._passwords:
            self._set_password(user)

    # --- for tests and users -----------------------------------------------------------------------------------------

    def client(self, user: str, mechanism: str = "") -> dict[str, str]:
        """A client's settings: the arguments of ``keylanes.Security``. ``mechanism``: by default the first."""
        found = {"security_protocol": self.security.protocol}
        if self.security.tls:
            found["ssl_cafile"] = str(self.ca)
        if self.security.sasl:
            found["sasl_mechanism"] = mechanism or self.security.sasl[0]
            found |= {"sasl_plain_username": user, "sasl_plain_password": self.password(user)}
        if self.security.mutual:
            found["ssl_certfile"] = str(self.certificate(user))
        return found

    def librdkafka(self, user: str, mechanism: str = "") -> dict[str, str]:
        """A client's settings for librdkafka."""
        names = {
            "security_protocol": "security.protocol", "ssl_cafile": "ssl.ca.location",
            "ssl_certfile": "ssl.certificate.location", "sasl_mechanism": "sasl.mechanism",
            "sasl_plain_username": "sasl.username", "sasl_plain_password": "sasl.password",
        }  # fmt: skip
        found = {names[name]: value for name, value in self.client(user, mechanism).items()}
        if "ssl.certificate.location" in found:
            found["ssl.key.location"] = found["ssl.certificate.location"]
        return found

    def password(self, user: str) -> str:
        """The password of a user."""
        if user not in self._passwords:
            raise ValueError(f"no user {user!r}; there are {', '.join(self._passwords)}")
        return self._passwords[user]

    def set_password(self, user: str, password: str = "") -> str:
        """Make a user, or change the password of a user; returns the password, made up when none is given.

        PLAIN learns of a change at the next start, SCRAM at once.
        """
        _check_user_name(user)
        self._passwords[user] = password or secrets.token_urlsafe(18)
        self._write_passwords()
        self._set_password(user)
        return self._passwords[user]

    def certificate(self, user: str, *, is_expired: bool = False, is_other: bool = False, password: str = "") -> Path:
        """A client's certificate and key, in one file: good, or expired, or of another authority (``is_other``)."""
        _check_user_name(user)
        if self._authority is None:
            raise ValueError("certificates are shown over TLS only: start the cluster with tls")
        kind = "expired-" * is_expired + "other-" * is_other + "locked-" * bool(password)
        path = self.folder / f"client-{kind}{user}.pem"
        if password or not path.exists():
            authority = Authority(self.folder, "other-ca") if is_other else self._authority
            authority.sign(path.stem, user, is_expired=is_expired, password=password)
        return path

    def allow(self, *acls: Acl) -> None:
        """Add entries to the access list; every node knows of the entries then."""
        create_acls(self._ports()[0], acls, self.admin)
        self._wait(lambda port: all(has_acl(port, acl, self.admin) for acl in acls), "the access list")

    def remove(self, *acls: Acl) -> None:
        """Remove entries from the access list; every node knows of the removal then."""
        delete_acls(self._ports()[0], acls, self.admin)
        self._wait(lambda port: not any(has_acl(port, acl, self.admin) for acl in acls), "the access list")

    # --- settings of listeners, and changes --------------------------------------------------------------------------

    def _sasl(self, name: str, modules: Mapping[str, str]) -> dict[str, str]:
        """The mechanisms of a listener, with options."""
        prefix = f"listener.name.{name.lower()}"
        found = {f"{prefix}.sasl.enabled.mechanisms": ",".join(modules)}
        for mechanism, options in modules.items():
            module = "plain.PlainLoginModule" if mechanism == PLAIN else "scram.ScramLoginModule"
            found[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = f"{_LOGIN}.{module} required {options};"
        return found

    def _tls(self, name: str) -> dict[str, str]:
        prefix = f"listener.name.{name.lower()}.ssl"
        return {
            f"{prefix}.keystore.type": "PEM",
            f"{prefix}.keystore.location": str(self.folder / f"{name if name in BAD else 'server'}.pem"),
            f"{prefix}.truststore.type": "PEM",
            f"{prefix}.truststore.location": str(self.ca),
            f"{prefix}.client.auth": "required" if self.security.mutual or name == MUTUAL else "none",
        }

    def _set_password(self, user: str) -> None:
        """Store the SCRAM passwords of a user in the cluster; return when every node knows of them.

        A broker tells the number of iterations of a password, and nothing else of the password. Therefore each change
        has another number: a node with this number knows of the change.
        """
        for mechanism in self.security.sasl:
            if mechanism not in MECHANISMS:
                continue
            self._iterations = ITERATIONS_MIN + (self._iterations + 1) % (ITERATIONS_MAX - ITERATIONS_MIN)
            wanted = self._iterations
            set_password(self._ports()[0], user, self._passwords[user], mechanism, wanted, self.admin)

            def knows(port: int, mechanism: str = mechanism, wanted: int = wanted) -> bool:
                return iterations_of(port, user, mechanism, self.admin) == wanted

            self._wait(knows, f"the password of {user}")

    def _wait(self, knows: Callable[[int], bool], what: str) -> None:
        """Wait until each node ``knows`` of a change; ``knows`` gets the node's port. Raises KafkaServerError."""
        until = time.monotonic() + CHANGE_SECONDS_MAX
        for port in self._ports():
            while not knows(port):
                if time.monotonic() > until:
                    raise KafkaServerError(f"a broker did not learn of {what} within {CHANGE_SECONDS_MAX:.0f} s")
                time.sleep(POLL_SECONDS)

    def _read_passwords(self) -> dict[str, str]:
        try:
            found = json.loads(self.passwords.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(f"can't read {self.passwords}: {error}: mend or delete it") from error
        return {str(user): str(password) for user, password in dict(found).items()}

    def _write_passwords(self) -> None:
        new = self.passwords.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(self._passwords, indent=1) + "\n", encoding="utf-8")
        new.replace(self.passwords)


def _check_user_name(user: str) -> None:
    if not _USER.fullmatch(user):
        raise ValueError(f"a user's name has letters, digits and underscores, a letter first; seen {user!r}")


__all__ = [
    "ADMIN",
    "BAD",
    "CLIENTS",
    "EXPIRED",
    "MUTUAL",
    "OTHER_CA",
    "OTHER_HOST",
    "Acl",
    "ClusterSecurity",
    "ClusterUsers",
]
