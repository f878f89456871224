"""API keys: every route has a role, every role opens its routes, and refusals disclose nothing."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient
from starlette.routing import BaseRoute, Mount, Route

from app.api.access import OPEN, ROLES
from app.config import Settings
from app.main import ROUTERS, create_app
from app.store import keys
from app.store.roles import Role
from app.store.session import Database
from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.busy_machine import until

pytestmark = pytest.mark.slow

NEEDS = [(method, path, need) for path, needs in ROLES.items() for method, need in needs.items()]
HTML = {"Accept": "text/html"}


def told(route: BaseRoute) -> set[tuple[str, str]]:
    assert isinstance(route, Route | Mount), route
    if isinstance(route, Mount):
        return {("GET", f"{route.path}/{{path:path}}")}
    return {(method, route.path) for method in (route.methods or {"GET"}) - {"HEAD"}}


def test_every_route_and_only_routes_have_a_role() -> None:
    everywhere = create_app(Settings()).routes
    mine = [route for route in everywhere if isinstance(route, Route | Mount)]
    assert len(everywhere) == len(mine) + len(ROUTERS)
    mine += [route for router in ROUTERS for route in router.routes]
    routes = set(itertools.chain.from_iterable(told(route) for route in mine))
    assert routes == {(method, path) for method, path, _ in NEEDS}, "see app/api/access.py"


@pytest.fixture(scope="module")
def held(database: Database) -> dict[Role, str]:
    with database.begin() as connection:
        return {role: keys.create(connection, role.name, role)[1] for role in Role}


@pytest.fixture(scope="module")
def guarded(settings: Settings, held: dict[Role, str]) -> Iterator[TestClient]:
    asking = dataclasses.replace(settings, keys="on", rate_limit="off")
    with TestClient(create_app(asking), raise_server_exceptions=False, follow_redirects=False) as running:
        yield running


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def submit(client: TestClient, path: str, key: str) -> Any:
    """Fill the form of the sign-in page and send it, as a browser does."""
    found = re.search(r'name="token" value="([^"]+)"', client.get(path).text)
    assert found is not None
    return client.post(path, data={"key": key, "token": found.group(1)})


def ask(client: TestClient, method: str, path: str, key: str | None) -> Any:
    """What does no harm: bodies are no objects, names are nobody's."""
    body = None if method == "GET" else "0"
    headers = {"content-type": "application/json", **(bearing(key) if key else {})}
    client.cookies.clear()
    return client.request(method, re.sub(r"{[^}]+}", "999999", path), content=body, headers=headers)


@pytest.mark.parametrize(("method", "path", "need"), NEEDS)
def test_every_route_for_every_role(
    guarded: TestClient, held: dict[Role, str], method: str, path: str, need: Role | None
) -> None:
    if need is OPEN:
        assert "urn:gpucast:problem:unauthorized" not in ask(guarded, method, path, None).text
        return
    assert ask(guarded, method, path, None).status_code == 401
    for role, key in held.items():
        answer = ask(guarded, method, path, key)
        if role < need:
            assert answer.status_code == 403
            assert answer.json() == {
                "type": "urn:gpucast:problem:forbidden",
                "title": "Forbidden",
                "status": 403,
                "detail": "This API key may not do that.",
            }
        else:
            assert answer.status_code not in (401, 403) and answer.status_code < 500


def test_a_prediction_needs_a_key_with_the_predict_role(guarded: TestClient, held: dict[Role, str]) -> None:
    answer = guarded.post("/predict", json=PREDICT_EXAMPLE, headers=bearing(held[Role.PREDICT]))
    assert answer.status_code == 200
    assert guarded.post("/predict", json=PREDICT_EXAMPLE, headers=bearing(held[Role.READ])).status_code == 403


