"""The batches for one broker: batches that come during a request go together in the next request.

A broker answers the requests of a connection one after the other, so many small requests would wait for each other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from ..deadline import Deadline
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
        self._calls: list[_ProduceCall] = []  # with batches that are not sent yet
        self._sending: asyncio.Task[None] | None = None

    async def answers(self, batches: Batches, deadline: Deadline) -> Answers:
        """The answers for batches. A caller that is cancelled before the sending takes the batches back."""
        loop = asyncio.get_running_loop()
        call = _ProduceCall(batches, deadline, loop.create_future())
        self._calls.append(call)
        if self._sending is None:
            self._sending = loop.create_task(self._send_all())
        try:
            answers = await call.answers
            return {place: answers[place] for place in batches}
        finally:
            if call in self._calls:
                self._calls.remove(call)

    async def _send_all(self) -> None:
        """Send until nothing is left. The task ends by itself: by the deadline of a request, or a closed connection."""
        await asyncio.sleep(0)  # batches that come in this turn of the loop go together
        while self._calls:
            calls = self._take_calls()
            batches = {place: batch for call in calls for place, batch in call.batches.items()}
            latest = max((call.deadline for call in calls), key=lambda deadline: deadline.remaining_s)
            try:
                answers = await self._send(batches, latest)
            except Exception as error:  # noqa: BLE001  # the callers get the error
                for call in calls:
                    if not call.answers.done():
                        call.answers.set_exception(error)
                        call.answers.exception()  # a caller that is cancelled at this moment never asks
            else:
                for call in calls:
                    if not call.answers.done():
                        call.answers.set_result(answers)
        self._sending = None

    def _take_calls(self) -> list[_ProduceCall]:
        """Take the first calls, as many as fit into a request."""
        number = size = 0
        room = self._allowance.request_max(asyncio.get_running_loop().time())
        for call in self._calls:
            size += sum(batch.size for batch in call.batches.values())
            room -= sum(batch.unpacked for batch in call.batches.values())
            if number and (size > REQUEST_BYTES_MAX or room < 0):
                break
            number += 1
        first, self._calls = self._calls[:number], self._calls[number:]
        return first
