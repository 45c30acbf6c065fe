"""The command line: what it takes, what it says, and the exit codes it passes on."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keylanes import IS_COMPILED, App, DeadLetter, __version__
from keylanes import errors as all_errors
from keylanes.brokers.embedded import EmbeddedBroker
from keylanes.brokers.protocol import Outgoing, TopicPartition, TopicSpec

from ..stage.appending import append
from ..tiers.marks import tier

APPLICATION = """
    import sys
    from keylanes import App

    app = App("shop", broker="embedded:data")
    bare = App("bare", broker="kafka://localhost:9092")
    other = "no app"

    @app.handler("orders", to="parcels", sends=("audit",))
    async def pack(order: dict) -> dict:
        print("handled", file=sys.stderr, flush=True)
        return {"packed": order["item"]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with an application in it."""
    (tmp_path / "shop.py").write_text(textwrap.dedent(APPLICATION))
    return tmp_path


def keylanes(
    folder: Path, *arguments: str, missing: str = "", **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run the command in a folder, as if the package ``missing`` were not installed."""
    code = "import sys; " + (f"sys.modules[{missing!r}] = None; " if missing else "")
    code += "from keylanes.cli.entry import main; sys.exit(main())"
    plain = {
        name: value for name, value in os.environ.items() if name not in ("BROKER", "MEMBERS", "PROCESSES", "RESET")
    }
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=folder, env={**plain, "NO_COLOR": "1", "COLUMNS": "200", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """The command while it runs; killed at the end if it has not ended by itself."""
    code = "from keylanes.cli.entry import main; import sys; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def on_broker(folder: Path, orders: list[bytes] | None) -> list[Any]:
    """Write orders to the embedded broker of a folder, or with None read the parcels."""

    async def work() -> list[Any]:
        broker = EmbeddedBroker(folder / "data")
        await broker.open()
        try:
            if orders is not None:
                await broker.create([TopicSpec("orders", 1, {})])
                await append(broker, [Outgoing("orders", 0, b"k", order) for order in orders])
                return []
            reader = await broker.reader({TopicPartition("parcels", 0): 0})
            batches = await reader.fetch([TopicPartition("parcels", 0)], records_max=100, wait_ms=0)
            return [msgspec.json.decode(record.value or b"") for batch in batches for record in batch.records]
        finally:
            await broker.close()

    return asyncio.run(work())


def test_the_commands_are_named(folder: Path) -> None:
    """The help names every command, and no command at all is wrong usage that shows it too."""
    answer = keylanes(folder, "--help")
    assert answer.returncode == 0
    assert all(command in answer.stdout for command in ("run", "audit", "broker", "topics", "state", "group"))
    assert keylanes(folder).returncode == 2


def test_the_version_is_told(folder: Path) -> None:
    """With what makes it fast or slow."""
    answer = keylanes(folder, "--version")
    assert answer.returncode == 0
    assert answer.stdout == f"keylanes {__version__}, {'compiled' if IS_COMPILED else 'interpreted'}\n"


@pytest.mark.parametrize(
    "command",
    [
        *("run", "audit", "broker", "topics", "state get", "state scan"),
        *("group", "group show", "group history", "group move", "group expel"),
    ],
)
def test_the_help_of_each_command_names_its_exit_codes(folder: Path, command: str) -> None:
    """Those of errors.py with the same numbers, in words."""
    answer = keylanes(folder, *command.split(), "--help")
    assert answer.returncode == 0
    said = " ".join(answer.stdout.split())
    assert re.search(r"Exit codes: 0 [a-z]+.*; 2 wrong usage", said)
    if command == "run":
        errors = [kind for kind in vars(all_errors).values() if isinstance(getattr(kind, "exit_code", None), int)]
        assert {f" {kind.exit_code} " for kind in errors} <= set(re.findall(r" \d+ ", said.partition("Exit codes:")[2]))


@pytest.mark.parametrize("arguments", [("bogus",), ("run",), ("run", "shop:app", "--until", "noon"), ("topics",)])
def test_wrong_usage_is_exit_code_2(folder: Path, arguments: tuple[str, ...]) -> None:
    """Unknown commands, missing arguments and values that are not allowed are told on standard error."""
    answer = keylanes(folder, *arguments)
    assert answer.returncode == 2
    assert answer.stderr
    assert answer.stdout == ""


def test_run_until_level_does_what_is_there_and_ends(folder: Path) -> None:
    """An application of the working directory is run to the end of its topics; JSON statistics come at the end."""
    on_broker(folder, [b'{"item": "tea"}', b'{"item": "mug"}'])
    answer = keylanes(folder, "run", "shop:app", "--until", "level", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["records_done"] == 2
    assert on_broker(folder, None) == [{"packed": "tea"}, {"packed": "mug"}]


def test_run_stops_in_order_when_told(folder: Path) -> None:
    """Without --until it goes on; after SIGTERM it commits what is done and ends with 0."""
    on_broker(folder, [b'{"item": "tea"}'])
    with started(folder, "run", "shop:app") as process:
        assert process.stderr is not None
        said = [line for line in iter(process.stderr.readline, "handled\n") if line]
        process.send_signal(signal.SIGTERM)
        said += process.stderr.readlines()
        assert process.wait() == 0, said
    assert any("SIGTERM: stopping in order" in line for line in said)
    assert on_broker(folder, None) == [{"packed": "tea"}]


@pytest.mark.parametrize(
    ("target", "code", "text"),
    [
        ("shop", 2, "module:app"),
        ("nothing:app", 2, "no module 'nothing'"),
        ("shop:other", 2, "no keylanes.App"),
        ("shop:missing", 2, "no keylanes.App"),
        ("shop:bare", 2, "has no handler"),
        ("shop:app", 7, "'orders'"),
    ],
)
def test_what_can_not_be_run_is_told_in_words(folder: Path, target: str, code: int, text: str) -> None:
    """A wrong name, an application without handlers, a missing source topic: a sentence and the code of errors.py."""
    answer = keylanes(folder, "run", target, "--until", "level")
    assert answer.returncode == code, answer.stderr
    assert text in answer.stderr
    assert "Traceback" not in answer.stderr


SECURED = """
    from keylanes import App, Settings

    app = App("secured", settings=Settings.from_env())

    @app.handler("orders")
    async def pack(order: bytes) -> None: ...
"""


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"KEYLANES_SSL_CAFILE": "/nowhere/ca.pem", "KEYLANES_SECURITY_PROTOCOL": "SSL"}, "'/nowhere/ca.pem'"),
        ({"KEYLANES_SECURITY_PROTOCOL": "SASL_PLAINTEXT"}, "needs a user and a password"),
        ({"KEYLANES_BROKER": "kafka://localhost"}, "which has no port"),
        ({"KEYLANES_BROKER": "kafka://localhost:abc"}, "'abc'"),
        ({"KEYLANES_BROKER": ""}, "set KEYLANES_BROKER"),
        ({"KEYLANES_THREADS": "many"}, "'many'"),
    ],
)
def test_wrong_settings_are_exit_code_2(folder: Path, environment: dict[str, str], text: str) -> None:
    """Whether they are noticed when the module is imported or when it connects: one sentence, no traceback."""
    (folder / "secured.py").write_text(textwrap.dedent(SECURED))
    answer = keylanes(folder, "run", "secured:app", **{"KEYLANES_BROKER": "kafka://localhost:1", **environment})
    assert answer.returncode == 2, answer.stderr
    assert text in answer.stderr
    assert "Traceback" not in answer.stderr


