"""Every error that leaves keylanes, and the exit code of a process that ends with the error.

KeylanesError
├── SettingsError            2  wrong settings or handler declarations: mend them and start again
├── FatalError                  the application stopped; nothing that was committed is lost
│   ├── AccessRefused        2  the cluster refuses a log-in, a certificate or a right: see docs/exit-codes.md
│   ├── MachineError         2  this machine's clock is wrong, or it has no memory or threads left for the application
│   ├── FencedError          3  another process has the name of this process, or the group expelled this process
│   ├── LogError             4  a log of ours is damaged, foreign, truncated or newer: see docs/offset-log.md
│   ├── HandlerMisdeclared   2  a handler can't work as declared: its first record showed the mistake
│   ├── HandlerFailed        5  a handler failed for good and its policy is to stop
│   ├── BrokerUnavailable    6  the broker did not answer within the limits: start again when the broker is back
│   ├── SourceError          7  a source topic is missing, was re-created, or lost records ahead of us
│   ├── StoreError           8  the local RocksDB folder is in use, foreign, damaged or full
│   │   └── EmbeddedInUse    2  another process has the embedded broker's folder; several processes need a Kafka
│   ├── StateError           9  the state can't be trusted: its changelog is missing, truncated or foreign
│   ├── InvariantBroken     70  a defect of keylanes itself: please report the defect
│   └── NotSimulated            app.test() alone: a handler waits for a socket, a host name or a process
├── SendUnknown                 a record sent outside of handlers may be written: look, or send the record again
├── StateNotReady               the state is not restored yet, or not in this process: ask again later
│   └── Elsewhere               another member has the state: ask that member
└── HandlerError                a record's attempt failed; retried, then dead-lettered or stopped
    ├── DecodeFailed            the value does not fit the handler's annotation
    ├── OutputRefused           an output is too large, or its topic, partition or key is not possible
    ├── NoKey                   state was used for a record without a key
    ├── StateValueTooLarge      a value for the state is larger than a record of its changelog may be
    ├── HandlerTimeout          the handler took longer than handler_timeout_ms
    └── ContextClosed           a context was used after its attempt had ended
"""

from collections.abc import Iterator
from typing import Final, TypeVar

EXIT_ABORTED: Final = 130
"""The exit code of a process that was interrupted."""

E = TypeVar("E", bound=BaseException)


def caused(error: E, cause: BaseException | None) -> E:
    """Set the cause of an error, and return the error. Compiled code would drop the cause of ``raise … from cause``."""
    error.__cause__ = cause
    return error


class KeylanesError(Exception):
    """The root of the family."""


class SettingsError(KeylanesError, ValueError):
    """A setting or a declaration is wrong; the message names the setting, the value seen and what is allowed."""

    exit_code = 2


class FatalError(KeylanesError):
    """The application stopped. Commits stay; records without a commit are processed again after a restart."""

    exit_code = 1


class AccessRefused(FatalError):
    """The cluster refuses the log-in, the certificate or an operation; the message names the setting or the ACL."""

    exit_code = 2


class MachineError(FatalError):
    """The machine can't run the application now: its clock is wrong, or memory or threads have run out."""

    exit_code = 2


class FencedError(FatalError):
    """Another process has the name of this process, or the group expelled this process: others have its ranges."""

    exit_code = 3


class LogError(FatalError):
    """A log of ours is damaged, foreign, truncated, empty although the app has run, of a newer version, or from before
    the first release.
    """

    exit_code = 4


class HandlerMisdeclared(FatalError):
    """A handler can't work as declared: every record would fail. Its first record showed the mistake."""

    exit_code = 2


class HandlerFailed(FatalError):
    """A record failed for good and its handler's policy is to stop."""

    exit_code = 5


class BrokerUnavailable(FatalError):
    """The broker did not answer within the limits in the settings."""

    exit_code = 6


class SourceError(FatalError):
    """A source topic is missing, re-created or truncated, or lost records that were not processed yet."""

    exit_code = 7


class StoreError(FatalError):
    """The local folder can't be used: in use by another process, foreign, damaged, full or not private."""

    exit_code = 8


class EmbeddedInUse(StoreError):
    """Another process has the embedded broker's folder open; the message names the process where the system tells.

    The embedded broker is for one process. Several processes need a Kafka.
    """

    exit_code = 2


class StateError(FatalError):
    """The state can't be trusted or used: its changelog is missing, truncated, foreign or behind the offset log.

    The application stops, because a handler that reads wrong state writes wrong outputs.
    """

    exit_code = 9


class InvariantBroken(FatalError):
    """A rule that keylanes relies on did not hold. The process stops rather than commit something wrong."""

    exit_code = 70


class NotSimulated(FatalError):
    """Under ``app.test()`` time is virtual: a handler that asks for a socket, a host or a process ends the test."""


class SendUnknown(KeylanesError):
    """A record that was sent outside of a handler may be written or not: the answer was lost."""


class StateNotReady(KeylanesError):
    """The state is not restored yet, or not in this process: ask again later. Or another partitioner wrote the source
    than the application says; the message names the setting.
    """


class Elsewhere(StateNotReady):
    """Another member of the group has the state: ask that member. ``member``: its incarnation; ``endpoint``: the
    address for requests from its settings, "" without the setting; ``partition``: of the source topic.
    """

    def __init__(self, message: str, member: int, endpoint: str, partition: int) -> None:
        super().__init__(message)
        self.member, self.endpoint, self.partition = member, endpoint, partition


class HandlerError(KeylanesError):
    """One attempt at a record failed."""


class DecodeFailed(HandlerError):
    """The value does not fit the annotation of the handler."""


class OutputRefused(HandlerError):
    """An output is too large, or its topic, partition or key is not possible."""


class NoKey(HandlerError):
    """State was used for a record without a key: state belongs to a key."""


class StateValueTooLarge(HandlerError):
    """A value for the state is larger than a record of its changelog may be; the state is unchanged."""


class HandlerTimeout(HandlerError):
    """The attempt took longer than ``handler_timeout_ms``."""


class ContextClosed(HandlerError):
    """A context was used after its attempt had ended; nothing was sent."""


NO_THREADS: Final = "can't start new thread"
"""The text of the RuntimeError that Python raises when the system gives the process no more threads."""


def shortage_in(error: BaseException | None) -> MachineError | None:
    """The lack of memory or threads behind an error; None: another cause, or the lack arose in a handler."""
    for cause in () if isinstance(error, HandlerFailed) else _causes(error):
        if isinstance(cause, MemoryError) or (isinstance(cause, RuntimeError) and NO_THREADS in str(cause)):
            what = "memory" if isinstance(cause, MemoryError) else "threads"
            return MachineError(
                f"the system gives this process no more {what} ({cause!r}): raise its limits "
                "(ulimit -v, ulimit -u, those of the container), or lower memory_bytes_max and threads"
            )
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
