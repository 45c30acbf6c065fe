"""FENCE and MARK: from here on a member commits nothing, and all that it has committed lies below known positions.

The mark is made behind the fence, by the producer that fenced: whatever the member's own producers still have under way
is refused. Its offset is an own append, acknowledged by the true leader. To read a partition of the offset log "to its
end" is not enough: a leader that was deposed and still answers tells an old end, below what the member has committed.
"""

import asyncio
from collections.abc import Mapping

from ...brokers.protocol import BrokerTimeout, Producer, ProducerFenced, TransactionAborted
from ...brokers.waiting import bounded, closed_within
from ...group.coordinator import ToFence
from ..logs.office import Identity
from ..logs.openings import opening_records


async def fence(identity: Identity, wanted: ToFence) -> Mapping[int, int]:
    """Fence all ids of a member; the positions of the marks, by partition of the offset log. Raises BrokerError.

    A mark that is refused bounds nothing, and raises BrokerTimeout: both are done again. The member has made a producer
    meanwhile, since it does not know yet that it was expelled.
    """
    member, settings = wanted.member, identity.settings
    records = opening_records(identity.logs, wanted.log_partitions, member.incarnation)
    # The markers of the member's last transaction may take as long as that may be open.
    limit_ms = settings.call_limit_ms + settings.transaction_timeout_ms
    producers: list[Producer] = []
    try:
        for one in member.transactional_ids:
            making = identity.broker.producer(one, transaction_timeout_ms=settings.transaction_timeout_ms)
            producers.append(await bounded(making, limit_ms, f"fencing {one}"))
        if not records:
            return {}
        what = f"marking what incarnation {member.incarnation} has committed"
        ends = await bounded(producers[-1].mark(records), limit_ms, what)
    except (ProducerFenced, TransactionAborted) as error:
        raise BrokerTimeout(f"incarnation {member.incarnation} is to be fenced again: {error}") from error
    finally:
        closing = asyncio.gather(*(producer.close() for producer in producers))
        await closed_within(settings.close_timeout_ms, closing, "closing producers")
    return {source.partition: end for source, end in ends.items()}
