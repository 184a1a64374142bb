"""Limits and tenants as users define them: in an app, in headway.toml, on the command line and over HTTP."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import Every, Headway, InvalidConfig, InvalidLimit, InvalidSchedule, InvalidTask
from headway.client import Client
from headway.core.instants import HOUR
from headway.core.schedules import ScheduleSpec
from headway.operations.app_sync import Declarations, sync_app
from headway.store import Store
from headway.store.transaction import call
from headway.testing import virtual
from tests.support.claiming import claim
from tests.support.command_line import Cli
from tests.support.house import SECRET, House, house

TOML = """
[limits."account-*"]
concurrency = 1
rate = "10/s"
burst = 20

[tenants.acme]
weight = 4
wait_slo = "5s"

[tasks.ping]
http = "https://example.org/hook"
limit = "account-{account_id}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def app_of(folder: Path, name: str = "shop") -> Headway:
    """Make an app on the store of a folder; an app with the same name is the same one after a restart."""
    return Headway(f"sqlite:///{folder}/headway.db", name=name)


def jobs_in(folder: Path) -> int:
    with sqlite3.connect(folder / "headway.db") as connection:
        return int(connection.execute("select count(*) from headway_jobs").fetchone()[0])


# --- the limit of a job


async def test_limit_of_a_job_is_filled_from_its_arguments(folder: Path) -> None:
    app = app_of(folder)
    app.limit("account-*", concurrency=1)
    app.limit("other-*", concurrency=1)

    @app.task(limit="account-{account_id}")
    def bill(account_id: int, note: str = "") -> None: ...

    async with app:
        await app.sync()
        made = [
            await bill.enqueue(account_id=42),
            await bill.options(limit="other-{account_id}").enqueue(7),
            await app.enqueue("bill", {"account_id": 8}),
            await app.enqueue("unknown here", {"n": 9}, limit="other-{n}"),
            *await bill.enqueue_many([{"account_id": 1}, {"account_id": "{note}"}], limit="other-{account_id}"),
            *await bill.enqueue_many([{"account_id": "{note}"}], limit=lambda row: f"other-{row['account_id']}"),
        ]
        shown = [(await app.job(handle.id)).job.limit_key for handle in made]
    names = ["account-42", "other-7", "account-8", "other-9"]
    assert shown == [*names, "other-1", "other-{note}", "other-{note}"]


def test_template_with_an_unknown_argument_is_refused_with_the_task(folder: Path) -> None:
    app = app_of(folder)
    with pytest.raises(
        InvalidTask, match=r"task 'bill': limit 'account-{acount}' needs the argument 'acount'.*account_id"
    ):

        @app.task(limit="account-{acount}")
        def bill(account_id: int) -> None: ...

    @app.task
    def mail(account_id: int) -> None: ...

    with pytest.raises(InvalidTask, match="which the task does not have"):
        mail.options(limit="account-{acount}")
    for wrong, words in (("queue:media", "counts by itself"), ("account-*", "without a \\*"), ("a{", "brace")):
        with pytest.raises((InvalidTask, InvalidLimit), match=words):
            mail.options(limit=wrong)


def test_template_with_a_missing_argument_is_refused_with_the_job(folder: Path) -> None:
    app = app_of(folder)
    app.limit("account-*", concurrency=1)
    app.sync_sync()

    @app.task(limit="account-{account_id}")
    def bill(account_id: int = 0, **more: Any) -> None: ...

    for enqueue in (
        lambda: bill.enqueue_sync(),
        lambda: bill.options(limit="account-{other}").enqueue_sync(account_id=1),
        lambda: bill.enqueue_many_sync([{"account_id": 1}, {}]),
        lambda: app.enqueue_sync("unknown here", {}, limit="account-{n}"),
        lambda: bill.enqueue_sync(account_id=None),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidTask, match=r"needs the argument '\w+', which the job does not have|must be text"):
            enqueue()
    assert jobs_in(folder) == 0


def test_job_under_no_limit_is_refused_with_the_cure(folder: Path) -> None:
    app = app_of(folder)
    for key in (None, "once"):
        with pytest.raises(InvalidLimit, match=r"no limit matches 'account-42'; define one: app\.limit") as refused:
            app.enqueue_sync("bill", limit="account-42", key=key)
        assert "headway limits put 'account-*' --concurrency 1" in str(refused.value)
    app.limit("account-42", concurrency=1)
    app.sync_sync()
    app.enqueue_sync("bill", limit="account-42")
    with pytest.raises(InvalidLimit, match="account-43"):
        app.enqueue_many_sync("bill", [{"n": 42}, {"n": 43}], limit="account-{n}")
    with sqlite3.connect(folder / "headway.db") as connection, pytest.raises(InvalidLimit, match="account-44"):
        app.enqueue_sync("bill", limit="account-44", tx=connection)
    assert jobs_in(folder) == 1


