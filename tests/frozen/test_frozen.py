"""Answers are those that were frozen: `python -m tests.frozen` freezes anew where a change of answers is meant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from app.config import Settings
from app.main import create_app
from tests.frozen.answers import FILE, Answers, collect
from tests.frozen.differences import differences

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), raise_server_exceptions=False) as running:
        yield running


def test_answers_are_those_frozen(client: TestClient, settings: Settings) -> None:
    frozen, today = Answers.read(FILE), collect(client, settings)
    different = differences(frozen, today)
    shown = [f"{name}: {'; '.join(lines[:3])}" for name, lines in list(different.items())[:20]]
    assert not different, "\n".join([f"{len(different)} of {len(today.answers)} answers changed", *shown])
