"""Budgets and accessibility of the pages in a real browser: bytes, script time, axe-core, names of GPUs, print."""

from __future__ import annotations

import os
from itertools import product
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.service import Service

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

FIRST_VIEW_BYTES, SCRIPT_S = 150_000, 0.5
PAGES = {
    "plan": "/plan?prices=b200+5.5%0Ah100-sxm5-80gb+3",
    "compare": "/",
    "all": "/?gpu=all",
    "split": "/?kind=model&name=llama-3.1-70b&mode=decode&batch=8&sequence=4096&dtype=bf16&prices=h100-sxm5-80gb+2.5",
    "error": "/?gpu=rtx-4071",
    "operator": "/?kind=operators",
    "kernel": "/?kind=kernel",
    "graph": "/?kind=graph",
    "detail": "/detail",
    "scaling": "/scaling",
    "serving": "/serving",
    "accuracy": "/accuracy",
    "measured": "/measured",
    "catalogue": "/catalogue?q=gtx+970",
    "gpu": "/catalogue/nvidia-l4",
    "interface": "/docs",
    "sign-in": "/sign-in",
    "missing": "/nowhere",
}
WIDTHS = (390, 768, 1440)
# Names with a word that is broken over two lines.
BROKEN = """() => [...document.querySelectorAll("#ranking tr.gpu th a")].filter(a => a.checkVisibility()).filter(a => {
  const range = document.createRange(), text = a.firstChild;
  return [...text.textContent.matchAll(/\\S+/g)].some(({ 0: word, index }) => {
    range.setStart(text, index); range.setEnd(text, index + word.length);
    return range.getClientRects().length > 1;
  });
}).map(a => a.textContent)"""


def test_the_first_view_keeps_its_budget(browser: Browser, service: Service) -> None:
    scripts: list[float] = []
    while len(scripts) < 3 and min(scripts, default=SCRIPT_S) >= SCRIPT_S:
        sent, script_s = first_view(browser, str(service.client.base_url))
        assert 20_000 < sent < FIRST_VIEW_BYTES
        scripts.append(script_s)
    waiting = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # for the processor, behind others
    assert 0 < min(scripts) < SCRIPT_S * waiting, scripts


def first_view(browser: Browser, url: str) -> tuple[float, float]:
    """Bytes that a first visit transfers, and seconds of script."""
    context = browser.new_context()  # nothing is cached
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Performance.enable")
    sent: list[float] = []
    session.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
    page.goto(url, wait_until="networkidle")
    found = {item["name"]: item["value"] for item in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return sum(sent), found["ScriptDuration"]


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        *product(PAGES, (390,), ("light",)),
        *product(("plan", "compare", "split", "detail", "serving"), (1440,), ("dark",)),
        ("compare", 768, "light"),
    ],
)
def test_axe_finds_no_violation(page: Page, name: str, width: int, scheme: Literal["light", "dark"]) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(PAGES[name])
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.emulate_media(color_scheme=scheme)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", WIDTHS)
def test_names_of_gpus_are_not_broken(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(PAGES["all"])
    for box in page.locator("[data-unfold]").all():
        box.check()
    assert page.locator("#ranking tr.gpu th a:visible").count() > 50
    assert page.evaluate(BROKEN) == []


def test_a_print_unfolds_the_ranking(page: Page) -> None:
    page.goto(PAGES["all"])
    rows = page.locator("#ranking tr.gpu")
    expect(rows.nth(1)).to_be_hidden()
    page.emulate_media(media="print")
    assert page.locator("#ranking tr.gpu:visible").count() == rows.count() > 50
    assert page.locator("#ranking tr.fold:visible").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
