"""PURE. Who has fallen silent in one partition of the signals, told by its records alone.

**Silence is time in which the partition could be appended to.** A broker's fail-over takes longer than a session: if
time just passed, everybody who sends beats there would be silent. So time is that of the log: it passes from the
timestamp of one record to that of the next, as the broker stamped them, and only where the two are close enough to say
that the partition was there in between. Whoever wants to know appends *probes* in each interval, so that there is a
next record when everybody else is silent.

A step that is longer than ``gap_ms`` is an outage: of the partition, or of who probes it. Each session begins anew
behind it. A clock that goes back stands still.

It follows that a reader that lags is never wrong: what it has not read yet has not passed. But who begins to listen,
and reads first what stood there before, meets some only near its end: they may have come later. So nobody is silent
until all of that is read.
"""

from collections.abc import Collection
from typing import Final, TypeAlias

Voice: TypeAlias = str | int
"""Who is heard: the birth of a process, or the term of a coordinator."""
GAP_INTERVALS: Final = 3
"""So many intervals between two probes may pass before it is an outage: one that is late is none."""


class Silence:
    """The fold of one partition of the signals; ``hear`` changes it. Times are in ms."""

    __slots__ = ("_awaited", "_begun_ms", "_heard", "_is_recalling", "_last_ms", "gap_ms", "now_ms", "outages")

    def __init__(self, gap_ms: int) -> None:
        self.gap_ms = gap_ms
        self.now_ms = 0
        """The time that has passed in the partition since it was begun to be read."""
        self.outages = 0
        self._begun_ms = 0
        """When all sessions began anew last."""
        self._last_ms: int | None = None
        self._heard: dict[Voice, int] = {}
        self._is_recalling = False
        self._awaited: tuple[Voice, int] | None = None

    def hear(self, append_ms: int, *voices: Voice) -> None:
        """A record with this timestamp, which shows that these live; none: it only shows that the partition is there.
        Records come in the order of the log.
        """
        self._is_recalling = False
        step = 0 if self._last_ms is None else max(0, append_ms - self._last_ms)
        self._last_ms = append_ms
        if step > self.gap_ms:
            self.outages += 1
            self._begun_ms = self.now_ms
            self._heard.clear()
        else:
            self.now_ms += step
        for voice in voices:
            self._heard[voice] = self.now_ms

    def recall(self, append_ms: int, *voices: Voice) -> None:
        """The same, of a record that stood there before: nobody is silent until one is heard behind it."""
        self.hear(append_ms, *voices)
        self._is_recalling = True

    def wait_for(self, voice: Voice) -> None:
        """Somebody is to be heard from now on: who was not heard yet has been silent since the first call for it. One
        is waited for at a time.
        """
        if self._awaited is None or self._awaited[0] != voice:
            self._awaited = voice, self.now_ms

    def begin_anew(self) -> None:
        """The partition was not listened to for some time: each session begins anew."""
        self._last_ms, self._begun_ms, self._is_recalling = None, self.now_ms, False
        self._heard.clear()

    def silent_ms(self, voice: Voice) -> int:
        """So long nothing was heard of somebody: since the last record, or since sessions began, or since it is waited
        for. 0 while what stood there before is recalled.
        """
        if self._is_recalling:
            return 0
        since_ms = self._begun_ms
        if self._awaited is not None and self._awaited[0] == voice:
            since_ms = max(since_ms, self._awaited[1])
        return self.now_ms - self._heard.get(voice, since_ms)

    def was_heard(self, voice: Voice) -> bool:
        """Whether there was a record of somebody since sessions began."""
        return voice in self._heard

    def heard_ms(self, voice: Voice) -> int:
        """When somebody was heard last, by the time of the partition; -1: not since sessions began."""
        return self._heard.get(voice, -1)

    def keep(self, voices: Collection[Voice], more: int) -> None:
        """Forget the others, when there are more than so many."""
        if len(self._heard) > len(voices) + more:
            self._heard = {voice: at for voice, at in self._heard.items() if voice in voices}
