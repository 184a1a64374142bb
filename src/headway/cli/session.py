"""What every command gets: the global options, the settings that follow from them, the app and the store.

`--app`, `--store` and `--json` may stand before or after the command; the one that stands last wins. A command is a
function, plain or async, whose first parameter is the `Session`; `command` gives it the global options and runs it.

Which store? `--store`, else the one of the app when there is an app, else HEADWAY_STORE, headway.toml, the default.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar

import typer

from headway.cli.show import Output, stop_writing

if TYPE_CHECKING:
    from headway.app import Headway
    from headway.clock import Clock
    from headway.errors import StoreUnavailable
    from headway.instants import Instant
    from headway.model import Job
    from headway.settings import Settings
    from headway.store import Store

PAGE: Final = 200
AUTHOR: Final = "cli"  # Who did it, in the ledger.

# What to do where an embedded store does not exist yet: say so, make it, or look into an empty one for a dry run.
Missing: TypeAlias = Literal["refuse", "create", "imagine"]

F = TypeVar("F", bound=Callable[..., Any])

AppOption = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:APP", help="The app with tasks and schedules (HEADWAY_APP).")
]
StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="URL", help="sqlite:///file or postgresql://… (HEADWAY_STORE).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
_GLOBALS: Final[dict[str, tuple[Any, object]]] = {
    "app_path": (AppOption, None),
    "store_url": (StoreOption, None),
    "as_json": (JsonOption, False),
}


@dataclass(frozen=True, slots=True)
class Desk:
    """An open store with the clock that knows its time."""

    store: "Store"
    clock: "Clock"
    latency_s: float

    @property
    def now(self) -> "Instant":
        """The store's time."""
        return self.clock.now()


@dataclass(slots=True)
class Session:
    """One call of the command line."""

    app_path: str | None = None
    store_url: str | None = None
    as_json: bool = False
    _app: "Headway | None" = None

    @property
    def out(self) -> Output:
        """Where to write."""
        return Output(as_json=self.as_json)

    def app(self) -> "Headway | None":
        """Return the app, imported on first use, on the store that was asked for; None when there is none.

        Tasks and schedules in headway.toml are an app, too, where no other is named.
        """
        if self._app is None:
            from headway.app import file_app, load_app

            path = self.app_path or self.loaded().app
            self._app = file_app() if path is None else load_app(path)
            if self._app is not None and self.store_url is not None:
                self._app.settings = replace(self._app.settings, store=self.loaded().store)
        return self._app

    def settings(self, **flags: object) -> "Settings":
        """Return the settings with these flags on top."""
        settings = self.loaded(**flags)
        if self.store_url is None and settings.app is not None:
            app = self.app()
            assert app is not None
            return replace(settings, store=app.settings.store)
        return settings

    def loaded(self, **flags: object) -> "Settings":
        """Return the settings as they are without looking into the app, which may name another store."""
        from headway.settings import Settings

        return Settings.load({"store": self.store_url, "app": self.app_path, **flags})

    @asynccontextmanager
    async def open(self, missing: Missing = "refuse") -> AsyncIterator[Desk]:
        """Open the store and hear its time. A file that is missing is made only where something is to be written."""
        from headway.clock import Clock
        from headway.store import Store

        settings = self.settings()
        if missing != "create" and is_missing(settings.store):
            if missing == "refuse":
                raise no_store(settings.store)
            settings = replace(settings, store="sqlite://")
        clock = Clock(node=AUTHOR)
        store = await Store.open(settings.store, clock, synchronous=settings.sqlite_synchronous)
        try:
            yield Desk(store, clock, await hear_time(store, clock))
        finally:
            await store.close()


def is_missing(url: str) -> bool:
    """Say whether an embedded store is not there yet; looking into it would make an empty one."""
    from headway.store.sqlite import path_of

    return url.startswith("sqlite://") and (path := path_of(url)) != ":memory:" and not Path(path).exists()


def no_store(url: str) -> "StoreUnavailable":
    """Say that there is nothing to look into, and what to do."""
    from headway.errors import StoreUnavailable
    from headway.store.sqlite import path_of

    return StoreUnavailable(
        f"there is no store at {path_of(url)} yet; `headway migrate` makes one, --store or HEADWAY_STORE names another"
    )


async def paged(
    read: "Callable[..., Awaitable[list[Job]]]", filters: Mapping[str, str | None], before: str | None, limit: int
) -> "list[Job]":
    """Read jobs page by page, newest first, until there are enough or no more."""
    found: list[Job] = []
    while len(found) < limit:
        page = await read(**filters, before=before, limit=min(limit - len(found), PAGE))
        found += page
        if not page:
            break
        before = page[-1].id
    return found


async def hear_time(store: "Store", clock: "Clock") -> float:
    """Tell the clock the store's time; return how many seconds the answer took."""
    from headway.store.transaction import call

    sent = clock.monotonic()
    rows = await store.driver.fetch(call("time"))
    clock.observe(rows[0]["now"], sent=sent)
    return clock.monotonic() - sent


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
    """Make a command that stands alone."""
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    command(single)(function)
    return single


def command(group: typer.Typer, name: str | None = None) -> Callable[[F], F]:
    """Add a command to a group."""

    def register(function: F) -> F:
        group.command(name or function.__name__, context_settings=_CONTEXT)(_entry(function))
        return function

    return register


_CONTEXT: Final[dict[Any, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command: its own parameters are followed by the global ones, and its session is made of those."""

    def enter(ctx: typer.Context, **given: Any) -> Any:
        ctx.obj = session = _session(ctx.obj, {name: given.pop(name) for name in _GLOBALS})
        try:
            result = function(session, **given)
            return _run(result) if inspect.iscoroutine(result) else result
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


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # Here, since `--help` can do without it.

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
        as_json=given["as_json"] or outer.as_json,
    )
