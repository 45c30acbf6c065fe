"""The batches for one broker: while a request is under way, those that come go together in the next one.

A broker answers the requests of a connection one after the other, so many small ones would wait for each other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from ..asking import Deadline
from ..delivery import REQUEST_BYTES_MAX, AppendAnswer, ProduceBatch
from ..protocol import TopicPartition
from ..throttling import Allowance

Batches = Mapping[TopicPartition, ProduceBatch[bytes]]
Answers = Mapping[TopicPartition, AppendAnswer]


@dataclass(eq=False)
class _ProduceCall:
    batches: Batches
    deadline: Deadline
    answers: asyncio.Future[Answers]


class ProduceQueue:
    """``send`` sends batches of different partitions in one request, of so many bytes as the ``allowance`` says. No
    partition is asked for twice at a time.
    """

    def __init__(self, send: Callable[[Batches, Deadline], Awaitable[Answers]], allowance: Allowance) -> None:
        self._send, self._allowance = send, allowance
        self._asked: list[_ProduceCall] = []
        self._sending: asyncio.Task[None] | None = None

    async def answers(self, batches: Batches, deadline: Deadline) -> Answers:
        """The answers for these batches. Whoever is cancelled before they are sent keeps them from being sent."""
        loop = asyncio.get_running_loop()
        asked = _ProduceCall(batches, deadline, loop.create_future())
        self._asked.append(asked)
        if self._sending is None:
            self._sending = loop.create_task(self._send_all())
        try:
            answers = await asked.answers
            return {place: answers[place] for place in batches}
        finally:
            if asked in self._asked:
                self._asked.remove(asked)

    async def _send_all(self) -> None:
        """Send until nothing is left. It ends by itself: each request has a deadline, or the connection is closed."""
        await asyncio.sleep(0)  # what comes in this turn of the loop goes together
        while self._asked:
            taken = self._taken()
            batches = {place: batch for one in taken for place, batch in one.batches.items()}
            latest = max((one.deadline for one in taken), key=lambda deadline: deadline.left)
            try:
                answers = await self._send(batches, latest)
            except Exception as error:  # noqa: BLE001  # it concerns whoever asked
                for one in taken:
                    if not one.answers.done():
                        one.answers.set_exception(error)
                        one.answers.exception()  # whoever is cancelled at this moment never asks
            else:
                for one in taken:
                    if not one.answers.done():
                        one.answers.set_result(answers)
        self._sending = None

    def _taken(self) -> list[_ProduceCall]:
        """The first ones, as many as fit into a request."""
        number = size = 0
        room = self._allowance.request_max(asyncio.get_running_loop().time())
        for one in self._asked:
            size += sum(batch.size for batch in one.batches.values())
            room -= sum(batch.unpacked for batch in one.batches.values())
            if number and (size > REQUEST_BYTES_MAX or room < 0):
                break
            number += 1
        taken, self._asked = self._asked[:number], self._asked[number:]
        return taken
