"""Flechtwerk as its users write it: one transformer on one topic, on uvloop, one transaction for each poll.

What it is given, and why:

- **Values.** Flechtwerk reads JSON objects only, and those of the bench are bytes. Its hook for what can't be decoded,
  ``on_invalid_message``, makes an object with one text of each; so this arm reads the same topic as all others.
  The hook costs 5.8 µs of processor time per record where JSON of the same length costs 5.0.
- **Polls.** It has no commit interval: a poll is a batch, all keys of a batch run at once, and the next one begins when
  the transaction of this one is committed. Where handlers wait, a poll has as many records as may be in flight, which
  was as fast as larger ones with a semaphore, or faster. Else ``POLL_RECORDS``, which is more than a fetch brings:
  with its default of 500, and with 1,000, it did fewer records/s.
- Nothing is compressed, as in the other arms. Its default is zstd.

It has no stop in order, as a cancellation aborts what is open. So this waits until the group's offsets are committed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Self

import uvloop
from aiokafka.admin import AIOKafkaAdminClient
from flechtwerk import Event, Flechtwerk, IncomingMessage, InvalidMessageError, Message, State, Transformer
from flechtwerk.attribute import INT, STR, Attribute

from _driver import Spec, Tally, read_spec, say, transform, versions

VALUE = Attribute("value", STR)
"""The bytes of a value, a character for each."""
SEEN = Attribute("seen", INT)
POLL_RECORDS = 50_000
NOTHING: tuple[Message, ...] = ()
"""What a handler yields that sends nothing and keeps nothing: it must be a generator all the same."""
LOOK_S = 0.01
"""Between two looks at what is committed."""

Transform = Callable[[IncomingMessage, State], AsyncIterator[Message | State]]


class Told(Transformer):  # type: ignore[misc]  # its types are not seen where this is checked
    """A transformer of bytes that says when it polls."""

    def __init__(self, topic: str, transform: Transform) -> None:
        self.input_topics = [topic]
        self.work = transform

    async def __aenter__(self) -> Self:
        say({"event": "ready"})
        return self

    def transform(self, msg: IncomingMessage, state: State) -> AsyncIterator[Message | State]:
        """Each record."""
        return self.work(msg, state)

    def on_invalid_message(self, error: InvalidMessageError) -> Event:
        """The value, in an object. Keys are texts in every topic of the bench."""
        return Event({VALUE: error.value.decode("latin-1")})


def bytes_of(message: IncomingMessage) -> bytes:
    """The value as it was on the wire."""
    text: str = message.value[VALUE]
    return text.encode("latin-1")


class Wrong:
    """How often the state did not hold what it had to."""

    def __init__(self) -> None:
        self.count = 0


def counting(tally: Tally, wrong: Wrong) -> Transform:
    """W3: the count before a record is its number within its key."""
    begin, end, turn = tally.begin, tally.end, tally.next

    async def count(message: IncomingMessage, state: State) -> AsyncIterator[Message | State]:
        token = begin(bytes_of(message))
        seen = state.get(SEEN) or 0
        if seen != turn[token]:
            wrong.count += 1
        end(token)
        yield State({SEEN: seen + 1})

    return count


def sending(spec: Spec, tally: Tally) -> Transform:
    """W4: the value goes out changed, under the same key."""
    begin, end, output = tally.begin, tally.end, spec.output

    async def change(message: IncomingMessage, _: State) -> AsyncIterator[Message | State]:
        value = bytes_of(message)
        token = begin(value)
        changed = transform(value)
        end(token)
        yield Message(key=message.key, topic=output, value=changed)

    return change


def waiting(spec: Spec, tally: Tally) -> Transform:
    """W1."""
    begin, end, seconds = tally.begin, tally.end, spec.handler_ms / 1_000

    async def wait(message: IncomingMessage, _: State) -> AsyncIterator[Message | State]:
        value = bytes_of(message)
        if not tally.wants(value):
            return
        token = begin(value)
        await asyncio.sleep(seconds)
        end(token)
        for message_out in NOTHING:
            yield message_out

    return wait


def stage(spec: Spec, tally: Tally, wrong: Wrong) -> Told:
    """The workload's."""
    if spec.workload == "W3":
        return Told(spec.topic, counting(tally, wrong))
    return Told(spec.topic, sending(spec, tally) if spec.output else waiting(spec, tally))


def application(spec: Spec, of: Told) -> Flechtwerk:
    """With defaults, but for what is said above."""
    return Flechtwerk.of(
        application_id=spec.group,
        bootstrap_servers=spec.bootstrap,
        client_id=f"{spec.group}-0",
        stage=of,
        compression_type=None,
        max_poll_records=spec.in_flight if spec.handler_ms else POLL_RECORDS,
    )


async def committed(spec: Spec) -> None:
    """Wait until the group's offsets say that all is committed."""
    admin = AIOKafkaAdminClient(bootstrap_servers=spec.bootstrap)
    await admin.start()
    try:
        while True:
            offsets = await admin.list_consumer_group_offsets(spec.group)
            if sum(place.offset for place in offsets.values()) >= spec.records:
                return
            await asyncio.sleep(LOOK_S)
    finally:
        await admin.close()


async def main(spec: Spec) -> None:
    """Run until all expected records are handled and committed, then cancel it: it has no other end."""
    is_done, wrong = asyncio.Event(), Wrong()
    tally = Tally(spec, is_done.set)
    running = asyncio.create_task(application(spec, stage(spec, tally, wrong)).run())
    done = asyncio.create_task(is_done.wait())
    await asyncio.wait({running, done}, return_when=asyncio.FIRST_COMPLETED)
    if not is_done.is_set():
        done.cancel()
        await running  # raises what ended it
    ran = versions("flechtwerk", "aiokafka", "rocksdict", "uvloop")
    say({**tally.result(), "wrong_states": wrong.count, "versions": ran})
    await committed(spec)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    order = read_spec()
    uvloop.run(main(order))
