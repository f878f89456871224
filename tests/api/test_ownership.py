"""Saved answers and graphs belong to the key that saved them, which alone lists and deletes them, up to a bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from app import worker
from app.config import Settings
from app.engine.prices import today_utc
from app.main import create_app
from app.runtime import sized_cache
from app.store import keys, queue
from app.store.roles import Role
from app.store.session import Database
from app.store.sql_tables import SAVED_PREDICTIONS as SAVED
from app.wire.compare_form import COMPARE_EXAMPLE
from app.wire.graph_form import GRAPH_EXAMPLE
from app.wire.job_plan_form import PLAN_EXAMPLE
from app.wire.llm_d_form import STATE_EXAMPLE
from app.wire.prediction_form import PREDICT_EXAMPLE
from tests.api.test_llm_d import WORKLOAD

pytestmark = pytest.mark.slow

MOST = 4


class Caller:
    """A client with a key of its own."""

    def __init__(self, client: TestClient, database: Database, role: Role = Role.PREDICT) -> None:
        with database.begin() as connection:
            self.key, secret = keys.create(connection, "owner", role)
        client.app.state.holder.refresh()  # type: ignore[attr-defined]
        self.client, self.headers = client, {"Authorization": f"Bearer {secret}"}

    def send(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        return self.client.request(method, path, json=body, params=params or None, headers=self.headers)

    def status(self, method: str, path: str, body: Any = None, **params: Any) -> int:
        return int(self.send(method, path, body, **params).status_code)

    def save(self, path: str = "/predict", body: Any = PREDICT_EXAMPLE) -> int:
        answer = self.send("POST", path, {**body, "save": True})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["id"])

    def saved(self, saved_id: int) -> dict[str, Any]:
        answer = self.send("GET", f"/predictions/{saved_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def graph(self, name: str) -> str:
        answer = self.send("POST", "/graphs", GRAPH_EXAMPLE | {"name": name})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["graph_id"])

    def listed(self, path: str) -> set[Any]:
        items = self.send("GET", path, limit=1000).json()["items"]
        return {item.get("id", item.get("graph_id")) for item in items}


@pytest.fixture(scope="module")
def guarded(settings: Settings) -> Iterator[TestClient]:
    bounds = {"max_saved_per_key": MOST, "max_graphs_per_key": MOST}
    required = dataclasses.replace(settings, keys="on", rate_limit="off", **bounds)  # type: ignore[arg-type]
    with TestClient(create_app(required), raise_server_exceptions=False) as running:
        yield running


@pytest.fixture
def owner(guarded: TestClient, database: Database) -> Caller:
    return Caller(guarded, database)


@pytest.fixture
def other(guarded: TestClient, database: Database) -> Caller:
    return Caller(guarded, database)


@pytest.fixture
def reader(guarded: TestClient, database: Database) -> Caller:
    return Caller(guarded, database, Role.READ)


@pytest.fixture
def admin(guarded: TestClient, database: Database) -> Caller:
    return Caller(guarded, database, Role.ADMIN)


@pytest.mark.parametrize(
    ("path", "body"), [("/predict", PREDICT_EXAMPLE), ("/compare", COMPARE_EXAMPLE), ("/plan", PLAN_EXAMPLE)]
)
def test_a_saved_answer_is_its_keys(owner: Caller, other: Caller, admin: Caller, path: str, body: Any) -> None:
    saved_id = owner.save(path, body)
    assert saved_id in owner.listed("/predictions") & admin.listed("/predictions")
    assert saved_id not in other.listed("/predictions")
    unknown = other.send("GET", "/predictions/999999").text
    for name in (f"/predictions/{saved_id}", f"/predictions/{saved_id}.pdf"):
        assert owner.status("GET", name) == admin.status("GET", name) == 200
        refused = other.send("GET", name)
        assert (refused.status_code, refused.text) == (404, unknown.replace("999999", str(saved_id)))


def test_a_saved_answer_is_shared_by_its_token(owner: Caller, other: Caller, reader: Caller, admin: Caller) -> None:
    saved_id, another = owner.save(), other.save()
    saved = owner.saved(saved_id)
    assert len(saved["share"]) == 43, "256 bits, six to a letter"
    assert saved["link"] == f"/predictions/{saved_id}?share={saved['share']}"
    assert admin.saved(saved_id)["share"] == saved["share"]
    for caller in (other, reader):
        shared = caller.send("GET", saved["link"])
        assert shared.status_code == 200 and "share" not in shared.json() and "link" not in shared.json()
        assert (shared.headers["Cache-Control"], shared.headers["Referrer-Policy"]) == ("no-store", "no-referrer")
        assert caller.status("GET", f"/predictions/{saved_id}.pdf", share=saved["share"]) == 200
        assert caller.listed("/predictions").isdisjoint({saved_id})
    for wrong in ("", "x", "\0", "é" * 43, saved["share"][:-1], "A" * 43, "x" * 500, other.saved(another)["share"]):
        assert other.status("GET", f"/predictions/{saved_id}", share=wrong) == 404
    for path in (
        f"{saved_id}%2F..%2F{saved_id}",
        "0",
        "%00",
        f"{saved_id}?share=x",
        f"{saved_id}.pdf.pdf",
        f"{10**30}",
    ):
        token = f"{'&' if '?' in path else '?'}share={saved['share']}"
        assert other.status("GET", f"/predictions/{path}{token}") in (404, 422), path
    assert other.status("DELETE", f"/predictions/{saved_id}", share=saved["share"]) in (404, 422)
    assert owner.saved(saved_id)


def test_a_gateway_reads_anothers_by_its_token(
    owner: Caller, other: Caller, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = {"gpu": "h100-sxm5-80gb", "workload": WORKLOAD}
    saved_id = owner.save("/predict", served)
    share, below = owner.saved(saved_id)["share"], f"/llm-d/{saved_id}"
    routes = (("GET", "status", None), ("POST", "predict", STATE_EXAMPLE), ("POST", "predict/bulk", None))
    for method, route, body in routes:
        sent = {"requests": [STATE_EXAMPLE]} if route == "predict/bulk" else body
        for _ in range(2):  # read, and then held
            assert owner.status(method, f"{below}/{route}", sent) == 200
            assert admin.status(method, f"{below}/{route}", sent) == 200
            assert other.status(method, f"{below}/{route}", sent) == 404
            assert other.status(method, f"{below}/{route}", sent, share="A" * 43) == 404
            assert other.status(method, f"{below}/{route}", sent, share=share) == 200
    assert owner.status("DELETE", f"/predictions/{saved_id}") == 204
    monkeypatch.setattr(sized_cache, "CHECK_S", -1.0)
    assert other.status("POST", f"{below}/predict", STATE_EXAMPLE, share=share) == 404


def test_owners_and_admins_delete_saved_answers(owner: Caller, other: Caller, reader: Caller, admin: Caller) -> None:
    first, second = owner.save(), owner.save()
    unknown = other.send("DELETE", "/predictions/999999")
    refused = other.send("DELETE", f"/predictions/{first}")
    assert (refused.status_code, refused.text) == (404, unknown.text.replace("999999", str(first)))
    assert reader.status("DELETE", f"/predictions/{first}") == 403
    assert owner.status("DELETE", f"/predictions/{first}") == 204
    assert admin.status("DELETE", f"/predictions/{second}") == 204
    for saved_id in (first, second):
        assert owner.status("GET", f"/predictions/{saved_id}") == admin.status("GET", f"/predictions/{saved_id}") == 404
        assert owner.status("DELETE", f"/predictions/{saved_id}") == 404


def test_the_pdf_of_a_saved_answer_is_only_read(client: TestClient) -> None:
    for path, methods in (("/predictions/1.pdf", "GET, HEAD"), ("/predictions/1", "DELETE, GET, HEAD")):
        assert client.options(path).headers["allow"] == methods
    assert client.delete("/predictions/1.pdf").status_code == 405


def test_what_was_saved_without_a_key_is_everybodys(client: TestClient, other: Caller, admin: Caller) -> None:
    saved_id = client.post("/predict", json={**PREDICT_EXAMPLE, "save": True}).json()["id"]
    kept = client.post("/predict", json={**PREDICT_EXAMPLE, "save": True}).json()["id"]
    graph_id = client.post("/graphs", json=GRAPH_EXAMPLE | {"name": "everybody's"}).json()["graph_id"]
    assert "share" not in client.get(f"/predictions/{saved_id}").json()
    assert "share" not in admin.saved(saved_id)
    assert other.saved(saved_id)["unchanged"] and saved_id in other.listed("/predictions")
    assert other.graph("everybody's") == graph_id and graph_id in admin.listed("/graphs") & other.listed("/graphs")
    for path in (f"/predictions/{saved_id}", f"/graphs/{graph_id}"):
        assert other.status("DELETE", path) == 404 and other.status("GET", path) == 200
        assert admin.status("DELETE", path) == 204 and other.status("GET", path) == 404
    assert client.delete(f"/predictions/{kept}").status_code == 204, "no key is required here"
    assert client.delete(f"/predictions/{kept}").status_code == 404


def test_without_keys_all_is_seen_and_deleted(client: TestClient, owner: Caller, other: Caller) -> None:
    saved_id, graph_id = owner.save(), owner.graph("seen without keys")
    assert other.graph("seen without keys") == graph_id
    for path in (f"/predictions/{saved_id}", f"/graphs/{graph_id}"):
        assert client.get(path).status_code == 200
        assert client.delete(path).status_code == 204
        assert owner.status("GET", path) == 404


def test_a_graph_lives_as_long_as_an_owner(owner: Caller, other: Caller, reader: Caller) -> None:
    graph_id = owner.graph("two owners")
    path, workload = f"/graphs/{graph_id}", {"kind": "graph", "graph_id": graph_id}
    asked = {"gpu": "nvidia-l4", "workload": workload}
    saved_id = owner.save("/predict", asked)
    assert graph_id in owner.listed("/graphs") and graph_id not in other.listed("/graphs") | reader.listed("/graphs")
    assert other.status("GET", path) == other.status("POST", "/predict", asked) == 200, "its id is its share link"
    assert other.status("DELETE", path) == 404 and reader.status("DELETE", path) == 403
    assert other.graph("two owners") == other.graph("two owners") == graph_id
    assert owner.status("DELETE", path) == 204 and owner.status("DELETE", path) == 404
    assert graph_id in other.listed("/graphs") and graph_id not in owner.listed("/graphs")
    assert owner.status("POST", "/predict", asked) == 200
    assert other.status("DELETE", path) == 204
    assert other.status("GET", path) == other.status("POST", "/predict", asked) == 404
    saved = owner.saved(saved_id)
    assert saved["unchanged"] is None and graph_id in saved["gone"][0] and saved["answer"]["predictions"]


def test_an_admin_deletes_a_graph_for_all(owner: Caller, other: Caller, admin: Caller) -> None:
    graph_id = owner.graph("an admin's to delete")
    other.graph("an admin's to delete")
    assert graph_id in admin.listed("/graphs")
    assert admin.status("DELETE", f"/graphs/{graph_id}") == 204
    assert owner.status("GET", f"/graphs/{graph_id}") == admin.status("DELETE", f"/graphs/{graph_id}") == 404


def test_the_successor_of_a_key_owns_what_it_saved(owner: Caller, guarded: TestClient, database: Database) -> None:
    saved_id, graph_id = owner.save(), owner.graph("of two keys in turn")
    with database.begin() as connection:
        (second, _) = keys.rotate(connection, owner.key.id, grace=timedelta(hours=1))
        (_, secret) = keys.rotate(connection, second.id, grace=timedelta(hours=1))
    third = Caller(guarded, database)
    third.headers = {"Authorization": f"Bearer {secret}"}
    assert third.saved(saved_id)["share"] == owner.saved(saved_id)["share"]
    assert graph_id in third.listed("/graphs")
    later = third.save()
    assert {saved_id, later} <= owner.listed("/predictions") & third.listed("/predictions")
    assert third.status("DELETE", f"/graphs/{graph_id}") == 204


def test_the_successor_of_a_key_deletes_what_prices_it_sent(guarded: TestClient, database: Database) -> None:
    first = Caller(guarded, database, Role.CONTRIBUTE)
    price = {"gpu": "l4", "usd_per_hour": 0.7, "source": "of two keys", "date": today_utc().isoformat()}
    assert first.status("POST", "/prices", [price]) == 200
    with database.begin() as connection:
        (second, _) = keys.rotate(connection, first.key.id, grace=timedelta(hours=1))
        (_, secret) = keys.rotate(connection, second.id, grace=timedelta(hours=1))
    third = Caller(guarded, database)
    third.headers = {"Authorization": f"Bearer {secret}"}
    (item,) = third.send("GET", "/prices", source="of two keys").json()["items"]
    stranger = Caller(guarded, database, Role.CONTRIBUTE)
    assert stranger.status("DELETE", f"/prices/{item['id']}") == 404
    assert third.status("DELETE", f"/prices/{item['id']}") == 204
    assert third.send("GET", "/prices", source="of two keys").json()["items"] == []


def test_a_key_saves_up_to_a_bound(owner: Caller, other: Caller) -> None:
    with ThreadPoolExecutor(4) as pool:
        saved = list(pool.map(lambda _: owner.send("POST", "/predict", PREDICT_EXAMPLE | {"save": True}), range(12)))
    assert sorted(answer.status_code for answer in saved) == [200] * MOST + [409] * (12 - MOST)
    refused = next(answer for answer in saved if answer.status_code == 409)
    assert "DELETE /predictions/{id}" in refused.json()["detail"]
    assert owner.status("POST", "/predict", PREDICT_EXAMPLE) == 200 and other.save()
    first = next(answer for answer in saved if answer.status_code == 200).json()["id"]
    assert owner.status("DELETE", f"/predictions/{first}") == 204
    assert owner.save() and owner.status("POST", "/plan", PLAN_EXAMPLE | {"save": True}) == 409


def test_a_key_has_graphs_up_to_a_bound(owner: Caller, other: Caller) -> None:
    graphs = [owner.graph(f"bounded {k}") for k in range(MOST)]
    body = GRAPH_EXAMPLE | {"name": "one more"}
    refused = owner.send("POST", "/graphs", body)
    assert refused.status_code == 409 and "DELETE /graphs/{id}" in refused.json()["detail"]
    assert owner.graph("bounded 0") == graphs[0], "sent again, it is no other"
    assert other.graph("one more") not in owner.listed("/graphs")
    assert owner.status("POST", "/graphs", body) == 409
    assert owner.status("DELETE", f"/graphs/{graphs[0]}") == 204 and owner.graph("one more")


def test_workers_remove_saved_answers_of_an_age(guarded: TestClient, owner: Caller, database: Database) -> None:
    old, new = owner.save(), owner.save()
    with database.begin() as connection:
        earlier = sa.func.now() - timedelta(days=2)
        connection.execute(sa.update(SAVED).where(SAVED.c.id <= old).values(created_at=earlier))
    runtime = guarded.app.state.runtime  # type: ignore[attr-defined]
    reaper = queue.Reaper(stalled_after_s=3600.0, attempts=1)
    for days, left in ((0.0, {old, new}), (1e14, {old, new}), (3.0, {old, new}), (1.0, {new})):
        aged = dataclasses.replace(runtime, settings=dataclasses.replace(runtime.settings, saved_days=days))
        worker._reap(aged, reaper)
        assert owner.listed("/predictions") & {old, new} == left
