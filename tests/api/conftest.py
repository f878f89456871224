"""The application in this process, on a real database: quicker than a server where a test needs no worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.bootstrap.warm import shipped_snapshot
from app.config import Settings
from app.engine.snapshot import Snapshot
from app.main import create_app
from app.wire.kernel_workload import KERNEL_EXAMPLE


@pytest.fixture(scope="session", autouse=True)
def shipped_in_use() -> Snapshot:
    """The shipped versions, held in use: no other engine of this process reads their files again."""
    return shipped_snapshot()


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[TestClient]:
    """A client of the application on the module's database; a defect is a 500, not an exception."""
    with TestClient(create_app(settings), raise_server_exceptions=False) as running:
        yield running


@pytest.fixture
def kernel() -> dict[str, Any]:
    """The kernel of the HTTP contract's example: a tiled 1024 x 1024 matrix product, 0.91 ms on a TITAN V."""
    return {**KERNEL_EXAMPLE, "size": dict(KERNEL_EXAMPLE["size"]), "measured": list(KERNEL_EXAMPLE["measured"])}
