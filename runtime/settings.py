"""Every limit and choice of an application, in one frozen structure, checked when it is made.

Units are in the names. ``Settings.from_env()`` reads ``KEYLANES_<NAME>`` for each field; what is not set keeps its
default. There is no default broker: it is given to ``App``.
"""

import os
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..brokers.security import Secret, Security
from ..errors import SettingsError

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the comment behind each field for what it bounds."""

    # The commit cycle
    commit_interval_ms: Milliseconds = 100  # between the starts of two commits
    commit_lead_ms: NotNegative = 20  # a commit takes records up to the front as it was this long ago
    commit_all_workers_max: NotNegative = 16  # with at most so many busy workers a commit takes all that is done
    generation_bytes_max: Positive = 32 * 1024 * 1024  # of one transaction: its outputs and their source records, about
    generation_records_max: Positive = 50_000  # records with outputs in one transaction
    done_bytes_max: Positive = 64 * 1024 * 1024  # outputs that wait for a commit; beyond this workers pause
    # Reading
    buffer_bytes_max: Positive = 64 * 1024 * 1024  # records queued for workers, all partitions together
    fetch_records_max: Positive = 2_000  # records of one fetch
    fetch_bytes_max: Positive = 16 * 1024 * 1024  # bytes that one reader prefetches, at least 1 MiB of each partition
    fetch_wait_ms: Milliseconds = 200  # the longest wait for new records
    full_wait_ms: Milliseconds = 1_000  # how long a reader waits for a full worker when most loaded ones are full
    # Handlers and their outputs
    handler_timeout_ms: Milliseconds = 60_000  # one attempt; an async one is cancelled then, a sync one reported
    threads: Annotated[int, Meta(ge=1, le=1_024)] = 16  # for sync handlers; any free one takes the next record
    # Workers that are split and merged
    merge_hold_ms: Milliseconds = 1_000  # how long two neighbours are held to reach one edge for a merge
    split_hot_ranges: bool = True  # split hot ranges while running, merge them when they are cold
    balance_interval_ms: Milliseconds = 1_000  # between two measurements of the workers' cost
    workers_factor_max: Positive = 4  # splits make at most so many times the declared workers
    # Requests to the broker, starting and stopping
    transaction_timeout_ms: Milliseconds = 10_000  # then the broker aborts a dead app's transaction; readers wait
    request_timeout_ms: Milliseconds = 30_000  # one request to the broker
    broker_retry_ms: Milliseconds = 120_000  # a commit is retried for so long, then the app stops
    start_timeout_ms: Milliseconds = 120_000  # from connecting to the first record
    drain_timeout_ms: Milliseconds = 10_000  # a graceful stop; no record begins in its last fifth
    close_timeout_ms: Milliseconds = 5_000  # each step of closing
    # What is logged of a run that does not move
    stall_ms: Milliseconds = 30_000  # records wait and nothing has moved for so long: logged
    loop_lag_ms: Milliseconds = 1_000  # the event loop was blocked for so long: logged
    # The application's own logs and topics
    snapshot_every_commits: Positive = 1_000  # commits between two snapshots of the offset log
    history_ms: NotNegative = 7 * 86_400_000  # history that the app keeps in its offset log for the audit
    create_topics: bool = True  # create our logs and declared outputs where they are missing
    compression_type: str | None = "lz4"  # of written records: gzip, snappy, lz4, zstd or none
    output_bytes_max: Positive | None = None  # a larger output fails its record; None: what the topic allows
    # State
    state_folder: str | None = None  # local copies of state, a folder for each process; needed with state on Kafka
    state_cache_bytes_max: Positive = 256 * 1024 * 1024  # RocksDB blocks of state in memory, for the whole process
    state_ahead_bytes_max: Positive = 64 * 1024 * 1024  # values read ahead or written lately, for each topic
    state_write_interval_ms: NotNegative = 1_000  # how often committed changes go to the local copies
    state_unwritten_bytes_max: Positive = 16 * 1024 * 1024  # or when so much waits, for the whole process
    restore_partitions_max: Annotated[int, Meta(ge=1, le=256)] = 4  # changelog partitions that are read at once
    # How the broker is reached
    security: Security = Security()

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            try:
                if field.name != "security":
                    msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                raise SettingsError(f"setting {field.name}: {error}; seen {value!r}") from None
        if self.commit_lead_ms >= self.commit_interval_ms:
            raise SettingsError(
                f"commit_lead_ms must be below commit_interval_ms={self.commit_interval_ms}; seen {self.commit_lead_ms}"
            )
        if self.compression_type not in (None, "gzip", "snappy", "lz4", "zstd"):
            raise SettingsError(f"compression_type is gzip, snappy, lz4, zstd or None; seen {self.compression_type!r}")
        if self.state_folder is not None and not self.state_folder.strip():
            raise SettingsError(f"state_folder names a folder; seen {self.state_folder!r}")
        if self.security.security_protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
            raise SettingsError(
                "security_protocol is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; seen "
                f"{self.security.security_protocol!r}"
            )

    @classmethod
    def of(cls, **values: Any) -> "Settings":
        """Settings from plain values, types checked; raises SettingsError that names the field and what is allowed."""
        return _convert(values, "Settings.of")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, prefix: str = "KEYLANES_") -> "Settings":
        """Settings from the environment; raises SettingsError for an unknown or wrong variable with the prefix.

        Fields of ``security`` stand beside the others: ``KEYLANES_SECURITY_PROTOCOL``, ``KEYLANES_SSL_CAFILE``, …
        """
        environ = os.environ if environ is None else environ
        security_fields = set(Security.__struct_fields__)
        fields = set(cls.__struct_fields__) - {"security"}
        values: dict[str, Any] = {}
        security: dict[str, Any] = {}
        for name, text in environ.items():
            if not name.startswith(prefix) or name in RESERVED_VARIABLES:
                continue
            key = name[len(prefix) :].lower()
            if key not in fields | security_fields:
                raise SettingsError(f"the environment variable {name} names no setting; known: {sorted(fields)}")
            target = security if key in security_fields else values
            target[key] = None if text.lower() in ("", "none") else text
        if security:
            values["security"] = security
        return _convert(values, f"environment variables {prefix}*")


RESERVED_VARIABLES = frozenset(
    f"KEYLANES_{name}" for name in ("BROKER", "CACHE", "DEMO_HANDLER_MS", "HYPOTHESIS", "IVY_SETTINGS", "JAVA")
)
"""Variables with our prefix that are not settings."""


def _convert(values: dict[str, Any], where: str) -> Settings:
    security = values.get("security")
    if isinstance(security, Security):
        values = {**values, "security": {n: getattr(security, n) for n in Security.__struct_fields__}}
    try:
        return msgspec.convert(values, Settings, strict=False, dec_hook=_secret)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else ""
        seen = values.get(field) if "password" not in field else Secret("")
        raise SettingsError(f"{where}: {error}" + (f"; seen {seen!r}" if field in values else "")) from None


def _secret(kind: type, value: Any) -> Any:
    if kind is Secret:
        if isinstance(value, Secret):
            return value
        return Secret(value)  # SettingsError is a ValueError: it comes out as one of msgspec's, which names the field
    raise TypeError(f"no conversion to {kind}")