# --- schedules


def test_schedule_inherits_the_limit_of_its_task(folder: Path) -> None:
    app = app_of(folder)

    @app.task(limit="account-{account_id}")
    def bill(account_id: int) -> None: ...

    inherited = app.schedule("inherited", bill, Every("1h"), args={"account_id": 42})
    own = app.schedule("own", bill, Every("1h"), args={"account_id": 42}, limit="other-{x}")
    assert (inherited.limit, own.limit) == ("account-42", "other-{x}")
    assert ScheduleSpec.from_json(own.to_json()) == own
    assert "limit" not in ScheduleSpec.build(task="bill", trigger=Every("1h")).to_json()
    with pytest.raises(InvalidSchedule, match="must not begin with queue:"):
        app.schedule("wrong", bill, Every("1h"), args={"account_id": 42}, limit="queue:media")


def test_jobs_of_schedules_run_without_their_limit(folder: Path) -> None:
    """The limit may have been removed since the schedule was declared; its jobs are not lost."""
    app, ran = app_of(folder), []

    @app.task(limit="account-{account_id}")
    def bill(account_id: int) -> None:
        ran.append(account_id)

    app.schedule("hourly", bill, Every("1h"), args={"account_id": 42})
    with virtual(app, start="2027-01-01T00:30:00Z", seed=1) as world:
        world.advance(hours=1)
        world.drain()
        [job] = world.jobs()
    assert (job.job.limit_key, ran) == ("account-42", [42])


# --- what an app declares


def test_app_writes_its_limits_and_tenants(folder: Path) -> None:
    app = app_of(folder)
    app.limit("queue:media", concurrency=40)
    app.limit("account-*", concurrency=1, rate="10/s", burst=20)
    app.tenant("acme", weight=4, wait_slo="5s")
    first = app.sync_sync()
    assert first == {"limit:queue:media": "created", "limit:account-*": "created", "tenant:acme": "created"}
    assert set(app.sync_sync().values()) == {"unchanged"}

    later = app_of(folder)
    later.limit("queue:media", concurrency=30)
    done = later.sync_sync()
    assert done == {"limit:queue:media": "changed", "limit:account-*": "removed", "tenant:acme": "removed"}


def test_limit_of_another_owner_is_skipped(folder: Path, cli: Cli) -> None:
    shop, billing = app_of(folder), app_of(folder, "billing")
    for app in (shop, billing):
        app.limit("queue:media", concurrency=40 if app is shop else 4)
        app.tenant("acme", weight=4 if app is shop else 5)
    shop.sync_sync()
    skipped = billing.sync_sync()
    assert skipped["limit:queue:media"].startswith("skipped: the limit 'queue:media' was put by the app 'shop'")
    assert skipped["tenant:acme"].startswith("skipped: the tenant 'acme' was set by 'app:shop'")
    cli("limits", "put", "queue:media", "--concurrency", "7")
    cli("tenants", "set", "acme", "--weight", "9")
    again = shop.sync_sync()
    assert again["limit:queue:media"].startswith("skipped: the limit 'queue:media' was put by an operator")
    assert again["tenant:acme"].startswith("skipped: the tenant 'acme' was set by 'cli'")
    assert cli("limits", "show", "queue:media", "--json").json["concurrency"] == 7
    assert cli("tenants", "show", "acme", "--json").json["weight"] == 9
    cli("limits", "remove", "queue:media")
    assert shop.sync_sync()["limit:queue:media"] == "created"