def test_wrong_revoked_and_missing_keys_get_the_same_response(guarded: TestClient, held: dict[Role, str]) -> None:
    admin = bearing(held[Role.ADMIN])
    made = guarded.post("/keys", json={"name": "passing", "role": "read"}, headers=admin).json()
    assert guarded.get("/gpus", headers=bearing(made["key"])).status_code == 200
    assert guarded.delete(f"/keys/{made['id']}", headers=admin).status_code == 204
    refused = [
        guarded.get("/gpus", headers=headers)
        for headers in (
            {},
            bearing(made["key"]),
            bearing("gpucast_wrong"),
            bearing(""),
            {"Authorization": "Basic eDp5"},
            {"Authorization": "Bearer"},
            {"Cookie": f"gpucast_key={made['key']}"},
        )
    ]
    assert {answer.status_code for answer in refused} == {401}
    assert len({answer.content for answer in refused}) == 1
    assert refused[0].headers["www-authenticate"] == "Bearer"
    assert refused[0].headers["content-type"] == "application/problem+json"
    assert guarded.delete(f"/keys/{made['id']}", headers=admin).status_code == 404
    listed = guarded.get("/keys", headers=admin)
    assert made["key"] not in listed.text
    assert next(item for item in listed.json()["items"] if item["id"] == made["id"])["revoked_at"]


def test_only_the_hash_is_stored(database: Database, held: dict[Role, str]) -> None:
    with database.begin() as connection:
        stored = keys.active(connection)
    assert keys.digest(held[Role.READ]) in stored
    assert not any(key.removeprefix(keys.PREFIX).encode() in digest for key in held.values() for digest in stored)
    assert all(len(key.removeprefix(keys.PREFIX)) == 43 for key in held.values()), "256 bits, six to a letter"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"name": "", "role": "read"},
        {"name": "a\0b", "role": "read"},
        {"name": "x", "role": "god"},
        {"name": "x", "role": "read", "expires_in_days": 0},
    ],
)
def test_bad_keys_are_refused_by_field(guarded: TestClient, held: dict[Role, str], body: dict[str, Any]) -> None:
    answer = guarded.post("/keys", json=body, headers=bearing(held[Role.ADMIN]))
    assert answer.status_code == 422 and answer.json()["errors"]


def test_unknown_paths_are_401_without_a_key(guarded: TestClient, held: dict[Role, str]) -> None:
    assert guarded.get("/nothing").status_code == 401
    assert guarded.get("/nothing", headers=bearing(held[Role.READ])).status_code == 404
    assert guarded.put("/predict", headers=bearing(held[Role.READ])).status_code == 405


def test_a_browser_signs_in_and_out(guarded: TestClient, held: dict[Role, str]) -> None:
    guarded.cookies.clear()
    sent = guarded.get("/gpus?x=1", headers=HTML)
    assert (sent.status_code, sent.headers["location"]) == (303, "/sign-in?next=%2Fgpus%3Fx%3D1")
    form = guarded.get(sent.headers["location"])
    assert form.status_code == 200 and "<form" in form.text
    wrong = submit(guarded, sent.headers["location"], "wrong")
    assert wrong.status_code == 401 and "alert" in wrong.text and "gpucast_key" not in wrong.headers["set-cookie"]
    right = submit(guarded, sent.headers["location"], held[Role.READ])
    assert (right.status_code, right.headers["location"]) == (303, "/gpus?x=1")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(right.headers["set-cookie"].split("; "))
    assert guarded.get("/gpus", headers=HTML).status_code == 200
    guarded.post("/sign-out")
    assert guarded.get("/gpus", headers=HTML).status_code == 303


