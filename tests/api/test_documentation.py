"""Every request in the README and the documentation works as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from app.config import CHECKOUT

PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
REQUESTS = {
    page: found
    for page in PAGES
    if (found := re.findall(r"```bash\n(curl .*?)\n```", page.read_text("utf-8"), re.DOTALL))
}


def test_the_readme_has_three_requests() -> None:
    assert len(REQUESTS[CHECKOUT / "README.md"]) == 3


@pytest.mark.parametrize("page", REQUESTS, ids=lambda page: page.name)
def test_requests_are_answered(client: TestClient, page: Path) -> None:
    for command in REQUESTS[page]:
        words = shlex.split(command)
        path = urlsplit(f"//{words[2]}").path
        answer = client.post(path, content=words[words.index("-d") + 1], headers={"content-type": "application/json"})
        assert answer.status_code == 200, (command, answer.text)