async def test_what_is_not_known_to_be_declared_stays(folder: Path) -> None:
    app = app_of(folder)
    app.limit("queue:media", concurrency=40)
    app.tenant("acme", weight=4)
    async with app:
        await app.sync()
        store = await app.store()
        await sync_app(store, Declarations(owner="shop", schedules={}))
        assert [limit.name for limit in await store.limits.all()] == ["queue:media"]
        assert [*await store.tenants.all()] == ["acme"]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("queue:media", {}, "limits nothing: give it concurrency=5"),
        ("queue:media", {"concurrency": 0}, "from 1 to 10000, not 0; to stop a queue, pause it"),
        ("queue:media", {"concurrency": 10**9}, "from 1 to 10000"),
        ("queue:media", {"concurrency": True}, "whole number"),
        ("queue:media", {"rate": "10"}, "such as 10/s or 100/5m, not '10'"),
        ("queue:media", {"rate": "10/fortnight"}, "the time of a rate"),
        ("queue:media", {"rate": "0/s"}, "from 1 to"),
        ("queue:media", {"concurrency": 1, "burst": 2}, "burst of 'queue:media' needs a rate"),
        ("queue:", {"concurrency": 1}, "names no queue"),
        ("a*b", {"concurrency": 1}, "only be at the end"),
        ("", {"concurrency": 1}, "non-empty"),
    ],
)
def test_wrong_limits_are_refused_with_the_reason(folder: Path, name: str, options: Any, words: str) -> None:
    with pytest.raises(InvalidLimit) as refused:
        app_of(folder).limit(name, **options)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("acme", {"weight": 0}, "from 1 to 1000"),
        ("acme", {"weight": 1_001}, "from 1 to 1000"),
        ("acme", {"wait_slo": "soon"}, "wait_slo"),
        ("*", {"weight": 2}, "one tenant"),
    ],
)
def test_wrong_tenants_are_refused_with_the_reason(folder: Path, name: str, options: Any, words: str) -> None:
    with pytest.raises(InvalidLimit) as refused:
        app_of(folder).tenant(name, **options)
    assert words in str(refused.value)


def test_limit_cannot_be_declared_twice(folder: Path) -> None:
    app = app_of(folder)
    app.limit("queue:media", concurrency=40)
    with pytest.raises(InvalidLimit, match="two limits are named 'queue:media'; keep one"):
        app.limit("queue:media", concurrency=40)
    app.tenant("acme")
    with pytest.raises(InvalidLimit, match="two tenants are named 'acme'"):
        app.tenant("acme")


# --- headway.toml


def test_file_declares_limits_and_tenants(folder: Path) -> None:
    (folder / "headway.toml").write_text(TOML)
    app = app_of(folder)
    with pytest.raises(InvalidLimit, match=r"two limits are named 'account-\*', one of them in headway.toml"):
        app.limit("account-*", concurrency=1)
    assert app.sync_sync() == {"limit:account-*": "created", "tenant:acme": "created"}
    assert app.enqueue_sync("ping", {"account_id": 42}).job.limit_key == "account-42"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[limits."account-*"]\nconcurrency = 0', "headway.toml: limits.account-*: concurrency"),
        ('[limits."account-*"]\nconcurency = 1', "limits.account-*: unknown key 'concurency'"),
        ('[limits."account-*"]\nrate = "10"', "limits.account-*: rate must say"),
        ("[limits]\nmedia = 40", "limits.media must be a table"),
        ("[tenants.acme]\nweight = 0", "tenants.acme: weight"),
        ("[tenants.acme]\nwait_slo = true", "tenants.acme: wait_slo"),
    ],
)
def test_wrong_file_is_refused_with_the_key(folder: Path, text: str, words: str) -> None:
    (folder / "headway.toml").write_text(text)
    with pytest.raises(InvalidConfig) as refused:
        app_of(folder)
    assert words in str(refused.value)


# --- the command line


def test_limits_on_the_command_line(cli: Cli) -> None:
    assert cli("limits", "put", "account-*", "--concurrency", "1", "--rate", "10/s", "--burst", "20").out == (
        "account-* allows 1 at a time and 10/s, bursts of 20\n"
    )
    assert cli("queues", "limit", "media", "40").out == "queue:media allows 40 at a time (0 running)\n"
    assert cli("queues", "limit", "media", "40", "--json").json == {
        "name": "queue:media",
        "concurrency": 40,
        "rate": None,
        "burst": None,
        "owner": "",
        "in_force": True,
        "running": 0,
        "held": 0,
        "next_at": None,
        "changed": False,
    }
    assert [one["name"] for one in cli("limits", "list", "--json").json] == ["account-*", "queue:media"]
    assert "40" in cli("limits", "list").out
    assert cli("limits", "show", "queue:media").out == "queue:media allows 40 at a time; 0 running; 0 waiting\n"
    job = cli("enqueue", "bill", "-a", "id=42", "--limit", "account-{id}", "--json").json
    assert job["limit"] == "account-42"
    assert cli("enqueue", "bill", "--json").json["limit"] is None
    assert cli("limits", "remove", "queue:media").out == "queue:media is removed\n"
    assert cli("limits", "remove", "queue:media", "--json").error["code"] == "not_found"