def test_an_error_inside_the_application_is_shown_whole(folder: Path) -> None:
    """A module that is there but fails to import what it needs is not called missing: its own error is shown."""
    (folder / "broken.py").write_text("import surely_not_installed\n")
    answer = keylanes(folder, "run", "broken:app")
    assert answer.returncode == 1
    assert "ModuleNotFoundError: No module named 'surely_not_installed'" in answer.stderr


def test_log_levels_are_checked(folder: Path) -> None:
    """A log level that does not exist is named with those that do."""
    answer = keylanes(folder, "run", "shop:app", "--log-level", "loud")
    assert answer.returncode == 2
    assert "DEBUG, INFO, WARNING, ERROR" in answer.stderr


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [("typer", ("--help",), "cli"), ("pyspark", ("audit", "--broker", "embedded:data", "--app", "shop"), "spark")],
)
def test_a_missing_extra_is_named(folder: Path, missing: str, arguments: tuple[str, ...], extra: str) -> None:
    """Where a package is missing, the command says which extra brings it."""
    (folder / "data").mkdir()
    answer = keylanes(folder, *arguments, missing=missing)
    assert answer.returncode == 2, answer.stderr
    assert f"keylanes[{extra}]" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_topics_prints_the_commands_that_create_the_logs(folder: Path) -> None:
    """By application or by name, as lines or as JSON; the address stands in them where the application knows it."""
    lines = keylanes(folder, "topics", "shop:bare", "--partitions", "6").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["kafka-topics.sh"] * 3
    assert all("--bootstrap-server localhost:9092 " in line for line in lines)
    assert ["retention.ms=-1" in line for line in lines] == [True, True, False], "signals may expire"
    assert "--topic bare.offsets --partitions 6" in lines[1]
    assert "--topic bare.signals --partitions 5" in lines[2]
    named = json.loads(keylanes(folder, "topics", "--app", "shop", "--partitions", "2", "--json").stdout)
    assert "--topic shop.offsets --partitions 2" in named[1]
    assert "replication-factor" not in named[1], "the cluster's default"
    kept = keylanes(folder, "topics", "--app", "shop", "--partitions", "2", "--replication-factor", "3").stdout
    assert "--topic shop.offsets --partitions 2 --replication-factor 3 --config" in kept.splitlines()[1]


STATEFUL = """
    from keylanes import App
    from keylanes.runtime.handlers.stores import State

    app = App("sums", broker="kafka://localhost:9092")

    @app.handler("wide")
    async def one(value: int, sum: State[int]) -> None: ...

    @app.handler("narrow")
    async def two(value: int, count: State[int]) -> None: ...

    @app.handler("plain")
    async def three(value: int) -> None: ...
"""


