"""Attempts at a record, until an attempt succeeds or the record has failed for good; and the record's result.

A failed attempt leaves nothing, whatever the handler returns; so does an attempt that runs over its time or is
cancelled by a stop. A worker whose record is tried again waits; all other workers go on.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any, NoReturn

from ...brokers.patience import fatal_of
from ...brokers.protocol import BrokerError, ConsumerRecord
from ...errors import (
    EXIT_ABORTED,
    DecodeFailed,
    FatalError,
    HandlerError,
    HandlerFailed,
    HandlerTimeout,
    NoKey,
    OutputRefused,
    caused,
)
from ...state.overlay import Layer, entry_bytes
from ..handlers.context import Context, Output
from ..handlers.handler import DeadLetter
from ..handlers.outputs import (
    BuiltOne,
    Destination,
    UnknownDestination,
    build,
    build_dead_letter,
    build_one,
    outputs_returned,
)
from ..handlers.partition_state import Scope
from ..handlers.record_result import RecordResult
from ..handlers.sizes import bytes_of
from ..handlers.stores import Binding
from ..partition.worker import Worker
from ..settings import Settings
from ..watch.failures import Failures, failure_text
from .calls import LoopCalls
from .destinations import Destinations
from .partition_run import Attempt, PartitionRun
from .threads import AwaitedCall, HandlerThreads
from .turns import Turns

logger = logging.getLogger("keylanes")


class Attempts:
    """Makes attempts at records, on the loop or in threads.

    ``variables``: the application's context variables; each attempt gets a copy. ``is_closing``: all handlers are being
    cancelled; a record whose attempt ends from here on is for the next start.
    """

    def __init__(
        self, destinations: Destinations, settings: Settings, turns: Turns, failures: Failures, threads: HandlerThreads
    ) -> None:
        self.destinations = destinations
        self.settings = settings
        self.variables = copy_context()
        self.is_closing = False
        self._known: dict[str, Destination] = destinations.known
        self._has_partitioners = bool(destinations.partitioners)
        self._turns = turns
        self._failures = failures
        self._threads = threads
        self._clock: Callable[[], float] = asyncio.get_running_loop().time

    def take_variables(self) -> None:
        """Take the caller's context variables for the handlers."""
        self.variables = copy_context()

    def timeout_ms(self, run: PartitionRun) -> int:
        """How long an attempt may take."""
        return run.handler.timeout_ms or self.settings.handler_timeout_ms

    async def produce(
        self,
        run: PartitionRun,
        worker: Worker,
        record: ConsumerRecord,
        result: Any,
        attempt: Attempt | None,
        variables: Variables,
        sent: Sequence[Output] = (),
    ) -> RecordResult | None:
        """The result of an ended attempt: the outputs and the changes of state; None: neither. An output that can't be
        sent makes the attempt a failed one, and further attempts follow.
        """
        failed: Exception
        try:
            while True:
                try:
                    return self.produce_now(run, record, result, attempt, variables, sent)
                except UnknownDestination as unknown:
                    topic = unknown.topic
                await self.destinations.look_up(topic)
        except Exception as error:  # noqa: BLE001  # a codec may raise anything
            failed = error
        return await self.process(run, worker, record, failed)

    def produce_now(
        self,
        run: PartitionRun,
        record: ConsumerRecord,
        result: Any,
        attempt: Attempt | None,
        variables: Variables,
        sent: Sequence[Output],
    ) -> RecordResult | None:
        """``produce`` for known destinations. Raises UnknownDestination for an unknown one, else the cause why the
        attempt failed. After a raise the caller may ask again.
        """
        if attempt is not None:
            attempt[0].close()
            if attempt[0].failed is not None:  # not the handler's result: the handler may have hidden the failure
                raise attempt[0].failed
        done: RecordResult | None = None
        if sent:
            outputs = [*sent, *outputs_returned(result, run.handler)]
            done = variables.run(build, outputs, record, run.handler, run.place, self._known)
        elif result is not None:
            built = self.build_one(result, record, run, variables)
            if built is not None:
                done = RecordResult(record, (built[0],), False, *built[1:])
            elif many := outputs_returned(result, run.handler):
                done = variables.run(build, many, record, run.handler, run.place, self._known)
        if attempt is None:
            return done
        changes = attempt[0].close().layer()
        run.put_back(attempt)
        return _with_changes(done, record, changes)

    async def process(
        self, run: PartitionRun, worker: Worker, record: ConsumerRecord, first: BaseException | None = None
    ) -> RecordResult | None:
        """Make attempts at a record until an attempt succeeds or the record has failed for good; return the result.
        ``first``: the failure of the first attempt, where the caller has made the first attempt.
        """
        handler = run.handler
        attempt = 0
        while True:
            attempt += 1
            failed: Exception
            try:
                if first is not None:
                    error, first = first, None
                    self._end_attempt(run, worker, record)
                    self._raise_again(run, worker, error)
                return await self._attempt(run, worker, record, attempt)
            except BrokerError as error:
                raise caused(fatal_of(error), error)
            except FatalError:
                raise
            except (SystemExit, KeyboardInterrupt) as error:
                raise caused(_ends_process(run, record, error), None)
            except Exception as error:  # noqa: BLE001  # a handler may raise anything
                if self.is_closing:  # the cancelled handler raised another error: the record is for the next start
                    raise caused(asyncio.CancelledError(), error)
                failed = error
            self._failures.attempts += 1
            if attempt >= handler.retry.attempts or isinstance(failed, DecodeFailed | NoKey):
                return await self._fail_record(run, record, failed, attempt)
            self._failures.retries += 1
            kind = type(failed).__name__
            if (more := self._failures.line_end(handler.topic, kind, "again", self._clock())) is not None:
                logger.warning(
                    "%s failed at %s offset %d, attempt %d of %d: %s%s",
                    handler.name,
                    run.label,
                    record.offset,
                    attempt,
                    handler.retry.attempts,
                    failure_text(failed),
                    more,
                )
            self._turns.give_back(run, worker)
            await asyncio.sleep(handler.retry.wait_ms(attempt) / 1000)
            await self._turns.resume(run, worker)

    async def _attempt(
        self, run: PartitionRun, worker: Worker, record: ConsumerRecord, attempt: int
    ) -> RecordResult | None:
        handler, dispatch = run.handler, run.dispatch
        context = Context(dispatch.topic, dispatch.partition, record, attempt) if handler.takes_context else None
        scope = run.scope(record)
        worker.timed_out = False
        worker.started_s = self._clock() if handler.is_async else math.inf
        try:
            further = [_argument(binding, context, scope, record) for binding in run.bindings]
            if handler.is_async:
                calls = LoopCalls(run.function, handler.decode, self.variables)
                if not calls.begin(record.value, further):
                    await calls
                if self.is_closing:  # the handler was cancelled, and came to its end all the same
                    raise asyncio.CancelledError
                variables, failed = calls.context, calls.take_exception()
                if failed is not None:
                    raise failed
                result = calls.result()
            else:
                variables = self.variables.copy()
                value = variables.run(handler.decode, record.value)
                result = await self._in_thread(worker, variables, handler.function, value, *further)
            if worker.timed_out:
                raise HandlerTimeout(f"took longer than {self.timeout_ms(run)} ms")
        except asyncio.CancelledError as error:
            self._raise_again(run, worker, error)
        finally:
            sent = () if context is None else context.close()
            changes = None if scope is None else scope.close().layer()
            self._end_attempt(run, worker, record)
            if scope is not None and scope.failed is not None:  # the handler may have hidden the failure
                raise scope.failed
        outputs = [*sent, *outputs_returned(result, handler)] if sent or result is not None else ()
        return _with_changes(await self._build(outputs, record, run, variables) if outputs else None, record, changes)

    def _end_attempt(self, run: PartitionRun, worker: Worker, record: ConsumerRecord) -> None:
        worker.load.spend(worker.started_s, self._clock(), run.dispatch.partition, record)
        worker.started_s = math.inf
        if worker.timed_out and not self.is_closing:
            _forget_cancels()

    def _raise_again(self, run: PartitionRun, worker: Worker, error: BaseException) -> NoReturn:
        """Raise a handler's exception. A cancellation becomes HandlerTimeout, or HandlerError where the handler was
        cancelled from inside; at a close it stays a cancellation.
        """
        if not isinstance(error, asyncio.CancelledError) or self.is_closing:
            raise error
        if worker.timed_out:
            raise caused(HandlerTimeout(f"took longer than {self.timeout_ms(run)} ms"), None)
        _forget_cancels()
        raise caused(HandlerError("the handler was cancelled from inside"), None)

    async def _in_thread(
        self, worker: Worker, variables: Variables, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        call = AwaitedCall(worker, variables, function, arguments)
        self._threads.begin(call)
        await call.through(self._clock)
        if call.failed is not None:
            raise call.failed
        return call.result

    def build_one(
        self, result: Any, record: ConsumerRecord, run: PartitionRun, variables: Variables
    ) -> BuiltOne | None:
        """See ``outputs.build_one``. A user's codec or partitioner runs with the variables of the attempt."""
        if run.is_codec_ours and not self._has_partitioners:
            return build_one(result, record, run.handler, run.place, self._known)
        return variables.run(build_one, result, record, run.handler, run.place, self._known)

    async def _build(
        self, outputs: Sequence[Output], record: ConsumerRecord, run: PartitionRun, variables: Variables
    ) -> RecordResult:
        while True:
            try:
                return variables.run(build, outputs, record, run.handler, run.place, self._known)
            except UnknownDestination as unknown:
                topic = unknown.topic
            await self.destinations.look_up(topic)

    async def _fail_record(
        self, run: PartitionRun, record: ConsumerRecord, error: Exception, attempts: int
    ) -> RecordResult:
        handler = run.handler
        where = f"{handler.name} failed for good at {run.label} offset {record.offset} after {attempts} attempts"
        if not isinstance(handler.on_failure, DeadLetter):
            raise caused(HandlerFailed(f"{where}: {failure_text(error)}"), error)
        topic = handler.on_failure.topic
        if topic not in self._known:
            await self.destinations.look_up(topic)
        destination = self._known[topic]
        kind, partitions = type(error).__name__, run.dispatch.partitions
        if (more := self._failures.line_end(handler.topic, kind, topic, self._clock())) is not None:
            trace = error if logger.isEnabledFor(logging.DEBUG) else None
            logger.warning("%s; it goes to %s: %s%s", where, topic, failure_text(error), more, exc_info=trace)
        try:
            letter = self.variables.copy().run(
                build_dead_letter, record, topic, destination, run.place, error, attempts, partitions
            )
            self._failures.dead_letters += 1
            return letter
        except OutputRefused as refused:  # by the user's own partitioner
            raise caused(HandlerFailed(f"{where}; its dead letter can't be written: {refused}"), refused)


def first_error(attempt: Attempt | None, error: BaseException) -> BaseException:
    """Close a first attempt that ended with ``error``; return the cause. The failure of the state comes first: the
    handler may have hidden that failure.
    """
    if attempt is None:
        return error
    attempt[0].close()
    return attempt[0].failed or error


def _with_changes(done: RecordResult | None, record: ConsumerRecord, changes: Layer | None) -> RecordResult | None:
    """Add changes of state to the result of a record; None: neither outputs nor changes."""
    if changes:
        if done is None:
            done = RecordResult(record, (), False, 0, size=bytes_of(record))
        done.changes = changes
        for cell, value in zip(changes.entries, changes.values, strict=True):
            done.size += entry_bytes(cell.key, value)
    return done


def _argument(binding: Binding | None, context: Context | None, scope: Scope | None, record: ConsumerRecord) -> Any:
    """An argument of a handler, for an attempt."""
    if binding is None:
        return context
    assert scope is not None, "a handler with stores runs on a state"
    return binding.bound(scope, record.key)


def _forget_cancels() -> None:
    """Take back all cancellations of the current task: the task groups and timeouts of a later record in the task count
    cancellations, and would end.
    """
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _ends_process(run: PartitionRun, record: ConsumerRecord, error: SystemExit | KeyboardInterrupt) -> HandlerFailed:
    """The error for a handler that ends the process, with the exit code of the handler's choice."""
    failed = HandlerFailed(f"{run.handler.name} ended the process at {run.label} offset {record.offset}: {error!r}")
    if isinstance(error, KeyboardInterrupt):
        failed.exit_code = EXIT_ABORTED
    elif error.code is None or isinstance(error.code, int):
        failed.exit_code = error.code or 0
    else:  # a text: Python shows the text, and exits with 1
        failed.exit_code = 1
    return failed
