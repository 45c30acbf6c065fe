"""The start of a process up to its first producer: all checks come before the joining."""

import asyncio
from collections.abc import Sequence

from ..brokers.patience import close_within
from ..brokers.protocol import BrokerProducer, TopicDescription
from .engine.destinations import Destinations
from .handlers.acceptances import Accepted
from .handlers.handler import Handler
from .logs.own_ledger import OwnLedger
from .logs.reader import offsets_topic
from .logs.rights import prepare_with_rights
from .logs.topics import destinations_of
from .membership.first_look import FirstLook
from .membership.group import Group
from .membership.patience import StartPatience
from .stores.keeper import Keeper


class Preparation:
    """The checks of a process before the joining, and the first producer after the joining."""

    def __init__(
        self,
        own_ledger: OwnLedger,
        group: Group,
        handlers: Sequence[Handler],
        keeper: Keeper,
        destinations: Destinations,
        accepts: Accepted,
        patience: StartPatience,
    ) -> None:
        self.own_ledger = own_ledger
        self.group = group
        self.handlers = handlers
        self.keeper = keeper
        self.destinations = destinations
        self.accepts = accepts
        self.patience = patience

    async def prepare(self) -> dict[str, TopicDescription]:
        """Find the topics, and make all checks. Raises FatalError, BrokerError."""
        identity, handlers, ask = self.own_ledger.identity, self.handlers, self.patience.ask
        await ask(identity.broker.open)
        topics = await ask(lambda: prepare_with_rights(identity.app, handlers, identity.broker, identity.settings))
        await self.keeper.check()
        for name in destinations_of(handlers):
            self.destinations.learn(topics[name])
        identity.logs.log_partitions = topics[offsets_topic(identity.app)].partitions
        sources = [(h.topic, p) for h in handlers for p in range(topics[h.topic].partitions)]
        identities = {handler.topic: topics[handler.topic].identity for handler in handlers}
        starts = {handler.topic: handler.start for handler in handlers}
        unread = await ask(lambda: self.group.check(sources, identities, starts))
        look = FirstLook(
            app=identity.app,
            own_ledger=self.own_ledger,
            handlers=handlers,
            partitioners=self.destinations.partitioners,
            accepts=self.accepts,
        )
        await ask(lambda: look.check(unread, topics))
        return topics

    async def make_producer(self) -> BrokerProducer:
        """INIT, then READ, as for every producer: a process that was expelled before its first producer works on no old
        grant. Raises Expelled, LogError, BrokerError.
        """
        identity = self.own_ledger.identity
        producer = await self.patience.ask(identity.make_producer)
        try:
            await self.patience.ask(self.own_ledger.confirm)
            await self.patience.ask(self.own_ledger.read)
        except BaseException:
            closing = close_within(identity.settings.close_timeout_ms, producer.close(), "closing a producer")
            await asyncio.shield(closing)
            raise
        return producer
