"""Asking until the broker answers, and closing within a limit."""

import asyncio
import logging

import pytest

from keylanes.brokers.protocol import BrokerError, BrokerTimeout, ProducerFenced
from keylanes.brokers.simulated.virtual_loop import run_virtual
from keylanes.brokers.waiting import PATIENCE_STEP_MS, Patience, closed_within, until_answered

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


def test_it_asks_again_until_there_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The answer comes out; one line tells of it however often was asked, and there is a step between two tries."""
    ask = Asked(late(), late(), late(), "yes")

    async def main() -> float:
        begun = asyncio.get_running_loop().time()
        assert await until_answered(ask, Patience(LIMIT_MS, "asking")) == "yes"
        return asyncio.get_running_loop().time() - begun

    assert run_virtual(main()) == pytest.approx(3 * PATIENCE_STEP_MS / 1000)
    assert ask.tries == 4
    assert caplog.messages == [f"asking: the broker does not answer, trying for {LIMIT_MS} ms: no answer"]


def test_it_ends_with_the_patience() -> None:
    """The last error is raised at the first try behind the limit."""
    ask = Asked(late())

    async def main() -> float:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(BrokerTimeout, match="no answer"):
            await until_answered(ask, Patience(LIMIT_MS, "asking"))
        return asyncio.get_running_loop().time() - begun

    assert run_virtual(main()) == pytest.approx(LIMIT_MS / 1000, abs=PATIENCE_STEP_MS / 1000)


def test_an_answer_begins_the_patience_anew() -> None:
    """Who asks twice with one patience waits for the whole limit each time."""

    async def main() -> None:
        patience = Patience(LIMIT_MS, "asking")
        for _ in range(3):
            tries = [late() for _ in range(LIMIT_MS // PATIENCE_STEP_MS)]
            assert await until_answered(Asked(*tries, "yes"), patience) == "yes"

    run_virtual(main())


@pytest.mark.parametrize("error", [ProducerFenced("fenced"), BrokerError("refused"), ValueError("wrong")])
def test_other_errors_are_raised_at_once(error: Exception) -> None:
    """An answer that says no is an answer."""
    ask = Asked(error)

    async def main() -> None:
        await until_answered(ask, Patience(LIMIT_MS, "asking"))

    with pytest.raises(type(error), match=str(error)):
        run_virtual(main())
    assert ask.tries == 1


def test_a_cancelled_question_is_not_asked_again() -> None:
    """Between two tries, as in one."""
    ask = Asked(late())

    async def main() -> None:
        asking = asyncio.create_task(until_answered(ask, Patience(LIMIT_MS, "asking")))
        await asyncio.sleep(PATIENCE_STEP_MS / 2000)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()

    run_virtual(main())
    assert ask.tries == 1


def test_what_goes_wrong_in_a_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised; the line is as loud as was asked for."""
    caplog.set_level(logging.DEBUG, "keylanes")

    async def main() -> None:
        await closed_within(LIMIT_MS, Asked(OSError("gone"))(), "closing a reader")
        await closed_within(LIMIT_MS, Asked(None)(), "closing a reader")
        await closed_within(LIMIT_MS, Asked(late())(), "closing", excused=BrokerError, level=logging.WARNING)

    run_virtual(main())
    assert [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "keylanes"] == [
        ("DEBUG", "closing a reader: gone"),
        ("WARNING", "closing: no answer"),
    ]


def test_a_close_ends_with_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    """One that hangs is given up, also where only errors of a broker are excused."""

    async def main() -> float:
        begun = asyncio.get_running_loop().time()
        hangs = asyncio.Event()
        await closed_within(LIMIT_MS, hangs.wait(), "closing", excused=BrokerError, level=logging.WARNING)
        return asyncio.get_running_loop().time() - begun

    assert run_virtual(main()) == pytest.approx(LIMIT_MS / 1000)
    assert caplog.messages == [f"closing: closing took longer than {LIMIT_MS} ms"]


def test_an_error_of_another_kind_is_raised() -> None:
    """A broken invariant of a close is not an unreachable broker."""

    async def main() -> None:
        await closed_within(LIMIT_MS, Asked(ValueError("wrong"))(), "closing", excused=(BrokerError, OSError))

    with pytest.raises(ValueError, match="wrong"):
        run_virtual(main())


def test_a_cancellation_passes_through_a_close() -> None:
    """Also where all errors are excused."""

    async def main() -> None:
        closing = asyncio.create_task(closed_within(LIMIT_MS, asyncio.Event().wait(), "closing"))
        await asyncio.sleep(0.01)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()

    run_virtual(main())
