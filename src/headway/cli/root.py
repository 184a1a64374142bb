"""The tree of commands: how a command is found and loaded, and how errors become exit codes.

A command's module is imported only when the command is called, so `headway --help` needs neither store nor engine.
Every error ends here: one line on stderr that names the remedy, or one JSON object with `--json`, and an exit
code that scripts can rely on. There is one table from error to code.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, cast

import typer
import typer.main
from typer.core import TyperGroup

from headway import __version__
from headway.cli.output import stop_writing
from headway.cli.text import clean
from headway.core.errors import (
    Conflict,
    DefinitionError,
    Denied,
    HeadwayError,
    LeaseLost,
    LimitOwned,
    LockHeld,
    NotFound,
    ScheduleOwned,
    StoreError,
)

OK: Final = 0
FAILED: Final = 1  # A job failed, the audit found something, doctor found a fault.
USAGE: Final = 2
NOT_FOUND: Final = 3
DENIED: Final = 4
UNAVAILABLE: Final = 5
TIMED_OUT: Final = 6
BUG: Final = 70
LOCK_HELD: Final = 75
LOCK_LOST: Final = 76
INTERRUPTED: Final = 130

# The first match decides, so subclasses come before their bases.
EXIT_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (DefinitionError, USAGE),
    (NotFound, NOT_FOUND),
    (ScheduleOwned, DENIED),
    (LimitOwned, DENIED),
    (Denied, DENIED),
    (LockHeld, LOCK_HELD),
    (Conflict, USAGE),
    (StoreError, UNAVAILABLE),
    (TimeoutError, TIMED_OUT),
    (LeaseLost, LOCK_LOST),
    (HeadwayError, FAILED),
    (typer.Abort, INTERRUPTED),
    (KeyboardInterrupt, INTERRUPTED),
)

# Every command with its module and one line for the list; the groups are the sections of `headway --help`.
SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Begin": {
        "demo": ("demo", "Watch jobs run, crash and recover: one minute, no setup."),
        "dev": ("dev", "Run your app during development; reload when files change."),
    },
    "Operate": {
        "migrate": ("migrate", "Migrate the store to the schema of this version."),
        "serve": ("serve", "Run scheduler, worker and API in one process; run as many as you like."),
        "scheduler": ("scheduler", "Run a scheduler; run as many as you like."),
        "worker": ("worker", "Run a worker for the tasks of an app; run as many as you like."),
        "api": ("api", "Serve the HTTP API and the dashboard."),
        "status": ("status", "Show the leader, workers, queues and late schedules."),
        "top": ("top", "Show the status live: queues, running jobs with progress bars, coming runs."),
        "doctor": ("doctor", "Check the store, the clock and the settings, and suggest fixes."),
        "audit": ("audit", "Compare the expected instants of schedules with the recorded ones."),
        "tokens": ("tokens", "Create, list and revoke API tokens."),
        "audit-log": ("audit_log", "Show the audit log: actions of operators and admins."),
        "webhooks": ("webhooks", "Notify URLs when jobs end; list and replay deliveries."),
        "purge": ("purge", "Erase arguments, results and logs of the jobs of a tenant."),
    },
    "Work": {
        "schedules": ("schedules", "List, preview, change, pause, trigger and backfill schedules."),
        "enqueue": ("enqueue", "Enqueue a job, and optionally watch it."),
        "jobs": ("jobs", "List, show, watch, retry and cancel jobs, and explain their status."),
        "dead": ("dead", "List, retry and drop dead letters: jobs that failed for good."),
        "queues": ("queues", "List queues; pause, resume and limit them."),
        "batches": ("batches", "List batches; show, watch, close, cancel and retry them."),
        "limits": ("limits", "List limits; put, show and remove them."),
        "tenants": ("tenants", "List tenants; set and show their weights."),
        "workers": ("workers", "List workers and drain one."),
        "lock": ("lock", "Run a command while holding a distributed lock."),
    },
}
COMMANDS: Final = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
OLD_NAMES: Final = {"trail": "audit-log"}  # They keep working, and are not listed.


class LazyGroup(TyperGroup):
    """The root command: knows the names of all commands, and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("Any", dict.fromkeys(COMMANDS))  # The names are enough to suggest the right one.

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load a command."""
        cmd_name = OLD_NAMES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        return _load(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Print the list of commands without importing them."""
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()], col_max=12)


@cache
def _load(name: str) -> Any:
    """Import and build a command: once in a process that runs many, as tests do."""
    command = quickened(typer.main.get_command(import_module(f"headway.cli.{COMMANDS[name][0]}").app))
    command.name = name
    return command


