"""One Chromium for all browser tests, beside the running service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from app.config import CHECKOUT
from tests.browser.chromium import FLAGS, executable
from tests.service import Service

SCREENSHOTS = CHECKOUT / "tests" / "screenshots"
WIDE = {"width": 1440, "height": 1000}


@pytest.fixture(scope="module")  # while it runs, its event loop is the thread's: no other test may need one
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable(), args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where they are kept; git ignores it."""
    SCREENSHOTS.mkdir(exist_ok=True)
    return SCREENSHOTS


class Seen:
    """What a page asked for and complained about."""

    def __init__(self, context: BrowserContext) -> None:
        self.asked: list[str] = []
        self.complained: list[str] = []
        context.on("request", lambda request: self.asked.append(request.url))
        context.on("weberror", lambda error: self.complained.append(str(error.error)))
        context.on("console", lambda message: self._console(message.type, message.text))

    def _console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and "status of 4" not in text:  # Chromium repeats the status of a refusal
            self.complained.append(text)


@pytest.fixture
def context(browser: Browser, service: Service) -> Iterator[BrowserContext]:
    opened = browser.new_context(
        base_url=str(service.client.base_url),
        viewport=WIDE,
        color_scheme="light",
        accept_downloads=True,  # type: ignore[arg-type]
    )
    yield opened
    opened.close()


@pytest.fixture
def seen(context: BrowserContext, service: Service) -> Iterator[Seen]:
    """Checked after every test: nothing left this machine, and no script failed or was refused."""
    watched = Seen(context)
    yield watched
    origin = str(service.client.base_url).rstrip("/")
    away = [url for url in watched.asked if not url.startswith((origin, "blob:", "data:"))]
    assert not away, away
    assert not watched.complained, watched.complained


@pytest.fixture
def page(context: BrowserContext, seen: Seen) -> Page:
    return context.new_page()
