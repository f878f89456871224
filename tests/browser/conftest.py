"""One Chromium and one context for the browser tests of a module, beside the running service."""

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
    """What the pages of a context asked for and complained about."""

    def __init__(self, context: BrowserContext) -> None:
        self.asked: list[str] = []
        self.complained: list[str] = []
        context.on("request", lambda request: self.asked.append(request.url))
        context.on("weberror", lambda error: self.complained.append(str(error.error)))
        context.on("console", lambda message: self._console(message.type, message.text))

    def _console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and "status of 4" not in text:  # Chromium repeats the status of a refusal
            self.complained.append(text)

    def clear(self) -> None:
        self.asked.clear()
        self.complained.clear()


@pytest.fixture(scope="module")
def context(browser: Browser, service: Service) -> Iterator[BrowserContext]:
    """The context of the module's pages. Its first page stays open: the others then share a process, which starts in a
    second."""
    opened = browser.new_context(
        base_url=str(service.client.base_url),
        viewport=WIDE,
        color_scheme="light",
        accept_downloads=True,  # type: ignore[arg-type]
    )
    opened.new_page().goto("/static/icon.svg")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def seen(context: BrowserContext) -> Seen:
    return Seen(context)


@pytest.fixture
def page(context: BrowserContext, seen: Seen, service: Service) -> Iterator[Page]:
    """A page that finds nothing stored by others. After the test: nothing left this machine, and no script failed."""
    seen.clear()
    yield context.new_page()
    first, *others = context.pages
    for other in others:
        other.close()
    context.clear_cookies()
    first.evaluate("localStorage.clear()")
    origin = str(service.client.base_url).rstrip("/")
    away = [url for url in seen.asked if not url.startswith((origin, "blob:", "data:"))]
    assert not away, away
    assert not seen.complained, seen.complained
