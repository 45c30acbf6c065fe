"""Asking until the broker answers, and closing within a limit."""

import asyncio
import logging

import pytest

from keylanes.brokers.patience import PATIENCE_STEP_MS, Patience, ask_until_answered, close_within
from keylanes.brokers.protocol import BrokerError, BrokerTimeout, ProducerFenced

from ..stage.virtual import virtual
from ..tiers.marks import tier

pytestmark = tier("check")

LIMIT_MS = 5_000


class Asked:
    """Answers its tries one after the other: an error is raised, the last answer is given again and again."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.tries = 0

    async def __call__(self) -> object:
        """One try."""
        self.tries += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def late() -> BrokerTimeout:
    """A broker that does not answer."""
    return BrokerTimeout("no answer")


def now_s() -> float:
    """The loop's time."""
    return asyncio.get_running_loop().time()


@virtual
async def test_it_asks_again_until_there_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The answer comes out; one line tells of it however often was asked, and there is a step between two tries."""
    ask, begun_s = Asked(late(), late(), late(), "yes"), now_s()
    assert await ask_until_answered(ask, Patience(LIMIT_MS, "asking")) == "yes"
    assert now_s() - begun_s == pytest.approx(3 * PATIENCE_STEP_MS / 1000)
    assert ask.tries == 4
    assert caplog.messages == [f"asking: the broker does not answer, trying for {LIMIT_MS} ms: no answer"]


@virtual
async def test_it_ends_with_the_patience() -> None:
    """The last error is raised at the first try behind the limit."""
    begun_s = now_s()
    with pytest.raises(BrokerTimeout, match="no answer"):
        await ask_until_answered(Asked(late()), Patience(LIMIT_MS, "asking"))
    assert now_s() - begun_s == pytest.approx(LIMIT_MS / 1000, abs=PATIENCE_STEP_MS / 1000)


@virtual
async def test_an_answer_begins_the_patience_anew() -> None:
    """Who asks twice with one patience waits for the whole limit each time."""
    patience = Patience(LIMIT_MS, "asking")
    for _ in range(3):
        tries = [late() for _ in range(LIMIT_MS // PATIENCE_STEP_MS)]
        assert await ask_until_answered(Asked(*tries, "yes"), patience) == "yes"


@pytest.mark.parametrize("error", [ProducerFenced("fenced"), BrokerError("refused"), ValueError("wrong")])
@virtual
async def test_other_errors_are_raised_at_once(error: Exception) -> None:
    """An answer that says no is an answer."""
    ask = Asked(error)
    with pytest.raises(type(error), match=str(error)):
        await ask_until_answered(ask, Patience(LIMIT_MS, "asking"))
    assert ask.tries == 1


@virtual
async def test_a_cancelled_question_is_not_asked_again() -> None:
    """Between two tries, as in one."""
    ask = Asked(late())
    asking = asyncio.create_task(ask_until_answered(ask, Patience(LIMIT_MS, "asking")))
    await asyncio.sleep(PATIENCE_STEP_MS / 2000)
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()
    assert ask.tries == 1


@virtual
async def test_what_goes_wrong_in_a_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised; the line is as loud as was asked for."""
    caplog.set_level(logging.DEBUG, "keylanes")
    await close_within(LIMIT_MS, Asked(OSError("gone"))(), "closing a reader")
    await close_within(LIMIT_MS, Asked(None)(), "closing a reader")
    await close_within(LIMIT_MS, Asked(late())(), "closing", excused=BrokerError, level=logging.WARNING)
    assert [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "keylanes"] == [
        ("DEBUG", "closing a reader: gone"),
        ("WARNING", "closing: no answer"),
    ]


@virtual
async def test_a_close_ends_with_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    """One that hangs is given up, also where only errors of a broker are excused."""
    hangs, begun_s = asyncio.Event(), now_s()
    await close_within(LIMIT_MS, hangs.wait(), "closing", excused=BrokerError, level=logging.WARNING)
    assert now_s() - begun_s == pytest.approx(LIMIT_MS / 1000)
    assert caplog.messages == [f"closing: closing took longer than {LIMIT_MS} ms"]


@virtual
async def test_an_error_of_another_kind_is_raised() -> None:
    """A broken invariant of a close is not an unreachable broker."""
    with pytest.raises(ValueError, match="wrong"):
        await close_within(LIMIT_MS, Asked(ValueError("wrong"))(), "closing", excused=(BrokerError, OSError))


@virtual
async def test_a_cancellation_passes_through_a_close() -> None:
    """Also where all errors are excused."""
    closing = asyncio.create_task(close_within(LIMIT_MS, asyncio.Event().wait(), "closing"))
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