def test_exit_codes_of_limits(cli: Cli) -> None:
    assert cli("limits", "list").code == 5
    assert cli("limits", "put", "x").code == 2
    assert cli("limits", "put", "x", "--concurrency", "0").code == 2
    assert cli("limits", "put", "x", "--concurrency", "1").code == 0
    assert cli("limits", "show", "y").code == 3
    assert cli("limits", "remove", "y").code == 3
    assert cli("tenants", "set", "acme").code == 2
    assert cli("tenants", "set", "acme", "--weight", "1001").code == 2
    refused = cli("enqueue", "bill", "--limit", "y-42", "--json")
    assert (refused.code, refused.error["code"]) == (2, "invalid_limit")


def test_tenants_on_the_command_line(cli: Cli) -> None:
    assert cli("tenants", "set", "acme", "--weight", "4", "--wait-slo", "5s").out == (
        "acme has the weight 4; its jobs should wait at most 5s\n"
    )
    assert cli("tenants", "set", "acme", "--weight", "4").out.startswith("acme already has the weight 4; its jobs")
    assert cli("tenants", "set", "acme", "--wait-slo", "0s", "--json").json["wait_slo"] is None
    assert [one["name"] for one in cli("tenants", "list", "--json").json] == ["acme"]
    assert "acme" in cli("tenants", "list").out
    assert cli("tenants", "show", "nobody", "--json").json == {
        "name": "nobody",
        "weight": 1,
        "wait_slo": None,
        "author": None,
        "used_seconds": 0.0,
        "used_part": 0.0,
        "ready": 0,
        "oldest_ready_at": None,
        "queues": [],
        "waits": 0,
        "wait_p50_seconds": None,
        "wait_p95_seconds": None,
        "meets_slo": None,
    }


# --- over HTTP


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def open_house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('limits')}/headway.db"
    else:
        template = request.getfixturevalue("migrated_database")
        url = request.getfixturevalue("postgres_server").create_database(template=template)
    with house(url) as made:
        yield made


@pytest.fixture
def home(open_house: House) -> Iterator[House]:
    """The house of all tests of this module; what a test has started does not run in the next one."""
    yield open_house
    open_house.write(
        "update headway_jobs set status = 'COMPLETED', finished_at = updated_at, lease_until = null"
        " where lease_until is not null"
    )


def start(home: House, queue: str) -> None:
    """Start one job of a queue."""

    async def take(store: Store) -> None:
        assert await claim(store, queue, node="node", lease=HOUR, limit=1)

    home.on_store(take)


def test_limit_counts_jobs_and_names_holders_to_operators_only(home: House) -> None:
    limits = {"queue:counted": 5, "counted-*": 1, "tenant:globex": 9}
    for name, concurrency in limits.items():
        assert home.everybody.put(f"/api/limits/{name}", json={"concurrency": concurrency}).json()["changed"] is True
    ids = {}
    for tenant in ("acme", "globex"):
        body = {"type": "report", "queue": "counted", "limit": "counted-{n}", "args": {"n": tenant}}
        assert getattr(home, tenant).post("/api/jobs", json=body).status_code == 403  # Others may share the limit.
        ids[tenant] = [home.root.post("/api/jobs", json={**body, "tenant": tenant}).json()["id"] for _ in range(2)]
        start(home, "counted")
    shown = home.root.get("/api/limits/queue:counted").json()
    assert (shown["running"], {one["id"] for one in shown["holders"]}) == (2, {ids["acme"][0], ids["globex"][0]})
    assert [one["tenant"] for one in shown["holders"]] == ["acme", "globex"]
    assert home.root.get("/api/limits/counted-*").json()["running"] is None
    assert len(home.root.get("/api/limits/counted-*").json()["holders"]) == 2

    mine = {one["name"]: one["running"] for one in home.acme.get("/api/limits").json()["items"]}
    assert mine == {"queue:counted": 1, "counted-*": 1}
    shown = home.acme.get("/api/limits/queue:counted").json()
    assert ([one["id"] for one in shown["holders"]], shown["running"]) == ([ids["acme"][0]], 1)
    assert home.acme.get("/api/limits/tenant:globex").status_code == 404
    globex = {one["name"]: one["running"] for one in home.globex.get("/api/limits").json()["items"]}
    assert globex == {"queue:counted": 1, "counted-*": 1, "tenant:globex": 1}


