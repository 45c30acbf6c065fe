"""PURE. The silence of members and coordinators in one partition of the signals, by the partition's records alone.

**Silence is time during which the partition accepted appends.** A broker's fail-over takes longer than a session. By
plain clocks every sender in the partition would fall silent meanwhile. So time is log time: time runs from the
timestamp of one record to the timestamp of the next, as stamped by the broker. A step from one record to the next
counts only if the step is so short that the partition must have been available meanwhile. A process that waits for a
silence appends *probes* in each interval. So the next record comes even if all other processes are silent.

A step longer than ``gap_ms`` is an outage: of the partition, or of the prober. Behind an outage each session begins
anew. A clock that goes back makes time stand still.

A lagging reader is never wrong: time that the reader has not read has not passed. A new reader first *recalls* the
records from before its start. A process that began a moment ago has its first record near the end of the partition.
Until the reader comes to this record, the process would look silent. So nobody is silent until all older records are
recalled.
"""

from collections.abc import Collection
from typing import Final, TypeAlias

Voice: TypeAlias = str | int
"""The sender of a record: the birth of a process, or the term of a coordinator."""
GAP_INTERVALS: Final = 3
"""The longest step that is no outage, in intervals: a single late probe makes no outage."""


class Silence:
    """The fold of one partition of the signals; ``hear`` adds a record. Times are in ms. ``gap_ms``: the longest step
    that is no outage.
    """

    __slots__ = ("_awaited", "_begun_ms", "_heard", "_is_recalling", "_last_ms", "gap_ms", "now_ms", "outages")

    def __init__(self, gap_ms: int) -> None:
        self.gap_ms = gap_ms
        self.now_ms = 0
        """The time passed in the partition since the first record read."""
        self.outages = 0
        """The number of outages so far."""
        self._begun_ms = 0
        """The time when all sessions began anew last."""
        self._last_ms: int | None = None
        """The timestamp of the last record."""
        self._heard: dict[Voice, int] = {}
        """By voice: the time of its last record since sessions began."""
        self._is_recalling = False
        self._awaited: tuple[Voice, int] | None = None
        """The voice waited for, and the time when the wait began."""

    def hear(self, append_ms: int, *voices: Voice) -> None:
        """Take a record with its timestamp. ``voices``: the processes that the record shows alive. A record without
        voices shows only that the partition is available. Records come in the order of the log.
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
        """Take a record written before listening began. Nobody is silent until a later record is heard."""
        self.hear(append_ms, *voices)
        self._is_recalling = True

    def wait_for(self, voice: Voice) -> None:
        """Wait for a voice. A voice never heard counts as silent since the first call. Only one voice is waited for at
        a time.
        """
        if self._awaited is None or self._awaited[0] != voice:
            self._awaited = voice, self.now_ms

    def begin_anew(self) -> None:
        """Begin each session anew after a time without listening. No time passes until the next record."""
        self._last_ms, self._begun_ms, self._is_recalling = None, self.now_ms, False
        self._heard.clear()

    def silent_ms(self, voice: Voice) -> int:
        """The silence of a voice: since its last record, since sessions began, or since the wait for the voice began.
        The silence is 0 while older records are recalled.
        """
        if self._is_recalling:
            return 0
        since_ms = self._begun_ms
        if self._awaited is not None and self._awaited[0] == voice:
            since_ms = max(since_ms, self._awaited[1])
        return self.now_ms - self._heard.get(voice, since_ms)

    def was_heard(self, voice: Voice) -> bool:
        """Whether a record of the voice came since sessions began."""
        return voice in self._heard

    def heard_ms(self, voice: Voice) -> int:
        """The partition time of the voice's last record; -1: none since sessions began."""
        return self._heard.get(voice, -1)

    def keep(self, voices: Collection[Voice], more: int) -> None:
        """Keep these voices. Forget all others once more than ``more`` others are known."""
        if len(self._heard) > len(voices) + more:
            self._heard = {voice: at for voice, at in self._heard.items() if voice in voices}
