"""Tables on a phone, on a tablet and on paper: which figures are in sight without scrolling sideways."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

LARGE = (
    "/?kind=model&name=llama-3.1-70b&mode=decode&batch=8&sequence=4096&dtype=bf16"
    "&gpu=h100-sxm5-80gb&gpu=b200&gpu=amd-instinct-mi300x&gpu=nvidia-l4&gpu=rtx-3060&prices=h100-sxm5-80gb+2.5"
)
ALL = "/?kind=model&name=llama-3.1-70b&mode=training&batch=64&sequence=4096&dtype=bf16&gpu=all&prices=b200+3"
# A4 landscape less its margins, at 96 pixels per inch.
PAPER = {"width": 1039, "height": 718}
# Cells of a table that are shown and reach out of the screen, or whose content reaches out of them by over 3 pixels.
OUTSIDE = """table => [...document.querySelectorAll(table + ' tbody tr > *')].filter(cell => cell.checkVisibility())
  .filter(cell => {
    const box = cell.getBoundingClientRect();
    return box.left < 0 || box.right > innerWidth || cell.scrollWidth > cell.clientWidth + 3;
  }).map(cell => cell.textContent)"""
TOO_WIDE = """() => [...document.querySelectorAll('table')]
  .filter(table => table.getBoundingClientRect().width > document.body.clientWidth + 1).map(table => table.id)"""


@pytest.mark.parametrize("width", [390, 768, 1024])
@pytest.mark.parametrize("rank_by", ["latency", "energy"])
def test_watts_and_costs_of_the_ranking_need_no_scroll(page: Page, width: int, rank_by: str) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{LARGE}&rank_by={rank_by}")
    assert page.locator("#ranking tr.gpu td:visible").count() >= 5 * 5
    assert page.evaluate(OUTSIDE, "#ranking") == []


def test_figures_stand_below_their_heads_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(LARGE)
    right = "cells => cells.map(cell => Math.round(cell.getBoundingClientRect().right))"
    heads = page.locator("#ranking thead th.n:not(.place)")
    figures = page.locator("#ranking tr.gpu").first.locator("td:not(.place)")
    assert heads.evaluate_all(right) == figures.evaluate_all(right)
    page.get_by_role("button", name="Power, W").click()
    watts = page.locator("#ranking tr.gpu td:last-child data").evaluate_all("cells => cells.map(c => Number(c.value))")
    assert watts == sorted(watts) and len(watts) == 5


@pytest.mark.parametrize("width", [390, 768, 1024])
def test_figures_of_serving_need_no_scroll(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto("/serving")
    assert page.locator("#deployments td:visible").count() == 2 * 9
    assert page.evaluate(OUTSIDE, "#deployments") == []
    label = "cell => getComputedStyle(cell, '::before').content"
    cost = page.locator('#deployments [data-head="USD per 1M tokens"]').first
    assert cost.evaluate(label) == '"USD per 1M tokens"'


def test_columns_that_few_read_are_a_tap_away(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto("/detail")
    heads = page.locator("#operators thead th:visible")
    assert heads.all_text_contents() == ["Operator", "Times", "Time, ms", "Bound"]
    assert page.evaluate(OUTSIDE, "#operators") == []
    page.get_by_label("All columns").check()
    expect(heads).to_have_count(12)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.reload()
    expect(heads).to_have_count(12)


@pytest.mark.parametrize("path", [ALL, LARGE, "/detail", "/scaling", "/serving", "/accuracy", "/catalogue?q=gtx"])
def test_tables_fit_on_paper(page: Page, path: str) -> None:
    page.set_viewport_size(PAPER)
    page.goto(path)
    page.emulate_media(media="print")
    assert page.locator("table:visible").count() >= 1
    assert page.evaluate(TOO_WIDE) == []
