"""A replica whose clock is a day behind, as after a machine was restored from a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.config import Settings
from app.store import keys
from app.store.roles import Role
from app.store.session import Database
from tests.busy_machine import until
from tests.service import Service
from tests.wrong_clock import WrongClock

pytestmark = pytest.mark.slow

_DAY_S = 86_400.0


@pytest.fixture(scope="module")
def replica(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("behind")
    clock = WrongClock(folder, ahead_s=-_DAY_S)
    asking = replace(settings, keys="on", rate_limit="20/hour")
    with Service(asking, folder / "log", clock.environment, fresh=True) as service:
        yield service


def test_keys_expire_by_the_clock_of_the_database(replica: Service, database: Database) -> None:
    """They were in use for a day more."""
    with database.begin() as connection:
        admin = keys.create(connection, "admin", Role.ADMIN)[1]
    head = {"Authorization": f"Bearer {admin}"}
    until(lambda: replica.client.get("/keys", headers=head).status_code == 200)
    body = {"name": "short", "role": "read", "expires_in_days": 1.5 / 86_400}
    made = replica.client.post("/keys", json=body, headers=head).raise_for_status().json()
    short = {"Authorization": f"Bearer {made['key']}"}
    assert replica.client.get("/gpus", headers=short).status_code == 200
    until(lambda: replica.client.get("/gpus", headers=short).status_code == 401)
