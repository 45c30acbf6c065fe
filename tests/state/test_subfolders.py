"""Which subfolder of a state folder a process has: names and numbers, restarts, several at once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keylanes.state.copies import open_copies
from keylanes.state.rocks import RocksError, RocksInUse, open_rocks
from keylanes.state.subfolders import Claimed, claim, folder_of, subfolders_in

from ..tiers.marks import tier

pytestmark = tier("check")

CLAIM = """
import sys
from keylanes.state.rocks import RocksError
from keylanes.state.subfolders import claim

for line in sys.stdin:
    parent, app, *name = line.split()
    try:
        claimed = claim(parent, app, *name)
    except RocksError as error:
        print("refused:", error, flush=True)
    else:
        print(claimed.folder.relative_to(parent), flush=True)
"""


class Elsewhere:
    """A process that claims what it is told to and keeps it as long as it lives."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", CLAIM]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words: object) -> None:
        """Let it claim, without waiting for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """What it has, from the state folder on, or why it was refused."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def claims(self, *words: object) -> str:
        """Both."""
        self.ask(*words)
        return self.answer()

    def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def processes(number: int) -> Iterator[list[Elsewhere]]:
    """So many, which end with this."""
    made = [Elsewhere() for _ in range(number)]
    try:
        yield made
    finally:
        for one in made:
            one.kill()


def has(claimed: Claimed) -> str:
    """Which subfolder was claimed; it is let go of."""
    claimed.lock.close()
    return claimed.folder.name


# Names and numbers


def test_a_process_without_a_name_has_the_lowest_number_that_is_free(tmp_path: Path) -> None:
    """Those that exist come first, by number; then the first that does not. The application's folder is around it."""
    first, second, third = (claim(tmp_path / "state", "shop") for _ in range(3))
    assert [one.folder for one in (first, second, third)] == [tmp_path / "state" / "shop" / str(n) for n in range(3)]
    shutil.rmtree(second.folder)
    second.lock.close()
    third.lock.close()
    assert has(claim(tmp_path / "state", "shop")) == "2"
    held = claim(tmp_path / "state", "shop"), claim(tmp_path / "state", "shop")
    assert [has(one) for one in held] == ["2", "1"]
    first.lock.close()
    assert has(claim(tmp_path / "state", "shop")) == "0"


def test_numbers_have_their_order_as_numbers(tmp_path: Path) -> None:
    """The tenth comes behind the second."""
    for name in ("10", "2", "03", "x", "1.5"):
        (tmp_path / "shop" / name).mkdir(parents=True)
    (tmp_path / "KEYLANES").write_text("keylanes subfolders format 1\n")
    held = [claim(tmp_path, "shop") for _ in range(4)]
    assert [has(one) for one in held] == ["2", "10", "0", "1"]


def test_a_name_has_its_own_subfolder(tmp_path: Path) -> None:
    """It is found again by its name, whoever else is there; a second process with the name is refused in words."""
    named, other = claim(tmp_path, "shop", "a"), claim(tmp_path, "shop")
    assert (named.folder.name, other.folder.name) == ("a", "0")
    says = "shop/a is in use by this process, which has the name 'a', too: give each process of"
    with pytest.raises(RocksInUse, match=says) as refused:
        claim(tmp_path, "shop", "a")
    assert refused.value.pid == os.getpid()
    named.lock.close()
    assert has(claim(tmp_path, "shop", "a")) == "a"
    other.lock.close()


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("shop-1.eu_west", "shop-1.eu_west"),
        ("0", "=0"),
        ("17", "=17"),
        ("1a", "=1a"),
        (".hidden", "=.hidden"),
        (".lock", "=.lock"),
        ("..", "=.."),
        ("-rf", "=-rf"),
        ("", "="),
        ("KEYLANES", "=KEYLANES"),
        ("Keylanes.new", "=Keylanes.new"),
        ("KEYLANES-demo", "KEYLANES-demo"),
        ("a" * 249, "a" * 249),
        ("0" * 249, "=" + "0" * 249),
    ],
)
def test_no_name_is_taken_for_something_else(name: str, folder: str) -> None:
    """Not for a number, a path, an option or a file of ours; and it fits into what a file system takes."""
    assert folder_of(name) == folder
    assert len(folder) < 255


def test_a_name_of_digits_and_a_number_are_two_subfolders(tmp_path: Path) -> None:
    """Processes named 0 and 1 and one without a name run side by side, and find their own again."""
    for _ in range(2):
        held = [claim(tmp_path, "shop", "0"), claim(tmp_path, "shop"), claim(tmp_path, "shop", "1")]
        assert [has(one) for one in held] == ["=0", "0", "=1"]
    held = [claim(tmp_path, app) for app in ("..", "", "KEYLANES")]
    assert [one.folder.parent for one in held] == [tmp_path / "=..", tmp_path / "=", tmp_path / "=KEYLANES"]


def test_applications_share_a_state_folder(tmp_path: Path) -> None:
    """Each has numbers of its own, so that a restart finds its copies whatever the others do."""
    shop, other = claim(tmp_path, "shop"), claim(tmp_path, "other")
    assert [one.folder for one in (shop, other)] == [tmp_path / "shop" / "0", tmp_path / "other" / "0"]
    for one in (shop, other):
        one.lock.close()


