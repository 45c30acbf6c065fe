"""Every limit and choice of an application, in a single frozen structure, checked at its making.

Units are in the names. ``Settings.from_env()`` reads ``KEYLANES_<NAME>`` for each field; a field without a variable
keeps its default. There is no default broker: ``App`` gets the broker.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ..brokers.options import Options, check, from_text, is_sensitive, near, unknown_field
from ..brokers.security import Security
from ..errors import SettingsError
from ..offsets.signals import CAPACITY_MAX
from .limits import MIB, Limits, limits_of

logger = logging.getLogger("keylanes")

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
ViewedAge = Annotated[int, Meta(ge=2_000, le=86_400_000)]  # a broker in good health tells the end of a log each second
Session = Annotated[int, Meta(ge=1_000, le=86_400_000)]  # a broker in good health tells the end of a log sooner
Waited = Annotated[int, Meta(ge=0, le=86_400_000)]
Memory = Annotated[int, Meta(ge=32 * MIB)]  # a reader needs 1 MiB for a partition, which is one part of 32
Capacity = Annotated[float, Meta(gt=0, le=CAPACITY_MAX)]


OTHER_VARIABLES: Final = frozenset(("BROKER", "CACHE", "HYPOTHESIS", "INTERPRETED", "IVY_SETTINGS", "JAVA", "PROCESS"))
"""Variables with our prefix that are no settings, without the prefix. ``App`` takes ``KEYLANES_BROKER``."""

INSTANCE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What Kafka allows as a ``group.instance.id``, but for "." and ".."."""

ENDPOINT_MAX: Final = 512

COMPRESSIONS: Final = ("gzip", "snappy", "lz4", "zstd")


REMOVED: Final = {
    "buffer_bytes_max": "an eighth of memory_bytes_max is for records that are queued",
    "done_bytes_max": "an eighth of memory_bytes_max is for outputs that wait for a commit",
    "generation_bytes_max": "a sixteenth of memory_bytes_max, at most 32 MiB, goes into one transaction",
    "fetch_bytes_max": "a 32nd of memory_bytes_max is what one reader prefetches",
    "state_cache_bytes_max": "half of memory_bytes_max is for the blocks of RocksDB",
    "state_ahead_bytes_max": "an eighth of memory_bytes_max is for values of each source topic's state",
    "state_unwritten_bytes_max": "a 32nd of memory_bytes_max is for changes that are not in the local copies",
    "output_bytes_max": "max.message.bytes of the output topic decides how large an output may be",
    "balance_interval_ms": "the workers' cost is measured every second; split_hot_ranges turns splits on and off",
    "commit_all_workers_max": "with at most 16 busy workers a commit takes all that is done",
    "commit_lead_ms": "a commit takes what was done 20 ms ago; commit_interval_ms says how often",
    "ends_interval_ms": "the ends of the sources are asked for every ten seconds",
    "failure_log_interval_ms": "failures of one kind are logged every ten seconds",
    "fetch_records_max": "a fetch has at most 2000 records; memory_bytes_max bounds what is queued",
    "fetch_wait_ms": "a fetch waits at most 200 ms for new records, and returns with the first one",
    "full_wait_ms": "a reader waits a second for a full worker when most loaded ones are full",
    "generation_records_max": "a transaction has at most 50000 records with outputs",
    "loop_lag_ms": "an event loop that is blocked for a second is logged",
    "merge_hold_ms": "two neighbours are held for at most a second for a merge",
    "report_interval_ms": "a line about the work is logged every minute",
    "restore_partitions_max": "four changelog partitions are read at once",
    "snapshot_every_commits": "the offset log gets a snapshot every 1000 commits",
    "state_write_interval_ms": "committed changes go to the local copies every second",
    "workers_factor_max": "splits make at most four times the workers that parallelising_factor declares",
}
"""Settings of earlier versions, and what took the place of each."""


