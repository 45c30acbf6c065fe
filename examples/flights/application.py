"""The application of the demo: publishes late flights by aircraft, and passes over cancelled flights.

Each aircraft has running totals in state. Every arrival goes to a second handler, under the key of its airport. The
second handler keeps the same totals for each destination.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from flights import LATE_MINUTES, Arrival, Flight, Late, Totals
from keylanes.runtime.app import App
from keylanes.runtime.handlers.context import Context
from keylanes.runtime.handlers.handler import DeadLetter, Retry
from keylanes.runtime.handlers.stores import State
from keylanes.runtime.settings import Settings
from loader import SOURCE

APP: Final = "flights-demo"
LATE_TOPIC: Final = "late"
DEAD_TOPIC: Final = "flights.dead"
ARRIVALS: Final = "flights.by-destination"
PARALLELISING_FACTOR: Final = 512
PARALLELISING_FACTOR_ARRIVALS: Final = 32
"""Few workers are enough: the flights have 105 destinations."""
SLOWED: Final = 20
"""The factor of the time that a flight takes while the application works slowly."""


class ArrivalUnknown(ValueError):
    """A flight left and is not known to have arrived."""


def make_app(
    broker: str,
    settings: Settings,
    handler_ms: float,
    *,
    max_in_flight: int | None = None,
    is_slow: Callable[[], bool] = lambda: False,
) -> App:
    """The application. Each flight waits ``handler_ms``, as for another service; while ``is_slow``, SLOWED times as
    long. ``max_in_flight``: the most flights in handlers of this process at once; None: any number.
    """
    app = App(APP, broker=broker, settings=settings)
    wait_s = handler_ms / 1000

    @app.handler(
        SOURCE,
        to=LATE_TOPIC,
        parallelising_factor=PARALLELISING_FACTOR,
        max_in_flight=max_in_flight,
        retry=Retry(attempts=1),
        on_failure=DeadLetter(DEAD_TOPIC),
    )
    async def on_flight(flight: Flight, ctx: Context, by_aircraft: State[Totals]) -> Late | None:
        if wait_s:
            await asyncio.sleep(wait_s * SLOWED if is_slow() else wait_s)
        if flight.dep_time is None:  # cancelled: neither late nor an error; some of these flights have no aircraft
            return None
        if flight.arr_delay is None:
            raise ArrivalUnknown(f"{flight.carrier} {flight.flight} left at {flight.dep_time} and never arrived")
        by_aircraft.put((by_aircraft.get() or Totals()).with_arrival(flight.arr_delay))
        ctx.send(ARRIVALS, Arrival(flight.arr_delay), key=flight.dest)
        if flight.arr_delay > LATE_MINUTES:
            return Late(flight.carrier, flight.flight, flight.dest, flight.arr_delay)
        return None

    @app.handler(ARRIVALS, parallelising_factor=PARALLELISING_FACTOR_ARRIVALS)
    async def on_arrival(arrival: Arrival, by_destination: State[Totals]) -> None:
        by_destination.put((by_destination.get() or Totals()).with_arrival(arrival.minutes))

    return app
