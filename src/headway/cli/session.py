"""The session of a command: the global options, the resulting settings, the app and the store.

`--app`, `--store` and `--json` may stand before or after the command; the one that stands last wins. A command is a
function, plain or async, whose first parameter is the `Session`; `command` gives it the global options and runs it.

Which store? `--store`, else the one of the app when there is an app, else HEADWAY_STORE, headway.toml, the default.
With `--server`, or HEADWAY_SERVER and no `--store`, the operations are those of a server (`remote`).
"""

import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar

import typer

from headway.cli.output import Output, stop_writing

if TYPE_CHECKING:
    from headway.app import Headway
    from headway.core.settings import Settings
    from headway.operations.everything import Operations
    from headway.wiring.local_operations import OpenStore

PAGE: Final = 200

# If an embedded store does not exist yet: raise an error, create it, or use an empty one for a dry run.
Missing: TypeAlias = Literal["refuse", "create", "imagine"]

F = TypeVar("F", bound=Callable[..., Any])

AppOption = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:APP", help="The app with tasks and schedules (HEADWAY_APP).")
]
StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="sqlite:///file or postgresql://… (HEADWAY_STORE).")
]
ServerOption = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="Use this API instead of the store (HEADWAY_SERVER).")
]
TokenOption = Annotated[
    str | None, typer.Option("--token", metavar="TOKEN", help="The token for --server; prefer HEADWAY_TOKEN.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
_GLOBALS: Final[dict[str, tuple[Any, object]]] = {
    "app_path": (AppOption, None),
    "store_url": (StoreOption, None),
    "server_url": (ServerOption, None),
    "token": (TokenOption, None),
    "as_json": (JsonOption, False),
}


# Commands that run on a store or create one; they do not work through an API.
_ON_THE_STORE: Final = frozenset(
    ("api", "demo", "dev", "doctor", "lock", "migrate", "purge", "scheduler", "serve", "worker")
)


@dataclass(slots=True)
class Session:
    """One call of the command line."""

    app_path: str | None = None
    store_url: str | None = None
    server_url: str | None = None
    token: str | None = field(default=None, repr=False)
    as_json: bool = False
    is_on_store: bool = False  # Ignore HEADWAY_SERVER.
    _app: "Headway | None" = None

    @property
    def out(self) -> Output:
        """The output."""
        return Output(as_json=self.as_json)

    @property
    def server(self) -> str | None:
        """The API to use instead of the store."""
        from headway.core.errors import DefinitionError

        if self.is_on_store:
            return None
        if self.server_url is not None and self.store_url is not None:
            raise DefinitionError("use --server or --store, not both")
        server = self.server_url or ("" if self.store_url is not None else os.environ.get("HEADWAY_SERVER"))
        if self.token is not None and not server:
            raise DefinitionError("--token needs --server")
        return server or None

    def app(self) -> "Headway | None":
        """Return the app, imported on first use, with the given store; None if there is none.

        Without another app, tasks and schedules in headway.toml are an app.
        """
        if self._app is None:
            from headway.app import file_app
            from headway.cli.app_path import load_app

            path = self.app_path or self.loaded().app
            self._app = file_app() if path is None else load_app(path)
            if self._app is not None and self.store_url is not None:
                self._app.settings = replace(self._app.settings, store=self.loaded().store)
        return self._app

    def settings(self, **flags: object) -> "Settings":
        """Return the settings, overridden by these options."""
        settings = self.loaded(**flags)
        if self.store_url is None and settings.app is not None:
            app = self.app()
            assert app is not None
            return replace(settings, store=app.settings.store)
        return settings

    def loaded(self, **flags: object) -> "Settings":
        """Return the settings without importing the app, which may name another store."""
        from headway.core.settings import Settings

        return Settings.load({"store": self.store_url, "app": self.app_path, **flags})

    @asynccontextmanager
    async def open(self, missing: Missing = "refuse") -> "AsyncIterator[OpenStore]":
        """Open the store. A missing file is created only if the command writes."""
        from headway.wiring.local_operations import is_missing, no_store, open_local

        settings = self.settings()
        if missing != "create" and is_missing(settings.store):
            if missing == "refuse":
                raise no_store(settings.store)
            settings = replace(settings, store="sqlite://")
        async with open_local(settings) as opened:
            yield opened

    @asynccontextmanager
    async def operations(self, missing: Missing = "refuse") -> "AsyncIterator[Operations]":
        """Open the operations, on the store or on the server."""
        if self.server is not None:
            from headway.cli.remote import open_operations

            async with open_operations(self.server, self.token) as operations:
                yield operations
            return
        async with self.open(missing) as opened:
            yield opened.operations


def new_group(*, help: str, cls: Any = None, epilog: str | None = None) -> typer.Typer:
    """Make a group of commands that takes the global options too."""
    group = typer.Typer(
        cls=cls,
        help=help,
        epilog=epilog,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_CONTEXT,
    )

    def remember(session: Session) -> None:
        """Take the global options."""

    group.callback(help=help, epilog=epilog)(_entry(remember))
    return group


def new_command(function: Callable[..., Any]) -> typer.Typer:
    """Make a standalone command."""
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    command(single)(function)
    return single


def command(group: typer.Typer, name: str | None = None) -> Callable[[F], F]:
    """Add a command to a group."""

    def register(function: F) -> F:
        group.command(name or function.__name__, context_settings=_CONTEXT)(_entry(function))
        return function

    return register


_SERVERS: Final = frozenset(
    {"headway.cli.api", "headway.cli.serve"}
)  # They are long-running, and the speed of their loop matters.
_CONTEXT: Final[dict[Any, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command: add the global options to its parameters, and build its session from them."""
    is_server = function.__module__ in _SERVERS

    def enter(ctx: typer.Context, **given: Any) -> Any:
        ctx.obj = session = _session(ctx.obj, {name: given.pop(name) for name in _GLOBALS})
        session.is_on_store = function.__module__.rpartition(".")[2] in _ON_THE_STORE
        if session.is_on_store and session.server_url is not None:
            raise _not_remote(function.__name__)
        try:
            result = function(session, **given)
            return _run(result, is_server=is_server) if inspect.iscoroutine(result) else result
        except BrokenPipeError:
            stop_writing()
            return None

    parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += _own_parameters(function)
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in _GLOBALS.items()
    ]
    enter.__name__, enter.__doc__ = function.__name__, function.__doc__
    enter.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    enter.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return enter


def _not_remote(name: str) -> Exception:
    from headway.core.errors import DefinitionError

    return DefinitionError(
        f"`headway {name}` works on the store itself: run it without --server, on a host with the store"
    )


def _run(coroutine: Coroutine[Any, Any, Any], *, is_server: bool) -> Any:
    import asyncio  # Imported here, since `--help` does not need it.

    if is_server:
        with contextlib.suppress(ImportError):  # Not available on every system.
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(coroutine)
    return asyncio.run(coroutine)


def _own_parameters(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    return (parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own)


def _session(outer: object, given: dict[str, Any]) -> Session:
    if not isinstance(outer, Session):
        return Session(**given)
    return Session(
        app_path=given["app_path"] or outer.app_path,
        store_url=given["store_url"] or outer.store_url,
        server_url=given["server_url"] or outer.server_url,
        token=given["token"] or outer.token,
        as_json=given["as_json"] or outer.as_json,
    )
