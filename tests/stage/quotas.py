"""Quotas of a Kafka, set as its administrator does (AlterClientQuotas, KIP-546), which aiokafka lacks."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Float64, Int16, Int32, Schema, String

from keylanes.brokers.kafka.link import KafkaLink, LinkSettings
from keylanes.brokers.security import Security

_KEY: Final = 49
_ENTITY: Final = ("entity", Array(("type", String("utf-8")), ("name", String("utf-8"))))


class _Response(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = _KEY
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("entries", Array(("error_code", Int16), ("error_message", String("utf-8")), _ENTITY)),
    )


class _Struct(RequestStruct):  # type: ignore[misc]  # no types
    API_KEY = _KEY
    API_VERSION = 0
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        (
            "entries",
            Array(_ENTITY, ("ops", Array(("key", String("utf-8")), ("value", Float64), ("remove", Boolean)))),
        ),
        ("validate_only", Boolean),
    )


class _Request(Request[_Struct]):  # type: ignore[misc]  # no types
    API_KEY = _KEY

    def __init__(self, entries: list[Any]) -> None:
        self._entries = entries

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._entries, False)


def limit(bootstrap: str, entity: str, name: str | None, quotas: Mapping[str, float]) -> None:
    """Give a user, or a client by its id, these quotas: ``producer_byte_rate`` and its like. None: whom has no own."""

    async def ask() -> None:
        link = KafkaLink(LinkSettings(bootstrap, "quotas", Security(), 5_000, 30_000, 5_000))
        deadline = link.deadline("setting quotas")
        await link.open(deadline)
        ops = [(key, float(value), False) for key, value in quotas.items()]
        reply = await link.ask_any(_Request([([(entity, name)], ops)]), deadline)
        await link.close()
        assert [entry[0] for entry in reply.entries] == [0], reply.entries

    asyncio.run(ask())
