"""Quix Streams as its users write it: one dataframe on one topic, values as bytes, at least once or exactly once.

Exactly once commits every ``commit_ms``; at least once at Quix's own default.
"""

from typing import Any

from quixstreams import Application
from quixstreams.state import State

from _driver import Spec, Tally, read_spec, say, transform, versions


class Told(Application):  # type: ignore[misc]  # its types are not seen where this is checked
    """Says when partitions are assigned, which Quix itself does not."""

    def _on_assign(self, *arguments: Any) -> None:
        super()._on_assign(*arguments)
        say({"event": "ready"})


def application(spec: Spec) -> Told:
    """With defaults, but for what the order says."""
    exactly_once = spec.arm == "quix-eos"
    return Told(
        broker_address=spec.bootstrap,
        consumer_group=spec.group,
        auto_offset_reset="earliest",
        state_dir=spec.folder,
        loglevel="WARNING",
        processing_guarantee="exactly-once" if exactly_once else "at-least-once",
        **({"commit_interval": spec.commit_ms / 1_000} if exactly_once else {}),
    )


def main(spec: Spec) -> None:
    """Run until all expected records are handled, then stop in order."""
    app = application(spec)
    wrong = 0

    def on_all() -> None:
        found = {**tally.result(), "wrong_states": wrong}
        say({**found, "versions": versions("quixstreams", "confluent-kafka", "rocksdict")})
        app.stop()

    tally = Tally(spec, on_all)
    begin, end = tally.begin, tally.end

    def count(value: bytes, state: State) -> None:
        nonlocal wrong
        token = begin(value)
        seen = state.get("seen", 0)
        if seen != int.from_bytes(value[4:8], "little"):
            wrong += 1
        state.set("seen", seen + 1)
        end(token)

    def change(value: bytes) -> bytes:
        token = begin(value)
        changed = transform(value)
        end(token)
        return changed

    def drain(value: bytes) -> None:
        end(begin(value))

    source = app.topic(spec.topic, key_deserializer="bytes", value_deserializer="bytes")
    frame = app.dataframe(source)
    if spec.workload == "W3":
        frame.update(count, stateful=True)
    elif spec.output:
        frame.apply(change).to_topic(app.topic(spec.output, key_serializer="bytes", value_serializer="bytes"))
    else:
        frame.update(drain)
    app.run()


if __name__ == "__main__":
    main(read_spec())