# Whose folder it is


def test_subfolders_are_private(tmp_path: Path) -> None:
    """State folder, application's folder and subfolder are closed to others, also when they were open before."""
    (tmp_path / "state" / "shop" / "0").mkdir(parents=True)
    shutil.rmtree(tmp_path / "state" / "shop")
    (tmp_path / "state").chmod(0o755)
    claimed = claim(tmp_path / "state", "shop")
    for folder in (tmp_path / "state", tmp_path / "state" / "shop", claimed.folder):
        assert folder.stat().st_mode & 0o777 == 0o700
    open_copies(claimed.folder, app="shop", birth="b").close()
    assert (claimed.folder / "KEYLANES").read_text() == "keylanes state format 1\n"
    assert (tmp_path / "state" / "KEYLANES").read_text() == "keylanes subfolders format 1\n"
    claimed.lock.close()


def test_a_folder_that_is_none_of_ours_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """A stranger's, topics, one with copies right in it, a newer format, a file, a link."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "precious").touch()
    open_rocks(tmp_path / "topics", "topics", 1).close()
    open_copies(tmp_path / "copies", app="shop", birth="b").close()
    open_rocks(tmp_path / "newer", "subfolders", 2).close()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "foreign")
    for name, says in (
        ("foreign", "foreign is not empty and was not made by keylanes"),
        ("topics", "topics holds keylanes topics, not subfolders"),
        ("copies", "copies holds keylanes state, not subfolders"),
        ("newer", "newer has format 2; this version of keylanes reads format 1"),
        ("file", "file can't be used: "),
        ("link", "link is a symbolic link; name the folder itself"),
    ):
        before = sorted(os.listdir(tmp_path / name)) if name != "file" else []
        with pytest.raises(RocksError, match=says):
            claim(tmp_path / name, "shop")
        assert before == (sorted(os.listdir(tmp_path / name)) if name != "file" else [])


def test_what_a_process_left_that_died_at_once_is_no_strangers(tmp_path: Path) -> None:
    """A folder with nothing but a lock, or a marker that was not yet in its place."""
    (tmp_path / ".lock").touch()
    (tmp_path / "KEYLANES.newx7").touch()
    assert has(claim(tmp_path, "shop")) == "0"


# Several at once


def test_processes_that_race_have_different_subfolders(tmp_path: Path) -> None:
    """They ask at the same moment, on a folder that is not there yet, and on one with two numbers of before."""
    for held in [claim(tmp_path / "old", "shop") for _ in range(2)]:
        held.lock.close()
    with processes(4) as some:
        for state in (tmp_path / "new", tmp_path / "old"):
            for one in some:
                one.ask(state, "shop")
            assert sorted(one.answer() for one in some) == [f"shop/{number}" for number in range(4)]


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    """By number and by name; the next one finds what it left."""
    with processes(3) as (first, second, third):
        assert [first.claims(tmp_path, "shop"), first.claims(tmp_path, "shop", "a")] == ["shop/0", "shop/a"]
        assert second.claims(tmp_path, "shop") == "shop/1"
        refused = second.claims(tmp_path, "shop", "a")
        assert refused.startswith(f"refused: {tmp_path}/shop/a is in use by another process (pid {first.process.pid})")
        first.kill()
        assert [third.claims(tmp_path, "shop"), third.claims(tmp_path, "shop", "a")] == ["shop/0", "shop/a"]


def test_a_forked_child_does_not_keep_what_its_parent_had(tmp_path: Path) -> None:
    """A process that dies and leaves children behind lets go all the same."""
    code = (
        "import os, sys\n"
        "from keylanes.state.subfolders import claim\n"
        "claimed = claim(sys.argv[1], 'shop')\n"
        "if os.fork() == 0:\n"
        "    print('child', flush=True)\n"
        "    os.read(0, 1)\n"
        "    os._exit(0)\n"
        "os.read(0, 1)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"child\n"
        held = claim(tmp_path, "shop")
        assert has(held) == "1", "the parent lives"
        parent.kill()
        parent.wait()
        assert has(claim(tmp_path, "shop")) == "0"
        parent.communicate()  # which ends the child's wait


# Those who read


def test_readers_are_told_the_subfolders(tmp_path: Path) -> None:
    """Of all applications or of one, numbers before names; not those without copies yet, and none of another folder."""
    for app, name in (("shop", None), ("shop", "b"), ("shop", "7"), ("other", None), ("young", None)):
        claimed = claim(tmp_path / "state", app, name)
        if app != "young":
            open_copies(claimed.folder, app=app, birth="b").close()
        claimed.lock.close()
    state = tmp_path / "state"
    shop = [state / "shop" / name for name in ("0", "=7", "b")]
    assert subfolders_in(state) == [state / "other" / "0", *shop]
    assert subfolders_in(state / "shop") == shop
    for folder in (state / "shop" / "0", tmp_path, tmp_path / "none"):
        assert subfolders_in(folder) is None