@pytest.mark.parametrize("target", ["https://elsewhere", "//elsewhere", "/\\elsewhere", "/\t/elsewhere", "x"])
def test_a_sign_in_redirects_only_within_the_site(guarded: TestClient, held: dict[Role, str], target: str) -> None:
    answer = submit(guarded, f"/sign-in?{urlencode({'next': target})}", held[Role.READ])
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize("token", [None, "", "another"])
def test_a_sign_in_needs_the_token_of_its_form(guarded: TestClient, held: dict[Role, str], token: str | None) -> None:
    """Another site could else sign a visitor in with a key of its own, and see what he uploads."""
    guarded.cookies.clear()
    if token != "":
        guarded.get("/sign-in")
    answer = guarded.post("/sign-in", data={"key": held[Role.READ]} | ({} if token is None else {"token": token}))
    assert answer.status_code == 403 and "gpucast_key" not in answer.headers["set-cookie"]
    assert re.search(r'name="token" value="[\w-]{22}"', answer.text), "and gets a new one"


def test_the_form_runs_no_script_and_is_shown_in_no_frame(guarded: TestClient) -> None:
    form = guarded.get("/sign-in")
    assert "<style" not in form.text and "<script" not in form.text
    assert "frame-ancestors 'none'" in form.headers["content-security-policy"]
    assert guarded.get(re.findall(r'href="(/static/[^"]+)"', form.text)[0]).status_code == 200


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 422), (None, 422)]
)
def test_a_change_with_the_cookie_comes_from_our_own_pages(
    guarded: TestClient, held: dict[Role, str], site: str | None, status: int
) -> None:
    sent = {} if site is None else {"Sec-Fetch-Site": site}
    cookie = {"Cookie": f"gpucast_key={held[Role.ADMIN]}"}
    assert guarded.post("/keys", json={}, headers=sent | cookie).status_code == status
    assert guarded.get("/gpus", headers=sent | cookie).status_code == 200, "looking changes nothing"
    assert guarded.post("/keys", json={}, headers=sent | bearing(held[Role.ADMIN])).status_code == 422


@pytest.mark.parametrize(
    ("origin", "status"), [("https://evil.example", 403), ("null", 403), ("http://testserver", 422), (None, 422)]
)
def test_an_origin_tells_where_fetch_metadata_are_not_sent(
    guarded: TestClient, held: dict[Role, str], origin: str | None, status: int
) -> None:
    headers = {"Cookie": f"gpucast_key={held[Role.ADMIN]}"} | ({} if origin is None else {"Origin": origin})
    assert guarded.post("/keys", json={}, headers=headers).status_code == status
    assert guarded.delete("/prices", headers=headers).status_code == status


def test_a_key_expires_by_itself(guarded: TestClient, held: dict[Role, str]) -> None:
    body = {"name": "short", "role": "read", "expires_in_days": 1.5 / 86400}
    made = guarded.post("/keys", json=body, headers=bearing(held[Role.ADMIN])).json()
    assert guarded.get("/gpus", headers=bearing(made["key"])).status_code == 200
    until(lambda: guarded.get("/gpus", headers=bearing(made["key"])).status_code == 401)
    assert submit(guarded, "/sign-in", made["key"]).status_code == 401
    rotated = guarded.post(f"/keys/{made['id']}/rotate", json={}, headers=bearing(held[Role.ADMIN]))
    assert rotated.status_code == 404


def test_a_rotated_key_has_one_successor_and_ends(guarded: TestClient, held: dict[Role, str]) -> None:
    admin = bearing(held[Role.ADMIN])
    old = guarded.post("/keys", json={"name": "x", "role": "read", "expires_in_days": 30}, headers=admin).json()
    new = guarded.post(f"/keys/{old['id']}/rotate", json={}, headers=admin).json()
    assert (new["name"], new["role"]) == ("x", "read") and new["key"] != old["key"]
    lifetimes = [
        datetime.fromisoformat(key["expires_at"]) - datetime.fromisoformat(key["created_at"]) for key in (old, new)
    ]
    assert lifetimes == [timedelta(days=30)] * 2
    assert [guarded.get("/gpus", headers=bearing(key["key"])).status_code for key in (old, new)] == [200, 200]
    assert guarded.post(f"/keys/{old['id']}/rotate", json={}, headers=admin).status_code == 409
    last = guarded.post(f"/keys/{new['id']}/rotate", json={"grace_hours": 0}, headers=admin).json()
    assert [guarded.get("/gpus", headers=bearing(key["key"])).status_code for key in (new, last)] == [401, 200]
    listed = {key["id"]: key for key in guarded.get("/keys", headers=admin).json()["items"]}
    ends = datetime.fromisoformat(listed[old["id"]]["expires_at"]) - datetime.now(UTC)
    assert timedelta(hours=23) < ends < timedelta(hours=25)


