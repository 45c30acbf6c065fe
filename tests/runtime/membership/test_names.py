"""Processes with names: who lost its name ends for good, and who comes back has the folder of its name."""

import asyncio
import json
import logging
import re
import shutil
import socket
from pathlib import Path

import msgspec
import pytest

from keylanes import FencedError, State
from keylanes.runtime.app_runs import AppRuns
from keylanes.runtime.logs.own_ledger import Expelled
from keylanes.runtime.logs.reader import signals_topic
from keylanes.runtime.member import AppRun
from keylanes.runtime.processes.child import CAUSE, COMES_BACK, Sibling

from ...stage.engine import OUT, SOURCE, Engine, application
from .group import BEAT_S, Group, coordinators, held, in_group, passing_on, start, until

# --- a name that another process has ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hears", "exits", "lives_max"), [(True, False, 1), (True, True, 1), (False, False, 2), (False, True, 1)]
)
@in_group(partitions=2)
async def test_who_was_superseded_ends_for_good(group: Group, lives_max: int, *, hears: bool, exits: bool) -> None:
    """It was not heard for two beats, and another process of its name took its place. If it reads that it was expelled
    it does not ask to join again. If it comes back when that is forgotten, it asks once at most, and is refused. So
    they do not oust each other without end, and the other one goes on.
    """
    lives = list[AppRun]()
    old = group.process("a", passing_on(exit_on_expulsion=exits))
    life = AppRuns(old.make, lives.append, old.settings())
    living = asyncio.get_running_loop().create_task(life.run())
    await until(lambda: held(old) == {0, 1})
    birth, faults = old.member.identity.birth, group.cluster.faults
    if hears:
        faults.cut_from.add((birth, signals_topic("app")))
    else:
        faults.cut.add(birth)
    new = group.process("again", passing_on())
    new.settings = lambda: msgspec.structs.replace(new.app.settings, group_instance_id="a")  # type: ignore[method-assign]  # the other's name
    await new.start()
    group.send(10)
    await group.done()
    faults.heal()
    with pytest.raises(FencedError, match=r"\(superseded\)" if hears else "was expelled|name in use") as ended:
        await living
    assert (ended.value.exit_code, len(lives)) == (3, lives_max)
    await asyncio.sleep(30 * BEAT_S)
    group.send(10)
    await group.done()
    assert (held(new), new.task.done()) == ({0, 1}, False)


@pytest.mark.parametrize(
    ("error", "comes_back"),
    [
        (Expelled("app", 1, "silent"), True),
        (Expelled("app", 1, "superseded"), False),
        (Expelled("app", 1, "left"), False),
        (FencedError("group_instance_id='a' is the name of incarnation 1"), False),
    ],
    ids=["silent", "superseded", "left", "refused"],
)
def test_a_parent_hears_who_may_be_started_again(error: FencedError, comes_back: bool) -> None:
    """And by which error it ended. The exit code is 3 in each case."""
    theirs, ours = socket.socketpair()
    with ours:
        with theirs:
            Sibling(1, 2, theirs).tell_end(error)
        said = ours.makefile().read()
    assert said == (f"{COMES_BACK}\n" if comes_back else "") + f"{CAUSE}{json.dumps(str(error))}\n"


# --- the folder of a name ---------------------------------------------------------------------------------------------


def on_disk(group: Group, name: str, folder: Path, number: int = 0) -> Engine:
    """A process that counts the records of each key, with its copies in a subfolder of a real state folder. ``number``:
    another one of the same name.
    """
    app = application(
        commit_interval_ms=100, state_write_interval_ms=100, state_folder=str(folder), group_instance_id=name
    )

    @app.handler(SOURCE, to=OUT, parallelising_factor=4)
    async def count(value: bytes, seen: State[int]) -> bytes:
        seen.put((seen.get() or 0) + 1)
        return value

    engine = group.process(f"{name}-{number}", app)
    engine.open_copies = None
    return engine


def counted(*engines: Engine) -> int:
    """How many records they have seen, by their state."""
    total = 0
    for engine in engines:
        for partition in held(engine):
            view = engine.view("seen")
            total += sum(view.get(b"k%d" % n, partition=partition) or 0 for n in range(50))
    return total


def restored(caplog: pytest.LogCaptureFixture) -> int:
    """How many records of changelogs were read."""
    return sum(int(number) for number in re.findall(r"restored the state of .*: (\d+) records", caplog.text))


@in_group(partitions=2)
async def test_who_was_killed_reads_only_the_tail_into_the_copies_of_its_name(
    group: Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the folder of its name lacks, and not the whole changelog."""
    caplog.set_level(logging.DEBUG, "keylanes")
    engine = on_disk(group, "a", tmp_path / "running")
    await engine.start()
    group.send(400)
    await group.done()
    await asyncio.sleep(2)
    shutil.copytree(tmp_path / "running", tmp_path / "left")  # as a process that is killed now leaves it
    group.send(10)
    await group.done()
    await engine.crash()
    caplog.clear()
    again = on_disk(group, "a", tmp_path / "left", 1)
    await again.start()
    await until(lambda: held(again) == {0, 1})
    assert 10 <= restored(caplog) <= 40
    assert counted(again) == 410


@in_group(partitions=2)
async def test_who_coordinated_and_is_back_under_its_name_waits_for_nobody(group: Group, tmp_path: Path) -> None:
    """Its predecessor is silent since it was heard last, not only since its successor listens; and it is known whose
    the ranges are, so the first plan waits for nobody else who may start.
    """
    first, second = (on_disk(group, name, tmp_path / name) for name in "ab")
    await start(first, second)
    (lost,) = coordinators(first, second)
    before, own = lost.member.own_ledger.incarnation, held(lost)
    await lost.crash()
    await asyncio.sleep(2 * BEAT_S)
    started_s = asyncio.get_running_loop().time()
    await lost.start()
    await until(lambda: held(lost) == own)
    assert asyncio.get_running_loop().time() - started_s < BEAT_S
    assert coordinators(first, second) == [lost]
    assert lost.member.own_ledger.ledger.control.is_expelled(before)


@in_group(partitions=2)
async def test_processes_that_swap_their_names_have_each_other_s_folders(group: Group, tmp_path: Path) -> None:
    """As long as a process has a name, and its folder, nobody else gets it. Then it works, and the state is right."""
    before = [on_disk(group, name, tmp_path) for name in "ab"]
    await start(*before)
    group.send(100)
    await group.done()
    await before[0].stop()
    after = [on_disk(group, name, tmp_path, 1) for name in "ba"]
    with pytest.raises(FencedError, match="which has the name 'b', too"):
        await after[0].start()
    await before[1].stop()
    await start(*after)
    group.send(100)
    await group.done()
    assert counted(*after) == 200
    for engine in after:
        await engine.stop()
    assert sorted(path.name for path in (tmp_path / "app").iterdir() if path.is_dir()) == ["a", "b"]
