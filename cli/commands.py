"""The commands of ``keylanes``. Only entry.py imports this module, since the module needs typer.

The command ``audit`` imports the audit when it runs: the audit needs an extra.
"""

import json
import logging
import os
import sys
import time
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from .. import IS_COMPILED, __version__
from ..devkafka.java import java_home
from ..errors import KeylanesError, SettingsError
from ..runtime.app import App
from ..runtime.logs.topics import creation_commands
from ..runtime.processes.child import SIBLING
from ..runtime.settings import Settings
from ..runtime.watch.progress import ProgressShown
from ..runtime.watch.steps import Step
from .application import load_app
from .audit import audit_arguments, client_settings, look_at_brokers
from .broker import broker
from .codes import CODES, epilog
from .group import group as group_commands
from .messages import checked_level, set_up_logging
from .state import state as state_commands
from .topics import create_topics

EXIT_USAGE = 2
EXTRAS = {
    **dict.fromkeys(("confluent_kafka", "pyarrow", "pyspark"), "spark"),
    **dict.fromkeys(("matplotlib", "numpy"), "plot"),
}
"""The extra that brings a package, for packages that may be missing."""

SHOWN_EVERY_S = 0.5
PLAINTEXT_VARIABLE = "KEYLANES_ALLOW_PLAINTEXT"

cli = typer.Typer(
    name="keylanes",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli.add_typer(state_commands)
cli.add_typer(group_commands)
cli.command(epilog=epilog(2, 6, 8, code_0="stopped", code_6="it can't be fetched or does not start"))(broker)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"keylanes {__version__}, {'compiled' if IS_COMPILED else 'interpreted'}\n")
        raise typer.Exit


@cli.callback(epilog="Each command names its exit codes: keylanes COMMAND --help. docs/exit-codes.md has them all.")
def start(
    version: Annotated[  # takes effect before any command
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    """Kafka parallelism beyond partitions, exactly once."""


class Until(StrEnum):
    """When ``run`` ends by itself."""

    LEVEL = "level"


Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="where the App is, e.g. flights:app")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on standard output")]


def run_command(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    try:
        cli(arguments, prog_name="keylanes")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except KeylanesError as error:
        print_error(str(error))
        return getattr(error, "exit_code", 1)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        print_error(f"this command needs {error.name}; run: pip install 'keylanes[{extra}]'")
        return EXIT_USAGE
    return 0


@cli.command(epilog=epilog(*(code for code in CODES if code != 1), code_1="the application can't be imported"))
def run(
    target: Target,
    until: Annotated[Until | None, typer.Option(help="end when what the topics hold now is done")] = None,
    processes: Annotated[
        str, typer.Option(metavar="N|cores", help="so many processes share the work; cores: one on each core")
    ] = "1",
    log_level: Annotated[
        str | None,
        typer.Option(help="DEBUG, INFO, WARNING or ERROR; default: what MODULE has set up, else INFO"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run an application until SIGTERM or SIGINT; with --json each process prints its statistics at the end."""
    level = checked_level(log_level or "INFO")
    app = load_app(target)
    if not logging.getLogger("keylanes").hasHandlers():
        set_up_logging(level)
    elif log_level is not None:  # the module has set up logging itself, and the caller wants another level
        logging.getLogger().setLevel(level)
    count: Any = int(processes) if processes.isascii() and processes.isdecimal() else processes
    if until is None:
        app.run(processes=count)
    elif count == 1:
        with ProgressShown(f"{app.name}: offsets done", 0) as shown:
            app.run(until="level", on_step=_ProgressBar(app, shown))
    else:  # without a bar: several processes would move the same line
        app.run(until="level", processes=count)
    if as_json and (count == 1 or SIBLING is not None):
        sys.stdout.write(msgspec.json.encode(app.statistics()).decode() + "\n")


class _ProgressBar:
    """Moves the progress bar of a run that ends by itself; called at the steps of the commit cycle."""

    def __init__(self, app: App, shown: ProgressShown) -> None:
        self.app = app
        self.shown = shown
        self._moved_s = 0.0

    def __call__(self, step: Step) -> None:
        now_s = time.monotonic()
        if step == "applied" and now_s - self._moved_s >= SHOWN_EVERY_S:
            self._moved_s = now_s
            if (way := self.app.statistics().to_level) is not None:
                self.shown.move(way.done, way.total)


@cli.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def audit(context: typer.Context) -> None:
    """Prove from the logs what an application did: [MODULE:APP] [--app NAME --broker ADDRESS …]; see audit --help."""
    arguments, security = list(context.args), {}
    environ = {name: text for name, text in os.environ.items() if name == PLAINTEXT_VARIABLE}
    allow_plaintext = Settings.from_env(environ).security.allow_plaintext
    if arguments and not arguments[0].startswith("-"):
        app = load_app(arguments[0])
        allow_plaintext |= app.settings.security.allow_plaintext
        arguments = [*audit_arguments(app), *arguments[1:]]
        if not any(given.startswith("--client-settings") for given in arguments):
            security = client_settings(app.settings.security)
    from ..spark import job  # here: it needs the extra `spark`

    if not {"-h", "--help"} & set(arguments):
        os.environ.update(java_home().environment(os.environ))
    raise typer.Exit(job.main(arguments, security, partial(look_at_brokers, allow_plaintext=allow_plaintext)))


@cli.command(epilog=epilog(0, 2))
def topics(
    partitions: Annotated[int, typer.Option(min=1, help="of the widest source topic")],
    target: Annotated[str | None, typer.Argument(metavar="[MODULE:APP]", help="where the App is")] = None,
    app: Annotated[str | None, typer.Option(help="or the application's name")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC:N", help="a source topic with state has N partitions; else as many as the widest"),
    ] = None,
    create: Annotated[
        bool,
        typer.Option("--create", help="create all topics of MODULE:APP; an embedded folder must be free"),
    ] = False,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="so many brokers keep each partition; default: as the cluster has it")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the commands that create an application's logs, or create all its topics (--create)."""
    if (target is None) == (app is None):
        raise SettingsError("topics: give either MODULE:APP or --app NAME")
    if create and target is None:
        raise SettingsError("topics --create needs MODULE:APP: its handlers name the topics; seen --app only")
    loaded = None if target is None else load_app(target)
    handlers = list(loaded.handlers.values()) if loaded else []
    stateful = {handler.topic: partitions for handler in handlers if handler.stores}
    stateful |= dict(_partitions_of(given, partitions) for given in state or ())
    if create and loaded is not None:
        lines = create_topics(loaded, partitions, stateful, replication_factor)
        sys.stdout.write((json.dumps(lines) if as_json else "\n".join(lines)) + "\n")
        return
    commands = creation_commands(app or (loaded.name if loaded else ""), partitions, stateful, replication_factor)
    if loaded is not None and isinstance(loaded.broker, str) and loaded.broker.startswith("kafka://"):
        servers = loaded.broker.removeprefix("kafka://")
        commands = [c.replace("--bootstrap-server BROKER ", f"--bootstrap-server {servers} ") for c in commands]
    sys.stdout.write((json.dumps(commands) if as_json else "\n".join(commands)) + "\n")


def _partitions_of(given: str, widest: int) -> tuple[str, int]:
    """The topic and its partitions in ``TOPIC:N``; raises SettingsError."""
    topic, _, number = given.rpartition(":")
    if not (topic and number.isascii() and number.isdigit() and 1 <= int(number) <= widest):
        raise SettingsError(f"--state: seen {given!r}; allowed is TOPIC:N with N from 1 to --partitions {widest}")
    return topic, int(number)


def print_error(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"keylanes: {text}\n")