def test_what_is_done_to_keys_is_recorded_with_who_did_it(
    guarded: TestClient, held: dict[Role, str], database: Database
) -> None:
    admin = bearing(held[Role.ADMIN])
    with database.begin() as connection:
        me = keys.active(connection)[keys.digest(held[Role.ADMIN])].id
        by_command = keys.create(connection, "y", Role.READ)[0].id
    made = guarded.post("/keys", json={"name": "x", "role": "read"}, headers=admin).json()["id"]
    successor = guarded.post(f"/keys/{made}/rotate", json={}, headers=admin).json()["id"]
    guarded.delete(f"/keys/{made}", headers=admin)
    events = guarded.get("/keys/events", headers=admin).json()["items"]
    told = [(event["key_id"], event["action"], event["actor"]) for event in events]
    who = f"key {me}"
    assert told[:4] == [
        (made, "revoked", who),
        (successor, "created", who),
        (made, "rotated", who),
        (made, "created", who),
    ]
    assert (by_command, "created", "command line") in told
    assert guarded.get("/keys/events", headers=bearing(held[Role.CONTRIBUTE])).status_code == 403


def test_rate_limits_are_per_caller(settings: Settings, held: dict[Role, str]) -> None:
    asking = dataclasses.replace(settings, keys="on", rate_limit="3/hour")
    with TestClient(create_app(asking)) as client:
        many = [client.get("/gpus", headers=bearing(held[Role.READ])) for _ in range(4)]
        assert [answer.status_code for answer in many] == [200, 200, 200, 429]
        assert 0 < int(many[-1].headers["retry-after"]) <= 3600
        assert many[-1].headers["content-type"] == "application/problem+json"
        assert client.get("/gpus", headers=bearing(held[Role.PREDICT])).status_code == 200
        assert [client.get("/gpus").status_code for _ in range(4)] == [401, 401, 401, 429]
        assert client.get("/healthz").status_code == 200


def test_signing_in_is_within_the_rate_limit(settings: Settings) -> None:
    asking = dataclasses.replace(settings, keys="on", rate_limit="3/day")  # not the window of the test before
    with TestClient(create_app(asking)) as client:
        assert [client.post("/sign-in", data={"key": "none"}).status_code for _ in range(4)] == [403, 403, 403, 429]
        assert [client.get("/readyz").status_code for _ in range(4)] == [200] * 4


def test_a_price_is_deleted_by_the_key_that_sent_it(guarded: TestClient, held: dict[Role, str]) -> None:
    sender, admin = bearing(held[Role.CONTRIBUTE]), bearing(held[Role.ADMIN])
    price = {"gpu": "l40s", "usd_per_hour": 1.0, "source": "mine", "date": "2026-01-01"}
    made = guarded.post("/keys", json={"name": "other", "role": "contribute"}, headers=admin).json()
    guarded.post("/prices", json=[price], headers=sender).raise_for_status()
    (item,) = guarded.get("/prices", params={"source": "mine"}, headers=admin).json()["items"]
    assert guarded.delete(f"/prices/{item['id']}", headers=bearing(made["key"])).status_code == 404
    assert guarded.delete(f"/prices/{item['id']}", headers=sender).status_code == 204
    guarded.post("/prices", json=[price], headers=sender).raise_for_status()
    withdrawn = guarded.delete("/prices", params={"key": made["id"]}, headers=admin).json()
    assert withdrawn == {"prices": 0, "dry_run": False}
