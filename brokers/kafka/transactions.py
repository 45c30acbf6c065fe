"""DescribeTransactions (KIP-664), which aiokafka lacks: who is at work under a transactional id."""

from typing import Any, Final

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from ..protocol import BrokerError
from .link import TRY_AGAIN, Code, Deadline, KafkaLink, NotSent, ReplyLost, describe_code

_KEY: Final = 65
_ID_NOT_FOUND: Final = 105
_ABORTED: Final = frozenset({"PrepareEpochFence", "PrepareAbort", "CompleteAbort"})


class DescribeTransactionsResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    """Version 0."""

    API_KEY = _KEY
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "states",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("timeout_ms", Int32),
                ("start_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeTransactionsStruct(RequestStruct):  # type: ignore[misc]  # no types
    """Version 0."""

    API_KEY = _KEY
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = DescribeTransactionsResponse
    SCHEMA = Schema(("transactional_ids", CompactArray(CompactString("utf-8"))), ("tags", TaggedFields))


class DescribeTransactionsRequest(Request[DescribeTransactionsStruct]):  # type: ignore[misc]  # no types
    """The state of transactional ids, for their coordinator."""

    API_KEY = _KEY

    def __init__(self, transactional_ids: list[str]) -> None:
        self._transactional_ids = transactional_ids

    def build(self, request_struct_class: Any) -> Any:
        """The request of the one version there is."""
        return request_struct_class(self._transactional_ids, {})


async def producer_was_replaced(
    link: KafkaLink, transactional_id: str, producer_id: int, epoch: int, deadline: Deadline
) -> bool:
    """Whether a producer newer than this one exists, which had a transaction open when it was told of a newer epoch.

    A transaction that takes too long is aborted under the next epoch. A newer producer aborts an open one in the same
    way and then takes one more epoch for itself. Raises BrokerError when the state can't be found out.
    """
    while True:
        node = await link.coordinator(transactional_id, deadline)
        try:
            request = DescribeTransactionsRequest([transactional_id])
            reply = await link.ask(node, request, deadline, coordination=True)
        except (NotSent, ReplyLost) as error:
            link.forget_coordinator(transactional_id)
            await deadline.pause(error)
            continue
        code, _id, state, _timeout, _start, seen_id, seen_epoch, *_ = reply.states[0]
        if code == _ID_NOT_FOUND:
            return False  # forgotten because it was idle for days
        if code == Code.NONE:
            return seen_id != producer_id or seen_epoch > epoch + 1 or state not in _ABORTED
        if code not in TRY_AGAIN:
            raise BrokerError(f"the state of the transactional id {transactional_id!r}: {describe_code(code)}")
        link.forget_coordinator(transactional_id)
        await deadline.pause(code)
