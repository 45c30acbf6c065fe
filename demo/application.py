"""The application of the demo: late flights are published by aircraft, cancelled ones are a class of their own."""

import asyncio
from typing import Final

from ..runtime.app import App
from ..runtime.handlers import DeadLetter, Retry
from ..runtime.settings import Settings
from .flights import LATE_MINUTES, Flight, Late
from .loader import SOURCE

APP: Final = "flights-demo"
LATE_TOPIC: Final = "late"
DEAD_TOPIC: Final = "flights.dead"
PARALLELISING_FACTOR: Final = 512


class ArrivalUnknown(ValueError):
    """A flight left and is not known to have arrived."""


def make_app(broker: str, settings: Settings, *, handler_ms: float) -> App:
    """The application; each record waits for ``handler_ms``, as it would for a service of somebody else."""
    app = App(APP, broker=broker, settings=settings)
    wait_s = handler_ms / 1000

    @app.handler(
        SOURCE,
        to=LATE_TOPIC,
        parallelising_factor=PARALLELISING_FACTOR,
        retry=Retry(attempts=1),
        on_failure=DeadLetter(DEAD_TOPIC),
    )
    async def on_flight(flight: Flight) -> Late | None:
        if wait_s:
            await asyncio.sleep(wait_s)
        if flight.dep_time is None:  # cancelled: neither late nor an error
            return None
        if flight.arr_delay is None:
            raise ArrivalUnknown(f"{flight.carrier} {flight.flight} left at {flight.dep_time} and never arrived")
        if flight.arr_delay > LATE_MINUTES:
            return Late(flight.carrier, flight.flight, flight.dest, flight.arr_delay)
        return None

    return app
