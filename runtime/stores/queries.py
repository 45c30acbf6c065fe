"""What answers the queries of a process: its stores by name, each with all partitions of the topic."""

from collections.abc import Mapping

from ...errors import StateNotReady
from ...offsets.ledger import SourcePartition
from ...state.tables import StoreInfo
from ..handlers.handler import Handler
from ..handlers.stores import Binding
from .answers import FollowedCopies, GroupView, LocalAnswers
from .key_places import KeyPlaces
from .storage import Storage
from .view import DeclaredStore


class Queries:
    """The stores of one process, for readers outside of handlers. ``infos``: the stores by name, once they are open."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        infos: Mapping[str, StoreInfo],
        storages: Mapping[SourcePartition, Storage],
        group: GroupView,
        copies: FollowedCopies,
        key_places: KeyPlaces,
    ) -> None:
        self.handlers = handlers
        self.infos = infos
        self.storages = storages
        self.group = group
        self.copies = copies
        self.key_places = key_places
        self._withheld: str | None = None
        """The reason why no query is answered any more."""

    def withhold(self, why: str) -> None:
        """Answer no query any more: others may have the ranges of this process."""
        self._withheld = why

    def find(self, name: str) -> DeclaredStore:
        """A store with all partitions of its topic; raises StateNotReady."""
        info = self.infos.get(name)
        if self._withheld is not None:
            raise StateNotReady(f"store {name!r} can't be read: {self._withheld}")
        if info is None:
            raise StateNotReady(f"store {name!r} can't be read yet: the application is starting")
        declared = next(d for d in self.handlers[info.topic].stores if d.name == name)
        if (doubt := self.group.doubt()) is not None:
            raise StateNotReady(f"store {name!r} can't be read: {doubt}")
        partitions = {
            place[1]: LocalAnswers(place=place, state=storage.state, group=self.group, copies=self.copies)
            for place, storage in self.storages.items()
            if place[0] == info.topic
        }
        return DeclaredStore(info, Binding(info.number, declared), partitions, self.key_places)