class Settings(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every limit and choice of an application. docs/settings.md says what each field bounds, and its default."""

    removed = REMOVED

    # The work
    commit_interval_ms: Milliseconds = 100  # between the starts of two commits
    handler_timeout_ms: Milliseconds = 60_000  # one attempt; an async one is cancelled then, a sync one reported
    threads: Annotated[int, Meta(ge=1, le=1_024)] = 16  # for sync handlers; any free one takes the next record
    split_hot_ranges: bool = True  # split hot ranges while running, merge them when they are cold
    stall_ms: Milliseconds = 30_000  # records wait and nothing has moved for so long: logged
    memory_bytes_max: Memory = 512 * MIB  # for records, outputs and state, divided as below; handlers come on top
    # Requests to the broker, starting and stopping
    transaction_timeout_ms: Milliseconds = 5_000  # then the broker aborts a dead app's transaction; readers wait
    request_timeout_ms: Milliseconds = 2_500  # one attempt at a request; then a broker that says nothing is passed over
    default_api_timeout_ms: Milliseconds = 30_000  # one call to the brokers, with all its attempts
    broker_retry_ms: Milliseconds = 120_000  # a commit is retried for so long, then the app stops
    start_timeout_ms: Milliseconds = 120_000  # from connecting to the first record
    drain_timeout_ms: Milliseconds = 8_000  # a stop lets handlers end; no record begins in its last fifth
    close_timeout_ms: Milliseconds = 5_000  # the last commit, leaving the group and closing, all together
    # The group
    session_timeout_ms: Session = 10_000  # a member that is not heard of for so long is expelled
    heartbeat_interval_ms: Milliseconds = 1_000  # how often a member is heard of; at most a third of the session
    group_instance_id: str | None = None  # the name of this process alone: a restart has its place and copies again
    capacity: Capacity = 1.0  # how much of the work this process gets beside others: 2.0 is twice as much
    load_interval_ms: Milliseconds = 2_000  # how often it says what its ranges cost, unless it is alone
    leave_ms: Waited = 15_000  # a process that stops works on until others have copies of its state, at most
    return_ms: Waited = 60_000  # ranges with state wait so long for a process with a name that is away
    standbys: Annotated[int, Meta(ge=0, le=8)] = 0  # so many others keep a copy of each range's state at hand
    copies_max: Positive = 2  # partitions of whose state a member makes copies at once
    copy_bytes_per_s: Positive = 16 * MIB  # a member copies no faster, beside its work
    moves_per_minute: Positive = 10  # of ranges with much state, to level the members
    exit_on_expulsion: bool = False  # end (exit code 3) when it is expelled; False: join the group again
    # Records that are sent outside of handlers
    send_bytes_max: Positive = 32 * MIB  # records that wait for their answer; beyond this a call waits
    # The application's own logs and topics
    history_ms: NotNegative = 7 * 86_400_000  # history that the app keeps in its offset log for the audit
    create_topics: bool = True  # create our logs and declared outputs where they are missing
    compression_type: str | None = "lz4"  # of written records: gzip, snappy, lz4, zstd or none
    # State
    state_folder: str | None = None  # local copies of state, a subfolder for each process; needed with state on Kafka
    endpoint: str = ""  # where others can ask this process for state; it is told to them, and nothing listens there
    query_view_ms_max: ViewedAge = 10_000  # a process that has not read the control log for longer answers no query
    # How the broker is reached
    security: Security = Security()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_times()
        if self.compression_type not in (None, *COMPRESSIONS):
            meant = near(self.compression_type.lower(), COMPRESSIONS)
            raise SettingsError(
                f"compression_type is {', '.join(COMPRESSIONS)} or None; seen {self.compression_type!r}"
                + (f"; did you mean {meant}?" if meant else "; give one of these")
            )
        if self.state_folder is not None and not self.state_folder.strip():
            raise SettingsError(
                f"state_folder names a folder; seen {self.state_folder!r}: give a local folder, which the processes of "
                "one machine may share, or leave it out where no handler keeps state"
            )
        self._check_group()
        self._check_endpoint()

    def _check_times(self) -> None:
        """Refuse a limit without room for the limits within: a call to a hanging broker ends before its caller."""
        attempt, call = self.request_timeout_ms, self.default_api_timeout_ms
        if 2 * attempt > self.transaction_timeout_ms:
            raise SettingsError(
                f"request_timeout_ms is at most half of transaction_timeout_ms={self.transaction_timeout_ms}, so that "
                f"one broker that says nothing costs a transaction at most half of its time; seen {attempt}: set "
                f"request_timeout_ms={self.transaction_timeout_ms // 2} or less, or transaction_timeout_ms="
                f"{2 * attempt} or more"
            )
        if self.transaction_timeout_ms > self.session_timeout_ms:
            raise SettingsError(
                f"transaction_timeout_ms is at most session_timeout_ms={self.session_timeout_ms}, so that a member's "
                f"transaction stays open no longer than its group waits for it; seen {self.transaction_timeout_ms}: "
                f"set transaction_timeout_ms={self.session_timeout_ms} or less, or session_timeout_ms="
                f"{self.transaction_timeout_ms} or more"
            )
        if attempt > call:
            raise SettingsError(
                f"default_api_timeout_ms bounds a call with all its attempts, so it is at least request_timeout_ms="
                f"{attempt}; seen {call}: raise it, or lower request_timeout_ms"
            )
        for name in ("broker_retry_ms", "start_timeout_ms"):
            if (limit := getattr(self, name)) < call:
                raise SettingsError(
                    f"{name} is at least default_api_timeout_ms={call}, which one of the calls within it may take; "
                    f"seen {limit}: set default_api_timeout_ms={limit} or less, or raise {name}"
                )

    def _check_group(self) -> None:
        beat, session = self.heartbeat_interval_ms, self.session_timeout_ms
        if 3 * beat > session:
            raise SettingsError(
                f"heartbeat_interval_ms is at most a third of session_timeout_ms={session}, so that nobody is expelled "
                f"for two beats that were lost; seen {beat}: set heartbeat_interval_ms={max(1, session // 3)} or less, "
                f"or session_timeout_ms={3 * beat} or more"
            )
        name = self.group_instance_id
        if name is not None and (not INSTANCE_ID.fullmatch(name) or name in (".", "..")):
            raise SettingsError(
                f"group_instance_id has 1 to 249 of a-z A-Z 0-9 . _ -, and is not . or ..; seen {name!r}: give each "
                "process a name of its own, or leave it out"
            )

    def _check_endpoint(self) -> None:
        """Refuse an endpoint with a password: every reader of the control log sees the endpoint."""
        endpoint = self.endpoint
        if "@" in endpoint.partition("://")[2 if "://" in endpoint else 0].partition("/")[0]:
            raise SettingsError(
                "endpoint is told to all members as it is, so it holds no user and no password; seen one with @ (not "
                "shown): leave out what stands before the @"
            )
        if len(endpoint) > ENDPOINT_MAX or " " in endpoint or not endpoint.isprintable():
            raise SettingsError(
                f"endpoint is host:port or a URL of at most {ENDPOINT_MAX} characters, without spaces and control "
                f"characters; seen {endpoint[:ENDPOINT_MAX]!r} ({len(endpoint)} characters): give one, or leave it out"
            )

    @property
    def limits(self) -> Limits:
        """Constants, and the shares of the memory; users do not set them."""
        return limits_of(self.memory_bytes_max)

    @property
    def call_limit_ms(self) -> int:
        """The limit of a wait for a call to the brokers, in ms. The limit is above the call's own limit, so that the
        call can name its failure and forget the broker without an answer.
        """
        return self.default_api_timeout_ms + self.request_timeout_ms

    @property
    def stop_limit_ms(self) -> int:
        """The limit of a stop, in ms: see shutdown.py."""
        return self.leave_ms + self.drain_timeout_ms + self.close_timeout_ms

    @property
    def transaction_limit_ms(self) -> int:
        """The limit of a transaction, in ms: sending, committing, and a look at the log for an unknown outcome."""
        return self.transaction_timeout_ms + 2 * self.call_limit_ms

    @classmethod
    def of(cls, **values: Any) -> "Settings":
        """Settings from plain values; text stands for numbers and truth, too. Raises SettingsError that names the
        field, the value seen and what is allowed.
        """
        security = values.get("security")
        if isinstance(security, dict):
            values["security"] = Security(**_read(Security, security, "Settings.of: security.{}"))
        return cls(**_read(cls, values, "Settings.of: {}"))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, prefix: str = "KEYLANES_") -> "Settings":
        """Settings from the environment. Raises SettingsError for a variable that names a setting and holds a wrong
        value, and for one that names a setting of an earlier version.

        Fields of ``security`` stand beside the others: ``KEYLANES_SECURITY_PROTOCOL``, ``KEYLANES_SSL_CAFILE``, …
        Truth is true, yes, on, 1 or false, no, off, 0. Variables that name no setting are ignored, with one warning:
        Kubernetes writes some for each service, and a service may be named like us.
        """
        environ = os.environ if environ is None else environ
        given = {name: environ[name] for name in environ if name.startswith(prefix)}
        by_field = {name[len(prefix) :].lower(): text for name, text in given.items()}
        where = f"the environment variable {prefix}{{}}"
        security = {name: text for name, text in by_field.items() if name in Security.__struct_fields__}
        known = {*cls.__struct_fields__, *cls.removed} - {"security"}
        own = {name: text for name, text in by_field.items() if name in known}
        _warn_of_others(by_field.keys() - security.keys() - own.keys(), prefix)
        values = _read(cls, own, where, str.upper)
        if security:
            values["security"] = Security(**_read(Security, security, where, str.upper))
        return cls(**values)


def _read(
    kind: type[Options], values: Mapping[str, Any], where: str, named: Callable[[str], str] = str
) -> dict[str, Any]:
    """The values, checked, with texts decoded to the types of their fields. ``where``: the origin of the values, with
    {} for the name of a field; ``named`` makes the name.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    read = {}
    for name, value in values.items():
        if name not in fields:
            raise SettingsError(unknown_field(kind, name, where.format(named(name))))
        read[name] = from_text(fields[name], value) if isinstance(value, str) else value
        if not is_sensitive(fields[name]):  # Security makes a Secret of a sensitive value
            check(fields[name], read[name], where.format(named(name)))
    return read


def _warn_of_others(names: Iterable[str], prefix: str) -> None:
    """Log a single warning for all variables without a setting, each with the setting probably meant."""
    known = [name for name in (*Settings.__struct_fields__, *Security.__struct_fields__) if name != "security"]
    ignored = []
    for name in sorted(names):
        meant = near(name, known)
        if name.upper() not in OTHER_VARIABLES:
            ignored.append(f"{prefix}{name.upper()}" + (f" (did you mean {prefix}{meant.upper()}?)" if meant else ""))
    if ignored:
        logger.warning(
            "environment variables that name no setting are ignored, seen %s; docs/settings.md lists the settings: "
            "correct these, or let them be (Kubernetes leaves its own out with enableServiceLinks: false)",
            ", ".join(ignored),
        )
