"""Tasks and schedules in headway.toml: what they become, and how mistakes are reported."""

from pathlib import Path

import pytest

from headway import Cron, Headway, InvalidConfig, InvalidSchedule, InvalidTask
from headway.app import file_app
from headway.core.instants import SECOND
from headway.core.settings import Settings
from headway.core.triggers import Every
from headway.tasks.definitions import Definitions

FILE = """
store = "sqlite:///other.db"

[tasks.backup]
command = ["pg_dump", "--file", "/backups/{day}.sql"]
env = {PGUSER = "backup"}
cwd = "/tmp"
memory = "512MB"
queue = "slow"
timeout = "30m"
retry = {max_attempts = 3, backoff = "5s..5m", retry_timeouts = false}

[tasks.ping]
http = "https://example.org/hook"
method = "POST"
headers = {Authorization = "Bearer x"}
priority = 5

[schedules.nightly]
task = "backup"
trigger = {kind = "cron", expr = "0 2 * * *", tz = "Europe/Berlin"}
overlap = "queue"
args = {day = "today"}

[schedules.often]
task = "ping"
every = "30s"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_STORE", raising=False)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "headway.toml").write_text(text)


def test_file_defines_an_app(folder: Path) -> None:
    write(folder, FILE)
    app = file_app()
    assert app is not None
    assert (app.name, app.settings.store) == ("headway.toml", "sqlite:///other.db")
    backup, ping = app.tasks["backup"], app.tasks["ping"]
    assert (backup.execution.timeout, backup.execution.isolation) == (1800 * SECOND, "process")
    assert backup.execution.retry is not None
    assert (backup.execution.retry.max_attempts, backup.execution.retry.retry_timeouts) == (3, False)
    assert (ping.execution.isolation, ping.defaults.priority) == ("thread", 5)
    nightly, often = app.declared["nightly"], app.declared["often"]
    assert nightly.trigger == Cron("0 2 * * *", tz="Europe/Berlin")
    assert (nightly.queue, nightly.max_attempts, nightly.args) == ("slow", 3, '{"day":"today"}')  # From the task.
    assert (nightly.overlap, often.trigger, often.priority) == ("queue", Every("30s"), 5)


def test_file_without_definitions_defines_no_app(folder: Path) -> None:
    assert file_app() is None
    write(folder, 'store = "sqlite:///x.db"')
    assert file_app() is None
    assert not Definitions.load()


def test_file_may_set_the_app_name(folder: Path) -> None:
    write(folder, 'name = "backups"\n' + FILE)
    app = file_app()
    assert app is not None
    assert app.name == "backups"


def test_every_app_includes_the_definitions_of_the_file(folder: Path) -> None:
    write(folder, FILE + '[schedules.report]\ntask = "report"\nafter = "10m"\n')
    app = Headway(name="shop")

    @app.task(queue="reports")
    def report() -> None: ...

    app.schedule("mine", report, Every("1h"))
    assert set(app.tasks) == {"backup", "ping", "report"}
    assert set(app.declared) == {"mine", "nightly", "often", "report"}
    assert app.declared["report"].queue == "reports"
    assert Headway(settings=Settings(), name="alone").tasks == {}


def test_duplicate_name_error_says_where_the_other_one_is(folder: Path) -> None:
    write(folder, FILE)
    app = Headway(name="shop")
    with pytest.raises(InvalidTask, match=r"two tasks are named 'backup', one of them in headway\.toml"):
        app.command("backup", ["ls"])
    with pytest.raises(InvalidSchedule, match=r"two schedules are named 'often', one of them in headway\.toml"):
        app.schedule("often", "ping", Every("1h"))


def test_schedule_of_an_unknown_task_is_rejected(folder: Path) -> None:
    write(folder, FILE.replace('task = "ping"', 'task = "pnig"'))
    with pytest.raises(InvalidConfig, match=r"headway\.toml: schedules\.often: no task is named 'pnig'; known are"):
        assert Headway(name="shop").declared


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks = 5", r"tasks must be a table such as \[tasks"),
        ("tasks.backup = 5", "tasks.backup must be a table, not 5"),
        ("[tasks.backup]", "tasks.backup: a task needs either command"),
        ('[tasks.b]\ncommand = ["ls"]\nhttp = "https://x"', "tasks.b: a task needs either"),
        ('[tasks.b]\ncommand = "ls -l"', "tasks.b: a command must be a list"),
        ('[tasks.b]\ncommand = ["ls"]\ntimout = "5s"', "tasks.b: unknown key 'timout'; known are command, env"),
        ('[tasks.b]\ncommand = ["ls"]\nmethod = "GET"', "tasks.b: unknown key 'method'"),
        ('[tasks.b]\ncommand = ["ls"]\ntimeout = "soon"', "tasks.b: timeout must look like"),
        ('[tasks.b]\ncommand = ["ls"]\nenv = ["A=B"]', "tasks.b: env must be a table"),
        ('[tasks.b]\ncommand = ["ls"]\nenv = {A = 1}', "tasks.b: env must have names and texts"),
        ('[tasks.b]\ncommand = ["ls"]\nmemory = "much"', "tasks.b: memory must be a size like"),
        ('[tasks.b]\nhttp = "https://x"\nmemory = "1GB"', "tasks.b: unknown key 'memory'"),
        ('[tasks.b]\ncommand = ["ls"]\nretry = 3', "tasks.b: retry must be a table such as"),
        ('[tasks.b]\ncommand = ["ls"]\nretry = {attempts = 3}', "tasks.b: unknown key 'attempts'; known are max_att"),
        ('[tasks.b]\ncommand = ["ls"]\nretry = {max_attempts = "3"}', "tasks.b: max_attempts must be a whole number"),
        ('[tasks.b]\ncommand = ["ls"]\nretry = {backoff = "9s..5s"}', "tasks.b: backoff must look like"),
        ('[tasks.b]\ncommand = ["ls"]\nretry = {retry_timeouts = 1}', "tasks.b: retry_timeouts must be true"),
        ('[tasks.b]\nhttp = "ftp://x"', "tasks.b: the URL of a request must look like"),
        ('[tasks.b]\nhttp = ["https://x"]', "tasks.b: the URL of a request must be text"),
        ('[tasks."a b\\n"]\ncommand = ["ls"]', "tasks"),
        ('[tasks.""]\ncommand = ["ls"]', "tasks.: the name of a task must be non-empty text"),
        ("schedules = 5", "schedules must be a table"),
        ('[schedules.n]\ncron = "0 2 * * *"', "schedules.n: a schedule needs a task"),
        ('[schedules.n]\ntask = "b"', "schedules.n: say when in one way: cron, every, after or at"),
        ('[schedules.n]\ntask = "b"\ncron = "0 2 * *"', "schedules.n: cron"),
        ('[schedules.n]\ntask = "b"\nevery = "1h"\noverlapp = "skip"', "schedules.n: unknown schedule option"),
        ('[schedules.n]\ntask = "b"\nevery = "1h"\nargs = 5', "schedules.n: args must be a table"),
        ("name = 5", "name: name must be"),
        ("taks = 5", "unknown setting 'taks'"),
    ],
)
def test_mistakes_are_reported_with_file_and_key(folder: Path, text: str, message: str) -> None:
    write(folder, text)
    with pytest.raises(InvalidConfig, match=message) as refused:
        Headway(name="shop")
    assert "headway.toml" in str(refused.value)