def test_topics_prints_the_commands_that_create_changelogs(folder: Path) -> None:
    """One for each source topic with state, with as many partitions as it has: those of the widest, or as told."""
    (folder / "sums.py").write_text(textwrap.dedent(STATEFUL))
    lines = keylanes(folder, "topics", "sums:app", "--partitions", "6", "--state", "narrow:2").stdout.splitlines()
    assert len(lines) == 5
    assert "--topic sums.changelog.narrow --partitions 2 --config cleanup.policy=compact " in lines[3]
    assert "--topic sums.changelog.wide --partitions 6 --config cleanup.policy=compact " in lines[4]
    named = keylanes(folder, "topics", "--app", "x", "--partitions", "6", "--state", "src:3").stdout.splitlines()
    assert "--topic x.changelog.src --partitions 3 " in named[3]
    for wrong in (":3", "src:7", "src:two"):
        answer = keylanes(folder, "topics", "--app", "x", "--partitions", "6", "--state", wrong)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert f"seen '{wrong}'; allowed is TOPIC:N with N from 1 to --partitions 6" in answer.stderr


def test_topics_creates_the_topics_of_an_application(folder: Path) -> None:
    """Sources, outputs and logs, once; what is there stays. Then the application runs without ``create_topics``."""
    answer = keylanes(folder, "topics", "shop:app", "--partitions", "2", "--create")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == [
        "orders: created, 2 partitions",
        "audit: created, 2 partitions",
        "parcels: created, 2 partitions",
        "shop.control: created, 1 partition",
        "shop.offsets: created, 2 partitions",
        "shop.signals: created, 5 partitions",
    ]
    again = json.loads(keylanes(folder, "topics", "shop:app", "--partitions", "4", "--create", "--json").stdout)
    assert again[0] == "orders: was there, 2 partitions"
    ran = keylanes(folder, "run", "shop:app", "--until", "level", KEYLANES_CREATE_TOPICS="false")
    assert ran.returncode == 0, ran.stderr
    wrong = keylanes(folder, "topics", "--app", "shop", "--partitions", "2", "--create")
    assert wrong.returncode == 2
    assert "topics --create needs MODULE:APP" in wrong.stderr


def test_topics_are_not_created_while_an_application_holds_the_folder(folder: Path) -> None:
    """The message says that, and what to do."""

    async def hold() -> "subprocess.CompletedProcess[str]":
        broker = EmbeddedBroker(folder / "data")
        await broker.open()
        try:
            return await asyncio.to_thread(keylanes, folder, "topics", "shop:app", "--partitions", "2", "--create")
        finally:
            await broker.close()

    answer = asyncio.run(hold())
    assert answer.returncode == 2
    assert f"is in use by another process (pid {os.getpid()})" in answer.stderr
    assert "stop the application, create the topics, and start it again" in answer.stderr


def test_audit_passes_its_arguments_on(folder: Path) -> None:
    """The audit's own parser answers, also for --help, and its exit code is passed on."""
    answer = keylanes(folder, "audit", "--help")
    assert answer.returncode == 0, answer.stderr
    assert "--client-settings" in answer.stdout
    assert keylanes(folder, "audit", "--app", "shop").returncode == 2


def test_an_application_says_what_its_audit_needs() -> None:
    """Name, broker and declared topics come from the application; given a Broker object, it can't say where."""
    from keylanes.cli.audit import audit_arguments
    from keylanes.errors import SettingsError

    app = App("shop", broker="embedded:data")

    @app.handler("orders", on_failure=DeadLetter("orders.dead"))
    async def pack(order: bytes) -> None:
        """Nothing comes of it."""

    named = ["--app", "shop", "--broker", "embedded:data"]
    assert audit_arguments(app) == [*named, "--dead-letters", "orders.dead"], "without outputs every topic is searched"

    @app.handler("returns", to="restocked", sends=("counted",))
    async def restock(order: bytes) -> bytes:
        """Something comes of it."""
        return order

    outputs = ["--outputs", "counted", "--outputs", "restocked", "--dead-letters", "orders.dead", "--or-elsewhere"]
    assert audit_arguments(app) == [*named, *outputs]
    app.accepts = App("shop", accept_moved_keys=("orders",)).accepts
    assert audit_arguments(app)[-3:-1] == ["--accept-moved-keys", "orders"]
    with pytest.raises(SettingsError, match="--broker"):
        audit_arguments(App("shop", broker=EmbeddedBroker("data")))


@pytest.mark.broker
@tier("proof", "starting-brokers")
def test_broker_serves_until_told_to_stop(tmp_path: Path) -> None:
    """A real Kafka answers at the address that is printed; SIGTERM stops it, and no process of it is left."""
    with started(tmp_path, "broker", "kafka", "--json") as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert facts["broker"] == f"kafka://{facts['bootstrap']}"
        assert Path(f"/proc/{facts['pid']}").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert not Path(f"/proc/{facts['pid']}").exists()
