"""Pages that are shown to nobody after a start."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.dashboard.routes.first_visits import LOG, show_to_nobody


def test_each_page_of_the_menu_is_shown(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(client.app, FastAPI)
    show_to_nobody(client.app)
    assert not [record for record in caplog.records if record.name == LOG.name]
