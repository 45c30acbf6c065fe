"""Outputs of every kind, as a handler may return them."""

import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keylanes import DeadLetter, Record, Retry

from ...stage.ground import Ground

ODD_TEXT = st.text(st.characters(codec=None), max_size=4)  # lone surrogates, too
ODD = st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=4) | ODD_TEXT | st.builds(object)
HEADERS = st.lists(st.tuples(ODD_TEXT | ODD, st.binary(max_size=4) | ODD), max_size=2)
OUTPUTS = st.builds(
    Record,
    st.recursive(ODD, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(ODD_TEXT, inner, max_size=2)),
    key=st.binary(max_size=4) | ODD_TEXT | ODD,
    headers=HEADERS | ODD,
    timestamp=st.none() | st.integers(-2, 1 << 64) | ODD,
    partition=st.none() | ODD,
    topic=st.none() | st.just("not a topic") | ODD_TEXT | ODD,
)


@settings(max_examples=20)
@given(st.lists(OUTPUTS | ODD, min_size=1, max_size=30))
def test_nothing_that_a_handler_returns_ends_the_application(outputs: list[Any]) -> None:
    """What can't be sent fails its record, whatever part of it is wrong, and the cause says so."""
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(f"embedded:{folder}/data")
        ground.fill([(b"k", b"%d" % i) for i in range(len(outputs))])
        app = ground.app()

        @app.handler(ground.source, to=ground.late, retry=Retry(attempts=1), on_failure=DeadLetter(ground.dead))
        async def give(number: int) -> Any:
            return outputs[number]

        app.run(until="level")
        letters = ground.read(ground.dead)
    causes = {(dict(letter.headers)["kl-error"] or b"").decode() for letter in letters}
    assert all(cause.startswith("OutputRefused: ") for cause in causes), causes