@cache
def _root() -> Any:
    from headway.cli.session import new_group

    app = new_group(
        cls=LazyGroup,
        help="Headway decides when jobs are due, exactly once, and can prove it.",
        epilog="Every option in the first list may also follow the command; --version says which Headway this is. "
        "Begin with: headway demo",
    )
    return quickened(typer.main.get_command(app))


class _Sparing:
    """Wraps the conversion of a parameter, and skips it if there is nothing to convert."""

    def __init__(self, parameter: Any) -> None:
        self._real = parameter.get_runtime_param
        self._is_text = parameter.type_descriptor.annotation in (str, list[str])

    def __call__(self) -> "_Sparing":
        return self

    def coerce(self, value: Any, **context: Any) -> Any:
        """Convert a value; text stays text, and a missing value is the default."""
        is_typed = isinstance(value, str | tuple | list)
        return self._real().coerce(value, **context) if is_typed and not self._is_text else value


def quickened(command: Any) -> Any:
    """Keep the parser from loading its validation library, half of a short command's time, for plain text.

    This reaches into typer; where a release of it looks different inside, everything works as before, only slower.
    """
    read = command.get_params

    def get_params(ctx: Any) -> Any:
        parameters = read(ctx)  # With the option --help, which is made here.
        for parameter in parameters:
            if hasattr(parameter, "type_descriptor") and not isinstance(parameter.get_runtime_param, _Sparing):
                parameter.get_runtime_param = _Sparing(parameter)
        return parameters

    command.get_params = get_params
    if not isinstance(command, LazyGroup):
        for child in getattr(command, "commands", {}).values():
            quickened(child)
    return command


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # A terminal that cannot show a character must not stop a command.
            stream.reconfigure(errors="backslashreplace")
    own = args[: args.index("--")] if "--" in args else args  # The rest belongs to another program.
    as_json = "--json" in own
    if "--version" in own and {*own} <= {"--version", "--json"}:
        return guarded(partial(_tell_version, as_json=as_json), as_json=as_json)
    work = partial(_root().main, list(args), prog_name="headway", standalone_mode=False)
    return guarded(work, as_json=as_json)


def _tell_version(*, as_json: bool) -> None:
    print(json.dumps({"version": __version__}) if as_json else f"headway {__version__}")


def guarded(work: Callable[[], object], *, as_json: bool) -> int:
    """Run a command and return its exit code, whatever happens."""
    try:
        code = work()
        sys.stdout.flush()
    except BrokenPipeError:
        stop_writing()
        return OK
    except BaseException as error:
        if os.environ.get("HEADWAY_DEBUG") == "1" or isinstance(error, SystemExit | GeneratorExit):
            raise
        if not _close_logs():  # The log is not read; printing the error could block for ever.
            return classify(_innermost(error))[0]
        return report(error, as_json=as_json)
    finally:
        _close_logs()
    return code if isinstance(code, int) else OK


def _close_logs() -> bool:
    """Flush the log of a server, if it is loaded; return whether it is being read."""
    log = sys.modules.get("headway.cli.log")
    return log is None or bool(log.close_logs())


def _innermost(error: BaseException) -> BaseException:
    """Return the cause of an exception group: one loop of a node failed, and the others were cancelled."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def report(error: BaseException, *, as_json: bool) -> int:
    """Print the error and return the exit code."""
    code, name, message = classify(_innermost(error))
    if as_json:
        print(json.dumps({"error": {"code": name, "message": message}}), file=sys.stderr)
    elif name == "help":
        print(message, file=sys.stderr)
    else:
        print(f"headway: {clean(message)}", file=sys.stderr)
    return code


def classify(error: BaseException) -> tuple[int, str, str]:
    """Return exit code, name and message of an error."""
    for kind, code in EXIT_CODES:
        if isinstance(error, kind):
            return code, _NAMES.get(type(error)) or _snake(type(error).__name__), _one_line(error) or "interrupted"
    if hasattr(error, "format_message"):  # Errors of the command-line parser.
        return _classify_usage(error)
    return BUG, "internal", f"internal error: {type(error).__name__}: {error} (HEADWAY_DEBUG=1 shows where)"


_NAMES: Final = {KeyboardInterrupt: "interrupted", typer.Abort: "interrupted", TimeoutError: "timed_out"}


def _classify_usage(error: Any) -> tuple[int, str, str]:
    message = str(error.format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        return USAGE, "help", message
    context = getattr(error, "ctx", None)
    cure = f" (see `{context.command_path} --help`)" if context is not None else ""
    return USAGE, "usage", message.strip().rstrip(".").replace("\n\t", " ") + cure


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