def test_exact_limit_takes_over_from_a_pattern(home: House) -> None:
    for name in ("exact-*", "exact-1"):
        home.root.put(f"/api/limits/{name}", json={"concurrency": 1})
    for number in (1, 2):
        home.root.post("/api/jobs", json={"type": "report", "queue": "exact", "limit": f"exact-{number}"})
        start(home, "exact")
    holders = {name: len(home.root.get(f"/api/limits/{name}").json()["holders"]) for name in ("exact-*", "exact-1")}
    assert holders == {"exact-*": 1, "exact-1": 1}
    assert "'exact-*' holds for it" in home.root.get("/api/limits/exact-2").json()["error"]["message"]


def test_every_write_has_one_audit_entry(home: House) -> None:
    home.root.put("/api/limits/queue:audited", json={"concurrency": 5})
    home.root.put("/api/limits/queue:audited", json={"concurrency": 5})
    home.root.put("/api/limits/queue:audited", json={"rate": "10/m"})
    home.root.delete("/api/limits/queue:audited")
    home.root.put("/api/tenants/audited", json={"weight": 3})
    found = home.root.get("/api/audit-log").json()["items"]
    entries = [(one["action"], one["detail"]) for one in found if one["target"] in ("queue:audited", "audited")][::-1]
    five, ten = (
        {"concurrency": 5, "rate": None, "burst": None},
        {"concurrency": None, "rate": "10/m", "burst": None},
    )
    assert entries == [
        ("limit.put", {"before": None, "after": five}),
        ("limit.put", {"before": five, "after": ten}),
        ("limit.remove", {"before": ten}),
        ("tenant.put", {"before": None, "after": {"weight": 3, "wait_slo": None}}),
    ]


def test_writes_need_a_role_and_a_token_for_all_tenants(home: House) -> None:
    for client in (home.acme, home.viewer):
        assert client.put("/api/limits/queue:denied", json={"concurrency": 5}).status_code == 403
        assert client.delete("/api/limits/queue:denied").status_code == 403
        assert client.put("/api/tenants/acme", json={"weight": 5}).status_code == 403
    assert home.root.get("/api/limits/queue:denied").status_code == 404
    assert home.acme.get("/api/tenants/acme").status_code == 200
    assert home.acme.get("/api/tenants/globex").status_code == 403


def test_refusals_over_http(home: House) -> None:
    for body in ({}, {"concurrency": 0}, {"concurrency": 10**9}, {"rate": "10"}, {"concurrency": 1, "burst": 2}):
        refused = home.root.put("/api/limits/wrong", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_limit"), body
    for limit in ("nobody-42", "account-{missing}", "queue:media", ""):
        before = home.root.get("/api/jobs/count").json()
        assert home.root.post("/api/jobs", json={"type": "report", "limit": limit}).status_code == 422
        bulk = {"jobs": [{"type": "report"}, {"type": "report", "limit": limit}]}
        assert home.root.post("/api/jobs/bulk", json=bulk).status_code == 422
        assert home.root.get("/api/jobs/count").json() == before
    with Client(home.api.url, SECRET) as client:
        with pytest.raises(InvalidLimit, match="no limit matches 'nobody-42'"):
            client.enqueue("report", limit="nobody-42")
        with pytest.raises(InvalidLimit, match="from 1 to 10000"):
            client.limits.put("wrong", concurrency=0)


def test_tenant_shows_its_use_and_its_waits(home: House) -> None:
    home.root.put("/api/tenants/globex", json={"weight": 4, "wait_slo": "1d"})
    for _ in range(2):
        home.globex.post("/api/jobs", json={"type": "report", "queue": "used"})
    start(home, "used")
    shown = home.root.get("/api/tenants/globex").json()
    assert (shown["weight"], shown["wait_slo"], shown["meets_slo"]) == (4, "1d", True)
    assert shown["waits"] >= 1
    assert "share_seconds" in next(one for one in shown["queues"] if one["queue"] == "used")
    own = home.globex.get("/api/tenants/globex").json()
    assert all("share_seconds" not in one for one in own["queues"])
    assert [one["name"] for one in home.globex.get("/api/tenants").json()["items"]] == ["globex"]
    home.root.put("/api/tenants/globex", json={"weight": 7})

    async def weights(store: Store) -> list[int]:
        shares = await store.driver.fetch(call("next_shares", queue="used", needs="", past="[]", limit=10))
        return [share["weight"] for share in shares if share["tenant"] == "globex"]

    assert home.on_store(weights) == [7]
    assert home.root.get("/api/tenants/globex").json()["wait_slo"] == "1d"
