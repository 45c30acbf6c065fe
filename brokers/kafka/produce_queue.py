"""The batches for one broker: batches that come during a request go together in the next request.

A broker answers the requests of a connection one after the other, so many small requests would wait for each other.
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
    """A queue of batches. ``send`` sends batches of different partitions in one request, within the bytes of
    ``allowance``. A partition has at most one batch in the queue.
    """

    def __init__(self, send: Callable[[Batches, Deadline], Awaitable[Answers]], allowance: Allowance) -> None:
        self._send = send
        self._allowance = allowance
        self._asked: list[_ProduceCall] = []
        self._sending: asyncio.Task[None] | None = None

    async def answers(self, batches: Batches, deadline: Deadline) -> Answers:
        """The answers for batches. A caller that is cancelled before the sending takes the batches back."""
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
        """Send until nothing is left. The task ends by itself: by the deadline of a request, or a closed connection."""
        await asyncio.sleep(0)  # batches that come in this turn of the loop go together
        while self._asked:
            taken = self._taken()
            batches = {place: batch for one in taken for place, batch in one.batches.items()}
            latest = max((one.deadline for one in taken), key=lambda deadline: deadline.left)
            try:
                answers = await self._send(batches, latest)
            except Exception as error:  # noqa: BLE001  # the callers get the error
                for one in taken:
                    if not one.answers.done():
                        one.answers.set_exception(error)
                        one.answers.exception()  # a caller that is cancelled at this moment never asks
            else:
                for one in taken:
                    if not one.answers.done():
                        one.answers.set_result(answers)
        self._sending = None

    def _taken(self) -> list[_ProduceCall]:
        """Take the first calls, as many as fit into a request."""
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
