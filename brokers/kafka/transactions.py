"""DescribeTransactions (KIP-664), a request that aiokafka lacks: the producer at work under a transactional id."""

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

_KEY: Final = 65


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
        """The request in the only version."""
        return request_struct_class(self._transactional_ids, {})
